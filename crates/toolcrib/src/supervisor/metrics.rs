//! Counters of one server that change with every call and can be read without asking the actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Histogram buckets: four per power of two microseconds, up to about nine hours.
const BUCKETS: usize = 4 * 36;

/// Counts of calls and failures, and a histogram of call durations.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    /// Position in the order in which servers became idle; 0 while in use.
    idle_rank: AtomicU64,
    /// Failed calls in a row. Written only by the actor.
    pub(crate) consecutive_failures: AtomicU32,
    calls: AtomicU64,
    errors: AtomicU64,
    durations: [AtomicU64; BUCKETS],
    /// The metrics of the whole server, if this is one of several instances.
    server_total: Option<Arc<ServerMetrics>>,
}

impl Default for ServerMetrics {
    fn default() -> Self {
        Self {
            idle_rank: AtomicU64::new(0),
            consecutive_failures: AtomicU32::new(0),
            calls: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            durations: [const { AtomicU64::new(0) }; BUCKETS],
            server_total: None,
        }
    }
}

impl ServerMetrics {
    /// Creates the metrics of one instance, whose calls also count for the whole server.
    pub(crate) fn for_instance(server_total: Arc<Self>) -> Self {
        Self { server_total: Some(server_total), ..Self::default() }
    }

    pub(crate) fn record_call(&self, duration: Duration, is_error: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if is_error {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.durations[bucket(duration)].fetch_add(1, Ordering::Relaxed);
        if let Some(total) = &self.server_total {
            total.record_call(duration, is_error);
        }
    }

    /// Sets the position among idle servers; 0 means in use.
    pub(super) fn set_idle_rank(&self, rank: u64) {
        self.idle_rank.store(rank, Ordering::Relaxed);
    }

    /// Returns the position among idle servers; `None` while in use.
    pub(super) fn idle_rank(&self) -> Option<u64> {
        Some(self.idle_rank.load(Ordering::Relaxed)).filter(|rank| *rank > 0)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns the duration within which this fraction of the calls ended, to about 20 %; `None` without calls.
    pub(crate) fn percentile(&self, fraction: f64) -> Option<Duration> {
        let counts: Vec<u64> = self.durations.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate"
        )]
        let target = (total as f64 * fraction).ceil() as u64;
        let mut cumulative = 0;
        let found = counts.iter().position(|count| {
            cumulative += count;
            cumulative >= target && target > 0
        });
        found.map(upper_bound)
    }
}

fn bucket(duration: Duration) -> usize {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(4);
    let exponent = micros.ilog2();
    let quarter = (micros >> (exponent - 2)) & 3;
    (exponent as usize * 4 + usize::try_from(quarter).unwrap_or(0)).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    let exponent = bucket / 4;
    let quarter = bucket as u64 % 4;
    Duration::from_micros((5 + quarter) << exponent.saturating_sub(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_close_to_the_exact_values() {
        let metrics = ServerMetrics::default();
        assert_eq!(metrics.percentile(0.5), None);
        for millis in 1..=100 {
            metrics.record_call(Duration::from_millis(millis), millis > 90);
        }
        let assert_close = |fraction: f64, millis: f64| {
            let found = metrics.percentile(fraction).unwrap().as_secs_f64() * 1000.0;
            assert!(found >= millis && found <= millis * 1.3, "{fraction}: {found}");
        };
        assert_close(0.5, 50.0);
        assert_close(0.99, 99.0);
        assert_eq!((metrics.calls(), metrics.errors()), (100, 10));
    }
}
