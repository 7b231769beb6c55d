//! `CatalogPublisher`: builds the catalog again when a listing or the set of servers changes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use super::CribInner;
use crate::catalog::Catalog;
use crate::pipeline::router::CallRouter;
use crate::util::tasks::SpawnBoxed as _;

/// Tools above which a catalog is built on a blocking thread when a listing changes, so that calls go on meanwhile.
const LARGE_CATALOG: usize = 1000;

/// Publishes catalogs: changed listings from a task, changed servers immediately.
#[derive(Debug)]
pub(super) struct CatalogPublisher {
    /// The task has the sender; watchers of the catalog notice its end.
    sender: Weak<watch::Sender<Arc<Catalog>>>,
    /// The revision of the last catalog that was begun. One that was begun later has read later listings.
    last_revision: AtomicU64,
}

impl CatalogPublisher {
    pub(super) fn new(sender: &Arc<watch::Sender<Arc<Catalog>>>) -> Self {
        let last_revision = AtomicU64::new(sender.borrow().revision());
        Self { sender: Arc::downgrade(sender), last_revision }
    }

    /// Builds the catalog and publishes it, unless one that was begun later has been published. Does nothing once the crib is shut
    /// down.
    pub(super) fn publish(&self, router: &CallRouter) {
        let Some(sender) = self.sender.upgrade() else { return };
        let changes = &router.services.listing_changes;
        let change_count = changes.reported();
        let revision = self.last_revision.fetch_add(1, Ordering::AcqRel) + 1;
        let mut catalog = Arc::new(Catalog::build(revision, &router.registry.listings()));
        sender.send_if_modified(|published| {
            let is_newer = published.revision() < revision;
            if is_newer {
                // The replaced catalog is dropped outside of the lock.
                std::mem::swap(published, &mut catalog);
            }
            is_newer
        });
        changes.mark_applied(change_count);
    }
}

/// Spawns the task that publishes a new catalog when a listing changes. The task holds the crib weakly and ends with it.
pub(super) fn spawn_catalog_publisher(inner: &Arc<CribInner>, sender: Arc<watch::Sender<Arc<Catalog>>>) {
    let weak = Arc::downgrade(inner);
    let changes = inner.router.services.listing_changes.clone();
    let stop = inner.stop_tasks.clone();
    inner.router.services.tasks.spawn_boxed(async move {
        let expects_listings =
            || weak.upgrade().is_some_and(|inner| inner.router.discoverer.expects_listings());
        loop {
            tokio::select! {
                _ = changes.next(expects_listings) => {}
                () = sender.closed() => return,
                () = stop.cancelled() => return,
            }
            let Some(inner) = weak.upgrade() else { return };
            let is_large = inner.router.registry.count_tools() > LARGE_CATALOG;
            let publish = move || inner.catalog_publisher.publish(&inner.router);
            if !is_large {
                publish();
            } else if let Err(error) = tokio::task::spawn_blocking(publish).await {
                tracing::error!(%error, "cannot build the catalog");
            }
        }
    });
}
