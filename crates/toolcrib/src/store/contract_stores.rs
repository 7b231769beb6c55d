//! The stores of this crate, for the contract.

use std::sync::Arc;
use std::time::Duration;

pub(super) use tokio::time::advance;

use super::{DelayedStore, MemoryStore, Store};

/// Returns one store of each implementation.
pub(super) async fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(MemoryStore::default()), Arc::new(DelayedStore::new())]
}

/// Returns whether a store measured the expected time, exactly: its clock is paused.
pub(super) fn is_equal_time(time: Duration, expected: Duration) -> bool {
    time == expected
}
