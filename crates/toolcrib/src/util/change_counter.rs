//! `ChangeCounter`: changes that one task works off, and how many of them it has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

/// The longest time that a deferred change waits for others.
const MAX_DEFERRAL: Duration = Duration::from_millis(10);

/// Counts changes, and which of them have taken effect. One task waits for changes and applies them.
#[derive(Debug, Default)]
pub(crate) struct ChangeCounter {
    reported: AtomicU64,
    applied: watch::Sender<u64>,
    /// Notified when changes have to be applied now.
    due: Notify,
    /// Notified when a change may wait for others.
    deferred: Notify,
}

impl ChangeCounter {
    /// Reports a change.
    pub(crate) fn report(&self) {
        self.reported.fetch_add(1, Ordering::Release);
        self.due.notify_one();
    }

    /// Reports a change that may be applied together with those that follow within 10 ms; see [`ChangeCounter::next`].
    pub(crate) fn report_deferred(&self) {
        self.reported.fetch_add(1, Ordering::Release);
        self.deferred.notify_one();
    }

    /// Waits for a change and returns the number of changes so far, for [`ChangeCounter::mark_applied`]. A deferred change is
    /// returned later, unless it is awaited, if `expects_more` returns true.
    pub(crate) async fn next(&self, expects_more: impl Fn() -> bool) -> u64 {
        loop {
            let deferral_over = async {
                self.deferred.notified().await;
                if expects_more() {
                    sleep(MAX_DEFERRAL).await;
                }
            };
            tokio::select! {
                () = self.due.notified() => {}
                () = deferral_over => {}
            }
            // What was deferred may have been applied with another change.
            if !self.is_applied() {
                return self.reported();
            }
        }
    }

    /// Returns the number of changes so far.
    pub(crate) fn reported(&self) -> u64 {
        self.reported.load(Ordering::Acquire)
    }

    /// Records that the first `count` changes have taken effect.
    pub(crate) fn mark_applied(&self, count: u64) {
        self.applied.send_if_modified(|applied| {
            let is_later = *applied < count;
            *applied = count.max(*applied);
            is_later
        });
    }

    /// Returns whether all changes have taken effect.
    pub(crate) fn is_applied(&self) -> bool {
        *self.applied.borrow() >= self.reported()
    }

    /// Ends the deferral of changes that were reported before.
    pub(crate) fn apply_now(&self) {
        if !self.is_applied() {
            self.due.notify_one();
        }
    }

    /// Waits until all changes that were reported before have taken effect.
    pub(crate) async fn wait_until_applied(&self) {
        let count = self.reported();
        self.apply_now();
        // `self` holds the sender, so this cannot fail.
        let _ = self.applied.subscribe().wait_for(|applied| *applied >= count).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn waits_for_changes_until_they_are_applied() {
        let changes = ChangeCounter::default();
        assert!(changes.is_applied());
        changes.wait_until_applied().await;
        changes.report();
        changes.report();
        assert!(!changes.is_applied());
        let apply = async {
            let count = changes.next(|| true).await;
            changes.report();
            yield_now().await;
            changes.mark_applied(count);
        };
        tokio::join!(changes.wait_until_applied(), apply);
        assert!(!changes.is_applied(), "one more was reported meanwhile");
        let count = changes.next(|| true).await;
        changes.mark_applied(count);
        assert!(changes.is_applied());
    }

    #[tokio::test(start_paused = true)]
    async fn deferred_changes_are_applied_together() {
        let changes = ChangeCounter::default();
        let start = Instant::now();
        changes.report_deferred();
        changes.report_deferred();
        assert_eq!(changes.next(|| true).await, 2);
        assert_eq!(start.elapsed(), MAX_DEFERRAL);
        changes.mark_applied(2);

        changes.report_deferred();
        let start = Instant::now();
        let apply = async {
            let count = changes.next(|| true).await;
            changes.mark_applied(count);
        };
        tokio::join!(apply, changes.wait_until_applied());
        assert_eq!(start.elapsed(), Duration::ZERO, "it is awaited");
        changes.report_deferred();
        changes.report();
        assert_eq!(changes.next(|| true).await, 5);
        assert_eq!(start.elapsed(), Duration::ZERO, "the other change is not deferred");
        changes.mark_applied(5);
        changes.report_deferred();
        assert_eq!(changes.next(|| false).await, 6);
        assert_eq!(start.elapsed(), Duration::ZERO, "no other change is expected");
    }
}
