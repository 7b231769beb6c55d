//! Reactions to failures: restart with backoff, pause, ejection, and the errors for lease requests meanwhile.

use std::hash::{BuildHasher, RandomState};

use super::*;
use crate::model::caller::Caller;
use crate::model::exit_report::ExitReport;
use crate::model::failure_class::Treatment;
use crate::model::hint::Hint;
use crate::util::format::format_duration;
use crate::util::tasks::SpawnBoxed as _;

/// Shortest time a server has to answer a ping. Between the two limits it is the call timeout.
const MIN_PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest time a server has to answer a ping.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Length of a pause that the server asked for without saying how long.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

impl Actor {
    pub(super) async fn run_backing_off(&mut self, until: Instant) -> ActorState {
        self.notify_stopped().await;
        let mut timer = std::pin::pin!(sleep_until(until));
        loop {
            tokio::select! {
                () = &mut timer => {
                    let starts = self.has_lease_waiters() || self.starts_by_itself();
                    return if starts { ActorState::Starting } else { ActorState::Asleep };
                }
                command = self.commands.recv() => match command {
                    Some(ActorCommand::Update(spec)) => return self.update_failed(spec),
                    command => if let Some(state) = self.handle_command(command) {
                        return state;
                    },
                },
            }
        }
    }

    /// Refuses leases until the pause is over.
    pub(super) async fn run_paused(&mut self, until: Instant, error: Error) -> ActorState {
        self.notify_stopped().await;
        let retried_in_background = error.class().is_some_and(|class| class.facts().retried_in_background);
        let mut timer = std::pin::pin!(sleep_until(until));
        loop {
            tokio::select! {
                () = &mut timer => return match retried_in_background && self.starts_by_itself() {
                    true => ActorState::Starting,
                    false => ActorState::Asleep,
                },
                command = self.commands.recv() => match command {
                    Some(ActorCommand::Lease(waiter)) => {
                        let wait = until.saturating_duration_since(Instant::now());
                        self.refuse(waiter, error.with_next_attempt_in(wait));
                    }
                    Some(ActorCommand::Update(spec)) => return self.update_failed(spec),
                    command => if let Some(state) = self.handle_command(command) {
                        return state;
                    },
                },
            }
        }
    }

    pub(super) async fn run_ejected(&mut self, error: Error) -> ActorState {
        self.notify_stopped().await;
        self.refuse_waiters(&error);
        loop {
            match self.commands.recv().await {
                // The start gate was reset by a restart of another instance.
                Some(ActorCommand::Lease(waiter)) if !self.start_gate.is_ejected() => {
                    self.lease_waiters.push(waiter);
                    return ActorState::Starting;
                }
                Some(ActorCommand::Lease(waiter)) => self.refuse(waiter, error.clone()),
                Some(ActorCommand::Stop(done)) => confirm(done),
                Some(ActorCommand::Update(spec)) => return self.update_failed(spec),
                command => {
                    if let Some(state) = self.handle_command(command) {
                        return state;
                    }
                }
            }
        }
    }

    /// Applies a penalty of the start gate to this instance. `has_waited` says whether leases waited for the start of
    /// another instance that failed.
    pub(super) fn apply_penalty(&mut self, penalty: Penalty, has_waited: bool) -> ActorState {
        match penalty {
            Penalty::BackOff { until, error } => {
                let worth_waiting = error.class().is_none_or(|class| class.facts().worth_waiting);
                if has_waited && !worth_waiting {
                    self.refuse_waiters(&error);
                }
                ActorState::BackingOff { until }
            }
            Penalty::Pause { until, error } => {
                let wait = until.saturating_duration_since(Instant::now());
                self.refuse_waiters(&error.with_next_attempt_in(wait));
                ActorState::Paused { until, error }
            }
            Penalty::Eject { error } => ActorState::Ejected { error },
        }
    }

    pub(super) fn handle_start_failure(&mut self, failure: StartFailure) -> ActorState {
        if let Some(refused) = failure.refused_era {
            return self.handle_refused_era(refused, &failure.error);
        }
        if failure.exited_in_both_eras {
            self.start_gate.require_session_era();
        } else if failure.exited_late {
            self.start_gate.skip_era_probe();
        }
        self.handle_failure(failure.error, Duration::ZERO).into()
    }

    pub(super) fn start_timeout_failure(&self, limit: Duration, context: &LaunchContext) -> StartFailure {
        let server = &self.spec.id;
        let mut message = format!("`{server}` did not come up within {}", format_duration(limit));
        if let Some(line) = context.first_garbage_line.get() {
            message = format!("{message}; it wrote a line that is not a message: `{line}`");
        }
        let hint = Hint::RaiseStartTimeout { server: server.clone() };
        let class = match self.spec.endpoint {
            Endpoint::Http(_) => FailureClass::Unreachable,
            Endpoint::Command(_) | Endpoint::InProcess(_) => FailureClass::SlowToStart,
        };
        let error = Error::new(ErrorKind::CouldNotStart, message);
        let error = error.with_server(server).with_hint(hint).with_class(class);
        StartFailure::new(error)
    }

