//! `Values`: the values of one kind, with lifetimes and an optional bound.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::store::{ExpiringValue, StoredValue};

/// Values that are held before expired ones are removed.
const PRUNE_THRESHOLD: usize = 64;

/// Values by name.
#[derive(Debug)]
pub(super) struct Values {
    by_name: HashMap<String, Value>,
    max_values: Option<usize>,
    /// Number of values at which expired ones are removed, if above [`PRUNE_THRESHOLD`].
    prune_at: usize,
}

#[derive(Debug)]
struct Value {
    bytes: Bytes,
    /// `None` for a value that does not expire.
    expires_at: Option<Instant>,
}

impl Value {
    fn is_valid(&self, now: Instant) -> bool {
        self.expires_at.is_none_or(|expires_at| expires_at > now)
    }
}

impl Values {
    pub(super) fn new(max_values: Option<usize>) -> Self {
        Self { by_name: HashMap::new(), max_values, prune_at: 0 }
    }

    /// Returns a value unless it has expired.
    pub(super) fn get(&self, name: &str, now: Instant) -> Option<Bytes> {
        self.by_name.get(name).filter(|value| value.is_valid(now)).map(|value| value.bytes.clone())
    }

    /// Returns a value and the rest of its lifetime, unless it has expired.
    pub(super) fn get_with_ttl(&self, name: &str, now: Instant) -> Option<ExpiringValue> {
        let value = self.by_name.get(name).filter(|value| value.is_valid(now))?;
        let ttl = value.expires_at.map(|expires_at| expires_at.saturating_duration_since(now));
        Some(ExpiringValue { value: value.bytes.clone(), ttl })
    }

    /// Sets a value. If the kind is full, the value that expires first is evicted.
    pub(super) fn put(&mut self, name: &str, bytes: Bytes, ttl: Option<Duration>, now: Instant) {
        if !self.by_name.contains_key(name) {
            self.make_room(now);
        }
        let expires_at = ttl.and_then(|ttl| now.checked_add(ttl));
        self.by_name.insert(name.to_owned(), Value { bytes, expires_at });
    }

    /// Removes and returns a value unless it has expired.
    pub(super) fn take(&mut self, name: &str, now: Instant) -> Option<Bytes> {
        self.by_name.remove(name).filter(|value| value.is_valid(now)).map(|value| value.bytes)
    }

    /// Returns the values whose names start with `prefix`, ordered by name.
    pub(super) fn list(&self, prefix: &str, now: Instant) -> Vec<StoredValue> {
        let valid =
            self.by_name.iter().filter(|(name, value)| name.starts_with(prefix) && value.is_valid(now));
        let listed =
            valid.map(|(name, value)| StoredValue { name: name.clone(), value: value.bytes.clone() });
        let mut listed: Vec<StoredValue> = listed.collect();
        listed.sort_by(|left, right| left.name.cmp(&right.name));
        listed
    }

    fn make_room(&mut self, now: Instant) {
        let is_full = self.max_values.is_some_and(|max| self.by_name.len() >= max);
        if is_full || self.by_name.len() >= self.prune_at.max(PRUNE_THRESHOLD) {
            self.by_name.retain(|_, value| value.is_valid(now));
            self.prune_at = self.by_name.len() * 2;
        }
        if self.max_values.is_some_and(|max| self.by_name.len() >= max) {
            self.evict();
        }
    }

    /// Removes the value that expires first. Values without a lifetime come last.
    fn evict(&mut self) {
        let expiring = self.by_name.iter().filter_map(|(name, value)| Some((value.expires_at?, name)));
        let first = expiring.min_by_key(|(expires_at, _)| *expires_at).map(|(_, name)| name.clone());
        let first = first.or_else(|| self.by_name.keys().next().cloned());
        if let Some(first) = first {
            self.by_name.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn full_kind_evicts_what_expires_first() {
        let mut values = Values::new(Some(2));
        let now = Instant::now();
        values.put("long", Bytes::new(), Some(10 * SECOND), now);
        values.put("short", Bytes::new(), Some(SECOND), now);
        values.put("short", Bytes::new(), Some(2 * SECOND), now);
        assert!(values.get("long", now).is_some(), "replacing a value needs no room");
        values.put("endless", Bytes::new(), None, now);
        assert!(values.get("short", now).is_none());
        values.put("last", Bytes::new(), None, now);
        assert!(values.get("long", now).is_none());
        assert_eq!(values.by_name.len(), 2);
    }

    #[test]
    fn expired_values_are_pruned() {
        let mut values = Values::new(None);
        let now = Instant::now();
        for second in 0..1000 {
            values.put(&second.to_string(), Bytes::new(), Some(SECOND), now + second * SECOND);
            assert!(values.by_name.len() <= PRUNE_THRESHOLD, "{second}");
        }
    }
}
