//! `Crib`: what an embedder holds; it answers calls until it is shut down, and owns every task.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::call::{Call, Outcome, Wanted};
use crate::catalog::{Catalog, Target, Tool};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::registry::{Changes, Entry, Registry};
use crate::spec::{NameClash, Roster, ServerId, ServerSpec};
use crate::status::ServerStatus;
use crate::supervisor::{Supervisor, Surroundings};
use crate::{pipeline, telemetry};

/// How many servers are started at the same time to be listed.
const PARALLEL_STARTS: usize = 8;
/// How long a list waits for servers that were never seen before.
const LIST_PATIENCE: Duration = Duration::from_secs(10);
/// How long calls under way may take when their server leaves the roster.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);
/// Events that a slow listener may be behind.
const EVENTS: usize = 1024;

/// Answers a call that nobody here can.
type Fallback = Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>> + Send + Sync>;

/// Every MCP server an agent uses, behind one door. Cheap to clone; the servers end when it is shut down or when the
/// last clone is dropped.
#[derive(Debug, Clone)]
pub struct Crib {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) registry: Registry,
    catalog: watch::Receiver<Arc<Catalog>>,
    around: Surroundings,
    starts: Arc<Semaphore>,
    fallback: Option<Fallback>,
    closing: AtomicBool,
    /// Ends the tasks of the crib itself.
    end: CancellationToken,
    /// Calls under way, so that a shutdown can wait for them.
    calls: TaskTracker,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crib").field("registry", &self.registry).finish_non_exhaustive()
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
        let around = Surroundings { tasks: TaskTracker::new(), events, offers: Arc::new(Notify::new()) };
        let registry = Registry::new(self.state_dir.map(|dir| dir.join("listings")), around.clone());
        registry.apply(self.roster);
        let (publish, catalog) = watch::channel(Arc::new(Catalog::build(1, &registry.listings())));
        let shared = Arc::new(Shared {
            registry,
            catalog,
            starts: Arc::new(Semaphore::new(PARALLEL_STARTS)),
            fallback: self.fallback,
            closing: AtomicBool::new(false),
            end: CancellationToken::new(),
            calls: TaskTracker::new(),
            around,
        });
        // The task holds the crib weakly: it ends with the crib, and does not keep it.
        let (weak, offers, end) = (Arc::downgrade(&shared), shared.around.offers.clone(), shared.end.clone());
        shared.around.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = offers.notified() => {}
                    () = publish.closed() => return,
                    () = end.cancelled() => return,
                }
                let Some(shared) = weak.upgrade() else { return };
                publish.send_modify(|catalog| {
                    *catalog = Arc::new(Catalog::build(catalog.revision() + 1, &shared.registry.listings()));
                });
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
    pub async fn call(&self, call: Call) -> Result<Outcome, Error> {
        let shared = &*self.shared;
        if shared.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down"));
        }
        let _under_way = shared.calls.token();
        let span = telemetry::span(&call);
        async move {
            let began = Instant::now();
            let tool = shared.around.events.receiver_count().gt(&0).then(|| call.name().to_owned());
            let outcome = match call.timeout {
                None => pipeline::run(shared, call).await,
                Some(limit) => {
                    let late = || Error::new(ErrorKind::TimedOut, format!("no answer within {limit:?}"));
                    let run = pipeline::run(shared, call);
                    timeout(limit, run).await.unwrap_or_else(|_| Err(late().hint("allow the call more time")))
                }
            };
            let took = began.elapsed();
            telemetry::ended(&outcome, took);
            if let Some(tool) = tool {
                shared.say_called(tool, &outcome, took);
            }
            outcome
        }
        .instrument(span)
        .await
    }

    /// What is known to be on offer; starts nothing.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.shared.catalog.borrow().clone()
    }

    /// Every change of what is on offer.
    pub fn watch_catalog(&self) -> watch::Receiver<Arc<Catalog>> {
        self.shared.catalog.clone()
    }

    /// What is on offer. Servers that were never seen before are started for it, in parallel and for a bounded time;
    /// one that fails costs only its own tools.
    pub async fn list(&self) -> Arc<Catalog> {
        let strangers: Vec<ServerId> = self.catalog().strangers().cloned().collect();
        self.shared.meet(&self.shared.supervisors(&strangers)).await;
        self.catalog()
    }

    /// As [`Crib::list`], for one server.
    pub async fn list_of(&self, server: &ServerId) -> Result<Arc<Catalog>, Error> {
        let supervisor = self.supervisor(server)?;
        if self.catalog().strangers().any(|stranger| stranger == server) {
            supervisor.lease().await?;
            self.shared.await_listing(server).await;
        }
        Ok(self.catalog())
    }

    /// Asks every server for its tools, in parallel: what is known at once, what is not by starting it. A server that
    /// fails tells why in its place.
    pub async fn discover(&self) -> Vec<Discovery> {
        let supervisors = self.shared.registry.supervisors();
        let failures = self.shared.meet(&supervisors).await;
        let catalog = self.catalog();
        let tools_of = |server: &ServerId| catalog.tools().iter().filter(|tool| tool.server == *server).cloned().collect();
        let discovery = |(supervisor, failure): (Supervisor, Option<Error>)| {
            let server = supervisor.spec().id.clone();
            Discovery { tools: failure.map_or_else(|| Ok(tools_of(&server)), Err), server }
        };
        supervisors.into_iter().zip(failures).map(discovery).collect()
    }

    /// Whether there is a server of this name, running or not.
    pub fn has(&self, server: &ServerId) -> bool {
        self.shared.registry.get(server).is_some()
    }

    /// Every server, by name.
    pub fn status(&self) -> Vec<ServerStatus> {
        let now = Instant::now();
        let status = |entry: &Entry| match entry {
            Entry::On(supervisor) => supervisor.status(now),
            Entry::Off(spec) => ServerStatus::off(spec),
        };
        self.shared.registry.all().iter().map(status).collect()
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

    /// Makes the servers those of `roster`: only what changed is stopped and started.
    pub async fn apply(&self, roster: Roster) -> Changes {
        let (changes, retired) = self.shared.registry.apply(roster);
        self.shared.around.offers.notify_one();
        retire(retired, DRAIN).await;
        changes
    }

    /// What happens from now on. A listener that falls behind misses the oldest.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.around.events.subscribe()
    }

    /// Takes no more calls, waits at most `grace` for those under way, stops every server, and waits for every task.
    pub async fn shutdown(&self, grace: Duration) {
        let shared = &self.shared;
        shared.closing.store(true, Ordering::Release);
        shared.calls.close();
        // What is still under way after the grace is lost with its server.
        let _ = timeout(grace, shared.calls.wait()).await;
        let (_, retired) = shared.registry.apply(Roster::default());
        retire(retired, Duration::ZERO).await;
        shared.end.cancel();
        shared.around.tasks.close();
        shared.around.tasks.wait().await;
    }

    fn supervisor(&self, server: &ServerId) -> Result<Supervisor, Error> {
        let found = self.shared.registry.get(server);
        found.unwrap_or_else(|| Err(self.catalog().unknown_server(server.as_str())))
    }
}

