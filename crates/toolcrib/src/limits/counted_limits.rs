//! `CountedLimits`: the limits in force, each with its counter.

use std::collections::{BTreeMap, HashMap};

use super::{LimitOwner, OnStoreFailure, UsageLimit, UsageLimits};
use crate::model::caller::Caller;
use crate::model::target::Target;
use crate::spec::Origin;
use crate::store::{CounterList, LimitCounter};
use crate::util::maps::collect_map;

/// The limits of all callers with their counters.
#[derive(Debug, Default)]
pub(crate) struct CountedLimits {
    everyone: Vec<CountedLimit>,
    callers: HashMap<String, Vec<CountedLimit>>,
    groups: BTreeMap<String, Vec<CountedLimit>>,
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
        let of_group = |(group, limits): (String, Vec<UsageLimit>)| {
            let counted = count_limits(limits, LimitOwner::Group(&group));
            (group, counted)
        };
        Self {
            everyone: count_limits(limits.everyone, LimitOwner::Everyone),
            callers: limits.callers.into_iter().map(own).collect(),
            groups: collect_map(limits.groups.into_iter().map(of_group)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.everyone.is_empty() && self.callers.is_empty() && self.groups.is_empty()
    }

    fn limits_for(&self, caller: &Caller) -> impl Iterator<Item = &CountedLimit> {
        let of_groups = caller.groups().iter().filter_map(|group| self.groups.get(group)).flatten();
        self.everyone.iter().chain(self.callers.get(caller.as_str()).into_iter().flatten()).chain(of_groups)
    }

    /// Returns the limits that a caller may have, whichever groups it is in.
    fn possible_limits(&self, caller: &str) -> impl Iterator<Item = &CountedLimit> {
        let own = self.callers.get(caller).into_iter().flatten();
        self.everyone.iter().chain(own).chain(self.groups.values().flatten())
    }

    /// Returns the counters of every limit of a caller.
    pub(super) fn all(&self, caller: &Caller) -> CounterList<'_> {
        self.limits_for(caller).map(|counted| &counted.counter).collect()
    }

    /// Returns the counters of a caller's limits that match a target.
    pub(super) fn matching(&self, caller: &Caller, target: &Target) -> CounterList<'_> {
        let is_match = |counted: &&CountedLimit| counted.limit.pattern.matches(&target.server, &target.name);
        self.limits_for(caller).filter(is_match).map(|counted| &counted.counter).collect()
    }

    /// Returns whether every limit that matches a target lets calls pass that cannot be counted.
    pub(super) fn allow_uncounted(&self, caller: &Caller, target: &Target) -> bool {
        let is_match = |counted: &&CountedLimit| counted.limit.pattern.matches(&target.server, &target.name);
        let mut matching = self.limits_for(caller).filter(is_match);
        matching.all(|counted| counted.limit.on_store_failure == OnStoreFailure::Allow)
    }

    /// Returns the counters of a caller's limits with a config key. The groups of the caller need not be known.
    pub(crate) fn named(&self, caller: &str, config_key: &str) -> Vec<LimitCounter> {
        let named = self.possible_limits(caller).filter(|counted| *counted.counter.name == *config_key);
        named.map(|counted| counted.counter.clone()).collect()
    }

    /// Returns the counters of a caller that `newer` does not have. The groups of the caller need not be known.
    pub(super) fn missing_in<'a>(&'a self, newer: &Self, caller: &str) -> CounterList<'a> {
        let kept: CounterList<'_> = newer.possible_limits(caller).map(|counted| &counted.counter).collect();
        let is_missing = |counter: &&LimitCounter| !kept.iter().any(|kept| kept.is_same(counter));
        self.possible_limits(caller).map(|counted| &counted.counter).filter(is_missing).collect()
    }

    /// Returns the callers that have limits of their own.
    pub(super) fn callers(&self) -> impl Iterator<Item = &str> {
        self.callers.keys().map(String::as_str)
    }

    /// Returns where the limit of a counter is configured.
    pub(super) fn find_origin(&self, caller: &Caller, counter: &LimitCounter) -> Option<&Origin> {
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
