//! Owns one server: starts it on demand, restarts it after failures and stops it when idle.
//!
//! A [`Supervisor`] is a handle on the actor task of one server: a mailbox for commands and a `watch` for its state. A
//! server stays up while any [`Lease`] exists. A released lease carries the generation it belongs to, so a late release
//! never counts against a newer process.

mod actor;
mod breaker;
pub(crate) mod cards;
mod lease;
mod lease_gate;
pub(crate) mod listing_store;
mod lists;
pub(crate) mod memory_watch;
pub(crate) mod metrics;
mod recent_callers;
mod restart;
mod services;
pub(crate) mod slots;
pub(crate) mod start_gate;
mod status;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::access::pins::PinnedItems;
use crate::call::client_context::InstanceOwner;
use crate::call::instance_clients::InstanceClients;
use crate::model::error::{Error, ErrorKind};
use crate::model::listing::{ListFailure, Listing};
use crate::model::status::{LastError, ListingError, ServerState, ServerStatus};
use crate::process::stderr::StderrTail;
use crate::protocol::era::capabilities::ClientCapabilities;
use crate::protocol::versions::Era;
use crate::spec::{Endpoint, ServerSpec};
use crate::upstream::Connection;
use crate::util::clock::{self, SuspendClock};
use crate::util::tasks::SpawnBoxed as _;
#[cfg(test)]
pub(crate) use actor::fake;
use actor::{Actor, ActorMailbox, Relisted};
use cards::ServerCards;
pub(crate) use lease::Lease;
use lease::{LeasedServer, ReleaseReport};
use listing_store::{KnownListing, ListingStore};
use memory_watch::{MemorySample, MemoryUsage, MemoryVerdict};
use metrics::ServerMetrics;
pub(crate) use services::SupervisorServices;
use start_gate::StartGate;

/// Shortest drain period of a replaced or removed server. It covers calls that wait for their client to reconnect.
const MIN_DRAIN: Duration = Duration::from_secs(15 * 60);

/// The sending end of an actor's mailbox. It is shared and not cloned: a clone costs twice as many atomic operations, and each
/// lease has one.
type Mailbox = mpsc::UnboundedSender<ActorCommand>;

/// A message to an actor.
#[derive(Debug)]
enum ActorCommand {
    /// Grants a lease, and starts the server if needed.
    Lease(LeaseRequest),
    /// Reports a released lease: while the gate is closed, when no lease is left, or if the outcome of its call matters.
    Release(ReleaseReport),
    /// Reports something that happened to a connection.
    Watched { generation: u64, event: WatchEvent },
    /// Takes over a spec that the running process can serve.
    Update(Arc<ServerSpec>),
    /// Stops the server if it is idle, because another server needs its slot.
    FreeSlot,
    /// Acts on the memory usage of the server.
    MemoryChecked { generation: u64, used: u64, verdict: MemoryVerdict },
    /// Stops the server, resets its start gate and forgets its eras. Answered when a new start is about to begin.
    Restart(oneshot::Sender<()>),
    /// Stops the server even if leases exist. Answered when its processes have ended.
    Stop(oneshot::Sender<()>),
    /// Grants no more leases, waits up to `drain` for existing ones, and ends the actor. Answered when the server's
    /// processes have ended.
    Retire { drain: Duration, done: oneshot::Sender<()> },
}

/// The client that a server is started for.
#[derive(Debug, Clone)]
pub(crate) struct LeaseClient {
    /// The era of the client, in which a server that speaks both is started.
    pub(crate) era: Era,
    /// True if the instance for the other era is up, and serves the client if the server speaks only that one.
    pub(crate) is_other_up: bool,
    /// The capabilities that the server is told; `None` for those of all clients.
    pub(crate) capabilities: Option<ClientCapabilities>,
    /// True if the lists are read when the server is started. A client of one server asks for them itself.
    pub(crate) needs_lists: bool,
}

impl From<Era> for LeaseClient {
    /// Creates the client of a server with one instance.
    fn from(era: Era) -> Self {
        Self { era, is_other_up: false, capabilities: None, needs_lists: true }
    }
}

