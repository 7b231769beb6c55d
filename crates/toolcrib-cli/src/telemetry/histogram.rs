//! A histogram of durations that any thread may record to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in milliseconds: those of the OpenTelemetry conventions for MCP, and two for fast servers.
const BOUNDS_MILLIS: [u64; 16] =
    [1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000];

/// The buckets of the bounds, and one for all longer durations.
pub(super) const BUCKETS: usize = BOUNDS_MILLIS.len() + 1;

/// Returns the upper bounds of all buckets but the last, in seconds.
pub(super) fn bounds_in_seconds() -> [f64; BUCKETS - 1] {
    BOUNDS_MILLIS.map(|millis| Duration::from_millis(millis).as_secs_f64())
}

/// Counts of durations by bucket, and their sum.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, duration: Duration) {
        let nanos =
            duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos().into());
        // Most durations are short, so that a search from the start ends soon.
        let bucket = BOUNDS_MILLIS.iter().position(|millis| nanos <= millis * 1_000_000);
        self.counts[bucket.unwrap_or(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        HistogramSnapshot {
            counts: self.counts.each_ref().map(load),
            sum_nanos: load(&self.sum_nanos).into(),
        }
    }
}

/// The content of one histogram, or of several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HistogramSnapshot {
    /// Counts by bucket, not cumulative.
    pub(super) counts: [u64; BUCKETS],
    sum_nanos: u128,
}

impl HistogramSnapshot {
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum in seconds.
    pub(super) fn sum(&self) -> f64 {
        let nanos = u64::try_from(self.sum_nanos).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos).as_secs_f64()
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (count, added) in self.counts.iter_mut().zip(other.counts) {
            *count += added;
        }
        self.sum_nanos += other.sum_nanos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for micros in [0, 1000, 1001, 5000, 299_999_999, 300_000_000, 300_000_001] {
            histogram.record(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        let mut expected = [0; BUCKETS];
        expected[0] = 2;
        expected[1] = 2;
        expected[BUCKETS - 2] = 2;
        expected[BUCKETS - 1] = 1;
        assert_eq!(snapshot.counts, expected);
        assert!((snapshot.sum() - 900.007_001).abs() < 1e-9, "{}", snapshot.sum());
        let mut twice = snapshot.clone();
        twice.add(&snapshot);
        assert_eq!((twice.count(), twice.sum()), (14, 1_800.014_002));
        assert_eq!(bounds_in_seconds()[0], 0.001);
    }
}
