//! `Crib`: what an embedder holds; it answers calls until it is shut down, and owns every task.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::bridge::Lot;
use crate::call::{Call, Outcome, Wanted};
use crate::catalog::{Catalog, Tool};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, News};
use crate::registry::{Changes, Entry, Registry};
use crate::spec::{NameClash, Roster, ServerId, ServerSpec};
use crate::status::ServerStatus;
use crate::stock::{Fallback, PATIENCE, Stock};
use crate::subscription::{self, Subscription};
use crate::supervisor::{DRAIN, Supervisor, Surroundings};
use crate::{bridge, telemetry};

/// Events that a slow listener may be behind.
const EVENTS: usize = 1024;

/// Every MCP server an agent uses, behind one door. Cheap to clone; the servers end when it is shut down or when the
/// last clone is dropped.
#[derive(Debug, Clone)]
pub struct Crib {
    shared: Arc<Shared>,
}

struct Shared {
    stock: Arc<Stock>,
    /// Calls that wait for their client to come back.
    lot: Arc<Lot>,
    closing: AtomicBool,
    /// Ends the tasks of the crib itself.
    end: CancellationToken,
    /// Calls under way, so that a shutdown can wait for them.
    calls: TaskTracker,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crib").field("registry", &self.stock.registry).finish_non_exhaustive()
    }
}

/// What one server said when asked for its tools.
#[derive(Debug)]
pub struct Discovery {
    /// Which server.
    pub server: ServerId,
    /// Its tools, or why there are none to show.
    pub tools: Result<Vec<Tool>, Error>,
}

/// Builds a [`Crib`].
#[derive(Default)]
pub struct CribBuilder {
    roster: Roster,
    clash: Option<NameClash>,
    state_dir: Option<PathBuf>,
    patience: Option<Duration>,
    fallback: Option<Fallback>,
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

    /// Where listings are remembered between runs; without it they are not.
    #[must_use]
    pub fn state_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(dir.into());
        self
    }

    /// How long a list waits for servers that were never seen before: 10 s unless said otherwise.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
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
        let (events, _) = broadcast::channel(EVENTS);
        let (news, _) = broadcast::channel(EVENTS);
        let around = Surroundings {
            tasks: TaskTracker::new(),
            events,
            news,
            offers: Arc::new(Notify::new()),
            hurry: CancellationToken::new(),
            sleeps: Default::default(),
        };
        let patience = self.patience.unwrap_or(PATIENCE);
        let registry = Registry::new(self.state_dir.map(|dir| dir.join("listings")), around.clone());
        registry.apply(self.roster);
        let (publish, catalog) = watch::channel(Arc::new(Catalog::build(1, &registry.listings())));
        let shared = Arc::new(Shared {
            stock: Arc::new(Stock::new(registry, catalog, around.clone(), patience, self.fallback)),
            lot: Arc::new(Lot::new(around.tasks.clone())),
            closing: AtomicBool::new(false),
            end: CancellationToken::new(),
            calls: TaskTracker::new(),
        });
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

impl Crib {
    /// Starts building one.
    pub fn builder() -> CribBuilder {
        CribBuilder::default()
    }

