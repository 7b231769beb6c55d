//! `Settings`: everything that a reload replaces as one value.

use crate::access::policy::Policy;
use crate::limits::UsageLimits;
use crate::spec::{Capacity, Roster};

/// Everything that [`Crib::apply`](crate::Crib::apply) replaces.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The servers.
    pub roster: Roster,
    /// The access rules.
    pub policy: Policy,
    /// Quotas and rates of callers and clients.
    pub limits: UsageLimits,
    /// The limits of all servers together.
    pub capacity: Capacity,
}

impl Settings {
    /// Creates settings with these servers and no rules or limits.
    pub fn new(roster: Roster) -> Self {
        Self { roster, ..Self::default() }
    }

    /// Sets the access rules.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the quotas and rates of callers and clients.
    #[must_use]
    pub fn limits(mut self, limits: UsageLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the limits of all servers together.
    #[must_use]
    pub fn capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = capacity;
        self
    }
}
