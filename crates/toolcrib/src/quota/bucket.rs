//! `Bucket`: so many calls at once, and then as fast as they come back. Pure: takes `now`.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// A bucket of calls that fills evenly. Calls may be taken ahead of their time by whoever waits for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Bucket {
    /// When it is full again; it is if that is past.
    full_at: Option<Instant>,
}

/// How long one call takes to come back; never less than it should.
fn interval(most: NonZeroU32, per: Duration) -> Duration {
    let nanoseconds = per.as_nanos().div_ceil(u128::from(most.get()));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).max(Duration::from_nanos(1))
}

impl Bucket {
    /// How far it is from full.
    fn lacking(&self, now: Instant) -> Duration {
        self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// How long it is until there is one to take; nothing if there is.
    pub(super) fn wait(&self, most: NonZeroU32, per: Duration, now: Instant) -> Duration {
        let interval = interval(most, per);
        (self.lacking(now) + interval).saturating_sub(interval * most.get())
    }

    /// Takes one, whether it is there already or has to be waited for.
    pub(super) fn take(&mut self, most: NonZeroU32, per: Duration, now: Instant) {
        self.full_at = Some(now + self.lacking(now) + interval(most, per));
    }

    /// Puts one back.
    pub(super) fn give_back(&mut self, most: NonZeroU32, per: Duration) {
        self.full_at = self.full_at.and_then(|at| at.checked_sub(interval(most, per)));
    }

    /// How many are taken and not back yet.
    pub(super) fn used(&self, most: NonZeroU32, per: Duration, now: Instant) -> u32 {
        let taken = self.lacking(now).as_nanos().div_ceil(interval(most, per).as_nanos());
        u32::try_from(taken).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PER: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_is_let_through_and_then_one_at_a_time() {
        let (mut bucket, now) = (Bucket::default(), Instant::now());
        let three = NonZeroU32::new(3).unwrap();
        for taken in 0..3 {
            assert_eq!((bucket.used(three, PER, now), bucket.wait(three, PER, now)), (taken, Duration::ZERO));
            bucket.take(three, PER, now);
        }
        let third = Duration::from_nanos(333_333_334);
        assert_eq!(bucket.wait(three, PER, now), third);
        assert_eq!(bucket.wait(three, PER, now + third), Duration::ZERO);
        // Whoever waits stands behind those who wait already.
        bucket.take(three, PER, now);
        assert_eq!(bucket.wait(three, PER, now), third * 2);
        bucket.give_back(three, PER);
        assert_eq!(bucket.wait(three, PER, now), third);
    }

    #[test]
    fn an_empty_bucket_that_is_given_more_is_only_full() {
        let (mut bucket, now) = (Bucket::default(), Instant::now());
        let two = NonZeroU32::new(2).unwrap();
        (0..5).for_each(|_| bucket.give_back(two, PER));
        (0..2).for_each(|_| bucket.take(two, PER, now));
        assert!(!bucket.wait(two, PER, now).is_zero());
        (0..5).for_each(|_| bucket.give_back(two, PER));
        (0..2).for_each(|_| bucket.take(two, PER, now));
        assert!(!bucket.wait(two, PER, now).is_zero());
    }

    proptest! {
        #[test]
        fn no_span_holds_more_than_the_burst_and_what_came_back(
            most in 1u32..7,
            steps in prop::collection::vec((0u64..400, prop::bool::weighted(0.2)), 1..120),
        ) {
            let most = NonZeroU32::new(most).unwrap();
            let (mut bucket, mut now) = (Bucket::default(), Instant::now());
            let mut made: Vec<Instant> = Vec::new();
            for (step, given_back) in steps {
                now += Duration::from_millis(step);
                let wait = bucket.wait(most, PER, now);
                if !wait.is_zero() {
                    prop_assert!(bucket.wait(most, PER, now + wait).is_zero());
                    continue;
                }
                bucket.take(most, PER, now);
                if given_back {
                    bucket.give_back(most, PER);
                    continue;
                }
                made.push(now);
                for (index, first) in made.iter().enumerate() {
                    let (calls, span) = (made.len() - index, now.duration_since(*first).as_secs_f64());
                    prop_assert!(calls as f64 <= f64::from(most.get()) * (1.0 + span) + 1e-6);
                }
            }
        }
    }
}