/// A request for a lease.
#[derive(Debug)]
struct LeaseRequest {
    client: LeaseClient,
    reply: oneshot::Sender<Result<Lease, Error>>,
}

/// Something that happened to a connection.
#[derive(Debug)]
enum WatchEvent {
    /// The connection was closed.
    Closed,
    /// The server was listed again.
    Relisted(Box<Relisted>),
    /// The server was seen to send requests to its clients for the first time.
    AskedClient,
    /// The server sent something after a ping.
    PingAnswered,
    /// The server sent nothing after a ping.
    PingTimedOut,
}

/// The public state of one server. Written by the actor at every change of state.
#[derive(Debug)]
struct Snapshot {
    state: ServerState,
    generation: u64,
    up_since: Option<Instant>,
    /// When the current state ends by itself.
    state_ends_at: Option<Instant>,
    /// True if the server is about to stop and has calls to finish first.
    is_draining: bool,
    last_error: Option<LastError>,
    /// The reason for `last_error`, until a start succeeds.
    failure: Option<Error>,
    known_listing: Option<KnownListing>,
    /// The lists that could not be read.
    list_failures: Vec<ListFailure>,
    connection: Weak<Connection>,
    /// The server that callers lease, while it runs. Weak, so that a dropped actor drops the connection.
    leased: Weak<LeasedServer>,
    /// The tools that leases may call, if the server is pinned strictly.
    pinned_items: Option<PinnedItems>,
    /// The capabilities that the server was told, if not those of all clients.
    told: Option<ClientCapabilities>,
}

impl Snapshot {
    /// Returns the connection of a server that can be asked for its lists.
    fn listable_connection(&self) -> Option<Arc<Connection>> {
        let is_up = matches!(self.state, ServerState::Ready | ServerState::Probing);
        self.connection.upgrade().filter(|connection| is_up && !connection.is_closed())
    }

    fn leases(&self) -> usize {
        self.leased.upgrade().map_or(0, |server| server.gate.leases())
    }

    /// Returns the state of a server that has not been started.
    fn new(known_listing: Option<KnownListing>) -> Self {
        Self {
            state: ServerState::Asleep,
            generation: 0,
            up_since: None,
            state_ends_at: None,
            is_draining: false,
            last_error: None,
            failure: None,
            known_listing,
            list_failures: Vec::new(),
            connection: Weak::new(),
            leased: Weak::new(),
            pinned_items: None,
            told: None,
        }
    }
}

/// State of a server that outlives its processes.
#[derive(Debug, Clone)]
pub(crate) struct ServerRecords {
    pub(crate) listing_store: ListingStore,
    pub(crate) cards: Arc<ServerCards>,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) stderr: Arc<StderrTail>,
    pub(crate) start_gate: Arc<StartGate>,
}

impl ServerRecords {
    /// Returns the records of one of several instances, which add to these.
    pub(crate) fn for_instance(&self) -> Self {
        Self {
            metrics: Arc::new(ServerMetrics::for_instance(self.metrics.clone())),
            stderr: Arc::new(StderrTail::for_instance(self.stderr.clone())),
            ..self.clone()
        }
    }
}

/// A handle on the actor of one server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor(Arc<SupervisorInner>);

#[derive(Debug, Clone)]
struct SupervisorInner {
    spec: Arc<ServerSpec>,
    mailbox: Arc<Mailbox>,
    snapshot: watch::Receiver<Snapshot>,
    cards: Arc<ServerCards>,
    metrics: Arc<ServerMetrics>,
    stderr: Arc<StderrTail>,
    start_gate: Arc<StartGate>,
    suspend_clock: SuspendClock,
    owner: Arc<InstanceOwner>,
}

impl Supervisor {
    /// Starts the actor of a shared server, with the listing remembered in the folder `listings`. The server is not
    /// started before the supervisors it replaces have stopped or are draining.
    #[cfg(test)]
    pub(crate) fn start(
        spec: ServerSpec,
        replaced: impl IntoIterator<Item = Self>,
        listings: Option<&Path>,
        services: SupervisorServices,
    ) -> Self {
        let replaced: Vec<Self> = replaced.into_iter().collect();
        let records = Self::new_records(&spec, &replaced, listings, &services);
        Self::start_instance(Arc::default(), spec, replaced, records, services)
    }

