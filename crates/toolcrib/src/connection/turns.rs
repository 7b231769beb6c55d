//! `Turns`: how many calls a server works on at a time, and whose turn is next.
//!
//! Clients wait in lines of their own and take turns, so one that asks for very much delays only itself. It does not
//! know the time: who has waited long enough leaves, and dropping what one waits with is leaving.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Calls that may wait for each one that is worked on.
const WAITING_FOR_EACH: usize = 16;

/// The turns of one server.
#[derive(Debug, Clone)]
pub(super) struct Turns(Arc<Mutex<Lines>>);

/// What becomes of a call that wants a turn.
#[derive(Debug)]
pub(super) enum Asked {
    /// It has one.
    Now(Turn),
    /// It has to wait.
    Later(Waiting),
    /// Too many wait already.
    Full,
}

/// A place among the calls that are worked on; dropping it makes room for the next one.
#[derive(Debug)]
pub(super) struct Turn(Option<Turns>);

/// A place among those who wait.
#[derive(Debug)]
pub(super) struct Waiting {
    turns: Turns,
    turn: oneshot::Receiver<Turn>,
}

#[derive(Debug, Default)]
struct Lines {
    /// Places that nobody has; none as long as somebody waits.
    free: usize,
    /// How many wait, and how many may.
    waiting: usize,
    most_waiting: usize,
    /// Those who wait, by client; those who left may still stand there.
    lines: HashMap<u64, VecDeque<oneshot::Sender<Turn>>>,
    standing: usize,
    /// The clients that have a line, in the order of their turns.
    order: VecDeque<u64>,
}

impl Turns {
    pub(super) fn new(at_a_time: usize) -> Self {
        let most_waiting = at_a_time.saturating_mul(WAITING_FOR_EACH);
        Self(Arc::new(Mutex::new(Lines { free: at_a_time, most_waiting, ..Lines::default() })))
    }

    /// A turn, or a place at the end of the client's line.
    pub(super) fn ask(&self, client: u64) -> Asked {
        let mut lines = self.lines();
        if lines.free > 0 {
            lines.free -= 1;
            return Asked::Now(Turn(Some(self.clone())));
        }
        if lines.waiting >= lines.most_waiting && !lines.make_way(client) {
            return Asked::Full;
        }
        let (sender, turn) = oneshot::channel();
        lines.enter(client, sender);
        Asked::Later(Waiting { turns: self.clone(), turn })
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn enter(&mut self, client: u64, sender: oneshot::Sender<Turn>) {
        if self.standing > 2 * self.most_waiting {
            self.sweep();
        }
        self.waiting += 1;
        self.standing += 1;
        let line = self.lines.entry(client).or_default();
        if line.is_empty() {
            self.order.push_back(client);
        }
        line.push_back(sender);
    }

    /// Sends away whoever came last of the client with the longest line, if it is longer than this client's would be.
    fn make_way(&mut self, client: u64) -> bool {
        let longest = self.lines.values().map(VecDeque::len).max();
        let own = self.lines.get(&client).map_or(0, VecDeque::len);
        if longest.is_none_or(|longest| longest <= own + 1) {
            return false;
        }
        self.sweep();
        let own = self.lines.get(&client).map_or(0, VecDeque::len);
        let longest = self.lines.values_mut().max_by_key(|line| line.len());
        let sent_away = longest.filter(|line| line.len() > own + 1).and_then(VecDeque::pop_back).is_some();
        self.standing -= usize::from(sent_away);
        sent_away
    }

    /// Forgets everybody who left.
    fn sweep(&mut self) {
        self.lines.retain(|_, line| {
            line.retain(|sender| !sender.is_closed());
            !line.is_empty()
        });
        self.order.retain(|client| self.lines.contains_key(client));
        self.standing = self.lines.values().map(VecDeque::len).sum();
    }

    /// The first one of the client whose turn it is; that client is the last one then.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let client = self.order.pop_front()?;
        let line = self.lines.get_mut(&client)?;
        let next = line.pop_front();
        self.standing -= 1;
        if line.is_empty() {
            self.lines.remove(&client);
        } else {
            self.order.push_back(client);
        }
        next
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(mut turns) = self.0.take() else { return };
        loop {
            let mut lines = turns.lines();
            let Some(next) = lines.next() else {
                lines.free += 1;
                return;
            };
            drop(lines);
            match next.send(Self(Some(turns))) {
                Ok(()) => return,
                // It left, so the one behind it is asked; not by another drop, for many may have left.
                Err(mut turn) => match turn.0.take() {
                    Some(back) => turns = back,
                    None => return,
                },
            }
        }
    }
}

