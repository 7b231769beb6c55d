//! Lists of servers that were never listed: requested, waited for, and explained if they are missing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::CallRouter;
use crate::catalog::Catalog;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::model::listing::Listing;
use crate::pipeline::discovery::DiscoveryState;
use crate::protocol::list_kind::ListKinds;
use crate::protocol::versions::Era;
use crate::registry::RegisteredServer;
use crate::spec::{FirstListingWait, ServerId, ServerSpec};
use crate::util::tasks::SpawnBoxed as _;

/// The time that a supervisor has to report that a start took too long.
const REPORT_GRACE: Duration = Duration::from_secs(1);
/// The time until a listing is in the catalog. It covers a server that is replaced at this moment.
const CATALOG_WAIT: Duration = Duration::from_secs(10);

impl CallRouter {
    /// Returns the servers of a catalog that were never listed.
    pub(super) fn undiscovered_servers(&self, catalog: &Catalog) -> Vec<RegisteredServer> {
        catalog.undiscovered().filter_map(|server| self.registry.get(server)?.ok()).collect()
    }

    /// Returns what is listed to a caller, with current lists of these kinds. Servers that were never listed are discovered
    /// in the background; the list waits for them as `wait` says, and for running servers with outdated lists only briefly.
    pub(crate) async fn list(
        &self,
        caller: &Caller,
        kinds: ListKinds,
        era: Era,
        wait: FirstListingWait,
    ) -> Arc<Catalog> {
        let catalog = self.callable_catalog(caller);
        let mut servers = self.undiscovered_servers(&catalog);
        servers.extend(self.servers_without_tools(&catalog));
        let entries: Vec<RegisteredServer> =
            catalog.servers().filter_map(|server| self.registry.get(server)?.ok()).collect();
        tokio::join!(
            async {
                if !servers.is_empty() {
                    self.discover_within(caller, era, &servers, wait).await;
                }
            },
            self.refresh(caller, &entries, kinds),
        );
        self.listed_catalog(caller)
    }

    /// Asks for the listings of servers that a caller may see, and waits for the first attempt of each.
    pub(crate) async fn discover_within(
        &self,
        caller: &Caller,
        era: Era,
        servers: &[RegisteredServer],
        wait: FirstListingWait,
    ) {
        self.discoverer.request(caller, era, servers);
        self.discoverer.wait_for_first_attempts(servers, self.catalog.clone(), wait).await;
        // What was listed at the last moment counts; the rest is announced when it arrives.
        let listed = self.services.listing_changes.wait_until_applied();
        let _ = timeout(CATALOG_WAIT, listed).await;
    }

    /// Asks for the listings of servers, and waits until each has been listed or its first start has failed.
    pub(crate) async fn discover(&self, caller: &Caller, era: Era, servers: &[RegisteredServer]) {
        self.discoverer.request(caller, era, servers);
        self.wait_for_first_starts(servers).await;
    }

    async fn wait_for_first_starts(&self, servers: &[RegisteredServer]) {
        let time_left = |_: &ServerId, state: &DiscoveryState| match state {
            // The supervisor ends a start that takes too long.
            DiscoveryState::Pending => Duration::MAX,
            DiscoveryState::Restarting(_) | DiscoveryState::Failed(_) => Duration::ZERO,
        };
        self.discoverer.wait_while(servers, self.catalog.clone(), time_left).await;
    }

    /// Returns the error of a server that is not in the catalog of a caller, and whether it may still be listed.
    pub(crate) fn discovery_error(&self, entry: &RegisteredServer, caller: &Caller) -> (Error, bool) {
        match self.discoverer.state(entry) {
            DiscoveryState::Restarting(error) | DiscoveryState::Failed(error) => {
                (with_login_of(error, entry.spec(), caller), false)
            }
            DiscoveryState::Pending => (still_starting_error(&entry.spec().id), true),
        }
    }

    /// Returns the error of a server that is not up yet: what went wrong so far, or that it is still starting.
    pub(crate) fn not_up_error(&self, entry: &RegisteredServer, caller: &Caller) -> Error {
        match entry.start_failure() {
            Some(failure) => with_login_of(failure, entry.spec(), caller),
            None if entry.has_been_ready() => still_listing_error(&entry.spec().id),
            None => still_starting_error(&entry.spec().id),
        }
    }

