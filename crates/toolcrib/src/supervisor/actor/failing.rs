//! What the actor does about a failure: what the table says of its class, the states in which it waits, and the words to
//! those who ask meanwhile.

use std::hash::{BuildHasher, RandomState};

use super::*;
use crate::class::Treatment;
use crate::spelling;

/// How long a server may take to say that it is still there: as long as a call, between these two.
const PING: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));

/// How long a server is left alone that asks for it and does not say how long.
const A_WHILE: Duration = Duration::from_secs(1);

impl Actor {
    pub(super) async fn backing_off(&mut self, until: Instant) -> State {
        self.mourn().await;
        let mut time = std::pin::pin!(sleep_until(until));
        loop {
            tokio::select! {
                () = &mut time => {
                    let again = self.someone_waits() || self.spec.lifecycle.start == Start::AtBoot;
                    return if again { State::Starting } else { State::Asleep };
                }
                command = self.commands.recv() => if let Some(state) = self.obey(command) {
                    return state;
                },
            }
        }
    }

    /// Refuses whoever asks, until it is worth another try.
    pub(super) async fn resting(&mut self, until: Instant, error: Error) -> State {
        self.mourn().await;
        let on_a_timer = error.class().is_some_and(|class| class.facts().on_a_timer);
        let mut time = std::pin::pin!(sleep_until(until));
        loop {
            tokio::select! {
                () = &mut time => return match self.spec.lifecycle.start {
                    Start::AtBoot if on_a_timer => State::Starting,
                    _ => State::Asleep,
                },
                command = self.commands.recv() => match command {
                    Some(Command::Lease(waiter)) => {
                        let wait = until.saturating_duration_since(Instant::now());
                        self.refuse(waiter, error.again_in(wait));
                    }
                    command => if let Some(state) = self.obey(command) {
                        return state;
                    },
                },
            }
        }
    }

    pub(super) async fn ejected(&mut self, error: Error) -> State {
        self.mourn().await;
        self.refuse_waiters(&error);
        loop {
            match self.commands.recv().await {
                // Pardoned together with another instance.
                Some(Command::Lease(waiter)) if !self.fate.is_ejected() => {
                    self.waiters.push(waiter);
                    return State::Starting;
                }
                Some(Command::Lease(waiter)) => self.refuse(waiter, error.clone()),
                Some(Command::Stop(told)) => tell(told),
                command => {
                    if let Some(state) = self.obey(command) {
                        return state;
                    }
                }
            }
        }
    }

    /// What another instance's failure means for this one; those who waited for how it would go hear of it.
    pub(super) fn serve(&mut self, sentence: Sentence, waited: bool) -> State {
        match sentence {
            Sentence::BackOff(until, error) => {
                let worth_waiting = error.class().is_none_or(|class| class.facts().worth_waiting);
                if waited && !worth_waiting {
                    self.refuse_waiters(&error);
                }
                State::BackingOff { until }
            }
            Sentence::Rest(until, error) => {
                let wait = until.saturating_duration_since(Instant::now());
                self.refuse_waiters(&error.again_in(wait));
                State::Resting { until, error }
            }
            Sentence::Eject(error) => State::Ejected(error),
        }
    }

    pub(super) fn not_started(&mut self, failure: StartFailure) -> State {
        if failure.died_on_probe {
            self.fate.died_on_probe();
        }
        self.failed(failure.error, Duration::ZERO).into()
    }

    pub(super) fn too_slow(&self, limit: Duration, around: &Around) -> StartFailure {
        let server = &self.spec.id;
        let mut message = format!("`{server}` did not come up within {}", spelling::time(limit));
        if let Some(words) = around.strange.get() {
            message = format!("{message}; it wrote what is no message: `{words}`");
        }
        let hint =
            format!("raise `servers.{server}.lifecycle.start-timeout`, or see `toolcrib logs {server}`");
        let class = match self.spec.endpoint {
            Endpoint::Http(_) => FailureClass::Unreachable,
            Endpoint::Command(_) | Endpoint::InProcess(_) => FailureClass::SlowToStart,
        };
        let error = Error::new(ErrorKind::CouldNotStart, message).at(server).hint(hint).of_class(class);
        StartFailure { error, died_on_probe: false }
    }

    /// Asks the server whether it is still there, unless it is being asked.
    pub(super) fn check(&self, alive: &mut Alive) {
        if std::mem::replace(&mut alive.checked, true) {
            return;
        }
        let limit = self.spec.limits.call_timeout.clamp(PING.0, PING.1);
        let (connection, actor) = (alive.connection.clone(), self.own_mailbox.clone());
        let generation = self.generation;
        self.around.tasks.spawn(async move {
            let what = if connection.is_there(limit).await { Seen::Answered } else { Seen::Silent };
            if let Some(actor) = actor.upgrade() {
                // An actor that is gone does not care.
                let _ = actor.send(Command::Seen { generation, what });
            }
        });
    }

    /// Whether the server has to be asked before anybody gets it: the machine has slept since it was last used.
    pub(super) fn is_doubtful(&self, alive: &mut Alive) -> bool {
        if alive.leases == 0 && !alive.doubted {
            let slept = self.around.sleeps.so_far();
            if clock::has_slept(std::mem::replace(&mut alive.slept, slept), slept) {
                info!(server = %self.spec.id, "the machine has slept, is it still there?");
                alive.doubted = true;
                self.check(alive);
            }
        }
        alive.doubted
    }

