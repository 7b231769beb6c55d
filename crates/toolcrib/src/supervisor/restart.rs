//! `RestartBudget`: how many crashes are forgiven, and how long to wait before the next start. Pure: takes `now`.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::spec::{BackoffSpec, Restarts};

/// How long a server must have been up for its earlier failures not to make the next wait longer.
const SUSTAINED: Duration = Duration::from_secs(30);

/// A sliding window of restarts. One is spent per crash, never per caller who noticed. How many there may be depends on
/// the window alone; how long to wait, on the failures since the server was last well for some time.
#[derive(Debug, Clone)]
pub(crate) struct RestartBudget {
    allowed: Restarts,
    backoff: BackoffSpec,
    spent: VecDeque<Instant>,
    /// Failures in a row, without a time of health between them.
    streak: u32,
}

impl RestartBudget {
    pub(crate) fn new(allowed: Restarts, backoff: BackoffSpec) -> Self {
        Self { allowed, backoff, spent: VecDeque::new(), streak: 0 }
    }

    /// Spends one restart: how long to wait before it, or `None` if there is none left. `up` is how long the server had
    /// been up, `jitter` is between 0 and 1.
    pub(crate) fn spend(&mut self, now: Instant, up: Duration, jitter: f64) -> Option<Duration> {
        while self.spent.front().is_some_and(|at| now.duration_since(*at) >= self.allowed.within) {
            self.spent.pop_front();
        }
        if self.spent.len() >= self.allowed.at_most as usize {
            return None;
        }
        self.spent.push_back(now);
        Some(self.wait(up, jitter))
    }

    /// How long to wait before the next try, which costs nothing. Doubled with each failure in a row, up to the most; a
    /// quarter of it is chance, so that servers which died together do not come back together.
    pub(crate) fn wait(&mut self, up: Duration, jitter: f64) -> Duration {
        self.streak = if up >= SUSTAINED { 1 } else { self.streak.saturating_add(1) };
        let full = self.backoff.first.saturating_mul(1 << (self.streak - 1).min(20)).min(self.backoff.most);
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
        self.streak = 0;
        self.spent.clear();
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
    async fn the_wait_doubles_up_to_the_most() {
        let (mut budget, now) = (budget(10), Instant::now());
        let waits: Vec<u128> =
            (0..8).map(|_| budget.spend(now, NEVER_UP, 1.0).unwrap().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[tokio::test]
    async fn one_more_than_allowed_is_refused_until_the_window_has_passed() {
        let (mut budget, now) = (budget(5), Instant::now());
        for _ in 0..5 {
            assert!(budget.spend(now, NEVER_UP, 0.0).is_some());
        }
        assert!(budget.spend(now + 299 * SECOND, NEVER_UP, 0.0).is_none());
        assert_eq!(budget.left(now + 299 * SECOND), 0);
        assert_eq!(budget.spent(now + 300 * SECOND), 0);
        assert!(budget.spend(now + 300 * SECOND, NEVER_UP, 0.0).is_some());
    }

    #[tokio::test]
    async fn only_health_that_lasted_makes_the_waits_short_again() {
        let (mut budget, now) = (budget(100), Instant::now());
        let mut wait = |up: u64| budget.spend(now, Duration::from_secs(up), 1.0).unwrap().as_millis();
        assert_eq!(
            [wait(0), wait(0), wait(1), wait(29)],
            [100, 200, 400, 800],
            "a spawn alone heals nothing"
        );
        assert_eq!([wait(30), wait(0), wait(3600), wait(0)], [100, 200, 100, 200]);
    }

    #[tokio::test]
    async fn a_window_that_has_passed_does_not_make_the_waits_short_again() {
        let (mut budget, mut now, mut waits) = (budget(2), Instant::now(), Vec::new());
        for _ in 0..4 {
            waits.push(budget.spend(now, NEVER_UP, 1.0).unwrap().as_millis());
            now += 301 * SECOND;
        }
        assert_eq!(waits, [100, 200, 400, 800]);
    }

    #[tokio::test]
    async fn health_that_lasted_gives_no_restart_back() {
        let (mut budget, now) = (budget(2), Instant::now());
        let mut spend =
            |after: u64| budget.spend(now + Duration::from_secs(after), 100 * SECOND, 0.0).is_some();
        assert_eq!([spend(0), spend(100), spend(200), spend(300)], [true, true, false, true]);
    }

    #[tokio::test]
    async fn a_budget_of_zero_forgives_nothing() {
        assert!(budget(0).spend(Instant::now(), NEVER_UP, 0.0).is_none());
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
