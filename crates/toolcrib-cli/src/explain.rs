//! Explanations of errors: the cause of each error kind and failure class, and what to do. `explain` and docs/errors.md show
//! them.

use toolcrib::model::failure_class::Treatment;
use toolcrib::{ErrorKind, FailureClass};

/// The explanation of an error kind or a failure class.
#[derive(Debug, Clone, Copy)]
pub struct Explanation {
    /// The stable name of the kind or class.
    pub name: &'static str,
    /// The JSON-RPC code of an error kind.
    pub code: Option<i32>,
    /// The meaning in one line.
    pub meaning: &'static str,
    /// What toolcrib does about a failure class.
    pub treatment: Option<&'static str>,
    /// What leads to it.
    pub cause: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Returns all explanations: error kinds first, then failure classes, in the order of the documentation.
pub fn explanations() -> impl Iterator<Item = Explanation> {
    ErrorKind::ALL.into_iter().map(explain_kind).chain(FailureClass::ALL.into_iter().map(explain_class))
}

/// Returns the explanations of a kind, of a class, or of a number with or without its sign. Several kinds may have the same
/// number.
pub(crate) fn find(code: &str) -> Vec<Explanation> {
    let name = code.to_lowercase().replace('-', "_");
    let number = code.strip_prefix('-').unwrap_or(code).parse::<u32>().ok();
    let matches = |explanation: &Explanation| {
        explanation.name == name || (number.is_some() && explanation.code.map(i32::unsigned_abs) == number)
    };
    explanations().filter(matches).collect()
}

fn explain_kind(kind: ErrorKind) -> Explanation {
    let facts = kind.facts();
    let advice = kind_advice(kind);
    Explanation {
        name: facts.name,
        code: Some(facts.code),
        meaning: facts.meaning,
        treatment: None,
        cause: advice.cause,
        remedy: advice.remedy,
    }
}

fn explain_class(class: FailureClass) -> Explanation {
    let facts = class.facts();
    let advice = class_advice(class);
    Explanation {
        name: facts.name,
        code: None,
        meaning: facts.meaning,
        treatment: Some(treatment_text(facts.treatment)),
        cause: advice.cause,
        remedy: advice.remedy,
    }
}

fn treatment_text(treatment: Treatment) -> &'static str {
    match treatment {
        Treatment::Restart => {
            "restarted with a delay that doubles; ejected when the restart budget is used up"
        }
        Treatment::RestartOnce => {
            "restarted with a delay; ejected when it happens again within `lifecycle.restarts.within`"
        }
        Treatment::Eject => "ejected immediately, until `toolcrib restart SERVER` or a changed entry",
        Treatment::Pause(_) => "calls fail immediately for 5 s, then the next one tries",
        Treatment::PauseAsAdvised => "calls fail immediately for as long as the server asked, at most 60 s",
        Treatment::PauseWithBackoff => "calls fail immediately for a delay that doubles; never ejected",
        _ => "",
    }
}

/// Cause and remedy.
struct Advice {
    cause: &'static str,
    remedy: &'static str,
}

const fn advice(cause: &'static str, remedy: &'static str) -> Advice {
    Advice { cause, remedy }
}

fn kind_advice(kind: ErrorKind) -> Advice {
    match kind {
        ErrorKind::Unknown => advice(
            "No server that the caller may see has this tool, prompt, resource or server name. The name may be misspelled, the \
             server may be disabled or hidden from the caller, or its tools may have changed.",
            "Run `toolcrib tools` for the names and `toolcrib why SERVER` to see whether the server is active here.",
        ),
        ErrorKind::Malformed => advice(
            "The request is not valid JSON-RPC or MCP: a member is missing, has the wrong type, or occurs twice.",
            "The message names the member. Report it to the author of the client.",
        ),
        ErrorKind::BadArguments => advice(
            "The arguments do not match the `inputSchema` of the tool. Nothing was sent to the server.",
            "Run `toolcrib tools NAME` for the arguments and an example. `--unchecked` of `toolcrib call` sends them anyway.",
        ),
        ErrorKind::Denied => advice(
            "A rule in `policy`, `profiles`, `callers` or `servers.NAME.tools` denies the call, or a person has to approve it \
             first, or the definition of the tool changed and `pin = \"strict\"` withholds it.",
            "The message names the rule. Run `toolcrib policy test --tool SERVER.TOOL` to see which rule decides, \
             `toolcrib approve --call ID` to approve a call, and `toolcrib approve SERVER` to approve changed definitions.",
        ),
        ErrorKind::OverQuota => advice(
            "A `quota` or `rate` of the caller, the server or the tool is used up, or the same call was repeated in a loop.",
            "Wait for the time in `retryAfterMs`, or raise the limit that the message names. `toolcrib status` shows usage.",
        ),
        other => server_advice(other),
    }
}

