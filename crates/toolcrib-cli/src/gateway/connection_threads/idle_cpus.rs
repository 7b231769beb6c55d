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
        let average = self.readings.front().map(|first| {
            let elapsed = last.at.duration_since(first.at);
            last.idle.saturating_sub(first.idle).div_duration_f64(elapsed)
        });
        self.readings.push_back(last);
        average.filter(|idle| idle.is_finite())
    }
}

/// Returns the idle time of all processors together. `/proc/stat` has it too, but takes longer to read on large machines.
#[cfg(target_os = "linux")]
fn idle_time() -> Option<Duration> {
    parse_idle_time(&std::fs::read_to_string("/proc/uptime").ok()?)
}

#[cfg(not(target_os = "linux"))]
fn idle_time() -> Option<Duration> {
    None
}

/// Parses `/proc/uptime`: the seconds since the start of the machine, and the idle seconds of all processors.
#[cfg(target_os = "linux")]
fn parse_idle_time(uptime: &str) -> Option<Duration> {
    let seconds = uptime.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_that_of_all_processors() {
        assert_eq!(parse_idle_time("5391.87 6403.50\n"), Some(Duration::from_millis(6_403_500)));
        assert_eq!(parse_idle_time("5391.87\n"), None);
        assert_eq!(parse_idle_time("5391.87 -1"), None);
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
