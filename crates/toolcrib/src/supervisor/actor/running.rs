//! The parts that several states share: events of a running server, leases, listings, commands and the snapshot.

use super::*;
use crate::cache::Invalidation;
use crate::model::caller::Caller;
use crate::supervisor::lease::{LeasedServer, ReleaseReport};
use crate::supervisor::lease_gate::LeaseGate;
use crate::supervisor::recent_callers::RecentCallers;
use crate::util::format::format_duration;
use crate::util::tasks::SpawnBoxed as _;

/// The effect of lists that were recorded.
pub(super) struct UpdatedListing {
    /// The lists that changed.
    pub(super) changed: ListKinds,
    /// The server's listing, if it is to be saved.
    pub(super) unsaved: Option<KnownListing>,
}

impl Actor {
    /// Returns the next event of a running server. New listings are recorded on the way.
    pub(super) async fn next_event(&mut self, server: &mut RunningServer) -> ActorEvent {
        self.confirm_failures();
        loop {
            if server.recycle_when_idle && self.close_if_idle(server) {
                return ActorEvent::Recycle;
            }
            let idle_deadline = self.idle_deadline(server);
            tokio::select! {
                biased;
                command = self.commands.recv() => {
                    if let Some(event) = self.command_event(server, command) {
                        return event;
                    }
                }
                // The server may have been used since the timer was set.
                () = &mut server.idle_timer, if idle_deadline.is_some() => match self.idle_deadline(server) {
                    Some(deadline) if deadline > Instant::now() => server.idle_timer.as_mut().reset(deadline),
                    _ if self.close_if_idle(server) => return ActorEvent::Idle,
                    _ => {}
                },
            }
        }
    }

    /// Translates a command into an event; `None` if it was handled or concerns an earlier generation.
    fn command_event(
        &mut self,
        server: &mut RunningServer,
        command: Option<ActorCommand>,
    ) -> Option<ActorEvent> {
        let Some(command) = command else { return Some(ActorEvent::HandlesDropped) };
        match command {
            // Callers may notice a closed connection before the actor does, and must not get it again.
            ActorCommand::Lease(waiter) if server.connection.is_closed() => {
                self.lease_waiters.push(waiter);
                Some(ActorEvent::Closed)
            }
            ActorCommand::Lease(waiter) => Some(ActorEvent::LeaseRequested(waiter)),
            ActorCommand::Release(release) if release.generation == self.generation => {
                server.gate().clear_idle_notice();
                if server.gate().leases() == 0 {
                    self.services.slots.mark_idle(&self.metrics);
                }
                if release.timed_out && !server.connection.is_remote() {
                    self.ping(server);
                }
                if release.has_failed {
                    // The ready state opens the gate again, unless the breaker trips.
                    server.gate().set_open(false);
                    server.gate().failure_seen();
                }
                let ReleaseReport { health, caller, is_probe, failure_shown, .. } = release;
                self.failure_waiters.extend(failure_shown);
                Some(ActorEvent::Released { health, caller, is_probe })
            }
            ActorCommand::Watched { generation, event } if generation == self.generation => {
                self.watch_event(server, event)
            }
            ActorCommand::Update(spec) => {
                self.update_running(server, spec);
                None
            }
            ActorCommand::FreeSlot if server.gate().close_if_idle() => Some(ActorEvent::Idle),
            ActorCommand::FreeSlot => {
                self.mark_in_use(server);
                self.keep_slot();
                None
            }
            ActorCommand::MemoryChecked { generation, used, verdict } if generation == self.generation => {
                self.memory_event(server, used, verdict)
            }
            ActorCommand::Release(_) | ActorCommand::Watched { .. } | ActorCommand::MemoryChecked { .. } => {
                None
            }
            ActorCommand::Restart(done) => {
                self.reset_start();
                Some(ActorEvent::StopRequested { then: AfterStop::Start, done })
            }
            ActorCommand::Stop(done) => Some(ActorEvent::StopRequested { then: AfterStop::Sleep, done }),
            ActorCommand::Retire { drain, done } => Some(ActorEvent::RetireRequested { drain, done }),
        }
    }

