//! Every way a call can fail, and the one table that says whose fault it is, whether to try again, and what to type.
//!
//! A tool that says "error" is an `Outcome`, not an `Error`; problems in config files are `config::Problem`s.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::class::{FailureClass, Sent};
use crate::last_words::LastWords;
use crate::policy::Denial;
use crate::spec::ServerId;
use crate::spelling;

/// A call that got no answer from a server.
#[derive(Debug, Clone)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    server: Option<ServerId>,
    retry_in: Option<Duration>,
    last_words: Option<LastWords>,
    hint: Option<String>,
    class: Option<FailureClass>,
    sent: Option<Sent>,
    denial: Option<Denial>,
    for_model: bool,
    approval: Option<String>,
}

/// Every way a call can fail. Adding one means adding a row to [`ErrorKind::facts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such tool or server, as far as this caller can see.
    Unknown,
    /// The request itself is wrong.
    Malformed,
    /// The arguments do not fit the tool's schema.
    BadArguments,
    /// A rule forbids it.
    Denied,
    /// The caller has used up its share.
    OverQuota,
    /// The server lives but keeps failing; it is left alone for a while.
    Tripped,
    /// The server died too often; it needs a person.
    Ejected,
    /// The server did not come up.
    CouldNotStart,
    /// The server died with the call in flight.
    Lost,
    /// The server did not answer in time.
    TimedOut,
    /// The server's answer cannot be understood.
    BadReply,
    /// The server wants to know who is asking.
    AuthNeeded,
    /// Too many calls wait for the server already.
    Overloaded,
    /// The crib is being shut down.
    ShuttingDown,
    /// Every call has to be recorded, and none can be now.
    Unrecorded,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Who asked.
    Caller,
    /// The rules here.
    Policy,
    /// The server.
    Server,
    /// toolcrib itself.
    Crib,
}

/// Whether asking again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Never with the same request.
    No,
    /// After the time that the error tells.
    After,
    /// Later.
    Later,
    /// Only if doing it twice does no harm.
    IfIdempotent,
    /// At another crib.
    Elsewhere,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The stable name, in logs and in `--json`.
    pub name: &'static str,
    /// Whose fault it is.
    pub blame: Blame,
    /// Whether to try again.
    pub retry: Retry,
    /// The JSON-RPC code a client sees.
    pub code: i32,
    /// What it means, in one line.
    pub meaning: &'static str,
    /// What to type next; `{server}` stands for the server's name.
    pub hint: &'static str,
}

impl ErrorKind {
    /// Every kind, in the table's order.
    pub const ALL: [Self; 15] = [
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
    ];

    /// The table.
    #[rustfmt::skip]
    pub fn facts(self) -> Facts {
        use {Blame as B, Retry as R};
        let row = |name, blame, retry, code, meaning, hint| Facts { name, blame, retry, code, meaning, hint };
        match self {
            Self::Unknown => row("unknown", B::Caller, R::No, -32602, "no such tool or server", "toolcrib tools"),
            Self::Malformed => row("malformed", B::Caller, R::No, -32600, "the request is wrong", "see what was expected"),
            Self::BadArguments => row("bad_arguments", B::Caller, R::No, -32602, "the arguments do not fit the tool's schema", "see the tool's `inputSchema`"),
            Self::Denied => row("denied", B::Policy, R::No, -31010, "a rule forbids it", "see the rule named"),
            Self::OverQuota => row("over_quota", B::Policy, R::After, -31011, "the caller's share is used up", "wait until it refills"),
            Self::Tripped => row("tripped", B::Server, R::After, -31012, "the server keeps failing and is left alone for a while", "toolcrib logs {server}"),
            Self::Ejected => row("ejected", B::Server, R::No, -31013, "the server died too often, or cannot work as it is declared", "toolcrib restart {server}"),
            Self::CouldNotStart => row("could_not_start", B::Server, R::Later, -31014, "the server did not come up", "toolcrib logs {server}"),
            Self::Lost => row("lost", B::Server, R::IfIdempotent, -31015, "the server died with the call in flight", "toolcrib logs {server}"),
            Self::TimedOut => row("timed_out", B::Server, R::IfIdempotent, -31016, "the server did not answer in time", "raise `limits.call-timeout` of {server}"),
            Self::ShuttingDown => row("shutting_down", B::Crib, R::Elsewhere, -31017, "toolcrib is being shut down", "toolcrib serve"),
            Self::BadReply => row("bad_reply", B::Server, R::No, -31018, "the server's answer cannot be understood", "toolcrib logs {server}"),
            Self::AuthNeeded => row("auth_needed", B::Crib, R::No, -31019, "the server wants to know who is asking", "set `servers.{server}.headers`"),
            Self::Overloaded => row("overloaded", B::Server, R::Later, -31020, "too many calls wait for the server already", "raise `servers.{server}.limits.in-flight`"),
            Self::Unrecorded => row("unrecorded", B::Crib, R::Later, -31021, "calls must be recorded and cannot be now", "make room for the file that `audit` names"),
        }
    }
}

