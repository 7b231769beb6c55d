//! Calls whose spans wait to be exported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;
use toolcrib::CallRecord;
use toolcrib::util::locks::IgnorePoison as _;

/// A bounded queue. Calls never wait for it: what does not fit is counted and dropped.
#[derive(Debug)]
pub(super) struct SpanQueue {
    calls: Mutex<Vec<CallRecord>>,
    capacity: usize,
    dropped: AtomicU64,
    /// Notified when the queue is half full.
    half_full: Notify,
}

impl SpanQueue {
    pub(super) fn new(capacity: usize) -> Self {
        Self { calls: Mutex::default(), capacity, dropped: AtomicU64::new(0), half_full: Notify::new() }
    }

    pub(super) fn push(&self, record: &CallRecord) {
        let mut calls = self.calls();
        if calls.len() >= self.capacity {
            self.add_dropped(1);
            return;
        }
        calls.push(record.clone());
        if calls.len() == self.capacity.div_ceil(2) {
            self.half_full.notify_one();
        }
    }

    /// Takes the oldest calls, up to `max`.
    pub(super) fn take(&self, max: usize) -> Vec<CallRecord> {
        let mut calls = self.calls();
        let count = calls.len().min(max);
        calls.drain(..count).collect()
    }

    /// Waits until the queue is half full, which is reported once.
    pub(super) async fn half_full(&self) {
        self.half_full.notified().await;
    }

    /// Counts calls whose spans are lost.
    pub(super) fn add_dropped(&self, calls: usize) {
        self.dropped.fetch_add(calls as u64, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn calls(&self) -> MutexGuard<'_, Vec<CallRecord>> {
        self.calls.lock().ignore_poison()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::call_record;
    use super::*;

    #[tokio::test]
    async fn full_queue_drops_and_counts() {
        let queue = SpanQueue::new(4);
        for _ in 0..6 {
            queue.push(&call_record());
        }
        queue.half_full().await;
        assert_eq!((queue.take(3).len(), queue.take(3).len(), queue.take(3).len()), (3, 1, 0));
        assert_eq!(queue.dropped(), 2);
    }
}