    fn watch_event(&mut self, server: &mut RunningServer, event: WatchEvent) -> Option<ActorEvent> {
        match event {
            WatchEvent::Closed => Some(ActorEvent::Closed),
            WatchEvent::PingTimedOut => Some(ActorEvent::Hung),
            WatchEvent::PingAnswered => {
                server.ping_pending = false;
                server.ping_required = false;
                Some(ActorEvent::PingAnswered)
            }
            WatchEvent::AskedClient => {
                info!(server = %self.spec.id, asks = self.listing_store.asks(), "sends requests to its clients");
                self.listing_store.get().into_iter().for_each(|known| self.save_listing(known));
                None
            }
            WatchEvent::Relisted(relisted) => {
                self.handle_relisted(&server.connection, *relisted);
                None
            }
        }
    }

    /// Returns when to check whether the server goes to sleep; `None` while it waits for the release of the last lease. A
    /// server that was started at boot stays up until its first use.
    fn idle_deadline(&self, server: &RunningServer) -> Option<Instant> {
        let KeepAlive::For(time) = self.spec.lifecycle.keep_alive else { return None };
        if server.gate().has_idle_notice() {
            return None;
        }
        let last_release = server.gate().last_release();
        if last_release.is_none() {
            server.gate().request_idle_notice();
        }
        last_release.map(|released| released + time)
    }

    /// Closes the gate of an idle server and returns true. For a server in use, the release of its last lease will be
    /// reported.
    fn close_if_idle(&self, server: &RunningServer) -> bool {
        loop {
            if server.gate().close_if_idle() {
                return true;
            }
            if server.gate().request_idle_notice() {
                return false;
            }
        }
    }

    /// Corrects the idle rank of a server that looked idle and is in use.
    fn mark_in_use(&self, server: &RunningServer) {
        self.metrics.set_idle_rank(0);
        if server.gate().leases() == 0 {
            self.services.slots.mark_idle(&self.metrics);
        }
    }

    pub(super) fn grant_lease(&self, server: &mut RunningServer, request: LeaseRequest, is_probe: bool) {
        let Some(mailbox) = self.own_mailbox.upgrade() else { return };
        server.gate().enter();
        let lease = Lease::new(server.leased.clone(), self.pinned_items.clone(), mailbox);
        let lease = if is_probe { lease.probe() } else { lease };
        // If the requester no longer waits, the lease is dropped here, which releases it.
        let _ = request.reply.send(Ok(lease));
    }

    pub(super) fn grant_waiting_leases(&mut self, server: &mut RunningServer) {
        for waiter in std::mem::take(&mut self.lease_waiters) {
            self.grant_lease(server, waiter, false);
        }
    }

    /// Counts a call for the breaker and returns whether the breaker trips.
    pub(super) fn record_health(
        &self,
        server: &mut RunningServer,
        health: CallHealth,
        caller: Option<&Caller>,
    ) -> bool {
        let since = Instant::now().checked_sub(server.breaker.cool_off());
        let recent_callers = &server.leased.recent_callers;
        let is_used_by_others = |caller: &Caller| recent_callers.has_other(caller, since);
        let trips = server.breaker.record(health, caller, is_used_by_others);
        self.metrics.consecutive_failures.store(server.breaker.failures(), Ordering::Relaxed);
        trips
    }

    /// Counts the call that tests a tripped server and returns whether the breaker stays open.
    pub(super) fn record_probe(&self, server: &mut RunningServer, health: CallHealth) -> bool {
        let stays_open = server.breaker.record_probe(health);
        self.metrics.consecutive_failures.store(server.breaker.failures(), Ordering::Relaxed);
        stays_open
    }

    pub(super) fn trip(&mut self, server: RunningServer, until: Instant) -> ActorState {
        server.gate().set_open(false);
        warn!(server = %self.spec.id, failures = server.breaker.failures(), "circuit breaker open");
        self.emit(Event::Tripped { server: self.spec.id.clone() });
        let error = self.tripped_error(&server, until, None);
        self.refuse_waiters(&error);
        self.set_last_error(&error);
        ActorState::Tripped { server, until, pause: None }
    }

