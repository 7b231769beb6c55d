//! Counts the leases of one running server, and lets callers lease it without asking its actor.
//!
//! The actor opens the gate while the server is ready and closes it for every other state, so it stays the only one that
//! decides. While the gate is open, taking and releasing a lease are a few atomic operations. While it is closed, leases
//! are requested from the actor, and every release is reported to it. A failed call holds the gate closed until the actor
//! has seen it, so that no call passes a breaker that is about to open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Set while callers may not take leases by themselves.
const CLOSED: u64 = 1 << 63;
/// Set while the actor waits for the release of the last lease.
const IDLE_NOTICE: u64 = 1 << 62;
/// One failed call that the actor has not seen yet.
const UNSEEN_FAILURE: u64 = 1 << 32;
/// The bits that count failed calls that the actor has not seen yet.
const UNSEEN_FAILURES: u64 = IDLE_NOTICE - UNSEEN_FAILURE;
/// The bits that count leases.
const COUNT: u64 = UNSEEN_FAILURE - 1;

/// The leases of one running server.
#[derive(Debug)]
pub(super) struct LeaseGate {
    /// The number of leases, the number of unseen failures, and the two flags.
    state: AtomicU64,
    opened_first: Instant,
    /// Time of the last release, in nanoseconds since `opened_first`, plus one; 0 before the first release.
    last_release: AtomicU64,
    /// Total time the machine had been suspended when the actor last checked, in milliseconds.
    suspended_before: AtomicU64,
}

/// The effect of a released lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Release {
    /// True if no lease is left.
    pub(super) is_last: bool,
    /// True if the actor must be told.
    pub(super) needs_notice: bool,
}

impl LeaseGate {
    /// Creates a closed gate without leases.
    pub(super) fn new(now: Instant, suspended: Duration) -> Self {
        Self {
            state: AtomicU64::new(CLOSED),
            opened_first: now,
            last_release: AtomicU64::new(0),
            suspended_before: AtomicU64::new(to_millis(suspended)),
        }
    }

