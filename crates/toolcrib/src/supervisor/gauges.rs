//! Counters of one server that change with every call, readable without asking the actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Four buckets for each doubling of a microsecond, up to about nine hours.
const BUCKETS: usize = 4 * 36;

/// Counts of calls and of how long they took.
#[derive(Debug)]
pub(crate) struct Gauges {
    /// Claims on the server now; only the actor writes it.
    pub(crate) leases: AtomicUsize,
    /// Its place in the order in which servers became idle; 0 while it is in use.
    idle: AtomicU64,
    /// Somebody has waited in vain for its first listing.
    pub(crate) slow: AtomicBool,
    /// Failures in a row; only the actor writes it.
    pub(crate) failures: AtomicU32,
    calls: AtomicU64,
    errors: AtomicU64,
    took: [AtomicU64; BUCKETS],
    /// Those of all instances of the server, if there are several.
    whole: Option<Arc<Gauges>>,
}

impl Default for Gauges {
    fn default() -> Self {
        Self {
            leases: AtomicUsize::new(0),
            idle: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            calls: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            took: [const { AtomicU64::new(0) }; BUCKETS],
            whole: None,
        }
    }
}

impl Gauges {
    /// Those of one instance, which count for the whole server too.
    pub(crate) fn part_of(whole: Arc<Self>) -> Self {
        Self { whole: Some(whole), ..Self::default() }
    }

    pub(crate) fn count(&self, took: Duration, failed: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if failed {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.took[bucket(took)].fetch_add(1, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.count(took, failed);
        }
    }

    /// Notes that nobody uses the server, and when in the order of servers that nobody uses; 0 that somebody does.
    pub(super) fn set_idle(&self, place: u64) {
        self.idle.store(place, Ordering::Relaxed);
    }

    /// When it became idle, in that order; `None` while it is in use.
    pub(super) fn idle_since(&self) -> Option<u64> {
        Some(self.idle.load(Ordering::Relaxed)).filter(|place| *place > 0)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The time within which this share of the calls ended, to about a fifth; `None` without calls.
    pub(crate) fn percentile(&self, share: f64) -> Option<Duration> {
        let counts: Vec<u64> = self.took.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate"
        )]
        let wanted = (total as f64 * share).ceil() as u64;
        let mut passed = 0;
        let found = counts.iter().position(|count| {
            passed += count;
            passed >= wanted && wanted > 0
        });
        found.map(upper_bound)
    }
}

fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(4);
    let doubling = micros.ilog2();
    let quarter = (micros >> (doubling - 2)) & 3;
    (doubling as usize * 4 + usize::try_from(quarter).unwrap_or(0)).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    let (doubling, quarter) = (bucket / 4, bucket as u64 % 4);
    Duration::from_micros((5 + quarter) << doubling.saturating_sub(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near_the_truth() {
        let gauges = Gauges::default();
        assert_eq!(gauges.percentile(0.5), None);
        for millis in 1..=100 {
            gauges.count(Duration::from_millis(millis), millis > 90);
        }
        let near = |share: f64, millis: f64| {
            let found = gauges.percentile(share).unwrap().as_secs_f64() * 1000.0;
            assert!(found >= millis && found <= millis * 1.3, "{share}: {found}");
        };
        near(0.5, 50.0);
        near(0.99, 99.0);
        assert_eq!((gauges.calls(), gauges.errors()), (100, 10));
    }
}
