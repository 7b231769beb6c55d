//! Spawning of tasks that are all compiled as one type.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// Spawns tasks as boxed futures.
///
/// tokio compiles its task code, twice about 3.5 KB, for each type of future that is spawned. With boxed futures there is one
/// type, which makes the program 0.5 MB smaller, for one more allocation per task.
pub trait SpawnBoxed {
    /// Spawns a task that the tracker waits for.
    fn spawn_boxed<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static)
    -> JoinHandle<T>;
}

impl SpawnBoxed for TaskTracker {
    fn spawn_boxed<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let task: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(task);
        self.spawn(task)
    }
}
