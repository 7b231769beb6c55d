//! What is known of a server in a storm from outside, and what that explains.

use std::sync::{Arc, Mutex};

use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;
use toolcrib::Event;

use super::WINDOW;
use crate::fake::Fake;
use crate::house::SECOND;

/// Something that is the case now and then.
#[derive(Default)]
pub(super) struct Spell {
    now: bool,
    ended: Option<Instant>,
}

impl Spell {
    pub(super) fn set(&mut self, now: bool) {
        if std::mem::replace(&mut self.now, now) && !now {
            self.ended = Some(Instant::now());
        }
    }

    /// Whether it was the case at any time since then.
    pub(super) fn was(&self, since: Instant) -> bool {
        self.now || self.ended.is_some_and(|ended| ended >= since)
    }
}

/// What is known of one server from outside.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) fake: Fake,
    /// Whether every client has one of its own.
    pub(super) own: bool,
    /// Whether it was ever told to be another one.
    pub(super) reloaded: bool,
    /// When it was told to stop or to restart.
    pub(super) orders: Arc<Mutex<Vec<Instant>>>,
    /// When it was stopped, also without being told to: idle, in the way or too heavy.
    pub(super) stops: Arc<Mutex<Vec<Instant>>>,
    /// When it was made to stand still.
    pub(super) freezes: Arc<Mutex<Vec<Instant>>>,
    /// Whether it weighs more than it may.
    pub(super) heavy: Arc<Mutex<Spell>>,
    /// Whether all of them together may weigh little.
    pub(super) tight: Arc<Mutex<Spell>>,
    /// Crashes up to here are forgiven.
    pub(super) forgiven: Arc<Mutex<Instant>>,
}

impl Watched {
    /// Whether something happened since then that may cost a call its server.
    pub(super) fn was_disturbed(&self, since: Instant) -> bool {
        let crashed = self.fake.crashes().last().is_some_and(|at| *at >= since);
        // Whoever stands still is found out by the limit of a call and that of a ping.
        let froze = self.freezes.lock().unwrap().last().is_some_and(|at| *at + 30 * SECOND >= since);
        let outgrown = self.heavy.lock().unwrap().was(since) || self.tight.lock().unwrap().was(since);
        if froze || outgrown {
            return true;
        }
        crashed || self.orders.lock().unwrap().last().is_some_and(|at| *at >= since)
    }

    pub(super) fn order(&self) {
        self.orders.lock().unwrap().push(Instant::now());
    }

    /// Crashes that count now: not forgiven, not too long ago, and not in the very moment in which it was stopped anyway.
    pub(super) fn crashes(&self) -> usize {
        let (now, forgiven) = (Instant::now(), *self.forgiven.lock().unwrap());
        let (orders, stops) = (self.orders.lock().unwrap(), self.stops.lock().unwrap());
        let stopped = |at: &Instant| orders.contains(at) || stops.contains(at);
        let counts = |at: &&Instant| **at > forgiven && now.duration_since(**at) < WINDOW && !stopped(at);
        self.fake.crashes().iter().filter(counts).count()
    }

    /// Notes when it is stopped, for ever.
    pub(super) async fn hear(self, name: &'static str, mut events: Receiver<Event>) {
        while let Ok(event) = events.recv().await {
            if matches!(event, Event::Stopped { server } if server.as_str() == name) {
                self.stops.lock().unwrap().push(Instant::now());
            }
        }
    }

    pub(super) fn forgive(&self, until: Instant) {
        let mut forgiven = self.forgiven.lock().unwrap();
        *forgiven = until.max(*forgiven);
    }
}