    /// Handles the events that end any running state. A server that closed its output may still run, so it is stopped
    /// in any case.
    pub(super) fn leave_running(&mut self, server: RunningServer, event: ActorEvent) -> ActorState {
        server.gate().set_open(false);
        self.metrics.set_idle_rank(0);
        if let ActorEvent::RetireRequested { drain, done } = event {
            self.stop_waiters.push(done);
            return ActorState::Draining { server, until: Instant::now() + drain };
        }
        let then = match event {
            ActorEvent::Closed => self.handle_exit(&server),
            ActorEvent::Hung => self.handle_hang(&server),
            ActorEvent::StopRequested { then, done } => {
                self.stop_waiters.push(done);
                if matches!(then, AfterStop::Sleep) {
                    self.refuse_waiters(&self.stopped_error());
                }
                self.announce_stop();
                then
            }
            ActorEvent::Idle => {
                self.announce_stop();
                AfterStop::Sleep
            }
            ActorEvent::Recycle => {
                self.announce_stop();
                match self.starts_by_itself() {
                    true => AfterStop::Start,
                    false => AfterStop::Sleep,
                }
            }
            ActorEvent::OverMemory { error } => {
                server.connection.set_stop_reason(&error);
                self.handle_failure(error, server.up_since.elapsed())
            }
            _ => AfterStop::End,
        };
        ActorState::Stopping { connection: server.connection, then }
    }

    pub(super) fn announce_stop(&self) {
        info!(server = %self.spec.id, "stopping");
        self.emit(Event::Stopped { server: self.spec.id.clone() });
    }

    pub(super) fn handle_started(
        &mut self,
        launched: Launched,
        began: Instant,
        needs_lists: bool,
    ) -> ActorState {
        let Launched { connection, fetched, refused_era } = launched;
        let server = self.spec.id.clone();
        let pid = connection.pid();
        let duration = began.elapsed();
        let revision = &connection.handshake.revision;
        info!(%server, pid, took = %format_duration(duration), tools = fetched.listing.tools.len(), %revision, "started");
        self.emit(Event::Started { server, pid, duration });
        if fetched.kinds.is_empty() && needs_lists {
            connection.request_relist(ListKinds::ALL);
        }
        let connection = Arc::new(connection);
        self.services.cache.invalidate(&self.spec.id, Some(&self.owner.key), Invalidation::All);
        let failed_kinds = fetched.failed_kinds();
        self.record_first_lists(&connection, &fetched, refused_era);
        // The spec may have changed since the start began.
        connection.apply_settings(&self.spec);
        let now = Instant::now();
        self.metrics.consecutive_failures.store(0, Ordering::Relaxed);
        self.start_gate.record_success();
        self.failure = None;
        let pins = self.services.pins.for_server(&self.spec);
        let watcher = ConnectionWatcher {
            connection: connection.clone(),
            generation: self.generation,
            actor: self.own_mailbox.clone(),
            pins,
        };
        self.services.tasks.spawn_boxed(watcher.run(failed_kinds));
        self.services.slots.mark_idle(&self.metrics);
        let gate = LeaseGate::new(now, self.services.suspend_clock.total_suspended());
        if self.spec.lifecycle.start == StartPolicy::OnDemand {
            gate.mark_used(now);
        }
        let leased = Arc::new(LeasedServer {
            connection: connection.clone(),
            generation: self.generation,
            is_for_one_client: matches!(self.owner.key.without_era(), InstanceKey::Client { .. }),
            gate,
            recent_callers: RecentCallers::default(),
            metrics: self.metrics.clone(),
            slots: self.services.slots.clone(),
            snapshot: self.snapshot.subscribe(),
        });
        ActorState::Ready(RunningServer {
            connection,
            up_since: now,
            leased,
            idle_timer: Box::pin(sleep(Duration::ZERO)),
            breaker: Breaker::new(self.spec.lifecycle.breaker.clone()),
            ping_pending: false,
            ping_required: false,
            recycle_when_idle: false,
        })
    }