impl Shared {
    /// The one tool that is meant. A name that points at a server nobody has seen yet makes that one be listed first;
    /// a bare name, every such server.
    pub(crate) async fn find(&self, wanted: &Wanted) -> Result<Target, Error> {
        let catalog = self.catalog.borrow().clone();
        let (Err(unknown), Wanted::Named(name)) = (catalog.find(wanted), wanted) else { return catalog.find(wanted) };
        let strangers: Vec<ServerId> = match catalog.stranger_behind(name) {
            Some(stranger) => vec![stranger.clone()],
            None => catalog.strangers().cloned().collect(),
        };
        if strangers.is_empty() {
            return Err(unknown);
        }
        let failures = self.meet(&self.supervisors(&strangers)).await;
        let found = self.catalog.borrow().clone().find(wanted);
        match (found, <[Option<Error>; 1]>::try_from(failures)) {
            (Err(_), Ok([Some(failure)])) => Err(failure),
            (found, _) => found,
        }
    }

    pub(crate) async fn fall_back(&self, call: Call, error: Error) -> Result<Outcome, Error> {
        match &self.fallback {
            Some(fallback) if error.kind() == ErrorKind::Unknown => fallback(call).await,
            _ => Err(error),
        }
    }

    fn supervisors(&self, servers: &[ServerId]) -> Vec<Supervisor> {
        servers.iter().filter_map(|server| self.registry.get(server)?.ok()).collect()
    }

    /// Makes sure that servers have been listed: starts those that never were, a few at a time, for a bounded time
    /// altogether. Returns what went wrong with each, in order.
    async fn meet(&self, supervisors: &[Supervisor]) -> Vec<Option<Error>> {
        let until = Instant::now() + LIST_PATIENCE;
        let meetings: Vec<_> = supervisors
            .iter()
            .map(|supervisor| self.around.tasks.spawn(meet(supervisor.clone(), self.starts.clone(), until)))
            .collect();
        let mut failures = Vec::new();
        for meeting in meetings {
            failures.push(meeting.await.unwrap_or_else(|panic| Some(Error::new(ErrorKind::CouldNotStart, panic.to_string()))));
        }
        for (supervisor, failure) in supervisors.iter().zip(&failures) {
            if failure.is_none() {
                self.await_listing(&supervisor.spec().id).await;
            }
        }
        failures
    }

    /// A server that is up has been listed; the catalog shows it a moment later.
    async fn await_listing(&self, server: &ServerId) {
        let mut catalog = self.catalog.clone();
        // An error means that the crib is being dropped.
        let _ = catalog.wait_for(|catalog| catalog.strangers().all(|stranger| stranger != server)).await;
    }

    fn say_called(&self, tool: String, outcome: &Result<Outcome, Error>, took: Duration) {
        let error = outcome.as_ref().err();
        let event = Event::Called {
            server: outcome.as_ref().map_or_else(Error::server, |outcome| outcome.server.as_ref()).cloned(),
            tool,
            error: error.map(Error::kind),
            tool_error: outcome.as_ref().is_ok_and(Outcome::is_error),
            took,
        };
        // Nobody has to listen.
        let _ = self.around.events.send(event);
    }
}

/// Starts a server that was never listed, once it is its turn.
async fn meet(supervisor: Supervisor, starts: Arc<Semaphore>, until: Instant) -> Option<Error> {
    if supervisor.listing().is_some() {
        return None;
    }
    let met = timeout_at(until, async {
        let _turn = starts.acquire().await;
        supervisor.lease().await
    });
    match met.await {
        Ok(lease) => lease.err(),
        Err(_) => {
            let server = &supervisor.spec().id;
            let message = format!("`{server}` is still starting");
            Some(Error::new(ErrorKind::CouldNotStart, message).at(server).hint("ask again in a moment"))
        }
    }
}

async fn retire(supervisors: Vec<Supervisor>, drain: Duration) {
    let mut leaving = JoinSet::new();
    for supervisor in supervisors {
        leaving.spawn(async move { supervisor.retire(drain).await });
    }
    leaving.join_all().await;
}
