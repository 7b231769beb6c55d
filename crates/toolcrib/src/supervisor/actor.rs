//! One async fn per state; the only writer of a server's life.
//!
//! `run` is the transition table. Every state listens to the mailbox, and every claim that cannot be answered yet waits
//! in `waiters`; only until nothing is left of an old process is nobody heard.

mod alive;
mod bounds;
mod failing;
mod state;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::breaker::{Breaker, Health};
use super::fate::{Attempt, Fate, Prospect, Sentence};
use super::gauges::Gauges;
use super::memory::{Known, Memory};
use super::room::Seat;
use super::{Books, Command, Lease, Seen, Snapshot, Surroundings};
use crate::class::FailureClass;
use crate::clock;
use crate::connection::Connection;
use crate::connection::launch::{Around, StartFailure, all_gone, launch};
use crate::connection::listing::Listing;
use crate::connection::stderr::StderrTail;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, News};
use crate::pins::Held;
use crate::sharing::{SharingKey, Whose};
use crate::spec::{Endpoint, KeepAlive, Pinning, ServerSpec, Start};
use crate::status::{LastError, StateName};
use crate::wire::kind::Kind;
use crate::wire::revision::{Era, Revision};
use state::{Alive, Happening, State, Then};

/// The shortest time between two listings of a server that keeps saying it has changed.
const RELIST: Duration = Duration::from_secs(1);

/// When to ask again while one call finds out whether a server is well.
const PROBE: Duration = Duration::from_secs(1);

/// The task that owns one server's life.
pub(super) struct Actor {
    spec: Arc<ServerSpec>,
    own_mailbox: mpsc::WeakUnboundedSender<Command>,
    commands: mpsc::UnboundedReceiver<Command>,
    snapshot: watch::Sender<Snapshot>,
    fate: Arc<Fate>,
    generation: u64,
    known: Option<Known>,
    /// What leases may be used for, if the server is held to what was approved.
    held: Option<Held>,
    memory: Memory,
    last_error: Option<LastError>,
    waiters: Vec<oneshot::Sender<Result<Lease, Error>>>,
    /// Who wants to know when the server is gone.
    mourners: Vec<oneshot::Sender<()>>,
    /// Counts what was started and is not gone yet.
    lives: TaskTracker,
    /// The right to run, until nothing is left of what ran.
    seat: Option<Seat>,
    gauges: Arc<Gauges>,
    stderr: Arc<StderrTail>,
    /// Whose it is.
    whose: Arc<Whose>,
    around: Surroundings,
}

impl Actor {
    pub(super) fn new(
        spec: Arc<ServerSpec>,
        (own_mailbox, commands): (mpsc::WeakUnboundedSender<Command>, mpsc::UnboundedReceiver<Command>),
        books: Books,
        whose: Arc<Whose>,
        around: Surroundings,
    ) -> (Self, watch::Receiver<Snapshot>) {
        let Books { memory, gauges, stderr, fate } = books;
        let known = memory.known();
        let (snapshot, seen) = watch::channel(Snapshot::new(known.clone()));
        let (waiters, mourners) = (Vec::new(), Vec::new());
        let actor = Self {
            spec,
            own_mailbox,
            commands,
            snapshot,
            fate,
            generation: 0,
            known,
            held: None,
            memory,
            last_error: None,
            waiters,
            mourners,
            lives: TaskTracker::new(),
            seat: None,
            gauges,
            stderr,
            whose,
            around,
        };
        (actor, seen)
    }

    pub(super) async fn run(mut self) {
        let mut state = match self.spec.lifecycle.start {
            Start::OnDemand => State::Asleep,
            Start::AtBoot => State::Starting,
        };
        loop {
            self.publish(&state);
            if !state.runs() && self.seat.is_some() {
                all_gone(&self.lives).await;
                self.seat = None;
            }
            state = match state {
                State::Asleep => self.asleep().await,
                State::Starting => self.starting().await,
                State::Ready(alive) => self.ready(alive).await,
                State::Tripped { alive, until, asked } => self.tripped(alive, until, asked).await,
                State::Probing(alive) => self.probing(alive).await,
                State::BackingOff { until } => self.backing_off(until).await,
                State::Resting { until, error } => self.resting(until, error).await,
                State::Draining { alive, until } => self.draining(alive, until).await,
                State::Stopping { connection, then } => self.stopping(connection, then).await,
                State::Ejected(error) => self.ejected(error).await,
                State::Gone => break,
            };
        }
        self.refuse_waiters(&shutting_down());
        self.mourn().await;
    }

