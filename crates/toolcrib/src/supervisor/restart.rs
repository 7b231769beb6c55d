//! `RestartBudget`: how many crashes are forgiven, and how long to wait before the next start. Pure: takes `now`.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::spec::{BackoffSpec, Restarts};

/// A sliding window of restarts. One is spent per crash, never per caller who noticed.
#[derive(Debug, Clone)]
pub(crate) struct RestartBudget {
    allowed: Restarts,
    backoff: BackoffSpec,
    spent: VecDeque<Instant>,
}

impl RestartBudget {
    pub(crate) fn new(allowed: Restarts, backoff: BackoffSpec) -> Self {
        Self { allowed, backoff, spent: VecDeque::new() }
    }

    /// Spends one restart: how long to wait before it, or `None` if there is none left. `jitter` is between 0 and 1.
    pub(crate) fn spend(&mut self, now: Instant, jitter: f64) -> Option<Duration> {
        while self.spent.front().is_some_and(|at| now.duration_since(*at) >= self.allowed.within) {
            self.spent.pop_front();
        }
        if self.spent.len() >= self.allowed.at_most as usize {
            return None;
        }
        self.spent.push_back(now);
        Some(self.wait(self.spent.len(), jitter))
    }

    /// Doubled with each restart in the window, up to the most; a quarter of it is chance, so that servers which died
    /// together do not come back together.
    fn wait(&self, attempt: usize, jitter: f64) -> Duration {
        let doublings = u32::try_from(attempt - 1).unwrap_or(u32::MAX).min(20);
        let full = self.backoff.first.saturating_mul(1 << doublings).min(self.backoff.most);
        full.mul_f64(0.75 + 0.25 * jitter.clamp(0.0, 1.0))
    }

    /// Restarts spent in the window that ends now.
    pub(crate) fn spent(&self, now: Instant) -> u32 {
        let recent = self.spent.iter().filter(|at| now.duration_since(**at) < self.allowed.within);
        u32::try_from(recent.count()).unwrap_or(u32::MAX)
    }

    /// Restarts left in the window that ends now.
    pub(crate) fn left(&self, now: Instant) -> u32 {
        self.allowed.at_most.saturating_sub(self.spent(now))
    }

    /// Forgives everything.
    pub(crate) fn refill(&mut self) {
        self.spent.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn budget(at_most: u32) -> RestartBudget {
        let backoff = BackoffSpec { first: Duration::from_millis(100), most: 5 * SECOND };
        RestartBudget::new(Restarts { at_most, within: 300 * SECOND }, backoff)
    }

    #[tokio::test]
    async fn the_wait_doubles_up_to_the_most() {
        let (mut budget, now) = (budget(10), Instant::now());
        let waits: Vec<u128> = (0..8).map(|_| budget.spend(now, 1.0).unwrap().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[tokio::test]
    async fn one_more_than_allowed_is_refused_until_the_window_has_passed() {
        let (mut budget, now) = (budget(5), Instant::now());
        for _ in 0..5 {
            assert!(budget.spend(now, 0.0).is_some());
        }
        assert!(budget.spend(now + 299 * SECOND, 0.0).is_none());
        assert_eq!(budget.left(now + 299 * SECOND), 0);
        assert_eq!(budget.spent(now + 300 * SECOND), 0);
        assert!(budget.spend(now + 300 * SECOND, 0.0).is_some());
    }

    #[tokio::test]
    async fn a_budget_of_zero_forgives_nothing() {
        assert!(budget(0).spend(Instant::now(), 0.0).is_none());
    }

    proptest! {
        #[test]
        fn never_more_than_allowed_in_any_window(
            gaps in prop::collection::vec(0u64..200, 1..100), at_most in 0u32..6, jitter in 0.0f64..1.0,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let start = runtime.block_on(async { Instant::now() });
            let (mut budget, mut now, mut granted) = (budget(at_most), start, Vec::new());
            for gap in gaps {
                now += Duration::from_secs(gap);
                if let Some(wait) = budget.spend(now, jitter) {
                    prop_assert!(wait <= 5 * SECOND && wait >= Duration::from_millis(75));
                    granted.push(now);
                }
                let recent = granted.iter().filter(|at| now.duration_since(**at) < 300 * SECOND).count();
                prop_assert!(recent <= at_most as usize);
                prop_assert_eq!(budget.spent(now) as usize, recent);
            }
        }
    }
}
