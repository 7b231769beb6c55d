//! The servers that exist, and what changes when the roster does.

mod adhoc;
mod instances;
mod leases;
mod listings;
mod own_instances;
mod roster_edit;
mod shared_server;
mod starts;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::time::Instant;

use crate::cache::Invalidation;
use crate::call::client_context::ClientContext;
use crate::model::error::{Error, ErrorKind};
use crate::model::instance_key::InstanceKey;
use crate::model::listing::{ListTtl, Listing};
use crate::model::status::ServerStatus;
use crate::process::stderr::StderrTail;
use crate::protocol::era::capabilities::Client;
use crate::protocol::list_kind::ListKind;
use crate::spec::{Endpoint, Roster, ServerId, ServerSpec};
use crate::supervisor::listing_store::ListingStore;
use crate::supervisor::start_gate::StartGate;
use crate::supervisor::{Supervisor, SupervisorServices};
use crate::util::locks::IgnorePoison as _;
use adhoc::AdhocServers;
use instances::Instances;
pub(crate) use instances::LeaseOrigin;
use roster_edit::RosterEdit;
pub(crate) use roster_edit::{AppliedRoster, failed_starts};
pub use roster_edit::{FailedStart, RosterChanges};
use shared_server::SharedServer;

/// The servers of one crib. Disabled servers are included but have no supervisor.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Not sorted, so that the cost of finding the server of a call does not grow with their number.
    servers: RwLock<HashMap<ServerId, RegisteredServer>>,
    /// Set once, under the lock of `servers`; no server is added after that.
    closed: AtomicBool,
    /// True if any server has argument checks, so that calls without them pay nothing.
    checks_arguments: AtomicBool,
    /// True if any client has `result_tokens`.
    limits_client_results: AtomicBool,
    /// True if any server, tool or client has `result_tokens`, so that calls without them pay nothing.
    limits_results: AtomicBool,
    /// Servers that are not in the roster.
    adhoc: AdhocServers,
    /// The folder of saved listings.
    listings: Option<PathBuf>,
    services: SupervisorServices,
}

/// A server of the roster.
#[derive(Debug, Clone)]
pub(crate) enum RegisteredServer {
    /// One instance for all clients, or one per era.
    Shared(SharedServer),
    /// One instance per key.
    PerKey {
        spec: Arc<ServerSpec>,
        instances: Arc<Instances>,
    },
    Disabled(Arc<ServerSpec>),
}

/// A supervisor and the key of its instance.
#[derive(Debug)]
struct KeyedSupervisor {
    key: InstanceKey,
    supervisor: Supervisor,
}

impl RegisteredServer {
    pub(crate) fn spec(&self) -> &ServerSpec {
        match self {
            Self::Shared(server) => server.spec(),
            Self::PerKey { spec, .. } => spec,
            Self::Disabled(spec) => spec,
        }
    }

    /// Returns whether clients may use different instances.
    pub(crate) fn has_instances_of_clients(&self) -> bool {
        match self {
            Self::Shared(server) => server.splits_clients(),
            Self::PerKey { .. } => true,
            Self::Disabled(_) => false,
        }
    }

    fn is_enabled(&self) -> bool {
        !matches!(self, Self::Disabled(_))
    }

    /// Returns whether no call uses the server.
    fn is_idle(&self) -> bool {
        match self {
            Self::Shared(server) => server.is_idle(),
            Self::PerKey { instances, .. } => instances.supervisors().iter().all(Supervisor::is_idle),
            Self::Disabled(_) => true,
        }
    }

    /// Returns whether both are the same server, possibly with different settings.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(one), Self::Shared(other)) => one.is_same(other),
            (Self::PerKey { instances: one, .. }, Self::PerKey { instances: other, .. }) => {
                Arc::ptr_eq(one, other)
            }
            (Self::Disabled(one), Self::Disabled(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Takes over a changed spec without a restart, and returns the entry with it; `None` if the change needs one.
    fn update(&self, spec: &ServerSpec) -> Option<Self> {
        if self.spec().needs_restart(spec) {
            return None;
        }
        Some(match self {
            Self::Shared(server) => Self::Shared(server.update(spec)),
            Self::PerKey { instances, .. } => {
                let spec = Arc::new(spec.clone());
                instances.update(&spec);
                Self::PerKey { spec, instances: instances.clone() }
            }
            Self::Disabled(_) => Self::Disabled(Arc::new(spec.clone())),
        })
    }

    /// Adds no more instances and returns all existing ones, to be retired.
    fn close(self) -> Vec<KeyedSupervisor> {
        match self {
            Self::Shared(server) => server.into_instances(),
            Self::PerKey { instances, .. } => instances.close(),
            Self::Disabled(_) => Vec::new(),
        }
    }

    /// Returns the last known listing.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        match self {
            Self::Shared(server) => server.listing(),
            Self::PerKey { instances, .. } => instances.listing(),
            Self::Disabled(_) => None,
        }
    }

