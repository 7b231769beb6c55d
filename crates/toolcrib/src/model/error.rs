//! Errors of calls, and the table of their codes and causes.
//!
//! A tool result with `isError` is an `Outcome`, not an `Error`; problems in config files are `config::Problem`s.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::model::call_id::CallId;
use crate::model::denial::Denial;
use crate::model::exit_report::{ExitReport, ProcessExit};
use crate::model::failure_class::{Delivery, FailureClass};
use crate::model::hint::Hint;
use crate::spec::ServerId;
use crate::util::format;

/// The failure of a call that got no answer from a server.
#[derive(Debug, Clone)]
pub struct Error(Box<ErrorInner>);

#[derive(Debug, Clone)]
struct ErrorInner {
    kind: ErrorKind,
    message: String,
    server: Option<ServerId>,
    retry_in: Option<Duration>,
    exit_report: Option<ExitReport>,
    hint: Option<Hint>,
    class: Option<FailureClass>,
    delivery: Option<Delivery>,
    denial: Option<Denial>,
    for_model: bool,
    approval_id: Option<String>,
    server_error: Option<Bytes>,
    call_id: Option<CallId>,
}

/// The kinds of call failures. A new kind needs a row in [`ErrorKind::facts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such tool or server is visible to the caller.
    Unknown,
    /// The request is invalid.
    Malformed,
    /// The arguments do not fit the tool's schema.
    BadArguments,
    /// An access rule denies the call.
    Denied,
    /// A quota or rate limit is exceeded.
    OverQuota,
    /// The circuit breaker of the server is open.
    Tripped,
    /// The server failed too often; an operator has to act.
    Ejected,
    /// The server did not start.
    CouldNotStart,
    /// The server exited with the call in flight.
    Lost,
    /// The server did not answer in time.
    TimedOut,
    /// The server's answer is invalid.
    BadReply,
    /// The server requires authentication.
    AuthNeeded,
    /// Too many calls wait for the server, or clients use too much memory.
    Overloaded,
    /// The crib is shutting down.
    ShuttingDown,
    /// Calls must be recorded, and recording fails.
    Unrecorded,
    /// The store that gateways share did not answer.
    StoreUnavailable,
}

/// The party that caused a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blame {
    /// The caller.
    Caller,
    /// The access rules or limits.
    Policy,
    /// The server.
    Server,
    /// toolcrib itself.
    Crib,
}

/// Advice on trying the call again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// Not with the same request.
    No,
    /// After the time in the error.
    After,
    /// Later.
    Later,
    /// Only if the call is idempotent.
    IfIdempotent,
    /// At another gateway.
    Elsewhere,
}

/// One row of the error table.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ErrorFacts {
    /// The stable name in logs and JSON.
    pub name: &'static str,
    /// The party that caused it.
    pub blame: Blame,
    /// Advice on trying the call again.
    pub retry: Retry,
    /// The JSON-RPC error code.
    pub code: i32,
    /// The meaning in one line.
    pub meaning: &'static str,
}

