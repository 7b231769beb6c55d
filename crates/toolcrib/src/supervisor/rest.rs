//! `Rest`: waits for a server to sleep with nothing held against it, without keeping it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Snapshot;
use crate::status::StateName;

/// Waits for a server to come to rest.
pub(crate) struct Rest {
    snapshot: watch::Receiver<Snapshot>,
    /// How long a crash is held against it.
    within: Duration,
}

impl Rest {
    pub(super) fn new(snapshot: watch::Receiver<Snapshot>, within: Duration) -> Self {
        Self { snapshot, within }
    }

    /// Waits until it sleeps with nothing held against it; `false` if it has ended.
    pub(crate) async fn come(&mut self) -> bool {
        loop {
            if self.snapshot.wait_for(|snapshot| snapshot.state == StateName::Asleep).await.is_err() {
                return false;
            }
            if self.snapshot.borrow_and_update().is_at_rest() {
                return true;
            }
            if let Ok(Err(_)) = timeout(self.within, self.snapshot.changed()).await {
                return false;
            }
        }
    }

    /// Waits until something about it is different.
    pub(crate) async fn end(&mut self) {
        // One that has ended is different, too.
        let _ = self.snapshot.changed().await;
    }
}
