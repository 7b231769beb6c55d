//! The listings of all servers, with the configured names and without what is withheld, and their renewal.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::{RegisteredServer, Registry};
use crate::access::pins::withheld_error;
use crate::call::Call;
use crate::catalog::public_name::public_name;
use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::model::listing::{DeclaredToolFacts, ListFailure, ListPages, Listing};
use crate::model::pin_status::{PinnedKind, ToolPinStatus};
use crate::protocol::list_kind::{ListKind, ListKinds};
use crate::spec::{Pinning, ServerId, ServerSpec, Sharing};
use crate::supervisor::Supervisor;
use crate::upstream::Connection;
use crate::upstream::relist::PendingRelist;

impl RegisteredServer {
    /// Requests those of the lists that are out of date from every running instance, and returns the listings that a caller
    /// waits for: not those of the instances of others.
    pub(crate) fn refresh(&self, caller: &Caller, kinds: ListKinds, now: Instant) -> Vec<PendingRelist> {
        match self {
            // The connection for the other era may list something else, and only one of them is shown.
            Self::Shared(server) => server.for_listing().refresh(kinds, now).into_iter().collect(),
            Self::PerKey { instances, .. } => instances.refresh(caller, kinds, now),
            Self::Disabled(_) => Vec::new(),
        }
    }

    /// Requests all lists from every running instance, and returns the listings to wait for.
    pub(crate) fn relist(&self) -> Vec<PendingRelist> {
        match self {
            Self::Shared(server) => server.for_listing().relist().into_iter().collect(),
            _ => self.supervisors().iter().filter_map(Supervisor::relist).collect(),
        }
    }

    /// Returns whether the server must be started to find out what it lists: it was never listed, or could not tell its
    /// tools when it last ran.
    pub(crate) fn needs_discovery(&self, now: Instant) -> bool {
        let is_unlisted = || match self {
            Self::Shared(server) => server.is_unlisted(now),
            Self::PerKey { instances, .. } => instances.is_unlisted(now),
            Self::Disabled(_) => false,
        };
        self.listing().is_none() || is_unlisted()
    }

    /// Returns whether the server can be asked for a list on behalf of a call without starting a process.
    pub(crate) async fn is_listable(&self, call: &Call) -> bool {
        match self {
            Self::Shared(server) => server.is_listable(call),
            Self::PerKey { instances, .. } => instances.is_listable(call).await,
            Self::Disabled(_) => false,
        }
    }

    /// Returns whether a client of this server alone is to be answered with what the server says now: it runs and its last known
    /// list may be another one, or it was never listed.
    pub(crate) fn is_list_uncertain(&self, kind: ListKind, call: &Call, now: Instant) -> bool {
        match self {
            Self::Shared(server) => {
                let is_uncertain = |instance: Supervisor| instance.is_list_uncertain(kind, now);
                server.listing().is_none() || server.instance_of(call).is_some_and(is_uncertain)
            }
            Self::PerKey { .. } | Self::Disabled(_) => false,
        }
    }

    /// Records a list that a client has read on a connection.
    pub(crate) async fn record_list(&self, connection: &Arc<Connection>, kind: ListKind, pages: &ListPages) {
        for supervisor in self.supervisors() {
            supervisor.record_list(connection, kind, pages.clone()).await;
        }
    }

    /// Returns why a list could not be read when that was last tried.
    pub(crate) fn list_failure(&self, kind: ListKind) -> Option<ListFailure> {
        let current = self.supervisors().iter().find_map(|supervisor| supervisor.list_failure(kind));
        current.or_else(|| self.listing()?.unknown_list(kind).map(|failure| ListFailure::clone(failure)))
    }
}

impl Registry {
    /// Returns the number of tools in all known listings.
    pub(crate) fn count_tools(&self) -> usize {
        let listings = self.enabled().into_iter().filter_map(|entry| entry.listing());
        listings.map(|listing| listing.tools.len()).sum()
    }

    /// Returns the visible listing of every enabled server, `None` if it is not known yet.
    pub(crate) fn listings(&self) -> BTreeMap<ServerId, Option<Arc<Listing>>> {
        let visible = |entry: &RegisteredServer| {
            entry.listing().map(|listing| self.visible_listing(entry.spec(), listing))
        };
        self.enabled().iter().map(|entry| (entry.spec().id.clone(), visible(entry))).collect()
    }

