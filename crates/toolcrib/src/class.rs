//! `FailureClass`: what is wrong with a server, and the one table that says what is done about it. Pure.

use std::time::Duration;

/// How long a server that wants to know who asks is not asked again.
const MOMENT: Duration = Duration::from_secs(5);

/// What is wrong with a server. Adding one means adding a row to [`FailureClass::facts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// It ended, closed its output, or can be told nothing any more.
    Crashed,
    /// It lives and answers nothing, not even a ping.
    Hung,
    /// It did not come up in time.
    SlowToStart,
    /// It can never work as it is declared.
    Misconfigured,
    /// It came up and says that it will not serve.
    Refused,
    /// It wants to know who is asking.
    NeedsAuth,
    /// It wants to be left alone for a while.
    RateLimited,
    /// Somebody else runs it, and it cannot be reached.
    Unreachable,
    /// It used more memory than it may.
    OverMemory,
}

/// What is done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// One restart of the budget, after a wait that grows; none left: ejected.
    Restart,
    /// Ejected at once: another try can end in no other way.
    Eject,
    /// Callers are refused for this long; then whoever asks next finds out.
    Pause(Duration),
    /// As long as the server said, or a second; then whoever asks next finds out.
    PauseAsTold,
    /// Callers are refused for a wait that grows; then whoever asks next finds out. Never ejected.
    PauseLonger,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct ClassFacts {
    /// The stable name, in `status` and in the `data` of errors.
    pub name: &'static str,
    /// What is done about it.
    pub treatment: Treatment,
    /// Those who wait for a start may go on waiting: the next one may go better.
    pub worth_waiting: bool,
    /// It is tried again without anybody asking, if it is to run all the time.
    pub on_a_timer: bool,
    /// What it means, in one line.
    pub meaning: &'static str,
}

impl FailureClass {
    /// Every class, in the table's order.
    pub const ALL: [Self; 9] = [
        Self::Crashed,
        Self::Hung,
        Self::SlowToStart,
        Self::Refused,
        Self::Misconfigured,
        Self::NeedsAuth,
        Self::RateLimited,
        Self::Unreachable,
        Self::OverMemory,
    ];

    /// The table.
    #[rustfmt::skip]
    pub const fn facts(self) -> ClassFacts {
        use Treatment as T;
        const fn row(name: &'static str, treatment: T, worth_waiting: bool, on_a_timer: bool, meaning: &'static str) -> ClassFacts {
            ClassFacts { name, treatment, worth_waiting, on_a_timer, meaning }
        }
        match self {
            Self::Crashed => row("crashed", T::Restart, true, true, "it ended, or closed its input or output"),
            Self::Hung => row("hung", T::Restart, true, true, "a call got no answer in time, and neither did a ping"),
            Self::SlowToStart => row("slow_to_start", T::Restart, false, true, "it was not up within `lifecycle.start-timeout`"),
            Self::Refused => row("refused", T::Restart, false, true, "it came up and said that it will not serve"),
            Self::Misconfigured => row("misconfigured", T::Eject, false, false, "it cannot work as it is declared"),
            Self::NeedsAuth => row("needs_authentication", T::Pause(MOMENT), false, false, "it wants to know who is asking"),
            Self::RateLimited => row("rate_limited", T::PauseAsTold, false, true, "it asked to be left alone for a while"),
            Self::Unreachable => row("unreachable", T::PauseLonger, false, true, "it runs somewhere else and cannot be reached"),
            Self::OverMemory => row("over_memory", T::Restart, true, true, "it used more memory than it may"),
        }
    }

    /// The stable name.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }
}

/// Whether a call can have had an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sent {
    /// No server can have worked on it.
    Never,
    /// A server may have worked on it.
    Maybe,
}

impl Sent {
    /// The stable name, in the `data` of errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Maybe => "maybe",
        }
    }

    /// The same for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Never => "it was never sent",
            Self::Maybe => "it may have run",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_class_has_a_name_of_its_own_and_one_rule() {
        let names: HashSet<&str> = FailureClass::ALL.iter().map(|class| class.name()).collect();
        assert_eq!(names.len(), FailureClass::ALL.len());
        for class in FailureClass::ALL {
            let facts = class.facts();
            let restarts = facts.treatment == Treatment::Restart;
            assert!(restarts || !facts.worth_waiting, "{class:?}: nobody waits for what is not restarted");
            assert!(
                facts.treatment != Treatment::Eject || !facts.on_a_timer,
                "{class:?}: what is ejected stays so"
            );
        }
    }

    #[test]
    fn only_what_can_never_work_is_given_up_at_once_and_only_what_runs_here_ever() {
        let ejected = |class: &&FailureClass| class.facts().treatment == Treatment::Eject;
        let at_once: Vec<_> = FailureClass::ALL.iter().filter(ejected).collect();
        assert_eq!(at_once, [&FailureClass::Misconfigured]);
        for class in [FailureClass::NeedsAuth, FailureClass::RateLimited, FailureClass::Unreachable] {
            assert!(!matches!(class.facts().treatment, Treatment::Restart | Treatment::Eject), "{class:?}");
        }
    }
}
