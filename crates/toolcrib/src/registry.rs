//! Which supervisors exist, and what changes when the roster does.

mod instances;
mod shown;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::time::Instant;

use crate::cache::Stale;
use crate::call::Call;
use crate::connection::listing::{Good, Listing};
use crate::connection::stderr::StderrTail;
use crate::error::{Error, ErrorKind};
use crate::sharing::SharingKey;
use crate::spec::{Roster, ServerId, ServerSpec, Sharing};
use crate::status::ServerStatus;
use crate::supervisor::memory::Memory;
use crate::supervisor::{Lease, Supervisor, Surroundings};
use crate::wire::kind::Kind;
use instances::{Instances, Spot};

/// The servers of one crib. Servers that are switched off are known and have no supervisor.
#[derive(Debug)]
pub(crate) struct Registry {
    servers: RwLock<BTreeMap<ServerId, Entry>>,
    /// Set for good, under the lock of `servers`: there will be no servers any more.
    closed: AtomicBool,
    /// Whether any server wants arguments to be looked at; without, no call pays for it.
    checks: AtomicBool,
    listings: Option<PathBuf>,
    around: Surroundings,
}

/// A server, running or switched off.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// Everybody's.
    On(Supervisor),
    /// With an instance for each key.
    Many(Arc<Instances>),
    Off(Arc<ServerSpec>),
}

impl Entry {
    pub(crate) fn spec(&self) -> &ServerSpec {
        match self {
            Self::On(supervisor) => supervisor.spec(),
            Self::Many(instances) => instances.spec(),
            Self::Off(spec) => spec,
        }
    }

    fn is_on(&self) -> bool {
        !matches!(self, Self::Off(_))
    }

    /// Everything there is of it, to be retired.
    fn close(self) -> Vec<(SharingKey, Supervisor)> {
        match self {
            Self::On(supervisor) => vec![(SharingKey::Shared, supervisor)],
            Self::Many(instances) => instances.close(),
            Self::Off(_) => Vec::new(),
        }
    }

    /// What it is known to offer.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        match self {
            Self::On(supervisor) => supervisor.listing(),
            Self::Many(instances) => instances.listing(),
            Self::Off(_) => None,
        }
    }

    /// How long one of its lists is good. What one instance says of it is nothing that others can rely on.
    pub(crate) fn good(&self, kind: Kind, now: Instant) -> Good {
        match self {
            Self::On(supervisor) => supervisor.good(kind, now),
            Self::Many(_) => Good::Unsaid,
            Self::Off(_) => Good::NoList,
        }
    }

    /// Whether it is worth waiting for when everything is listed: not if it has just failed, nor twice if it is slow.
    pub(crate) fn may_be_listed(&self) -> bool {
        match self {
            Self::On(supervisor) => supervisor.may_be_listed(),
            Self::Many(instances) => instances.may_be_listed(),
            Self::Off(_) => false,
        }
    }

    /// Notes that somebody has waited for it in vain.
    pub(crate) fn mark_slow(&self) {
        match self {
            Self::On(supervisor) => supervisor.mark_slow(),
            Self::Many(instances) => instances.mark_slow(),
            Self::Off(_) => {}
        }
    }

    /// Starts it to see what it offers.
    pub(crate) async fn look(&self) -> Result<(), Error> {
        match self {
            Self::On(supervisor) => supervisor.lease().await.map(drop),
            Self::Many(instances) => instances.look().await,
            Self::Off(spec) => Err(switched_off(&spec.id)),
        }
    }

    pub(crate) fn status(&self, now: Instant) -> ServerStatus {
        match self {
            Self::On(supervisor) => supervisor.status(now),
            Self::Many(instances) => instances.status(now),
            Self::Off(spec) => ServerStatus::off(spec),
        }
    }

    /// Stops what runs, forgives everything, and waits until it is up again.
    pub(crate) async fn restart(&self) -> Result<(), Error> {
        match self {
            Self::On(supervisor) => supervisor.restart().await,
            Self::Many(instances) => instances.restart().await,
            Self::Off(spec) => Err(switched_off(&spec.id)),
        }
    }

    pub(crate) async fn stop(&self) -> Result<(), Error> {
        match self {
            Self::On(supervisor) => supervisor.stop().await,
            Self::Many(instances) => instances.stop().await,
            Self::Off(spec) => Err(switched_off(&spec.id)),
        }
    }

    /// What it wrote to stderr, all of its instances together.
    pub(crate) fn stderr(&self) -> Option<&StderrTail> {
        match self {
            Self::On(supervisor) => Some(supervisor.stderr()),
            Self::Many(instances) => Some(instances.stderr()),
            Self::Off(_) => None,
        }
    }
}