    /// Returns how long one of the lists is valid. The TTL of one instance does not apply to the others.
    pub(crate) fn list_ttl(&self, kind: ListKind) -> ListTtl {
        match self {
            Self::Shared(server) => server.for_listing().list_ttl(kind),
            Self::PerKey { .. } => ListTtl::Unspecified,
            Self::Disabled(_) => ListTtl::NoList,
        }
    }

    /// Returns the supervisors of all instances.
    fn supervisors(&self) -> Vec<Supervisor> {
        match self {
            Self::Shared(server) => server.supervisors(),
            Self::PerKey { instances, .. } => instances.supervisors(),
            Self::Disabled(_) => Vec::new(),
        }
    }

    /// Returns the gate that decides when the server may start; `None` if it is disabled.
    fn start_gate(&self) -> Option<&Arc<StartGate>> {
        match self {
            Self::Shared(server) => Some(server.main().start_gate()),
            Self::PerKey { instances, .. } => Some(instances.start_gate()),
            Self::Disabled(_) => None,
        }
    }

    /// Returns whether the server has state that a request can be about: it runs, or is remote.
    pub(crate) fn is_up(&self) -> bool {
        let is_up = |supervisor: &Supervisor| {
            !supervisor.is_asleep() || matches!(supervisor.spec().endpoint, Endpoint::Http(_))
        };
        match self {
            Self::Shared(server) => server.supervisors().iter().any(is_up),
            Self::PerKey { instances, .. } => instances.supervisors().iter().any(is_up),
            Self::Disabled(_) => false,
        }
    }

    pub(crate) fn is_ejected(&self) -> bool {
        self.start_gate().is_some_and(|gate| gate.is_ejected())
    }

    /// Returns the end of the current backoff or pause.
    pub(crate) fn retry_at(&self, now: Instant) -> Option<Instant> {
        self.start_gate()?.retry_at(now)
    }

    /// Returns the error of the last start, if the server has not been up since.
    pub(crate) fn start_failure(&self) -> Option<Error> {
        self.start_gate()?.start_failure()
    }

    pub(crate) fn status(&self, now: Instant) -> ServerStatus {
        match self {
            Self::Shared(server) => server.status(now),
            Self::PerKey { instances, .. } => instances.status(now),
            Self::Disabled(spec) => ServerStatus::disabled(spec),
        }
    }

    /// Returns the stderr of all instances.
    pub(crate) fn stderr(&self) -> Option<&StderrTail> {
        match self {
            Self::Shared(server) => Some(server.stderr()),
            Self::PerKey { instances, .. } => Some(instances.stderr()),
            Self::Disabled(_) => None,
        }
    }
}

impl Registry {
    /// Creates a registry without servers. At most `max_adhoc` servers that are not in the roster exist at a time.
    pub(crate) fn new(listings: Option<PathBuf>, max_adhoc: usize, services: SupervisorServices) -> Self {
        Self {
            servers: RwLock::default(),
            closed: AtomicBool::new(false),
            checks_arguments: AtomicBool::new(false),
            limits_client_results: AtomicBool::new(false),
            limits_results: AtomicBool::new(false),
            adhoc: AdhocServers::new(max_adhoc),
            listings,
            services,
        }
    }

