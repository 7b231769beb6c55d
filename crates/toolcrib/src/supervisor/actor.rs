//! The actor of one server: the only writer of its state, with one async function per state.
//!
//! [`Actor::run`] is the transition table. Every state reads the mailbox. Lease requests that cannot be answered yet
//! wait in `lease_waiters`. Only while waiting for the processes of an earlier start to end is the mailbox not read.

mod bounds;
mod eras;
mod failing;
mod relisting;
mod running;
mod state;
mod updating;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::breaker::{Breaker, CallHealth};
use super::cards::ServerCards;
use super::listing_store::{KnownListing, ListingStore};
use super::metrics::ServerMetrics;
use super::slots::Slot;
use super::start_gate::{Penalty, StartDecision, StartGate, StartPermit};
use super::{
    ActorCommand, Lease, LeaseClient, LeaseRequest, Mailbox, ServerRecords, Snapshot, SupervisorServices,
    WatchEvent,
};
use crate::access::pins::PinnedItems;
use crate::call::client_context::InstanceOwner;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::{Event, ServerNotification};
use crate::model::failure_class::FailureClass;
use crate::model::instance_key::InstanceKey;
use crate::model::listing::{FetchedListing, ListFailure, Listing};
use crate::model::status::{LastError, ServerState};
use crate::process::stderr::StderrTail;
use crate::protocol::era::capabilities::ClientCapabilities;
use crate::protocol::list_kind::{ListKind, ListKinds};
use crate::protocol::versions::Era;
use crate::spec::{Endpoint, KeepAlive, Pinning, ServerSpec, Sharing, StartPolicy};
use crate::upstream::Connection;
use crate::upstream::handshake::HandshakePlan;
use crate::upstream::launch::{LaunchContext, Launched, RefusedEra, StartFailure, launch, wait_until_exited};
use crate::upstream::on_question::OnQuestion;
use crate::util::clock;
pub(super) use relisting::Relisted;
use relisting::{ConnectionWatcher, compute_fingerprints};
use state::{ActorEvent, ActorState, AfterStop, RunningServer};

/// Retry time given to calls that are refused while a probe is in flight.
const PROBE_RETRY: Duration = Duration::from_secs(1);
/// The timeout of a probe is reported a moment after its deadline. Without this time, a probe that failed would look like one that
/// waits for a person.
const PROBE_GRACE: Duration = Duration::from_secs(1);

/// The task that owns one server.
pub(super) struct Actor {
    spec: Arc<ServerSpec>,
    own_mailbox: Weak<Mailbox>,
    commands: mpsc::UnboundedReceiver<ActorCommand>,
    snapshot: watch::Sender<Snapshot>,
    start_gate: Arc<StartGate>,
    generation: u64,
    known_listing: Option<KnownListing>,
    /// The tools that leases may call, if the server is pinned strictly.
    pinned_items: Option<PinnedItems>,
    listing_store: ListingStore,
    /// The lists that could not be read.
    list_failures: Vec<ListFailure>,
    /// When clients were last notified of an announced change of each list that the list did not show.
    last_announcements: [Option<Instant>; ListKind::ALL.len()],
    cards: Arc<ServerCards>,
    last_error: Option<LastError>,
    /// The reason for `last_error`, until a start succeeds.
    failure: Option<Error>,
    lease_waiters: Vec<LeaseRequest>,
    /// Answered when the server's processes have ended.
    stop_waiters: Vec<oneshot::Sender<()>>,
    /// Answered when the status shows the failures that were reported.
    failure_waiters: Vec<oneshot::Sender<()>>,
    /// Tracks processes and tasks of the server that have not ended yet.
    live_processes: TaskTracker,
    /// Held until the server's processes have ended.
    slot: Option<Slot>,
    metrics: Arc<ServerMetrics>,
    stderr: Arc<StderrTail>,
    owner: Arc<InstanceOwner>,
    /// The capabilities that the server is told, if it is shared and sends requests to its clients: those of the client that
    /// it was started for.
    told: Option<ClientCapabilities>,
    services: SupervisorServices,
}

/// Both ends of an actor's mailbox. The sender is weak, so that the actor ends when all handles are dropped.
pub(super) struct ActorMailbox {
    pub(super) sender: Weak<Mailbox>,
    pub(super) commands: mpsc::UnboundedReceiver<ActorCommand>,
}