    /// Lists one server that was never listed, or its replacement if the roster changes in the meantime. Waits as long as
    /// its start may take.
    pub(crate) async fn discover_server(
        &self,
        server: &ServerId,
        caller: &Caller,
        era: Era,
    ) -> Result<(), Error> {
        loop {
            let Some(Ok(entry)) = self.registry.get(server) else { return Ok(()) };
            if entry.listing().is_none() {
                match self.start_and_list(&entry, caller, era).await {
                    Ok(()) => {}
                    Err(failure)
                        if failure.kind() == ErrorKind::ShuttingDown && self.registry.is_replaced(&entry) =>
                    {
                        continue;
                    }
                    Err(failure) => return Err(failure),
                }
            }
            self.wait_until_listed(server).await;
            if !self.registry.is_replaced(&entry) || !self.catalog().is_undiscovered(server) {
                return Ok(());
            }
        }
    }

    /// Starts a server in a task of its own, which continues if the caller does not wait.
    async fn start_and_list(&self, entry: &RegisteredServer, caller: &Caller, era: Era) -> Result<(), Error> {
        let server = entry.clone();
        let caller = caller.clone();
        let start = self.services.tasks.spawn_boxed(async move { server.discover(&caller, era).await });
        let limit = entry.spec().lifecycle.start_timeout + REPORT_GRACE;
        match timeout(limit, start).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(panic)) => Err(Error::new(ErrorKind::CouldNotStart, panic.to_string())),
            Err(_) if entry.has_been_ready() => Err(still_listing_error(&entry.spec().id)),
            Err(_) => Err(still_starting_error(&entry.spec().id)),
        }
    }

    /// Starts a server that was never listed, and returns what it says about itself. `None` if its lists are known, or if an
    /// instance for its clients has to be started instead.
    pub(crate) async fn introduce(
        &self,
        entry: &RegisteredServer,
        caller: &Caller,
        era: Era,
        wait: Duration,
    ) -> Option<Result<Listing, Error>> {
        let RegisteredServer::Shared(server) = entry else { return None };
        if entry.listing().is_some() {
            return None;
        }
        match self.within_first_wait(entry, caller, era, wait, server.introduce(era)).await {
            Err(failure) if failure.kind() == ErrorKind::ShuttingDown && self.registry.is_replaced(entry) => {
                None
            }
            introduced => Some(introduced),
        }
    }

    /// Waits for a server that is being started for a client of it alone. If that takes longer than the client waits, the server
    /// is listed in the background, and the error says why it is not up.
    pub(crate) async fn within_first_wait<T>(
        &self,
        entry: &RegisteredServer,
        caller: &Caller,
        era: Era,
        wait: Duration,
        started: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = wait.min(entry.spec().lifecycle.start_timeout + REPORT_GRACE);
        match timeout(limit, started).await {
            Ok(started) => started,
            Err(_) => {
                self.discoverer.request(caller, era, std::slice::from_ref(entry));
                Err(self.not_up_error(entry, caller))
            }
        }
    }

    /// Waits until a started server is in the catalog.
    pub(super) async fn wait_until_listed(&self, server: &ServerId) {
        self.services.listing_changes.apply_now();
        let mut catalog = self.catalog.clone();
        let listed = catalog.wait_for(|catalog| !catalog.is_undiscovered(server));
        let _ = timeout(CATALOG_WAIT, listed).await;
    }
}

/// Returns the error of a server for which another caller may have asked, with the next step of this caller.
fn with_login_of(error: Error, spec: &ServerSpec, caller: &Caller) -> Error {
    let names_login = matches!(error.own_hint(), Some(Hint::Login { .. } | Hint::LoginAs { .. }));
    match names_login && spec.has_login_per_caller() {
        true => error.with_hint(Hint::login_for(&spec.id, caller)),
        false => error,
    }
}

fn still_starting_error(server: &ServerId) -> Error {
    let message = format!("server `{server}` is still starting");
    Error::new(ErrorKind::CouldNotStart, message).with_server(server).with_hint("try again in a moment")
}

fn still_listing_error(server: &ServerId) -> Error {
    let message = format!("`{server}` runs, but has not answered `tools/list` yet");
    Error::new(ErrorKind::CouldNotStart, message).with_server(server).with_hint("try again in a moment")
}
