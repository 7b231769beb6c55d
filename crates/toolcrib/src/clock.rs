//! The one place that reads the system's clocks: the wall clock, for reports only, and how long the machine has slept.
//! All other decisions take tokio's clock, which tests can pause and which no change of the wall clock moves.

use std::time::{Duration, SystemTime};

/// A sleep of the machine that is worth a question to servers which were not asked meanwhile.
const NAP: Duration = Duration::from_secs(2);

/// What time it is for people.
#[expect(clippy::disallowed_methods, reason = "a report tells people when something happened")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// How long the machine has slept since it was booted.
#[derive(Debug, Clone, Default)]
pub(crate) enum Sleeps {
    /// As the system counts it.
    #[default]
    System,
    /// As a test says, in seconds.
    #[cfg(test)]
    Told(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Sleeps {
    /// Up to now.
    pub(crate) fn so_far(&self) -> Duration {
        match self {
            Self::System => system(),
            #[cfg(test)]
            Self::Told(seconds) => Duration::from_secs(seconds.load(std::sync::atomic::Ordering::Relaxed)),
        }
    }
}

/// One clock stands still while the machine sleeps and the other does not.
#[cfg(target_os = "linux")]
fn system() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let awake = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(awake)
}

/// Elsewhere a server that was lost in a sleep is found out when a call fails.
#[cfg(not(target_os = "linux"))]
fn system() -> Duration {
    Duration::ZERO
}

/// Whether the machine has slept between two looks. Pure.
pub(crate) fn has_slept(before: Duration, now: Duration) -> bool {
    now.saturating_sub(before) >= NAP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sleep_counts_as_one() {
        let second = Duration::from_secs(1);
        for (before, now, slept) in
            [(0, 0, false), (0, 1, false), (0, 2, true), (600, 600, false), (600, 1200, true)]
        {
            assert_eq!(has_slept(second * before, second * now), slept, "{before} {now}");
        }
        assert!(!has_slept(second * 600, Duration::ZERO), "clocks that disagree prove nothing");
    }

    #[test]
    fn the_system_does_not_sleep_between_two_looks() {
        let before = Sleeps::System.so_far();
        assert!(!has_slept(before, Sleeps::System.so_far()));
    }
}
