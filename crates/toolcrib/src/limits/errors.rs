//! Errors of calls that a limit refuses.

use std::time::Duration;

use crate::call::Call;
use crate::call::budget::Budget;
use crate::model::denial::Denial;
use crate::model::error::{Error, ErrorKind};
use crate::model::target::Target;
use crate::spec::Origin;
use crate::store::{LimitRefusal, StoreError};

/// Records the denial and returns its error. Only a local caller sees the location of the rule.
fn over_quota(call: &Call, message: String, denial: Denial) -> Error {
    call.trace.record(|facts| facts.denial = Some(denial.clone()));
    let Denial { rule, origin } = denial;
    let origin = origin.filter(|_| call.caller.is_local());
    Error::new(ErrorKind::OverQuota, message).with_denial(Denial { rule, origin })
}

/// Returns the error for a refusal by the limit that is configured at `origin`.
pub(super) fn limit_error(
    refusal: &LimitRefusal,
    origin: Option<Origin>,
    call: &Call,
    target: &Target,
) -> Error {
    let LimitRefusal { counter, wait } = refusal;
    let wait = *wait;
    let Target { server, name } = target;
    let caller = call.caller.as_str();
    let rule = format!("`{}` is {}", counter.name, counter.kind);
    let shown_origin = origin.as_ref().filter(|_| call.caller.is_local());
    let location =
        shown_origin.map_or_else(String::new, |at| format!(" ({}:{})", at.file.display(), at.line));
    let wait_text = format_wait(wait);
    let message = format!(
        "`{caller}` may not use `{server}.{name}` now: {rule}{location}; available again in {wait_text}"
    );
    let error = over_quota(call, message, Denial { rule, origin });
    error.with_server(server).with_retry_in(wait).with_hint(format!("retry in {wait_text}"))
}

pub(super) fn budget_error(budget: &Budget, call: &Call, target: &Target) -> Error {
    let Target { server, name } = target;
    let rule = format!("the budget is {} calls", budget.limit());
    let message = format!("the budget is used up and `{server}.{name}` was not called: {rule}");
    let error = over_quota(call, message, Denial { rule, origin: None });
    error.with_server(server).with_hint("create a larger budget")
}

pub(super) fn repeated_call_error(max_calls: u32, wait: Duration, call: &Call, target: &Target) -> Error {
    let Target { server, name } = target;
    let rule = format!("`limits.identical-calls` is {max_calls}");
    let message = format!(
        "`{name}` was called {max_calls} times in a row with the same arguments and was not called again: {rule}"
    );
    let hint = "use the previous result, change the arguments, or make another call first";
    let error = over_quota(call, message, Denial { rule, origin: None }).with_server(server);
    error.with_retry_in(wait).with_hint(hint).for_model()
}

pub(super) fn results_used_up_error(max_bytes: u64, call: &Call, target: &Target) -> Error {
    let Target { server, name } = target;
    let rule = format!("`limits.results` is {max_bytes} bytes");
    let message =
        format!("`{name}` was not called, because this client has used up its result bytes: {rule}");
    let error = over_quota(call, message, Denial { rule, origin: None }).with_server(server);
    error.with_hint("continue with the results you have, or start a new session").for_model()
}

pub(super) fn result_too_large_error(bytes: u64, remaining: u64, max_bytes: u64, call: &Call) -> Error {
    let rule = format!("`limits.results` is {max_bytes} bytes");
    let message = format!(
        "the result was discarded: it has {bytes} bytes and this client may get {remaining} more: {rule}"
    );
    let error = over_quota(call, message, Denial { rule, origin: None }).mark_maybe_sent();
    error.with_hint("request less data, or start a new session").for_model()
}

pub(super) fn in_flight_error(max_calls: u32, call: &Call, target: &Target) -> Error {
    let Target { server, name } = target;
    let caller = call.caller.as_str();
    let rule = format!("`callers.{caller}.in-flight` is {max_calls}");
    let message =
        format!("`{server}.{name}` was not called, because `{caller}` has too many calls in flight: {rule}");
    let error = over_quota(call, message, Denial { rule, origin: None }).with_server(server);
    error.with_hint("wait for the other calls, then try again")
}

/// Returns the error for a call whose limits could not be checked.
pub(super) fn store_error(error: &StoreError, target: &Target) -> Error {
    let Target { server, name } = target;
    let message =
        format!("`{server}.{name}` was not called, because its limits could not be checked: {error}");
    Error::new(ErrorKind::StoreUnavailable, message).with_server(server)
}

/// Formats a wait for people, rounded up to minutes above two minutes and to hours above two hours.
fn format_wait(wait: Duration) -> String {
    let tenths = wait.as_millis().div_ceil(100);
    match tenths {
        0..=1200 => format!("{}.{} s", tenths / 10, tenths % 10),
        1201..=72_000 => format!("{} min", tenths.div_ceil(600)),
        _ => format!("{} h", tenths.div_ceil(36_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_wait_rounds_up_long_waits() {
        for (milliseconds, expected) in [
            (1, "0.1 s"),
            (40_000, "40.0 s"),
            (120_001, "3 min"),
            (3_599_700, "60 min"),
            (86_000_000, "24 h"),
        ] {
            assert_eq!(format_wait(Duration::from_millis(milliseconds)), expected);
        }
    }
}