impl Error {
    /// A failure with its own message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            server: None,
            retry_in: None,
            last_words: None,
            hint: None,
            class: None,
            sent: None,
            denial: None,
            for_model: false,
            approval: None,
        }))
    }

    /// Names the server concerned.
    #[must_use]
    pub fn at(mut self, server: &ServerId) -> Self {
        self.0.server.get_or_insert_with(|| server.clone());
        self
    }

    /// Says what to type instead of the table's hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    pub(crate) fn retry_in(mut self, wait: Duration) -> Self {
        self.0.retry_in = Some(wait);
        self
    }

    pub(crate) fn last_words(mut self, words: LastWords) -> Self {
        if self.0.hint.is_none() {
            self.0.hint = words.hint();
        }
        self.0.last_words = Some(words);
        self
    }

    /// Names the rule that forbids it.
    pub(crate) fn denied_by(mut self, denial: Denial) -> Self {
        self.0.denial = Some(denial);
        self
    }

    /// Tells it to the model that made the call, as the result of its tool: it can do something about it.
    pub(crate) fn for_model(mut self) -> Self {
        self.0.for_model = true;
        self
    }

    /// The call was made, and failed only afterwards.
    pub(crate) fn ran(mut self) -> Self {
        self.0.sent = Some(Sent::Maybe);
        self
    }

    /// Names the question that a person can still answer.
    pub(crate) fn needs_approval(mut self, id: String) -> Self {
        self.0.approval = Some(id);
        self
    }

    /// The server certainly never got the request.
    pub(crate) fn unsent(mut self) -> Self {
        self.0.sent = Some(Sent::Never);
        self
    }

    /// The request left for the server, if nothing is known to the contrary.
    pub(crate) fn left(mut self) -> Self {
        if self.sent() == Sent::Maybe {
            self.0.sent = Some(Sent::Maybe);
        }
        self
    }

    /// Says what is wrong with the server.
    pub(crate) fn of_class(mut self, class: FailureClass) -> Self {
        self.0.class = Some(class);
        self
    }

    /// The same failure under another name, for those who come after.
    pub(crate) fn become_kind(mut self, kind: ErrorKind, message: String) -> Self {
        self.0.kind = kind;
        self.0.message = message;
        (self.0.hint, self.0.sent) = (None, None);
        self
    }

    /// The same failure for those who ask before it is time for another try.
    pub(crate) fn again_in(&self, wait: Duration) -> Self {
        let mut again = self.clone().retry_in(wait);
        again.0.message = format!("{}, next attempt in {}", self.0.message, spelling::time(wait));
        again
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The server concerned, if there is one.
    pub fn server(&self) -> Option<&ServerId> {
        self.0.server.as_ref()
    }

    /// How long to wait before trying again, where that is known.
    pub fn wait(&self) -> Option<Duration> {
        self.0.retry_in
    }

    /// Whether the server certainly never got the request.
    pub fn is_unsent(&self) -> bool {
        self.0.sent == Some(Sent::Never)
    }

    /// Whether the call can have had an effect. What was refused before a server was asked cannot.
    pub fn sent(&self) -> Sent {
        use ErrorKind as K;
        match (self.0.sent, self.0.kind) {
            (Some(sent), _) => sent,
            (None, K::Lost | K::TimedOut | K::BadReply) => Sent::Maybe,
            (None, _) => Sent::Never,
        }
    }

    /// Whether the model that made the call can do something about it, so that it should see this as the tool's result.
    pub fn is_for_model(&self) -> bool {
        self.0.for_model
    }

    /// What is wrong with the server, where that is known.
    pub fn class(&self) -> Option<FailureClass> {
        self.0.class
    }

    /// How the server ended, if it did: exit status and the last lines of its stderr.
    pub fn words(&self) -> Option<&LastWords> {
        self.0.last_words.as_ref()
    }

    /// What to type next, where this failure knows better than the table.
    pub(crate) fn own_hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// What to type next.
    pub fn advice(&self) -> String {
        let server = self.0.server.as_ref().map_or("SERVER", ServerId::as_str);
        match &self.0.hint {
            Some(hint) => hint.clone(),
            None => self.0.kind.facts().hint.replace("{server}", server),
        }
    }

    /// The `data` of the JSON-RPC error a client sees.
    pub fn data(&self) -> Value {
        let facts = self.0.kind.facts();
        let mut data = json!({"kind": facts.name, "hint": self.advice(), "sent": self.sent().name()});
        if let Some(class) = self.0.class {
            data["class"] = class.name().into();
        }
        if let Some(server) = &self.0.server {
            data["server"] = server.as_str().into();
        }
        if let Some(wait) = self.0.retry_in {
            data["retryAfterMs"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
        }
        if let Some(words) = &self.0.last_words {
            data["exit"] = words.exit_text().into();
            data["stderr"] = words.stderr.clone().into();
        }
        if let Some(Denial { rule, origin }) = &self.0.denial {
            data["rule"] = rule.as_str().into();
            if let Some(origin) = origin {
                data["file"] = origin.file.display().to_string().into();
                data["line"] = origin.line.into();
            }
        }
        if let Some(id) = &self.0.approval {
            data["approval"] = id.as_str().into();
        }
        data
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match self.0.sent {
            Some(sent) => write!(f, " ({})", sent.words()),
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
        // The protocol has one code for a name that is unknown and for parameters that do not fit.
        assert_eq!(codes.len(), ErrorKind::ALL.len() - 1);
        let ours = codes.iter().filter(|code| **code > -32000);
        assert!(ours.clone().count() == 12 && ours.clone().all(|code| (-31021..=-31010).contains(code)));
    }

    #[test]
    fn an_error_tells_who_what_and_what_to_type() {
        let server: ServerId = "git".parse().unwrap();
        let error = Error::new(ErrorKind::Ejected, "`git` died 6 times in 5 m").at(&server);
        assert_eq!(error.advice(), "toolcrib restart git");
        assert_eq!(error.data()["kind"], "ejected");
        assert_eq!(error.data()["server"], "git");
    }

    #[test]
    fn every_error_says_whether_the_call_can_have_run() {
        for kind in ErrorKind::ALL {
            let error = Error::new(kind, "no");
            let maybe = matches!(kind, ErrorKind::Lost | ErrorKind::TimedOut | ErrorKind::BadReply);
            assert_eq!(error.data()["sent"], if maybe { "maybe" } else { "never" }, "{kind:?}");
            assert_eq!(error.clone().left().to_string(), if maybe { "no (it may have run)" } else { "no" });
            assert_eq!(error.unsent().left().to_string(), "no (it was never sent)");
        }
    }
}