impl Waiting {
    /// Waits for the turn; `None` if it made way for another client.
    pub(super) async fn turn(&mut self) -> Option<Turn> {
        (&mut self.turn).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.turns.lines().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now(turns: &Turns, client: u64) -> Turn {
        let Asked::Now(turn) = turns.ask(client) else { panic!("no turn at once") };
        turn
    }

    fn later(turns: &Turns, client: u64) -> Waiting {
        let Asked::Later(waiting) = turns.ask(client) else { panic!("not to wait") };
        waiting
    }

    /// Places that are free, and calls that wait.
    fn counts(turns: &Turns) -> (usize, usize) {
        let lines = turns.lines();
        (lines.free, lines.waiting)
    }

    fn has_turn(waiting: &mut Waiting) -> Option<Turn> {
        waiting.turn.try_recv().ok()
    }

    fn was_sent_away(waiting: &mut Waiting) -> bool {
        waiting.turn.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn a_quiet_client_waits_for_one_turn_of_a_noisy_one_and_not_for_all() {
        let turns = Turns::new(1);
        let mut held = now(&turns, 1);
        let mut noisy: Vec<Waiting> = (0..10).map(|_| later(&turns, 1)).collect();
        let mut quiet = later(&turns, 2);
        drop(held);
        held = has_turn(&mut noisy[0]).unwrap();
        assert!(has_turn(&mut quiet).is_none());
        drop(held);
        held = has_turn(&mut quiet).unwrap();
        drop(held);
        for waiting in &mut noisy[1..] {
            assert!(has_turn(waiting).is_some(), "in the order they came");
        }
    }

    #[test]
    fn only_so_many_may_wait_and_who_leaves_makes_room() {
        let turns = Turns::new(2);
        let _held = (now(&turns, 1), now(&turns, 1));
        let mut waiting: Vec<Waiting> =
            (0..2 * WAITING_FOR_EACH).map(|client| later(&turns, client as u64)).collect();
        assert!(matches!(turns.ask(7), Asked::Full));
        waiting.pop();
        drop(later(&turns, 7));
        let _again = later(&turns, 7);
        assert!(matches!(turns.ask(7), Asked::Full));
    }

    #[test]
    fn a_noisy_client_that_fills_the_line_makes_way_for_a_quiet_one() {
        let turns = Turns::new(1);
        let held = now(&turns, 1);
        let mut noisy: Vec<Waiting> = (0..WAITING_FOR_EACH).map(|_| later(&turns, 1)).collect();
        assert!(matches!(turns.ask(1), Asked::Full));
        let mut quiet = later(&turns, 2);
        assert!(was_sent_away(noisy.last_mut().unwrap()));
        assert!(!noisy[..WAITING_FOR_EACH - 1].iter_mut().any(was_sent_away));
        drop(held);
        drop(has_turn(&mut noisy[0]).unwrap());
        assert!(has_turn(&mut quiet).is_some());
    }

    #[test]
    fn those_who_left_are_forgotten_and_skipped() {
        let turns = Turns::new(1);
        let held = now(&turns, 0);
        (0..100_000).for_each(|client| drop(later(&turns, client)));
        let standing = turns.lines().standing;
        assert!(standing <= 2 * WAITING_FOR_EACH + 1, "{standing}");
        let mut last = later(&turns, 1);
        drop(held);
        assert!(has_turn(&mut last).is_some());
        assert_eq!(counts(&turns), (1, 1));
    }

    #[test]
    fn a_turn_that_came_too_late_goes_to_the_next() {
        let turns = Turns::new(1);
        let held = now(&turns, 1);
        let (first, mut second) = (later(&turns, 1), later(&turns, 2));
        drop(held);
        drop(first);
        assert!(has_turn(&mut second).is_some());
    }

    proptest! {
        #[test]
        fn turns_are_neither_lost_nor_made(
            at_a_time in 1..4_usize,
            steps in prop::collection::vec((0..4_u8, 0..4_u64, any::<prop::sample::Index>()), 0..200),
        ) {
            let turns = Turns::new(at_a_time);
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (what, client, which) in steps {
                match what {
                    0 | 1 => match turns.ask(client) {
                        Asked::Now(turn) => held.push(turn),
                        Asked::Later(place) => waiting.push(place),
                        Asked::Full => prop_assert!(waiting.len() >= WAITING_FOR_EACH * at_a_time),
                    },
                    2 if !held.is_empty() => drop(held.swap_remove(which.index(held.len()))),
                    3 if !waiting.is_empty() => drop(waiting.swap_remove(which.index(waiting.len()))),
                    _ => {}
                }
                waiting.retain_mut(|place| match has_turn(place) {
                    Some(turn) => { held.push(turn); false }
                    None => !was_sent_away(place),
                });
                prop_assert!(held.len() <= at_a_time);
                prop_assert!(waiting.is_empty() || held.len() == at_a_time, "somebody waits for a free place");
            }
            drop((held, waiting));
            prop_assert_eq!(counts(&turns), (at_a_time, 0));
        }
    }
}