    fn servers(&self) -> RwLockReadGuard<'_, HashMap<ServerId, RegisteredServer>> {
        self.servers.read().ignore_poison()
    }

    fn servers_mut(&self) -> RwLockWriteGuard<'_, HashMap<ServerId, RegisteredServer>> {
        self.servers.write().ignore_poison()
    }

    /// Applies a roster: adds new servers and keeps unchanged ones. Changed ones take over their new settings, or are
    /// replaced if their process cannot serve the new spec. Replaced and removed servers finish their calls in the
    /// background.
    pub(crate) fn apply(&self, roster: Roster) -> Result<AppliedRoster, Error> {
        self.edit(|edit| {
            let mut removed: Vec<ServerId> =
                edit.servers.keys().filter(|id| roster.get(id).is_none()).cloned().collect();
            removed.sort();
            removed.into_iter().for_each(|id| edit.remove(id));
            roster.into_servers().for_each(|spec| edit.put(spec));
            Ok(())
        })
    }

    /// Adds one server, and leaves the others as they are. Its name must be free.
    pub(crate) fn add(&self, spec: ServerSpec) -> Result<AppliedRoster, Error> {
        self.edit(|edit| {
            edit.check_name(&spec.id)?;
            edit.put(spec);
            Ok(())
        })
    }

    /// Changes one server or adds it, and leaves the others as they are.
    pub(crate) fn replace(&self, spec: ServerSpec) -> Result<AppliedRoster, Error> {
        self.edit(|edit| {
            if !edit.servers.contains_key(&spec.id) {
                edit.check_name(&spec.id)?;
            }
            edit.put(spec);
            Ok(())
        })
    }

    /// Removes one server, and leaves the others as they are.
    pub(crate) fn remove(&self, server: &ServerId) -> Result<AppliedRoster, Error> {
        self.edit(|edit| {
            if !edit.servers.contains_key(server) {
                return Err(unknown_server(server));
            }
            edit.remove(server.clone());
            Ok(())
        })
    }

    /// Returns the specs of all servers.
    pub(crate) fn roster(&self) -> Roster {
        let mut roster = Roster::default();
        for entry in self.all() {
            // The names of registered servers do not conflict.
            let _ = roster.add(entry.spec().clone());
        }
        roster
    }

    /// Returns the spec of a server, also of one that is disabled.
    pub(crate) fn spec(&self, server: &ServerId) -> Option<ServerSpec> {
        self.servers().get(server).map(|entry| entry.spec().clone())
    }

    /// Changes the servers. Nothing must be changed if `change` fails.
    fn edit(
        &self,
        change: impl FnOnce(&mut RosterEdit<'_>) -> Result<(), Error>,
    ) -> Result<AppliedRoster, Error> {
        let mut servers = self.servers_mut();
        if self.closed.load(Ordering::Acquire) {
            return Err(shut_down_error());
        }
        let old = servers.clone();
        let changes = RosterChanges::default();
        let mut edit = RosterEdit { registry: self, servers: &mut servers, changes, draining: Vec::new() };
        change(&mut edit)?;
        let booting = edit.booting(&old);
        let RosterEdit { changes, draining, .. } = edit;
        self.invalidate_cache(&servers, &changes);
        let checks_arguments = servers.values().any(|entry| entry.spec().tools.check_arguments);
        self.checks_arguments.store(checks_arguments, Ordering::Relaxed);
        self.update_limits_results(&servers);
        let forwards_callers = servers.values().any(|entry| entry.spec().forwards_callers());
        self.services.known_callers.set_wanted(forwards_callers);
        // Dropping an embedder's in-process server may take a while and must not happen under the lock.
        drop(servers);
        drop(old);
        draining.iter().for_each(|supervisor| supervisor.drain_in_background(&self.services));
        Ok(AppliedRoster { changes, booting })
    }

    /// Discards the cached responses of servers that were removed or changed.
    fn invalidate_cache(&self, servers: &HashMap<ServerId, RegisteredServer>, changes: &RosterChanges) {
        let cache = &self.services.cache;
        let can_cache = |entry: &RegisteredServer| entry.is_enabled() && entry.spec().can_cache_results();
        cache.set_caches_tools(servers.values().any(can_cache));
        for server in changes.removed.iter().chain(&changes.changed) {
            cache.invalidate(server, None, Invalidation::All);
        }
    }

    /// Sets whether any client has `result_tokens`.
    pub(crate) fn set_limits_client_results(&self, limits_client_results: bool) {
        let servers = self.servers_mut();
        self.limits_client_results.store(limits_client_results, Ordering::Relaxed);
        self.update_limits_results(&servers);
    }

    fn update_limits_results(&self, servers: &HashMap<ServerId, RegisteredServer>) {
        let limits_results = self.limits_client_results.load(Ordering::Relaxed)
            || servers.values().any(|entry| entry.spec().limits_results());
        self.limits_results.store(limits_results, Ordering::Relaxed);
    }

    /// Returns whether any server, tool or client has `result_tokens`.
    pub(crate) fn limits_results(&self) -> bool {
        self.limits_results.load(Ordering::Relaxed)
    }

    /// Returns the enabled servers that have `result_tokens`, for all of their tools or some, in no order.
    pub(crate) fn limited_servers(&self) -> Vec<ServerId> {
        let servers = self.servers();
        let limited = servers.iter().filter(|(_, entry)| entry.is_enabled() && entry.spec().limits_results());
        limited.map(|(server, _)| server.clone()).collect()
    }

    /// Returns the tokens of a result that clients are sent, if the tool or its server limits them.
    pub(crate) fn result_tokens(&self, server: &ServerId, tool: Option<&str>) -> Option<usize> {
        let servers = self.servers();
        let spec = servers.get(server)?.spec();
        let by_tool = tool.and_then(|tool| spec.tools.find_result_tokens(tool));
        by_tool.or(spec.limits.result_tokens).filter(|tokens| *tokens > 0)
    }

    /// Returns whether any server has argument checks.
    pub(crate) fn checks_arguments(&self) -> bool {
        self.checks_arguments.load(Ordering::Relaxed)
    }

    /// Closes the registry and returns all supervisors, to be retired.
    pub(crate) fn close(&self) -> Vec<Supervisor> {
        let mut servers = self.servers_mut();
        self.closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut *servers);
        drop(servers);
        let declared = all.into_values().flat_map(RegisteredServer::close).map(|old| old.supervisor);
        declared.chain(self.adhoc.close()).collect()
    }

    /// Returns whether the registry was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns every server, sorted by name.
    pub(crate) fn all(&self) -> Vec<RegisteredServer> {
        let mut all: Vec<RegisteredServer> = self.servers().values().cloned().collect();
        all.sort_by(|one, other| one.spec().id.cmp(&other.spec().id));
        all
    }

    /// Returns every enabled server, sorted by name.
    pub(crate) fn enabled(&self) -> Vec<RegisteredServer> {
        self.all().into_iter().filter(RegisteredServer::is_enabled).collect()
    }

    /// Returns the servers that may have an instance per key, in no order. Most clients ask for them when they disconnect.
    fn per_key(&self) -> Vec<RegisteredServer> {
        let servers = self.servers();
        servers.values().filter(|entry| entry.has_instances_of_clients()).cloned().collect()
    }

    /// Returns the supervisors of all instances, including those that are draining.
    pub(crate) fn supervisors(&self) -> Vec<Supervisor> {
        let mut all: Vec<Supervisor> =
            self.servers().values().flat_map(RegisteredServer::supervisors).collect();
        all.extend(self.adhoc.all().iter().flat_map(RegisteredServer::supervisors));
        all.extend(self.services.draining.all());
        all
    }

    /// Returns whether any enabled server has its own memory limit.
    pub(crate) fn has_memory_limit(&self) -> bool {
        let is_limited =
            |entry: &RegisteredServer| entry.is_enabled() && entry.spec().lifecycle.memory.is_some();
        self.servers().values().any(is_limited) || self.adhoc.all().iter().any(is_limited)
    }

    /// Returns whether an enabled server runs as a process and was never listed.
    pub(crate) fn has_unlisted_process(&self) -> bool {
        let is_process = |entry: &RegisteredServer| matches!(entry.spec().endpoint, Endpoint::Command(_));
        let is_unlisted = |entry: &RegisteredServer| entry.is_enabled() && entry.listing().is_none();
        self.servers().values().any(|entry| is_process(entry) && is_unlisted(entry))
    }

    /// Returns a server, also a disabled one and one that is not in the roster.
    pub(crate) fn find(&self, server: &ServerId) -> Option<RegisteredServer> {
        let declared = self.servers().get(server).cloned();
        declared.or_else(|| self.adhoc.get(server))
    }

    /// Returns whether a server is in the roster.
    pub(crate) fn is_declared(&self, server: &ServerId) -> bool {
        self.servers().contains_key(server)
    }

    /// Returns an enabled server, an error if it is disabled, or `None` if it does not exist.
    pub(crate) fn get(&self, server: &ServerId) -> Option<Result<RegisteredServer, Error>> {
        Some(match self.find(server)? {
            RegisteredServer::Disabled(_) => Err(disabled_error(server)),
            enabled => Ok(enabled),
        })
    }

    /// Adds a client that has opened a session at the endpoint of one server.
    pub(crate) fn client_connected(&self, server: &ServerId, client: &Client, context: &Arc<ClientContext>) {
        if let Some(Ok(RegisteredServer::Shared(shared))) = self.get(server) {
            shared.for_era(client.era).clients().add(client, Some(context));
        }
    }

    /// Drains the instances that belong to a client that has disconnected.
    pub(crate) fn client_disconnected(&self, client: u64) {
        for entry in self.per_key().iter().chain(&self.adhoc.all()) {
            match entry {
                RegisteredServer::PerKey { instances, .. } => {
                    instances.drain_matching(|key| key.belongs_to(client));
                }
                RegisteredServer::Shared(server) => server.client_disconnected(client),
                RegisteredServer::Disabled(_) => {}
            }
        }
    }

    /// Sends a notification to the instances that belong to a client.
    pub(crate) fn notify_client(&self, client: u64, method: &str) {
        for entry in self.per_key().iter().chain(&self.adhoc.all()) {
            match entry {
                RegisteredServer::PerKey { instances, .. } => instances.notify_client(client, method),
                RegisteredServer::Shared(server) => {
                    server.own.iter().for_each(|own| own.instances.notify_client(client, method));
                }
                RegisteredServer::Disabled(_) => {}
            }
        }
    }

    /// Creates the entry of a server. Also returns the replaced supervisors that the caller must drain.
    fn register(
        &self,
        spec: ServerSpec,
        replaced: Vec<KeyedSupervisor>,
    ) -> (RegisteredServer, Vec<Supervisor>) {
        Self::register_with(spec, replaced, self.listings.as_deref(), self.services.clone())
    }

    /// Like [`Registry::register`], with listings remembered in another folder, and other services.
    fn register_with(
        spec: ServerSpec,
        replaced: Vec<KeyedSupervisor>,
        listings: Option<&Path>,
        services: SupervisorServices,
    ) -> (RegisteredServer, Vec<Supervisor>) {
        let supervisors: Vec<Supervisor> = replaced.iter().map(|old| old.supervisor.clone()).collect();
        if !spec.enabled {
            return (RegisteredServer::Disabled(Arc::new(spec)), supervisors);
        }
        if spec.sharing.is_shared() {
            let server = SharedServer::start(spec, supervisors, listings, services);
            return (RegisteredServer::Shared(server), Vec::new());
        }
        let spec = Arc::new(spec);
        let listing_store = ListingStore::new(&spec, listings);
        let instances = Arc::new(Instances::new(spec.clone(), listing_store, replaced, services));
        (RegisteredServer::PerKey { spec, instances }, supervisors)
    }

    /// Returns whether a server was replaced or removed, other than by closing the registry.
    pub(crate) fn is_replaced(&self, entry: &RegisteredServer) -> bool {
        let current = self.find(&entry.spec().id);
        let is_same = current.is_some_and(|current| current.is_same(entry));
        !is_same && !self.closed.load(Ordering::Acquire)
    }
}

fn unknown_server(server: &ServerId) -> Error {
    Error::new(ErrorKind::Unknown, format!("no server is called `{server}`"))
}

/// Returns the error for a change of the servers after the crib was shut down.
pub(crate) fn shut_down_error() -> Error {
    Error::new(ErrorKind::ShuttingDown, "toolcrib is shut down: its servers can no longer be changed")
}

fn disabled_error(server: &ServerId) -> Error {
    let error = Error::new(ErrorKind::Unknown, format!("`{server}` is disabled"));
    error.with_server(server).with_hint(format!("set `servers.{server}.enabled = true`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::CommandSpec;

    #[tokio::test]
    async fn poisoned_lock_is_usable() {
        let registry = Registry::new(None, 1, SupervisorServices::default());
        let has_panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = registry.servers_mut();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(has_panicked && registry.servers.is_poisoned());
        let mut roster = Roster::default();
        roster.add(ServerSpec::command("git".parse().unwrap(), CommandSpec::new("true"))).unwrap();
        let changes = registry.apply(roster).unwrap().changes;
        assert_eq!((changes.added.len(), registry.all().len()), (1, 1));
        assert_eq!(registry.close().len(), 2, "one for each era");
    }
}
