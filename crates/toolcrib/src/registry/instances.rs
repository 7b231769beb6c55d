//! The instances of a server that is not shared, one per key.
//!
//! An instance is created on first use and has its own supervisor. It is removed when it goes to sleep or its client
//! disconnects.

mod status;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::KeyedSupervisor;
use crate::call::Call;
use crate::call::client_context::InstanceOwner;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::instance_key::InstanceKey;
use crate::model::listing::Listing;
use crate::process::stderr::StderrTail;
use crate::protocol::list_kind::ListKinds;
use crate::protocol::versions::Era;
use crate::spec::{Endpoint, ServerSpec, StartPolicy};
use crate::supervisor::cards::ServerCards;
use crate::supervisor::listing_store::ListingStore;
use crate::supervisor::start_gate::StartGate;
use crate::supervisor::{Lease, ServerRecords, SleepWatch, Supervisor, SupervisorServices};
use crate::upstream::relist::PendingRelist;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// The instances of one server.
#[derive(Debug)]
pub(crate) struct Instances {
    /// Shared by all instances, or the total of all instances.
    records: ServerRecords,
    table: Mutex<InstanceTable>,
    /// Notified when an instance is added.
    instance_added: Notify,
    services: SupervisorServices,
}

#[derive(Debug)]
struct InstanceTable {
    spec: Arc<ServerSpec>,
    instances: HashMap<InstanceKey, Instance>,
    /// Draining instances of the previous spec.
    replaced: Vec<KeyedSupervisor>,
    /// Instances that are not in this table and count for the maximum.
    others: usize,
    is_closed: bool,
}

#[derive(Debug)]
struct Instance {
    supervisor: Supervisor,
    /// The working directory, if it follows from the key.
    folder: Option<PathBuf>,
    /// The caller whose call the instance was started for.
    caller: Option<Caller>,
    last_used: Instant,
    claims: Arc<ClaimCount>,
}

/// The number of lease requests in progress on an instance.
#[derive(Debug, Default)]
struct ClaimCount {
    count: AtomicUsize,
    /// Notified when the count drops to zero.
    none_left: Notify,
}

/// Keeps an instance in the table while a lease is requested.
struct InstanceClaim {
    supervisor: Supervisor,
    claims: Arc<ClaimCount>,
}

impl Drop for InstanceClaim {
    fn drop(&mut self) {
        if self.claims.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.claims.none_left.notify_one();
        }
    }
}

impl Instance {
    fn claim(&mut self, now: Instant) -> InstanceClaim {
        self.last_used = now;
        self.claims.count.fetch_add(1, Ordering::AcqRel);
        InstanceClaim { supervisor: self.supervisor.clone(), claims: self.claims.clone() }
    }

    fn is_idle(&self) -> bool {
        self.claims.count.load(Ordering::Acquire) == 0 && self.supervisor.is_idle()
    }
}

impl Instances {
    /// Creates an empty table. `replaced` are the instances of the previous spec.
    pub(super) fn new(
        spec: Arc<ServerSpec>,
        listing_store: ListingStore,
        replaced: Vec<KeyedSupervisor>,
        services: SupervisorServices,
    ) -> Self {
        let records = ServerRecords {
            listing_store,
            cards: Arc::new(ServerCards::new(&spec)),
            metrics: Arc::default(),
            stderr: Arc::default(),
            start_gate: Arc::new(StartGate::new(&spec.lifecycle)),
        };
        let table = InstanceTable { spec, instances: HashMap::new(), replaced, others: 0, is_closed: false };
        Self { records, table: Mutex::new(table), instance_added: Notify::new(), services }
    }

    /// Creates an empty table for clients of a server that also has a shared instance, with the records of that server.
    pub(super) fn beside_shared(
        spec: Arc<ServerSpec>,
        records: ServerRecords,
        services: SupervisorServices,
    ) -> Self {
        let table = InstanceTable {
            spec,
            instances: HashMap::new(),
            replaced: Vec::new(),
            others: 1,
            is_closed: false,
        };
        Self { records, table: Mutex::new(table), instance_added: Notify::new(), services }
    }