    /// Counts the time that a server is idle from `now` if it was never used.
    pub(super) fn mark_used(&self, now: Instant) {
        let first_release = self.release_time(now);
        // Fails if there was a release, which counts.
        let _ = self.last_release.compare_exchange(0, first_release, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn release_time(&self, now: Instant) -> u64 {
        let nanos = now.saturating_duration_since(self.opened_first).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Takes a lease if the gate is open.
    pub(super) fn try_enter(&self) -> bool {
        let enter = |state: u64| (state & (CLOSED | UNSEEN_FAILURES) == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).is_ok()
    }

    /// Takes a lease that the actor grants, also while the gate is closed.
    pub(super) fn enter(&self) {
        self.state.fetch_add(1, Ordering::SeqCst);
    }

    /// Releases a lease at `now`. After a failed call, [`failure_seen`](Self::failure_seen) must follow.
    pub(super) fn leave(&self, now: Instant, has_failed: bool) -> Release {
        // Before the count changes, so that an idle server shows the time of its last release. If that is overtaken here by an
        // earlier one, the time is wrong by as long as that takes.
        let released = self.release_time(now);
        if released > self.last_release.load(Ordering::Relaxed) {
            self.last_release.store(released, Ordering::Release);
        }
        let before = match has_failed {
            true => self.state.fetch_add(UNSEEN_FAILURE - 1, Ordering::SeqCst),
            false => self.state.fetch_sub(1, Ordering::SeqCst),
        };
        let is_last = before & COUNT == 1;
        let is_awaited = is_last && before & IDLE_NOTICE != 0;
        // The actor counts failures and successes in the order in which they are reported.
        let is_not_open = before & (CLOSED | UNSEEN_FAILURES) != 0;
        Release { is_last, needs_notice: has_failed || is_awaited || is_not_open }
    }

    /// Records that the actor has seen a failed call.
    pub(super) fn failure_seen(&self) {
        self.state.fetch_sub(UNSEEN_FAILURE, Ordering::SeqCst);
    }

    /// Returns the number of leases.
    pub(super) fn leases(&self) -> usize {
        usize::try_from(self.state.load(Ordering::SeqCst) & COUNT).unwrap_or(usize::MAX)
    }

    /// Lets callers take leases by themselves, or not.
    pub(super) fn set_open(&self, is_open: bool) {
        match is_open {
            true => self.state.fetch_and(!CLOSED, Ordering::SeqCst),
            false => self.state.fetch_or(CLOSED, Ordering::SeqCst),
        };
    }

    /// Closes the gate if there are no leases, and returns whether there are none.
    pub(super) fn close_if_idle(&self) -> bool {
        let close = |state: u64| (state & COUNT == 0).then_some(state | CLOSED);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, close).is_ok()
    }

    /// Makes the next release of a last lease be reported to the actor. Returns false if there is no lease to wait for.
    pub(super) fn request_idle_notice(&self) -> bool {
        self.state.fetch_or(IDLE_NOTICE, Ordering::SeqCst);
        self.leases() > 0
    }

    /// Withdraws the request for a notice.
    pub(super) fn clear_idle_notice(&self) {
        self.state.fetch_and(!IDLE_NOTICE, Ordering::SeqCst);
    }

    /// Returns whether the actor waits for the release of the last lease.
    pub(super) fn has_idle_notice(&self) -> bool {
        self.state.load(Ordering::SeqCst) & IDLE_NOTICE != 0
    }

    /// Returns the time of the last release; `None` before the first.
    pub(super) fn last_release(&self) -> Option<Instant> {
        let nanos = self.last_release.load(Ordering::SeqCst).checked_sub(1)?;
        Some(self.opened_first + Duration::from_nanos(nanos))
    }

    /// Returns the total time the machine had been suspended when the actor last checked.
    pub(super) fn suspended_before(&self) -> Duration {
        Duration::from_millis(self.suspended_before.load(Ordering::Relaxed))
    }

    /// Records the total time the machine has been suspended.
    pub(super) fn set_suspended_before(&self, suspended: Duration) {
        self.suspended_before.store(to_millis(suspended), Ordering::Relaxed);
    }
}

fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn gate() -> LeaseGate {
        LeaseGate::new(Instant::now(), Duration::ZERO)
    }

    #[test]
    fn closed_gate_lets_only_the_actor_enter() {
        let gate = gate();
        assert!(!gate.try_enter());
        gate.enter();
        assert_eq!(gate.leases(), 1);
        assert_eq!(gate.leave(Instant::now(), false), Release { is_last: true, needs_notice: true });
        gate.set_open(true);
        assert!(gate.try_enter() && gate.try_enter());
        assert_eq!(gate.leave(Instant::now(), false), Release { is_last: false, needs_notice: false });
        assert_eq!(gate.leave(Instant::now(), false), Release { is_last: true, needs_notice: false });
    }

    #[test]
    fn gate_in_use_is_not_closed_as_idle() {
        let gate = gate();
        gate.set_open(true);
        assert!(gate.try_enter());
        assert!(!gate.close_if_idle() && gate.try_enter());
        gate.leave(Instant::now(), false);
        gate.leave(Instant::now(), false);
        assert!(gate.close_if_idle() && !gate.try_enter());
    }

    #[test]
    fn notice_is_due_for_the_last_release_only() {
        let gate = gate();
        gate.set_open(true);
        assert!(!gate.request_idle_notice(), "there is no lease");
        assert!(gate.try_enter() && gate.try_enter() && gate.request_idle_notice());
        assert!(!gate.leave(Instant::now(), false).needs_notice);
        assert!(gate.leave(Instant::now(), false).needs_notice);
        gate.clear_idle_notice();
        assert!(gate.try_enter() && !gate.leave(Instant::now(), false).needs_notice);
    }

    #[test]
    fn failed_call_keeps_the_gate_closed_until_it_is_seen() {
        let gate = gate();
        gate.set_open(true);
        assert!(gate.try_enter() && gate.try_enter());
        assert_eq!(gate.leave(Instant::now(), true), Release { is_last: false, needs_notice: true });
        assert!(!gate.try_enter() && gate.leases() == 1);
        assert!(gate.leave(Instant::now(), false).needs_notice, "a success after an unseen failure");
        gate.failure_seen();
        assert!(gate.try_enter() && gate.leases() == 1);
    }

    #[test]
    fn last_release_is_the_latest() {
        let gate = gate();
        assert_eq!(gate.last_release(), None);
        let now = Instant::now();
        gate.enter();
        gate.enter();
        gate.leave(now + Duration::from_secs(2), false);
        gate.leave(now + Duration::from_secs(1), false);
        let last = gate.last_release().unwrap();
        assert!(last >= now + Duration::from_secs(2) && last < now + Duration::from_secs(3));
    }

    /// No caller is inside once the gate has closed as idle: each was counted before, or is refused.
    #[test]
    fn caller_is_never_inside_a_gate_that_closed_as_idle() {
        for _ in 0..200 {
            let gate = Arc::new(gate());
            let is_closed = Arc::new(AtomicBool::new(false));
            gate.set_open(true);
            let callers: Vec<_> = (0..2)
                .map(|_| {
                    let gate = gate.clone();
                    let is_closed = is_closed.clone();
                    std::thread::spawn(move || {
                        while gate.try_enter() {
                            assert!(!is_closed.load(Ordering::SeqCst), "entered a closed gate");
                            gate.leave(Instant::now(), false);
                        }
                    })
                })
                .collect();
            while !gate.close_if_idle() {
                std::hint::spin_loop();
            }
            is_closed.store(true, Ordering::SeqCst);
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            assert_eq!(gate.leases(), 0);
        }
    }
}
