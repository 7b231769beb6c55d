//! `CountedLimits`: the limits in force, each with its counter.

use std::collections::HashMap;

use super::{LimitOwner, UsageLimit, UsageLimits};
use crate::model::target::Target;
use crate::spec::Origin;
use crate::store::{CounterList, LimitCounter};

/// The limits of all callers with their counters.
#[derive(Debug, Default)]
pub(crate) struct CountedLimits {
    everyone: Vec<CountedLimit>,
    callers: HashMap<String, Vec<CountedLimit>>,
}

#[derive(Debug)]
struct CountedLimit {
    limit: UsageLimit,
    counter: LimitCounter,
}

impl CountedLimits {
    pub(crate) fn new(limits: UsageLimits) -> Self {
        let own = |(caller, own): (String, Vec<UsageLimit>)| {
            let counted = count_limits(own, LimitOwner::Caller(&caller));
            (caller, counted)
        };
        Self {
            everyone: count_limits(limits.everyone, LimitOwner::Everyone),
            callers: limits.callers.into_iter().map(own).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.everyone.is_empty() && self.callers.is_empty()
    }

    fn limits_for(&self, caller: &str) -> impl Iterator<Item = &CountedLimit> {
        self.everyone.iter().chain(self.callers.get(caller).into_iter().flatten())
    }

    /// Returns the counters of every limit of a caller.
    pub(super) fn all(&self, caller: &str) -> CounterList<'_> {
        self.limits_for(caller).map(|counted| &counted.counter).collect()
    }

    /// Returns the counters of a caller's limits that match a target.
    pub(super) fn matching(&self, caller: &str, target: &Target) -> CounterList<'_> {
        let is_match = |counted: &&CountedLimit| counted.limit.pattern.matches(&target.server, &target.name);
        self.limits_for(caller).filter(is_match).map(|counted| &counted.counter).collect()
    }

    /// Returns the counters of a caller's limits with a config key.
    pub(crate) fn named(&self, caller: &str, config_key: &str) -> Vec<LimitCounter> {
        let named = self.limits_for(caller).filter(|counted| *counted.counter.name == *config_key);
        named.map(|counted| counted.counter.clone()).collect()
    }

    /// Returns the counters of a caller that `newer` does not have.
    pub(super) fn missing_in<'a>(&'a self, newer: &Self, caller: &str) -> CounterList<'a> {
        let kept = newer.all(caller);
        let is_missing = |counter: &&LimitCounter| !kept.iter().any(|kept| kept.is_same(counter));
        self.limits_for(caller).map(|counted| &counted.counter).filter(is_missing).collect()
    }

    /// Returns the callers that have limits of their own.
    pub(super) fn callers(&self) -> impl Iterator<Item = &str> {
        self.callers.keys().map(String::as_str)
    }

    /// Returns where the limit of a counter is configured.
    pub(super) fn find_origin(&self, caller: &str, counter: &LimitCounter) -> Option<&Origin> {
        self.limits_for(caller).find(|counted| counted.counter.is_same(counter))?.limit.origin()
    }
}

fn count_limits(limits: Vec<UsageLimit>, owner: LimitOwner<'_>) -> Vec<CountedLimit> {
    let mut counted = Vec::<CountedLimit>::new();
    for limit in limits {
        let name = limit.config_key(owner);
        let ordinal = counted.iter().filter(|earlier| *earlier.counter.name == *name).count();
        let counter = LimitCounter { name: name.into(), ordinal, kind: limit.kind };
        counted.push(CountedLimit { limit, counter });
    }
    counted
}
