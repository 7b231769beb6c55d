//! `TokenBucket`: a burst of calls that is refilled evenly.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// A bucket that is refilled evenly. A call that waits takes its token in advance.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenBucket {
    /// When the bucket is full; it is full now if that is in the past.
    full_at: Option<Instant>,
}

/// Returns the time in which one token is refilled, rounded up.
fn refill_interval(max: NonZeroU32, per: Duration) -> Duration {
    let nanoseconds = per.as_nanos().div_ceil(u128::from(max.get()));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).max(Duration::from_nanos(1))
}

impl TokenBucket {
    /// Time until the bucket is full.
    fn time_until_full(&self, now: Instant) -> Duration {
        self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Returns the time until there is a token; zero if there is one now.
    pub(super) fn wait(&self, max: NonZeroU32, per: Duration, now: Instant) -> Duration {
        let interval = refill_interval(max, per);
        (self.time_until_full(now) + interval).saturating_sub(interval * max.get())
    }

    /// Takes a token, possibly in advance.
    pub(super) fn take(&mut self, max: NonZeroU32, per: Duration, now: Instant) {
        self.full_at = Some(now + self.time_until_full(now) + refill_interval(max, per));
    }

    /// Returns a token.
    pub(super) fn release(&mut self, max: NonZeroU32, per: Duration) {
        self.full_at = self.full_at.and_then(|at| at.checked_sub(refill_interval(max, per)));
    }

    /// Returns the number of tokens that are taken and not refilled yet.
    pub(super) fn used(&self, max: NonZeroU32, per: Duration, now: Instant) -> u32 {
        let taken = self.time_until_full(now).as_nanos().div_ceil(refill_interval(max, per).as_nanos());
        u32::try_from(taken).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PER: Duration = Duration::from_secs(1);

    #[test]
    fn burst_is_followed_by_the_refill_rate() {
        let mut bucket = TokenBucket::default();
        let now = Instant::now();
        let three = NonZeroU32::new(3).unwrap();
        for taken in 0..3 {
            assert_eq!((bucket.used(three, PER, now), bucket.wait(three, PER, now)), (taken, Duration::ZERO));
            bucket.take(three, PER, now);
        }
        let third = Duration::from_nanos(333_333_334);
        assert_eq!(bucket.wait(three, PER, now), third);
        assert_eq!(bucket.wait(three, PER, now + third), Duration::ZERO);
        // Another call waits behind those that wait already.
        bucket.take(three, PER, now);
        assert_eq!(bucket.wait(three, PER, now), third * 2);
        bucket.release(three, PER);
        assert_eq!(bucket.wait(three, PER, now), third);
    }

    #[test]
    fn release_never_overfills_the_bucket() {
        let mut bucket = TokenBucket::default();
        let now = Instant::now();
        let two = NonZeroU32::new(2).unwrap();
        (0..5).for_each(|_| bucket.release(two, PER));
        (0..2).for_each(|_| bucket.take(two, PER, now));
        assert!(!bucket.wait(two, PER, now).is_zero());
        (0..5).for_each(|_| bucket.release(two, PER));
        (0..2).for_each(|_| bucket.take(two, PER, now));
        assert!(!bucket.wait(two, PER, now).is_zero());
    }

    proptest! {
        #[test]
        fn no_period_exceeds_the_burst_plus_refill(
            max in 1u32..7,
            steps in prop::collection::vec((0u64..400, prop::bool::weighted(0.2)), 1..120),
        ) {
            let max = NonZeroU32::new(max).unwrap();
            let mut bucket = TokenBucket::default();
            let mut now = Instant::now();
            let mut made: Vec<Instant> = Vec::new();
            for (step, is_released) in steps {
                now += Duration::from_millis(step);
                let wait = bucket.wait(max, PER, now);
                if !wait.is_zero() {
                    prop_assert!(bucket.wait(max, PER, now + wait).is_zero());
                    continue;
                }
                bucket.take(max, PER, now);
                if is_released {
                    bucket.release(max, PER);
                    continue;
                }
                made.push(now);
                for (index, first) in made.iter().enumerate() {
                    let calls = (made.len() - index) as f64;
                    let seconds = now.duration_since(*first).as_secs_f64();
                    prop_assert!(calls <= f64::from(max.get()) * (1.0 + seconds) + 1e-6);
                }
            }
        }
    }
}
