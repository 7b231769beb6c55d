//! `Rest`: waits for a server to sleep, without keeping it.

use tokio::sync::watch;

use super::Snapshot;
use crate::status::StateName;

/// Waits for a server to come to rest.
pub(crate) struct Rest {
    snapshot: watch::Receiver<Snapshot>,
}

impl Rest {
    pub(super) fn new(snapshot: watch::Receiver<Snapshot>) -> Self {
        Self { snapshot }
    }

    /// Waits until it sleeps; `false` if it has ended.
    pub(crate) async fn come(&mut self) -> bool {
        self.snapshot.wait_for(|snapshot| snapshot.state == StateName::Asleep).await.is_ok()
    }

    /// Waits until something about it is different.
    pub(crate) async fn end(&mut self) {
        // One that has ended is different, too.
        let _ = self.snapshot.changed().await;
    }
}
