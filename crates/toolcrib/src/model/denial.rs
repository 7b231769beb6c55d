//! A refusal by a rule.

use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::spec::{Origin, ServerId};

/// A denial and the rule behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The rule, in words.
    pub rule: String,
    /// The location of the rule, if it comes from a file.
    pub origin: Option<Origin>,
}

impl Denial {
    /// Converts the denial to the error for the caller. Only a local caller sees the location of the rule.
    pub(crate) fn into_error(self, caller: &Caller, server: &ServerId, name: &str) -> Error {
        self.into_error_with_reason(caller, server, name, "")
    }

    /// Converts the denial of a whole server to the error for the caller.
    pub(crate) fn into_server_error(self, caller: &Caller, server: &ServerId) -> Error {
        self.into_error_about(caller, server, server.as_str(), "")
    }

    /// Like [`Denial::into_error`], with a reason in front of the rule.
    pub(crate) fn into_error_with_reason(
        self,
        caller: &Caller,
        server: &ServerId,
        name: &str,
        reason: &str,
    ) -> Error {
        self.into_error_about(caller, server, &format!("{server}.{name}"), reason)
    }

    fn into_error_about(self, caller: &Caller, server: &ServerId, subject: &str, reason: &str) -> Error {
        let Self { rule, origin } = self;
        let origin = origin.filter(|_| caller.is_local());
        let location = origin.as_ref().map(|at| format!(" ({}:{})", at.file.display(), at.line));
        let message = format!(
            "`{}` may not use `{subject}`: {reason}{}{rule}{}",
            caller.as_str(),
            if reason.is_empty() { "" } else { ": " },
            location.unwrap_or_default()
        );
        Error::new(ErrorKind::Denied, message).with_server(server).with_denial(Self { rule, origin })
    }
}