    /// Records what a start has shown: the eras of the server, and its lists if they were read. Saves what is new.
    fn record_first_lists(
        &mut self,
        connection: &Connection,
        fetched: &FetchedListing,
        refused_era: Option<RefusedEra>,
    ) {
        let has_new_era = self.record_eras(connection.era(), refused_era);
        let save = match self.listing_store.get() {
            None => Self::save_first_listing,
            Some(_) => Self::save_listing,
        };
        let unsaved = match fetched.kinds.is_empty() {
            true => None,
            false => self.update_listing(connection, fetched, false).unsaved,
        };
        let unsaved = unsaved.or_else(|| self.listing_store.get().filter(|_| has_new_era));
        unsaved.into_iter().for_each(|known| save(self, known));
    }

    /// Records lists of the server. If the server's listing changes, that is announced. A list that could not be read keeps
    /// its last known content.
    pub(super) fn update_listing(
        &mut self,
        connection: &Connection,
        fetched: &FetchedListing,
        is_change: bool,
    ) -> UpdatedListing {
        let last = self.known_listing.as_ref().map(|known| &*known.listing);
        let known = KnownListing {
            revision: connection.handshake.revision,
            is_legacy_sse: connection.is_legacy_sse(),
            listing: Arc::new(self.with_declared_tools(fetched.merge(last, Instant::now()))),
        };
        let changed = last.map_or(ListKinds::ALL, |last| known.listing.changed_kinds(last));
        self.update_list_failures(fetched);
        self.update_pinned_items(&known.listing);
        let key = &self.listing_key();
        let server_before = self.listing_store.shown_to(self.told_capabilities());
        let previous = self.known_listing.replace(known.clone());
        self.snapshot.send_modify(|snapshot| {
            snapshot.known_listing = Some(known.clone());
            snapshot.list_failures.clone_from(&self.list_failures);
        });
        let recorded = self.listing_store.record(key, known.clone(), previous.as_ref(), is_change);
        let is_new_for_client = self
            .told_capabilities()
            .is_some_and(|capabilities| self.listing_store.record_for(capabilities, &known.listing));
        let Some(known) = recorded else {
            let shows_own = self.has_extended_owner() || is_new_for_client;
            let before = if is_change { previous } else { server_before.filter(|_| shows_own) };
            self.notify_list_changes(before.as_ref(), &known);
            let unsaved = self.listing_store.get().filter(|_| is_new_for_client);
            return UpdatedListing { changed, unsaved };
        };
        let has_changed = server_before.as_ref().is_none_or(|before| before.listing != known.listing);
        if has_changed {
            if let Some(problem) = known.listing.problems().first() {
                warn!(server = %self.spec.id, problem, "has problems in its lists; see its status");
            }
            self.emit(Event::ListingChanged { server: self.spec.id.clone() });
            match server_before {
                Some(_) => self.services.listing_changes.report(),
                // Servers that were never listed are often started together.
                None => self.services.listing_changes.report_deferred(),
            }
        }
        // A change announced by one instance applies only while it runs and is not saved. Neither is a listing whose tools
        // could not be read: without an earlier one, the server counts as never listed for the next gateway.
        let is_permanent = !is_change || key.is_shared();
        let is_saved =
            is_permanent && !self.list_failures.iter().any(|failure| failure.kind == ListKind::Tools);
        UpdatedListing { changed, unsaved: is_saved.then_some(known) }
    }

    /// Replaces the failures of the lists that were requested, and logs new ones.
    fn update_list_failures(&mut self, fetched: &FetchedListing) {
        let before = std::mem::take(&mut self.list_failures);
        for failure in fetched.failures.iter().filter(|failure| !before.contains(failure)) {
            let server = &self.spec.id;
            let list = failure.kind.method();
            warn!(%server, list, error = failure.message(), "cannot read a list; its last known content stays");
        }
        let others = before.into_iter().filter(|failure| !fetched.kinds.contains(failure.kind));
        self.list_failures = others.chain(fetched.failures.iter().cloned()).collect();
    }

