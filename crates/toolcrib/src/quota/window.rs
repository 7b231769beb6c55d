//! `Window`: how many calls were made in the span of time that ends now. Pure: takes `now`.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Moments of a span that are told apart. With more of them, those within such a part of the span are forgotten
/// together, when the last of them is old enough.
const PARTS: u32 = 64;

/// The calls of a span that moves with the time. There are never more in any span of its length, wherever it begins.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    parts: VecDeque<Part>,
    calls: u32,
}

/// Calls that were made close together.
#[derive(Debug, Clone)]
struct Part {
    first: Instant,
    last: Instant,
    calls: u32,
}

impl Window {
    /// How long it is until there is room for one more; nothing if there is.
    pub(super) fn wait(&mut self, most: NonZeroU32, per: Duration, now: Instant) -> Duration {
        while self.parts.front().is_some_and(|part| now.saturating_duration_since(part.last) >= per) {
            self.calls -= self.parts.pop_front().map_or(0, |part| part.calls);
        }
        if self.calls < most.get() {
            return Duration::ZERO;
        }
        // A limit that was lowered is kept once enough are forgotten.
        let mut over = self.calls - most.get();
        for part in &self.parts {
            if over < part.calls {
                return (part.last + per).saturating_duration_since(now);
            }
            over -= part.calls;
        }
        per
    }

    /// One more call was made.
    pub(super) fn take(&mut self, per: Duration, at: Instant) {
        self.calls += 1;
        let many = self.parts.len() >= PARTS as usize;
        match self.parts.back_mut() {
            Some(part) if many && at.saturating_duration_since(part.first) < per / PARTS => {
                part.first = part.first.min(at);
                part.last = part.last.max(at);
                part.calls += 1;
            }
            _ => self.parts.push_back(Part { first: at, last: at, calls: 1 }),
        }
    }

    /// The call of that moment was not made after all.
    pub(super) fn give_back(&mut self, at: Instant) {
        let part = self.parts.iter_mut().find(|part| part.calls > 0 && part.first <= at && at <= part.last);
        if let Some(part) = part {
            part.calls -= 1;
            self.calls -= 1;
        }
    }

    /// How long ago the calls were made that count now: the first and the last of each part, and how many.
    pub(super) fn parts(&mut self, per: Duration, now: Instant) -> Vec<(Duration, Duration, u32)> {
        self.used(per, now);
        let ago = |at: Instant| now.saturating_duration_since(at);
        let parts = self.parts.iter().filter(|part| part.calls > 0);
        parts.map(|part| (ago(part.first), ago(part.last), part.calls)).collect()
    }

    /// The window in which calls were made so long ago.
    pub(super) fn of(parts: &[(Duration, Duration, u32)], now: Instant) -> Self {
        let at = |ago: Duration| now.checked_sub(ago).unwrap_or(now);
        let parts = parts.iter().map(|(first, last, calls)| Part {
            first: at(*first),
            last: at(*last),
            calls: *calls,
        });
        let parts: VecDeque<Part> = parts.collect();
        let calls = parts.iter().fold(0, |all: u32, part| all.saturating_add(part.calls));
        Self { parts, calls }
    }

    /// How many there are.
    pub(super) fn used(&mut self, per: Duration, now: Instant) -> u32 {
        self.wait(NonZeroU32::MAX, per, now);
        self.calls
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PER: Duration = Duration::from_secs(64);

    fn take(window: &mut Window, most: u32, now: Instant) -> Result<(), Duration> {
        let wait = window.wait(NonZeroU32::new(most).unwrap(), PER, now);
        if wait.is_zero() {
            window.take(PER, now);
            return Ok(());
        }
        Err(wait)
    }

    #[test]
    fn the_wait_is_over_when_the_oldest_call_is_old_enough() {
        let (mut window, start) = (Window::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(take(&mut window, 2, at(0)), Ok(()));
        assert_eq!(take(&mut window, 2, at(10)), Ok(()));
        assert_eq!(take(&mut window, 2, at(20)), Err(Duration::from_secs(44)));
        assert_eq!(take(&mut window, 2, at(64)), Ok(()));
        assert_eq!(take(&mut window, 2, at(64)), Err(Duration::from_secs(10)));
        window.give_back(at(10));
        assert_eq!((window.used(PER, at(64)), take(&mut window, 2, at(64))), (1, Ok(())));
    }

    #[test]
    fn what_was_given_back_once_is_not_given_back_twice() {
        let (mut window, now) = (Window::default(), Instant::now());
        window.take(PER, now);
        (0..3).for_each(|_| window.give_back(now));
        assert_eq!(window.used(PER, now), 0);
        window.give_back(now + PER);
        assert_eq!(window.used(PER, now), 0);
    }

    proptest! {
        #[test]
        fn no_span_ever_holds_more_and_none_refuses_long_before_it_is_full(
            most in prop_oneof![1u32..6, 60u32..200],
            longest in prop_oneof![Just(200u64), Just(20_000)],
            steps in prop::collection::vec((any::<u64>(), prop::bool::weighted(0.2)), 1..500),
        ) {
            let (mut window, mut now) = (Window::default(), Instant::now());
            let mut made: Vec<Instant> = Vec::new();
            for (step, given_back) in steps {
                now += Duration::from_millis(step % longest);
                let within = |span: Duration| made.iter().filter(|at| now.duration_since(**at) < span).count();
                let (full, nearly) = (within(PER) >= most as usize, within(PER + PER / PARTS) >= most as usize);
                match take(&mut window, most, now) {
                    Ok(()) if given_back => window.give_back(now),
                    Ok(()) => {
                        prop_assert!(!full);
                        made.push(now);
                    }
                    Err(wait) => prop_assert!(nearly && wait <= PER && !wait.is_zero()),
                }
                prop_assert!(window.parts.len() <= 2 * PARTS as usize + 1);
            }
        }

        #[test]
        fn the_time_told_is_long_enough(most in 1u32..5, steps in prop::collection::vec(0u64..9000, 1..60)) {
            let (mut window, mut now) = (Window::default(), Instant::now());
            for step in steps {
                now += Duration::from_millis(step);
                if let Err(wait) = take(&mut window, most, now) {
                    now += wait;
                    prop_assert_eq!(take(&mut window, most, now), Ok(()));
                }
            }
        }
    }
}
