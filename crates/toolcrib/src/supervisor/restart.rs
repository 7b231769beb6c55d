//! The restart budget of a server: how many restarts are allowed, and the wait before each. Pure: takes `now`.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::spec::{BackoffSpec, Restarts};

/// Uptime after which earlier failures no longer lengthen the next wait.
const STABLE_UPTIME: Duration = Duration::from_secs(30);

/// A sliding window of restarts. Each crash spends one, however many calls it fails. The number of restarts depends
/// only on the window; the wait depends on the failures since the server was last stable.
#[derive(Debug, Clone)]
pub(crate) struct RestartBudget {
    allowed: Restarts,
    backoff: BackoffSpec,
    /// Times of the restarts in the window.
    restarts: VecDeque<Instant>,
    /// Failures since the server was last stable.
    consecutive_failures: u32,
}

impl RestartBudget {
    pub(crate) fn new(allowed: Restarts, backoff: BackoffSpec) -> Self {
        Self { allowed, backoff, restarts: VecDeque::new(), consecutive_failures: 0 }
    }

    /// Replaces the settings and keeps the restarts that were spent.
    pub(crate) fn set_limits(&mut self, allowed: Restarts, backoff: BackoffSpec) {
        self.allowed = allowed;
        self.backoff = backoff;
    }

    /// Spends one restart and returns the wait before it; `None` if the budget is exhausted. `uptime` is how long the
    /// server had been up, and `jitter` is between 0 and 1.
    pub(crate) fn spend(&mut self, now: Instant, uptime: Duration, jitter: f64) -> Option<Duration> {
        while self.restarts.front().is_some_and(|at| now.duration_since(*at) >= self.allowed.within) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= self.allowed.at_most as usize {
            return None;
        }
        self.restarts.push_back(now);
        Some(self.next_wait(uptime, jitter))
    }

    /// Counts a failure and returns the wait before the next start, without spending a restart. The wait doubles with
    /// each consecutive failure up to the maximum. A quarter of it is random, so that servers that failed together do
    /// not restart together.
    pub(crate) fn next_wait(&mut self, uptime: Duration, jitter: f64) -> Duration {
        let is_stable = uptime >= STABLE_UPTIME;
        self.consecutive_failures = if is_stable { 1 } else { self.consecutive_failures.saturating_add(1) };
        let doublings = (self.consecutive_failures - 1).min(20);
        let full = self.backoff.first.saturating_mul(1 << doublings).min(self.backoff.most);
        full.mul_f64(0.75 + 0.25 * jitter.clamp(0.0, 1.0))
    }

    /// Returns the restarts spent in the window that ends at `now`.
    pub(crate) fn spent(&self, now: Instant) -> u32 {
        let recent = self.restarts.iter().filter(|at| now.duration_since(**at) < self.allowed.within);
        u32::try_from(recent.count()).unwrap_or(u32::MAX)
    }

    /// Returns the restarts that are left in the window that ends at `now`.
    pub(crate) fn remaining(&self, now: Instant) -> u32 {
        self.allowed.at_most.saturating_sub(self.spent(now))
    }

    /// Restores the full budget.
    pub(crate) fn reset(&mut self) {
        self.consecutive_failures = 0;
        self.restarts.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NEVER_UP: Duration = Duration::ZERO;

    fn budget(at_most: u32) -> RestartBudget {
        let backoff = BackoffSpec { first: Duration::from_millis(100), most: 5 * SECOND };
        RestartBudget::new(Restarts { at_most, within: 300 * SECOND }, backoff)
    }

    #[tokio::test]
    async fn wait_doubles_up_to_the_maximum() {
        let mut budget = budget(10);
        let now = Instant::now();
        let waits: Vec<u128> =
            (0..8).map(|_| budget.spend(now, NEVER_UP, 1.0).unwrap().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[tokio::test]
    async fn exhausted_budget_refuses_until_the_window_has_passed() {
        let mut budget = budget(5);
        let now = Instant::now();
        for _ in 0..5 {
            assert!(budget.spend(now, NEVER_UP, 0.0).is_some());
        }
        assert!(budget.spend(now + 299 * SECOND, NEVER_UP, 0.0).is_none());
        assert_eq!(budget.remaining(now + 299 * SECOND), 0);
        assert_eq!(budget.spent(now + 300 * SECOND), 0);
        assert!(budget.spend(now + 300 * SECOND, NEVER_UP, 0.0).is_some());
    }

    #[tokio::test]
    async fn only_stable_uptime_resets_the_wait() {
        let mut budget = budget(100);
        let now = Instant::now();
        let mut wait = |uptime: u64| budget.spend(now, Duration::from_secs(uptime), 1.0).unwrap().as_millis();
        assert_eq!(
            [wait(0), wait(0), wait(1), wait(29)],
            [100, 200, 400, 800],
            "short uptimes do not reset it"
        );
        assert_eq!([wait(30), wait(0), wait(3600), wait(0)], [100, 200, 100, 200]);
    }

    #[tokio::test]
    async fn passed_window_does_not_reset_the_wait() {
        let mut budget = budget(2);
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..4 {
            waits.push(budget.spend(now, NEVER_UP, 1.0).unwrap().as_millis());
            now += 301 * SECOND;
        }
        assert_eq!(waits, [100, 200, 400, 800]);
    }

    #[tokio::test]
    async fn stable_uptime_does_not_refund_restarts() {
        let mut budget = budget(2);
        let now = Instant::now();
        let mut spend =
            |after: u64| budget.spend(now + Duration::from_secs(after), 100 * SECOND, 0.0).is_some();
        assert_eq!([spend(0), spend(100), spend(200), spend(300)], [true, true, false, true]);
    }

    #[tokio::test]
    async fn budget_of_zero_allows_no_restart() {
        assert!(budget(0).spend(Instant::now(), NEVER_UP, 0.0).is_none());
    }

    proptest! {
        #[test]
        fn restarts_never_exceed_the_window_limit(
            gaps in prop::collection::vec(0u64..200, 1..100), at_most in 0u32..6, jitter in 0.0f64..1.0,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let start = runtime.block_on(async { Instant::now() });
            let mut budget = budget(at_most);
            let mut now = start;
            let mut granted = Vec::new();
            for gap in gaps {
                now += Duration::from_secs(gap);
                if let Some(wait) = budget.spend(now, NEVER_UP, jitter) {
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
