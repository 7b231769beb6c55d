//! `Crib`: what an embedder holds; it answers calls until it is shut down, and owns every task.

mod approvals;
mod builder;
mod freshness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::bridge::Lot;
use crate::cache::{Stale, Tally};
use crate::call::{Call, Caller, Outcome, Wanted};
use crate::catalog::{Catalog, Kind, Tool};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, News};
use crate::policy::Policy;
use crate::quota::{Quota, Standing};
use crate::record::{Watched, Watchers};
use crate::registry::{Changes, Entry};
use crate::sharing::Guest;
use crate::spec::{Capacity, Roster, ServerId};
use crate::spelling;
use crate::status::ServerStatus;
use crate::stock::Stock;
use crate::subscription::{self, Subscription};
use crate::supervisor::Supervisor;
use crate::wire::dialect::client::{ROOTS_CHANGED, SUBSCRIBE};
use crate::wire::object::Object;
use crate::{bridge, telemetry};
pub use builder::CribBuilder;
pub use freshness::Freshness;

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
    /// What all servers together may take.
    capacity: watch::Sender<Capacity>,
    /// Ends the tasks of the crib itself.
    end: CancellationToken,
    /// Who hears of the end of calls.
    watchers: Watchers,
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

impl Crib {
    /// Starts building one.
    pub fn builder() -> CribBuilder {
        CribBuilder::default()
    }

    /// Calls a tool: finds the server that has it, makes sure that it is alive, asks it. Dropping the future cancels
    /// the call, also at the server.
    pub async fn call(&self, call: Call) -> Result<Outcome, Error> {
        let shared = &*self.shared;
        let _under_way = shared.calls.token();
        let mut watched = Watched::new(call, &shared.watchers);
        let outcome = match watched.admit() {
            Err(refused) => Err(refused),
            Ok(()) if telemetry::is_on() => Box::pin(shared.run_traced(&mut watched.call)).await,
            Ok(()) => shared.run(&mut watched.call).await,
        };
        watched.end(&outcome);
        outcome
    }