    /// Returns the records of a shared server that replaces others.
    pub(crate) fn new_records(
        spec: &ServerSpec,
        replaced: &[Self],
        listings: Option<&Path>,
        services: &SupervisorServices,
    ) -> ServerRecords {
        let new_stderr = || Arc::new(StderrTail::new(&spec.id, services.log.as_ref()));
        ServerRecords {
            listing_store: ListingStore::new(spec, listings),
            cards: Arc::new(ServerCards::new(spec)),
            metrics: Arc::default(),
            stderr: replaced.first().map_or_else(new_stderr, |old| old.0.stderr.of_server()),
            start_gate: Arc::new(StartGate::new(&spec.lifecycle)),
        }
    }

    /// Starts the actor of one instance.
    pub(crate) fn start_instance(
        owner: Arc<InstanceOwner>,
        spec: ServerSpec,
        replaced: Vec<Self>,
        records: ServerRecords,
        services: SupervisorServices,
    ) -> Self {
        let (mailbox, commands) = mpsc::unbounded_channel();
        let mailbox = Arc::new(mailbox);
        let spec = Arc::new(spec);
        let tasks = services.tasks.clone();
        let suspend_clock = services.suspend_clock.clone();
        replaced.iter().for_each(|old| old.drain_in_background(&services));
        let cards = records.cards.clone();
        let metrics = records.metrics.clone();
        let stderr = records.stderr.clone();
        let start_gate = records.start_gate.clone();
        let actor_mailbox = ActorMailbox { sender: Arc::downgrade(&mailbox), commands };
        let (actor, snapshot) = Actor::new(spec.clone(), actor_mailbox, records, owner.clone(), services);
        tasks.spawn_boxed(async move {
            for old in replaced {
                old.wait_until_draining().await;
            }
            actor.run().await;
        });
        Self(Arc::new(SupervisorInner {
            spec,
            mailbox,
            snapshot,
            cards,
            metrics,
            stderr,
            start_gate,
            suspend_clock,
            owner,
        }))
    }

    pub(crate) fn spec(&self) -> &ServerSpec {
        &self.0.spec
    }

    /// Returns the clients of the instance.
    pub(crate) fn clients(&self) -> &InstanceClients {
        &self.0.owner.clients
    }

    /// Returns whether the server is being started.
    pub(crate) fn is_starting(&self) -> bool {
        self.state() == ServerState::Starting
    }

    /// Waits until the server is not being started any longer.
    pub(crate) async fn wait_while_starting(&self) {
        // An error means that the actor has ended.
        let _ = self.0.snapshot.clone().wait_for(|snapshot| snapshot.state != ServerState::Starting).await;
    }

    fn state(&self) -> ServerState {
        self.0.snapshot.borrow().state
    }

    /// Returns a watch that does not keep the actor alive.
    pub(crate) fn sleep_watch(&self) -> SleepWatch {
        SleepWatch { snapshot: self.0.snapshot.clone() }
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.state() == ServerState::Asleep
    }

    /// Returns whether the server runs and can be asked for its lists.
    pub(crate) fn is_listable(&self) -> bool {
        self.0.snapshot.borrow().listable_connection().is_some()
    }

