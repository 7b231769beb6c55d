//! Which supervisors exist, and what changes when the roster does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::connection::listing::Listing;
use crate::error::{Error, ErrorKind};
use crate::spec::{Roster, ServerId, ServerSpec};
use crate::supervisor::{Lease, Supervisor, Surroundings};

/// The servers of one crib. Servers that are switched off are known and have no supervisor.
#[derive(Debug)]
pub(crate) struct Registry {
    servers: RwLock<BTreeMap<ServerId, Entry>>,
    /// Set for good, under the lock of `servers`: there will be no servers any more.
    closed: AtomicBool,
    listings: Option<PathBuf>,
    around: Surroundings,
}

/// A server, running or switched off.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    On(Supervisor),
    Off(Arc<ServerSpec>),
}

impl Entry {
    fn spec(&self) -> &ServerSpec {
        match self {
            Self::On(supervisor) => supervisor.spec(),
            Self::Off(spec) => spec,
        }
    }

    fn on(self) -> Option<Supervisor> {
        match self {
            Self::On(supervisor) => Some(supervisor),
            Self::Off(_) => None,
        }
    }
}

/// What a new roster changed.
#[derive(Debug, Default, PartialEq, Eq)]
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
        Self { servers: RwLock::default(), closed: AtomicBool::new(false), listings, around }
    }

    fn servers(&self) -> RwLockReadGuard<'_, BTreeMap<ServerId, Entry>> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn servers_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<ServerId, Entry>> {
        self.servers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the servers those of `roster`: new ones are added, equal ones left alone; one with another spec is
    /// replaced by a supervisor that first sees the old one out. Those that are gone are returned, to be retired.
    pub(crate) fn apply(&self, roster: Roster) -> (Changes, Vec<Supervisor>) {
        let mut changes = Changes::default();
        let mut retired = Vec::new();
        let mut servers = self.servers_mut();
        let old = servers.clone();
        if self.closed.load(Ordering::Acquire) {
            return (changes, retired);
        }
        let gone: Vec<ServerId> = servers.keys().filter(|id| roster.get(id).is_none()).cloned().collect();
        for id in gone {
            retired.extend(servers.remove(&id).and_then(Entry::on));
            changes.removed.push(id);
        }
        for spec in roster.into_servers() {
            let id = spec.id.clone();
            match servers.get(&id) {
                Some(entry) if *entry.spec() == spec => continue,
                Some(_) => changes.changed.push(id.clone()),
                None => changes.added.push(id.clone()),
            }
            let before = servers.remove(&id).and_then(Entry::on);
            let entry = if spec.enabled {
                Entry::On(Supervisor::start(spec, before, self.listings.as_deref(), self.around.clone()))
            } else {
                retired.extend(before);
                Entry::Off(Arc::new(spec))
            };
            servers.insert(id, entry);
        }
        // A server of the embedder's own may take its time to be dropped: nobody waits for it at the lock.
        drop(servers);
        drop(old);
        (changes, retired)
    }

    /// Gives every server out, to be retired, and takes none in any more.
    pub(crate) fn close(&self) -> Vec<Supervisor> {
        let mut servers = self.servers_mut();
        self.closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut *servers);
        drop(servers);
        all.into_values().filter_map(Entry::on).collect()
    }

    /// Every server, by name.
    pub(crate) fn all(&self) -> Vec<Entry> {
        self.servers().values().cloned().collect()
    }

    /// Every server that may run, by name.
    pub(crate) fn supervisors(&self) -> Vec<Supervisor> {
        self.all().into_iter().filter_map(Entry::on).collect()
    }

    /// One server's supervisor; `None` if there is no such server.
    pub(crate) fn get(&self, server: &ServerId) -> Option<Result<Supervisor, Error>> {
        Some(match self.servers().get(server)? {
            Entry::On(supervisor) => Ok(supervisor.clone()),
            Entry::Off(_) => Err(switched_off(server)),
        })
    }

    /// A claim on a living server: wakes it if need be. Whoever waited for a server that was replaced meanwhile is
    /// served by its successor.
    pub(crate) async fn lease(&self, server: &ServerId) -> Result<Lease, Error> {
        loop {
            let supervisor = self.get(server).unwrap_or_else(|| Err(unknown(server)))?;
            match supervisor.lease().await {
                Err(error) if error.kind() == ErrorKind::ShuttingDown && self.has_replaced(&supervisor) => {}
                lease => return lease,
            }
        }
    }

    /// Whether a server's supervisor is another one now, or none, and not because everything ends.
    pub(crate) fn has_replaced(&self, supervisor: &Supervisor) -> bool {
        let servers = self.servers();
        let there = servers.get(&supervisor.spec().id);
        let same = there.is_some_and(|entry| std::ptr::eq(entry.spec(), supervisor.spec()));
        !same && !self.closed.load(Ordering::Acquire)
    }

    /// What every server that may run is known to offer.
    pub(crate) fn listings(&self) -> BTreeMap<ServerId, Option<Arc<Listing>>> {
        let supervisors = self.supervisors();
        supervisors.iter().map(|supervisor| (supervisor.spec().id.clone(), supervisor.listing())).collect()
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
    use tokio::sync::{Notify, broadcast};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::spec::CommandSpec;

    #[tokio::test]
    async fn a_panic_under_the_lock_stops_nobody_who_comes_after() {
        let around = Surroundings {
            tasks: TaskTracker::new(),
            events: broadcast::channel(1).0,
            news: broadcast::channel(1).0,
            offers: Arc::new(Notify::new()),
            hurry: CancellationToken::new(),
        };
        let registry = Registry::new(None, around);
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
        let (changes, _) = registry.apply(roster);
        assert_eq!((changes.added.len(), registry.all().len()), (1, 1));
        assert_eq!(registry.close().len(), 1);
    }
}