    /// Pings the server in the background, unless a ping is in flight.
    pub(super) fn ping(&self, server: &mut RunningServer) {
        if std::mem::replace(&mut server.ping_pending, true) {
            return;
        }
        // Leases wait for the result of the ping.
        server.gate().set_open(false);
        let limit = self.spec.limits.call_timeout.clamp(MIN_PING_TIMEOUT, MAX_PING_TIMEOUT);
        let connection = server.connection.clone();
        let actor = self.own_mailbox.clone();
        let generation = self.generation;
        self.services.tasks.spawn_boxed(async move {
            let is_answered = connection.ping(limit).await;
            let event = if is_answered { WatchEvent::PingAnswered } else { WatchEvent::PingTimedOut };
            if let Some(actor) = actor.upgrade() {
                // Fails if the actor has ended.
                let _ = actor.send(ActorCommand::Watched { generation, event });
            }
        });
    }

    /// Returns whether leases must wait for a ping, because the machine was suspended since the server was last used.
    pub(super) fn needs_ping(&self, server: &mut RunningServer) -> bool {
        if server.gate().leases() == 0 && !server.ping_required {
            let suspended = self.services.suspend_clock.total_suspended();
            let suspended_before = server.gate().suspended_before();
            server.gate().set_suspended_before(suspended);
            if clock::was_suspended(suspended_before, suspended) {
                info!(server = %self.spec.id, "pinging the server, because the machine was suspended");
                server.ping_required = true;
                self.ping(server);
            }
        }
        server.ping_required
    }

    /// Handles a closed connection. Reconnecting to a remote server costs no restart, because its process did not fail.
    pub(super) fn handle_exit(&mut self, server: &RunningServer) -> AfterStop {
        let error = server.connection.exit_error();
        let uptime = server.up_since.elapsed();
        if !server.connection.is_remote() {
            return self.handle_failure(error, uptime);
        }
        let error = error.with_class(FailureClass::Unreachable);
        let wait = self.start_gate.next_backoff(uptime, random_fraction());
        self.back_off(&error, FailureClass::Unreachable, wait)
    }

    /// Handles a server that no longer responds. A remote server may only have become unreachable, so it is
    /// reconnected.
    pub(super) fn handle_hang(&mut self, server: &RunningServer) -> AfterStop {
        server.connection.mark_hung();
        if server.connection.is_remote() {
            return AfterStop::Start;
        }
        let id = &self.spec.id;
        let message = format!("`{id}` hung: it answered neither a call nor a ping, and was replaced");
        let error = Error::new(ErrorKind::Lost, message).with_server(id).with_class(FailureClass::Hung);
        self.handle_failure(error, server.up_since.elapsed())
    }

    /// Opens the breaker because the server asked for a pause or requires authentication.
    pub(super) fn pause_running(
        &mut self,
        server: RunningServer,
        class: FailureClass,
        wait: Duration,
    ) -> ActorState {
        server.gate().set_open(false);
        let until = Instant::now() + wait;
        let error = self.tripped_error(&server, until, Some(class));
        self.set_last_error(&error);
        self.refuse_waiters(&error);
        let id = self.spec.id.clone();
        self.emit(Event::Paused { server: id, class, reason: error.to_string(), retry_in: wait });
        ActorState::Tripped { server, until, pause: Some(class) }
    }

    /// Applies the treatment of the failure's class to a server that had been up for `uptime`.
    pub(super) fn handle_failure(&mut self, error: Error, uptime: Duration) -> AfterStop {
        let by_exit = error.exit_report().map_or(FailureClass::Crashed, ExitReport::failure_class);
        let class = match error.class() {
            None | Some(FailureClass::Crashed) => by_exit,
            Some(class) => class,
        };
        let error = error.with_class(class);
        self.set_last_error(&error);
        match class.facts().treatment {
            Treatment::RestartOnce
                if self
                    .start_gate
                    .record_killed_shim(Instant::now(), self.spec.lifecycle.restarts.within) =>
            {
                self.eject_without_shim(error, class)
            }
            Treatment::Restart | Treatment::RestartOnce => {
                match self.start_gate.spend_restart(Instant::now(), uptime, random_fraction()) {
                    Some(wait) => self.back_off(&error, class, wait),
                    None => self.eject_out_of_restarts(error, class),
                }
            }
            Treatment::Eject => self.eject_misconfigured(error, class),
            Treatment::Pause(wait) => self.pause(error, class, wait),
            Treatment::PauseAsAdvised => {
                let wait = error.retry_in().unwrap_or(DEFAULT_PAUSE);
                self.pause(error, class, wait)
            }
            Treatment::PauseWithBackoff => {
                let wait = self.start_gate.next_backoff(uptime, random_fraction());
                self.pause(error, class, wait)
            }
        }
    }