impl ErrorKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 16] = [
        Self::Unknown,
        Self::Malformed,
        Self::Denied,
        Self::OverQuota,
        Self::Tripped,
        Self::Ejected,
        Self::CouldNotStart,
        Self::Lost,
        Self::TimedOut,
        Self::ShuttingDown,
        Self::BadReply,
        Self::AuthNeeded,
        Self::Overloaded,
        Self::Unrecorded,
        Self::BadArguments,
        Self::StoreUnavailable,
    ];

    /// Returns the row of this kind in the error table.
    #[rustfmt::skip]
    pub fn facts(self) -> ErrorFacts {
        use {Blame as B, Retry as R};
        let row = |name, blame, retry, code, meaning| ErrorFacts { name, blame, retry, code, meaning };
        match self {
            Self::Unknown => row("unknown", B::Caller, R::No, -32602, "no such tool or server"),
            Self::Malformed => row("malformed", B::Caller, R::No, -32600, "the request is invalid"),
            Self::BadArguments => row("bad_arguments", B::Caller, R::No, -32602, "the arguments do not match the tool's schema"),
            Self::Denied => row("denied", B::Policy, R::No, -31010, "an access rule denies the call"),
            Self::OverQuota => row("over_quota", B::Policy, R::After, -31011, "a quota or rate limit is exceeded"),
            Self::Tripped => row("tripped", B::Server, R::After, -31012, "the circuit breaker of the server is open"),
            Self::Ejected => row("ejected", B::Server, R::No, -31013, "the server failed too often, or cannot work as declared"),
            Self::CouldNotStart => row("could_not_start", B::Server, R::Later, -31014, "the server did not start"),
            Self::Lost => row("lost", B::Server, R::IfIdempotent, -31015, "the server exited with the call in flight"),
            Self::TimedOut => row("timed_out", B::Server, R::IfIdempotent, -31016, "the server did not answer in time"),
            Self::ShuttingDown => row("shutting_down", B::Crib, R::Elsewhere, -31017, "toolcrib is shutting down"),
            Self::BadReply => row("bad_reply", B::Server, R::No, -31018, "the server's answer is invalid"),
            Self::AuthNeeded => row("auth_needed", B::Crib, R::No, -31019, "the server requires authentication"),
            Self::Overloaded => row("overloaded", B::Server, R::Later, -31020, "too many calls wait for the server, or clients use too much memory"),
            Self::Unrecorded => row("unrecorded", B::Crib, R::Later, -31021, "calls must be recorded and recording fails"),
            Self::StoreUnavailable => row("store_unavailable", B::Crib, R::Later, -31022, "the store that gateways share did not answer"),
        }
    }

    /// Returns the hint of errors of this kind that have none of their own.
    pub fn default_hint(self, server: Option<&ServerId>) -> Hint {
        let name = server.map_or("SERVER", ServerId::as_str);
        let server = server.cloned();
        match self {
            Self::Unknown => Hint::ListTools,
            Self::Malformed => "see the message".into(),
            Self::BadArguments => "see the tool's `inputSchema`".into(),
            Self::Denied => "see the rule in the message".into(),
            Self::OverQuota => "wait and try again".into(),
            Self::Tripped | Self::CouldNotStart | Self::Lost | Self::BadReply => Hint::ReadLog { server },
            Self::Ejected => Hint::RestartServer { server },
            Self::TimedOut => format!("raise `limits.call-timeout` of {name}").into(),
            Self::ShuttingDown => Hint::StartGateway,
            Self::AuthNeeded => format!("set `servers.{name}.headers`").into(),
            Self::Overloaded => Hint::RaiseLimit { key: format!("servers.{name}.limits.in-flight") },
            Self::Unrecorded => "make space for the file named in `audit`".into(),
            Self::StoreUnavailable => "check the store and its connection".into(),
        }
    }
}

