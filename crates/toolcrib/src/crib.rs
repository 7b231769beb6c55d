//! `Crib`, the host object that an embedder holds. It runs calls until it is shut down, and owns every task.

mod adhoc;
mod build_error;
mod builder;
mod catalog_publisher;
mod discovery;
mod executor;
mod freshness;
mod guard;
mod handlers;
mod lease;
mod lists;
#[cfg(feature = "http")]
mod logins;
mod remembered;
mod replica;
mod requests;
mod saved_usage;
mod search;
mod server_list;
mod servers;
mod settings;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, RwLock};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::access::approvals::PendingApproval;
use crate::access::expose::ExposeSettings;
use crate::access::pins::Pins;
use crate::cache::Invalidation;
use crate::call::Call;
use crate::call::client_context::ClientContext;
use crate::catalog::Catalog;
use crate::limits::LimitStatus;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::{Event, ServerNotification};
use crate::model::log_line::StderrLine;
use crate::model::outcome::Outcome;
use crate::model::pin_status::Unapproved;
use crate::model::selector::Selector;
use crate::model::status::ServerStatus;
use crate::model::target::Target;
use crate::observer::{ObservedCall, Observers};
use crate::pipeline::router::CallRouter;
use crate::pipeline::subscription::{self, Subscription};
use crate::pipeline::suspended_calls::SuspendedCalls;
use crate::pipeline::telemetry::TracedCall;
use crate::pipeline::{era_bridge, telemetry};
use crate::protocol::era::client::{ROOTS_CHANGED, SUBSCRIBE};
use crate::protocol::json::object::Object;
use crate::protocol::versions::Era;
use crate::registry::RegisteredServer;
use crate::secrets::KnownCallers;
use crate::spec::{Capacity, ServerId};
use crate::store::{SigningKey, Store};
use crate::supervisor::Supervisor;
use crate::util::format;
use crate::util::locks::IgnorePoison as _;
pub use build_error::BuildError;
pub use builder::CribBuilder;
use catalog_publisher::CatalogPublisher;
pub use discovery::Discovery;
pub use freshness::ListFreshness;
pub use lease::{LeaseOptions, ServerLease};
pub use remembered::{remembered_tools, remembered_tools_size, remembered_transport, remembered_unapproved};
use saved_usage::SavedUsageFile;
pub use search::SearchHit;
use search::ToolSearch;
pub use settings::Settings;

/// The folder of remembered listings, below the state folder.
const LISTINGS_FOLDER: &str = "listings";

/// All MCP servers of an agent behind one API. Cheap to clone; the servers stop when it is shut down or when the last
/// clone is dropped.
///
/// # Panics
/// The futures of its methods panic if they are polled outside of a tokio runtime with timers and I/O.
#[derive(Debug, Clone)]
pub struct Crib {
    inner: Arc<CribInner>,
}

struct CribInner {
    router: Arc<CallRouter>,
    catalog_publisher: CatalogPublisher,
    /// State that other cribs may share.
    store: Arc<dyn Store>,
    /// Calls that wait for input from a stateless client.
    suspended: Arc<SuspendedCalls>,
    /// Whether new calls are refused.
    closing: AtomicBool,
    /// Limits of all servers together.
    capacity: watch::Sender<Capacity>,
    /// Stops the tasks of the crib itself.
    stop_tasks: CancellationToken,
    observers: Observers,
    /// Calls in flight, so that a shutdown can wait for them.
    in_flight: TaskTracker,
    /// Servers that a shutdown is stopping, so that another one can continue if it is dropped.
    stopping: Mutex<Vec<Supervisor>>,
    observers_closed: Once,
    search: ToolSearch,
    expose: RwLock<Arc<ExposeSettings>>,
    saved_usage: Option<SavedUsageFile>,
}

impl std::fmt::Debug for CribInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crib").field("registry", &self.router.registry).finish_non_exhaustive()
    }
}

impl Crib {
    /// Returns a builder with default settings.
    pub fn builder() -> CribBuilder {
        CribBuilder::default()
    }

    /// Runs a call: finds the server that has the target, starts it if necessary, and sends the request.
    ///
    /// # Errors
    /// Fails if no server answered; see [`ErrorKind`]. A tool result with `isError` is an [`Outcome`].
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call, also at the server.
    pub async fn call(&self, call: Call) -> Result<Outcome, Error> {
        self.call_boxed(Box::new(call)).await
    }

