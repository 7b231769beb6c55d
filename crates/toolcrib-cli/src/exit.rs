//! Exit codes of the program.

use std::process::ExitCode;

use toolcrib::ErrorKind;

/// An exit code. The numbers are a stable interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExitStatus {
    /// The command did what it was asked to do.
    Success = 0,
    /// The command line is wrong, or an unexpected error occurred.
    Failure = 1,
    /// A check failed.
    CheckFailed = 2,
    /// A server requires authentication.
    AuthNeeded = 3,
    /// A server or the gateway could not be reached or did not start.
    Unreachable = 4,
    /// The tool returned an error, or does not exist.
    ToolError = 5,
    /// The config is invalid.
    InvalidConfig = 6,
    /// A rule denied the call, or a usage limit is exhausted.
    Denied = 7,
    /// The call timed out.
    TimedOut = 8,
    /// The command was interrupted, usually with Ctrl-C.
    Interrupted = 130,
}

impl ExitStatus {
    /// Returns the exit status for a failed call.
    pub(crate) fn from_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Unknown => Self::ToolError,
            ErrorKind::Malformed | ErrorKind::BadArguments => Self::Failure,
            ErrorKind::Denied | ErrorKind::OverQuota => Self::Denied,
            ErrorKind::AuthNeeded => Self::AuthNeeded,
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::Tripped
            | ErrorKind::Ejected
            | ErrorKind::CouldNotStart
            | ErrorKind::Lost
            | ErrorKind::BadReply
            | ErrorKind::Overloaded
            | ErrorKind::Unrecorded
            | ErrorKind::StoreUnavailable
            | ErrorKind::ShuttingDown => Self::Unreachable,
            _ => Self::Failure,
        }
    }

    /// Returns the exit status for the stable name of an error kind, or `None` if there is no such kind.
    pub(crate) fn from_kind_name(name: &str) -> Option<Self> {
        ErrorKind::ALL.into_iter().find(|kind| kind.facts().name == name).map(Self::from_kind)
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(exit: ExitStatus) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_kinds_map_to_documented_exit_codes() {
        let codes = |exit: ExitStatus| -> Vec<&str> {
            let kinds = ErrorKind::ALL.into_iter().filter(|kind| ExitStatus::from_kind(*kind) == exit);
            kinds.map(|kind| kind.facts().name).collect()
        };
        assert_eq!(codes(ExitStatus::Failure), ["malformed", "bad_arguments"]);
        assert_eq!(
            codes(ExitStatus::Unreachable),
            [
                "tripped",
                "ejected",
                "could_not_start",
                "lost",
                "shutting_down",
                "bad_reply",
                "overloaded",
                "unrecorded",
                "store_unavailable"
            ]
        );
        assert_eq!(codes(ExitStatus::AuthNeeded), ["auth_needed"]);
        assert_eq!(codes(ExitStatus::ToolError), ["unknown"]);
        assert_eq!(codes(ExitStatus::Denied), ["denied", "over_quota"]);
        assert_eq!(codes(ExitStatus::TimedOut), ["timed_out"]);
    }

    #[test]
    fn exit_status_from_kind_name() {
        assert_eq!(ExitStatus::from_kind_name("lost"), Some(ExitStatus::Unreachable));
        assert_eq!(ExitStatus::from_kind_name("something-else"), None);
    }
}
