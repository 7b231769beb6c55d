//! `Instances`: the copies of a server that is not shared, one for each key.
//!
//! Each is made when somebody asks for it first and has a supervisor of its own; one that has gone to sleep, or whose
//! client has left, is forgotten.

mod report;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::call::Call;
use crate::connection::listing::Listing;
use crate::connection::stderr::StderrTail;
use crate::error::{Error, ErrorKind};
use crate::sharing::{SharingKey, Whose};
use crate::spec::{Endpoint, ServerSpec, Start};
use crate::supervisor::fate::Fate;
use crate::supervisor::gauges::Gauges;
use crate::supervisor::memory::Memory;
use crate::supervisor::{Books, Lease, Rest, Supervisor, Surroundings};

/// The copies of one server.
#[derive(Debug)]
pub(crate) struct Instances {
    spec: Arc<ServerSpec>,
    /// What all of them together write down.
    books: Books,
    open: Mutex<Open>,
    /// Rung when there is a new one.
    begun: Notify,
    around: Surroundings,
}

#[derive(Debug, Default)]
struct Open {
    instances: HashMap<SharingKey, Instance>,
    /// Those of the spec before this one, which are on their way out.
    before: Vec<(SharingKey, Supervisor)>,
    closed: bool,
}

#[derive(Debug)]
struct Instance {
    supervisor: Supervisor,
    /// When somebody asked for it last.
    used: Instant,
    waiting: Arc<Waiting>,
}

/// Who is about to get a lease on an instance.
#[derive(Debug, Default)]
struct Waiting {
    count: AtomicUsize,
    /// Rung when there is nobody.
    over: Notify,
}

/// The right to ask an instance for a lease: it is not forgotten meanwhile.
struct Claim {
    supervisor: Supervisor,
    waiting: Arc<Waiting>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.waiting.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiting.over.notify_one();
        }
    }
}

impl Instance {
    fn claim(&mut self, now: Instant) -> Claim {
        self.used = now;
        self.waiting.count.fetch_add(1, Ordering::AcqRel);
        Claim { supervisor: self.supervisor.clone(), waiting: self.waiting.clone() }
    }

    fn is_idle(&self) -> bool {
        self.waiting.count.load(Ordering::Acquire) == 0 && self.supervisor.is_idle()
    }
}

impl Instances {
    /// None yet; `before` are those of the spec that this one replaces.
    pub(super) fn new(
        spec: ServerSpec,
        memory: Memory,
        before: Vec<(SharingKey, Supervisor)>,
        around: Surroundings,
    ) -> Self {
        let fate = Arc::new(Fate::new(&spec.lifecycle));
        let books = Books { memory, gauges: Arc::default(), stderr: Arc::default(), fate };
        let open = Mutex::new(Open { before, ..Open::default() });
        Self { spec: Arc::new(spec), books, open, begun: Notify::new(), around }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spec(&self) -> &ServerSpec {
        &self.spec
    }

    pub(crate) fn stderr(&self) -> &Arc<StderrTail> {
        &self.books.stderr
    }

    /// What any of them was known to offer last.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        self.books.memory.known().map(|known| known.listing)
    }