    /// Calls a tool: finds the server that has it, makes sure that it is alive, asks it. Dropping the future cancels
    /// the call, also at the server.
    pub async fn call(&self, mut call: Call) -> Result<Outcome, Error> {
        let shared = &*self.shared;
        if shared.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down"));
        }
        let _under_way = shared.calls.token();
        match shared.is_watched() {
            false => shared.run(&mut call).await,
            true => {
                let span = telemetry::span(&call);
                Box::pin(shared.run_watched(&mut call).instrument(span)).await
            }
        }
    }

    /// What is known to be on offer; starts nothing.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.stock().catalog()
    }

    /// Every change of what is on offer.
    pub fn watch_catalog(&self) -> watch::Receiver<Arc<Catalog>> {
        self.stock().catalog.clone()
    }

    /// What is on offer. Servers that were never seen before are started for it, in parallel and for a bounded time;
    /// one that fails costs only its own tools, and one that has just failed is not waited for.
    pub async fn list(&self) -> Arc<Catalog> {
        let strangers: Vec<ServerId> = self.catalog().strangers().cloned().collect();
        let mut supervisors = self.stock().supervisors(&strangers);
        supervisors.retain(Supervisor::may_be_listed);
        self.stock().meet(&supervisors).await;
        self.catalog()
    }

    /// As [`Crib::list`], for one server, which tells why if it fails.
    pub async fn list_of(&self, server: &ServerId) -> Result<Arc<Catalog>, Error> {
        let supervisor = self.supervisor(server)?;
        match self.stock().meet(&[supervisor]).await.pop().flatten() {
            Some(failure) => Err(failure),
            None => Ok(self.catalog()),
        }
    }

    /// Asks every server for its tools, in parallel: what is known at once, what is not by starting it. A server that
    /// fails tells why in its place.
    pub async fn discover(&self) -> Vec<Discovery> {
        let supervisors = self.stock().registry.supervisors();
        let failures = self.stock().meet(&supervisors).await;
        let catalog = self.catalog();
        let tools_of = |server: &ServerId| {
            catalog.tools().iter().filter(|tool| tool.server == *server).cloned().collect()
        };
        let discovery = |(supervisor, failure): (Supervisor, Option<Error>)| {
            let server = supervisor.spec().id.clone();
            Discovery { tools: failure.map_or_else(|| Ok(tools_of(&server)), Err), server }
        };
        supervisors.into_iter().zip(failures).map(discovery).collect()
    }

    /// Whether there is a server of this name, running or not.
    pub fn has(&self, server: &ServerId) -> bool {
        self.stock().registry.get(server).is_some()
    }

    /// Every server, by name.
    pub fn status(&self) -> Vec<ServerStatus> {
        let now = Instant::now();
        let status = |entry: &Entry| match entry {
            Entry::On(supervisor) => supervisor.status(now),
            Entry::Off(spec) => ServerStatus::off(spec),
        };
        self.stock().registry.all().iter().map(status).collect()
    }

    /// Stops a server if it runs, forgives everything that went wrong, and waits until it is up.
    pub async fn restart(&self, server: &ServerId) -> Result<(), Error> {
        self.supervisor(server)?.restart().await
    }

    /// Stops a server, whatever leases exist; the next call wakes it.
    pub async fn stop(&self, server: &ServerId) -> Result<(), Error> {
        self.supervisor(server)?.stop().await
    }

    /// The kept lines of a server's stderr with a number greater than `after`, each with its number; with `wait`, as
    /// soon as there is one.
    pub async fn logs(&self, server: &ServerId, after: u64, wait: bool) -> Result<Vec<(u64, String)>, Error> {
        let supervisor = self.supervisor(server)?;
        if wait {
            supervisor.stderr().grown(after).await;
        }
        Ok(supervisor.stderr().after(after))
    }

    /// Makes the servers those of `roster`: only what changed is stopped and started. The catalog knows of it before
    /// this returns.
    pub async fn apply(&self, roster: Roster) -> Changes {
        let (changes, retired) = self.stock().registry.apply(roster);
        self.stock().around.offers.notify_one();
        self.stock().await_servers(&changes).await;
        retire(retired, DRAIN).await;
        changes
    }

    /// Has a resource's server tell when it changes; what it tells is in [`Crib::news`]. Dropping the subscription ends
    /// it.
    pub async fn subscribe(&self, wanted: &Wanted) -> Result<Subscription, Error> {
        subscription::begin(&self.shared.stock, wanted).await
    }

    /// What servers say unasked from now on. A listener that falls behind misses the oldest.
    pub fn news(&self) -> broadcast::Receiver<News> {
        self.stock().around.news.subscribe()
    }

    /// What happens from now on. A listener that falls behind misses the oldest.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.stock().around.events.subscribe()
    }

    /// Takes no more calls, waits at most `grace` for those under way, stops every server, and waits for every task.
    pub async fn shutdown(&self, grace: Duration) {
        let shared = &self.shared;
        shared.closing.store(true, Ordering::Release);
        shared.calls.close();
        // What is still under way after the grace is lost with its server.
        let _ = timeout(grace, shared.calls.wait()).await;
        shared.stock.around.hurry.cancel();
        shared.lot.close();
        retire(shared.stock.registry.close(), Duration::ZERO).await;
        shared.end.cancel();
        shared.stock.around.tasks.close();
        shared.stock.around.tasks.wait().await;
    }

    fn stock(&self) -> &Stock {
        &self.shared.stock
    }

    fn supervisor(&self, server: &ServerId) -> Result<Supervisor, Error> {
        let found = self.stock().registry.get(server);
        found.unwrap_or_else(|| Err(self.catalog().unknown_server(server.as_str())))
    }
}

impl Shared {
    /// Whether anybody sees what a call does.
    fn is_watched(&self) -> bool {
        telemetry::is_on() || self.stock.around.events.receiver_count() > 0
    }

    async fn run(&self, call: &mut Call) -> Result<Outcome, Error> {
        let Some(limit) = call.timeout else { return bridge::run(&self.stock, &self.lot, call).await };
        let ended = Box::pin(timeout(limit, bridge::run(&self.stock, &self.lot, call))).await;
        ended.unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::TimedOut, format!("no answer within {limit:?}"));
            let error = error.hint("allow the call more time");
            Err(if call.left { error.left() } else { error.unsent() })
        })
    }

    async fn run_watched(&self, call: &mut Call) -> Result<Outcome, Error> {
        let (began, tool) = (Instant::now(), call.name().to_owned());
        let outcome = self.run(call).await;
        let took = began.elapsed();
        telemetry::ended(&outcome, took);
        let error = outcome.as_ref().err();
        let event = Event::Called {
            server: outcome.as_ref().map_or_else(Error::server, |outcome| outcome.server.as_ref()).cloned(),
            tool,
            error: error.map(Error::kind),
            tool_error: outcome.as_ref().is_ok_and(Outcome::is_error),
            took,
        };
        // Nobody has to listen.
        let _ = self.stock.around.events.send(event);
        outcome
    }
}

async fn retire(supervisors: Vec<Supervisor>, drain: Duration) {
    let mut leaving = JoinSet::new();
    for supervisor in supervisors {
        leaving.spawn(async move { supervisor.retire(drain).await });
    }
    leaving.join_all().await;
}
