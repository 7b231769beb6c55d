//! Failure classes of servers, and the table of how each is treated. Pure.

use std::time::Duration;

/// The pause after a server required authentication.
const AUTH_PAUSE: Duration = Duration::from_secs(5);

/// The kind of problem that a server has. A new class needs a row in [`FailureClass::facts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureClass {
    /// It exited, or closed its input or output.
    Crashed,
    /// It runs but does not answer, not even a ping.
    Hung,
    /// It did not start in time.
    SlowToStart,
    /// It cannot work as declared.
    Misconfigured,
    /// It started and rejected the handshake.
    Refused,
    /// It requires authentication.
    NeedsAuth,
    /// It asked for a pause.
    RateLimited,
    /// It is remote and cannot be reached.
    Unreachable,
    /// It used more memory than allowed.
    OverMemory,
    /// The process that supervises it was killed, perhaps by the server itself.
    ShimKilled,
}

/// The treatment of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Treatment {
    /// Restarted with backoff; ejected once the restart budget is spent.
    Restart,
    /// Restarted with backoff; ejected if it happens again while the first time counts for the restart budget.
    RestartOnce,
    /// Ejected immediately, because a retry cannot help.
    Eject,
    /// Calls are refused for this long; then the next call tries again.
    Pause(Duration),
    /// Calls are refused for as long as the server asked, or one second; then the next call tries again.
    PauseAsAdvised,
    /// Calls are refused with backoff; then the next call tries again. Never ejected.
    PauseWithBackoff,
}

/// One row of the table of failure classes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ClassFacts {
    /// The stable name in `status` and in the `data` of errors.
    pub name: &'static str,
    /// The treatment of the failure.
    pub treatment: Treatment,
    /// Whether callers that wait for a start keep waiting for the next attempt.
    pub worth_waiting: bool,
    /// Whether a server with `start = "at-boot"` is started again without a call.
    pub retried_in_background: bool,
    /// The meaning in one line.
    pub meaning: &'static str,
}

impl FailureClass {
    /// All classes, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Crashed,
        Self::Hung,
        Self::SlowToStart,
        Self::Refused,
        Self::Misconfigured,
        Self::NeedsAuth,
        Self::RateLimited,
        Self::Unreachable,
        Self::OverMemory,
        Self::ShimKilled,
    ];

    /// Returns the row of this class.
    #[rustfmt::skip]
    pub const fn facts(self) -> ClassFacts {
        use Treatment as T;
        const fn row(name: &'static str, treatment: T, worth_waiting: bool, retried_in_background: bool, meaning: &'static str) -> ClassFacts {
            ClassFacts { name, treatment, worth_waiting, retried_in_background, meaning }
        }
        match self {
            Self::Crashed => row("crashed", T::Restart, true, true, "it exited, or closed its input or output"),
            Self::Hung => row("hung", T::Restart, true, true, "it answered neither a call nor a ping in time"),
            Self::SlowToStart => row("slow_to_start", T::Restart, false, true, "it was not ready within `lifecycle.start-timeout`"),
            Self::Refused => row("refused", T::Restart, false, true, "it started and rejected the handshake"),
            Self::Misconfigured => row("misconfigured", T::Eject, false, false, "it cannot work as declared"),
            Self::NeedsAuth => row("needs_authentication", T::Pause(AUTH_PAUSE), false, false, "it requires authentication"),
            Self::RateLimited => row("rate_limited", T::PauseAsAdvised, false, true, "it asked for a pause"),
            Self::Unreachable => row("unreachable", T::PauseWithBackoff, false, true, "it is remote and cannot be reached"),
            Self::OverMemory => row("over_memory", T::Restart, true, true, "it used more memory than allowed"),
            Self::ShimKilled => row("shim_killed", T::RestartOnce, true, true, "its shim process was killed, so that processes which it started may still run"),
        }
    }

    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }
}

/// Whether a request reached a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Delivery {
    /// No server can have executed the call.
    NotSent,
    /// A server may have executed the call.
    MaybeSent,
}

impl Delivery {
    /// Returns the stable name in the `data` of errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotSent => "never",
            Self::MaybeSent => "maybe",
        }
    }

    /// Returns the text for messages.
    pub const fn description(self) -> &'static str {
        match self {
            Self::NotSent => "the call was not sent",
            Self::MaybeSent => "the call may have run",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_treatments_consistent() {
        let names: HashSet<&str> = FailureClass::ALL.iter().map(|class| class.name()).collect();
        assert_eq!(names.len(), FailureClass::ALL.len());
        for class in FailureClass::ALL {
            let facts = class.facts();
            let restarts = matches!(facts.treatment, Treatment::Restart | Treatment::RestartOnce);
            assert!(restarts || !facts.worth_waiting, "{class:?}: only a restart is worth waiting for");
            assert!(
                facts.treatment != Treatment::Eject || !facts.retried_in_background,
                "{class:?}: an ejected server is not retried"
            );
        }
    }

    #[test]
    fn only_misconfigured_servers_are_ejected_immediately() {
        let ejected = |class: &&FailureClass| class.facts().treatment == Treatment::Eject;
        let immediately: Vec<_> = FailureClass::ALL.iter().filter(ejected).collect();
        assert_eq!(immediately, [&FailureClass::Misconfigured]);
        for class in [FailureClass::NeedsAuth, FailureClass::RateLimited, FailureClass::Unreachable] {
            assert!(!matches!(class.facts().treatment, Treatment::Restart | Treatment::Eject), "{class:?}");
        }
    }
}
