//! `CribBuilder`: what a crib is made of.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Crib, Shared};
use crate::bridge::Lot;
use crate::cache::Cache;
use crate::call::{Call, Caller, Outcome};
use crate::catalog::Catalog;
use crate::connection::child::Nursery;
use crate::error::Error;
use crate::log_line::{LogLine, LogSink};
use crate::pins::Cabinet;
use crate::policy::{Policy, Verdict};
use crate::quota::meter::Meter;
use crate::quota::{Quota, memory};
use crate::record::{Watchers, Witness};
use crate::registry::Registry;
use crate::secret::Source;
use crate::spec::{Capacity, NameClash, Roster, ServerId, ServerSpec};
use crate::stock::{Fallback, PATIENCE, Stock};
use crate::supervisor::room::Room;
use crate::supervisor::{Surroundings, scales};
use crate::text::{NoSecret, Secret};
use crate::views::Views;

/// Builds a [`Crib`].
#[derive(Default)]
pub struct CribBuilder {
    roster: Roster,
    clash: Option<NameClash>,
    state_dir: Option<PathBuf>,
    pins: Option<PathBuf>,
    shim: Option<PathBuf>,
    patience: Option<Duration>,
    capacity: Capacity,
    policy: Policy,
    quota: Quota,
    quota_file: Option<PathBuf>,
    fallback: Option<Fallback>,
    log: Option<LogSink>,
    witness: Option<Arc<dyn Witness>>,
    secrets: Option<Source>,
}

impl std::fmt::Debug for CribBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CribBuilder").field("roster", &self.roster).finish_non_exhaustive()
    }
}

impl CribBuilder {
    /// Adds a server.
    #[must_use]
    pub fn server(mut self, spec: ServerSpec) -> Self {
        if let Err(clash) = self.roster.add(spec) {
            self.clash.get_or_insert(clash);
        }
        self
    }

    /// Adds all servers of a roster.
    #[must_use]
    pub fn roster(self, roster: Roster) -> Self {
        roster.into_servers().fold(self, Self::server)
    }

