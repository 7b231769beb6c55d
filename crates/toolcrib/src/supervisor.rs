//! `Supervisor`: a handle on the one task that owns one server's life, and `Lease`, a claim on a living server.
//!
//! The handle is a mailbox and a `watch`; whoever wants something of the server asks the actor. While any lease exists
//! the server stays up; dropping a lease is the release, stamped with the generation it came from, so that a late
//! release of a dead connection is never counted against its successor.

mod actor;
mod breaker;
pub(crate) mod fate;
pub(crate) mod gauges;
mod lease;
pub(crate) mod leaving;
pub(crate) mod memory;
mod rest;
mod restart;
pub(crate) mod room;
pub(crate) mod scales;
mod surroundings;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::connection::listing::{Good, Listing};
use crate::connection::stderr::StderrTail;
use crate::error::{Error, ErrorKind};
use crate::sharing::Whose;
use crate::spec::{Endpoint, ServerSpec};
use crate::status::{LastError, ServerStatus, StateName};
use crate::wire::kind::Kind;
use actor::Actor;
use breaker::Health;
use fate::Fate;
use gauges::Gauges;
pub(crate) use lease::Lease;
use memory::{Known, Memory};
pub(crate) use rest::Rest;
use scales::{Verdict, Weight};
pub(crate) use surroundings::Surroundings;

/// What one may ask of an actor.
#[derive(Debug)]
enum Command {
    /// A claim on the living server; wakes it if need be.
    Lease(oneshot::Sender<Result<Lease, Error>>),
    /// A claim that is no longer needed.
    Release { generation: u64, health: Option<Health>, probe: bool, silent: bool },
    /// What the watcher of a connection has seen.
    Seen { generation: u64, what: Seen },
    /// Another server wants to run: go, if nobody uses this one.
    MakeRoom,
    /// What it weighs has consequences.
    Weighed { generation: u64, used: u64, verdict: Verdict },
    /// Stop what runs and forgive everything; answered when it is about to start anew.
    Restart(oneshot::Sender<()>),
    /// Stop it, whatever leases exist; answered when it is gone.
    Stop(oneshot::Sender<()>),
    /// Take no more claims, wait this long for those there are, stop for good; answered when it is gone.
    Retire(Duration, oneshot::Sender<()>),
}

/// What happens to a connection without anybody asking.
#[derive(Debug)]
enum Seen {
    /// The other end is gone.
    Closed,
    /// The server said that its tools changed, and was asked for them.
    Relisted(Result<Box<Listing>, Error>),
    /// It was asked whether it is still there, and said something.
    Answered,
    /// It was asked whether it is still there, and said nothing.
    Silent,
}

/// One server's life as others see it. Written by the actor at every change of state.
#[derive(Debug)]
struct Snapshot {
    state: StateName,
    generation: u64,
    /// Since when it runs.
    since: Option<Instant>,
    /// When the present state ends by itself.
    until: Option<Instant>,
    /// It leaves, and has calls to finish first.
    is_draining: bool,
    last_error: Option<LastError>,
    known: Option<Known>,
    connection: Weak<Connection>,
}

impl Snapshot {
    /// A server that has not been started.
    fn new(known: Option<Known>) -> Self {
        let (generation, since, until, last_error) = (0, None, None, None);
        let (state, is_draining) = (StateName::Asleep, false);
        Self { state, is_draining, generation, since, until, last_error, known, connection: Weak::new() }
    }
}

/// What an actor writes down.
#[derive(Debug, Clone)]
pub(crate) struct Books {
    pub(crate) memory: Memory,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) stderr: Arc<StderrTail>,
    pub(crate) fate: Arc<Fate>,
}

/// A handle on one server's actor. Cheap to clone: every call does.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    spec: Arc<ServerSpec>,
    mailbox: mpsc::UnboundedSender<Command>,
    snapshot: watch::Receiver<Snapshot>,
    gauges: Arc<Gauges>,
    stderr: Arc<StderrTail>,
    fate: Arc<Fate>,
}