    fn lock(&self) -> MutexGuard<'_, InstanceTable> {
        self.table.lock().ignore_poison()
    }

    /// Takes over a changed spec without a restart. New instances and those that run follow it.
    pub(super) fn update(&self, spec: &Arc<ServerSpec>) {
        self.records.cards.update(spec);
        let gate = &self.records.start_gate;
        gate.apply_lifecycle(&spec.lifecycle);
        if gate.is_ejected() {
            gate.reset();
        }
        let mut table = self.lock();
        table.spec = spec.clone();
        for instance in table.instances.values_mut() {
            instance.supervisor = instance.supervisor.update(instance_spec(spec, instance.folder.clone()));
        }
    }

    pub(crate) fn stderr(&self) -> &Arc<StderrTail> {
        &self.records.stderr
    }

    /// Returns the last known listing of any instance, or the tools of its card if none was listed.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        let known = self.records.listing_store.get().map(|known| known.listing);
        known.or_else(|| self.records.cards.listing())
    }

    /// Returns whether no instance runs and the tools could not be read when one last did, so that it is time to ask again.
    pub(crate) fn is_unlisted(&self, now: Instant) -> bool {
        let table = self.lock();
        let list_ttl = table.spec.lifecycle.list_ttl;
        let is_unknown = |listing: &Listing| listing.has_unknown_tools(list_ttl, now);
        table.instances.is_empty() && self.listing().is_some_and(|listing| is_unknown(&listing))
    }

    /// Returns the listing of the instance with this key, if there is one.
    pub(crate) fn listing_of(&self, key: &InstanceKey) -> Option<Arc<Listing>> {
        self.lock().instances.get(key)?.supervisor.listing()
    }

    /// Returns the supervisor of the instance with this key, if there is one.
    pub(crate) fn supervisor(&self, key: &InstanceKey) -> Option<Supervisor> {
        Some(self.lock().instances.get(key)?.supervisor.clone())
    }

    pub(crate) fn contains(&self, key: &InstanceKey) -> bool {
        self.lock().instances.contains_key(key)
    }

    /// Returns whether the instance that a call goes to runs and can be asked for its lists.
    pub(crate) async fn is_listable(&self, call: &Call) -> bool {
        let sharing = self.lock().spec.sharing;
        let key = call.instance_key(sharing).await;
        let key = self.key_in_era(&key, call.client.era);
        self.lock().instances.get(&key).is_some_and(|instance| instance.supervisor.is_listable())
    }

    /// Returns the gate that decides when an instance may start.
    pub(crate) fn start_gate(&self) -> &Arc<StartGate> {
        &self.records.start_gate
    }

    /// Starts a temporary instance to find out what the server lists, in this era if it speaks both. A server that needs the
    /// credentials of callers has no such instance: the one of the caller that asks is started.
    pub(crate) async fn discover(self: &Arc<Self>, caller: &Caller, era: Era) -> Result<(), Error> {
        let owner = |key| InstanceOwner { key, ..InstanceOwner::default() };
        if self.lock().spec.is_listed_per_caller() {
            let owner = |key| InstanceOwner { caller: Some(caller.clone()), ..owner(key) };
            let key = InstanceKey::Caller(caller.owner());
            let (_lease, origin) = self.lease_in_era(key, era, owner).await?;
            self.wait_until_listed(&origin.supervisor).await;
            return Ok(());
        }
        let (lease, origin) = self.lease_in_era(InstanceKey::Discovery, era, owner).await?;
        self.wait_until_listed(&origin.supervisor).await;
        drop(lease);
        self.drain_matching(is_discovery);
        Ok(())
    }

    /// Waits for the lists of an instance, if none are known.
    async fn wait_until_listed(&self, instance: &Supervisor) {
        if self.listing().is_none()
            && let Some(listing) = instance.first_listing()
        {
            listing.wait().await;
        }
    }

    /// Returns a lease on the instance that a call goes to, and the instance.
    pub(crate) async fn lease(self: &Arc<Self>, call: &Call) -> Result<(Lease, LeaseOrigin), Error> {
        let sharing = self.lock().spec.sharing;
        let key = call.instance_key(sharing).await;
        self.lease_in_era(key, call.client.era, |key| InstanceOwner::for_call(key, call)).await
    }

    /// Returns a lease on the instance of a call's client alone, and the instance.
    pub(crate) async fn lease_for_client(
        self: &Arc<Self>,
        call: &Call,
    ) -> Result<(Lease, LeaseOrigin), Error> {
        let key = call.client_instance_key();
        self.lease_in_era(key, call.client.era, |key| InstanceOwner::for_call(key, call)).await
    }

    /// Returns a lease on the instance with a key, for clients of an era. If the server turns out to speak only the other
    /// era, the lease is on the instance for that one.
    async fn lease_in_era(
        self: &Arc<Self>,
        key: InstanceKey,
        era: Era,
        owner: impl Fn(InstanceKey) -> InstanceOwner,
    ) -> Result<(Lease, LeaseOrigin), Error> {
        let known_eras = self.records.listing_store.eras();
        let mut asked = self.key_in_era(&key, era);
        let mut leased = self.lease_key(&asked, era, &owner).await;
        if leased.is_err() && self.records.listing_store.eras() != known_eras {
            asked = self.key_in_era(&key, era);
            leased = self.lease_key(&asked, era, &owner).await;
        }
        let (lease, supervisor) = leased?;
        Ok((lease, LeaseOrigin { instances: Some(Arc::downgrade(self)), key: asked, supervisor }))
    }

    /// Returns the key of the instance for clients of an era. Those of both use the same one, unless the server is remote
    /// and speaks both or may do so.
    pub(crate) fn key_in_era(&self, key: &InstanceKey, era: Era) -> InstanceKey {
        let table = self.lock();
        if !table.spec.has_instance_per_era() {
            return key.clone();
        }
        let stateless = InstanceKey::Stateless(Box::new(key.clone()));
        let uses_stateless = match self.records.listing_store.eras().only() {
            Some(Era::Session) => false,
            Some(Era::Stateless) => table.instances.contains_key(&stateless),
            None => era == Era::Stateless,
        };
        if uses_stateless { stateless } else { key.clone() }
    }

    async fn lease_key(
        self: &Arc<Self>,
        key: &InstanceKey,
        era: Era,
        owner: &impl Fn(InstanceKey) -> InstanceOwner,
    ) -> Result<(Lease, Supervisor), Error> {
        loop {
            let existing = self.lock().claim(key);
            let claim = match existing {
                Some(claim) => claim,
                None => self.add_instance(key, owner(key.clone()), project_folder(key).await)?,
            };
            match claim.supervisor.lease(era).await {
                // The instance was retired at the same time.
                Err(error) if error.kind() == ErrorKind::ShuttingDown && !self.lock().is_closed => {
                    self.remove(key, &claim.claims);
                }
                leased => return leased.map(|lease| (lease, claim.supervisor.clone())),
            }
        }
    }

    /// Adds an instance. If the maximum is reached, it replaces the idle instance that was used least recently.
    fn add_instance(
        self: &Arc<Self>,
        key: &InstanceKey,
        owner: InstanceOwner,
        folder: Option<PathBuf>,
    ) -> Result<InstanceClaim, Error> {
        let mut table = self.lock();
        if table.is_closed {
            return Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down"));
        }
        if let Some(claim) = table.claim(key) {
            return Ok(claim);
        }
        let mut replaced = table.replaced_by(key);
        let spec = table.spec.clone();
        // An instance that runs only to be listed must not keep a client from getting its own.
        let of_clients = || table.instances.iter().filter(|(key, _)| !is_discovery(key));
        let is_full = of_clients().count() + table.others >= spec.limits.instances.get();
        if is_full && !is_discovery(key) {
            let idle = of_clients().filter(|(_, instance)| instance.is_idle());
            let oldest = idle.min_by_key(|(_, instance)| instance.last_used).map(|(key, _)| key.clone());
            let oldest = oldest.ok_or_else(|| all_busy_error(&spec))?;
            replaced.extend(table.instances.remove(&oldest).map(|instance| instance.supervisor));
        }
        let caller = owner.caller.clone();
        let supervisor = Supervisor::start_instance(
            Arc::new(owner),
            instance_spec(&spec, folder.clone()),
            replaced,
            self.records.for_instance(),
            self.services.clone(),
        );
        let now = Instant::now();
        let claims = Arc::<ClaimCount>::default();
        let remove_when_asleep =
            remove_when_asleep(Arc::downgrade(self), key.clone(), supervisor.sleep_watch(), claims.clone());
        let mut instance = Instance { supervisor, folder, caller, last_used: now, claims };
        let claim = instance.claim(now);
        table.instances.insert(key.clone(), instance);
        drop(table);
        self.instance_added.notify_waiters();
        self.services.tasks.spawn_boxed(remove_when_asleep);
        Ok(claim)
    }

    /// Returns the cards of the server.
    pub(crate) fn cards(&self) -> &ServerCards {
        &self.records.cards
    }

    /// Removes an instance, unless the key now belongs to a newer one.
    fn remove(&self, key: &InstanceKey, claims: &Arc<ClaimCount>) {
        let mut table = self.lock();
        let is_same = table.instances.get(key).is_some_and(|instance| Arc::ptr_eq(&instance.claims, claims));
        if is_same {
            table.instances.remove(key);
        }
    }

    /// Removes an instance that is asleep and not claimed, and returns its supervisor.
    fn remove_if_asleep(&self, key: &InstanceKey, claims: &Arc<ClaimCount>) -> Option<Supervisor> {
        let mut table = self.lock();
        let instance = table.instances.get(key).filter(|instance| Arc::ptr_eq(&instance.claims, claims))?;
        if !instance.is_idle() || !instance.supervisor.is_asleep() {
            return None;
        }
        table.instances.remove(key).map(|instance| instance.supervisor)
    }

    /// Removes the instances whose key matches and lets them finish their calls.
    pub(crate) fn drain_matching(&self, is_match: impl Fn(&InstanceKey) -> bool) {
        let removed: Vec<(InstanceKey, Instance)> =
            self.lock().instances.extract_if(|key, _| is_match(key)).collect();
        for (_, instance) in removed {
            instance.supervisor.drain_in_background(&self.services);
        }
    }

    /// Sends a notification to the instances that belong to a client.
    pub(crate) fn notify_client(&self, client: u64, method: &str) {
        for (key, instance) in &self.lock().instances {
            if key.belongs_to(client) {
                instance.supervisor.notify(method);
            }
        }
    }

    /// Adds no more instances and returns all existing ones.
    pub(super) fn close(&self) -> Vec<KeyedSupervisor> {
        let mut table = self.lock();
        table.is_closed = true;
        table.replaced.clear();
        let instances = table.instances.drain();
        instances.map(|(key, instance)| KeyedSupervisor { key, supervisor: instance.supervisor }).collect()
    }

    pub(super) fn supervisors(&self) -> Vec<Supervisor> {
        self.lock().instances.values().map(|instance| instance.supervisor.clone()).collect()
    }

    /// Requests those of the lists that are out of date from every running instance, and returns the listings of the
    /// caller's own instances, to wait for.
    pub(super) fn refresh(&self, caller: &Caller, kinds: ListKinds, now: Instant) -> Vec<PendingRelist> {
        let mut awaited = Vec::new();
        for instance in self.lock().instances.values() {
            let relist = instance.supervisor.refresh(kinds, now);
            if instance.caller.as_ref() == Some(caller) {
                awaited.extend(relist);
            }
        }
        awaited
    }

    /// Stops every instance.
    pub(crate) async fn stop(&self) -> Result<(), Error> {
        let mut stops = JoinSet::new();
        for supervisor in self.supervisors() {
            stops.spawn(async move { supervisor.stop().await });
        }
        // An instance that was removed meanwhile has stopped.
        stops.join_all().await;
        Ok(())
    }

    /// Resets the start gate and restarts every instance that is not asleep.
    pub(crate) async fn restart(&self) -> Result<(), Error> {
        self.records.start_gate.reset();
        // The server may speak other eras now.
        self.records.listing_store.forget_eras();
        let mut restarts = JoinSet::new();
        for supervisor in self.supervisors().into_iter().filter(|supervisor| !supervisor.is_asleep()) {
            restarts.spawn(async move { supervisor.restart().await });
        }
        let is_failure = |error: &Error| error.kind() != ErrorKind::ShuttingDown;
        restarts.join_all().await.into_iter().filter_map(Result::err).find(is_failure).map_or(Ok(()), Err)
    }
}