    async fn asleep(&mut self) -> State {
        self.mourn().await;
        while !self.someone_waits() {
            let command = self.commands.recv().await;
            if let Some(state) = self.obey(command) {
                return state;
            }
        }
        State::Starting
    }

    async fn starting(&mut self) -> State {
        self.mourn().await;
        let _attempt = match self.take_turn().await {
            Ok(attempt) => attempt,
            Err(state) => return *state,
        };
        self.generation += 1;
        let began = Instant::now();
        let spec = self.spec.clone();
        let around = Around {
            tasks: self.around.tasks.clone(),
            lives: self.lives.clone(),
            nursery: self.around.nursery.clone(),
            stderr: self.stderr.clone(),
            news: self.around.news.clone(),
            cache: self.around.cache.clone(),
            strange: Arc::default(),
            whose: self.whose.clone(),
            secrets: self.around.secrets.clone(),
        };
        let remembered = match self.fate.wants_session() {
            true => Some(Revision::newest(Era::Session)),
            false => self.known.clone().or_else(|| self.memory.known()).map(|known| known.revision),
        };
        let limit = spec.lifecycle.start_timeout;
        let mut launch = std::pin::pin!(timeout(limit, launch(&spec, remembered, &around)));
        loop {
            tokio::select! {
                launched = &mut launch => return match launched {
                    Ok(Ok((connection, listing))) => self.started(connection, listing, began),
                    Ok(Err(failure)) => self.not_started(failure),
                    Err(_) => self.not_started(self.too_slow(limit, &around)),
                },
                command = self.commands.recv() => if let Some(state) = self.obey(command) {
                    return state;
                },
            }
        }
    }

    async fn ready(&mut self, mut alive: Alive) -> State {
        for waiter in std::mem::take(&mut self.waiters) {
            self.grant(&mut alive, waiter, false);
        }
        loop {
            match self.next(&mut alive).await {
                // Whether it hangs is known in a moment, and then this one need not find out for itself.
                Happening::Asked(waiter) if alive.checked || self.is_doubtful(&mut alive) => {
                    self.waiters.push(waiter);
                }
                Happening::Asked(waiter) => self.grant(&mut alive, waiter, false),
                Happening::Answered => {
                    for waiter in std::mem::take(&mut self.waiters) {
                        self.grant(&mut alive, waiter, false);
                    }
                }
                Happening::Released { health: Some(Health::Away(class, wait)), .. } => {
                    return self.leave_alone(alive, class, wait);
                }
                Happening::Released { health: Some(health), .. } if self.judge(&mut alive, health) => {
                    let until = Instant::now() + alive.breaker.cool_off();
                    return self.trip(alive, until);
                }
                Happening::Released { .. } => {}
                happening => return self.leave_alive(alive, happening),
            }
        }
    }

    async fn tripped(&mut self, mut alive: Alive, until: Instant, asked: Option<FailureClass>) -> State {
        loop {
            match self.next(&mut alive).await {
                Happening::Asked(waiter)
                    if asked == Some(FailureClass::RateLimited) && Instant::now() >= until =>
                {
                    self.waiters.push(waiter);
                    return State::Ready(alive);
                }
                // What it is shown is looked up anew by a new connection.
                Happening::Asked(waiter)
                    if asked.is_some() && alive.leases == 0 && Instant::now() >= until =>
                {
                    self.waiters.push(waiter);
                    return State::Stopping { connection: alive.connection, then: Then::Start };
                }
                Happening::Asked(waiter) if Instant::now() >= until => {
                    self.grant(&mut alive, waiter, true);
                    return State::Probing(alive);
                }
                Happening::Asked(waiter) => self.refuse(waiter, self.left_alone(&alive, until, asked)),
                Happening::Released { .. } | Happening::Answered => {}
                happening => return self.leave_alive(alive, happening),
            }
        }
    }