impl Supervisor {
    /// Starts the actor of a server that everybody shares; what is remembered of the server is known from then on.
    /// Nothing is started before the supervisors that this one replaces have ended, or only finish calls.
    pub(crate) fn start(
        spec: ServerSpec,
        before: impl IntoIterator<Item = Self>,
        listings: Option<&Path>,
        around: Surroundings,
    ) -> Self {
        let before: Vec<Self> = before.into_iter().collect();
        let fresh = || Arc::new(StderrTail::new(&spec.id, around.log.as_ref()));
        let stderr = before.first().map_or_else(fresh, |before| before.0.stderr.clone());
        let (memory, fate) = (Memory::of(&spec, listings), Arc::new(Fate::new(&spec.lifecycle)));
        let books = Books { memory, gauges: Arc::default(), stderr, fate };
        Self::start_for(Arc::default(), spec, before, books, around)
    }

    /// Starts the actor of one instance.
    pub(crate) fn start_for(
        whose: Arc<Whose>,
        spec: ServerSpec,
        before: Vec<Self>,
        books: Books,
        around: Surroundings,
    ) -> Self {
        let (mailbox, commands) = mpsc::unbounded_channel();
        let spec = Arc::new(spec);
        let Books { gauges, stderr, fate, .. } = books.clone();
        let tasks = around.tasks.clone();
        let own = (mailbox.downgrade(), commands);
        before.iter().for_each(|before| before.see_out(&around));
        let (actor, snapshot) = Actor::new(spec.clone(), own, books, whose, around);
        tasks.spawn(async move {
            for before in before {
                before.makes_way().await;
            }
            actor.run().await;
        });
        Self(Arc::new(Handle { spec, mailbox, snapshot, gauges, stderr, fate }))
    }

    pub(crate) fn spec(&self) -> &ServerSpec {
        &self.0.spec
    }

    pub(crate) fn stderr(&self) -> &StderrTail {
        &self.0.stderr
    }

    /// Where the server is in its life.
    fn state(&self) -> StateName {
        self.0.snapshot.borrow().state
    }

    /// Waits for it to come to rest, without keeping it.
    pub(crate) fn rest(&self) -> Rest {
        Rest::new(self.0.snapshot.clone())
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.state() == StateName::Asleep
    }

