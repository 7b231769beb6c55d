//! Reads the system clocks: the wall time for reports, and how long the machine was suspended.
//!
//! Everything else uses tokio's clock, which tests can pause and which ignores changes of the wall time.

use std::time::{Duration, SystemTime};

/// The shortest suspension after which servers are pinged.
const MIN_SUSPENSION: Duration = Duration::from_secs(2);

/// Returns the current wall time.
#[expect(clippy::disallowed_methods, reason = "reports need the wall time")]
pub fn wall_time() -> SystemTime {
    SystemTime::now()
}

/// Measures how long the machine was suspended since boot.
#[derive(Debug, Clone, Default)]
pub(crate) enum SuspendClock {
    /// The clock of the system.
    #[default]
    System,
    /// A value in seconds that a test sets.
    #[cfg(test)]
    Fixed(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl SuspendClock {
    /// Returns the total time of suspension.
    pub(crate) fn total_suspended(&self) -> Duration {
        match self {
            Self::System => system_suspended(),
            #[cfg(test)]
            Self::Fixed(seconds) => Duration::from_secs(seconds.load(std::sync::atomic::Ordering::Relaxed)),
        }
    }
}

/// Subtracts a clock that stops during suspension from one that does not.
#[cfg(target_os = "linux")]
fn system_suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let awake = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(awake)
}

/// Returns zero: on other systems a server that was lost during suspension is noticed when a call fails.
#[cfg(not(target_os = "linux"))]
fn system_suspended() -> Duration {
    Duration::ZERO
}

/// Returns whether the machine was suspended between two readings. Pure.
pub(crate) fn was_suspended(before: Duration, now: Duration) -> bool {
    now.saturating_sub(before) >= MIN_SUSPENSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_suspensions_count() {
        let second = Duration::from_secs(1);
        for (before, now, expected) in
            [(0, 0, false), (0, 1, false), (0, 2, true), (600, 600, false), (600, 1200, true)]
        {
            assert_eq!(was_suspended(second * before, second * now), expected, "{before} {now}");
        }
        assert!(!was_suspended(second * 600, Duration::ZERO), "a clock that went backwards is ignored");
    }

    #[test]
    fn system_is_not_suspended_between_two_readings() {
        let before = SuspendClock::System.total_suspended();
        assert!(!was_suspended(before, SuspendClock::System.total_suspended()));
    }
}