/// The instance that a lease belongs to.
pub(crate) struct LeaseOrigin {
    /// `None` for a shared server.
    instances: Option<Weak<Instances>>,
    pub(crate) key: InstanceKey,
    pub(crate) supervisor: Supervisor,
}

impl LeaseOrigin {
    pub(super) fn shared(key: InstanceKey, supervisor: &Supervisor) -> Self {
        Self { instances: None, key, supervisor: supervisor.clone() }
    }

    /// Returns whether the instance is one of these.
    pub(super) fn is_of(&self, instances: &Arc<Instances>) -> bool {
        self.instances.as_ref().is_some_and(|own| own.ptr_eq(&Arc::downgrade(instances)))
    }

    /// Waits until the instance, or a new one with the same key, is up. Returns immediately if the server was replaced.
    pub(crate) async fn wait_until_up(&self) {
        self.supervisor.wait_until_up().await;
        while let Some(instances) = self.instances.as_ref().and_then(Weak::upgrade) {
            let instance_added = instances.instance_added.notified();
            let (current, is_closed) = {
                let table = instances.lock();
                let current = table.instances.get(&self.key);
                (current.map(|instance| instance.supervisor.clone()), table.is_closed)
            };
            match current {
                Some(supervisor) => return supervisor.wait_until_up().await,
                None if is_closed => return,
                None => instance_added.await,
            }
        }
    }
}

