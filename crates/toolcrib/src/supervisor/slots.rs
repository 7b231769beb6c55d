//! The limit on how many servers run at the same time, and the choice of the idle server that stops for a waiting one.
//!
//! A server holds a slot from its start until its processes have ended. When no slot is free, starts wait in a queue
//! and the servers that have been idle longest are asked to stop. Servers in use are never asked.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::oneshot;

use crate::util::locks::IgnorePoison as _;

use super::metrics::ServerMetrics;
use super::{ActorCommand, Mailbox};

/// The slots of one crib.
#[derive(Debug)]
pub(crate) struct SlotPool {
    state: Mutex<SlotState>,
    /// Number of servers that should stop. Read without the lock whenever a server becomes idle.
    evictions_needed: AtomicUsize,
    /// Counts how often any server became idle.
    idle_events: AtomicU64,
}

#[derive(Debug)]
struct SlotState {
    capacity: usize,
    holders: BTreeMap<u64, SlotHolder>,
    queue: VecDeque<QueuedStart>,
    last_id: u64,
}

/// A start that waits for a slot.
#[derive(Debug)]
struct QueuedStart {
    holder: SlotHolder,
    slot_tx: oneshot::Sender<Slot>,
}

/// A slot that was assigned to a queued start.
struct AssignedSlot {
    id: u64,
    slot_tx: oneshot::Sender<Slot>,
}

/// A server that holds a slot or waits for one.
#[derive(Debug)]
pub(super) struct SlotHolder {
    pub(super) mailbox: Weak<Mailbox>,
    pub(super) metrics: Arc<ServerMetrics>,
    /// True if the server is configured to keep running while idle, so that others are asked first.
    pub(super) evict_last: bool,
    /// True if the server was asked to stop and has not answered yet.
    pub(super) eviction_requested: bool,
}

/// Permission to run. Dropping it frees the slot.
pub(super) struct Slot {
    pool: Arc<SlotPool>,
    id: u64,
}

impl SlotPool {
    pub(crate) fn new(capacity: usize) -> Self {
        let state = SlotState { capacity, holders: BTreeMap::new(), queue: VecDeque::new(), last_id: 0 };
        Self {
            state: Mutex::new(state),
            evictions_needed: AtomicUsize::new(0),
            idle_events: AtomicU64::new(0),
        }
    }

    /// Changes the number of slots. Surplus servers stop when they become idle.
    pub(crate) fn resize(self: &Arc<Self>, capacity: usize) {
        self.lock().capacity = capacity;
        self.rebalance();
    }

    pub(crate) fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Waits for a free slot.
    pub(super) async fn acquire(self: &Arc<Self>, holder: SlotHolder) -> Slot {
        let (slot_tx, slot) = oneshot::channel();
        self.lock().queue.push_back(QueuedStart { holder, slot_tx });
        self.rebalance();
        match slot.await {
            Ok(slot) => slot,
            // A queued start is removed only when it gets a slot or stops waiting.
            Err(_) => std::future::pending().await,
        }
    }

    /// Records that a server has become idle and may be asked to stop.
    pub(super) fn mark_idle(self: &Arc<Self>, metrics: &ServerMetrics) {
        metrics.set_idle_rank(self.idle_events.fetch_add(1, Ordering::Relaxed) + 1);
        // Either a start that needs a slot sees the idle server, or the code below sees that a slot is needed.
        fence(Ordering::SeqCst);
        self.rebalance_if_needed();
    }

    fn rebalance_if_needed(self: &Arc<Self>) {
        if self.evictions_needed.load(Ordering::Relaxed) > 0 {
            self.rebalance();
        }
    }

    /// Assigns free slots to queued starts, and asks as many idle servers to stop as are still needed. A slot that is
    /// freed meanwhile is returned after this and then triggers another rebalance.
    fn rebalance(self: &Arc<Self>) {
        let mut state = self.lock();
        let assigned: Vec<AssignedSlot> = std::iter::from_fn(|| state.assign_next()).collect();
        let requested = state.holders.values().filter(|holder| holder.eviction_requested).count();
        let needed = state.queue.len() + state.holders.len().saturating_sub(state.capacity);
        self.evictions_needed.store(needed, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (requested..needed).for_each(|_| state.request_eviction());
        drop(state);
        for AssignedSlot { id, slot_tx } in assigned {
            // If the start no longer waits, the slot is dropped here, which frees it again.
            let _ = slot_tx.send(Slot { pool: self.clone(), id });
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().ignore_poison()
    }
}

impl SlotState {
    /// Assigns a free slot to the first queued start that still waits.
    fn assign_next(&mut self) -> Option<AssignedSlot> {
        self.queue.retain(|queued| !queued.slot_tx.is_closed());
        if self.holders.len() >= self.capacity {
            return None;
        }
        let QueuedStart { holder, slot_tx } = self.queue.pop_front()?;
        self.last_id += 1;
        self.holders.insert(self.last_id, holder);
        Some(AssignedSlot { id: self.last_id, slot_tx })
    }

    /// Asks the server that has been idle longest to stop. It declines if it is in use again.
    fn request_eviction(&mut self) {
        let idle = self.holders.values_mut().filter_map(|holder| {
            let rank = holder.metrics.idle_rank().filter(|_| !holder.eviction_requested)?;
            Some((holder.evict_last, rank, holder))
        });
        if let Some((_, _, holder)) = idle.min_by_key(|(evict_last, rank, _)| (*evict_last, *rank)) {
            let actor = holder.mailbox.upgrade();
            holder.eviction_requested = actor.is_some_and(|actor| actor.send(ActorCommand::FreeSlot).is_ok());
        }
    }
}

impl Slot {
    /// Sets whether servers that do not keep running while idle are asked first.
    pub(super) fn set_evict_last(&self, evict_last: bool) {
        if let Some(holder) = self.pool.lock().holders.get_mut(&self.id) {
            holder.evict_last = evict_last;
        }
    }

    /// Declines a request to stop, because the server is in use again.
    pub(super) fn keep(&self) {
        if let Some(holder) = self.pool.lock().holders.get_mut(&self.id) {
            holder.eviction_requested = false;
        }
        self.pool.rebalance_if_needed();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.lock().holders.remove(&self.id);
        self.pool.rebalance_if_needed();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slot").field(&self.id).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn holder() -> SlotHolder {
        let mailbox: Weak<Mailbox> = Weak::new();
        let metrics = Arc::new(ServerMetrics::default());
        SlotHolder { mailbox, metrics, evict_last: false, eviction_requested: false }
    }

    #[test]
    fn slot_freed_during_acquire_is_assigned() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pool = Arc::new(SlotPool::new(1));
        let (release, released) = std::sync::mpsc::channel::<(usize, Slot)>();
        // Spinning brings the two threads closer together than waking one from the other.
        let current_round = Arc::new(AtomicUsize::new(0));
        let round_of_thread = current_round.clone();
        let releaser = std::thread::spawn(move || {
            for (round, slot) in released {
                while round_of_thread.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
                drop(slot);
            }
        });
        runtime.block_on(async {
            for round in 1..=30_000 {
                release.send((round, pool.acquire(holder()).await)).unwrap();
                current_round.store(round, Ordering::Release);
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                let slot = timeout(Duration::from_secs(20), pool.acquire(holder())).await;
                assert!(slot.is_ok(), "the free slot was not assigned in round {round}");
            }
        });
        drop(release);
        releaser.join().unwrap();
        assert!(pool.lock().holders.is_empty());
    }
}
