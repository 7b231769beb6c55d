//! `Surroundings`: what every actor of a crib shares with it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::leaving::Leaving;
use super::room::Room;
use crate::cache::Cache;
use crate::clock::Sleeps;
use crate::connection::child::Nursery;
use crate::connection::listing::Listing;
use crate::event::{Event, News};
use crate::log_line::{LogSink, LogWhat};
use crate::pins::{Cabinet, Pins};
use crate::secret::Source;
use crate::spec::{Pinning, ServerId, ServerSpec};

/// Events that a slow listener may be behind.
const EVENTS: usize = 1024;

/// What every actor of a crib shares with it.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// Owns every task.
    pub(crate) tasks: TaskTracker,
    /// Hears what happens.
    pub(crate) events: broadcast::Sender<Event>,
    /// Hears what servers say to nobody in particular.
    pub(crate) news: broadcast::Sender<News>,
    /// Rung when some server's offer is another one now.
    pub(crate) offers: Arc<Notify>,
    /// Nobody waits for calls under way any more.
    pub(crate) hurry: CancellationToken,
    /// Where processes are started.
    pub(crate) nursery: Arc<Nursery>,
    /// How many servers may run.
    pub(crate) room: Arc<Room>,
    /// Servers on their way out.
    pub(crate) leaving: Arc<Leaving>,
    /// How long the machine has slept.
    pub(crate) sleeps: Sleeps,
    /// What servers have said that may be said again.
    pub(crate) cache: Arc<Cache>,
    /// Keeps a log of each server.
    pub(crate) log: Option<LogSink>,
    /// What was approved of each server's tools.
    pub(crate) pins: Arc<Cabinet>,
    /// Who keeps the secrets.
    pub(crate) secrets: Option<Source>,
}

impl Surroundings {
    /// Tells whoever wants to hear what happened to a server.
    pub(crate) fn say(&self, server: &ServerId, event: Event) {
        if let Some(log) = &self.log {
            log.take(server, LogWhat::Happened(&event));
        }
        // Nobody has to listen.
        let _ = self.events.send(event);
    }

    /// Holds what a server offers, all of it or one instance's, against what was approved, and tells what is new.
    pub(crate) fn look(&self, spec: &ServerSpec, listing: &Arc<Listing>, all: bool) -> Option<Arc<Pins>> {
        let (pins, server) = (self.pins.of(spec)?, &spec.id);
        let met = pins.meet(listing, all);
        if let Some(damage) = met.damage {
            warn!(%server, "nothing of it counts as approved: {damage}");
        }
        if met.is_first {
            let (pins, listing, server) = (pins.clone(), listing.clone(), server.clone());
            self.tasks.spawn_blocking(move || {
                if let Err(error) = pins.save(&listing) {
                    warn!(%server, %error, "what it offers could not be pinned");
                }
            });
        }
        if !met.news.is_empty() {
            let tools: Vec<String> =
                met.news.iter().map(|(tool, mark)| format!("{tool} ({})", mark.as_str())).collect();
            let withheld = spec.pin == Pinning::Strict;
            warn!(%server, tools = tools.join(", "), withheld, "offers tools that are not what was approved; see `toolcrib approve {server}`");
            self.say(server, Event::Unapproved { server: server.clone(), tools: met.news, withheld });
        }
        Some(pins)
    }
}

/// A crib's that starts nothing it has not to, remembers nothing and hears nobody yet.
impl Default for Surroundings {
    fn default() -> Self {
        Self {
            tasks: TaskTracker::new(),
            events: broadcast::channel(EVENTS).0,
            news: broadcast::channel(EVENTS).0,
            offers: Arc::default(),
            hurry: CancellationToken::new(),
            nursery: Arc::default(),
            room: Arc::new(Room::new(usize::MAX)),
            leaving: Arc::default(),
            sleeps: Sleeps::default(),
            cache: Arc::default(),
            log: None,
            pins: Arc::default(),
            secrets: None,
        }
    }
}

impl Surroundings {
    /// What time it is for what is kept: that which the machine has slept through has passed, too. In whole seconds,
    /// because two clocks are never read at the same time.
    pub(crate) fn moment(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.sleeps.so_far().as_secs())
    }
}
