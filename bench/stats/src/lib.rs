//! Latency summaries and CPU times, shared by the load generators.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The latencies of a run.
#[derive(Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn push(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    pub fn merge(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Sorts and summarizes, in microseconds.
    pub fn summary(&mut self) -> Value {
        self.0.sort_unstable();
        let mean = self.0.iter().sum::<Duration>() / self.0.len().max(1) as u32;
        json!({
            "p50_us": micros(self.quantile(0.50)),
            "p90_us": micros(self.quantile(0.90)),
            "p99_us": micros(self.quantile(0.99)),
            "max_us": micros(self.0.last().copied().unwrap_or_default()),
            "mean_us": micros(mean),
        })
    }

    /// Returns the nearest-rank quantile of sorted values.
    fn quantile(&self, q: f64) -> Duration {
        match self.0.len() {
            0 => Duration::ZERO,
            len => self.0[((len as f64 * q).ceil() as usize).clamp(1, len) - 1],
        }
    }
}

fn micros(duration: Duration) -> f64 {
    (duration.as_nanos() as f64 / 100.0).round() / 10.0
}

/// Returns the user and system CPU time of this process.
pub fn own_cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("own usage can be read");
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64;
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}

/// Returns the total CPU time of other processes. It is read from their CPU clocks, which count nanoseconds; `/proc` counts
/// hundredths of a second. A process that has exited counts as zero.
pub fn cpu_time(pids: &[i32]) -> Duration {
    let cpu = |pid: &i32| clock_getcpuclockid(Pid::from_raw(*pid)).and_then(clock_gettime).ok();
    pids.iter().filter_map(cpu).map(Duration::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank() {
        let mut latencies = Latencies((1..=100).map(Duration::from_micros).collect());
        let summary = latencies.summary();
        assert_eq!(summary["p50_us"], 50.0);
        assert_eq!(summary["p99_us"], 99.0);
        assert_eq!(summary["max_us"], 100.0);
        assert_eq!(summary["mean_us"], 50.5);
        assert_eq!(Latencies::default().summary()["p50_us"], 0.0);
    }

    #[test]
    fn cpu_clock_agrees_with_rusage() {
        let mut sum = 0u64;
        while own_cpu_time() < Duration::from_millis(50) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let clock = cpu_time(&[std::process::id() as i32]);
        let usage = own_cpu_time();
        assert!(clock.abs_diff(usage) < Duration::from_millis(25), "{clock:?} against {usage:?}");
        // Linux gives no process an id this high.
        assert_eq!(cpu_time(&[1 << 22]), Duration::ZERO);
    }
}