    /// Whether nobody uses it.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.gauges.leases.load(Ordering::Relaxed) == 0
    }

    /// Tells the living server something that wants no answer.
    pub(crate) fn tell(&self, method: &str) {
        let connection = self.0.snapshot.borrow().connection.upgrade();
        if let Some(connection) = connection {
            connection.tell(method);
        }
    }

    /// Waits until the server is up again; one that was replaced never will be, and is not waited for.
    pub(crate) async fn up_again(&self) {
        let up = |snapshot: &Snapshot| matches!(snapshot.state, StateName::Ready | StateName::Starting);
        // An error means that it was replaced, or that everything ends.
        let _ = self.0.snapshot.clone().wait_for(up).await;
    }

    /// Waits until the server is being stopped or drained.
    pub(crate) async fn leaving(&self) {
        // An actor that is gone has stopped it.
        let _ = self.0.snapshot.clone().wait_for(|snapshot| snapshot.state == StateName::Stopping).await;
    }

    /// Whether it is worth waiting for when everything is listed: not if it has just failed, nor twice if it is slow.
    pub(crate) fn may_be_listed(&self) -> bool {
        !self.0.gauges.slow.load(Ordering::Relaxed)
            && !matches!(self.state(), StateName::BackingOff | StateName::Ejected)
    }

    /// Notes that somebody has waited for it in vain.
    pub(crate) fn mark_slow(&self) {
        self.0.gauges.slow.store(true, Ordering::Relaxed);
    }

    /// The last known listing, of the living server or of the one before.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        self.0.snapshot.borrow().known.as_ref().map(|known| known.listing.clone())
    }

    /// How long one of its lists is good. One that is not any more is asked for again while the server lives; until it
    /// comes, the old one is as good as any.
    pub(crate) fn good(&self, kind: Kind, now: Instant) -> Good {
        let snapshot = self.0.snapshot.borrow();
        let good = snapshot.known.as_ref().map(|known| known.listing.good(kind)).unwrap_or_default();
        if let (Good::Until(until, _), Some(connection)) = (good, snapshot.connection.upgrade())
            && until <= now
        {
            connection.look_again(kind);
        }
        good
    }

    /// A claim on the living server: wakes it, waits for a start under way, or says why there will be none.
    pub(crate) async fn lease(&self) -> Result<Lease, Error> {
        self.ask(Command::Lease).await?
    }

    /// Stops what runs, forgives everything, and waits until the server is up again.
    pub(crate) async fn restart(&self) -> Result<(), Error> {
        self.ask(Command::Restart).await?;
        self.lease().await.map(drop)
    }

    pub(crate) async fn stop(&self) -> Result<(), Error> {
        self.ask(Command::Stop).await
    }

    /// Ends the actor and the server with it.
    pub(crate) async fn retire(&self, drain: Duration) {
        // An actor that is gone already has nothing left to end.
        let _ = self.ask(|told| Command::Retire(drain, told)).await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let gone = || Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down");
        self.0.mailbox.send(command(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }

    /// What it weighs and may weigh; `None` unless it runs and can be weighed.
    pub(crate) fn weight(&self) -> Option<(u64, Weight)> {
        let (generation, connection) = {
            let snapshot = self.0.snapshot.borrow();
            (snapshot.generation, snapshot.connection.upgrade()?)
        };
        let memory = &self.0.spec.lifecycle.memory;
        let (used, idle_since) = (connection.memory()?, self.0.gauges.idle_since());
        Some((generation, Weight { used, soft: memory.soft, hard: memory.hard, idle_since }))
    }

    /// Says what its weight has for consequences.
    pub(crate) fn weighed(&self, generation: u64, used: u64, verdict: Verdict) {
        // An actor that is gone has stopped it.
        let _ = self.0.mailbox.send(Command::Weighed { generation, used, verdict });
    }

    pub(crate) fn status(&self, now: Instant) -> ServerStatus {
        let snapshot = self.0.snapshot.borrow();
        let connection = snapshot.connection.upgrade();
        let (restarts, restarts_left) = self.0.fate.restarts(now);
        ServerStatus {
            state: snapshot.state,
            pid: connection.as_ref().and_then(|connection| connection.pid()),
            uptime: snapshot.since.map(|since| now.duration_since(since)),
            generation: snapshot.generation,
            leases: self.0.gauges.leases.load(Ordering::Relaxed),
            in_flight: connection.as_ref().map_or(0, |connection| connection.in_flight()),
            restarts,
            restarts_left,
            consecutive_failures: self.0.gauges.failures.load(Ordering::Relaxed),
            next_attempt_in: snapshot.until.map(|until| until.saturating_duration_since(now)),
            last_error: snapshot.last_error.clone(),
            stderr_tail: self.0.stderr.after(0).into_iter().map(|(_, line)| line).collect(),
            noise: connection.as_ref().map_or(0, |connection| connection.noise()),
            tools: snapshot.known.as_ref().map(|known| known.listing.tools.len()),
            memory: connection.as_ref().and_then(|connection| connection.memory()),
            calls: self.0.gauges.calls(),
            errors: self.0.gauges.errors(),
            p50: self.0.gauges.percentile(0.5),
            p99: self.0.gauges.percentile(0.99),
            protocol: snapshot.known.as_ref().map(|known| known.revision),
            server_info: snapshot.known.as_ref().and_then(|known| known.server_info.clone()),
            ..ServerStatus::off(&self.0.spec)
        }
    }
}

impl ServerStatus {
    /// A server that has no supervisor.
    pub(crate) fn off(spec: &ServerSpec) -> Self {
        Self {
            server: spec.id.clone(),
            transport: match spec.endpoint {
                Endpoint::Command(_) => "stdio",
                Endpoint::Http(ref http) => http.transport.as_str(),
                Endpoint::InProcess(_) => "in-process",
            },
            state: StateName::Disabled,
            pid: None,
            uptime: None,
            generation: 0,
            leases: 0,
            in_flight: 0,
            restarts: 0,
            restarts_left: spec.lifecycle.restarts.at_most,
            consecutive_failures: 0,
            next_attempt_in: None,
            last_error: None,
            stderr_tail: Vec::new(),
            noise: 0,
            cache_entries: 0,
            cache_hits: 0,
            cache_misses: 0,
            tools: None,
            memory: None,
            calls: 0,
            errors: 0,
            p50: None,
            p99: None,
            start: spec.lifecycle.start,
            protocol: None,
            server_info: None,
            pin: spec.pin,
            unapproved: Vec::new(),
            sharing: spec.sharing,
            instances: Vec::new(),
        }
    }
}

/// The scripted server that tests of connections talk to as well.
#[cfg(test)]
pub(crate) use actor::fake;
