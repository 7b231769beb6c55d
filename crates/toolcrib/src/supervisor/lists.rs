//! The lists of a supervised server: whether they are current, and requests to read them again.

use std::sync::Arc;

use tokio::time::Instant;

use super::{ActorCommand, Relisted, Supervisor, WatchEvent};
use crate::model::listing::{FetchedListing, ListFailure, ListPages, ListTtl};
use crate::protocol::list_kind::{ListKind, ListKinds};
use crate::upstream::Connection;
use crate::upstream::relist::PendingRelist;

impl Supervisor {
    /// Returns how long one of the lists is valid.
    pub(crate) fn list_ttl(&self, kind: ListKind) -> ListTtl {
        let snapshot = self.0.snapshot.borrow();
        snapshot.known_listing.as_ref().map(|known| known.listing.ttl(kind)).unwrap_or_default()
    }

    /// Requests those of the lists that are out of date, if the server runs, and returns the listing to wait for.
    pub(crate) fn refresh(&self, kinds: ListKinds, now: Instant) -> Option<PendingRelist> {
        let snapshot = self.0.snapshot.borrow();
        let connection = snapshot.listable_connection()?;
        let listing = &snapshot.known_listing.as_ref()?.listing;
        let list_ttl = self.0.spec.lifecycle.list_ttl;
        let stale = kinds.iter().filter(|kind| listing.is_stale(*kind, list_ttl, now)).collect();
        connection.refresh_lists(kinds, stale)
    }

    /// Returns whether the server runs and its last known list may not be what it would answer now: the list was never read,
    /// has expired or is to be read again, or the server announces no changes of it.
    pub(crate) fn is_list_uncertain(&self, kind: ListKind, now: Instant) -> bool {
        let snapshot = self.0.snapshot.borrow();
        let Some(connection) = snapshot.listable_connection() else { return false };
        let Some(known) = &snapshot.known_listing else { return true };
        known.listing.unknown_list(kind).is_some()
            || known.listing.is_stale(kind, self.0.spec.lifecycle.list_ttl, now)
            || connection.expects_list(kind)
            || connection.handshake.has_capability(kind.capability())
                && !connection.announces_list_changes(kind.capability())
    }

    /// Records a list that a client has read on a connection, and waits until that is done. The other lists of a server that
    /// was never listed are requested.
    pub(crate) async fn record_list(&self, connection: &Arc<Connection>, kind: ListKind, pages: ListPages) {
        let recorded = {
            let snapshot = self.0.snapshot.borrow();
            if !snapshot.connection.upgrade().is_some_and(|current| Arc::ptr_eq(&current, connection)) {
                return;
            }
            if snapshot.known_listing.is_none() {
                connection.request_relist(ListKinds::ALL.difference(kind.into()));
            }
            let fetched = FetchedListing::of_client(connection.handshake_listing(), kind, pages);
            let (relisted, recorded) = Relisted::of_client(fetched);
            let event = WatchEvent::Relisted(Box::new(relisted));
            // Fails if the actor has ended, which drops what confirms it.
            let _ = self.0.mailbox.send(ActorCommand::Watched { generation: snapshot.generation, event });
            recorded
        };
        let _ = recorded.await;
    }

    /// Returns the first listing of a running server to wait for. It is requested unless it has been.
    pub(crate) fn first_listing(&self) -> Option<PendingRelist> {
        let connection = self.0.snapshot.borrow().listable_connection()?;
        let expected = connection.refresh_lists(ListKinds::ALL, ListKinds::default());
        expected.or_else(|| connection.refresh_lists(ListKinds::ALL, ListKinds::ALL))
    }

    /// Requests all lists, if the server runs, and returns the listing to wait for.
    pub(crate) fn relist(&self) -> Option<PendingRelist> {
        let connection = self.0.snapshot.borrow().listable_connection()?;
        connection.refresh_lists(ListKinds::ALL, ListKinds::ALL)
    }

    /// Returns why a list could not be read when that was last tried.
    pub(crate) fn list_failure(&self, kind: ListKind) -> Option<ListFailure> {
        let snapshot = self.0.snapshot.borrow();
        snapshot.list_failures.iter().find(|failure| failure.kind == kind).cloned()
    }
}
