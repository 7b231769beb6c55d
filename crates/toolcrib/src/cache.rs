//! `Cache`: what servers have said that may be said again, as long as they say it is good, and the calls under way that
//! several wait for. It asks nobody: the pipeline does, and says what came of it.

mod flight;
mod key;
mod lasting;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::Outcome;
use crate::sharing::SharingKey;
use crate::spec::{Capacity, ServerId};
use flight::Flying;
pub(crate) use flight::{Flight, Landed};
use key::BuildReady;
pub(crate) use key::{Key, Subject, What};
use lasting::Lasting;
pub(crate) use store::Stale;
use store::{Kept, Store};

/// Of what does not last, one call in so many looks whether it does now.
const LOOK_AGAIN: u32 = 64;

/// How answers are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    /// How many of one tool.
    pub(crate) entries: usize,
    /// How long at most, whatever the server says.
    pub(crate) at_most: Duration,
}

/// What is known of what somebody asks.
#[derive(Debug)]
pub(crate) enum Found {
    /// The answer.
    Known(Outcome),
    /// Somebody else asks the same: how that ends, and what was looked for.
    Flying(watch::Receiver<Landed>, Key),
    /// Nothing; whoever holds this is the one to ask.
    Nothing(Flight),
}

/// Answers, and calls under way.
#[derive(Debug)]
pub(crate) struct Cache {
    shelves: Mutex<Shelves>,
    /// Whether there is any tool whose answers may be kept.
    keeps_tools: AtomicBool,
    /// Callers choose what they ask, and shall not choose where it is filed.
    pub(crate) hashes: RandomState,
}

#[derive(Debug)]
pub(super) struct Shelves {
    store: Store,
    flights: HashMap<Arc<Key>, Arc<Flying>, BuildReady>,
    tallies: BTreeMap<ServerId, Tally>,
    /// What is asked for and does not last, as far as was seen, and how often since: nobody waits for another's answer to
    /// that.
    passing: HashMap<Subject, u32>,
}

/// What is counted of one server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many times something of what it said has become stale.
    turns: u64,
    /// Answers that are kept.
    pub(crate) entries: usize,
    /// Calls that were answered without it.
    pub(crate) hits: u64,
    /// Calls that could have been, and were not.
    pub(crate) misses: u64,
}

impl Default for Cache {
    fn default() -> Self {
        let store = Store::new(Capacity::default().cache);
        let (flights, tallies, passing) = Default::default();
        let shelves = Mutex::new(Shelves { store, flights, tallies, passing });
        Self { shelves, keeps_tools: AtomicBool::new(false), hashes: RandomState::new() }
    }
}

impl Cache {
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether there is any tool whose answers may be kept.
    pub(crate) fn expect_tools(&self, keeps: bool) {
        self.keeps_tools.store(keeps, Ordering::Relaxed);
    }

    pub(crate) fn keeps_tools(&self) -> bool {
        self.keeps_tools.load(Ordering::Relaxed)
    }

    /// Bytes that there may be from now on.
    pub(crate) fn resize(&self, bytes: usize) {
        self.shelves().store.resize(bytes);
    }

    /// Whether nothing is known of this, and what the server says to it does not last: then nothing is looked for, but for
    /// one call in a while, which may find that it lasts now.
    pub(crate) fn passes(&self, subject: &Subject) -> bool {
        let mut shelves = self.shelves();
        let Shelves { store, passing, .. } = &mut *shelves;
        let Some(asked) = passing.get_mut(subject).filter(|_| !store.has(subject)) else { return false };
        *asked = (*asked + 1) % LOOK_AGAIN;
        *asked != 0
    }

    /// What is known of what a caller asks.
    pub(crate) fn find(self: &Arc<Self>, mut key: Key, now: Instant) -> Found {
        let mut shelves = self.shelves();
        let mut known = shelves.store.get(&key, now).cloned();
        if known.is_none() {
            let caller = key.caller.take();
            known = shelves.store.get(&key, now).cloned();
            key.caller = caller;
        }
        let server = &key.subject.server;
        if let Some(kept) = known {
            shelves.tally(server).hits += 1;
            drop(shelves);
            return Found::Known(kept.given(now));
        }
        let moment = shelves.moment(server);
        if let Some(landed) = shelves.flights.get(&key).and_then(|flying| flying.join(moment)) {
            return Found::Flying(landed, key);
        }
        shelves.tally(server).misses += 1;
        let (key, flying) = (Arc::new(key), Arc::<Flying>::default());
        if !shelves.passing.contains_key(&key.subject) {
            shelves.flights.insert(key.clone(), flying.clone());
        }
        drop(shelves);
        Found::Nothing(Flight::new(self.clone(), key, flying))
    }

    /// Asks without regard to anybody else who asks the same.
    pub(crate) fn alone(self: &Arc<Self>, key: Key) -> Flight {
        self.shelves().tally(&key.subject.server).misses += 1;
        Flight::new(self.clone(), Arc::new(key), Arc::default())
    }

    /// Counts a call that was answered with what another's came to.
    pub(crate) fn count_hit(&self, server: &ServerId) {
        self.shelves().tally(server).hits += 1;
    }

    /// Keeps an answer if it lasts and is not stale already; whether it is one that others may have.
    fn keep(
        &self,
        key: &Arc<Key>,
        flying: &Flying,
        outcome: &Outcome,
        keeping: &Keeping,
        now: Instant,
    ) -> bool {
        let Some(lasting) = Lasting::of(outcome) else {
            if !outcome.is_error() {
                self.shelves().passing.entry(key.subject.clone()).or_default();
            }
            return false;
        };
        let until = now + lasting.time.min(keeping.at_most);
        let kept_under = if lasting.public { Arc::new(key.for_everybody()) } else { key.clone() };
        let kept = Kept::new(outcome, lasting, until);
        let mut shelves = self.shelves();
        let fresh = flying.left_at.load(Ordering::Relaxed) == shelves.moment(&key.subject.server);
        shelves.passing.remove(&key.subject);
        if fresh {
            shelves.store.put(kept_under, kept, keeping.entries, now);
        }
        fresh
    }

    /// What a server said is not good any more, and neither will be its answers to what it was asked before; of one
    /// instance of it, or of all.
    pub(crate) fn forget(&self, server: &ServerId, instance: Option<&SharingKey>, stale: Stale<'_>) {
        let mut shelves = self.shelves();
        shelves.tally(server).turns += 1;
        shelves.store.forget(server, instance, stale);
        if stale == Stale::All {
            shelves.passing.retain(|subject, _| subject.server != *server);
        }
    }

    /// What there is of a server's.
    pub(crate) fn tally(&self, server: &ServerId, now: Instant) -> Tally {
        let mut shelves = self.shelves();
        shelves.store.sweep(now);
        let counted = shelves.tallies.get(server).copied().unwrap_or_default();
        Tally { entries: shelves.store.count(server), ..counted }
    }
}

impl Shelves {
    fn tally(&mut self, server: &ServerId) -> &mut Tally {
        self.tallies.entry(server.clone()).or_default()
    }

    /// A number that is another one as soon as anything that the server said has become stale; never zero.
    fn moment(&self, server: &ServerId) -> u64 {
        self.tallies.get(server).map_or(0, |tally| tally.turns) + 1
    }

    fn end(&mut self, key: &Key, flying: &Arc<Flying>) {
        if self.flights.get(key).is_some_and(|there| Arc::ptr_eq(there, flying)) {
            self.flights.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