impl InstanceTable {
    fn claim(&mut self, key: &InstanceKey) -> Option<InstanceClaim> {
        self.instances.get_mut(key).map(|instance| instance.claim(Instant::now()))
    }

    /// Returns the instances of the previous spec that an instance with this key replaces.
    fn replaced_by(&self, key: &InstanceKey) -> Vec<Supervisor> {
        let is_replaced = |old: &&KeyedSupervisor| old.key == *key || old.key.is_shared();
        self.replaced.iter().filter(is_replaced).map(|old| old.supervisor.clone()).collect()
    }
}

/// Returns the spec of an instance that runs in `folder`, unless the server has a configured working directory.
fn instance_spec(spec: &ServerSpec, folder: Option<PathBuf>) -> ServerSpec {
    let mut spec = spec.clone();
    spec.lifecycle.start = StartPolicy::OnDemand;
    if let Endpoint::Command(command) = &mut spec.endpoint
        && command.cwd.is_none()
    {
        command.cwd = folder;
    }
    spec
}

fn all_busy_error(spec: &ServerSpec) -> Error {
    let server = &spec.id;
    let limit = spec.limits.instances;
    let message = format!("all {limit} instances of `{server}` are busy");
    let hint = format!("try again when one is idle, or raise `servers.{server}.limits.instances`");
    Error::new(ErrorKind::OverQuota, message).with_server(server).with_hint(hint)
}

