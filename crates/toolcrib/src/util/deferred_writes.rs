//! Files that are written a moment later, one after the other, so that the requests that caused them need not share the
//! processors and the disk with them.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::locks::IgnorePoison as _;
use super::tasks::SpawnBoxed as _;

/// Time between the first write that is added and the moment at which all of them are made.
const DELAY: Duration = Duration::from_millis(100);

/// Writes one file.
pub(crate) type Write = Box<dyn FnOnce() + Send>;

/// Writes that have not been made. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct DeferredWrites {
    queue: Arc<Mutex<Vec<Write>>>,
}

impl DeferredWrites {
    /// Adds a write, which a task of `tasks` makes after those that were added before; at once when `stop` is cancelled.
    pub(crate) fn add(&self, write: Write, tasks: &TaskTracker, stop: &CancellationToken) {
        let mut queue = self.queue.lock().ignore_poison();
        queue.push(write);
        if queue.len() > 1 {
            return;
        }
        drop(queue);
        let queue = self.queue.clone();
        let stop = stop.clone();
        tasks.spawn_boxed(async move {
            stop.run_until_cancelled(sleep(DELAY)).await;
            let writes = std::mem::take(&mut *queue.lock().ignore_poison());
            // Fails only when the runtime shuts down.
            let _ = spawn_blocking(|| writes.into_iter().for_each(|write| write())).await;
        });
    }
}

impl fmt::Debug for DeferredWrites {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.queue.lock().ignore_poison().len();
        formatter.debug_struct("DeferredWrites").field("count", &count).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Adds writes that record their numbers, and returns the record.
    fn add_numbered(
        writes: &DeferredWrites,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Mutex<Vec<u32>>> {
        let made = Arc::new(Mutex::new(Vec::new()));
        for number in 0..3 {
            let made = made.clone();
            writes.add(Box::new(move || made.lock().ignore_poison().push(number)), tasks, stop);
        }
        made
    }

    #[tokio::test(start_paused = true)]
    async fn writes_are_made_in_order_after_a_delay() {
        let writes = DeferredWrites::default();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let start = Instant::now();
        let made = add_numbered(&writes, &tasks, &stop);
        assert!(made.lock().ignore_poison().is_empty());
        tasks.close();
        tasks.wait().await;
        assert_eq!(*made.lock().ignore_poison(), [0, 1, 2]);
        assert_eq!(start.elapsed(), DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn writes_are_made_at_once_when_the_crib_stops() {
        let writes = DeferredWrites::default();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let start = Instant::now();
        let before = add_numbered(&writes, &tasks, &stop);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        let after = add_numbered(&writes, &tasks, &stop);
        tasks.wait().await;
        for made in [before, after] {
            assert_eq!(*made.lock().ignore_poison(), [0, 1, 2]);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
