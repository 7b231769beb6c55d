//! The limit of event streams per caller: each may hold a part of the history in memory for a client that reads slowly.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use toolcrib::util::locks::IgnorePoison as _;

/// Streams that a caller may have open.
pub(super) const MAX_STREAMS: usize = 16;

/// Open event streams by caller.
#[derive(Debug, Default)]
pub(super) struct StreamLimit(Arc<Mutex<HashMap<String, usize>>>);

/// A counted stream. Dropping it frees its place.
#[derive(Debug)]
pub(super) struct StreamPermit {
    caller: String,
    open: Arc<Mutex<HashMap<String, usize>>>,
}

impl StreamLimit {
    /// Counts one more stream of a caller, unless it has too many.
    pub(super) fn try_acquire(&self, caller: &str) -> Option<StreamPermit> {
        let mut open = self.0.lock().ignore_poison();
        let count = open.entry(caller.to_owned()).or_default();
        if *count >= MAX_STREAMS {
            return None;
        }
        *count += 1;
        drop(open);
        Some(StreamPermit { caller: caller.to_owned(), open: self.0.clone() })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.open.lock().ignore_poison();
        if let Some(count) = open.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_caller_are_limited() {
        let limit = StreamLimit::default();
        let mut of_ada: Vec<_> = (0..MAX_STREAMS).map(|_| limit.try_acquire("ada").unwrap()).collect();
        assert!(limit.try_acquire("ada").is_none() && limit.try_acquire("bob").is_some());
        of_ada.pop();
        assert!(limit.try_acquire("ada").is_some());
        of_ada.clear();
        assert!(limit.0.lock().unwrap().is_empty());
    }
}
