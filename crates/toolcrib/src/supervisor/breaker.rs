//! The circuit breaker of a running server: counts consecutive failures of calls. Pure.

use std::time::Duration;

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
}

/// The callers of consecutive failures.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FailingCallers {
    None,
    One(Caller),
    Several,
}

impl Breaker {
    pub(crate) fn new(spec: BreakerSpec) -> Self {
        Self { spec, failures: 0, failing: FailingCallers::None }
    }

    /// Replaces the settings and keeps the count.
    pub(crate) fn set_spec(&mut self, spec: BreakerSpec) {
        self.spec = spec;
    }

    /// Counts one call and returns whether the breaker opens: the failure limit is reached, and either the failures are of
    /// several callers, or `is_used_by_others` returns that only the failing caller uses the server.
    pub(crate) fn record(
        &mut self,
        health: CallHealth,
        caller: Option<&Caller>,
        is_used_by_others: impl Fn(&Caller) -> bool,
    ) -> bool {
        match health {
            CallHealth::PauseRequested { .. } => return false,
            CallHealth::Healthy => {
                self.reset();
                return false;
            }
            CallHealth::Unhealthy => {}
        }
        self.failures = self.failures.saturating_add(1);
        self.failing = match (&self.failing, caller) {
            (FailingCallers::None, Some(caller)) => FailingCallers::One(caller.clone()),
            (FailingCallers::One(failing), Some(caller)) if failing == caller => {
                FailingCallers::One(caller.clone())
            }
            _ => FailingCallers::Several,
        };
        let is_excused = match &self.failing {
            FailingCallers::One(failing) => is_used_by_others(failing),
            FailingCallers::None | FailingCallers::Several => false,
        };
        self.failures >= self.spec.failures.get() && !is_excused
    }

    /// Counts the call that tests a tripped server and returns whether the breaker stays open.
    pub(crate) fn record_probe(&mut self, health: CallHealth) -> bool {
        let is_unhealthy = health == CallHealth::Unhealthy;
        match is_unhealthy {
            true => self.failures = self.failures.saturating_add(1),
            false => self.reset(),
        }
        is_unhealthy
    }

    fn reset(&mut self) {
        self.failures = 0;
        self.failing = FailingCallers::None;
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
        let mut tripped = |calls: &str| {
            let health = |call| if call == 'x' { CallHealth::Unhealthy } else { CallHealth::Healthy };
            let record = |call| breaker.record(health(call), Some(&Caller::local()), |_| false);
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
        let mut breaker = breaker();
        for _ in 0..20 {
            assert!(!breaker.record(CallHealth::Unhealthy, Some(&ben), |failing| *failing == ben));
        }
        // With a failure of the other caller the server is to blame.
        assert!(breaker.clone().record(CallHealth::Unhealthy, Some(&ann), |_| true));
        // Without other callers, only the failing caller has to wait.
        assert!(breaker.record(CallHealth::Unhealthy, Some(&ben), |_| false));
        assert!(breaker.record_probe(CallHealth::Unhealthy) && !breaker.record_probe(CallHealth::Healthy));
        assert_eq!(breaker.failures(), 0);
    }
}