    /// Whether it is worth starting one to be listed.
    pub(crate) fn may_be_listed(&self) -> bool {
        let fate = &self.books.fate;
        let failed = fate.is_ejected() || fate.until(Instant::now()).is_some();
        !failed && !self.books.gauges.slow.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_slow(&self) {
        self.books.gauges.slow.store(true, Ordering::Relaxed);
    }

    /// Starts one that is nobody's, only to see what it offers.
    pub(crate) async fn look(self: &Arc<Self>) -> Result<(), Error> {
        let whose = || Whose { key: SharingKey::Nobody, ..Whose::default() };
        drop(self.lease_of(&SharingKey::Nobody, whose).await?);
        self.part_with(|key| *key == SharingKey::Nobody);
        Ok(())
    }

    /// A claim on the instance that a call goes to, and where that is.
    pub(crate) async fn lease(self: &Arc<Self>, call: &Call) -> Result<(Lease, Spot), Error> {
        let key = SharingKey::of(self.spec.sharing, call).await;
        let (lease, supervisor) = self.lease_of(&key, || Whose::of(key.clone(), call)).await?;
        Ok((lease, Spot { instances: Some(Arc::downgrade(self)), key, supervisor }))
    }

    async fn lease_of(
        self: &Arc<Self>,
        key: &SharingKey,
        whose: impl Fn() -> Whose,
    ) -> Result<(Lease, Supervisor), Error> {
        loop {
            let there = self.open().claim(key);
            let claim = match there {
                Some(claim) => claim,
                None => self.begin(key, whose(), folder(key).await)?,
            };
            match claim.supervisor.lease().await {
                // It was put away in this very moment.
                Err(error) if error.kind() == ErrorKind::ShuttingDown && !self.open().closed => {
                    self.remove(key, &claim.waiting);
                }
                leased => return leased.map(|lease| (lease, claim.supervisor.clone())),
            }
        }
    }

    /// Makes an instance, in the place of the one that has been idle longest if there is no other.
    fn begin(
        self: &Arc<Self>,
        key: &SharingKey,
        whose: Whose,
        folder: Option<PathBuf>,
    ) -> Result<Claim, Error> {
        let mut open = self.open();
        if open.closed {
            return Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down"));
        }
        if let Some(claim) = open.claim(key) {
            return Ok(claim);
        }
        let mut before = open.before_of(key);
        if open.instances.len() >= self.spec.limits.instances.get() {
            let idle = open.instances.iter().filter(|(_, instance)| instance.is_idle());
            let oldest = idle.min_by_key(|(_, instance)| instance.used).map(|(key, _)| key.clone());
            let oldest = oldest.ok_or_else(|| self.no_room())?;
            before.extend(open.instances.remove(&oldest).map(|instance| instance.supervisor));
        }
        let books = Books {
            memory: self.books.memory.clone(),
            gauges: Arc::new(Gauges::part_of(self.books.gauges.clone())),
            stderr: Arc::new(StderrTail::part_of(self.books.stderr.clone())),
            fate: self.books.fate.clone(),
        };
        let spec = self.spec_in(folder);
        let supervisor = Supervisor::start_for(Arc::new(whose), spec, before, books, self.around.clone());
        let (now, waiting) = (Instant::now(), Arc::<Waiting>::default());
        let tended = tend(Arc::downgrade(self), key.clone(), supervisor.rest(), waiting.clone());
        let mut instance = Instance { supervisor, used: now, waiting };
        let claim = instance.claim(now);
        open.instances.insert(key.clone(), instance);
        drop(open);
        self.begun.notify_waiters();
        self.around.tasks.spawn(tended);
        Ok(claim)
    }

    /// The spec of an instance that works in `folder`, unless it is to work elsewhere.
    fn spec_in(&self, folder: Option<PathBuf>) -> ServerSpec {
        let mut spec = ServerSpec::clone(&self.spec);
        spec.lifecycle.start = Start::OnDemand;
        if let Endpoint::Command(command) = &mut spec.endpoint
            && command.cwd.is_none()
        {
            command.cwd = folder;
        }
        spec
    }

    fn no_room(&self) -> Error {
        let (server, most) = (&self.spec.id, self.spec.limits.instances);
        let message = format!("`{server}` has {most} instances, and all of them are busy");
        let hint = format!("try again when one is idle, or raise `servers.{server}.limits.instances`");
        Error::new(ErrorKind::OverQuota, message).at(server).hint(hint)
    }

    /// The instance under a key, if it is that one and not another of the same key.
    fn remove(&self, key: &SharingKey, waiting: &Arc<Waiting>) -> Option<Supervisor> {
        let mut open = self.open();
        let same = open.instances.get(key).is_some_and(|there| Arc::ptr_eq(&there.waiting, waiting));
        if same { open.instances.remove(key).map(|there| there.supervisor) } else { None }
    }

    /// Takes an instance out that is at rest and that nobody is about to use.
    fn forget(&self, key: &SharingKey, waiting: &Arc<Waiting>) -> Option<Supervisor> {
        let mut open = self.open();
        let there = open.instances.get(key).filter(|there| Arc::ptr_eq(&there.waiting, waiting))?;
        if !there.is_idle() || !there.supervisor.is_asleep() {
            return None;
        }
        open.instances.remove(key).map(|there| there.supervisor)
    }

    /// Ends the instances of somebody who has left, once what they work on is done.
    pub(crate) fn part_with(&self, leaves: impl Fn(&SharingKey) -> bool) {
        let mut leaving = Vec::new();
        self.open().instances.retain(|key, instance| {
            let leaves = leaves(key);
            if leaves {
                leaving.push(instance.supervisor.clone());
            }
            !leaves
        });
        for supervisor in leaving {
            supervisor.see_out(&self.around);
        }
    }

    /// Tells the instances of one client something that wants no answer.
    pub(crate) fn tell(&self, client: u64, method: &str) {
        for (key, instance) in &self.open().instances {
            if key.is_of(client) {
                instance.supervisor.tell(method);
            }
        }
    }

    /// Every instance; there will be no more.
    pub(super) fn close(&self) -> Vec<(SharingKey, Supervisor)> {
        let mut open = self.open();
        open.closed = true;
        open.before.clear();
        open.instances.drain().map(|(key, instance)| (key, instance.supervisor)).collect()
    }

    pub(super) fn supervisors(&self) -> Vec<Supervisor> {
        self.open().instances.values().map(|instance| instance.supervisor.clone()).collect()
    }

    /// Stops every instance.
    pub(crate) async fn stop(&self) -> Result<(), Error> {
        let mut stops = JoinSet::new();
        for supervisor in self.supervisors() {
            stops.spawn(async move { supervisor.stop().await });
        }
        // One that was forgotten meanwhile has stopped.
        stops.join_all().await;
        Ok(())
    }

    /// Forgives everything, and starts every instance anew that is not asleep.
    pub(crate) async fn restart(&self) -> Result<(), Error> {
        self.books.fate.pardon();
        let mut restarts = JoinSet::new();
        for supervisor in self.supervisors().into_iter().filter(|supervisor| !supervisor.is_asleep()) {
            restarts.spawn(async move { supervisor.restart().await });
        }
        let failed = |error: &Error| error.kind() != ErrorKind::ShuttingDown;
        restarts.join_all().await.into_iter().filter_map(Result::err).find(failed).map_or(Ok(()), Err)
    }
}

/// Where a lease was given out.
pub(crate) struct Spot {
    /// `None` if there is but one.
    instances: Option<Weak<Instances>>,
    pub(crate) key: SharingKey,
    pub(crate) supervisor: Supervisor,
}

impl Spot {
    pub(super) fn shared(supervisor: &Supervisor) -> Self {
        Self { instances: None, key: SharingKey::Shared, supervisor: supervisor.clone() }
    }

