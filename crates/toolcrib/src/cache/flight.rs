//! `Flight`: a call that others wait for. If whoever makes it leaves, one of those who wait makes it instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;
use tokio::time::Instant;

use super::key::Key;
use super::{Cache, Keeping};
use crate::call::Outcome;
use crate::told::{Hear, Told};

/// What became of a call, for those who wait for it.
#[derive(Debug, Clone)]
pub(crate) enum Landed {
    /// It is under way.
    NotYet,
    /// Whoever made it has left.
    Abandoned,
    /// What came of it is nothing for others: each asks for itself.
    Alone,
    /// What came of it is good for all.
    Shared(Outcome),
}

/// A call under way, as everybody sees it.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) landed: watch::Sender<Landed>,
    /// What the server had said when it was asked; nothing before it is.
    pub(super) left_at: AtomicU64,
    /// The server has asked the client something.
    asked: AtomicBool,
}

impl Flying {
    pub(super) fn new() -> Arc<Self> {
        let (landed, left_at, asked) =
            (watch::Sender::new(Landed::NotYet), AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { landed, left_at, asked })
    }

    /// Whether somebody who comes at this moment may wait for it: it has not left, or nothing has changed since.
    pub(super) fn may_be_joined(&self, moment: u64) -> bool {
        let left_at = self.left_at.load(Ordering::Relaxed);
        left_at == 0 || left_at == moment
    }

    fn end(&self, how: Landed) {
        self.landed.send_if_modified(|landed| {
            let first = matches!(landed, Landed::NotYet);
            if first {
                *landed = how;
            }
            first
        });
    }
}

/// The right to ask a server on behalf of all who want the same.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(super) cache: Arc<Cache>,
    pub(super) key: Key,
    pub(super) flying: Arc<Flying>,
}

impl Flight {
    /// The server is about to be asked: what it says is as old as this.
    pub(crate) fn leaves(&self) {
        let moment = self.cache.shelves().moment(&self.key.subject.server);
        self.flying.left_at.store(moment, Ordering::Relaxed);
    }

    /// Keeps what came of it if that lasts, and hands it to all who wait.
    pub(crate) fn land(self, outcome: &Outcome, keeping: &Keeping, now: Instant) {
        let asked = self.flying.asked.load(Ordering::Relaxed);
        let good = !asked && self.cache.keep(&self.key, &self.flying, outcome, keeping, now);
        self.flying.end(if good { Landed::Shared(outcome.clone()) } else { Landed::Alone });
    }

    /// It came to nothing; whoever waits asks for itself.
    pub(crate) fn fail(self) {
        self.flying.end(Landed::Alone);
    }

    /// Hears what a call is told in the place of whoever hears it now.
    pub(crate) fn listening(&self, told: Arc<dyn Hear>) -> Arc<dyn Hear> {
        Arc::new(Ear { told, flying: self.flying.clone() })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.cache.shelves().end(&self.key, &self.flying);
        self.flying.end(Landed::Abandoned);
    }
}

/// Notes whether a client was asked something: then what comes of the call is that client's alone, and nobody else waits
/// for its person.
#[derive(Debug)]
struct Ear {
    told: Arc<dyn Hear>,
    flying: Arc<Flying>,
}

impl Hear for Ear {
    fn hear(&self, told: Told) -> bool {
        if let Told::Asked(_) = told {
            self.flying.asked.store(true, Ordering::Relaxed);
            self.flying.end(Landed::Alone);
        }
        self.told.hear(told)
    }
}
