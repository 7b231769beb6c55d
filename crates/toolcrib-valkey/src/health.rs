//! `StoreState` and `StoreStatus`: whether the store answers, and what its operations cost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Whether the store can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreState {
    /// The first connection is being opened.
    Connecting,
    /// Connected.
    Up,
    /// Not connected, for this reason. Connecting is tried again.
    Down(String),
}

/// The state of a store and the number of its operations.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStatus {
    /// Whether the store can be used.
    pub state: StoreState,
    /// The servers, without user and password.
    pub url: String,
    /// How long the state has been the same.
    pub since: Duration,
    /// Operations that succeeded.
    pub operations: u64,
    /// The sum of the times that they took.
    pub duration: Duration,
    /// Operations that failed.
    pub failures: u64,
}

/// The changes of the state of a store.
#[derive(Debug)]
pub struct StateWatch(watch::Receiver<StateSince>);

impl StateWatch {
    /// Waits until the store is up or down, the next time until that changes. Returns `None` if the store was dropped.
    ///
    /// # Cancel safety
    /// No change is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<StoreState> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().state.clone())
    }
}

#[derive(Debug)]
pub(crate) struct Health {
    state: watch::Sender<StateSince>,
    operations: AtomicU64,
    nanoseconds: AtomicU64,
    failures: AtomicU64,
}

#[derive(Debug, Clone)]
struct StateSince {
    state: StoreState,
    since: Instant,
}

impl Health {
    pub(crate) fn new() -> Self {
        let state = StateSince { state: StoreState::Connecting, since: Instant::now() };
        Self {
            state: watch::Sender::new(state),
            operations: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    pub(crate) fn watch(&self) -> StateWatch {
        let mut changes = self.state.subscribe();
        if changes.borrow().state != StoreState::Connecting {
            changes.mark_changed();
        }
        StateWatch(changes)
    }

    pub(crate) fn state(&self) -> StoreState {
        self.state.borrow().state.clone()
    }

    /// Sets the state. A store that stays down keeps its time, and gets the latest reason.
    pub(crate) fn set(&self, state: StoreState) {
        self.state.send_if_modified(|current| {
            if current.state == state {
                return false;
            }
            let is_still_down =
                matches!((&current.state, &state), (StoreState::Down(_), StoreState::Down(_)));
            if !is_still_down {
                current.since = Instant::now();
            }
            current.state = state;
            !is_still_down
        });
    }

    pub(crate) fn record_success(&self, duration: Duration) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn record_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn status(&self, url: String) -> StoreStatus {
        let StateSince { state, since } = self.state.borrow().clone();
        StoreStatus {
            state,
            url,
            since: since.elapsed(),
            operations: self.operations.load(Ordering::Relaxed),
            duration: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}
