//! Instances of single clients of a shared server that sends requests to its clients.
//!
//! On a connection that several clients use, nothing says which of them such a request is for. So a new client of that server
//! gets an instance of its own while another one uses the shared instance.

use std::sync::{Arc, Mutex};

use super::instances::Instances;
use super::shared_server::SharedServer;
use crate::call::Call;
use crate::model::listing::Listing;
use crate::protocol::versions::Era;
use crate::supervisor::Supervisor;
use crate::util::locks::IgnorePoison as _;

/// The instances of single clients, and the clients of the shared instance. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct OwnInstances {
    pub(super) instances: Arc<Instances>,
    /// The connected clients that use the shared instance since the server is known to send them requests.
    joined: Arc<Mutex<Vec<u64>>>,
}

impl OwnInstances {
    pub(super) fn new(instances: Instances) -> Self {
        Self { instances: Arc::new(instances), joined: Arc::default() }
    }
}

impl SharedServer {
    /// Returns whether new clients get instances of their own.
    pub(super) fn splits_clients(&self) -> bool {
        self.own.is_some() && self.asks().is_some()
    }

    /// Returns the instances of single clients if this client uses one of them.
    pub(super) fn own_for(&self, call: &Call) -> Option<&OwnInstances> {
        let own =
            self.own.as_ref().filter(|_| self.splits_clients() && self.opens_session(call.client.era))?;
        let has_own = || own.instances.contains(&call.client_instance_key());
        (has_own() || !self.joins(own, call, true)).then_some(own)
    }

    /// Returns whether clients of an era use the server in a session, as far as that is known. Only there it sends requests.
    pub(super) fn opens_session(&self, era: Era) -> bool {
        let Some(eras) = self.known_eras() else { return true };
        match eras.only() {
            Some(only) => only == Era::Session,
            None => era == Era::Session,
        }
    }

    /// Returns whether the client of a call uses the shared instance: it did so before, or no connected client does and the
    /// server is told this client's capabilities. If `joins` is true, it does so from now on.
    fn joins(&self, own: &OwnInstances, call: &Call, joins: bool) -> bool {
        let client = call.client.key;
        let mut joined = own.joined.lock().ignore_poison();
        if joined.contains(&client) {
            return true;
        }
        let others: Vec<u64> = self.shared_supervisors().flat_map(Supervisor::seen_clients).collect();
        let is_free = || others.is_empty() && joined.is_empty();
        let is_told = || self.for_era(call.client.era).knows(&call.announced_capabilities());
        let may_join = others.contains(&client) || is_free() && is_told();
        if may_join && joins {
            joined.push(client);
        }
        may_join
    }

    /// Returns whether the instance that a call goes to runs and can be asked for its lists.
    pub(super) fn is_listable(&self, call: &Call) -> bool {
        let can_list = |instance: &Supervisor| {
            // To connect to a shared remote server starts no process.
            let connects =
                || instance.spec().is_remote() && self.shared_supervisors().any(|one| one.is_same(instance));
            instance.is_listable() || connects()
        };
        self.instance_of(call).is_some_and(|instance| can_list(&instance))
    }

    /// Returns the instance that a call goes to; `None` if the client gets its own with that call.
    pub(super) fn instance_of(&self, call: &Call) -> Option<Supervisor> {
        let own = self.own.as_ref().filter(|_| self.splits_clients() && self.opens_session(call.client.era));
        if let Some(own) = own {
            let instance = own.instances.supervisor(&call.client_instance_key());
            if instance.is_some() || !self.joins(own, call, false) {
                return instance;
            }
        }
        Some(self.for_era(call.client.era).clone())
    }

    /// Returns what the client of a call is shown, if that may differ from the listing of the server: what its own instance
    /// lists, or what was last listed to a client with the same capabilities.
    pub(super) fn listing_for(&self, call: &Call) -> Option<Arc<Listing>> {
        let own =
            self.own.as_ref().filter(|_| self.splits_clients() && self.opens_session(call.client.era))?;
        let supervisor = own.instances.supervisor(&call.client_instance_key());
        let is_up = |supervisor: &Supervisor| supervisor.is_listable();
        let listing = supervisor.filter(is_up).and_then(|supervisor| supervisor.listing());
        listing.or_else(|| self.records.listing_store.listing_for(&call.announced_capabilities()))
    }

    /// Returns whether the client of a call is shown what other clients are listed, because none with its capabilities was.
    pub(super) fn is_unlisted_for(&self, call: &Call) -> bool {
        self.splits_clients()
            && self.opens_session(call.client.era)
            && !self.records.listing_store.is_listed_for(&call.announced_capabilities())
    }

    /// Drains the instance of a client that has disconnected. The shared instance is free for another one.
    pub(super) fn client_disconnected(&self, client: u64) {
        let Some(own) = &self.own else { return };
        own.joined.lock().ignore_poison().retain(|joined| *joined != client);
        self.shared_supervisors().for_each(|supervisor| supervisor.forget_client(client));
        own.instances.drain_matching(|key| key.belongs_to(client));
    }
}
