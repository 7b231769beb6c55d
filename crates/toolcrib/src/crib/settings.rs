//! `Settings`: everything that a reload replaces as one value.

use std::sync::Arc;

use super::Crib;
use crate::access::expose::ExposeSettings;
use crate::access::policy::Policy;
use crate::limits::UsageLimits;
use crate::model::caller::Caller;
use crate::spec::{Capacity, Roster};
use crate::util::locks::IgnorePoison as _;

/// Everything that [`Crib::apply`](crate::Crib::apply) replaces.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The servers.
    pub roster: Roster,
    /// The access rules.
    pub policy: Policy,
    /// How a gateway lists tools to its clients.
    pub expose: ExposeSettings,
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

    /// Sets how a gateway lists tools to its clients.
    #[must_use]
    pub fn expose(mut self, expose: ExposeSettings) -> Self {
        self.expose = expose;
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

impl Crib {
    /// Returns the local caller or one of its agents; see [`Policy::local_caller`](crate::Policy::local_caller).
    pub fn local_caller(&self, agent: Option<&str>, profile: Option<&str>) -> Caller {
        self.router().visible_catalogs.local_caller(agent, profile)
    }

    /// Replaces the access rules from the next list and the next call on. The guard stays; see [`Crib::set_guard`].
    pub fn set_policy(&self, policy: Policy) {
        self.router().visible_catalogs.set_policy(policy);
        // Publishes the catalog again, so that watchers apply the new rules to it.
        self.router().services.listing_changes.report();
    }

    /// Returns how a gateway lists tools to its clients.
    pub fn expose_settings(&self) -> Arc<ExposeSettings> {
        self.inner.expose.read().ignore_poison().clone()
    }

    /// Replaces how a gateway lists tools to its clients.
    pub fn set_expose(&self, expose: ExposeSettings) {
        self.router().registry.set_limits_client_results(expose.limits_results());
        *self.inner.expose.write().ignore_poison() = Arc::new(expose);
        // Publishes the catalog again, so that clients are notified of their new lists.
        self.router().services.listing_changes.report();
    }

    /// Replaces the usage limits from the next call on. Usage of unchanged limits is kept.
    pub fn set_limits(&self, limits: UsageLimits) {
        self.router().limiter.set_limits(limits);
    }

    /// Replaces the limits of all servers together. Idle servers are evicted immediately, the others once they are idle.
    pub fn set_capacity(&self, capacity: Capacity) {
        self.router().services.slots.resize(capacity.servers);
        self.router().services.cache.set_max_bytes(capacity.cache);
        self.inner.capacity.send_replace(capacity);
    }
}