    /// One call finds out; everybody else is refused meanwhile. A probe that was given up proves nothing either way, and
    /// neither does one that takes longer than a call may, because it waits for a person.
    async fn probing(&mut self, mut alive: Alive) -> State {
        let patience = Instant::now() + self.spec.limits.call_timeout;
        loop {
            let Ok(happening) = timeout_at(patience, self.next(&mut alive)).await else {
                return State::Tripped { alive, until: Instant::now(), asked: None };
            };
            match happening {
                Happening::Asked(waiter) => {
                    self.refuse(waiter, self.left_alone(&alive, Instant::now() + PROBE, None));
                }
                Happening::Released { probe: true, health } => {
                    let now = Instant::now();
                    return match health {
                        None => State::Tripped { alive, until: now, asked: None },
                        Some(Health::Away(class, wait)) => self.leave_alone(alive, class, wait),
                        Some(health) if self.judge(&mut alive, health) => {
                            let until = now + alive.breaker.cool_off();
                            State::Tripped { alive, until, asked: None }
                        }
                        Some(_) => {
                            self.say(Event::Recovered { server: self.spec.id.clone() });
                            State::Ready(alive)
                        }
                    };
                }
                Happening::Released { .. } | Happening::Answered => {}
                happening => return self.leave_alive(alive, happening),
            }
        }
    }

    /// Takes no more claims and waits for those there are.
    async fn draining(&mut self, mut alive: Alive, until: Instant) -> State {
        let hurry = self.around.hurry.clone();
        while alive.leases > 0 {
            let happening = tokio::select! {
                happening = timeout_at(until, self.next(&mut alive)) => happening,
                () = hurry.cancelled() => break,
            };
            match happening {
                Ok(Happening::Asked(waiter)) => self.refuse(waiter, shutting_down()),
                Ok(Happening::Released { .. } | Happening::Answered) => {}
                Ok(Happening::Retired(_, told)) => self.mourners.push(told),
                Ok(Happening::Ordered(_, told)) => {
                    self.mourners.push(told);
                    break;
                }
                Ok(_) | Err(_) => break,
            }
        }
        self.announce_stop();
        State::Stopping { connection: alive.connection, then: Then::Leave }
    }

    /// Until nothing is left of the old process, no new one is started.
    async fn stopping(&mut self, connection: Arc<Connection>, mut then: Then) -> State {
        if self.memory.leave(&self.whose.key) {
            self.around.offers.notify_one();
        }
        let mut stop = std::pin::pin!(connection.stop());
        loop {
            tokio::select! {
                () = &mut stop => return then.into(),
                command = self.commands.recv() => match command {
                    Some(Command::Lease(waiter)) => self.waiters.push(waiter),
                    Some(
                        Command::Release { .. } | Command::Seen { .. } | Command::MakeRoom | Command::Weighed { .. },
                    ) => {}
                    Some(Command::Restart(told)) => {
                        self.fate.pardon();
                        self.mourners.push(told);
                        then = if matches!(then, Then::Leave) { then } else { Then::Start };
                    }
                    Some(Command::Stop(told)) => {
                        self.refuse_waiters(&self.stopped());
                        self.mourners.push(told);
                        let wakes = matches!(then, Then::Start | Then::BackOff(_) | Then::Rest(..));
                        then = if wakes { Then::Sleep } else { then };
                    }
                    Some(Command::Retire(_, told)) => {
                        self.mourners.push(told);
                        then = Then::Leave;
                    }
                    None => then = Then::Leave,
                },
            }
        }
    }
}

fn shutting_down() -> Error {
    Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down")
}

fn tell(waiter: oneshot::Sender<()>) {
    // Whoever asked may have left.
    let _ = waiter.send(());
}

#[cfg(test)]
#[expect(dead_code, reason = "the stories in `tests/it` use the rest of it")]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