    /// It is gone. A remote server is connected to again at no cost: that it left is no fault of its own process.
    pub(super) fn died(&mut self, alive: &Alive) -> Then {
        let (error, up) = (alive.connection.obituary(), alive.since.elapsed());
        if !alive.connection.is_remote() {
            return self.failed(error, up);
        }
        let error = error.of_class(FailureClass::Unreachable);
        let wait = self.fate.wait(up, chance());
        self.restart_in(&error, FailureClass::Unreachable, wait)
    }

    /// It says nothing any more. A remote server may only have lost the way to us.
    pub(super) fn hung(&mut self, alive: &Alive) -> Then {
        alive.connection.condemn();
        if alive.connection.is_remote() {
            return Then::Start;
        }
        let server = &self.spec.id;
        let message = format!("`{server}` hung: it answered neither a call nor a ping, and was replaced");
        let error = Error::new(ErrorKind::Lost, message).at(server).of_class(FailureClass::Hung);
        self.failed(error, alive.since.elapsed())
    }

    /// It asked to be left alone, or will listen to nobody.
    pub(super) fn leave_alone(&mut self, alive: Alive, class: FailureClass, wait: Duration) -> State {
        let until = Instant::now() + wait;
        let error = self.left_alone(&alive, until, Some(class));
        self.note(&error);
        self.refuse_waiters(&error);
        self.say(Event::Paused { server: self.spec.id.clone(), class, why: error.to_string(), wait });
        State::Tripped { alive, until, asked: Some(class) }
    }

    /// What the table says about this failure of a server that had been up for so long.
    pub(super) fn failed(&mut self, error: Error, up: Duration) -> Then {
        let class = error.class().unwrap_or(FailureClass::Crashed);
        let error = error.of_class(class);
        self.note(&error);
        match class.facts().treatment {
            Treatment::Restart => match self.fate.spend(Instant::now(), up, chance()) {
                Some(wait) => self.restart_in(&error, class, wait),
                None => self.spent(error, class),
            },
            Treatment::Eject => self.hopeless(error, class),
            Treatment::Pause(wait) => self.pause(error, class, wait),
            Treatment::PauseAsTold => {
                let wait = error.wait().unwrap_or(A_WHILE);
                self.pause(error, class, wait)
            }
            Treatment::PauseLonger => {
                let wait = self.fate.wait(up, chance());
                self.pause(error, class, wait)
            }
        }
    }

    fn restart_in(&mut self, error: &Error, class: FailureClass, wait: Duration) -> Then {
        let server = self.spec.id.clone();
        if !class.facts().worth_waiting && class != FailureClass::Unreachable {
            self.refuse_waiters(error);
        }
        warn!(%server, %error, class = class.name(), ?wait, "failed");
        self.say(Event::Crashed { server, class, why: error.to_string() });
        let until = Instant::now() + wait;
        self.fate.pass(Sentence::BackOff(until, error.clone()));
        Then::BackOff(until)
    }

    fn pause(&mut self, error: Error, class: FailureClass, wait: Duration) -> Then {
        let server = self.spec.id.clone();
        self.refuse_waiters(&error.again_in(wait));
        warn!(%server, %error, class = class.name(), ?wait, "is left alone");
        self.say(Event::Paused { server, class, why: error.to_string(), wait });
        let until = Instant::now() + wait;
        self.fate.pass(Sentence::Rest(until, error.clone()));
        Then::Rest(until, error)
    }

    /// The budget is spent.
    fn spent(&mut self, error: Error, class: FailureClass) -> Then {
        let (server, within) = (&self.spec.id, self.spec.lifecycle.restarts.within);
        let times = self.fate.restarts(Instant::now()).0 + 1;
        let why = error.words().map_or_else(|| error.to_string(), ToString::to_string);
        let within = spelling::time(within);
        let message = format!("`{server}` was ejected, it failed {times} times within {within}: {why}");
        self.refuse_waiters(&error);
        self.eject(error.become_kind(ErrorKind::Ejected, message), class, why)
    }

    /// Another try can end in no other way.
    fn hopeless(&mut self, error: Error, class: FailureClass) -> Then {
        let server = &self.spec.id;
        let why = error.to_string();
        let why = why.strip_prefix(&format!("`{server}` could not start: ")).unwrap_or(&why).to_owned();
        let message = format!("`{server}` was ejected, it cannot work as it is declared: {why}");
        self.refuse_waiters(&error);
        let hint = error.advice();
        self.eject(error.become_kind(ErrorKind::Ejected, message).hint(hint), class, why)
    }

    fn eject(&self, error: Error, class: FailureClass, why: String) -> Then {
        let server = self.spec.id.clone();
        warn!(%server, why, class = class.name(), "ejected");
        self.say(Event::Ejected { server, class, why });
        self.fate.pass(Sentence::Eject(error.clone()));
        Then::Eject(error)
    }

    pub(super) fn left_alone(&self, alive: &Alive, until: Instant, asked: Option<FailureClass>) -> Error {
        let server = &self.spec.id;
        let wait = until.saturating_duration_since(Instant::now());
        let (why, kind) = match asked {
            Some(FailureClass::NeedsAuth) => ("wants authentication".to_owned(), ErrorKind::AuthNeeded),
            Some(_) => ("asked to be left alone".to_owned(), ErrorKind::Tripped),
            None => (format!("failed {} times in a row", alive.breaker.failures()), ErrorKind::Tripped),
        };
        let message = format!("`{server}` {why}, trying again in {}", spelling::time(wait));
        let error = Error::new(kind, message).at(server).retry_in(wait);
        asked.into_iter().fold(error, Error::of_class)
    }
}

/// A number between 0 and 1 that nobody needs to guess.
fn chance() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "any number will do")]
    let number = RandomState::new().hash_one(0) as f64;
    number / u64::MAX as f64
}