    /// What is known to be on offer, whoever may use it; starts nothing.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.stock().catalog()
    }

    /// What is known to be on offer to a caller; starts nothing.
    pub fn catalog_for(&self, caller: &Caller) -> Arc<Catalog> {
        self.stock().seen(caller)
    }

    /// Whether a caller may know of a server.
    pub fn sees(&self, caller: &Caller, server: &ServerId) -> bool {
        self.stock().views.sees(caller, server)
    }

    /// Whether there is a profile of this name.
    pub fn has_profile(&self, name: &str) -> bool {
        self.stock().views.has_profile(name)
    }

    /// Every change of what is on offer, or of who may use it.
    pub fn watch_catalog(&self) -> watch::Receiver<Arc<Catalog>> {
        self.stock().catalog.clone()
    }

    /// What is on offer to whoever is local. Servers that were never seen before are started for it, in parallel and for
    /// a bounded time; one that fails costs only its own tools, and one that has just failed is not waited for.
    pub async fn list(&self) -> Arc<Catalog> {
        self.list_for(&Caller::local()).await
    }

    /// As [`Crib::list`], for any caller.
    pub async fn list_for(&self, caller: &Caller) -> Arc<Catalog> {
        let strangers: Vec<ServerId> = self.catalog_for(caller).strangers().cloned().collect();
        let mut servers = self.stock().servers(&strangers);
        servers.retain(Entry::may_be_listed);
        self.stock().meet(&servers).await;
        self.catalog_for(caller)
    }

    /// As [`Crib::list`], for one server, which tells why if it fails.
    pub async fn list_of(&self, server: &ServerId) -> Result<Arc<Catalog>, Error> {
        self.list_of_for(server, &Caller::local()).await
    }

    /// As [`Crib::list_of`], for any caller.
    pub async fn list_of_for(&self, server: &ServerId, caller: &Caller) -> Result<Arc<Catalog>, Error> {
        if !self.sees(caller, server) {
            return Err(self.catalog_for(caller).unknown_server(server.as_str()));
        }
        let entry = self.entry(server)?;
        match self.stock().meet(&[entry]).await.pop().flatten() {
            Some(failure) => Err(failure),
            None => Ok(self.catalog_for(caller)),
        }
    }

    /// How long a list is good that a caller was shown just now: of everything, or of one server. One that has become stale
    /// is asked for again, and a change is announced.
    pub fn freshness(&self, kind: Kind, of: Option<&ServerId>, caller: &Caller) -> Freshness {
        let mut entries = self.stock().registry.running();
        entries.retain(|entry| match of {
            Some(server) => entry.spec().id == *server,
            None => self.sees(caller, &entry.spec().id),
        });
        let now = Instant::now();
        let fresh = Freshness::of(entries.iter().map(|entry| entry.good(kind, now)), now);
        // Where there are rules, a list is its caller's.
        Freshness { public: fresh.public && self.stock().views.policy().is_none(), ..fresh }
    }

    /// Asks every server for the tools that whoever is local may use, in parallel: what is known at once, what is not by
    /// starting it. A server that fails tells why in its place.
    pub async fn discover(&self) -> Vec<Discovery> {
        self.discover_for(&Caller::local()).await
    }

    /// As [`Crib::discover`], for any caller.
    pub async fn discover_for(&self, caller: &Caller) -> Vec<Discovery> {
        let mut servers = self.stock().registry.running();
        servers.retain(|entry| self.sees(caller, &entry.spec().id));
        let failures = self.stock().meet(&servers).await;
        let catalog = self.catalog_for(caller);
        let tools_of = |server: &ServerId| {
            catalog.tools().iter().filter(|tool| tool.server == *server).cloned().collect()
        };
        let discovery = |(entry, failure): (Entry, Option<Error>)| {
            let server = entry.spec().id.clone();
            Discovery { tools: failure.map_or_else(|| Ok(tools_of(&server)), Err), server }
        };
        servers.into_iter().zip(failures).map(discovery).collect()
    }

    /// Puts other rules in force, from the next list and the next call on. What [`CribBuilder::guard`] was given stays.
    pub fn govern(&self, policy: Policy) {
        self.stock().views.replace(policy);
        // Whoever watches the catalog looks again.
        self.stock().around.offers.notify_one();
    }

    /// Puts another quota in force, from the next call on. What was used of limits that stay counts on.
    pub fn ration(&self, quota: Quota) {
        self.stock().meter.replace(quota);
    }

    /// What is left to every caller that has limits and is declared, or has made a call.
    pub fn standings(&self) -> Vec<Standing> {
        self.stock().meter.standings(Instant::now())
    }

    /// Whether there is a server of this name, running or not.
    pub fn has(&self, server: &ServerId) -> bool {
        self.stock().registry.get(server).is_some()
    }

    /// Every server, by name.
    pub fn status(&self) -> Vec<ServerStatus> {
        let (now, around, registry) = (Instant::now(), &self.stock().around, &self.stock().registry);
        let status = |entry: &Entry| {
            let Tally { entries, hits, misses, .. } = around.cache.tally(&entry.spec().id, around.moment());
            let kept = ServerStatus { cache_entries: entries, cache_hits: hits, ..entry.status(now) };
            let unapproved = registry.unapproved(entry.spec());
            ServerStatus { cache_misses: misses, unapproved, ..kept }
        };
        registry.all().iter().map(status).collect()
    }

    /// Stops a server if it runs, forgives everything that went wrong, and waits until it is up. Of one that is not
    /// shared, every instance.
    pub async fn restart(&self, server: &ServerId) -> Result<(), Error> {
        let restarted = self.entry(server)?.restart().await;
        self.stock().around.cache.forget(server, None, Stale::All);
        restarted
    }

    /// Stops a server, whatever leases exist; the next call wakes it. Of one that is not shared, every instance.
    pub async fn stop(&self, server: &ServerId) -> Result<(), Error> {
        let entry = self.entry(server)?;
        let leaving = self.stock().around.leaving.all();
        let mut stops = JoinSet::new();
        for old in leaving.into_iter().filter(|old| old.spec().id == *server) {
            stops.spawn(async move { old.stop().await });
        }
        let stopped = entry.stop().await;
        // One that is gone meanwhile has stopped.
        stops.join_all().await;
        self.stock().around.cache.forget(server, None, Stale::All);
        stopped
    }

    /// Tells that a client has left: the servers that were its alone are stopped, once what they work on is done.
    pub fn part_with(&self, client: u64) {
        self.stock().registry.part_with(client);
        self.stock().meter.forget(client);
    }

    /// Tells that a client works elsewhere now: the servers that are its alone hear of it.
    pub fn client_moved(&self, client: u64, guest: &Guest) {
        guest.moved();
        self.stock().registry.tell(client, ROOTS_CHANGED);
    }

    /// The kept lines of a server's stderr with a number greater than `after`, each with its number; with `wait`, as
    /// soon as there is one.
    pub async fn logs(&self, server: &ServerId, after: u64, wait: bool) -> Result<Vec<(u64, String)>, Error> {
        let entry = self.entry(server)?;
        let Some(stderr) = entry.stderr() else { return Ok(Vec::new()) };
        if wait {
            stderr.grown(after).await;
        }
        Ok(stderr.after(after))
    }

    /// Makes the servers those of `roster`: only what changed is stopped and started. The catalog knows of it before
    /// this returns. What is replaced or gone finishes the calls under way, within their own limits, while others are
    /// served.
    pub async fn apply(&self, roster: Roster) -> Changes {
        let changes = self.stock().registry.apply(roster);
        self.stock().around.offers.notify_one();
        self.shared.capacity.send_modify(|_| ()); // what servers may weigh may be another now
        self.stock().await_servers(&changes).await;
        changes
    }

    /// What all servers together may take from now on: those that are idle make room at once, the others when they are.
    pub fn resize(&self, capacity: Capacity) {
        self.stock().around.room.resize(capacity.servers);
        self.stock().around.cache.resize(capacity.cache);
        self.shared.capacity.send_replace(capacity);
    }

    /// Has a resource's server tell when it changes; what it tells is in [`Crib::news`]. Dropping the subscription ends
    /// it.
    pub async fn subscribe(&self, wanted: &Wanted) -> Result<Subscription, Error> {
        let call = Call::request(SUBSCRIBE, wanted.clone(), Object::default());
        self.subscribe_for(call).await
    }

    /// As [`Crib::subscribe`], on behalf of whoever makes this call: at the instance that is theirs.
    pub async fn subscribe_for(&self, call: Call) -> Result<Subscription, Error> {
        subscription::begin(&self.shared.stock, call).await?.taken().await
    }

    /// As [`Crib::subscribe_for`] for each of them, side by side; those that no server takes are left out.
    pub async fn subscribe_all(&self, calls: impl Iterator<Item = Call>) -> Vec<Subscription> {
        let (mut begun, mut taken) = (Vec::new(), Vec::new());
        for call in calls {
            begun.extend(subscription::begin(&self.shared.stock, call).await);
        }
        for begun in begun {
            taken.extend(begun.taken().await);
        }
        taken
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
        shared.watchers.close();
    }

    fn stock(&self) -> &Stock {
        &self.shared.stock
    }

    fn entry(&self, server: &ServerId) -> Result<Entry, Error> {
        let found = self.stock().registry.get(server);
        found.unwrap_or_else(|| Err(self.catalog().unknown_server(server.as_str())))
    }
}

impl Shared {
    async fn run(&self, call: &mut Call) -> Result<Outcome, Error> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down").unsent());
        }
        let Some(limit) = call.timeout else { return bridge::run(&self.stock, &self.lot, call).await };
        let ended = Box::pin(timeout(limit, bridge::run(&self.stock, &self.lot, call))).await;
        ended.unwrap_or_else(|_| {
            let error =
                Error::new(ErrorKind::TimedOut, format!("no answer within {}", spelling::time(limit)));
            let error = error.hint("allow the call more time");
            Err(if call.left { error.left() } else { error.unsent() })
        })
    }

    async fn run_traced(&self, call: &mut Call) -> Result<Outcome, Error> {
        let (began, span) = (Instant::now(), telemetry::span(call));
        let outcome = self.run(call).instrument(span.clone()).await;
        span.in_scope(|| telemetry::ended(&outcome, began.elapsed()));
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
