//! `CacheEntries`: cached answers by key, bounded in number per subject and in total bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::directive::CacheDirective;
use super::key::{BuildPrehashed, CacheKey, CacheSubject, CachedItem};
use crate::model::instance_key::InstanceKey;
use crate::model::outcome::Outcome;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::spec::ServerId;

/// Approximate memory per entry in addition to its answer and key.
const OVERHEAD: usize = 512;

/// The part of a server's answers that became stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalidation<'a> {
    All,
    /// The resource with this URI, and those that contain it.
    Resource(&'a str),
}

impl Invalidation<'_> {
    fn affects(self, key: &CacheKey) -> bool {
        match self {
            Self::All => true,
            Self::Resource(uri) => {
                key.subject.item == CachedItem::Resources && uri.as_bytes().starts_with(&key.request)
            }
        }
    }
}

/// One cached answer.
#[derive(Debug, Clone)]
pub(super) struct CacheEntry {
    outcome: Outcome,
    directive: CacheDirective,
    expires_at: Instant,
}

impl CacheEntry {
    /// Copies the answer, because the original may keep a larger buffer alive.
    pub(super) fn new(outcome: &Outcome, directive: CacheDirective, expires_at: Instant) -> Self {
        let answer = ResponsePayload::Result(Bytes::copy_from_slice(outcome.raw()));
        Self { outcome: Outcome { answer, ..outcome.clone() }, directive, expires_at }
    }

    /// Returns the answer with the TTL that remains at `now`.
    pub(super) fn into_outcome(self, now: Instant) -> Outcome {
        let remaining = self.expires_at.saturating_duration_since(now);
        let answer = ResponsePayload::Result(self.directive.replace_ttl(self.outcome.raw(), remaining));
        Outcome { answer, ..self.outcome }
    }
}

/// An entry with its sequence number, under which the other indexes hold it.
#[derive(Debug)]
struct StoredEntry {
    sequence: u64,
    entry: CacheEntry,
    bytes: usize,
}

/// All cached answers, indexed by key, age, expiry and subject.
#[derive(Debug)]
pub(super) struct CacheEntries {
    by_key: HashMap<Arc<CacheKey>, StoredEntry, BuildPrehashed>,
    by_sequence: BTreeMap<u64, Arc<CacheKey>>,
    by_expiry: BTreeSet<(Instant, u64)>,
    by_subject: BTreeMap<CacheSubject, BTreeSet<u64>>,
    bytes: usize,
    max_bytes: usize,
    next_sequence: u64,
}

impl CacheEntries {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            by_key: HashMap::default(),
            by_sequence: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            by_subject: BTreeMap::new(),
            bytes: 0,
            max_bytes,
            next_sequence: 0,
        }
    }

    /// Returns the entry of a key unless it has expired.
    pub(super) fn get(&self, key: &CacheKey, now: Instant) -> Option<&CacheEntry> {
        self.by_key.get(key).map(|stored| &stored.entry).filter(|entry| entry.expires_at > now)
    }

    /// Inserts an entry and evicts the oldest ones above the limit per subject and the limit of bytes. An entry that would
    /// take more than a quarter of all bytes is not stored. Returns whether it was.
    pub(super) fn insert(
        &mut self,
        key: Arc<CacheKey>,
        entry: CacheEntry,
        max_per_subject: usize,
        now: Instant,
    ) -> bool {
        self.remove_expired(now);
        let bytes = OVERHEAD + key.size() + entry.outcome.raw().len();
        self.remove(&key);
        if bytes > self.max_bytes / 4 || max_per_subject == 0 || entry.expires_at <= now {
            return false;
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.bytes += bytes;
        self.by_sequence.insert(sequence, key.clone());
        self.by_expiry.insert((entry.expires_at, sequence));
        let of_subject = self.by_subject.entry(key.subject.clone()).or_default();
        of_subject.insert(sequence);
        let oldest = of_subject.first().copied().filter(|_| of_subject.len() > max_per_subject);
        self.by_key.insert(key, StoredEntry { sequence, entry, bytes });
        self.remove_sequence(oldest);
        self.evict();
        true
    }

    /// Sets the limit of bytes and evicts the oldest entries above it.
    pub(super) fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
        self.evict();
    }

    fn evict(&mut self) {
        while self.bytes > self.max_bytes {
            let oldest = self.by_sequence.first_key_value().map(|(sequence, _)| *sequence);
            self.remove_sequence(oldest);
        }
    }

    pub(super) fn remove_expired(&mut self, now: Instant) {
        let is_expired = |(expires_at, _): &(Instant, u64)| *expires_at <= now;
        while let Some((_, sequence)) = self.by_expiry.first().copied().filter(is_expired) {
            self.remove_sequence(Some(sequence));
        }
    }

    /// Removes stale entries of a server, of one instance or of all.
    pub(super) fn invalidate(
        &mut self,
        server: &ServerId,
        instance: Option<&InstanceKey>,
        invalidation: Invalidation<'_>,
    ) {
        let sequences = self.subjects(server).flat_map(|(_, sequences)| sequences);
        let keys = sequences.filter_map(|sequence| self.by_sequence.get(sequence));
        let is_stale = |key: &&Arc<CacheKey>| {
            instance.is_none_or(|instance| key.instance == *instance) && invalidation.affects(key)
        };
        let stale: Vec<Arc<CacheKey>> = keys.filter(is_stale).cloned().collect();
        stale.iter().for_each(|key| self.remove(key));
    }

    pub(super) fn has_subject(&self, subject: &CacheSubject) -> bool {
        self.by_subject.contains_key(subject)
    }

    /// Number of entries of a server.
    pub(super) fn count(&self, server: &ServerId) -> usize {
        self.subjects(server).map(|(_, sequences)| sequences.len()).sum()
    }

    fn subjects<'a>(
        &'a self,
        server: &'a ServerId,
    ) -> impl Iterator<Item = (&'a CacheSubject, &'a BTreeSet<u64>)> {
        let first = CacheSubject { server: server.clone(), item: CachedItem::Tool("".into()) };
        self.by_subject.range(first..).take_while(move |(subject, _)| subject.server == *server)
    }

    fn remove_sequence(&mut self, sequence: Option<u64>) {
        if let Some(key) = sequence.and_then(|sequence| self.by_sequence.get(&sequence).cloned()) {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &CacheKey) {
        let Some(StoredEntry { sequence, entry, bytes }) = self.by_key.remove(key) else { return };
        self.bytes -= bytes;
        self.by_sequence.remove(&sequence);
        self.by_expiry.remove(&(entry.expires_at, sequence));
        if let Some(sequences) = self.by_subject.get_mut(&key.subject) {
            sequences.remove(&sequence);
            if sequences.is_empty() {
                self.by_subject.remove(&key.subject);
            }
        }
    }
}

#[cfg(test)]
mod tests;