    /// Like [`Crib::call`], with a smaller future.
    #[doc(hidden)]
    pub async fn call_boxed(&self, call: Box<Call>) -> Result<Outcome, Error> {
        let inner = &*self.inner;
        let _in_flight = inner.in_flight.token();
        let mut observed = ObservedCall::new(call, &inner.observers);
        let outcome = match observed.check_ready() {
            Err(error) => Err(error),
            Ok(()) if telemetry::is_enabled() => Box::pin(inner.run_traced(&mut observed.call)).await,
            Ok(()) => inner.run(&mut observed.call).await,
        };
        let outcome = outcome
            .map_err(|error| observed.name_call(inner.router.hide_stderr(error, &observed.call.caller)));
        observed.finish(&outcome);
        outcome
    }

    /// Returns everything that the servers are known to offer, regardless of access rules. Starts nothing.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.router().catalog()
    }

    /// Returns what is listed to a caller, as far as it is known. Starts nothing.
    pub fn catalog_for(&self, caller: &Caller) -> Arc<Catalog> {
        self.router().listed_catalog(caller)
    }

    /// Returns what a caller may call, as far as it is known: more than is listed if an [`Exposure`](crate::Exposure) hides a part of it.
    /// Starts nothing.
    pub fn callable_catalog_for(&self, caller: &Caller) -> Arc<Catalog> {
        self.router().callable_catalog(caller)
    }

    /// Returns whether a caller may see a server.
    pub fn can_see(&self, caller: &Caller, server: &ServerId) -> bool {
        self.router().visible_catalogs.can_see(caller, server)
    }

    /// Returns whether a profile with this name exists.
    pub fn has_profile(&self, name: &str) -> bool {
        self.router().visible_catalogs.has_profile(name)
    }

    /// Returns whether a profile with this name exists and a caller may use it: the groups of the profile do not exclude it.
    pub fn can_use_profile(&self, caller: &Caller, name: &str) -> bool {
        self.router().visible_catalogs.can_use_profile(caller, name)
    }

    /// Finds the server and its own name for what a selector means to a caller, as [`Crib::call`] does. Servers that must be
    /// known for that are started: the one that a public name refers to, or all servers for a bare name.
    ///
    /// # Errors
    /// Fails if nothing matches, several servers match, or a server that may match is not known yet.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn find_for(&self, caller: &Caller, selector: &Selector) -> Result<Target, Error> {
        self.find_for_era(caller, selector, Era::Session).await
    }

    /// Like [`Crib::find_for`], for a client of an era. Servers that are started for it and speak both eras are started in
    /// that one.
    ///
    /// # Errors
    /// As [`Crib::find_for`].
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn find_for_era(
        &self,
        caller: &Caller,
        selector: &Selector,
        era: Era,
    ) -> Result<Target, Error> {
        self.router().find_target(caller, selector, era).await.map(|(target, _)| target)
    }

    /// Returns a receiver that is notified when the catalog or the access rules change.
    pub fn watch_catalog(&self) -> watch::Receiver<Arc<Catalog>> {
        self.router().catalog.clone()
    }

    /// Returns the remaining usage of every caller with limits that is declared or has made a call.
    ///
    /// # Cancel safety
    /// Cancel safe. Nothing is changed.
    pub async fn limit_status(&self) -> Vec<LimitStatus> {
        self.router().limiter.status().await
    }

    /// Returns whether a server with this name is declared.
    pub fn contains(&self, server: &ServerId) -> bool {
        self.router().registry.is_declared(server)
    }

    /// Returns the number of calls that have not ended.
    pub fn calls_in_flight(&self) -> usize {
        self.inner.in_flight.len()
    }

    /// Returns the status of every server, sorted by name.
    pub fn status(&self) -> Vec<ServerStatus> {
        self.router().registry.all().iter().map(|entry| self.entry_status(entry)).collect()
    }

    /// Returns the status of one server, also of a disabled one.
    pub fn server_status(&self, server: &ServerId) -> Option<ServerStatus> {
        self.router().registry.find(server).map(|entry| self.entry_status(&entry))
    }

    fn entry_status(&self, entry: &RegisteredServer) -> ServerStatus {
        let services = &self.router().services;
        let cache = services.cache.stats(&entry.spec().id, services.now_including_suspend());
        ServerStatus {
            cache_entries: cache.entries,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            unapproved: self.router().registry.unapproved_items(entry.spec()),
            ..entry.status(Instant::now())
        }
    }

    /// Stops every instance of a server, clears its failures, and waits until it is up again or its first start has failed.
    ///
    /// # Errors
    /// Fails if the server is unknown, disabled or does not start.
    ///
    /// # Cancel safety
    /// Dropping the future only skips waiting: a restart that has begun continues.
    pub async fn restart(&self, server: &ServerId) -> Result<(), Error> {
        let entry = self.registered(server)?;
        self.router().discoverer.renew(server);
        let restarted = entry.restart().await;
        self.router().services.cache.invalidate(server, None, Invalidation::All);
        restarted
    }

    /// Stops every instance of a server, even while leases exist. The next call starts it again.
    ///
    /// # Errors
    /// Fails if the server is unknown or disabled.
    ///
    /// # Cancel safety
    /// Dropping the future only skips waiting: a stop that has begun continues.
    pub async fn stop(&self, server: &ServerId) -> Result<(), Error> {
        let entry = self.registered(server)?;
        let draining = self.router().services.draining.all();
        let mut stops = JoinSet::new();
        for old in draining.into_iter().filter(|old| old.spec().id == *server) {
            stops.spawn(async move { old.stop().await });
        }
        let stopped = entry.stop().await;
        // A failed stop means that the instance is already gone.
        stops.join_all().await;
        self.router().services.cache.invalidate(server, None, Invalidation::All);
        stopped
    }

    /// Reports that a client disconnected. Instances that only it used are stopped once their calls have ended.
    ///
    /// # Panics
    /// May panic outside of a tokio runtime.
    pub fn client_disconnected(&self, client: u64) {
        self.router().registry.client_disconnected(client);
        self.router().limiter.forget_client(client);
    }

    /// Reports that the roots of a client changed. Instances that only it uses are notified.
    pub fn roots_changed(&self, client: u64, context: &ClientContext) {
        context.forget_roots();
        self.router().registry.notify_client(client, ROOTS_CHANGED);
    }

    /// Returns the retained stderr lines of a server with a number greater than `after`.
    ///
    /// # Errors
    /// Fails if the server is unknown.
    pub fn logs(&self, server: &ServerId, after: u64) -> Result<Vec<StderrLine>, Error> {
        let entry = self.registered(server)?;
        Ok(entry.stderr().map(|stderr| stderr.lines_after(after)).unwrap_or_default())
    }

    /// Like [`Crib::logs`], but waits until there is at least one line. A server without stderr has none, and is not waited
    /// for.
    ///
    /// # Errors
    /// Fails if the server is unknown.
    ///
    /// # Cancel safety
    /// Cancel safe. No line is lost: the lines stay retained.
    pub async fn wait_for_logs(&self, server: &ServerId, after: u64) -> Result<Vec<StderrLine>, Error> {
        let entry = self.registered(server)?;
        let Some(stderr) = entry.stderr() else { return Ok(Vec::new()) };
        stderr.wait_for_line(after).await;
        Ok(stderr.lines_after(after))
    }

    /// Returns the servers and ids of the tasks that a caller created and that can still exist: their servers run or are
    /// remote. The oldest come first.
    pub fn tasks_of(&self, caller: &Caller) -> Vec<Target> {
        let mut tasks = self.router().task_owners.tasks_of(caller);
        tasks.retain(|task| {
            self.router().registry.get(&task.server).and_then(Result::ok).is_some_and(|entry| entry.is_up())
        });
        tasks
    }

    /// Subscribes the local caller to changes of a resource. Changes arrive at [`Crib::notifications`]; dropping the
    /// subscription ends it.
    ///
    /// # Errors
    /// Fails if the resource is unknown or the server refuses the subscription.
    ///
    /// # Cancel safety
    /// Dropping the future ends the subscription.
    pub async fn subscribe(&self, selector: &Selector) -> Result<Subscription, Error> {
        let call = Call::request(SUBSCRIBE, selector.clone(), Object::default());
        self.subscribe_for(call).await
    }

    /// Like [`Crib::subscribe`], for the caller and client of a call, at the instance that they use.
    ///
    /// # Errors
    /// Fails if the resource is unknown or the server refuses the subscription.
    ///
    /// # Cancel safety
    /// Dropping the future ends the subscription.
    pub async fn subscribe_for(&self, call: Call) -> Result<Subscription, Error> {
        let caller = call.caller.clone();
        let subscribed = match subscription::start(&self.inner.router, call).await {
            Ok(pending) => pending.wait_until_accepted().await,
            Err(error) => Err(error),
        };
        subscribed.map_err(|error| self.router().hide_stderr(error, &caller))
    }

    /// Like [`Crib::subscribe_for`] for each call, concurrently. Subscriptions that fail are left out.
    ///
    /// # Cancel safety
    /// Dropping the future ends all of the subscriptions.
    pub async fn subscribe_all(&self, calls: impl Iterator<Item = Call>) -> Vec<Subscription> {
        let mut pending = Vec::new();
        for call in calls {
            pending.extend(subscription::start(&self.inner.router, call).await);
        }
        let mut accepted = Vec::new();
        for subscription in pending {
            accepted.extend(subscription.wait_until_accepted().await);
        }
        accepted
    }

    /// Returns what a server offers that differs from what was approved, with the approved definitions: tools, prompts,
    /// resources, templates and instructions. Starts a server without a known listing.
    ///
    /// # Errors
    /// Fails if the server is unknown or cannot be listed, or with [`ErrorKind::StoreUnavailable`] if the store does not
    /// answer.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn unapproved(&self, server: &ServerId) -> Result<Unapproved, Error> {
        let entry = self.registered(server)?;
        self.router().discover_server(server, &Caller::local(), Era::Session).await?;
        let Some(pins) = self.pins(&entry) else { return Ok(Unapproved::default()) };
        if let Some(listing) = entry.listing().filter(|_| pins.is_unknown()) {
            pins.prepare(&listing).await;
            let is_complete = entry.spec().sharing.is_shared();
            self.router().services.check_pins(entry.spec(), &listing, is_complete);
        }
        self.flush_files().await;
        pins.differences().await
    }

    /// Approves the definitions that [`Unapproved::digest`] identifies, and returns their names. Other cribs on the same store see
    /// the approval.
    ///
    /// # Errors
    /// Fails, and approves nothing, if the server is unknown, its definitions have changed since, or the approval cannot be saved.
    /// If a shared store does not answer, the error is [`ErrorKind::StoreUnavailable`] and the approval may have been saved.
    ///
    /// # Cancel safety
    /// If the future is dropped, the approval may have been saved.
    pub async fn approve(&self, server: &ServerId, digest: &str) -> Result<Vec<String>, Error> {
        let approved = match self.pins(&self.registered(server)?) {
            Some(pins) => {
                self.flush_files().await;
                pins.approve(digest).await
            }
            None => Ok(Vec::new()),
        };
        self.router().services.listing_changes.report();
        approved
    }

    /// Sets the key that signs states, unless one was set before or has been used.
    #[doc(hidden)]
    pub fn set_signing_key(&self, key: SigningKey) {
        self.inner.suspended.set_key(key);
    }

    /// Writes listings and approved definitions that would be written a moment later, for a process that reads them now.
    #[doc(hidden)]
    pub async fn flush_files(&self) {
        self.router().services.writes.flush().await;
    }

    /// Returns the tokens of callers. What authenticates callers records theirs there while servers exchange them.
    pub fn known_callers(&self) -> &KnownCallers {
        &self.router().services.known_callers
    }

    /// Returns the store that this crib shares with others.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Returns the calls that need approval and whose clients could not be asked.
    ///
    /// # Cancel safety
    /// Cancel safe. Nothing is changed.
    pub async fn pending_approvals(&self) -> Vec<PendingApproval> {
        self.router().approvals.pending().await
    }

    /// Approves or denies one of [`Crib::pending_approvals`]. The decision applies to the same call made again within five
    /// minutes.
    ///
    /// # Errors
    /// Fails if the approval is no longer pending, or with [`ErrorKind::StoreUnavailable`] if the store does not answer. The
    /// decision may have been made then.
    ///
    /// # Cancel safety
    /// If the future is dropped, the decision is made or the approval is still pending.
    pub async fn decide_approval(&self, id: &str, approved: bool) -> Result<PendingApproval, Error> {
        let decided = self.router().approvals.decide(id, approved).await.map_err(|error| {
            let message = format!("the call `{id}` could not be decided: {error}");
            Error::new(ErrorKind::StoreUnavailable, message)
        })?;
        decided.ok_or_else(|| Error::no_pending_call(id))
    }

    /// Returns a receiver of server notifications from now on. A receiver that falls behind misses the oldest. The stream
    /// ends with the shutdown.
    pub fn notifications(&self) -> broadcast::Receiver<ServerNotification> {
        self.router().services.notifications.subscribe()
    }

    /// Returns a receiver of events from now on. A receiver that falls behind misses the oldest. The stream ends with the
    /// shutdown.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.observers.subscribe()
    }

    /// Returns whether an observer [traces calls](crate::Observer::traces_calls).
    pub fn traces_calls(&self) -> bool {
        self.inner.observers.traces_calls()
    }

    /// Refuses new calls, waits up to `grace` for calls in flight, stops every server, waits for every task, closes the
    /// observers and ends the streams of events and notifications.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the shutdown unfinished: servers may still run, and new calls stay refused. The next
    /// `shutdown` finishes it.
    pub async fn shutdown(&self, grace: Duration) {
        let inner = &self.inner;
        inner.closing.store(true, Ordering::Release);
        inner.router.discoverer.close();
        inner.in_flight.close();
        // Calls that are still in flight after the grace period fail when their server stops.
        let _ = timeout(grace, inner.in_flight.wait()).await;
        inner.router.services.abort_drain.cancel();
        inner.suspended.close().await;
        inner.stopping.lock().ignore_poison().extend(inner.router.registry.close());
        let stopping = inner.stopping.lock().ignore_poison().clone();
        stop_supervisors(stopping, Duration::ZERO).await;
        inner.stopping.lock().ignore_poison().clear();
        inner.stop_tasks.cancel();
        inner.router.services.tasks.close();
        inner.router.services.spawner.close();
        inner.router.services.tasks.wait().await;
        inner.observers_closed.call_once(|| inner.observers.close());
        inner.observers.close_events();
        inner.router.services.notifications.close();
    }

    fn router(&self) -> &CallRouter {
        &self.inner.router
    }

    fn pins(&self, entry: &RegisteredServer) -> Option<Arc<Pins>> {
        self.router().services.pins.for_server(entry.spec())
    }

    fn registered(&self, server: &ServerId) -> Result<RegisteredServer, Error> {
        let found = self.router().registry.get(server);
        found.unwrap_or_else(|| Err(self.catalog().unknown_server_error(server.as_str())))
    }
}

