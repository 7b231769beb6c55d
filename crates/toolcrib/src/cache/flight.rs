//! `Flight`: a call that others wait for. If whoever makes it leaves, one of those who wait makes it instead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
#[derive(Debug, Default)]
pub(super) struct Flying {
    /// Made for the first who waits: most calls have nobody who does.
    landed: OnceLock<watch::Sender<Landed>>,
    /// What the server had said when it was asked; nothing before it is.
    pub(super) left_at: AtomicU64,
    /// The server has asked the client something.
    asked: AtomicBool,
}

impl Flying {
    /// The end of it, for somebody who comes at this moment, if that one may wait for it: the client was asked nothing, and
    /// it has not left, or nothing has changed since. The shelves are held here as they are when it is taken from them or
    /// something is asked: whoever waits hears of that.
    pub(super) fn join(&self, moment: u64) -> Option<watch::Receiver<Landed>> {
        let left_at = self.left_at.load(Ordering::Relaxed);
        if self.asked.load(Ordering::Relaxed) || (left_at != 0 && left_at != moment) {
            return None;
        }
        Some(self.landed.get_or_init(|| watch::Sender::new(Landed::NotYet)).subscribe())
    }

    fn end(&self, how: Landed) {
        let Some(landed) = self.landed.get() else { return };
        landed.send_if_modified(|landed| {
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
    pub(super) key: Arc<Key>,
    pub(super) flying: Arc<Flying>,
    under_way: bool,
}

impl Flight {
    pub(super) fn new(cache: Arc<Cache>, key: Arc<Key>, flying: Arc<Flying>) -> Self {
        Self { cache, key, flying, under_way: true }
    }

    /// The server is about to be asked: what it says is as old as this.
    pub(crate) fn leaves(&self) {
        let moment = self.cache.shelves().moment(&self.key.subject.server);
        self.flying.left_at.store(moment, Ordering::Relaxed);
    }

    /// Keeps what came of it if that lasts, and hands it to all who wait.
    pub(crate) fn land(mut self, outcome: &Outcome, keeping: &Keeping, now: Instant) {
        let asked = self.flying.asked.load(Ordering::Relaxed);
        let good = !asked && self.cache.keep(&self.key, &self.flying, outcome, keeping, now);
        self.end(|| if good { Landed::Shared(outcome.clone()) } else { Landed::Alone });
    }

    /// It came to nothing; whoever waits asks for itself.
    pub(crate) fn fail(mut self) {
        self.end(|| Landed::Alone);
    }

    /// Nobody can come to wait for it once it is taken away, so those who do are told after that.
    fn end(&mut self, how: impl FnOnce() -> Landed) {
        if !std::mem::take(&mut self.under_way) {
            return;
        }
        self.cache.shelves().end(&self.key, &self.flying);
        if self.flying.landed.get().is_some() {
            self.flying.end(how());
        }
    }

    /// Hears what a call is told in the place of whoever hears it now.
    pub(crate) fn listening(&self, told: Arc<dyn Hear>) -> Arc<dyn Hear> {
        Arc::new(Ear { told, cache: self.cache.clone(), flying: self.flying.clone() })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end(|| Landed::Abandoned);
    }
}

/// Notes whether a client was asked something: then what comes of the call is that client's alone, and nobody else waits
/// for its person.
#[derive(Debug)]
struct Ear {
    told: Arc<dyn Hear>,
    cache: Arc<Cache>,
    flying: Arc<Flying>,
}

impl Hear for Ear {
    fn hear(&self, told: Told) -> bool {
        if let Told::Asked(_) = told {
            let shelves = self.cache.shelves();
            self.flying.asked.store(true, Ordering::Relaxed);
            drop(shelves);
            self.flying.end(Landed::Alone);
        }
        self.told.hear(told)
    }
}