    /// Returns whether the server has no leases.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.snapshot.borrow().leases() == 0
    }

    /// Returns whether a client with these capabilities can use the server: it was told them, or will be.
    pub(crate) fn knows(&self, capabilities: &ClientCapabilities) -> bool {
        let snapshot = self.0.snapshot.borrow();
        snapshot.state == ServerState::Asleep || snapshot.told.as_ref() == Some(capabilities)
    }

    /// Returns the clients that use the server, as far as they are remembered.
    pub(crate) fn seen_clients(&self) -> Vec<u64> {
        let connection = self.0.snapshot.borrow().connection.upgrade();
        connection.map(|connection| connection.seen_clients()).unwrap_or_default()
    }

    /// Forgets a client that has disconnected.
    pub(crate) fn forget_client(&self, client: u64) {
        let connection = self.0.snapshot.borrow().connection.upgrade();
        connection.into_iter().for_each(|connection| connection.forget_client(client));
    }

    /// Returns whether both are handles on the same actor.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.mailbox, &other.0.mailbox)
    }

    /// Takes over a changed spec without a restart, and returns a handle with it. The spec must not need a restart.
    pub(crate) fn update(&self, spec: ServerSpec) -> Self {
        self.0.cards.update(&spec);
        let spec = Arc::new(spec);
        let connection = self.0.snapshot.borrow().connection.upgrade();
        // Before the actor does it, so that the next call follows the new settings.
        if let Some(connection) = connection {
            connection.apply_settings(&spec);
        }
        // Fails if the actor has ended.
        let _ = self.0.mailbox.send(ActorCommand::Update(spec.clone()));
        Self(Arc::new(SupervisorInner { spec, ..SupervisorInner::clone(&self.0) }))
    }

    /// Sends a notification to the server if it runs.
    pub(crate) fn notify(&self, method: &str) {
        let connection = self.0.snapshot.borrow().connection.upgrade();
        if let Some(connection) = connection {
            connection.notify(method);
        }
    }

    /// Waits until the server is up or starting. Returns immediately if the supervisor was replaced.
    pub(crate) async fn wait_until_up(&self) {
        let is_up =
            |snapshot: &Snapshot| matches!(snapshot.state, ServerState::Ready | ServerState::Starting);
        // Fails if the actor has ended.
        let _ = self.0.snapshot.clone().wait_for(is_up).await;
    }

    /// Waits until the server is up, or returns its first failure.
    pub(crate) async fn wait_for_first_start(&self, deadline: Instant) -> Result<(), Error> {
        let mut snapshot = self.0.snapshot.clone();
        let is_decided =
            |snapshot: &Snapshot| snapshot.state == ServerState::Ready || snapshot.failure.is_some();
        match timeout_at(deadline, snapshot.wait_for(is_decided)).await {
            Ok(Ok(snapshot)) => snapshot.failure.clone().map_or(Ok(()), Err),
            // The actor has ended, because the server was replaced or removed.
            Ok(Err(_)) => Ok(()),
            Err(_) => {
                let server = &self.0.spec.id;
                let error = Error::new(ErrorKind::CouldNotStart, format!("`{server}` is still starting"));
                Err(error.with_server(server))
            }
        }
    }

    /// Waits until the server is being stopped or drained.
    pub(crate) async fn wait_until_stopping(&self) {
        // Fails if the actor has ended, which stops the server.
        let _ = self.0.snapshot.clone().wait_for(|snapshot| snapshot.state == ServerState::Stopping).await;
    }

    /// Waits until the server has stopped or is draining.
    async fn wait_until_draining(&self) {
        // Fails if the actor has ended, which stops the server.
        let _ = self.0.snapshot.clone().wait_for(|snapshot| snapshot.is_draining).await;
    }

    /// Returns the gate that decides when the server may start.
    pub(crate) fn start_gate(&self) -> &Arc<StartGate> {
        &self.0.start_gate
    }

    /// Returns the last known listing, or the tools of its card if it was never listed.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        let known = self.0.snapshot.borrow().known_listing.as_ref().map(|known| known.listing.clone());
        known.or_else(|| self.0.cards.listing())
    }

    /// Returns a lease for a client. Starts the server if needed, in the era of the client if it speaks both, waits for a
    /// start in progress, or fails with the reason why the server cannot be used.
    pub(crate) async fn lease(&self, client: impl Into<LeaseClient>) -> Result<Lease, Error> {
        match self.try_lease() {
            Some(lease) => Ok(lease),
            None => {
                let client = client.into();
                self.request(|reply| ActorCommand::Lease(LeaseRequest { client, reply })).await?
            }
        }
    }

    /// Makes callers ask the actor, so that no call passes a command that is about to be sent.
    fn close_gate(&self) {
        if let Some(server) = self.0.snapshot.borrow().leased.upgrade() {
            server.gate.set_open(false);
        }
    }

    /// Returns a lease without asking the actor, if the server is ready.
    pub(crate) fn try_lease(&self) -> Option<Lease> {
        let snapshot = self.0.snapshot.borrow();
        let server = snapshot.leased.upgrade()?;
        // The actor decides what follows after the end of a connection, and after the machine was suspended.
        let was_suspended =
            || clock::was_suspended(server.gate.suspended_before(), self.0.suspend_clock.total_suspended());
        if server.connection.is_closed() || server.gate.leases() == 0 && was_suspended() {
            return None;
        }
        let is_entered = server.gate.try_enter();
        is_entered.then(|| Lease::new(server, snapshot.pinned_items.clone(), self.0.mailbox.clone()))
    }

    /// Stops the server, resets its start gate and waits until it is up again.
    pub(crate) async fn restart(&self) -> Result<(), Error> {
        self.begin_restart().await?;
        self.lease(Era::Session).await.map(drop)
    }

    /// Stops the server, resets its start gate and waits until a new start begins.
    pub(crate) async fn begin_restart(&self) -> Result<(), Error> {
        self.close_gate();
        self.request(ActorCommand::Restart).await
    }

    /// Stops the server even if leases exist.
    pub(crate) async fn stop(&self) -> Result<(), Error> {
        self.close_gate();
        self.request(ActorCommand::Stop).await
    }

    /// Waits up to `drain` for leases, then stops the server and ends the actor.
    pub(crate) async fn retire(&self, drain: Duration) {
        self.close_gate();
        // Fails if the actor has ended already.
        let _ = self.request(|done| ActorCommand::Retire { drain, done }).await;
    }

    /// Retires the server in a background task, so that calls in flight can finish within their own limits.
    pub(crate) fn drain_in_background(&self, services: &SupervisorServices) {
        let draining = services.draining.clone();
        let supervisor = self.clone();
        draining.add(supervisor.clone());
        services.tasks.spawn_boxed(async move {
            supervisor.retire(MIN_DRAIN.max(supervisor.spec().limits.call_timeout_max)).await;
            draining.remove(&supervisor);
        });
    }

    async fn request<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> ActorCommand) -> Result<T, Error> {
        let (reply_tx, reply) = oneshot::channel();
        let shutting_down = || Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down");
        self.0.mailbox.send(command(reply_tx)).map_err(|_| shutting_down())?;
        reply.await.map_err(|_| shutting_down())
    }

    /// Measures the memory of the server; `None` if it does not run or cannot be measured.
    pub(crate) fn sample_memory(&self) -> Option<MemorySample> {
        let (generation, connection) = {
            let snapshot = self.0.snapshot.borrow();
            (snapshot.generation, snapshot.connection.upgrade()?)
        };
        let limits = &self.0.spec.lifecycle.memory;
        let usage = MemoryUsage {
            used: connection.memory_usage()?,
            soft_limit: limits.soft,
            hard_limit: limits.hard,
            idle_rank: self.0.metrics.idle_rank(),
        };
        Some(MemorySample { generation, usage })
    }

    /// Makes the actor act on the memory usage of one generation.
    pub(crate) fn apply_memory_verdict(&self, generation: u64, used: u64, verdict: MemoryVerdict) {
        // Fails if the actor has ended, which stops the server.
        let _ = self.0.mailbox.send(ActorCommand::MemoryChecked { generation, used, verdict });
    }

    /// Returns the cards of the server.
    pub(crate) fn cards(&self) -> &ServerCards {
        &self.0.cards
    }
}

/// Waits for a server to go to sleep, without keeping its actor alive.
pub(crate) struct SleepWatch {
    snapshot: watch::Receiver<Snapshot>,
}

impl SleepWatch {
    /// Waits until the server is asleep; returns `false` if its actor has ended.
    pub(crate) async fn asleep(&mut self) -> bool {
        self.snapshot.wait_for(|snapshot| snapshot.state == ServerState::Asleep).await.is_ok()
    }

    /// Waits until the state changes or the actor ends.
    pub(crate) async fn changed(&mut self) {
        let _ = self.snapshot.changed().await;
    }
}
