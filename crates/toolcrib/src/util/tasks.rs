//! Spawning of tasks that are all compiled as one type, and polling of futures that are ready once in the life of a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::locks::IgnorePoison as _;

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

/// A future that is polled only after it was woken, for one that is ready once in the life of a task that is polled often, such as
/// the end of a connection. A poll of a cancellation token takes 160 instructions, and one of this 30.
#[derive(Debug)]
pub struct WokenFuture<F> {
    future: F,
    wakes: Arc<WakeFlag>,
    waker: Waker,
}

/// Remembers that a future was woken, and wakes the task that polls it.
#[derive(Debug)]
struct WakeFlag {
    is_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.task.lock().ignore_poison().wake_by_ref();
    }
}

impl<F: Future + Unpin> WokenFuture<F> {
    /// Wraps a future, which is polled the first time that this one is.
    pub fn new(future: F) -> Self {
        let task = Mutex::new(Waker::noop().clone());
        let wakes = Arc::new(WakeFlag { is_woken: AtomicBool::new(true), task });
        Self { future, waker: Waker::from(wakes.clone()), wakes }
    }
}

impl<F: Future + Unpin> Future for WokenFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, wakes, waker } = &mut *self;
        // Before the flag is read, so that a wake after that reaches this task.
        wakes.task.lock().ignore_poison().clone_from(context.waker());
        match wakes.is_woken.swap(false, Ordering::SeqCst) {
            true => Pin::new(future).poll(&mut Context::from_waker(waker)),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn woken_future_is_polled_only_after_a_wake() {
        let polls = Cell::new(0);
        let inner_waker = Cell::new(Waker::noop().clone());
        let mut future = WokenFuture::new(poll_fn(|context| {
            polls.set(polls.get() + 1);
            inner_waker.set(context.waker().clone());
            if polls.get() < 2 { Poll::Pending } else { Poll::Ready(()) }
        }));
        let tasks = [(); 2].map(|()| Arc::<CountedWakes>::default());
        let wakes = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        let mut poll = |task: usize| {
            Pin::new(&mut future).poll(&mut Context::from_waker(&Waker::from(tasks[task].clone())))
        };
        assert!(poll(0).is_pending() && poll(0).is_pending() && poll(1).is_pending());
        assert_eq!(polls.get(), 1);
        inner_waker.replace(Waker::noop().clone()).wake();
        assert_eq!(wakes(), [0, 1], "the task that polled last is woken");
        assert!(poll(1).is_ready());
    }
}