/// What a new roster changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// New servers.
    pub added: Vec<ServerId>,
    /// Servers that are gone.
    pub removed: Vec<ServerId>,
    /// Servers with another spec.
    pub changed: Vec<ServerId>,
}

impl Registry {
    pub(crate) fn new(listings: Option<PathBuf>, around: Surroundings) -> Self {
        let (closed, checks) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { servers: RwLock::default(), closed, checks, listings, around }
    }

    fn servers(&self) -> RwLockReadGuard<'_, BTreeMap<ServerId, Entry>> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn servers_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<ServerId, Entry>> {
        self.servers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the servers those of `roster`: new ones are added, equal ones left alone; one with another spec is
    /// replaced by another supervisor. The old ones and those that are gone finish what they work on.
    pub(crate) fn apply(&self, roster: Roster) -> Changes {
        let mut changes = Changes::default();
        let mut leaving = Vec::new();
        let mut servers = self.servers_mut();
        let old = servers.clone();
        if self.closed.load(Ordering::Acquire) {
            return changes;
        }
        let gone: Vec<ServerId> = servers.keys().filter(|id| roster.get(id).is_none()).cloned().collect();
        for id in gone {
            leaving.extend(servers.remove(&id).map(Entry::close).into_iter().flatten().map(|(_, gone)| gone));
            changes.removed.push(id);
        }
        for spec in roster.into_servers() {
            let id = spec.id.clone();
            match servers.get(&id) {
                Some(entry) if *entry.spec() == spec => continue,
                Some(_) => changes.changed.push(id.clone()),
                None => changes.added.push(id.clone()),
            }
            let before = servers.remove(&id).map(Entry::close).unwrap_or_default();
            let (entry, gone) = self.entry(spec, before);
            leaving.extend(gone);
            servers.insert(id, entry);
        }
        self.settle_cache(&servers, &changes);
        let checks = servers.values().any(|entry| entry.spec().tools.check);
        self.checks.store(checks, Ordering::Relaxed);
        // A server of the embedder's own may take its time to be dropped: nobody waits for it at the lock.
        drop(servers);
        drop(old);
        leaving.iter().for_each(|gone| gone.see_out(&self.around));
        changes
    }

    /// What those have said that are gone or others now is not good any more.
    fn settle_cache(&self, servers: &BTreeMap<ServerId, Entry>, changes: &Changes) {
        let cache = &self.around.cache;
        cache.expect_tools(servers.values().any(|entry| entry.is_on() && entry.spec().may_keep_results()));
        for server in changes.removed.iter().chain(&changes.changed) {
            cache.forget(server, None, Stale::All);
        }
    }

    /// Whether any server wants arguments to be looked at.
    pub(crate) fn checks(&self) -> bool {
        self.checks.load(Ordering::Relaxed)
    }

