//! The response cache: answers that servers allow to be reused, and calls in flight that equal calls can join.
//!
//! Nothing here sends a call. The pipeline looks answers up, sends the calls and reports the results.

mod directive;
mod entries;
mod key;
mod peers;
mod shared_responses;
mod single_flight;

use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::instance_key::InstanceKey;
use crate::model::outcome::Outcome;
use crate::spec::{Capacity, ServerId};
use crate::util::locks::IgnorePoison as _;
use directive::CacheDirective;
pub(crate) use entries::Invalidation;
use entries::{CacheEntries, CacheEntry};
use key::BuildPrehashed;
pub(crate) use key::{CacheKey, CacheSubject, CachedItem};
pub(crate) use peers::{CachePeers, watch_peers};
pub(crate) use shared_responses::SharedResponse;
use shared_responses::{SharedResponses, SharedSlot};
use single_flight::FlightState;
pub(crate) use single_flight::{FlightResult, SingleFlight};

/// One in this many calls of an uncacheable subject is looked up anyway, in case the server allows caching by now.
const RECHECK_INTERVAL: u32 = 64;

/// Limits for the answers of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheSettings {
    /// Entries per tool.
    pub(crate) max_entries: usize,
    /// Upper bound for the TTL that the server declares.
    pub(crate) max_ttl: Duration,
}

/// The result of a cache lookup.
#[derive(Debug)]
pub(crate) enum CacheResult {
    /// A cached answer.
    Hit(Outcome),
    /// An equal call is in flight: its future result, and the key that was looked up.
    InFlight(watch::Receiver<FlightResult>, CacheKey),
    /// No answer. The holder of the flight sends the call.
    Miss(SingleFlight),
}

/// Cached answers and the calls in flight.
#[derive(Debug)]
pub(crate) struct ResponseCache {
    state: Mutex<CacheState>,
    /// Whether the results of any tool may be cached.
    caches_tools: AtomicBool,
    /// Randomly seeded, so that callers cannot choose requests whose hashes collide.
    pub(crate) hash_builder: RandomState,
    /// The caches of other cribs on the same store.
    peers: Option<CachePeers>,
    /// Responses that are looked up after those here, if other processes use the store.
    shared: Option<SharedResponses>,
}

#[derive(Debug)]
pub(super) struct CacheState {
    entries: CacheEntries,
    flights: HashMap<Arc<CacheKey>, Arc<FlightState>, BuildPrehashed>,
    stats: BTreeMap<ServerId, CacheStats>,
    /// Subjects whose last answer was not cacheable, with the number of calls since. Calls of these are not merged.
    uncacheable: HashMap<CacheSubject, u32>,
}

/// Counters of one server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheStats {
    /// Number of invalidations so far.
    invalidations: u64,
    /// Cached answers.
    pub(crate) entries: usize,
    /// Calls that were answered without the server.
    pub(crate) hits: u64,
    /// Cacheable calls that were sent to the server.
    pub(crate) misses: u64,
}

impl Default for ResponseCache {
    fn default() -> Self {
        let state = CacheState {
            entries: CacheEntries::new(Capacity::default().cache),
            flights: HashMap::default(),
            stats: BTreeMap::new(),
            uncacheable: HashMap::new(),
        };
        Self {
            state: Mutex::new(state),
            caches_tools: AtomicBool::new(false),
            hash_builder: RandomState::new(),
            peers: None,
            shared: None,
        }
    }
}