    /// Waits until it is up again, or until another has come in its place. One that was replaced together with its spec
    /// never will be, and is not waited for.
    pub(crate) async fn up_again(&self) {
        self.supervisor.up_again().await;
        while let Some(instances) = self.instances.as_ref().and_then(Weak::upgrade) {
            let begun = instances.begun.notified();
            let (there, closed) = {
                let open = instances.open();
                (open.instances.get(&self.key).map(|instance| instance.supervisor.clone()), open.closed)
            };
            match there {
                Some(there) => return there.up_again().await,
                None if closed => return,
                None => begun.await,
            }
        }
    }
}

impl Open {
    fn claim(&mut self, key: &SharingKey) -> Option<Claim> {
        self.instances.get_mut(key).map(|instance| instance.claim(Instant::now()))
    }

    /// Those of the spec before this one that an instance takes the place of.
    fn before_of(&mut self, key: &SharingKey) -> Vec<Supervisor> {
        let replaced = |(old, _): &(SharingKey, Supervisor)| old == key || *old == SharingKey::Shared;
        self.before.iter().filter(|old| replaced(old)).map(|(_, supervisor)| supervisor.clone()).collect()
    }
}

/// The folder that an instance works in, if its key is one and it is there.
async fn folder(key: &SharingKey) -> Option<PathBuf> {
    let SharingKey::Project(project) = key else { return None };
    let folder = project.folder()?;
    let found = tokio::fs::metadata(folder).await.is_ok_and(|found| found.is_dir());
    found.then(|| folder.to_owned())
}

/// Forgets an instance as soon as it rests.
async fn tend(instances: Weak<Instances>, key: SharingKey, mut rest: Rest, waiting: Arc<Waiting>) {
    while rest.come().await {
        let Some(instances) = instances.upgrade() else { return };
        let resting = instances.forget(&key, &waiting);
        drop(instances);
        if let Some(supervisor) = resting {
            return supervisor.retire(Duration::ZERO).await;
        }
        tokio::select! {
            () = waiting.over.notified() => {}
            () = rest.end() => {}
        }
    }
}