impl CribInner {
    async fn run(&self, call: &mut Call) -> Result<Outcome, Error> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is shutting down").mark_not_sent());
        }
        if let Some(invalid) = call.invalid.take() {
            return Err(invalid);
        }
        self.introduce_client(call);
        if call.timeout.is_none() && call.deadline.is_none() {
            return era_bridge::run(&self.router, &self.suspended, call).await;
        }
        Box::pin(self.run_until_deadline(call)).await
    }

    /// Remembers what the client of a call can answer, and lets the handlers answer the rest.
    fn introduce_client(&self, call: &mut Call) {
        let declaration = &self.router.services.declaration;
        declaration.add_client(&call.client.capabilities);
        if let Some(handlers) = &declaration.handlers {
            call.attach_handlers(handlers);
        }
    }

    /// Runs a call until its deadline, which is the end of its timeout if that is earlier.
    async fn run_until_deadline(&self, call: &mut Call) -> Result<Outcome, Error> {
        let started = Instant::now();
        let end_of_timeout = call.timeout.and_then(|limit| started.checked_add(limit));
        let Some(deadline) = end_of_timeout.into_iter().chain(call.deadline).min() else {
            return era_bridge::run(&self.router, &self.suspended, call).await;
        };
        call.deadline = Some(deadline);
        if deadline > started
            && let Ok(ended) =
                timeout_at(deadline, era_bridge::run(&self.router, &self.suspended, call)).await
        {
            return ended;
        }
        let limit = format::format_duration(deadline.saturating_duration_since(started));
        let error = Error::new(ErrorKind::TimedOut, format!("no answer within {limit}"))
            .with_hint("allow the call more time");
        Err(if call.dispatched { error.mark_dispatched() } else { error.mark_not_sent() })
    }

    async fn run_traced(&self, call: &mut Call) -> Result<Outcome, Error> {
        let traced = TracedCall::start(call);
        let outcome = self.run(call).instrument(traced.span.clone()).await;
        traced.finish(&outcome);
        outcome
    }
}

async fn stop_supervisors(supervisors: Vec<Supervisor>, drain: Duration) {
    let mut stops = JoinSet::new();
    for supervisor in supervisors {
        stops.spawn(async move { supervisor.retire(drain).await });
    }
    stops.join_all().await;
}