    /// Gives every server out, to be retired, and takes none in any more.
    pub(crate) fn close(&self) -> Vec<Supervisor> {
        let mut servers = self.servers_mut();
        self.closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut *servers);
        drop(servers);
        all.into_values().flat_map(Entry::close).map(|(_, supervisor)| supervisor).collect()
    }

    /// Every server, by name.
    pub(crate) fn all(&self) -> Vec<Entry> {
        self.servers().values().cloned().collect()
    }

    /// Every server that may run, by name.
    pub(crate) fn running(&self) -> Vec<Entry> {
        self.all().into_iter().filter(Entry::is_on).collect()
    }

    /// Everything that runs or may, instance by instance, those included that are on their way out.
    pub(crate) fn supervisors(&self) -> Vec<Supervisor> {
        let of = |entry: &Entry| match entry {
            Entry::On(supervisor) => vec![supervisor.clone()],
            Entry::Many(instances) => instances.supervisors(),
            Entry::Off(_) => Vec::new(),
        };
        let mut all: Vec<Supervisor> = self.servers().values().flat_map(of).collect();
        all.extend(self.around.leaving.all());
        all
    }

    /// Whether a server that may run has a limit of its own to the memory it uses.
    pub(crate) fn limits_memory(&self) -> bool {
        let limited = |entry: &Entry| entry.is_on() && entry.spec().lifecycle.memory.is_some();
        self.servers().values().any(limited)
    }

    /// One server that may run; `None` if there is no such server.
    pub(crate) fn get(&self, server: &ServerId) -> Option<Result<Entry, Error>> {
        Some(match self.servers().get(server)? {
            Entry::Off(_) => Err(switched_off(server)),
            on => Ok(on.clone()),
        })
    }

    /// A claim on the living server that a call goes to: wakes it if need be. Whoever waited for a server that was
    /// replaced meanwhile is served by its successor.
    pub(crate) async fn lease(&self, server: &ServerId, call: &Call) -> Result<Lease, Error> {
        loop {
            let entry = self.get(server).unwrap_or_else(|| Err(unknown(server)))?;
            let leased = match &entry {
                Entry::On(supervisor) => supervisor.lease().await,
                Entry::Many(instances) => Box::pin(instances.lease(call)).await.map(|(lease, _)| lease),
                Entry::Off(_) => Err(switched_off(server)),
            };
            match leased {
                Err(error) if error.kind() == ErrorKind::ShuttingDown && self.has_replaced(&entry) => {}
                leased => return leased,
            }
        }
    }

    /// As `lease`, and where that is, for whoever stays.
    pub(crate) async fn lease_at(&self, server: &ServerId, call: &Call) -> Result<(Lease, Spot), Error> {
        loop {
            let entry = self.get(server).unwrap_or_else(|| Err(unknown(server)))?;
            let leased = match &entry {
                Entry::On(supervisor) => {
                    supervisor.lease().await.map(|lease| (lease, Spot::shared(supervisor)))
                }
                Entry::Many(instances) => instances.lease(call).await,
                Entry::Off(_) => Err(switched_off(server)),
            };
            match leased {
                Err(error) if error.kind() == ErrorKind::ShuttingDown && self.has_replaced(&entry) => {}
                leased => return leased,
            }
        }
    }

    /// A client has left: the instances that were its alone end with it.
    pub(crate) fn part_with(&self, client: u64) {
        for entry in self.servers().values() {
            if let Entry::Many(instances) = entry {
                instances.part_with(|key| key.is_of(client));
            }
        }
    }

    /// Tells the instances that are one client's alone something that wants no answer.
    pub(crate) fn tell(&self, client: u64, method: &str) {
        for entry in self.servers().values() {
            if let Entry::Many(instances) = entry {
                instances.tell(client, method);
            }
        }
    }

    /// A server that takes the place of `before`, and those of them that it does not see out itself.
    fn entry(&self, spec: ServerSpec, before: Vec<(SharingKey, Supervisor)>) -> (Entry, Vec<Supervisor>) {
        let olds = || before.iter().map(|(_, old)| old.clone()).collect::<Vec<_>>();
        if !spec.enabled {
            return (Entry::Off(Arc::new(spec)), olds());
        }
        let (listings, around) = (self.listings.as_deref(), self.around.clone());
        if spec.sharing == Sharing::Shared {
            return (Entry::On(Supervisor::start(spec, olds(), listings, around)), Vec::new());
        }
        let (memory, gone) = (Memory::of(&spec, listings), olds());
        (Entry::Many(Arc::new(Instances::new(spec, memory, before, around))), gone)
    }

    /// Whether a server is another one now, or none, and not because everything ends.
    pub(crate) fn has_replaced(&self, entry: &Entry) -> bool {
        let servers = self.servers();
        let there = servers.get(&entry.spec().id);
        let same = there.is_some_and(|there| std::ptr::eq(there.spec(), entry.spec()));
        !same && !self.closed.load(Ordering::Acquire)
    }

    /// What every server that may run is known to offer.
    pub(crate) fn listings(&self) -> BTreeMap<ServerId, Option<Arc<Listing>>> {
        let shown = |entry: &Entry| entry.listing().map(|listing| self.shown(entry.spec(), listing));
        self.running().iter().map(|entry| (entry.spec().id.clone(), shown(entry))).collect()
    }
}

fn unknown(server: &ServerId) -> Error {
    Error::new(ErrorKind::Unknown, format!("no server is called `{server}`"))
}

fn switched_off(server: &ServerId) -> Error {
    let error = Error::new(ErrorKind::Unknown, format!("`{server}` is switched off"));
    error.at(server).hint(format!("set `servers.{server}.enabled = true`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::CommandSpec;

    #[tokio::test]
    async fn a_panic_under_the_lock_stops_nobody_who_comes_after() {
        let registry = Registry::new(None, Surroundings::default());
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = registry.servers_mut();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked && registry.servers.is_poisoned());
        let mut roster = Roster::default();
        roster.add(ServerSpec::command("git".parse().unwrap(), CommandSpec::new("true"))).unwrap();
        let changes = registry.apply(roster);
        assert_eq!((changes.added.len(), registry.all().len()), (1, 1));
        assert_eq!(registry.close().len(), 1);
    }
}
