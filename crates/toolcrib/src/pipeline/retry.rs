//! Decides whether a failed call is sent once more, by its error and by whether the tool is idempotent, within the time
//! limit of the call.

use tokio::time::{Instant, timeout_at};

use crate::cache::SingleFlight;
use crate::call::Call;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::{Delivery, FailureClass};
use crate::model::outcome::Outcome;
use crate::model::target::Target;
use crate::pipeline::KeptLease;
use crate::pipeline::router::CallRouter;
use crate::spec::Trust;
use crate::upstream::deadline::Deadline;

/// The decision about sending a failed call again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryDecision {
    /// A retry cannot help, could do harm, or has no time left.
    No,
    /// No server can have executed the call.
    Yes,
    /// A server may have executed the call.
    IfIdempotent,
}

/// Decides by the error. A timeout leaves no time for a retry, and a server would repeat its own refusal.
fn decide(error: &Error) -> RetryDecision {
    match (error.kind(), error.delivery()) {
        // This call may be what used the memory.
        (ErrorKind::Lost, Delivery::MaybeSent) if error.class() == Some(FailureClass::OverMemory) => {
            RetryDecision::No
        }
        (ErrorKind::Lost, Delivery::NotSent) => RetryDecision::Yes,
        (ErrorKind::Lost, Delivery::MaybeSent) => RetryDecision::IfIdempotent,
        _ => RetryDecision::No,
    }
}

/// Returns whether a failed call may be sent once more.
pub(super) fn may_retry(router: &CallRouter, error: &Error, call: &Call, target: &Target) -> bool {
    match decide(error) {
        RetryDecision::No => false,
        RetryDecision::Yes => true,
        RetryDecision::IfIdempotent => is_idempotent(router, call, target),
    }
}

/// Returns whether the config or a trusted server declares the tool idempotent.
fn is_idempotent(router: &CallRouter, call: &Call, target: &Target) -> bool {
    let Some(Ok(entry)) = router.registry.get(&target.server) else { return false };
    let spec = entry.spec();
    let is_declared = || entry.listing().is_some_and(|listing| listing.is_repeatable(&target.name));
    call.method() == "tools/call"
        && (spec.tools.is_idempotent(&target.name) || (spec.trust == Trust::Trusted && is_declared()))
}

/// Sends a call again that was sent at `started` and failed with `first_error`. If the server is not up again within the
/// time limit of the call, returns `first_error`. The lease is kept if the server asks for input.
pub(super) async fn retry(
    router: &CallRouter,
    call: &mut Call,
    target: &Target,
    flight: Option<&SingleFlight>,
    kept: &mut KeptLease,
    first_error: Error,
    started: Instant,
) -> Result<Outcome, Error> {
    let Some(Ok(entry)) = router.registry.get(&target.server) else { return Err(first_error) };
    let deadline = Deadline::new(&entry.spec().limits, &entry.spec().tools, &target.name, started).initial();
    let may_have_run = first_error.delivery() == Delivery::MaybeSent;
    call.dispatched = may_have_run;
    call.sent_late = true;
    let requested = Instant::now();
    let Ok(lease) = timeout_at(deadline, router.registry.lease(&target.server, call)).await else {
        return Err(first_error);
    };
    call.trace.record(|facts| facts.timing.start += requested.elapsed());
    let retried = async {
        let mut lease = lease?;
        flight.into_iter().for_each(SingleFlight::mark_sent);
        let outcome = lease.send(call, &target.name, started).await;
        kept.keep_or_release(lease, call, &outcome).await;
        outcome
    };
    retried.await.map_err(|error| if may_have_run { error.mark_maybe_sent() } else { error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lost_calls_are_retried_and_sent_ones_if_idempotent() {
        for kind in ErrorKind::ALL {
            let error = Error::new(kind, "no");
            let if_lost = |decision| if kind == ErrorKind::Lost { decision } else { RetryDecision::No };
            assert_eq!(decide(&error), if_lost(RetryDecision::IfIdempotent), "{kind:?}");
            assert_eq!(
                decide(&error.clone().mark_dispatched()),
                if_lost(RetryDecision::IfIdempotent),
                "{kind:?}"
            );
            let over_memory = error.clone().with_class(FailureClass::OverMemory);
            assert_eq!(decide(&over_memory), RetryDecision::No, "{kind:?}");
            let hung = error.clone().with_class(FailureClass::Hung);
            assert_eq!(decide(&hung), if_lost(RetryDecision::IfIdempotent), "{kind:?}");
            assert_eq!(decide(&error.mark_not_sent()), if_lost(RetryDecision::Yes), "{kind:?}");
        }
    }
}
