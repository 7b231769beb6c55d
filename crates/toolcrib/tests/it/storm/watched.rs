//! The facts that the test knows about a server, and the call errors that they explain.

use std::sync::{Arc, Mutex};

use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;
use toolcrib::Event;

use super::WINDOW;
use crate::fake::FakeServer;
use crate::support::SECOND;

/// A condition that is true at times.
#[derive(Default)]
pub(super) struct Condition {
    now: bool,
    ended: Option<Instant>,
}

impl Condition {
    pub(super) fn set(&mut self, now: bool) {
        if std::mem::replace(&mut self.now, now) && !now {
            self.ended = Some(Instant::now());
        }
    }

    /// Returns whether the condition was true at any time since.
    pub(super) fn was_true(&self, since: Instant) -> bool {
        self.now || self.ended.is_some_and(|ended| ended >= since)
    }
}

/// A fake server and the faults that were injected into it.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) fake: FakeServer,
    /// Whether every client has its own instance.
    pub(super) is_per_client: bool,
    /// Whether its spec was ever replaced.
    pub(super) reloaded: bool,
    /// When a stop or restart was requested.
    pub(super) orders: Arc<Mutex<Vec<Instant>>>,
    /// When it stopped, also without a request: idle, evicted or over its memory limit.
    pub(super) stops: Arc<Mutex<Vec<Instant>>>,
    /// When it was frozen.
    pub(super) freezes: Arc<Mutex<Vec<Instant>>>,
    /// Whether it uses more memory than its limit.
    pub(super) over_limit: Arc<Mutex<Condition>>,
    /// Whether the memory limit for all servers is low.
    pub(super) low_total: Arc<Mutex<Condition>>,
    /// Crashes until then do not count.
    pub(super) forgiven: Arc<Mutex<Instant>>,
}

impl Watched {
    /// Returns whether anything happened since that explains a lost call.
    pub(super) fn was_disturbed(&self, since: Instant) -> bool {
        let has_crashed = self.fake.crashes().last().is_some_and(|at| *at >= since);
        // A frozen server is detected by a call timeout and a ping timeout.
        let was_frozen = self.freezes.lock().unwrap().last().is_some_and(|at| *at + 30 * SECOND >= since);
        let was_over_memory =
            self.over_limit.lock().unwrap().was_true(since) || self.low_total.lock().unwrap().was_true(since);
        if was_frozen || was_over_memory {
            return true;
        }
        has_crashed || self.orders.lock().unwrap().last().is_some_and(|at| *at >= since)
    }

    pub(super) fn record_order(&self) {
        self.orders.lock().unwrap().push(Instant::now());
    }

    /// Returns the crashes that count now: not forgiven, within the window, and not at the instant of a stop.
    pub(super) fn crashes(&self) -> usize {
        let now = Instant::now();
        let forgiven = *self.forgiven.lock().unwrap();
        let orders = self.orders.lock().unwrap();
        let stops = self.stops.lock().unwrap();
        let stopped = |at: &Instant| orders.contains(at) || stops.contains(at);
        let counts = |at: &&Instant| **at > forgiven && now.duration_since(**at) < WINDOW && !stopped(at);
        self.fake.crashes().iter().filter(counts).count()
    }

    /// Records when the server stops, until the events end.
    pub(super) async fn record_stops(self, name: &'static str, mut events: Receiver<Event>) {
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
