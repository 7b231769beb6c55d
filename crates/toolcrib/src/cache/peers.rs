//! `CachePeers`: the caches of other replicas that share the store. Each replica has answers of its own; an invalidation
//! reaches all of them.

use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::shared_responses::{FailedInvalidations, SharedResponses};
use super::{Invalidation, ResponseCache};
use crate::spec::ServerId;
use crate::store::{Store, StoreKey, StoreKind, StoreNotice};

/// Announces invalidations to other replicas.
#[derive(Debug)]
pub(crate) struct CachePeers {
    store: Arc<dyn Store>,
    /// Tells own notices apart.
    replica: String,
    tasks: TaskTracker,
    failed: FailedInvalidations,
}

impl CachePeers {
    /// Creates the peers of the replica with this unique name; `tasks` owns the announcements.
    pub(crate) fn new(store: Arc<dyn Store>, replica: String, tasks: TaskTracker) -> Self {
        Self { store, replica, tasks, failed: FailedInvalidations::default() }
    }

    /// Returns the responses in the store, if other processes use it.
    pub(super) fn shared_responses(&self) -> Option<SharedResponses> {
        let create = || SharedResponses::new(self.store.clone(), self.tasks.clone(), self.failed.clone());
        self.store.is_shared().then(create)
    }

    pub(super) fn announce(&self, server: &ServerId, invalidation: Invalidation<'_>) {
        let resource = match invalidation {
            Invalidation::All => None,
            Invalidation::Resource(uri) => Some(uri),
        };
        let notice = json!({"replica": self.replica, "server": server.as_str(), "resource": resource});
        let published = self.store.publish(StoreKey::new(StoreKind::CachedResponse, &notice.to_string()));
        let failed = self.failed.clone();
        let server = server.clone();
        published.finish(&self.tasks, move |published| {
            if let Err(error) = published {
                tracing::warn!("cannot announce that cached responses of `{server}` are stale: {error}");
                failed.add(server);
            }
        });
    }

    /// Returns the servers whose invalidations failed, to make them again.
    fn take_failed(&self) -> impl IntoIterator<Item = ServerId> {
        self.failed.take()
    }
}

impl ResponseCache {
    /// Applies the notice of another replica. The instances of a server have different names there, so all are affected.
    pub(super) fn apply_notice(&self, notice: &StoreNotice) {
        let StoreNotice::Changed(name) = notice else {
            self.invalidate_all_servers();
            return self.repeat_failed();
        };
        let notice: Value = serde_json::from_str(name).unwrap_or_default();
        let is_own = self.peers.as_ref().is_some_and(|peers| notice["replica"] == *peers.replica);
        let server = notice["server"].as_str().and_then(|server| server.parse::<ServerId>().ok());
        match (server, notice["resource"].as_str()) {
            _ if is_own => {}
            (Some(server), Some(uri)) => self.invalidate_own(&server, None, Invalidation::Resource(uri)),
            (Some(server), None) => self.invalidate_own(&server, None, Invalidation::All),
            // From a replica of another version.
            (None, _) => self.invalidate_all_servers(),
        }
    }

    /// Makes the invalidations again that the store has not taken. Called when the store can be reached again.
    fn repeat_failed(&self) {
        for server in self.peers.iter().flat_map(CachePeers::take_failed) {
            self.invalidate(&server, None, Invalidation::All);
        }
    }
}

/// Applies the notices of other replicas until the cache is dropped or `stop` is cancelled.
pub(crate) async fn watch_peers(
    cache: Weak<ResponseCache>,
    mut notices: Receiver<StoreNotice>,
    stop: CancellationToken,
) {
    loop {
        let notice = tokio::select! {
            notice = notices.recv() => notice,
            () = stop.cancelled() => return,
        };
        let notice = match notice {
            Ok(notice) => notice,
            Err(RecvError::Lagged(_)) => StoreNotice::Missed,
            Err(RecvError::Closed) => return,
        };
        let Some(cache) = cache.upgrade() else { return };
        cache.apply_notice(&notice);
    }
}
