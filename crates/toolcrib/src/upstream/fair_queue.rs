//! Limits how many calls a server works on at a time, and orders the rest fairly.
//!
//! Each client has its own queue and clients take turns, so a client with many calls delays only itself. The queue
//! has no clock: dropping a [`QueuedTurn`] leaves it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::util::locks::IgnorePoison as _;

/// Calls that may wait per in-flight turn.
const MAX_WAITING_PER_TURN: usize = 16;

/// The calls of one server, in flight and waiting.
#[derive(Debug, Clone)]
pub(super) struct FairQueue(Arc<Mutex<QueueState>>);

/// Result of [`FairQueue::request`].
#[derive(Debug)]
pub(super) enum TurnRequest {
    Granted(Turn),
    Queued(QueuedTurn),
    /// Too many calls wait already.
    Full,
}

/// One of the in-flight turns; dropping it passes it to the next waiter.
#[derive(Debug)]
pub(super) struct Turn(Option<FairQueue>);

/// A position in the queue.
#[derive(Debug)]
pub(super) struct QueuedTurn {
    queue: FairQueue,
    turn: oneshot::Receiver<Turn>,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Turns in total.
    in_flight: usize,
    /// Free turns; zero while any call waits.
    free: usize,
    /// Turns in use that end instead of being passed on, because the total was lowered.
    surplus: usize,
    /// Calls waiting, and the limit.
    waiting: usize,
    max_waiting: usize,
    /// Waiters by client, including those that were dropped and not removed yet.
    waiters: HashMap<u64, VecDeque<oneshot::Sender<Turn>>>,
    entries: usize,
    /// Clients with waiters, in the order of their turns.
    client_order: VecDeque<u64>,
}

impl FairQueue {
    pub(super) fn new(in_flight: usize) -> Self {
        let max_waiting = in_flight.saturating_mul(MAX_WAITING_PER_TURN);
        let state = QueueState { in_flight, free: in_flight, max_waiting, ..QueueState::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Changes the number of turns. If it is lowered, surplus turns end with their calls; if it is raised, waiters get the
    /// new ones.
    pub(super) fn set_in_flight(&self, in_flight: usize) {
        let mut state = self.state();
        state.max_waiting = in_flight.saturating_mul(MAX_WAITING_PER_TURN);
        let removed = state.in_flight.saturating_sub(in_flight);
        let mut added = in_flight.saturating_sub(state.in_flight);
        state.in_flight = in_flight;
        let removed_free = removed.min(state.free);
        state.free -= removed_free;
        state.surplus += removed - removed_free;
        let kept = added.min(state.surplus);
        state.surplus -= kept;
        added -= kept;
        let passed_on = added.min(state.waiting);
        state.free += added - passed_on;
        drop(state);
        // A dropped turn goes to the next waiter.
        (0..passed_on).for_each(|_| drop(Turn(Some(self.clone()))));
    }

    /// Returns a turn, or a position at the end of the client's queue.
    pub(super) fn request(&self, client: u64) -> TurnRequest {
        let mut state = self.state();
        if state.free > 0 {
            state.free -= 1;
            return TurnRequest::Granted(Turn(Some(self.clone())));
        }
        if state.waiting >= state.max_waiting && !state.evict_for(client) {
            return TurnRequest::Full;
        }
        let (sender, turn) = oneshot::channel();
        state.push(client, sender);
        TurnRequest::Queued(QueuedTurn { queue: self.clone(), turn })
    }

    /// Returns the number of calls that wait.
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().ignore_poison()
    }
}

impl QueueState {
    fn push(&mut self, client: u64, sender: oneshot::Sender<Turn>) {
        if self.entries > 2 * self.max_waiting {
            self.remove_closed();
        }
        self.waiting += 1;
        self.entries += 1;
        let client_waiters = self.waiters.entry(client).or_default();
        if client_waiters.is_empty() {
            self.client_order.push_back(client);
        }
        client_waiters.push_back(sender);
    }