    /// Returns the visible listings with those of the own instances of a call's client in place of the servers'; `None` if
    /// no own instance lists something else.
    pub(crate) fn listings_for_client(
        &self,
        call: &Call,
    ) -> Option<BTreeMap<ServerId, Option<Arc<Listing>>>> {
        let mut own_listings = Vec::new();
        for entry in self.per_key() {
            let own = match &entry {
                RegisteredServer::Shared(server) => server.listing_for(call),
                RegisteredServer::PerKey { spec, instances } if spec.sharing == Sharing::PerClient => {
                    let key = call.try_instance_key(spec.sharing);
                    key.and_then(|key| instances.listing_of(&instances.key_in_era(&key, call.client.era)))
                }
                _ => None,
            };
            if let Some(own) = own.filter(|own| entry.listing().as_ref() != Some(own)) {
                let spec = entry.spec();
                own_listings.push((spec.id.clone(), self.visible_listing(spec, own)));
            }
        }
        if own_listings.is_empty() {
            return None;
        }
        let mut listings = self.listings();
        listings.extend(own_listings.into_iter().map(|(server, own)| (server, Some(own))));
        Some(listings)
    }

    /// Returns the servers that were seen to send requests to clients, and were never listed to one with the capabilities of
    /// the client of a call.
    pub(crate) fn unlisted_for_client(&self, call: &Call) -> Vec<ServerId> {
        let servers = self.servers();
        let unlisted = servers.iter().filter(|(_, entry)| match entry {
            RegisteredServer::Shared(server) => server.is_unlisted_for(call),
            _ => false,
        });
        unlisted.map(|(server, _)| server.clone()).collect()
    }

    /// Returns whether clients are shown different listings of a server because of their capabilities.
    pub(crate) fn has_listings_of_clients(&self) -> bool {
        let is_split = |entry: &RegisteredServer| match entry {
            RegisteredServer::Shared(server) => server.splits_clients(),
            _ => false,
        };
        self.servers().values().any(is_split)
    }

    /// Adds the configured tool names and pin states to a listing, and removes what is withheld.
    pub(crate) fn visible_listing(&self, spec: &ServerSpec, listing: Arc<Listing>) -> Arc<Listing> {
        let pins = self.services.check_pins(spec, &listing, spec.sharing.is_shared());
        let pin_statuses = pins.as_ref().map(|pins| pins.unapproved_items()).unwrap_or_default();
        if pin_statuses.is_empty() && spec.tools.rename.is_empty() {
            return listing;
        }
        let mut visible = Listing::clone(&listing);
        if let Some(pins) = pins.filter(|_| spec.pin == Pinning::Strict) {
            ListKind::ALL.into_iter().for_each(|list| {
                visible.retain(list, |item| pins.check_item(list, item).is_none());
            });
            visible.instructions.take_if(|_| pins.has_unapproved_instructions(&listing));
        }
        let public_names = spec.tools.rename.clone();
        let tools = pin_statuses.into_iter().filter(|found| found.kind == PinnedKind::Tool);
        let pin_statuses = tools.map(|found| (found.tool, found.status)).collect();
        visible.tool_facts = Arc::new(DeclaredToolFacts { public_names, pin_statuses });
        Arc::new(visible)
    }

    /// Returns the items of a server that are not what was approved.
    pub(crate) fn unapproved_items(&self, spec: &ServerSpec) -> Vec<ToolPinStatus> {
        self.services.pins.for_server(spec).map(|pins| pins.unapproved_items()).unwrap_or_default()
    }

    /// Returns an error if `name` is the public or bare name of a withheld tool that the caller may see.
    pub(crate) fn withheld_error(
        &self,
        name: &str,
        is_visible: impl Fn(&ServerId, &str) -> bool,
    ) -> Option<Error> {
        let servers = self.enabled();
        let strict = servers.iter().map(RegisteredServer::spec).filter(|spec| spec.pin == Pinning::Strict);
        let items =
            strict.flat_map(|spec| self.unapproved_items(spec).into_iter().map(move |item| (spec, item)));
        let mut tools = items.filter(|(_, item)| item.kind == PinnedKind::Tool);
        tools.find_map(|(spec, ToolPinStatus { tool, status, .. })| {
            let renamed = spec.tools.rename.get(&*tool).map_or(&*tool, String::as_str);
            let is_match = name == renamed || name == public_name(&spec.id, renamed);
            (is_match && is_visible(&spec.id, &tool)).then(|| withheld_error(&spec.id, &tool, status))
        })
    }
}