impl Actor {
    pub(super) fn new(
        spec: Arc<ServerSpec>,
        mailbox: ActorMailbox,
        records: ServerRecords,
        owner: Arc<InstanceOwner>,
        services: SupervisorServices,
    ) -> (Self, watch::Receiver<Snapshot>) {
        let known_listing = records.listing_store.get();
        let (snapshot, snapshot_rx) = watch::channel(Snapshot::new(known_listing.clone()));
        let actor = Self {
            spec,
            own_mailbox: mailbox.sender,
            commands: mailbox.commands,
            snapshot,
            start_gate: records.start_gate,
            generation: 0,
            known_listing,
            pinned_items: None,
            listing_store: records.listing_store,
            list_failures: Vec::new(),
            last_announcements: Default::default(),
            cards: records.cards,
            last_error: None,
            failure: None,
            lease_waiters: Vec::new(),
            stop_waiters: Vec::new(),
            failure_waiters: Vec::new(),
            live_processes: TaskTracker::new(),
            slot: None,
            metrics: records.metrics,
            stderr: records.stderr,
            owner,
            told: None,
            services,
        };
        (actor, snapshot_rx)
    }

    /// Returns whether the server starts without a call: not if access to the whole server is denied.
    fn starts_by_itself(&self) -> bool {
        self.spec.lifecycle.start == StartPolicy::AtBoot
            && self.services.access.can_start_unasked(&self.spec.id)
    }

    pub(super) async fn run(mut self) {
        let mut state = match self.starts_by_itself() {
            false => ActorState::Asleep,
            true => ActorState::Starting,
        };
        loop {
            self.publish(&state);
            if !state.needs_slot() && self.slot.is_some() {
                wait_until_exited(&self.live_processes).await;
                self.slot = None;
            }
            state = match state {
                ActorState::Asleep => self.run_asleep().await,
                ActorState::Starting => self.run_starting().await,
                ActorState::Ready(server) => self.run_ready(server).await,
                ActorState::Tripped { server, until, pause } => self.run_tripped(server, until, pause).await,
                ActorState::Probing(server) => self.run_probing(server).await,
                ActorState::BackingOff { until } => self.run_backing_off(until).await,
                ActorState::Paused { until, error } => self.run_paused(until, error).await,
                ActorState::Draining { server, until } => self.run_draining(server, until).await,
                ActorState::Stopping { connection, then } => self.run_stopping(connection, then).await,
                ActorState::Ejected { error } => self.run_ejected(error).await,
                ActorState::Ended => break,
            };
        }
        self.refuse_waiters(&shutting_down_error());
        self.notify_stopped().await;
    }

    async fn run_asleep(&mut self) -> ActorState {
        self.notify_stopped().await;
        while !self.has_lease_waiters() {
            let was_on_demand = self.spec.lifecycle.start == StartPolicy::OnDemand;
            let command = self.commands.recv().await;
            let is_update = matches!(command, Some(ActorCommand::Update(_)));
            if let Some(state) = self.handle_command(command) {
                return state;
            }
            if is_update && was_on_demand && self.spec.lifecycle.start == StartPolicy::AtBoot {
                return ActorState::Starting;
            }
        }
        ActorState::Starting
    }

    async fn run_starting(&mut self) -> ActorState {
        self.notify_stopped().await;
        let _permit = match self.acquire_start_permit().await {
            Ok(permit) => permit,
            Err(state) => return *state,
        };
        self.generation += 1;
        self.told = self.lease_waiters.first().and_then(|request| request.client.capabilities.clone());
        self.snapshot.send_modify(|snapshot| snapshot.told.clone_from(&self.told));
        let began = Instant::now();
        let spec = self.spec.clone();
        let context = self.launch_context();
        let plan = self.handshake_plan();
        let needs_lists = self.needs_lists();
        let limit = spec.lifecycle.start_timeout;
        let pins = self.services.pins.for_server(&spec);
        let is_shared = self.owner.key.is_shared() && self.told.is_none();
        let launch_and_prepare = async {
            let mut launched = launch(&spec, plan, &context, needs_lists).await?;
            if let Some(pins) = &pins {
                // The first listing of a shared instance is approved without comparing it. With strict pins, calls are compared.
                if !is_shared || spec.pin == Pinning::Strict || !pins.awaits_first_listing() {
                    launched.fetched = compute_fingerprints(launched.fetched, pins).await;
                }
                pins.prepare(&launched.fetched.listing).await;
            }
            Ok(launched)
        };
        let mut launch = std::pin::pin!(timeout(limit, launch_and_prepare));
        loop {
            tokio::select! {
                launched = &mut launch => return match launched {
                    Ok(Ok(launched)) => self.handle_started(launched, began, needs_lists),
                    Ok(Err(failure)) => self.handle_start_failure(failure),
                    Err(_) => self.handle_start_failure(self.start_timeout_failure(limit, &context)),
                },
                command = self.commands.recv() => if let Some(state) = self.handle_command(command) {
                    return state;
                },
            }
        }
    }

