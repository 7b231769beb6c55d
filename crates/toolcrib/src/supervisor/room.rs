//! `Room`: how many servers may run at the same time, and which of those that nobody uses leaves for one that is wanted.
//!
//! A server that starts takes a `Seat` and gives it back when nothing is left of it. Who finds none free waits in line
//! while those that have been idle longest are asked to leave; one that is used is never asked.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::Command;
use super::gauges::Gauges;

/// The seats of one crib.
#[derive(Debug)]
pub(crate) struct Room {
    books: Mutex<Books>,
    /// How many have to leave, readable without the lock: every server that becomes idle asks.
    wanted: AtomicUsize,
    /// Counts the times that a server became idle.
    idle: AtomicU64,
}

#[derive(Debug)]
struct Books {
    seats: usize,
    seated: BTreeMap<u64, Tenant>,
    line: VecDeque<(Tenant, oneshot::Sender<Seat>)>,
    last: u64,
}

/// A server that has a seat or wants one.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) mailbox: mpsc::WeakUnboundedSender<Command>,
    pub(super) gauges: Arc<Gauges>,
    /// It is meant to stay also when nobody uses it, so it is asked last.
    pub(super) kept: bool,
    /// It was asked to leave and has not answered yet.
    pub(super) leaving: bool,
}

/// The right to run; dropping it makes room for another.
pub(super) struct Seat {
    room: Arc<Room>,
    number: u64,
}

impl Room {
    pub(crate) fn new(seats: usize) -> Self {
        let books = Books { seats, seated: BTreeMap::new(), line: VecDeque::new(), last: 0 };
        Self { books: Mutex::new(books), wanted: AtomicUsize::new(0), idle: AtomicU64::new(0) }
    }

    /// From now on there are this many. Servers that run already stay until they are idle.
    pub(crate) fn resize(self: &Arc<Self>, seats: usize) {
        self.books().seats = seats;
        self.settle();
    }

    /// How many there are.
    pub(crate) fn seats(&self) -> usize {
        self.books().seats
    }

    /// A seat, as soon as there is one.
    pub(super) async fn seat(self: &Arc<Self>, tenant: Tenant) -> Seat {
        let (give, given) = oneshot::channel();
        self.books().line.push_back((tenant, give));
        self.settle();
        match given.await {
            Ok(seat) => seat,
            // Only a seat ever takes a tenant out of the line.
            Err(_) => std::future::pending().await,
        }
    }

    /// This server is used by nobody from now on, and may be asked to leave.
    pub(super) fn idle(self: &Arc<Self>, gauges: &Gauges) {
        gauges.set_idle(self.idle.fetch_add(1, Ordering::Relaxed) + 1);
        // Either it is seen to be idle by whoever wants a seat, or it sees here that one is wanted.
        fence(Ordering::SeqCst);
        self.go_on();
    }

    fn go_on(self: &Arc<Self>) {
        if self.wanted.load(Ordering::Relaxed) > 0 {
            self.settle();
        }
    }

    /// Gives free seats to those in line, and asks as many to leave as still stand. A seat that becomes free meanwhile is
    /// given back after this, and then it is known that somebody wants it.
    fn settle(self: &Arc<Self>) {
        let mut books = self.books();
        let given: Vec<_> = std::iter::from_fn(|| books.seat_next()).collect();
        let leaving = books.seated.values().filter(|tenant| tenant.leaving).count();
        let wanted = books.line.len() + books.seated.len().saturating_sub(books.seats);
        self.wanted.store(wanted, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (leaving..wanted).for_each(|_| books.ask_one_to_leave());
        drop(books);
        for (number, give) in given {
            // Somebody who stopped waiting drops the seat here, which makes it free again.
            let _ = give.send(Seat { room: self.clone(), number });
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Seats the first in line who still wants it, if there is a seat.
    fn seat_next(&mut self) -> Option<(u64, oneshot::Sender<Seat>)> {
        self.line.retain(|(_, give)| !give.is_closed());
        if self.seated.len() >= self.seats {
            return None;
        }
        let (tenant, give) = self.line.pop_front()?;
        self.last += 1;
        self.seated.insert(self.last, tenant);
        Some((self.last, give))
    }

    /// Of those that nobody uses, the one that was used longest ago; if it is used in this moment, it stays.
    fn ask_one_to_leave(&mut self) {
        let idle = self.seated.values_mut().filter_map(|tenant| {
            let since = tenant.gauges.idle_since().filter(|_| !tenant.leaving)?;
            Some((tenant.kept, since, tenant))
        });
        if let Some((_, _, tenant)) = idle.min_by_key(|(kept, since, _)| (*kept, *since)) {
            tenant.leaving =
                tenant.mailbox.upgrade().is_some_and(|actor| actor.send(Command::MakeRoom).is_ok());
        }
    }
}

impl Seat {
    /// It was asked to leave, but somebody uses it again.
    pub(super) fn stay(&self) {
        if let Some(tenant) = self.room.books().seated.get_mut(&self.number) {
            tenant.leaving = false;
        }
        self.room.go_on();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.room.books().seated.remove(&self.number);
        self.room.go_on();
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seat").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn tenant() -> Tenant {
        let (mailbox, _) = mpsc::unbounded_channel();
        let gauges = Arc::new(Gauges::default());
        Tenant { mailbox: mailbox.downgrade(), gauges, kept: false, leaving: false }
    }

    #[test]
    fn a_seat_that_becomes_free_while_somebody_asks_is_not_overlooked() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let room = Arc::new(Room::new(1));
        let (leave, leaving) = std::sync::mpsc::channel::<(usize, Seat)>();
        // Two threads meet here more closely than one that wakes the other.
        let now = Arc::new(AtomicUsize::new(0));
        let gate = now.clone();
        let leaver = std::thread::spawn(move || {
            for (turn, seat) in leaving {
                while gate.load(Ordering::Acquire) < turn {
                    std::hint::spin_loop();
                }
                drop(seat);
            }
        });
        runtime.block_on(async {
            for turn in 1..=30_000 {
                leave.send((turn, room.seat(tenant()).await)).unwrap();
                now.store(turn, Ordering::Release);
                (0..turn % 64).for_each(|_| std::hint::spin_loop());
                let seat = timeout(Duration::from_secs(20), room.seat(tenant())).await;
                assert!(seat.is_ok(), "nobody gave it the seat that is free, in turn {turn}");
            }
        });
        drop(leave);
        leaver.join().unwrap();
        assert!(room.books().seated.is_empty());
    }
}
