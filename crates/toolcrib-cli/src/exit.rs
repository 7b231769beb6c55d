//! Exit codes: what a script learns without reading a word.

use std::process::ExitCode;

use toolcrib::ErrorKind;

/// How the program ends. The numbers are part of the surface and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All is well.
    Fine = 0,
    /// The command line is wrong, or something happened that nobody thought of.
    Unexpected = 1,
    /// A check failed.
    CheckFailed = 2,
    /// A server wants to know who is asking.
    AuthNeeded = 3,
    /// A server, or the daemon, could not be reached or did not start.
    Unreachable = 4,
    /// The tool said error, or there is no such tool.
    ToolError = 5,
    /// The config is invalid.
    BadConfig = 6,
    /// A rule forbids it, or the caller's share is used up.
    Denied = 7,
    /// It took too long.
    TimedOut = 8,
    /// Somebody pressed Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// The exit code for a failed call.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Unknown => Self::ToolError,
            ErrorKind::Malformed | ErrorKind::BadArguments => Self::Unexpected,
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
            | ErrorKind::ShuttingDown => Self::Unreachable,
        }
    }

    /// The same, from the stable name of a kind that came over the wire; `None` for a name that is not ours.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        ErrorKind::ALL.into_iter().find(|kind| kind.facts().name == name).map(Self::of)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_the_exit_code_of_the_contract() {
        let codes = |exit: Exit| -> Vec<&str> {
            let kinds = ErrorKind::ALL.into_iter().filter(|kind| Exit::of(*kind) == exit);
            kinds.map(|kind| kind.facts().name).collect()
        };
        assert_eq!(codes(Exit::Unexpected), ["malformed", "bad_arguments"]);
        assert_eq!(
            codes(Exit::Unreachable),
            [
                "tripped",
                "ejected",
                "could_not_start",
                "lost",
                "shutting_down",
                "bad_reply",
                "overloaded",
                "unrecorded"
            ]
        );
        assert_eq!(codes(Exit::AuthNeeded), ["auth_needed"]);
        assert_eq!(codes(Exit::ToolError), ["unknown"]);
        assert_eq!(codes(Exit::Denied), ["denied", "over_quota"]);
        assert_eq!(codes(Exit::TimedOut), ["timed_out"]);
    }

    #[test]
    fn names_from_the_wire_mean_the_same() {
        assert_eq!(Exit::of_name("lost"), Some(Exit::Unreachable));
        assert_eq!(Exit::of_name("something-else"), None);
    }
}