    /// Replaces an unknown list of tools by the declared one.
    fn with_declared_tools(&self, mut listing: Listing) -> Listing {
        let declared = self.cards.listing().filter(|_| listing.unknown_list(ListKind::Tools).is_some());
        if let Some(declared) = declared {
            listing.copy_list(ListKind::Tools, &declared);
        }
        listing
    }

    /// Returns whether the instance belongs to a client with extensions, which is shown the list of its own instance.
    fn has_extended_owner(&self) -> bool {
        self.owner.capabilities.as_ref().is_some_and(ClientCapabilities::has_extensions)
    }

    /// Returns the capabilities that the server was told, if its listing may depend on them and is remembered with them.
    fn told_capabilities(&self) -> Option<&ClientCapabilities> {
        let of_owner = self.owner.capabilities.as_ref().filter(|_| self.spec.sharing == Sharing::Auto);
        self.told.as_ref().or(of_owner)
    }

    /// Returns the key under which listings of this instance are recorded. What the shared instance lists for one client is
    /// not what all are shown.
    pub(super) fn listing_key(&self) -> InstanceKey {
        match &self.told {
            Some(told) => InstanceKey::Client { number: 0, capabilities: told.as_json().clone() },
            None => self.owner.key.clone(),
        }
    }

    /// Saves a listing of the server.
    pub(super) fn save_listing(&self, known: KnownListing) {
        self.services.write_now(&self.spec.id, self.listing_write(known));
    }

    /// Saves the first listing of the server a moment later, because other servers may be starting.
    fn save_first_listing(&self, known: KnownListing) {
        self.services.write_later(&self.spec.id, self.listing_write(known));
    }

    fn listing_write(&self, known: KnownListing) -> impl FnOnce() + Send + use<> {
        let store = self.listing_store.clone();
        let server = self.spec.id.clone();
        move || {
            if let Err(error) = store.save(&known) {
                warn!(%server, %error, "cannot save its listing");
            }
        }
    }

    /// Notifies the clients of this instance of a change that concerns only them.
    fn notify_list_changes(&self, before: Option<&KnownListing>, now: &KnownListing) {
        if let Some(before) = before {
            self.send_list_change(now.listing.changed_kinds(&before.listing));
        }
    }

    /// Notifies the clients of this instance that lists changed.
    pub(super) fn send_list_change(&self, lists: ListKinds) {
        if !lists.is_empty() {
            let server = self.spec.id.clone();
            let instance = self.owner.key.clone();
            let lists = lists.iter().collect();
            self.services.notifications.send(ServerNotification::ListChanged { server, instance, lists });
        }
    }

    /// Compares a listing with the approved definitions, before it is shown or a lease is granted.
    pub(super) fn update_pinned_items(&mut self, listing: &Arc<Listing>) {
        let is_complete = self.owner.key.is_shared() && self.told.is_none();
        let pins = self.services.check_pins(&self.spec, listing, is_complete);
        let pins = pins.filter(|_| self.spec.pin == Pinning::Strict);
        self.pinned_items = pins.map(|pins| PinnedItems { pins, listing: listing.clone() });
        self.snapshot.send_modify(|snapshot| snapshot.pinned_items.clone_from(&self.pinned_items));
    }

    pub(super) fn stopped_error(&self) -> Error {
        let server = &self.spec.id;
        Error::new(ErrorKind::Lost, format!("`{server}` was stopped")).with_server(server).mark_not_sent()
    }

