//! `Breaker`: counts failures in a row on a living connection and says when to stop asking. Pure.

use std::time::Duration;

use crate::class::FailureClass;
use crate::spec::BreakerSpec;

/// How a call left the server that worked on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It answered; what it said does not matter.
    Well,
    /// It did not answer in time, or what it sent was no answer.
    Unwell,
    /// It wants to be left alone for this long, and why; which says nothing about how it is.
    Away(FailureClass, Duration),
}

/// Counts failures in a row.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    spec: BreakerSpec,
    failures: u32,
}

impl Breaker {
    pub(crate) fn new(spec: BreakerSpec) -> Self {
        Self { spec, failures: 0 }
    }

    /// Counts one call; `true` if that was one failure too many.
    pub(crate) fn count(&mut self, health: Health) -> bool {
        self.failures = match health {
            Health::Well => 0,
            Health::Unwell => self.failures.saturating_add(1),
            Health::Away(..) => return false,
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
    fn trips_at_exactly_the_threshold_and_a_success_starts_over() {
        let spec = BreakerSpec { failures: NonZeroU32::new(3).unwrap(), cool_off: Duration::from_secs(1) };
        let mut breaker = Breaker::new(spec);
        let mut tripped = |calls: &str| {
            let health = |call| if call == 'x' { Health::Unwell } else { Health::Well };
            calls.chars().map(|call| breaker.count(health(call))).collect::<Vec<_>>()
        };
        assert_eq!(tripped("xx.xxx"), [false, false, false, false, false, true]);
        assert_eq!(tripped(".x"), [false, false]);
    }
}
