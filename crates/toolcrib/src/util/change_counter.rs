//! `ChangeCounter`: changes that one task works off, and how many of them it has.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

/// Counts changes, and which of them have taken effect. One task waits for changes and applies them.
#[derive(Debug, Default)]
pub(crate) struct ChangeCounter {
    reported: AtomicU64,
    applied: watch::Sender<u64>,
    notify: Notify,
}

impl ChangeCounter {
    /// Reports a change.
    pub(crate) fn report(&self) {
        self.reported.fetch_add(1, Ordering::Release);
        self.notify.notify_one();
    }

    /// Waits for a change and returns the number of changes so far, for [`ChangeCounter::mark_applied`].
    pub(crate) async fn next(&self) -> u64 {
        self.notify.notified().await;
        self.reported.load(Ordering::Acquire)
    }

    /// Records that the first `count` changes have taken effect.
    pub(crate) fn mark_applied(&self, count: u64) {
        self.applied.send_replace(count);
    }

    /// Returns whether all changes have taken effect.
    pub(crate) fn is_applied(&self) -> bool {
        *self.applied.borrow() >= self.reported.load(Ordering::Acquire)
    }

    /// Waits until all changes that were reported before have taken effect.
    pub(crate) async fn wait_until_applied(&self) {
        let count = self.reported.load(Ordering::Acquire);
        // `self` holds the sender, so this cannot fail.
        let _ = self.applied.subscribe().wait_for(|applied| *applied >= count).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

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
            let count = changes.next().await;
            changes.report();
            yield_now().await;
            changes.mark_applied(count);
        };
        tokio::join!(changes.wait_until_applied(), apply);
        assert!(!changes.is_applied(), "one more was reported meanwhile");
        let count = changes.next().await;
        changes.mark_applied(count);
        assert!(changes.is_applied());
    }
}