    /// Evicts the newest waiter of the client with the longest queue, if that is longer than this client's would be.
    fn evict_for(&mut self, client: u64) -> bool {
        let longest = self.waiters.values().map(VecDeque::len).max();
        let own = self.waiters.get(&client).map_or(0, VecDeque::len);
        if longest.is_none_or(|longest| longest <= own + 1) {
            return false;
        }
        self.remove_closed();
        let own = self.waiters.get(&client).map_or(0, VecDeque::len);
        let longest = self.waiters.values_mut().max_by_key(|client_waiters| client_waiters.len());
        let evicted = longest
            .filter(|client_waiters| client_waiters.len() > own + 1)
            .and_then(VecDeque::pop_back)
            .is_some();
        self.entries -= usize::from(evicted);
        evicted
    }

    /// Removes waiters that were dropped.
    fn remove_closed(&mut self) {
        self.waiters.retain(|_, client_waiters| {
            client_waiters.retain(|sender| !sender.is_closed());
            !client_waiters.is_empty()
        });
        self.client_order.retain(|client| self.waiters.contains_key(client));
        self.entries = self.waiters.values().map(VecDeque::len).sum();
    }

    /// Takes the first waiter of the next client and moves that client to the end.
    fn pop_next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let client = self.client_order.pop_front()?;
        let client_waiters = self.waiters.get_mut(&client)?;
        let next = client_waiters.pop_front();
        self.entries -= 1;
        if client_waiters.is_empty() {
            self.waiters.remove(&client);
        } else {
            self.client_order.push_back(client);
        }
        next
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(mut queue) = self.0.take() else { return };
        loop {
            let mut state = queue.state();
            if state.surplus > 0 {
                state.surplus -= 1;
                return;
            }
            let Some(next) = state.pop_next() else {
                state.free += 1;
                return;
            };
            drop(state);
            match next.send(Self(Some(queue))) {
                Ok(()) => return,
                // This waiter was dropped: pass the turn on. In a loop and not by dropping the turn, because many may
                // have been dropped.
                Err(mut turn) => match turn.0.take() {
                    Some(back) => queue = back,
                    None => return,
                },
            }
        }
    }
}

impl QueuedTurn {
    /// Waits for the turn; `None` if it was evicted in favour of another client.
    pub(super) async fn wait(&mut self) -> Option<Turn> {
        (&mut self.turn).await.ok()
    }
}