    /// Returns whether the lists are read as a part of the start: not for clients that ask for them themselves, unless calls
    /// are compared with them.
    fn needs_lists(&self) -> bool {
        self.spec.pin == Pinning::Strict
            || self.known_listing.is_some()
            || self.lease_waiters.is_empty()
            || self.lease_waiters.iter().any(|waiter| waiter.client.needs_lists)
    }

    fn launch_context(&self) -> LaunchContext {
        LaunchContext {
            tasks: self.services.tasks.clone(),
            running: self.live_processes.clone(),
            spawner: self.services.spawner.clone(),
            stderr: self.stderr.clone(),
            notifications: self.services.notifications.clone(),
            cache: self.services.cache.clone(),
            first_garbage_line: Arc::default(),
            owner: match &self.told {
                None => self.owner.clone(),
                told => {
                    let key = self.owner.key.clone();
                    Arc::new(InstanceOwner { key, capabilities: told.clone(), ..InstanceOwner::default() })
                }
            },
            declaration: self.services.declaration.clone(),
            secrets: self.services.secrets.clone(),
            on_question: self.on_question(),
            #[cfg(feature = "http")]
            known_callers: self.services.known_callers.clone(),
            #[cfg(feature = "http")]
            logins: self.services.logins.clone(),
            published_card: self.cards.published(),
        }
    }

    /// Returns what records that the server sends requests to its clients, if that decides who shares an instance.
    fn on_question(&self) -> Option<OnQuestion> {
        if self.spec.sharing != Sharing::Auto || !self.owner.key.is_shared() {
            return None;
        }
        let store = self.listing_store.clone();
        let mailbox = self.own_mailbox.clone();
        let generation = self.generation;
        Some(OnQuestion::new(move |method| {
            if store.record_question(method)
                && let Some(mailbox) = mailbox.upgrade()
            {
                // Fails if the actor has ended: then the question is remembered until this process ends.
                let _ = mailbox.send(ActorCommand::Watched { generation, event: WatchEvent::AskedClient });
            }
        }))
    }

    async fn run_ready(&mut self, mut server: RunningServer) -> ActorState {
        self.grant_waiting_leases(&mut server);
        loop {
            server.open_gate();
            match self.next_event(&mut server).await {
                // A ping in progress will tell whether the server hangs, so the lease waits for its result.
                ActorEvent::LeaseRequested(waiter) if server.ping_pending || self.needs_ping(&mut server) => {
                    self.lease_waiters.push(waiter);
                }
                ActorEvent::LeaseRequested(waiter) => self.grant_lease(&mut server, waiter, false),
                ActorEvent::PingAnswered => self.grant_waiting_leases(&mut server),
                ActorEvent::Released { health: Some(CallHealth::PauseRequested { class, wait }), .. } => {
                    return self.pause_running(server, class, wait);
                }
                ActorEvent::Released { health: Some(health), caller, .. }
                    if self.record_health(&mut server, health, caller.as_ref()) =>
                {
                    let until = Instant::now() + server.breaker.cool_off();
                    return self.trip(server, until);
                }
                ActorEvent::Released { .. } => {}
                event => return self.leave_running(server, event),
            }
        }
    }

    /// Refuses leases until the time has passed. `pause` is the class of the failure if the server itself asked for the
    /// pause.
    async fn run_tripped(
        &mut self,
        mut server: RunningServer,
        until: Instant,
        pause: Option<FailureClass>,
    ) -> ActorState {
        loop {
            let event = self.next_event(&mut server).await;
            let is_over = Instant::now() >= until;
            match event {
                ActorEvent::LeaseRequested(waiter) if is_over && pause == Some(FailureClass::RateLimited) => {
                    self.lease_waiters.push(waiter);
                    return ActorState::Ready(server);
                }
                // A new connection resolves the credentials again.
                ActorEvent::LeaseRequested(waiter)
                    if is_over && pause.is_some() && server.gate().leases() == 0 =>
                {
                    self.lease_waiters.push(waiter);
                    return ActorState::Stopping { connection: server.connection, then: AfterStop::Start };
                }
                ActorEvent::LeaseRequested(waiter) if is_over => {
                    self.grant_lease(&mut server, waiter, true);
                    return ActorState::Probing(server);
                }
                ActorEvent::LeaseRequested(waiter) => {
                    self.refuse(waiter, self.tripped_error(&server, until, pause));
                }
                ActorEvent::Released { .. } | ActorEvent::PingAnswered => {}
                event => return self.leave_running(server, event),
            }
        }
    }

