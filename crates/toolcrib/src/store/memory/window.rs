//! `SlidingWindow`: the number of calls in the period that ends now.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Calls are recorded individually up to this number. Beyond it, calls within the same fraction of the period are grouped
/// and expire together with the last of them.
const PARTS: u32 = 64;

/// The calls of a sliding period. Never allows more than the maximum in any period of that length.
#[derive(Debug, Clone, Default)]
pub(super) struct SlidingWindow {
    parts: VecDeque<WindowPart>,
    calls: u32,
}

/// Calls that expire together.
#[derive(Debug, Clone)]
struct WindowPart {
    first: Instant,
    last: Instant,
    calls: u32,
}

/// A part of a window with times relative to now, for saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsagePart {
    pub(super) first_ago: Duration,
    pub(super) last_ago: Duration,
    pub(super) calls: u32,
}

impl SlidingWindow {
    /// Returns the time until another call is allowed; zero if it is now.
    pub(super) fn wait(&mut self, max: NonZeroU32, per: Duration, now: Instant) -> Duration {
        while self.parts.front().is_some_and(|part| now.saturating_duration_since(part.last) >= per) {
            self.calls -= self.parts.pop_front().map_or(0, |part| part.calls);
        }
        if self.calls < max.get() {
            return Duration::ZERO;
        }
        // More than one call is over the maximum if the limit was lowered.
        let mut over = self.calls - max.get();
        for part in &self.parts {
            if over < part.calls {
                return (part.last + per).saturating_duration_since(now);
            }
            over -= part.calls;
        }
        per
    }

    /// Counts a call.
    pub(super) fn take(&mut self, per: Duration, at: Instant) {
        self.calls += 1;
        let is_grouping = self.parts.len() >= PARTS as usize;
        match self.parts.back_mut() {
            Some(part) if is_grouping && at.saturating_duration_since(part.first) < per / PARTS => {
                part.first = part.first.min(at);
                part.last = part.last.max(at);
                part.calls += 1;
            }
            _ => self.parts.push_back(WindowPart { first: at, last: at, calls: 1 }),
        }
    }

    /// Removes the call that was counted at `at`.
    pub(super) fn release(&mut self, at: Instant) {
        let part = self.parts.iter_mut().find(|part| part.calls > 0 && part.first <= at && at <= part.last);
        if let Some(part) = part {
            part.calls -= 1;
            self.calls -= 1;
        }
    }

    /// Returns the calls that count now, for saving.
    pub(super) fn parts(&mut self, per: Duration, now: Instant) -> Vec<UsagePart> {
        self.used(per, now);
        let ago = |at: Instant| now.saturating_duration_since(at);
        let parts = self.parts.iter().filter(|part| part.calls > 0);
        let saved = parts.map(|part| UsagePart {
            first_ago: ago(part.first),
            last_ago: ago(part.last),
            calls: part.calls,
        });
        saved.collect()
    }

    /// Restores a window from saved calls.
    pub(super) fn from_parts(parts: &[UsagePart], now: Instant) -> Self {
        let at = |ago: Duration| now.checked_sub(ago).unwrap_or(now);
        let restored = parts.iter().map(|part| WindowPart {
            first: at(part.first_ago),
            last: at(part.last_ago),
            calls: part.calls,
        });
        let parts: VecDeque<WindowPart> = restored.collect();
        let calls = parts.iter().fold(0, |sum: u32, part| sum.saturating_add(part.calls));
        Self { parts, calls }
    }

    /// Returns the number of calls that count now.
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

    fn take(window: &mut SlidingWindow, max: u32, now: Instant) -> Result<(), Duration> {
        let wait = window.wait(NonZeroU32::new(max).unwrap(), PER, now);
        if wait.is_zero() {
            window.take(PER, now);
            return Ok(());
        }
        Err(wait)
    }

    #[test]
    fn wait_ends_when_the_oldest_call_expires() {
        let mut window = SlidingWindow::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(take(&mut window, 2, at(0)), Ok(()));
        assert_eq!(take(&mut window, 2, at(10)), Ok(()));
        assert_eq!(take(&mut window, 2, at(20)), Err(Duration::from_secs(44)));
        assert_eq!(take(&mut window, 2, at(64)), Ok(()));
        assert_eq!(take(&mut window, 2, at(64)), Err(Duration::from_secs(10)));
        window.release(at(10));
        assert_eq!((window.used(PER, at(64)), take(&mut window, 2, at(64))), (1, Ok(())));
    }

    #[test]
    fn call_is_released_only_once() {
        let mut window = SlidingWindow::default();
        let now = Instant::now();
        window.take(PER, now);
        (0..3).for_each(|_| window.release(now));
        assert_eq!(window.used(PER, now), 0);
        window.release(now + PER);
        assert_eq!(window.used(PER, now), 0);
    }

    proptest! {
        #[test]
        fn window_never_exceeds_max_and_refuses_only_near_it(
            max in prop_oneof![1u32..6, 60u32..200],
            longest in prop_oneof![Just(200u64), Just(20_000)],
            steps in prop::collection::vec((any::<u64>(), prop::bool::weighted(0.2)), 1..500),
        ) {
            let mut window = SlidingWindow::default();
            let mut now = Instant::now();
            let mut made: Vec<Instant> = Vec::new();
            for (step, is_released) in steps {
                now += Duration::from_millis(step % longest);
                let count = |period: Duration| made.iter().filter(|at| now.duration_since(**at) < period).count();
                let is_full = count(PER) >= max as usize;
                let is_nearly_full = count(PER + PER / PARTS) >= max as usize;
                match take(&mut window, max, now) {
                    Ok(()) if is_released => window.release(now),
                    Ok(()) => {
                        prop_assert!(!is_full);
                        made.push(now);
                    }
                    Err(wait) => prop_assert!(is_nearly_full && wait <= PER && !wait.is_zero()),
                }
                prop_assert!(window.parts.len() <= 2 * PARTS as usize + 1);
            }
        }

        #[test]
        fn call_after_the_wait_is_allowed(max in 1u32..5, steps in prop::collection::vec(0u64..9000, 1..60)) {
            let mut window = SlidingWindow::default();
            let mut now = Instant::now();
            for step in steps {
                now += Duration::from_millis(step);
                if let Err(wait) = take(&mut window, max, now) {
                    now += wait;
                    prop_assert_eq!(take(&mut window, max, now), Ok(()));
                }
            }
        }
    }
}
