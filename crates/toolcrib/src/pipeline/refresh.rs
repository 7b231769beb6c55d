//! Lists of running servers that are out of date: asked for again, and waited for.

use tokio::time::{Instant, timeout, timeout_at};

use super::router::CallRouter;
use crate::catalog::Catalog;
use crate::model::caller::Caller;
use crate::protocol::list_kind::{ListKind, ListKinds};
use crate::registry::RegisteredServer;
use crate::spec::ServerId;
use crate::upstream::relist::PendingRelist;

/// A server with lists that are being fetched again.
struct OutdatedServer<'a> {
    entry: &'a RegisteredServer,
    relists: Vec<PendingRelist>,
}

impl CallRouter {
    /// Returns the servers that have to be started again, because they could not tell their tools.
    pub(super) fn servers_without_tools(&self, catalog: &Catalog) -> Vec<RegisteredServer> {
        let now = Instant::now();
        let unlisted =
            catalog.servers().filter(|server| catalog.list_error(ListKind::Tools, server).is_some());
        let entries = unlisted.filter_map(|server| self.registry.get(server)?.ok());
        entries.filter(|entry| entry.needs_discovery(now)).collect()
    }

    /// Asks running servers for those of their lists that are out of date, and waits briefly until the catalog has them. A
    /// caller does not wait for the instances of others.
    pub(crate) async fn refresh(&self, caller: &Caller, servers: &[RegisteredServer], kinds: ListKinds) {
        let now = Instant::now();
        let wait = self.discoverer.listing_wait();
        let is_awaited = |pending: &PendingRelist| now.saturating_duration_since(pending.since) < wait;
        let pending: Vec<OutdatedServer<'_>> = servers
            .iter()
            .map(|entry| OutdatedServer { entry, relists: entry.refresh(caller, kinds, now) })
            .filter(|outdated| outdated.relists.iter().any(is_awaited))
            .collect();
        // A listing that has just finished may not be in the catalog yet.
        if !pending.is_empty() || !self.services.listing_changes.is_applied() {
            // The rest is announced when it arrives.
            let _ = timeout_at(now + wait, self.wait_for_relists(&pending)).await;
        }
    }

    /// Asks running servers for all their lists, and waits until the catalog has them, as long as the slowest of the servers
    /// may take to start. Returns the servers that do not run.
    pub(crate) async fn relist(&self, servers: &[RegisteredServer]) -> Vec<ServerId> {
        let asked = servers.iter().map(|entry| OutdatedServer { entry, relists: entry.relist() });
        let (running, stopped): (Vec<OutdatedServer<'_>>, Vec<OutdatedServer<'_>>) =
            asked.partition(|server| !server.relists.is_empty());
        let limits = running.iter().map(|server| server.entry.spec().lifecycle.start_timeout);
        if let Some(limit) = limits.max() {
            let _ = timeout(limit, self.wait_for_relists(&running)).await;
        }
        stopped.iter().map(|server| server.entry.spec().id.clone()).collect()
    }

    async fn wait_for_relists(&self, servers: &[OutdatedServer<'_>]) {
        for server in servers {
            for relist in &server.relists {
                relist.wait().await;
            }
        }
        self.services.listing_changes.wait_until_applied().await;
    }
}
