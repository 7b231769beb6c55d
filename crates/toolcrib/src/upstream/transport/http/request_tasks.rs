//! The tasks of requests that are on their way.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// The tasks of one connection. A task that ends wakes nothing else.
#[derive(Debug, Default)]
pub(super) struct RequestTasks {
    tasks: TaskTracker,
    by_request: Arc<Mutex<HashMap<u64, JoinHandle<()>>>>,
    /// Ends the tasks that are not in the map.
    shutdown: CancellationToken,
}

/// Removes a request when its task ends, is aborted or panics.
#[derive(Debug)]
struct RemoveOnDrop {
    by_request: Arc<Mutex<HashMap<u64, JoinHandle<()>>>>,
    request: u64,
}

/// A guard that a task holds until it ends.
#[derive(Debug)]
pub(super) struct RequestTaskGuard {
    /// Absent if the task cannot be aborted.
    _removed: Option<RemoveOnDrop>,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        self.by_request.lock().ignore_poison().remove(&self.request);
    }
}

impl RequestTasks {
    /// Starts the task that `task` returns, which can be aborted by the number of its request if it has one. The task holds
    /// its guard itself: one around it would be a second future of its size, of 3 KB, to which it is copied.
    pub(super) fn spawn<F>(&self, request: Option<u64>, task: impl FnOnce(RequestTaskGuard) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(request) = request else {
            let task = task(RequestTaskGuard { _removed: None });
            self.tasks.spawn_boxed(self.shutdown.clone().run_until_cancelled_owned(task));
            return;
        };
        let removed = RemoveOnDrop { by_request: self.by_request.clone(), request };
        // Held until the task is in the map: on another thread, it may end before.
        let mut by_request = self.by_request.lock().ignore_poison();
        let handle = self.tasks.spawn_boxed(task(RequestTaskGuard { _removed: Some(removed) }));
        by_request.insert(request, handle);
    }

    /// Aborts the task of a request.
    pub(super) fn abort(&self, request: u64) {
        if let Some(task) = self.by_request.lock().ignore_poison().get(&request) {
            task.abort();
        }
    }

    /// Aborts all tasks and waits until they have ended.
    pub(super) async fn shut_down(self) {
        self.shutdown.cancel();
        self.by_request.lock().ignore_poison().values().for_each(JoinHandle::abort);
        self.tasks.close();
        self.tasks.wait().await;
    }
}
