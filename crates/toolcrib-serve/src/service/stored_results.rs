//! Large results that clients read in parts: each is kept for an hour, for the caller that received it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::store::{OwnedKind, Replica};
use toolcrib::util::encoding;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Caller, ServerId};

/// Time for which a result is kept.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// Bytes of all stored results.
const MAX_BYTES: usize = 64 << 20;
/// Bytes that each result counts in addition to its text, which limits the number of results.
const ENTRY_BYTES: usize = 64 << 10;

/// A result that was too large for its client.
#[derive(Debug)]
pub(super) struct StoredResult {
    /// The server that returned it.
    pub(super) server: ServerId,
    /// The texts of its content blocks.
    pub(super) blocks: Vec<String>,
    /// Bytes of a page, as a JSON string.
    pub(super) page_bytes: usize,
}

impl StoredResult {
    /// Returns the number of bytes of its texts.
    pub(super) fn size(&self) -> usize {
        self.blocks.iter().map(String::len).sum()
    }

    /// Returns the bytes that it counts in the store.
    fn stored_bytes(&self) -> usize {
        self.size() + ENTRY_BYTES
    }
}

#[derive(Debug)]
struct ResultEntry {
    id: String,
    caller: String,
    result: Arc<StoredResult>,
    expires_at: Instant,
}

/// The stored results of all callers, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ResultStore {
    /// This gateway, if other replicas forward requests to it.
    replica: Option<Arc<Replica>>,
    entries: Mutex<VecDeque<ResultEntry>>,
}

impl ResultStore {
    /// Creates an empty store. Ids of results name the replica.
    pub(super) fn new(replica: Option<&Arc<Replica>>) -> Self {
        Self { replica: replica.cloned(), entries: Mutex::default() }
    }

    fn new_id(&self) -> Option<String> {
        match &self.replica {
            Some(replica) => replica.new_name(OwnedKind::Result),
            None => encoding::random_hex(),
        }
    }

    /// Stores a result and returns its id. Older ones are dropped if there are too many: first those of the caller that uses
    /// most. Returns `None` if the result alone is too large, or there is no source of random numbers.
    pub(super) fn insert(&self, caller: &Caller, result: StoredResult, now: Instant) -> Option<String> {
        if result.stored_bytes() > MAX_BYTES {
            return None;
        }
        let id = self.new_id()?;
        let caller = caller.as_str().to_owned();
        let entry =
            ResultEntry { id: id.clone(), caller, result: Arc::new(result), expires_at: now + MAX_AGE };
        let mut entries = self.entries.lock().ignore_poison();
        remove_expired(&mut entries, now);
        entries.push_back(entry);
        while total_bytes(&entries) > MAX_BYTES {
            remove_oldest_of_largest_caller(&mut entries);
        }
        Some(id)
    }

    /// Returns a result of a caller, unless it has expired.
    pub(super) fn find(&self, caller: &Caller, id: &str, now: Instant) -> Option<Arc<StoredResult>> {
        let mut entries = self.entries.lock().ignore_poison();
        remove_expired(&mut entries, now);
        let entry = entries.iter().find(|entry| entry.id == id && entry.caller == caller.as_str())?;
        Some(entry.result.clone())
    }

    /// Drops results that have expired.
    pub(super) fn remove_expired(&self, now: Instant) {
        remove_expired(&mut self.entries.lock().ignore_poison(), now);
    }
}

/// Drops results that have expired. The oldest expires first.
fn remove_expired(entries: &mut VecDeque<ResultEntry>, now: Instant) {
    while entries.front().is_some_and(|entry| entry.expires_at <= now) {
        entries.pop_front();
    }
}

fn total_bytes(entries: &VecDeque<ResultEntry>) -> usize {
    entries.iter().map(|entry| entry.result.stored_bytes()).sum()
}

fn remove_oldest_of_largest_caller(entries: &mut VecDeque<ResultEntry>) {
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    for entry in entries.iter() {
        *sizes.entry(&entry.caller).or_default() += entry.result.stored_bytes();
    }
    let Some(largest) = sizes.into_iter().max_by_key(|(_, size)| *size).map(|(caller, _)| caller) else {
        return;
    };
    let oldest = entries.iter().position(|entry| entry.caller == largest);
    if let Some(oldest) = oldest {
        entries.remove(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(bytes: usize) -> StoredResult {
        StoredResult { server: "s".parse().unwrap(), blocks: vec!["x".repeat(bytes)], page_bytes: 1000 }
    }

    #[tokio::test]
    async fn results_are_private_and_expire() {
        let store = ResultStore::default();
        let [ann, bob] = ["ann", "bob"].map(Caller::new);
        let now = Instant::now();
        let id = store.insert(&ann, result(9), now).unwrap();
        assert!(store.find(&ann, &id, now).is_some() && store.find(&bob, &id, now).is_none());
        assert!(store.find(&ann, &id[1..], now).is_none());
        assert!(store.find(&ann, &id, now + MAX_AGE - Duration::from_secs(1)).is_some());
        assert!(store.find(&ann, &id, now + MAX_AGE).is_none());
        assert!(store.entries.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn full_store_drops_the_oldest_of_the_largest_caller() {
        let store = ResultStore::default();
        let [ann, bob] = ["ann", "bob"].map(Caller::new);
        let now = Instant::now();
        let small = store.insert(&bob, result(1 << 20), now).unwrap();
        let large = [(); 3].map(|()| store.insert(&ann, result(24 << 20), now).unwrap());
        let is_kept = |caller: &Caller, id: &str| store.find(caller, id, now).is_some();
        assert!(is_kept(&bob, &small) && !is_kept(&ann, &large[0]) && is_kept(&ann, &large[2]));
        assert!(store.insert(&ann, result(MAX_BYTES), now).is_none() && is_kept(&ann, &large[1]));
        for _ in 0..2000 {
            store.insert(&ann, result(0), now).unwrap();
        }
        assert!(store.entries.lock().unwrap().len() <= MAX_BYTES / ENTRY_BYTES);
        assert!(is_kept(&bob, &small));
    }
}
