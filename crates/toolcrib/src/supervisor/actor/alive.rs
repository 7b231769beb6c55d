//! What the actor's states have in common: the life of a connection, the books, and the words to those who wait.

use super::*;
use crate::cache::Stale;

impl Actor {
    /// The next thing that happens to a living server. A new listing is learned on the way.
    pub(super) async fn next(&mut self, alive: &mut Alive) -> Happening {
        loop {
            if alive.recycle && alive.leases == 0 {
                return Happening::Recycled;
            }
            let idle_until = self.idle_until(alive);
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    // Callers hear of a death before we do; one who comes back for a new lease must not get the dead one.
                    Some(Command::Lease(waiter)) if alive.connection.is_closed() => {
                        self.waiters.push(waiter);
                        return Happening::Died;
                    }
                    Some(Command::Lease(waiter)) => return Happening::Asked(waiter),
                    Some(Command::Release { generation, health, probe, silent })
                        if generation == self.generation =>
                    {
                        self.released(alive);
                        if silent && !alive.connection.is_remote() {
                            self.check(alive);
                        }
                        return Happening::Released { health, probe };
                    }
                    Some(Command::Seen { generation, what }) if generation == self.generation => match what {
                        Seen::Closed => return Happening::Died,
                        Seen::Silent => return Happening::Hung,
                        Seen::Answered => {
                            (alive.checked, alive.doubted) = (false, false);
                            return Happening::Answered;
                        }
                        Seen::Relisted(Ok(listing)) => self.learn(&alive.connection, *listing, true),
                        Seen::Relisted(Err(error)) => {
                            warn!(server = %self.spec.id, %error, "could not be listed anew");
                        }
                    },
                    Some(Command::MakeRoom) if alive.leases == 0 => return Happening::Idle,
                    Some(Command::MakeRoom) => self.stay(),
                    Some(Command::Weighed { generation, used, verdict }) if generation == self.generation => {
                        if let Some(happening) = self.weighed(alive, used, verdict) {
                            return happening;
                        }
                    }
                    Some(Command::Release { .. } | Command::Seen { .. } | Command::Weighed { .. }) => {}
                    Some(Command::Restart(told)) => {
                        self.fate.pardon();
                        return Happening::Ordered(Then::Start, told);
                    }
                    Some(Command::Stop(told)) => return Happening::Ordered(Then::Sleep, told),
                    Some(Command::Retire(drain, told)) => return Happening::Retired(drain, told),
                    None => return Happening::Abandoned,
                },
                () = &mut alive.idle, if idle_until.is_some() => match idle_until {
                    Some(until) if until > Instant::now() => alive.idle.as_mut().reset(until),
                    _ => return Happening::Idle,
                },
            }
        }
    }

    /// When a server that nobody uses goes to sleep; one that was started at boot stays until somebody has used it.
    fn idle_until(&self, alive: &Alive) -> Option<Instant> {
        match self.spec.lifecycle.keep_alive {
            KeepAlive::For(time) if alive.leases == 0 => alive.idle_since.map(|since| since + time),
            _ => None,
        }
    }

    fn released(&self, alive: &mut Alive) {
        alive.leases -= 1;
        self.gauges.leases.store(alive.leases, Ordering::Relaxed);
        if alive.leases == 0 {
            alive.idle_since = Some(Instant::now());
            self.around.room.idle(&self.gauges);
        }
    }

    pub(super) fn grant(
        &self,
        alive: &mut Alive,
        waiter: oneshot::Sender<Result<Lease, Error>>,
        probe: bool,
    ) {
        let Some(mailbox) = self.own_mailbox.upgrade() else { return };
        alive.leases += 1;
        self.gauges.leases.store(alive.leases, Ordering::Relaxed);
        self.gauges.set_idle(0);
        let (connection, gauges) = (alive.connection.clone(), self.gauges.clone());
        let (generation, health, asked, silent) = (self.generation, None, None, false);
        let held = self.held.clone();
        let lease = Lease { connection, generation, probe, health, asked, silent, held, mailbox, gauges };
        // Somebody who stopped waiting drops the lease here, which releases it unused.
        let _ = waiter.send(Ok(lease));
    }

    pub(super) fn judge(&self, alive: &mut Alive, health: Health) -> bool {
        let tripped = alive.breaker.count(health);
        self.gauges.failures.store(alive.breaker.failures(), Ordering::Relaxed);
        tripped
    }

    pub(super) fn trip(&mut self, alive: Alive, until: Instant) -> State {
        warn!(server = %self.spec.id, failures = alive.breaker.failures(), "tripped");
        self.say(Event::Tripped { server: self.spec.id.clone() });
        let error = self.left_alone(&alive, until, None);
        self.refuse_waiters(&error);
        self.note(&error);
        State::Tripped { alive, until, asked: None }
    }

    /// The ways out that every living state has. A server that died may have closed its output and live on, so it is
    /// stopped all the same.
    pub(super) fn leave_alive(&mut self, alive: Alive, happening: Happening) -> State {
        self.gauges.set_idle(0);
        if let Happening::Retired(drain, told) = happening {
            self.mourners.push(told);
            return State::Draining { alive, until: Instant::now() + drain };
        }
        self.gauges.leases.store(0, Ordering::Relaxed);
        let then = match happening {
            Happening::Died => self.died(&alive),
            Happening::Hung => self.hung(&alive),
            Happening::Ordered(then, told) => {
                self.mourners.push(told);
                if matches!(then, Then::Sleep) {
                    self.refuse_waiters(&self.stopped());
                }
                self.announce_stop();
                then
            }
            Happening::Idle => {
                self.announce_stop();
                Then::Sleep
            }
            Happening::Recycled => {
                self.announce_stop();
                if self.spec.lifecycle.start == Start::AtBoot { Then::Start } else { Then::Sleep }
            }
            Happening::Outgrown(error) => {
                alive.connection.dismiss(&error);
                self.failed(error, alive.since.elapsed())
            }
            _ => Then::Leave,
        };
        State::Stopping { connection: alive.connection, then }
    }

    pub(super) fn announce_stop(&self) {
        info!(server = %self.spec.id, "stopping");
        self.say(Event::Stopped { server: self.spec.id.clone() });
    }

    pub(super) fn started(&mut self, connection: Connection, listing: Listing, began: Instant) -> State {
        let (server, pid, took) = (self.spec.id.clone(), connection.pid(), began.elapsed());
        info!(%server, ?pid, ?took, tools = listing.tools.len(), revision = %connection.welcome.revision, "started");
        self.say(Event::Started { server, pid, took });
        let connection = Arc::new(connection);
        self.around.cache.forget(&self.spec.id, Some(&self.whose.key), Stale::All);
        self.learn(&connection, listing, false);
        let now = Instant::now();
        let breaker = Breaker::new(self.spec.lifecycle.breaker.clone());
        self.gauges.failures.store(0, Ordering::Relaxed);
        self.fate.came_up();
        let watcher = watch(connection.clone(), self.generation, self.own_mailbox.clone());
        self.around.tasks.spawn(watcher);
        let idle_since = (self.spec.lifecycle.start == Start::OnDemand).then_some(now);
        let idle = Box::pin(sleep(Duration::ZERO));
        self.around.room.idle(&self.gauges);
        let (since, leases, slept) = (now, 0, self.around.sleeps.so_far());
        let (checked, doubted, recycle) = (false, false, false);
        let alive =
            Alive { connection, since, leases, idle_since, idle, breaker, checked, doubted, slept, recycle };
        State::Ready(alive)
    }

    /// Keeps what the server offers; a change is announced and remembered. A list that could not be read is the last that
    /// could.
    fn learn(&mut self, connection: &Connection, mut listing: Listing, is_change: bool) {
        let nothing = Listing::default();
        listing = listing.after(self.known.as_ref().map_or(&nothing, |before| &before.listing));
        let welcome = &connection.welcome;
        let (revision, server_info) = (welcome.revision, welcome.server_info.clone());
        let known = Known { revision, server_info, listing: Arc::new(listing) };
        self.hold(&known.listing);
        let (key, before) = (&self.whose.key, self.memory.known());
        let own = self.known.replace(known.clone());
        self.snapshot.send_modify(|snapshot| snapshot.known = Some(known.clone()));
        let Some(known) = self.memory.hear(key, known.clone(), own.as_ref(), is_change) else {
            return self.relisted(own.filter(|_| is_change).as_ref(), &known);
        };
        let changed = before.is_none_or(|before| before.listing != known.listing);
        if changed {
            self.say(Event::Changed { server: self.spec.id.clone() });
            self.around.offers.notify_one();
        }
        if is_change && *key != SharingKey::Shared {
            return; // as long as that instance lives
        }
        let (memory, server) = (self.memory.clone(), self.spec.id.clone());
        self.around.tasks.spawn_blocking(move || {
            if let Err(error) = memory.remember(&known) {
                warn!(%server, %error, "its listing could not be remembered");
            }
        });
    }

    /// Tells of a change that only the clients of this instance can see.
    fn relisted(&self, before: Option<&Known>, now: &Known) {
        let differs =
            |kind: &Kind| before.is_some_and(|before| before.listing.of(*kind) != now.listing.of(*kind));
        let lists: Arc<[Kind]> = Kind::ALL.into_iter().filter(differs).collect();
        if !lists.is_empty() {
            let (server, instance) = (self.spec.id.clone(), self.whose.key.clone());
            // Nobody may be listening.
            let _ = self.around.news.send(News::Relisted { server, instance, lists });
        }
    }

    /// Before anybody gets a lease, and before anybody sees it in a list.
    fn hold(&mut self, listing: &Arc<Listing>) {
        let pins = self.around.look(&self.spec, listing, self.whose.key == SharingKey::Shared);
        let pins = pins.filter(|_| self.spec.pin == Pinning::Strict);
        self.held = pins.map(|pins| Held { pins, listing: listing.clone() });
    }

    pub(super) fn stopped(&self) -> Error {
        Error::new(ErrorKind::Lost, format!("`{}` was stopped", self.spec.id)).at(&self.spec.id).unsent()
    }

    /// What a state without a living server does when it is told something; `None` to stay as it is.
    pub(super) fn obey(&mut self, command: Option<Command>) -> Option<State> {
        match command {
            Some(Command::Lease(waiter)) => {
                self.waiters.push(waiter);
                None
            }
            Some(Command::Release { .. } | Command::Seen { .. } | Command::Weighed { .. }) => None,
            Some(Command::MakeRoom) => {
                self.stay();
                None
            }
            Some(Command::Restart(told)) => {
                self.fate.pardon();
                tell(told);
                Some(State::Starting)
            }
            Some(Command::Stop(told)) => {
                self.refuse_waiters(&self.stopped());
                self.mourners.push(told);
                Some(State::Asleep)
            }
            Some(Command::Retire(_, told)) => {
                self.mourners.push(told);
                Some(State::Gone)
            }
            None => Some(State::Gone),
        }
    }

    /// Whether anybody still waits for the server to come up.
    pub(super) fn someone_waits(&mut self) -> bool {
        self.waiters.retain(|waiter| !waiter.is_closed());
        !self.waiters.is_empty()
    }

    pub(super) fn refuse(&self, waiter: oneshot::Sender<Result<Lease, Error>>, error: Error) {
        // Somebody who stopped waiting needs no answer.
        let _ = waiter.send(Err(error));
    }

    pub(super) fn refuse_waiters(&mut self, error: &Error) {
        for waiter in std::mem::take(&mut self.waiters) {
            self.refuse(waiter, error.clone());
        }
    }

    /// Tells those who wait for the server to be gone that it is.
    pub(super) async fn mourn(&mut self) {
        if !self.mourners.is_empty() {
            all_gone(&self.lives).await;
        }
        self.mourners.drain(..).for_each(tell);
    }

    pub(super) fn say(&self, event: Event) {
        self.around.say(&self.spec.id, event);
    }

    pub(super) fn note(&mut self, error: &Error) {
        let (kind, class, message, hint) = (error.kind(), error.class(), error.to_string(), error.advice());
        let noted = LastError { kind, class, message, hint, at: clock::wall() };
        self.fate.note(noted.clone());
        self.last_error = Some(noted);
    }

    pub(super) fn publish(&self, state: &State) {
        let (name, alive, until) = match state {
            State::Asleep => (StateName::Asleep, None, None),
            State::Starting => (StateName::Starting, None, None),
            State::Ready(alive) => (StateName::Ready, Some(alive), None),
            State::Tripped { alive, until, .. } => (StateName::Tripped, Some(alive), Some(*until)),
            State::Probing(alive) => (StateName::Probing, Some(alive), None),
            State::BackingOff { until } | State::Resting { until, .. } => {
                (StateName::BackingOff, None, Some(*until))
            }
            State::Draining { alive, until } => (StateName::Stopping, Some(alive), Some(*until)),
            State::Stopping { .. } | State::Gone => (StateName::Stopping, None, None),
            State::Ejected(_) => (StateName::Ejected, None, None),
        };
        self.snapshot.send_modify(|snapshot| {
            snapshot.state = name;
            snapshot.until = until;
            snapshot.is_draining = matches!(state, State::Draining { alive, .. } if alive.leases > 0);
            snapshot.generation = self.generation;
            snapshot.since = alive.map(|alive| alive.since);
            snapshot.connection = alive.map(|alive| Arc::downgrade(&alive.connection)).unwrap_or_default();
            snapshot.last_error.clone_from(&self.last_error);
        });
    }
}

/// Tells the actor when the connection is closed, and of the new tools when the server says that they changed: asked
/// for once per `RELIST` at most.
async fn watch(connection: Arc<Connection>, generation: u64, actor: mpsc::WeakUnboundedSender<Command>) {
    let tell = |what| match actor.upgrade() {
        Some(actor) => actor.send(Command::Seen { generation, what }).is_ok(),
        None => false,
    };
    let relist = async {
        loop {
            connection.offer_changed().await;
            if !tell(Seen::Relisted(Listing::fetch(&connection).await.map(Box::new))) {
                return;
            }
            sleep(RELIST).await;
        }
    };
    tokio::select! {
        biased;
        () = connection.closed() => {}
        () = relist => {}
        () = connection.keep_listening() => {}
    }
    // An actor that is gone has closed the connection itself.
    tell(Seen::Closed);
}