    /// Where listings are remembered between runs, and which processes run: those that a crib which was killed left
    /// behind are ended when the next crib with this folder is built. Without it nothing is remembered.
    #[must_use]
    pub fn state_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(dir.into());
        self
    }

    /// Where it is kept what was approved of each server's tools: below the state folder unless said otherwise.
    #[must_use]
    pub fn pins_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.pins = Some(dir.into());
        self
    }

    /// A program to put between this process and each server: it ends the server and everything that the server started
    /// as soon as this process ends, however that comes about. The program must call [`run_shim`](crate::run_shim) first
    /// thing in its `main`; `/proc/self/exe` is this very program. Without it a server is told to die when this process
    /// dies, and what it started may be left behind. Only on Linux; elsewhere it changes nothing.
    #[must_use]
    pub fn shim(mut self, program: impl Into<PathBuf>) -> Self {
        self.shim = Some(program.into());
        self
    }

    /// How long a list waits for servers that were never seen before: 10 s unless said otherwise.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Who keeps a log of each server: hears every line of its stderr and what happens to it. It must not wait.
    #[must_use]
    pub fn log<F>(mut self, log: F) -> Self
    where
        F: Fn(LogLine<'_>) + Send + Sync + 'static,
    {
        self.log = Some(LogSink(Arc::new(log)));
        self
    }

    /// Who knows the values behind `${secret:NAME}`. It is asked when a connection starts and at no other time, on a thread
    /// where it may wait; a shutdown waits for it. What it says is held by that connection alone.
    #[must_use]
    pub fn secrets<F>(mut self, find: F) -> Self
    where
        F: Fn(&str) -> Result<Secret, NoSecret> + Send + Sync + 'static,
    {
        self.secrets = Some(Source(Arc::new(find)));
        self
    }

    /// Who sees the end of every call, refused ones included, and may keep calls from being made.
    #[must_use]
    pub fn witness(mut self, witness: Arc<dyn Witness>) -> Self {
        self.witness = Some(witness);
        self
    }

    /// What all servers together may take: as much as they get unless said otherwise.
    #[must_use]
    pub fn capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = capacity;
        self
    }

    /// Who may see and use what: everyone everything unless said otherwise.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        let guard = self.policy.guard.take();
        self.policy = Policy { guard, ..policy };
        self
    }

    /// Decides, beside the policy, about each caller, server and own name of a tool, prompt or resource, and without a
    /// name about the server as such. It is asked when something is listed and again when it is called; either no is a
    /// no. It must not wait.
    #[must_use]
    pub fn guard<F>(mut self, guard: F) -> Self
    where
        F: Fn(&Caller, &ServerId, Option<&str>) -> Verdict + Send + Sync + 'static,
    {
        self.policy.guard = Some(Arc::new(guard));
        self
    }

    /// How much callers and clients may use: as much as they like unless said otherwise.
    #[must_use]
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = quota;
        self
    }

    /// Where is remembered what was used of quotas, so that it counts on in the next crib with this file. Without it each
    /// crib begins anew.
    #[must_use]
    pub fn quota_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.quota_file = Some(file.into());
        self
    }

    /// Who gets the calls for names that nobody here offers.
    #[must_use]
    pub fn fallback<F, A>(mut self, fallback: F) -> Self
    where
        F: Fn(Call) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        self.fallback = Some(Arc::new(move |call| Box::pin(fallback(call))));
        self
    }

    /// The crib, within the tokio runtime that this is called in. Two servers of the same name are refused.
    pub fn build(self) -> Result<Crib, NameClash> {
        if let Some(clash) = self.clash {
            return Err(clash);
        }
        let trees = self.state_dir.as_ref().map(|dir| dir.join("trees"));
        let (nursery, room) = (Arc::new(Nursery::new(self.shim, trees)), Room::new(self.capacity.servers));
        let pins = self.pins.or_else(|| Some(self.state_dir.as_ref()?.join("pins")));
        let (pins, room, cache) = (Arc::new(Cabinet::new(pins)), Arc::new(room), Arc::<Cache>::default());
        cache.resize(self.capacity.cache);
        let (log, secrets, views) = (self.log, self.secrets, Views::new(self.policy));
        let around = Surroundings { cache, nursery, room, log, pins, secrets, ..Surroundings::default() };
        let meter = Meter::new(self.quota, self.quota_file.as_deref());
        let registry = Registry::new(self.state_dir.map(|dir| dir.join("listings")), around.clone());
        registry.apply(self.roster);
        let (publish, catalog) = watch::channel(Arc::new(Catalog::build(1, &registry.listings())));
        let shared = Arc::new(Shared {
            stock: Arc::new(Stock::new(
                registry,
                catalog,
                around.clone(),
                views,
                meter,
                self.patience.unwrap_or(PATIENCE),
                self.fallback,
            )),
            lot: Arc::new(Lot::new(around.tasks.clone())),
            closing: AtomicBool::new(false),
            capacity: watch::Sender::new(self.capacity),
            end: CancellationToken::new(),
            watchers: Watchers { events: around.events.clone(), witness: self.witness },
            calls: TaskTracker::new(),
        });
        let stock = Arc::downgrade(&shared.stock);
        if let Some(file) = self.quota_file {
            let (used, stock) = (shared.stock.meter.used(), stock.clone());
            let saved = move || Some(stock.upgrade()?.meter.saved());
            around.tasks.spawn(memory::keep(file, used, saved, shared.end.clone()));
        }
        let servers = move || {
            let stock = stock.upgrade()?;
            Some((stock.registry.supervisors(), stock.registry.limits_memory()))
        };
        let (capacity, end) = (shared.capacity.subscribe(), shared.end.clone());
        around.tasks.spawn(scales::watch(servers, capacity, end));
        // The task holds the crib weakly: it ends with the crib, and does not keep it.
        let (weak, offers, end) = (Arc::downgrade(&shared), around.offers.clone(), shared.end.clone());
        around.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = offers.notified() => {}
                    () = publish.closed() => return,
                    () = end.cancelled() => return,
                }
                let Some(shared) = weak.upgrade() else { return };
                let revision = publish.borrow().revision() + 1;
                publish.send_replace(Arc::new(Catalog::build(revision, &shared.stock.registry.listings())));
            }
        });
        Ok(Crib { shared })
    }
}