    fn back_off(&mut self, error: &Error, class: FailureClass, wait: Duration) -> AfterStop {
        let server = self.spec.id.clone();
        if !class.facts().worth_waiting && class != FailureClass::Unreachable {
            self.refuse_waiters(error);
        }
        warn!(%server, %error, class = class.name(), wait = %format_duration(wait), "failed");
        self.emit(Event::Crashed { server, class, reason: error.to_string() });
        let until = Instant::now() + wait;
        self.start_gate.record_failure(Penalty::BackOff { until, error: error.clone() });
        AfterStop::BackOff { until }
    }

    fn pause(&mut self, error: Error, class: FailureClass, wait: Duration) -> AfterStop {
        let server = self.spec.id.clone();
        self.refuse_waiters(&error.with_next_attempt_in(wait));
        warn!(%server, %error, class = class.name(), wait = %format_duration(wait), "failed; backing off");
        self.emit(Event::Paused { server, class, reason: error.to_string(), retry_in: wait });
        let until = Instant::now() + wait;
        // A login that one caller lacks says nothing about the instances of others.
        match class == FailureClass::NeedsAuth && self.spec.has_login_per_caller() {
            true => self.start_gate.record_own_failure(error.clone()),
            false => self.start_gate.record_failure(Penalty::Pause { until, error: error.clone() }),
        }
        AfterStop::Pause { until, error }
    }

    fn eject_out_of_restarts(&mut self, error: Error, class: FailureClass) -> AfterStop {
        let server = &self.spec.id;
        let failures = self.start_gate.restart_counts(Instant::now()).spent + 1;
        let window = format_duration(self.spec.lifecycle.restarts.within);
        let reason = error.exit_report().map_or_else(|| error.to_string(), ToString::to_string);
        let message = format!("`{server}` is ejected after {failures} failures in {window}; last: {reason}");
        self.refuse_waiters(&error);
        self.eject(error.into_kind(ErrorKind::Ejected, message), class, reason)
    }

    /// Ejects a server that cannot start with its current configuration.
    fn eject_misconfigured(&mut self, error: Error, class: FailureClass) -> AfterStop {
        let server = &self.spec.id;
        let text = error.to_string();
        let prefix = format!("`{server}` could not start: ");
        let reason = text.strip_prefix(&prefix).unwrap_or(&text).to_owned();
        let message = format!("`{server}` is ejected: it cannot work as it is configured: {reason}");
        self.refuse_waiters(&error);
        let hint = error.hint();
        self.eject(error.into_kind(ErrorKind::Ejected, message).with_hint(hint), class, reason)
    }

    /// Ejects a server whose shim was killed twice: each start may leave processes that only their user can find.
    fn eject_without_shim(&mut self, error: Error, class: FailureClass) -> AfterStop {
        let server = &self.spec.id;
        let reason = "its shim process was killed twice; processes that it started may still run";
        let message = format!("`{server}` is ejected: {reason}");
        self.refuse_waiters(&error);
        self.eject(error.into_kind(ErrorKind::Ejected, message), class, reason.to_owned())
    }

    fn eject(&self, error: Error, class: FailureClass, reason: String) -> AfterStop {
        let server = self.spec.id.clone();
        warn!(%server, reason, class = class.name(), "ejected");
        self.emit(Event::Ejected { server, class, reason });
        self.start_gate.record_failure(Penalty::Eject { error: error.clone() });
        AfterStop::Eject { error }
    }

    /// Returns the error for lease requests while the breaker is open. `pause` is the class of the failure if the
    /// server itself asked for the pause.
    pub(super) fn tripped_error(
        &self,
        server: &RunningServer,
        until: Instant,
        pause: Option<FailureClass>,
    ) -> Error {
        let id = &self.spec.id;
        let wait = until.saturating_duration_since(Instant::now());
        let (reason, kind) = match pause {
            Some(FailureClass::NeedsAuth) => ("requires authentication".to_owned(), ErrorKind::AuthNeeded),
            Some(_) => ("asked for a pause".to_owned(), ErrorKind::Tripped),
            None => (format!("failed {} times in a row", server.breaker.failures()), ErrorKind::Tripped),
        };
        let message = format!("`{id}` {reason}, trying again in {}", format_duration(wait));
        let error = Error::new(kind, message).with_server(id).with_retry_in(wait);
        let error = match self.login_hint().filter(|_| kind == ErrorKind::AuthNeeded) {
            Some(hint) => error.with_hint(hint),
            None => error,
        };
        pause.into_iter().fold(error, Error::with_class)
    }

    /// Returns the next step if the server needs a login.
    fn login_hint(&self) -> Option<Hint> {
        let Endpoint::Http(remote) = &self.spec.endpoint else { return None };
        let caller = match self.owner.key.without_era() {
            InstanceKey::Caller(caller) => caller.clone(),
            _ => Caller::local(),
        };
        remote.uses_login().then(|| Hint::login_for(&self.spec.id, &caller))
    }
}

/// Returns a random number between 0 and 1 that need not be unpredictable.
fn random_fraction() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "any number will do")]
    let number = RandomState::new().hash_one(0) as f64;
    number / u64::MAX as f64
}
