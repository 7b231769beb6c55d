//! `InFlightLimits`: the calls in flight of callers whose number is limited.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls that may wait per call that may be in flight.
const MAX_WAITING_PER_CALL: usize = 16;

/// The limits by caller.
#[derive(Debug, Default)]
pub(super) struct InFlightLimits(HashMap<String, Arc<CallerCalls>>);

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
    pub(super) fn replace(&self, limits: HashMap<String, NonZeroU32>) -> Self {
        let calls = |name: &str, limit: NonZeroU32| match self.0.get(name) {
            Some(calls) if calls.limit == limit => calls.clone(),
            _ => Arc::new(CallerCalls::new(limit)),
        };
        Self(limits.into_iter().map(|(name, limit)| (name.clone(), calls(&name, limit))).collect())
    }

    /// Returns the calls of a caller, if their number is limited.
    pub(super) fn of_caller(&self, caller: &str) -> Option<Arc<CallerCalls>> {
        self.0.get(caller).cloned()
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
