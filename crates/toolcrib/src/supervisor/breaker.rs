//! The circuit breaker of a running server: counts consecutive failures of calls. Pure.

use std::time::Duration;

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

/// Counts consecutive failures.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    spec: BreakerSpec,
    failures: u32,
}

impl Breaker {
    pub(crate) fn new(spec: BreakerSpec) -> Self {
        Self { spec, failures: 0 }
    }

    /// Replaces the settings and keeps the count.
    pub(crate) fn set_spec(&mut self, spec: BreakerSpec) {
        self.spec = spec;
    }

    /// Counts one call and returns whether the failure limit is reached.
    pub(crate) fn record(&mut self, health: CallHealth) -> bool {
        self.failures = match health {
            CallHealth::Healthy => 0,
            CallHealth::Unhealthy => self.failures.saturating_add(1),
            CallHealth::PauseRequested { .. } => return false,
        };
        self.failures >= self.spec.failures.get()
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
        let spec = BreakerSpec { failures: NonZeroU32::new(3).unwrap(), cool_off: Duration::from_secs(1) };
        let mut breaker = Breaker::new(spec);
        let mut tripped = |calls: &str| {
            let health = |call| if call == 'x' { CallHealth::Unhealthy } else { CallHealth::Healthy };
            calls.chars().map(|call| breaker.record(health(call))).collect::<Vec<_>>()
        };
        assert_eq!(tripped("xx.xxx"), [false, false, false, false, false, true]);
        assert_eq!(tripped(".x"), [false, false]);
    }
}