    /// Waits for the one call that tests the server and refuses all others. A cancelled probe proves nothing, and
    /// neither does one that exceeds the call timeout because it waits for a person.
    async fn run_probing(&mut self, mut server: RunningServer) -> ActorState {
        let deadline = Instant::now() + self.spec.limits.call_timeout + PROBE_GRACE;
        loop {
            let Ok(event) = timeout_at(deadline, self.next_event(&mut server)).await else {
                return ActorState::Tripped { server, until: Instant::now(), pause: None };
            };
            match event {
                ActorEvent::LeaseRequested(waiter) => {
                    self.refuse(waiter, self.tripped_error(&server, Instant::now() + PROBE_RETRY, None));
                }
                ActorEvent::Released { is_probe: true, health, .. } => {
                    return self.finish_probe(server, health);
                }
                ActorEvent::Released { .. } | ActorEvent::PingAnswered => {}
                event => return self.leave_running(server, event),
            }
        }
    }

    fn finish_probe(&mut self, mut server: RunningServer, health: Option<CallHealth>) -> ActorState {
        let now = Instant::now();
        match health {
            None => ActorState::Tripped { server, until: now, pause: None },
            Some(CallHealth::PauseRequested { class, wait }) => self.pause_running(server, class, wait),
            Some(health) if self.record_probe(&mut server, health) => {
                let until = now + server.breaker.cool_off();
                ActorState::Tripped { server, until, pause: None }
            }
            Some(_) => {
                self.emit(Event::Recovered { server: self.spec.id.clone() });
                ActorState::Ready(server)
            }
        }
    }

    /// Grants no more leases and waits for the existing ones.
    async fn run_draining(&mut self, mut server: RunningServer, until: Instant) -> ActorState {
        let abort_drain = self.services.abort_drain.clone();
        while server.gate().leases() > 0 {
            let event = tokio::select! {
                event = timeout_at(until, self.next_event(&mut server)) => event,
                () = abort_drain.cancelled() => break,
            };
            match event {
                Ok(ActorEvent::LeaseRequested(waiter)) => self.refuse(waiter, shutting_down_error()),
                Ok(ActorEvent::Released { .. } | ActorEvent::PingAnswered) => {}
                Ok(ActorEvent::RetireRequested { done, .. }) => self.stop_waiters.push(done),
                Ok(ActorEvent::StopRequested { done, .. }) => {
                    self.stop_waiters.push(done);
                    break;
                }
                Ok(_) | Err(_) => break,
            }
        }
        self.announce_stop();
        ActorState::Stopping { connection: server.connection, then: AfterStop::End }
    }

    /// Waits until the server's processes have ended. Nothing is started before that.
    async fn run_stopping(&mut self, connection: Arc<Connection>, mut then: AfterStop) -> ActorState {
        if self.listing_store.instance_stopped(&self.listing_key()) {
            self.services.listing_changes.report();
        }
        let mut stop = std::pin::pin!(connection.stop());
        loop {
            tokio::select! {
                () = &mut stop => return then.into(),
                command = self.commands.recv() => then = self.handle_command_while_stopping(command, then),
            }
        }
    }

    /// Handles a command while the server stops, and returns what follows after the stop.
    fn handle_command_while_stopping(&mut self, command: Option<ActorCommand>, then: AfterStop) -> AfterStop {
        match command {
            Some(ActorCommand::Lease(waiter)) => {
                self.lease_waiters.push(waiter);
                then
            }
            Some(
                ActorCommand::Release(_)
                | ActorCommand::Watched { .. }
                | ActorCommand::FreeSlot
                | ActorCommand::MemoryChecked { .. },
            ) => then,
            Some(ActorCommand::Update(spec)) => {
                self.take_spec(spec);
                match then {
                    AfterStop::BackOff { .. } | AfterStop::Pause { .. } | AfterStop::Eject { .. } => {
                        self.start_gate.reset();
                        self.start_or_sleep()
                    }
                    then => then,
                }
            }
            Some(ActorCommand::Restart(done)) => {
                self.reset_start();
                self.stop_waiters.push(done);
                if matches!(then, AfterStop::End) { then } else { AfterStop::Start }
            }
            Some(ActorCommand::Stop(done)) => {
                self.refuse_waiters(&self.stopped_error());
                self.stop_waiters.push(done);
                match then {
                    AfterStop::Start | AfterStop::BackOff { .. } | AfterStop::Pause { .. } => {
                        AfterStop::Sleep
                    }
                    then => then,
                }
            }
            Some(ActorCommand::Retire { done, .. }) => {
                self.stop_waiters.push(done);
                AfterStop::End
            }
            None => AfterStop::End,
        }
    }
}

fn shutting_down_error() -> Error {
    Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down")
}

/// Answers a request. The requester may no longer wait.
fn confirm(done: oneshot::Sender<()>) {
    let _ = done.send(());
}

#[cfg(test)]
#[expect(dead_code, reason = "the integration tests in `tests/it` use the rest of it")]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
