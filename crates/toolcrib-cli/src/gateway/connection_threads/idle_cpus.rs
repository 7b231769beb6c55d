//! Processors of the machine that have nothing to do.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::balance::SAMPLES;

/// Measures how many processors are idle.
#[derive(Debug, Default)]
pub(super) struct IdleCpus {
    /// Oldest first; at most one more than the measurements of a thread that count.
    readings: VecDeque<Reading>,
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    /// The idle time of all processors together since the start of the machine.
    idle: Duration,
}

impl IdleCpus {
    /// Returns how many processors were idle on average over the last measurements. `None` where the system does not tell.
    pub(super) fn measure(&mut self) -> Option<f64> {
        self.record(Reading { at: Instant::now(), idle: idle_time()? })
    }

    fn record(&mut self, last: Reading) -> Option<f64> {
        if self.readings.len() > SAMPLES {
            self.readings.pop_front();
        }
        let first = self.readings.front().map(|first| {
            let elapsed = last.at.duration_since(first.at);
            last.idle.saturating_sub(first.idle).div_duration_f64(elapsed)
        });
        self.readings.push_back(last);
        first.filter(|idle| idle.is_finite())
    }
}

/// Returns the idle time of all processors together.
#[cfg(target_os = "linux")]
fn idle_time() -> Option<Duration> {
    let ticks = idle_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    Some(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn idle_time() -> Option<Duration> {
    None
}

/// Returns the idle time in the first line of `/proc/stat`: `cpu`, user, nice, system, idle, waiting for a disk.
#[cfg(target_os = "linux")]
fn idle_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.strip_prefix("cpu ")?.lines().next()?.split_ascii_whitespace().skip(3);
    let mut next_ticks = || fields.next()?.parse::<u64>().ok();
    Some(next_ticks()? + next_ticks()?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_that_of_all_processors() {
        let stat =
            "cpu  133102 7 14515 141652 1365 0 2286 117 0 0\ncpu0 50385 0 6459 88163 293 0 1120 57 0 0\n";
        assert_eq!(idle_ticks(stat), Some(141_652 + 1_365));
        assert_eq!(idle_ticks("cpu0 1 2 3 4 5"), None);
        assert_eq!(idle_ticks("cpu  1 2 3\n4 5 6"), None);
        assert!(idle_time().is_some(), "this machine tells it");
    }

    #[test]
    fn average_is_over_the_last_measurements() {
        let start = Instant::now();
        let mut cpus = IdleCpus::default();
        let mut record = |second: u64, idle_seconds: u64| {
            let at = start + Duration::from_secs(second);
            cpus.record(Reading { at, idle: Duration::from_secs(idle_seconds) })
        };
        assert_eq!(record(0, 100), None, "nothing to compare with");
        assert_eq!(record(1, 102), Some(2.0));
        assert_eq!(record(2, 102), Some(1.0));
        for second in 3..20 {
            record(second, 102);
        }
        assert_eq!(record(20, 102), Some(0.0), "the idle second is forgotten");
    }
}