impl Drop for QueuedTurn {
    fn drop(&mut self) {
        self.queue.state().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn granted(queue: &FairQueue, client: u64) -> Turn {
        let TurnRequest::Granted(turn) = queue.request(client) else { panic!("not granted") };
        turn
    }

    fn queued(queue: &FairQueue, client: u64) -> QueuedTurn {
        let TurnRequest::Queued(waiting) = queue.request(client) else { panic!("not queued") };
        waiting
    }

    /// Free turns and waiting calls.
    fn counts(queue: &FairQueue) -> (usize, usize) {
        let state = queue.state();
        (state.free, state.waiting)
    }

    fn take_turn(waiting: &mut QueuedTurn) -> Option<Turn> {
        waiting.turn.try_recv().ok()
    }

    fn was_evicted(waiting: &mut QueuedTurn) -> bool {
        waiting.turn.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn quiet_client_waits_for_one_turn_of_a_noisy_client() {
        let queue = FairQueue::new(1);
        let mut held = granted(&queue, 1);
        let mut noisy: Vec<QueuedTurn> = (0..10).map(|_| queued(&queue, 1)).collect();
        let mut quiet = queued(&queue, 2);
        drop(held);
        held = take_turn(&mut noisy[0]).unwrap();
        assert!(take_turn(&mut quiet).is_none());
        drop(held);
        held = take_turn(&mut quiet).unwrap();
        drop(held);
        for waiting in &mut noisy[1..] {
            assert!(take_turn(waiting).is_some(), "in order of arrival");
        }
    }

    #[test]
    fn queue_is_bounded_and_dropped_waiters_make_room() {
        let queue = FairQueue::new(2);
        let _held = (granted(&queue, 1), granted(&queue, 1));
        let mut waiting: Vec<QueuedTurn> =
            (0..2 * MAX_WAITING_PER_TURN).map(|client| queued(&queue, client as u64)).collect();
        assert!(matches!(queue.request(7), TurnRequest::Full));
        waiting.pop();
        drop(queued(&queue, 7));
        let _again = queued(&queue, 7);
        assert!(matches!(queue.request(7), TurnRequest::Full));
    }

    #[test]
    fn full_queue_evicts_from_the_noisiest_client() {
        let queue = FairQueue::new(1);
        let held = granted(&queue, 1);
        let mut noisy: Vec<QueuedTurn> = (0..MAX_WAITING_PER_TURN).map(|_| queued(&queue, 1)).collect();
        assert!(matches!(queue.request(1), TurnRequest::Full));
        let mut quiet = queued(&queue, 2);
        assert!(was_evicted(noisy.last_mut().unwrap()));
        assert!(!noisy[..MAX_WAITING_PER_TURN - 1].iter_mut().any(was_evicted));
        drop(held);
        drop(take_turn(&mut noisy[0]).unwrap());
        assert!(take_turn(&mut quiet).is_some());
    }

    #[test]
    fn dropped_waiters_are_removed_and_skipped() {
        let queue = FairQueue::new(1);
        let held = granted(&queue, 0);
        (0..100_000).for_each(|client| drop(queued(&queue, client)));
        let entries = queue.state().entries;
        assert!(entries <= 2 * MAX_WAITING_PER_TURN + 1, "{entries}");
        let mut last = queued(&queue, 1);
        drop(held);
        assert!(take_turn(&mut last).is_some());
        assert_eq!(counts(&queue), (1, 1));
    }

    #[test]
    fn turn_of_a_dropped_waiter_goes_to_the_next() {
        let queue = FairQueue::new(1);
        let held = granted(&queue, 1);
        let (first, mut second) = (queued(&queue, 1), queued(&queue, 2));
        drop(held);
        drop(first);
        assert!(take_turn(&mut second).is_some());
    }

    #[test]
    fn lowered_limit_ends_surplus_turns_and_raised_one_serves_waiters() {
        let queue = FairQueue::new(3);
        let mut held: Vec<Turn> = (0..3).map(|_| granted(&queue, 1)).collect();
        queue.set_in_flight(1);
        let mut waiting: Vec<QueuedTurn> = (0..3).map(|_| queued(&queue, 2)).collect();
        held.truncate(1);
        assert!(waiting.iter_mut().all(|waiter| take_turn(waiter).is_none()), "two turns ended");
        queue.set_in_flight(2);
        held.extend(take_turn(&mut waiting[0]));
        assert_eq!((held.len(), take_turn(&mut waiting[1]).is_none()), (2, true));
        queue.set_in_flight(1);
        queue.set_in_flight(9);
        held.extend(waiting.iter_mut().skip(1).filter_map(take_turn));
        assert_eq!(held.len(), 4, "every waiter got a turn");
        drop(waiting);
        drop(held);
        assert_eq!(counts(&queue), (9, 0));
    }

    proptest! {
        #[test]
        fn turns_are_neither_lost_nor_created(
            in_flight in 1..4_usize,
            steps in prop::collection::vec((0..4_u8, 0..4_u64, any::<prop::sample::Index>()), 0..200),
        ) {
            let queue = FairQueue::new(in_flight);
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (action, client, index) in steps {
                match action {
                    0 | 1 => match queue.request(client) {
                        TurnRequest::Granted(turn) => held.push(turn),
                        TurnRequest::Queued(queued_turn) => waiting.push(queued_turn),
                        TurnRequest::Full => prop_assert!(waiting.len() >= MAX_WAITING_PER_TURN * in_flight),
                    },
                    2 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    3 if !waiting.is_empty() => drop(waiting.swap_remove(index.index(waiting.len()))),
                    _ => {}
                }
                waiting.retain_mut(|queued_turn| match take_turn(queued_turn) {
                    Some(turn) => { held.push(turn); false }
                    None => !was_evicted(queued_turn),
                });
                prop_assert!(held.len() <= in_flight);
                prop_assert!(waiting.is_empty() || held.len() == in_flight, "a request waits for a free turn");
            }
            drop((held, waiting));
            prop_assert_eq!(counts(&queue), (in_flight, 0));
        }
    }
}
