//! The circuit breaker of a running server: counts consecutive failures of calls. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::caller::Caller;
use crate::model::failure_class::FailureClass;
use crate::spec::BreakerSpec;

/// The outcome of a call with respect to the server's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallHealth {
    /// The server answered, with a result or an error.
    Healthy,
    /// The server did not answer in time or sent an invalid answer.
    Unhealthy,
    /// The server asked for no calls during this time. This says nothing about its health.
    PauseRequested { class: FailureClass, wait: Duration },
}

/// Counts consecutive failures. While several callers use the server, the failures of one of them do not open the breaker
/// for the others.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    spec: BreakerSpec,
    failures: u32,
    /// The caller of the failures, if all are of one.
    failing: FailingCallers,
    /// The last use of the server.
    last_use: Option<LastUse>,
    /// The last use by another caller than that of the last use.
    last_other_use: Option<LastUse>,
}

/// The callers of consecutive failures.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FailingCallers {
    None,
    One(Caller),
    Several,
}

#[derive(Debug, Clone)]
struct LastUse {
    caller: Caller,
    at: Instant,
}

impl Breaker {
    pub(crate) fn new(spec: BreakerSpec) -> Self {
        Self { spec, failures: 0, failing: FailingCallers::None, last_use: None, last_other_use: None }
    }

    /// Counts one call that ended at `now` and returns whether the breaker opens: the failure limit is reached, and either
    /// the failures are of several callers, or no other caller used the server during the last cool-off.
    pub(crate) fn record(&mut self, health: CallHealth, caller: Option<&Caller>, now: Instant) -> bool {
        if let Some(caller) = caller {
            self.record_use(caller, now);
        }
        match (health, caller) {
            (CallHealth::PauseRequested { .. }, _) => return false,
            (CallHealth::Healthy, _) => {
                self.failures = 0;
                self.failing = FailingCallers::None;
                return false;
            }
            (CallHealth::Unhealthy, None) => self.failing = FailingCallers::Several,
            (CallHealth::Unhealthy, Some(caller)) => match &self.failing {
                FailingCallers::None => self.failing = FailingCallers::One(caller.clone()),
                FailingCallers::One(failing) if failing == caller => {}
                FailingCallers::One(_) | FailingCallers::Several => self.failing = FailingCallers::Several,
            },
        }
        self.failures = self.failures.saturating_add(1);
        self.failures >= self.spec.failures.get() && !self.is_used_by_others(now)
    }

    /// Counts the call that tests a tripped server and returns whether the breaker stays open.
    pub(crate) fn record_probe(&mut self, health: CallHealth) -> bool {
        let is_unhealthy = health == CallHealth::Unhealthy;
        self.failures = if is_unhealthy { self.failures.saturating_add(1) } else { 0 };
        if !is_unhealthy {
            self.failing = FailingCallers::None;
        }
        is_unhealthy
    }

    fn record_use(&mut self, caller: &Caller, now: Instant) {
        match &mut self.last_use {
            Some(last) if last.caller == *caller => last.at = now,
            last => {
                self.last_other_use = last.take();
                *last = Some(LastUse { caller: caller.clone(), at: now });
            }
        }
    }

    /// Returns whether all failures are of one caller while another one uses the server.
    fn is_used_by_others(&self, now: Instant) -> bool {
        let FailingCallers::One(failing) = &self.failing else { return false };
        let mut uses = self.last_use.iter().chain(&self.last_other_use);
        uses.any(|last| last.caller != *failing && now.duration_since(last.at) < self.spec.cool_off)
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn cool_off(&self) -> Duration {
        self.spec.cool_off
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn trips_at_the_threshold_and_success_resets_the_count() {
        let mut breaker = breaker();
        let now = Instant::now();
        let mut tripped = |calls: &str| {
            let health = |call| if call == 'x' { CallHealth::Unhealthy } else { CallHealth::Healthy };
            let record = |call| breaker.record(health(call), Some(&Caller::local()), now);
            calls.chars().map(record).collect::<Vec<_>>()
        };
        assert_eq!(tripped("xx.xxx"), [false, false, false, false, false, true]);
        assert_eq!(tripped(".x"), [false, false]);
    }

    fn breaker() -> Breaker {
        Breaker::new(BreakerSpec { failures: NonZeroU32::new(3).unwrap(), cool_off: Duration::from_secs(30) })
    }

    #[test]
    fn failures_of_one_caller_do_not_trip_while_others_use_it() {
        let ann = Caller::new("ann");
        let ben = Caller::new("ben");
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut breaker = breaker();
        assert!(!breaker.record(CallHealth::Healthy, Some(&ann), at(0)));
        for second in 1..20 {
            assert!(!breaker.record(CallHealth::Unhealthy, Some(&ben), at(second)), "{second}");
        }
        // With a failure of the other caller the server is to blame.
        assert!(breaker.clone().record(CallHealth::Unhealthy, Some(&ann), at(20)));
        // Without other callers, only the failing caller has to wait.
        assert!(breaker.record(CallHealth::Unhealthy, Some(&ben), at(31)));
        assert!(breaker.record_probe(CallHealth::Unhealthy) && !breaker.record_probe(CallHealth::Healthy));
    }
}
