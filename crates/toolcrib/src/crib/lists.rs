//! Lists of what servers offer, fetched again where they are out of date.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Crib, CribBuilder, ListFreshness};
use crate::catalog::{Catalog, ListKind};
use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::protocol::list_kind::ListKinds;
use crate::protocol::versions::Era;
use crate::spec::{FirstListingSettings, FirstListingWait, ServerId};

impl Crib {
    /// Returns what the local caller may list. Servers without a known listing are started in the background, a few at a
    /// time, and are waited for as [`FirstListingSettings`] say: 8 s from their start by default, or until they fail. The
    /// others are left out of this list; each is in the catalog as soon as it is up, and [`Crib::watch_catalog`] announces it.
    /// A server that fails to start is tried again with backoff until it is ejected, and no later list waits for it.
    ///
    /// Lists of running servers that are out of date are fetched again, and are waited for as long as
    /// [`CribBuilder::listing_wait`](crate::CribBuilder::listing_wait) allows: lists whose TTL has expired, that the server
    /// announced as changed, or that are older than [`Lifecycle::list_ttl`](crate::Lifecycle).
    ///
    /// # Cancel safety
    /// Cancel safe. Servers that are being started continue to start.
    pub async fn list(&self) -> Arc<Catalog> {
        self.list_for(&Caller::local()).await
    }

    /// Like [`Crib::list`], for any caller.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn list_for(&self, caller: &Caller) -> Arc<Catalog> {
        let wait = self.first_listing().in_one_request();
        self.list_for_era(caller, Era::Session, wait).await
    }

    /// Like [`Crib::list_for_era`], but fetches only lists of this kind again that are out of date.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn list_kind_for(
        &self,
        kind: ListKind,
        caller: &Caller,
        era: Era,
        wait: FirstListingWait,
    ) -> Arc<Catalog> {
        self.router().list(caller, kind.into(), era, wait).await
    }

    /// Starts to list the servers that were never listed, without being asked for a list, as a gateway does when it starts.
    /// Servers that need a caller for that, and those that the rules deny to everyone, are left out. Does not wait: each is in
    /// the catalog as soon as it is up. Does nothing if clients do not wait either.
    pub fn begin_discovery(&self) {
        if !self.first_listing().wait.is_zero() {
            self.router().discoverer.begin_unasked(&self.router().registry.enabled());
        }
    }

    /// Returns how long clients wait for servers that were never listed.
    pub fn first_listing(&self) -> Arc<FirstListingSettings> {
        self.router().discoverer.first_listing()
    }

    /// Replaces how long clients wait for servers that were never listed.
    pub fn set_first_listing(&self, settings: FirstListingSettings) {
        self.router().discoverer.set_first_listing(settings);
    }

    /// Returns the time that [`Crib::list`] waits for lists that are out of date.
    pub fn listing_wait(&self) -> Duration {
        self.router().discoverer.listing_wait()
    }

    /// Replaces the time of [`Crib::listing_wait`].
    pub fn set_listing_wait(&self, wait: Duration) {
        self.router().discoverer.set_listing_wait(wait);
    }

    /// Like [`Crib::list`], for one server, which is waited for as long as its start may take.
    ///
    /// # Errors
    /// Fails if the server is unknown or cannot be listed.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn list_server(&self, server: &ServerId) -> Result<Arc<Catalog>, Error> {
        self.list_server_for(server, &Caller::local()).await
    }

    /// Like [`Crib::list_server`], for any caller.
    ///
    /// # Errors
    /// Fails if the server is not visible to the caller or cannot be listed.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn list_server_for(&self, server: &ServerId, caller: &Caller) -> Result<Arc<Catalog>, Error> {
        self.list_server_for_era(server, caller, Era::Session).await
    }

    /// Like [`Crib::list_server_for_era`], but waits at most `wait` for a server that was never listed, and fetches only a list of
    /// this kind again that is out of date.
    ///
    /// # Errors
    /// As [`Crib::list_server_for`].
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn list_server_kind_for(
        &self,
        kind: ListKind,
        server: &ServerId,
        caller: &Caller,
        era: Era,
        wait: Duration,
    ) -> Result<Arc<Catalog>, Error> {
        self.list_on_server(server, caller, kind.into(), era, wait).await
    }

    /// Like [`Crib::list_server_kind_for`], but reads no lists: a server that was never listed is only started, and the catalog has
    /// what it says about itself.
    ///
    /// # Errors
    /// As [`Crib::list_server_for`].
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn load_server_for(
        &self,
        server: &ServerId,
        caller: &Caller,
        era: Era,
        wait: Duration,
    ) -> Result<Arc<Catalog>, Error> {
        if self.can_see(caller, server) {
            let entry = self.registered(server)?;
            if let Some(introduction) = self.router().introduce(&entry, caller, era, wait).await {
                return introduction.map(|listing| {
                    Arc::new(Catalog::build(0, &BTreeMap::from([(server.clone(), Some(Arc::new(listing)))])))
                });
            }
        }
        self.list_on_server(server, caller, ListKinds::default(), era, wait).await
    }

    pub(super) async fn list_on_server(
        &self,
        server: &ServerId,
        caller: &Caller,
        kinds: ListKinds,
        era: Era,
        wait: Duration,
    ) -> Result<Arc<Catalog>, Error> {
        if !self.can_see(caller, server) {
            return Err(self.router().hidden_server_error(caller, server));
        }
        let entry = [self.registered(server)?];
        match timeout(wait, self.router().discover_server(server, caller, era)).await {
            Ok(discovered) => discovered?,
            Err(_) => return Err(self.router().not_up_error(&entry[0], caller)),
        }
        if !kinds.is_empty() {
            // Starts a server again that could not tell its tools, without waiting for it.
            self.router().discoverer.request(caller, era, &entry);
            self.router().refresh(caller, &entry, kinds).await;
        }
        Ok(self.catalog_for(caller))
    }

    /// Returns how long a client may cache a list that was just returned to a caller, of all servers or of one.
    pub fn freshness(&self, kind: ListKind, server: Option<&ServerId>, caller: &Caller) -> ListFreshness {
        let mut entries = self.router().registry.enabled();
        entries.retain(|entry| match server {
            Some(server) => entry.spec().id == *server,
            None => self.can_see(caller, &entry.spec().id),
        });
        let now = Instant::now();
        let freshness = ListFreshness::combine(entries.iter().map(|entry| entry.list_ttl(kind)), now);
        // With access rules, every caller may get a different list.
        ListFreshness {
            public: freshness.public && self.router().visible_catalogs.policy().is_none(),
            ..freshness
        }
    }
}

impl CribBuilder {
    /// Sets how long lists wait for servers that were never listed. They are started in the background, and each is in the
    /// catalog as soon as it is up.
    #[must_use]
    pub fn first_listing(mut self, settings: FirstListingSettings) -> Self {
        self.first_listing = settings;
        self
    }

    /// Sets how long a list waits for lists of running servers that are out of date. The default is 300 ms.
    #[must_use]
    pub fn listing_wait(mut self, wait: Duration) -> Self {
        self.listing_wait = Some(wait);
        self
    }
}
