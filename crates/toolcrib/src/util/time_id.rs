//! Ids that grow with time: milliseconds since 1970, and a counter.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Bits below the milliseconds.
const COUNTER_BITS: u32 = 20;

/// Returns an id that is larger than all earlier ones of this process, and that other processes hardly use.
pub fn next_time_id(now: SystemTime) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    static OFFSET: OnceLock<u64> = OnceLock::new();
    let first = first_id(now, *OFFSET.get_or_init(random_offset));
    let next = |last: u64| Some(first.max(last + 1));
    match LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
        Ok(last) | Err(last) => first.max(last + 1),
    }
}

/// Returns the first id of a millisecond in a process with this offset.
fn first_id(now: SystemTime, offset: u64) -> u64 {
    to_time_id(now) | offset
}

/// Returns an id that no id of an earlier millisecond exceeds.
pub fn to_time_id(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = since.as_secs() * 1000 + u64::from(since.subsec_millis());
    millis << COUNTER_BITS
}

/// Returns the id without its counter.
pub fn start_of_millisecond(id: u64) -> u64 {
    id >> COUNTER_BITS << COUNTER_BITS
}

/// Returns the millisecond of an id.
pub fn time_of_id(id: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(id >> COUNTER_BITS)
}

/// Returns where the counter of this process starts in each millisecond, so that the ids of two processes differ.
fn random_offset() -> u64 {
    let mut random = [0; 8];
    match getrandom::fill(&mut random) {
        Ok(()) => u64::from_le_bytes(random) >> (u64::BITS - COUNTER_BITS),
        Err(_) => u64::from(std::process::id()) & ((1 << COUNTER_BITS) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::clock::wall_time;

    #[test]
    fn ids_grow_and_contain_their_time() {
        let before = wall_time() - Duration::from_millis(1);
        let ids: Vec<u64> = (0..1000).map(|_| next_time_id(wall_time())).collect();
        assert!(ids.is_sorted_by(|earlier, later| earlier < later));
        assert!(time_of_id(ids[0]) >= before && time_of_id(ids[999]) <= wall_time());
        let noon = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        assert_eq!(time_of_id(to_time_id(noon)), noon);
        assert!(first_id(noon, (1 << COUNTER_BITS) - 1) < to_time_id(noon + Duration::from_millis(1)));
    }
}