    /// Handles a command in a state without a running server and returns the next state; `None` to stay.
    pub(super) fn handle_command(&mut self, command: Option<ActorCommand>) -> Option<ActorState> {
        let Some(command) = command else { return Some(ActorState::Ended) };
        match command {
            ActorCommand::Lease(waiter) => {
                self.lease_waiters.push(waiter);
                None
            }
            ActorCommand::Release(_) | ActorCommand::Watched { .. } | ActorCommand::MemoryChecked { .. } => {
                None
            }
            ActorCommand::Update(spec) => {
                self.take_spec(spec);
                None
            }
            ActorCommand::FreeSlot => {
                // A late release may have marked it as idle.
                self.metrics.set_idle_rank(0);
                self.keep_slot();
                None
            }
            ActorCommand::Restart(done) => {
                self.reset_start();
                confirm(done);
                Some(ActorState::Starting)
            }
            ActorCommand::Stop(done) => {
                self.refuse_waiters(&self.stopped_error());
                self.stop_waiters.push(done);
                Some(ActorState::Asleep)
            }
            ActorCommand::Retire { done, .. } => {
                self.stop_waiters.push(done);
                Some(ActorState::Ended)
            }
        }
    }

    /// Returns whether any lease request still waits.
    pub(super) fn has_lease_waiters(&mut self) -> bool {
        self.lease_waiters.retain(|request| !request.reply.is_closed());
        !self.lease_waiters.is_empty()
    }

    pub(super) fn refuse(&self, request: LeaseRequest, error: Error) {
        // The requester may no longer wait.
        let _ = request.reply.send(Err(error));
    }

    pub(super) fn refuse_waiters(&mut self, error: &Error) {
        for waiter in std::mem::take(&mut self.lease_waiters) {
            self.refuse(waiter, error.clone());
        }
    }

    /// Answers the stop requests once the server's processes have ended.
    pub(super) async fn notify_stopped(&mut self) {
        if !self.stop_waiters.is_empty() {
            wait_until_exited(&self.live_processes).await;
        }
        self.stop_waiters.drain(..).for_each(confirm);
    }

    pub(super) fn emit(&self, event: Event) {
        self.services.emit(&self.spec.id, event);
    }

    pub(super) fn set_last_error(&mut self, error: &Error) {
        let last_error = LastError {
            kind: error.kind(),
            class: error.class(),
            message: error.to_string(),
            hint: error.hint(),
            at: clock::wall_time(),
        };
        self.start_gate.set_last_error(last_error.clone());
        self.failure = Some(error.clone());
        self.last_error = Some(last_error);
    }

    /// Answers the calls whose failures have been counted and published.
    fn confirm_failures(&mut self) {
        self.failure_waiters.drain(..).for_each(confirm);
    }

    /// Writes the state to the snapshot that handles read.
    pub(super) fn publish(&mut self, state: &ActorState) {
        let (name, server, ends_at) = match state {
            ActorState::Asleep => (ServerState::Asleep, None, None),
            ActorState::Starting => (ServerState::Starting, None, None),
            ActorState::Ready(server) => (ServerState::Ready, Some(server), None),
            ActorState::Tripped { server, until, .. } => (ServerState::Tripped, Some(server), Some(*until)),
            ActorState::Probing(server) => (ServerState::Probing, Some(server), None),
            ActorState::BackingOff { until } | ActorState::Paused { until, .. } => {
                (ServerState::BackingOff, None, Some(*until))
            }
            ActorState::Draining { server, until } => (ServerState::Stopping, Some(server), Some(*until)),
            ActorState::Stopping { .. } | ActorState::Ended => (ServerState::Stopping, None, None),
            ActorState::Ejected { .. } => (ServerState::Ejected, None, None),
        };
        self.snapshot.send_modify(|snapshot| {
            snapshot.state = name;
            snapshot.state_ends_at = ends_at;
            snapshot.is_draining =
                matches!(state, ActorState::Draining { server, .. } if server.gate().leases() > 0);
            snapshot.leased = server.map(|server| Arc::downgrade(&server.leased)).unwrap_or_default();
            snapshot.generation = self.generation;
            snapshot.told.clone_from(&self.told);
            snapshot.up_since = server.map(|server| server.up_since);
            snapshot.connection = server.map(|server| Arc::downgrade(&server.connection)).unwrap_or_default();
            snapshot.last_error.clone_from(&self.last_error);
            snapshot.failure.clone_from(&self.failure);
        });
        self.confirm_failures();
    }
}
