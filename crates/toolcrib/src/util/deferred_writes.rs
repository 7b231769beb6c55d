//! Files about servers that are written a moment later, so that the requests that caused them need not share the processors and the
//! disk with them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::locks::IgnorePoison as _;
use super::panics;
use super::tasks::SpawnBoxed as _;

/// Time between the first write that is added and the moment at which all of them are made.
const DELAY: Duration = Duration::from_millis(100);

/// Writes one file.
type Write = Box<dyn FnOnce() + Send>;

/// Writes that have not been made, by server. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct DeferredWrites(Arc<WriteQueue>);

#[derive(Default)]
struct WriteQueue {
    waiting: Mutex<WaitingWrites>,
    /// Held while writes are made, so that they do not overtake each other.
    writing: AsyncMutex<()>,
}

#[derive(Default)]
struct WaitingWrites {
    by_server: BTreeMap<Box<str>, ServerWrites>,
    /// True while a task will make them.
    have_task: bool,
}

/// Writes of one server, in order. They are made when this is dropped.
#[derive(Default)]
struct ServerWrites(Vec<Write>);

impl Drop for ServerWrites {
    fn drop(&mut self) {
        for write in self.0.drain(..) {
            panics::contain("write of a file", write);
        }
    }
}

impl DeferredWrites {
    /// Adds a write, which a task of `tasks` makes after those of this server that were added before; at once when `stop` is
    /// cancelled.
    pub(crate) fn add(
        &self,
        server: &str,
        write: impl FnOnce() + Send + 'static,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let mut waiting = self.0.waiting.lock().ignore_poison();
        waiting.by_server.entry(server.into()).or_default().0.push(Box::new(write));
        if !std::mem::replace(&mut waiting.have_task, true) {
            drop(waiting);
            let queue = self.0.clone();
            let mut task = WriteTask { queue: self.0.clone(), has_begun: false };
            let stop = stop.clone();
            tasks.spawn_boxed(async move {
                stop.run_until_cancelled(sleep(DELAY)).await;
                let turn = queue.writing.lock().await;
                task.begin();
                queue.write_waiting(turn).await;
            });
        }
    }

    /// Makes the writes that were added before, now.
    pub(crate) async fn flush(&self) {
        let turn = self.0.writing.lock().await;
        self.0.write_waiting(turn).await;
    }
}

impl fmt::Debug for DeferredWrites {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.0.waiting.lock().ignore_poison().by_server.len();
        formatter.debug_struct("DeferredWrites").field("servers", &servers).finish()
    }
}

impl WriteQueue {
    /// Makes the waiting writes, servers in parallel.
    async fn write_waiting(&self, _turn: MutexGuard<'_, ()>) {
        let mut servers: JoinSet<()> = JoinSet::new();
        for writes in self.take_waiting().into_values() {
            servers.spawn_blocking(|| drop(writes));
        }
        servers.join_all().await;
    }

    /// Takes the waiting writes. Those that are added later need another task.
    fn take_waiting(&self) -> BTreeMap<Box<str>, ServerWrites> {
        std::mem::take(&mut *self.waiting.lock().ignore_poison()).by_server
    }
}

/// A task that makes the writes. If it is dropped before it begins, because its runtime ends, they are made by the drop.
struct WriteTask {
    queue: Arc<WriteQueue>,
    /// True once it makes the writes that waited.
    has_begun: bool,
}

impl WriteTask {
    fn begin(&mut self) {
        self.has_begun = true;
    }
}

impl Drop for WriteTask {
    fn drop(&mut self) {
        if !self.has_begun {
            drop(self.queue.take_waiting());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    type Record = Arc<Mutex<Vec<u32>>>;

    /// Adds three writes of a server that record their numbers.
    fn add_numbered(writes: &DeferredWrites, tasks: &TaskTracker, stop: &CancellationToken) -> Record {
        let made = Record::default();
        for number in 0..3 {
            let made = made.clone();
            let write = move || made.lock().ignore_poison().push(number);
            writes.add("a", write, tasks, stop);
        }
        made
    }

    fn numbers(made: &Record) -> Vec<u32> {
        made.lock().ignore_poison().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_a_server_are_made_in_order_after_a_delay() {
        let writes = DeferredWrites::default();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let start = Instant::now();
        let made = add_numbered(&writes, &tasks, &stop);
        assert!(numbers(&made).is_empty());
        tasks.close();
        tasks.wait().await;
        assert_eq!(numbers(&made), [0, 1, 2]);
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
        assert_eq!((numbers(&before), numbers(&after)), (vec![0, 1, 2], vec![0, 1, 2]));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn later_writes_wait_for_those_that_are_being_made() {
        let writes = DeferredWrites::default();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        stop.cancel();
        let (release, released) = std::sync::mpsc::channel();
        let made = Record::default();
        let first = made.clone();
        let block = move || {
            released.recv().unwrap();
            first.lock().ignore_poison().push(1);
        };
        writes.add("a", block, &tasks, &stop);
        tokio::task::yield_now().await;
        let second = made.clone();
        writes.add("a", move || second.lock().ignore_poison().push(2), &tasks, &stop);
        release.send(()).unwrap();
        tasks.close();
        tasks.wait().await;
        assert_eq!(numbers(&made), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn flush_makes_writes_before_their_time() {
        let writes = DeferredWrites::default();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let start = Instant::now();
        let made = add_numbered(&writes, &tasks, &stop);
        writes.flush().await;
        assert_eq!(numbers(&made), [0, 1, 2]);
        let later = add_numbered(&writes, &tasks, &stop);
        tasks.close();
        tasks.wait().await;
        assert_eq!((numbers(&made), numbers(&later)), (vec![0, 1, 2], vec![0, 1, 2]));
        assert_eq!(start.elapsed(), DELAY);
    }

    #[test]
    fn writes_are_made_when_the_runtime_ends_or_one_of_them_panics() {
        let writes = DeferredWrites::default();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let made = runtime.block_on(async {
                writes.add("a", || panic!("on purpose"), &tasks, &stop);
                add_numbered(&writes, &tasks, &stop)
            });
            drop(runtime);
            assert_eq!(numbers(&made), [0, 1, 2]);
        }
    }
}
