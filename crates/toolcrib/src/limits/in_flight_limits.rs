//! `InFlightLimits`: the calls in flight of callers whose number is limited.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::caller::Caller;
use crate::util::maps::collect_map;

/// Calls that may wait per call that may be in flight.
const MAX_WAITING_PER_CALL: usize = 16;
/// Members of groups that are kept without calls.
const MAX_IDLE_MEMBERS: usize = 1000;

/// The limits by caller and by group.
#[derive(Debug, Default)]
pub(super) struct InFlightLimits {
    callers: HashMap<String, Arc<CallerCalls>>,
    groups: BTreeMap<String, NonZeroU32>,
    /// The calls of callers that only their groups limit, from their first call on.
    members: HashMap<String, Arc<CallerCalls>>,
}

/// The calls of one caller.
#[derive(Debug)]
pub(super) struct CallerCalls {
    pub(super) limit: NonZeroU32,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A call that waits until this is dropped.
struct WaitingCall<'a>(&'a AtomicUsize);

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InFlightLimits {
    /// Returns new limits. Callers whose limit is unchanged keep their calls in flight.
    pub(super) fn replace(
        &self,
        callers: &HashMap<String, NonZeroU32>,
        groups: BTreeMap<String, NonZeroU32>,
    ) -> Self {
        let calls = |name: &str, limit: NonZeroU32| match self.callers.get(name) {
            Some(calls) if calls.limit == limit => calls.clone(),
            _ => Arc::new(CallerCalls::new(limit)),
        };
        let callers = callers.iter().map(|(name, limit)| (name.clone(), calls(name, *limit)));
        Self { callers: collect_map(callers), groups, members: self.members.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty() && self.groups.is_empty()
    }

    /// Returns whether the calls of a caller are limited.
    pub(super) fn has_limit(&self, caller: &Caller) -> bool {
        self.callers.contains_key(caller.as_str()) || self.group_limit(caller).is_some()
    }

    /// Returns the least limit of the groups of a caller.
    fn group_limit(&self, caller: &Caller) -> Option<NonZeroU32> {
        caller.groups().iter().filter_map(|group| self.groups.get(group)).min().copied()
    }

    /// Returns the calls of a caller, if their number is limited.
    pub(super) fn of_caller(&mut self, caller: &Caller) -> Option<Arc<CallerCalls>> {
        if let Some(calls) = self.callers.get(caller.as_str()) {
            return Some(calls.clone());
        }
        let limit = self.group_limit(caller)?;
        if let Some(calls) = self.members.get(caller.as_str()).filter(|calls| calls.limit == limit) {
            return Some(calls.clone());
        }
        if self.members.len() >= MAX_IDLE_MEMBERS {
            self.members
                .retain(|_, calls| Arc::strong_count(calls) > 1 || Arc::strong_count(&calls.free) > 1);
        }
        let calls = Arc::new(CallerCalls::new(limit));
        self.members.insert(caller.as_str().to_owned(), calls.clone());
        Some(calls)
    }
}

impl CallerCalls {
    fn new(limit: NonZeroU32) -> Self {
        let free = usize::try_from(limit.get()).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { limit, free: Arc::new(Semaphore::new(free)), waiting: AtomicUsize::new(0) }
    }

    /// Waits until one more call may be in flight. Returns `None` if too many wait already.
    pub(super) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Some(permit);
        }
        let max_waiting = usize::try_from(self.limit.get()).unwrap_or(usize::MAX);
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = WaitingCall(&self.waiting);
        if waiting >= max_waiting.saturating_mul(MAX_WAITING_PER_CALL) {
            return None;
        }
        // The semaphore is never closed.
        self.free.clone().acquire_owned().await.ok()
    }
}