impl ResponseCache {
    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().ignore_poison()
    }

    /// Announces invalidations to other cribs on the same store from now on, and shares responses with other processes.
    pub(crate) fn with_peers(mut self, peers: CachePeers) -> Self {
        self.shared = peers.shared_responses();
        self.peers = Some(peers);
        self
    }

    /// Returns whether responses are shared with other processes.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Sets whether the results of any tool may be cached.
    pub(crate) fn set_caches_tools(&self, caches_tools: bool) {
        self.caches_tools.store(caches_tools, Ordering::Relaxed);
    }

    pub(crate) fn caches_tools(&self) -> bool {
        self.caches_tools.load(Ordering::Relaxed)
    }

    /// Sets the size limit and evicts the oldest entries above it.
    pub(crate) fn set_max_bytes(&self, max_bytes: usize) {
        self.lock().entries.set_max_bytes(max_bytes);
    }

    /// Returns whether a call can skip the lookup: nothing is cached for the subject and its last answer was not
    /// cacheable. Returns `false` once per [`RECHECK_INTERVAL`] calls.
    pub(crate) fn should_bypass(&self, subject: &CacheSubject) -> bool {
        let mut state = self.lock();
        let CacheState { entries, uncacheable, .. } = &mut *state;
        let Some(calls) = uncacheable.get_mut(subject).filter(|_| !entries.has_subject(subject)) else {
            return false;
        };
        *calls = (*calls + 1) % RECHECK_INTERVAL;
        *calls != 0
    }

    /// Looks up a cached answer or an equal call in flight, and starts a flight if there is neither.
    pub(crate) fn lookup(self: &Arc<Self>, mut key: CacheKey, now: Instant) -> CacheResult {
        let mut state = self.lock();
        let mut found = state.entries.get(&key, now).cloned();
        if found.is_none() {
            // A public answer is stored without a caller.
            let caller = key.caller.take();
            found = state.entries.get(&key, now).cloned();
            key.caller = caller;
        }
        let server = &key.subject.server;
        if let Some(entry) = found {
            state.stats_mut(server).hits += 1;
            drop(state);
            return CacheResult::Hit(entry.into_outcome(now));
        }
        let epoch = state.epoch(server);
        if let Some(result) = state.flights.get(&key).and_then(|flight| flight.join(epoch)) {
            return CacheResult::InFlight(result, key);
        }
        state.stats_mut(server).misses += 1;
        let key = Arc::new(key);
        let flight = Arc::<FlightState>::default();
        if !state.uncacheable.contains_key(&key.subject) {
            state.flights.insert(key.clone(), flight.clone());
        }
        drop(state);
        CacheResult::Miss(SingleFlight::new(self.clone(), key, flight))
    }

    /// Starts a flight that equal calls cannot join.
    pub(crate) fn start_unmerged(self: &Arc<Self>, key: CacheKey) -> SingleFlight {
        self.lock().stats_mut(&key.subject.server).misses += 1;
        SingleFlight::new(self.clone(), Arc::new(key), Arc::default())
    }

    /// Counts a call that was answered with the result of an equal call.
    pub(crate) fn record_hit(&self, server: &ServerId) {
        self.lock().stats_mut(server).hits += 1;
    }

    /// Stores an answer if it is cacheable and nothing was invalidated since its call was sent, here and in the slot of the
    /// shared store. Returns whether other callers may have it.
    fn store_if_fresh(
        &self,
        key: &Arc<CacheKey>,
        flight: &FlightState,
        slot: Option<&SharedSlot>,
        outcome: &Outcome,
        settings: &CacheSettings,
        now: Instant,
    ) -> bool {
        let Some(directive) = CacheDirective::from_outcome(outcome) else {
            if !outcome.is_error() {
                self.lock().uncacheable.entry(key.subject.clone()).or_default();
            }
            return false;
        };
        let ttl = directive.ttl.min(settings.max_ttl);
        let entry = CacheEntry::new(outcome, directive.clone(), now + ttl);
        let mut state = self.lock();
        let is_fresh = flight.sent_epoch.load(Ordering::Relaxed) == state.epoch(&key.subject.server);
        state.uncacheable.remove(&key.subject);
        if !is_fresh {
            return false;
        }
        let is_stored = state.entries.insert(key.for_storage(&directive), entry, settings.max_entries, now);
        drop(state);
        if let (true, Some(shared), Some(slot)) = (is_stored, &self.shared, slot) {
            shared.save(slot, outcome, &directive, ttl);
        }
        true
    }

    /// Stores an answer from the shared store here and returns it, unless something was invalidated since the lookup began.
    fn accept_shared(
        &self,
        key: &Arc<CacheKey>,
        flight: &FlightState,
        found: SharedResponse,
        settings: &CacheSettings,
        now: Instant,
    ) -> Option<Outcome> {
        let SharedResponse { outcome, directive, ttl } = found;
        let entry = CacheEntry::new(&outcome, directive.clone(), now + ttl.min(settings.max_ttl));
        let mut state = self.lock();
        if flight.sent_epoch.load(Ordering::Relaxed) != state.epoch(&key.subject.server) {
            return None;
        }
        state.uncacheable.remove(&key.subject);
        state.entries.insert(key.for_storage(&directive), entry.clone(), settings.max_entries, now);
        let stats = state.stats_mut(&key.subject.server);
        // The lookup here was counted as a miss.
        stats.misses = stats.misses.saturating_sub(1);
        stats.hits += 1;
        drop(state);
        Some(entry.into_outcome(now))
    }

    /// Removes answers of a server, of one instance or of all, and makes sure that answers to calls already sent are not
    /// stored. Other replicas do the same for all instances.
    pub(crate) fn invalidate(
        &self,
        server: &ServerId,
        instance: Option<&InstanceKey>,
        invalidation: Invalidation<'_>,
    ) {
        // Clients of both eras share cached responses.
        let instance = instance.map(InstanceKey::without_era);
        self.invalidate_own(server, instance, invalidation);
        if let Some(shared) = &self.shared {
            shared.outdate(server, instance, invalidation);
        }
        if let Some(peers) = &self.peers {
            peers.announce(server, invalidation);
        }
    }

    fn invalidate_own(
        &self,
        server: &ServerId,
        instance: Option<&InstanceKey>,
        invalidation: Invalidation<'_>,
    ) {
        let mut state = self.lock();
        state.stats_mut(server).invalidations += 1;
        state.entries.invalidate(server, instance, invalidation);
        if invalidation == Invalidation::All {
            state.uncacheable.retain(|subject, _| subject.server != *server);
        }
    }

    /// Removes the answers of every server.
    fn invalidate_all_servers(&self) {
        let servers: Vec<ServerId> = self.lock().stats.keys().cloned().collect();
        for server in &servers {
            self.invalidate_own(server, None, Invalidation::All);
        }
    }

    /// Returns the counters of a server.
    pub(crate) fn stats(&self, server: &ServerId, now: Instant) -> CacheStats {
        let mut state = self.lock();
        state.entries.remove_expired(now);
        let counters = state.stats.get(server).copied().unwrap_or_default();
        CacheStats { entries: state.entries.count(server), ..counters }
    }
}

impl CacheState {
    fn stats_mut(&mut self, server: &ServerId) -> &mut CacheStats {
        self.stats.entry(server.clone()).or_default()
    }

    /// A number that changes with every invalidation of the server's answers. Never zero.
    fn epoch(&self, server: &ServerId) -> u64 {
        self.stats.get(server).map_or(0, |stats| stats.invalidations) + 1
    }

    fn remove_flight(&mut self, key: &CacheKey, flight: &Arc<FlightState>) {
        if self.flights.get(key).is_some_and(|current| Arc::ptr_eq(current, flight)) {
            self.flights.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
