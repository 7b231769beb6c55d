//! Lists for clients of either era, and the tools of every server, one by one, with the errors of those that cannot be
//! listed.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Crib;
use crate::call::Call;
use crate::catalog::{Catalog, Tool};
use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::protocol::list_kind::{ListKind, ListKinds};
use crate::protocol::versions::Era;
use crate::registry::RegisteredServer;
use crate::spec::{FirstListingWait, ServerId};

/// The longest wait for servers that are listed to a client with other capabilities for the first time.
const MAX_CLIENT_LIST_WAIT: Duration = Duration::from_secs(4);

/// The tools of one server, or the reason why they cannot be listed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Discovery {
    /// The server.
    pub server: ServerId,
    /// Its tools, or the error.
    pub tools: Result<Vec<Tool>, Error>,
    /// Whether the server is still being started for the first time. Its tools will be in the catalog once it is up.
    pub is_pending: bool,
    /// The reason why its tools could not be read when that was last tried. If they were read before, `tools` has those.
    pub listing_error: Option<Error>,
}

impl Crib {
    /// Returns whether clients may be listed different items of a server because of their capabilities.
    pub fn has_lists_of_clients(&self) -> bool {
        self.router().registry.has_listings_of_clients()
    }

    /// Lists servers to the client of a call if what they list may depend on its capabilities and is not known for them: servers
    /// that were seen to send requests to clients. Waits up to four seconds for it. `only` restricts that to one server.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn discover_for_client(&self, call: &Call, only: Option<&ServerId>) {
        let mut starts = JoinSet::new();
        let is_wanted = |server: &ServerId| only.is_none_or(|only| only == server);
        for server in self.router().registry.unlisted_for_client(call) {
            if is_wanted(&server) && self.can_see(&call.caller, &server) {
                let crib = self.clone();
                let call = call.clone();
                starts.spawn(async move { crib.router().registry.lease(&server, &call).await.map(drop) });
            }
        }
        // A server that cannot be started shows what other clients are listed.
        let _ = timeout(MAX_CLIENT_LIST_WAIT, async { while starts.join_next().await.is_some() {} }).await;
        starts.detach_all();
    }

    /// Returns what is listed to the client of a call, if own instances of that client list something else than their servers:
    /// a server may list more for a client with extensions or other capabilities. Starts nothing.
    pub fn own_catalog(&self, call: &Call) -> Option<Arc<Catalog>> {
        self.router().own_catalog(call).map(|visible| visible.listed)
    }

    /// Like [`Crib::list_for`], for a client of an era, which waits this long. Servers that are started for the list and speak
    /// both eras are started in that one; without a client, it is a session.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn list_for_era(&self, caller: &Caller, era: Era, wait: FirstListingWait) -> Arc<Catalog> {
        self.router().list(caller, ListKinds::ALL, era, wait).await
    }

    /// Like [`Crib::list_server_for`], for a client of an era. A server that is started for the list and speaks both eras is
    /// started in that one; without a client, it is a session.
    ///
    /// # Errors
    /// As [`Crib::list_server_for`].
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn list_server_for_era(
        &self,
        server: &ServerId,
        caller: &Caller,
        era: Era,
    ) -> Result<Arc<Catalog>, Error> {
        self.list_on_server(server, caller, ListKinds::ALL, era, Duration::MAX).await
    }

    /// Lists the tools of every server for the local caller. Servers without a known listing are started, a few at a time,
    /// and waited for until each is listed or its first start has failed; one that fails is returned with its error.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn discover(&self) -> Vec<Discovery> {
        self.discover_for(&Caller::local()).await
    }

    /// Like [`Crib::discover`], for any caller.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn discover_for(&self, caller: &Caller) -> Vec<Discovery> {
        let servers = self.visible_servers(caller);
        self.router().discover(caller, Era::Session, &servers).await;
        self.discoveries(caller, &servers)
    }

    /// Like [`Crib::discover_for`], but waits only this long. Servers that are still starting are returned as pending.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn discover_within_for(&self, caller: &Caller, wait: FirstListingWait) -> Vec<Discovery> {
        let servers = self.visible_servers(caller);
        self.router().discover_within(caller, Era::Session, &servers, wait).await;
        self.discoveries(caller, &servers)
    }

    /// Like [`Crib::discover_within_for`], for one server; with `None`, waits as [`Crib::discover_for`] does. Returns `None` if
    /// there is no such server that the caller may see.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn discover_server_for(
        &self,
        server: &ServerId,
        caller: &Caller,
        wait: Option<FirstListingWait>,
    ) -> Option<Discovery> {
        let mut servers = self.visible_servers(caller);
        servers.retain(|entry| entry.spec().id == *server);
        match wait {
            Some(wait) => self.router().discover_within(caller, Era::Session, &servers, wait).await,
            None => self.router().discover(caller, Era::Session, &servers).await,
        }
        self.discoveries(caller, &servers).pop()
    }

    /// Asks every running server that a caller may see for its lists, and waits until each has answered or its start timeout
    /// has passed. Returns the servers that do not run; they are not started.
    ///
    /// # Cancel safety
    /// Cancel safe. Lists that were requested are still read.
    pub async fn refresh_for(&self, caller: &Caller) -> Vec<ServerId> {
        let servers = self.visible_servers(caller);
        self.router().relist(&servers).await
    }

    /// Lets a remote server be asked for the card that it publishes at its URL followed by `/server-card`, when it is started next. No
    /// server is asked for it otherwise.
    ///
    /// # Errors
    /// Fails if the server is unknown.
    pub fn request_card(&self, server: &ServerId) -> Result<(), Error> {
        self.registered(server)?.request_card();
        Ok(())
    }

    /// Starts a server unless it runs, and waits until it is up. Unlike a call, this does not wait for a restart: it fails with
    /// the first failed start.
    ///
    /// # Errors
    /// Fails if the server is unknown, disabled or does not start.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn start(&self, server: &ServerId) -> Result<(), Error> {
        self.registered(server)?.start(&Caller::local(), Era::Session).await
    }

    /// Like [`Crib::find_for`], but does not wait for restarts: if the name points at a server that was never listed, fails with
    /// the first failed start.
    ///
    /// # Errors
    /// As [`Crib::find_for`].
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn find_at_first_failure(&self, caller: &Caller, selector: &Selector) -> Result<Target, Error> {
        self.router().find_at_first_failure(caller, selector).await
    }

    fn visible_servers(&self, caller: &Caller) -> Vec<RegisteredServer> {
        let mut servers = self.router().registry.enabled();
        servers.retain(|entry| self.can_see(caller, &entry.spec().id));
        servers
    }

    fn discoveries(&self, caller: &Caller, servers: &[RegisteredServer]) -> Vec<Discovery> {
        let catalog = self.catalog_for(caller);
        let discovery = |entry: &RegisteredServer| {
            let server = entry.spec().id.clone();
            if catalog.is_undiscovered(&server) {
                let (error, is_pending) = self.router().discovery_error(entry, caller);
                return Discovery { server, tools: Err(error), is_pending, listing_error: None };
            }
            let failure = entry.list_failure(ListKind::Tools);
            let listing_error = failure.map(|failure| failure.to_error(&server));
            let tools = match (&listing_error, catalog.list_error(ListKind::Tools, &server)) {
                (Some(error), Some(_)) => Err(error.clone()),
                _ => Ok(catalog.tools().iter().filter(|tool| tool.server == server).cloned().collect()),
            };
            Discovery { server, tools, is_pending: false, listing_error }
        };
        servers.iter().map(discovery).collect()
    }
}