/// Returns the advice for errors that servers or the gateway cause.
fn server_advice(kind: ErrorKind) -> Advice {
    match kind {
        ErrorKind::Tripped => advice(
            "Several calls in a row timed out or got invalid answers, so the circuit breaker of the server is open. Calls fail \
             immediately until the cool-off is over; then one call tries.",
            "Read `toolcrib logs SERVER`. Wait, run `toolcrib restart SERVER`, or change `lifecycle.breaker`.",
        ),
        ErrorKind::Ejected => advice(
            "The server failed more often than `lifecycle.restarts` allows, or it cannot work as it is declared. It is not \
             started again by itself.",
            "Read the last error in `toolcrib status SERVER`, repair the cause, then run `toolcrib restart SERVER`.",
        ),
        ErrorKind::CouldNotStart => advice(
            "The process could not be started, exited during the handshake, or was not ready within \
             `lifecycle.start-timeout`; or the URL could not be reached.",
            "Read `toolcrib logs SERVER` and run the command by hand. `class` in the error says which of these it was.",
        ),
        ErrorKind::Lost => advice(
            "The server exited or closed the connection while the call was in flight. `sent` says whether it may have run.",
            "Read `toolcrib logs SERVER`. Repeat the call only if running it twice is safe.",
        ),
        ErrorKind::TimedOut => advice(
            "The server did not answer within `limits.call-timeout`, or within the timeout of the client. The call was \
             cancelled and may have run.",
            "Raise `servers.SERVER.limits.call-timeout` or `--timeout`, or ask for less.",
        ),
        ErrorKind::ShuttingDown => advice(
            "The gateway is stopping and accepts no new calls.",
            "Start it again with `toolcrib serve`, or use another gateway.",
        ),
        ErrorKind::BadReply => advice(
            "The answer of the server is not valid: not JSON, larger than `limits.message`, with another id, or cut off.",
            "If the message names `servers.SERVER.limits.message`, raise it. Else read `toolcrib logs SERVER`; a server that prints to stdout is a \
             common cause. Report it to its author.",
        ),
        ErrorKind::AuthNeeded => advice(
            "The remote server answered 401 or 403: it has no token, or the token is expired or not sufficient.",
            "Run `toolcrib login SERVER`, or set `servers.SERVER.headers`, for example `Authorization = \"Bearer ${secret:NAME}\"`, and run \
             `toolcrib secret set NAME`.",
        ),
        ErrorKind::Overloaded => advice(
            "More calls wait for the server than its limits allow, or clients use more memory than `limits.client-memory`.",
            "Send fewer calls at a time, or raise `servers.SERVER.limits.in-flight` or the limit in the message.",
        ),
        ErrorKind::Unrecorded => advice(
            "The config requires that every call is recorded in the audit file, and the file cannot be written.",
            "Make space for the file that `audit` names, and check its permissions.",
        ),
        ErrorKind::StoreUnavailable => advice(
            "Gateways share limits, approvals and sessions in a store, and the store did not answer.",
            "Check the store and the connection to it.",
        ),
        _ => advice("", ""),
    }
}

fn class_advice(class: FailureClass) -> Advice {
    match class {
        FailureClass::Crashed => advice(
            "The process ended by itself or by a signal, or closed stdin or stdout.",
            "Read the exit status and the last lines with `toolcrib logs SERVER`.",
        ),
        FailureClass::Hung => advice(
            "The process runs, but a call timed out and a ping was not answered either.",
            "Read `toolcrib logs SERVER`. Raise `limits.call-timeout` if the server is slow and cannot answer pings meanwhile.",
        ),
        FailureClass::SlowToStart => advice(
            "The handshake did not finish in time. A first start may download packages.",
            "Raise `servers.SERVER.lifecycle.start-timeout`, or install the package before.",
        ),
        FailureClass::Refused => advice(
            "The server answered the handshake with an error, or speaks a protocol version that toolcrib does not.",
            "Read its message in `toolcrib status SERVER`. `era` in the config forces a version.",
        ),
        FailureClass::Misconfigured => advice(
            "The command does not exist, its folder is missing, a variable or secret is not set, or it is not an MCP server.",
            "Run `toolcrib check`, repair the entry, then run `toolcrib restart SERVER`.",
        ),
        FailureClass::NeedsAuth => advice(
            "The remote server answered 401 or 403.",
            "Run `toolcrib login SERVER`, or set `servers.SERVER.headers`; store tokens with `toolcrib secret set NAME`.",
        ),
        FailureClass::RateLimited => advice(
            "The remote server answered 429 or 503 with `Retry-After`.",
            "Wait, or set a `rate` for its callers.",
        ),
        FailureClass::Unreachable => advice(
            "The host name does not resolve, the connection is refused or times out, or the certificate is not valid.",
            "Open the URL with `curl`; check the proxy and `toolcrib show SERVER`.",
        ),
        FailureClass::OverMemory => advice(
            "The process tree used more than `lifecycle.memory.hard`, or all servers more than `limits.memory`.",
            "Raise the limit, or ask the server for less.",
        ),
        FailureClass::ShimKilled => advice(
            "The process between toolcrib and the server was killed, by the system when memory was short, or by the server.",
            "Look for processes that the server left behind, and at the system log.",
        ),
        _ => advice("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_class_is_explained() {
        for explanation in explanations() {
            let Explanation { name, cause, remedy, treatment, .. } = explanation;
            assert!(!cause.is_empty() && !remedy.is_empty() && treatment != Some(""), "{name}");
            assert!(find(name).iter().any(|found| found.name == name), "{name}");
        }
    }

    #[test]
    fn numbers_are_found_with_and_without_sign() {
        let names = |code: &str| find(code).iter().map(|found| found.name).collect::<Vec<_>>();
        assert_eq!(names("-31014"), ["could_not_start"]);
        assert_eq!(names("31014"), ["could_not_start"]);
        assert_eq!(names("-32602"), ["unknown", "bad_arguments"]);
        assert_eq!(names("Slow-To-Start"), ["slow_to_start"]);
        assert_eq!(names("nothing"), Vec::<&str>::new());
    }
}