impl Error {
    /// Creates an error with a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorInner {
            kind,
            message: message.into(),
            server: None,
            retry_in: None,
            exit_report: None,
            hint: None,
            class: None,
            delivery: None,
            denial: None,
            for_model: false,
            approval_id: None,
            call_id: None,
            server_error: None,
        }))
    }

    /// Sets the server, unless one is set.
    #[must_use]
    pub fn with_server(mut self, server: &ServerId) -> Self {
        self.0.server.get_or_insert_with(|| server.clone());
        self
    }

    /// Replaces the hint of the error's kind.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Hint>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    pub(crate) fn with_retry_in(mut self, wait: Duration) -> Self {
        self.0.retry_in = Some(wait);
        self
    }

    pub(crate) fn with_exit_report(mut self, report: ExitReport) -> Self {
        if self.0.hint.is_none() {
            self.0.hint = report.hint().map(Hint::Text);
        }
        self.0.exit_report = Some(report);
        self
    }

    /// Sets the rule that denies the call.
    pub(crate) fn with_denial(mut self, denial: Denial) -> Self {
        self.0.denial = Some(denial);
        self
    }

    /// Returns the error to the model as a tool result, because the model can correct its call.
    pub(crate) fn for_model(mut self) -> Self {
        self.0.for_model = true;
        self
    }

    /// Records that a server may have executed the call.
    #[doc(hidden)]
    #[must_use]
    pub fn mark_maybe_sent(mut self) -> Self {
        self.0.delivery = Some(Delivery::MaybeSent);
        self
    }

    /// Sets the id of the call that failed.
    pub(crate) fn with_call_id(mut self, id: CallId) -> Self {
        self.0.call_id = Some(id);
        self
    }

    /// Returns the id of the call that failed, if calls are recorded.
    pub fn call_id(&self) -> Option<CallId> {
        self.0.call_id
    }

    /// Returns the id of the approval that the call waits for.
    pub(crate) fn approval_id(&self) -> Option<&str> {
        self.0.approval_id.as_deref()
    }

    /// Sets the id of the approval that the call waits for.
    pub(crate) fn with_approval_id(mut self, id: String) -> Self {
        self.0.approval_id = Some(id);
        self
    }

    /// Sets the error object that the server sent.
    pub(crate) fn with_server_error(mut self, error: Bytes) -> Self {
        self.0.server_error = Some(error);
        self
    }

    /// Records that no server received the request.
    pub(crate) fn mark_not_sent(mut self) -> Self {
        self.0.delivery = Some(Delivery::NotSent);
        self
    }

    /// Records that the request was sent, unless the error says that it was not.
    pub(crate) fn mark_dispatched(mut self) -> Self {
        if self.delivery() == Delivery::MaybeSent {
            self.0.delivery = Some(Delivery::MaybeSent);
        }
        self
    }

    /// Sets the failure class of the server.
    pub(crate) fn with_class(mut self, class: FailureClass) -> Self {
        self.0.class = Some(class);
        self
    }

    /// Changes the kind and the message, and resets hint and delivery.
    pub(crate) fn into_kind(mut self, kind: ErrorKind, message: String) -> Self {
        self.0.kind = kind;
        self.0.message = message;
        self.0.hint = None;
        self.0.delivery = None;
        self
    }

    /// Removes the lines that the server wrote to stderr, which may be about other callers.
    pub(crate) fn without_stderr(mut self) -> Self {
        let Some(report) = &mut self.0.exit_report else { return self };
        if report.exit != Some(ProcessExit::Disconnected) {
            let with_last_line = report.to_string();
            self.0.message = self.0.message.replace(&with_last_line, &report.exit_text());
            report.stderr.clear();
        }
        self
    }

    /// Returns the same error with the time until the next attempt in its message.
    pub(crate) fn with_next_attempt_in(&self, wait: Duration) -> Self {
        let mut error = self.clone().with_retry_in(wait);
        error.0.message = format!("{}, next attempt in {}", self.0.message, format::format_duration(wait));
        error
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the server, if the failure concerns one.
    pub fn server(&self) -> Option<&ServerId> {
        self.0.server.as_ref()
    }

    /// Returns how long to wait before a retry, if that is known.
    pub fn retry_in(&self) -> Option<Duration> {
        self.0.retry_in
    }

    /// Returns whether the error states that no server received the request.
    pub fn is_not_sent(&self) -> bool {
        self.0.delivery == Some(Delivery::NotSent)
    }

    /// Returns whether a server may have executed the call. A call that was refused before it was sent cannot have run.
    pub fn delivery(&self) -> Delivery {
        use ErrorKind as K;
        match (self.0.delivery, self.0.kind) {
            (Some(delivery), _) => delivery,
            (None, _) if self.0.server_error.is_some() => Delivery::MaybeSent,
            (None, K::Lost | K::TimedOut | K::BadReply) => Delivery::MaybeSent,
            (None, _) => Delivery::NotSent,
        }
    }

    /// Returns whether the model should see the error as a tool result, because it can correct its call.
    pub fn is_for_model(&self) -> bool {
        self.0.for_model
    }

    /// Returns the failure class of the server, if it is known.
    pub fn class(&self) -> Option<FailureClass> {
        self.0.class
    }

    /// Returns the exit status and stderr tail of the server, if it exited.
    pub fn exit_report(&self) -> Option<&ExitReport> {
        self.0.exit_report.as_ref()
    }

    /// Returns the error object that the server sent, if the failure is its answer.
    pub fn server_error(&self) -> Option<&Bytes> {
        self.0.server_error.as_ref()
    }

    /// Returns the hint that replaces the one of the error's kind.
    pub(crate) fn own_hint(&self) -> Option<&Hint> {
        self.0.hint.as_ref()
    }

    /// Returns what to do next.
    pub fn hint(&self) -> Hint {
        let default = || self.0.kind.default_hint(self.0.server.as_ref());
        self.0.hint.clone().unwrap_or_else(default)
    }

    /// Returns the `data` of the JSON-RPC error, with the hint in the library's own words.
    pub fn data(&self) -> Value {
        self.data_with_hint(&self.hint().to_string())
    }

    /// Returns the `data` of the JSON-RPC error, with the hint in the words of a program.
    pub fn data_with_hint(&self, hint: &str) -> Value {
        let facts = self.0.kind.facts();
        let mut data = json!({"kind": facts.name, "hint": hint, "sent": self.delivery().name()});
        if let Some(class) = self.0.class {
            data["class"] = class.name().into();
        }
        if let Some(server) = &self.0.server {
            data["server"] = server.as_str().into();
        }
        if let Some(wait) = self.0.retry_in {
            data["retryAfterMs"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
        }
        if let Some(report) = &self.0.exit_report {
            data["exit"] = report.exit_text().into();
            data["stderr"] = report.stderr.clone().into();
        }
        if let Some(Denial { rule, origin }) = &self.0.denial {
            data["rule"] = rule.as_str().into();
            if let Some(origin) = origin {
                data["file"] = origin.file.display().to_string().into();
                data["line"] = origin.line.into();
            }
        }
        if let Some(id) = &self.0.approval_id {
            data["approval"] = id.as_str().into();
        }
        if let Some(id) = self.0.call_id {
            data["call"] = id.to_string().into();
        }
        data
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match self.0.delivery {
            Some(delivery) => write!(f, "; {}", delivery.description()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_outside_the_reserved_range() {
        let mut codes: Vec<i32> = ErrorKind::ALL.iter().map(|kind| kind.facts().code).collect();
        codes.sort_unstable();
        codes.dedup();
        // The protocol has one code for unknown names and for invalid parameters.
        assert_eq!(codes.len(), ErrorKind::ALL.len() - 1);
        let ours = codes.iter().filter(|code| **code > -32000);
        assert!(ours.clone().count() == 13 && ours.clone().all(|code| (-31022..=-31010).contains(code)));
    }

    #[test]
    fn error_data_has_kind_server_and_hint() {
        let server: ServerId = "git".parse().unwrap();
        let error = Error::new(ErrorKind::Ejected, "server `git` is ejected").with_server(&server);
        assert_eq!(error.hint(), Hint::RestartServer { server: Some(server) });
        assert_eq!(error.data()["kind"], "ejected");
        assert_eq!(error.data()["server"], "git");
    }

    #[test]
    fn stderr_is_removed_from_data_and_message() {
        let report = ExitReport {
            exit: Some(ProcessExit::Status(3)),
            stderr: vec!["patient=Jane".to_owned(), "oops Jane".to_owned()],
            program: "npx".to_owned(),
        };
        let message = format!("`a` died: {report}");
        let error = Error::new(ErrorKind::Lost, message).with_exit_report(report).without_stderr();
        assert_eq!(error.to_string(), "`a` died: exit status 3");
        assert_eq!((&error.data()["exit"], &error.data()["stderr"]), (&json!("exit status 3"), &json!([])));
    }

    #[test]
    fn every_kind_reports_whether_call_may_have_run() {
        for kind in ErrorKind::ALL {
            let error = Error::new(kind, "no");
            let maybe = matches!(kind, ErrorKind::Lost | ErrorKind::TimedOut | ErrorKind::BadReply);
            assert_eq!(error.data()["sent"], if maybe { "maybe" } else { "never" }, "{kind:?}");
            assert_eq!(
                error.clone().mark_dispatched().to_string(),
                if maybe { "no; the call may have run" } else { "no" }
            );
            assert_eq!(error.mark_not_sent().mark_dispatched().to_string(), "no; the call was not sent");
        }
    }
    #[test]
    fn library_hints_name_no_command() {
        let server: ServerId = "git".parse().unwrap();
        for kind in ErrorKind::ALL {
            for hint in [kind.default_hint(None), kind.default_hint(Some(&server))] {
                assert!(!hint.to_string().contains("toolcrib"), "{kind:?}: {hint}");
            }
        }
    }
}