/// Returns whether an instance runs only to be listed.
fn is_discovery(key: &InstanceKey) -> bool {
    *key.without_era() == InstanceKey::Discovery
}

/// Returns the working directory of an instance, if its key is a project folder that exists.
async fn project_folder(key: &InstanceKey) -> Option<PathBuf> {
    let InstanceKey::Project { project, .. } = key.without_era() else { return None };
    let folder = project.folder()?;
    let is_folder = tokio::fs::metadata(folder).await.is_ok_and(|metadata| metadata.is_dir());
    is_folder.then(|| folder.to_owned())
}

/// Removes an instance as soon as it is asleep.
async fn remove_when_asleep(
    instances: Weak<Instances>,
    key: InstanceKey,
    mut sleep_watch: SleepWatch,
    claims: Arc<ClaimCount>,
) {
    while sleep_watch.asleep().await {
        let Some(instances) = instances.upgrade() else { return };
        let removed = instances.remove_if_asleep(&key, &claims);
        drop(instances);
        if let Some(supervisor) = removed {
            return supervisor.retire(Duration::ZERO).await;
        }
        tokio::select! {
            () = claims.none_left.notified() => {}
            () = sleep_watch.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::{RegisteredServer, Registry};
    use super::*;
    use crate::model::listing::{ListedItem, ToolHints};
    use crate::protocol::versions::Revision;
    use crate::spec::{HttpSpec, ServerId, Sharing};
    use crate::supervisor::listing_store::KnownListing;

    fn listing(tool: &str) -> KnownListing {
        let tool = ListedItem {
            name: tool.into(),
            definition: Bytes::new(),
            repaired: None,
            hints: ToolHints::default(),
        };
        let listing = Arc::new(Listing { tools: vec![tool], ..Listing::default() });
        KnownListing { revision: Revision::newest(Era::Stateless), is_legacy_sse: false, listing }
    }

    #[tokio::test(start_paused = true)]
    async fn client_gets_the_listing_of_its_own_instance_in_its_era() {
        let id: ServerId = "a".parse().unwrap();
        let mut spec = ServerSpec::http(id.clone(), HttpSpec::new("http://127.0.0.1:9/mcp"));
        spec.sharing = Sharing::PerClient;
        let registry = Registry::new(None, 1, SupervisorServices::default());
        registry.add(spec).unwrap();
        let Some(Ok(RegisteredServer::PerKey { instances, .. })) = registry.get(&id) else { panic!() };
        let mut call = Call::tool("a__x");
        call.client.era = Era::Stateless;
        let store = &instances.records.listing_store;
        let first = listing("first");
        store.record(&InstanceKey::Discovery, first.clone(), None, false);
        let key = InstanceKey::Stateless(Box::new(call.try_instance_key(Sharing::PerClient).unwrap()));
        let owner = InstanceOwner::for_call(key.clone(), &call);
        let _claim = instances.add_instance(&key, owner, None).unwrap();
        // Another instance announces something else.
        store.record(&InstanceKey::Discovery, listing("second"), Some(&first), true);
        let own = registry.listings_for_client(&call).unwrap();
        assert_eq!(own[&id], Some(first.listing));
        call.client.era = Era::Session;
        assert!(registry.listings_for_client(&call).is_none(), "it has no instance in this era");
    }
}
