//! Threads that serve TCP connections, each with a runtime of its own.
//!
//! Servers are on the main thread, so a call of a connection on another thread wakes both threads. If half of the
//! connections are on the other thread, a call costs 1.3 times the CPU of one on one thread with 16 callers, and 1.2 times with
//! 256, when threads seldom sleep. All connections are therefore on the main thread until tasks wait too long there. Some of
//! them then move to other threads if processors are idle, and return when the load is gone.

mod balance;
mod idle_cpus;
mod movable_connection;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;
use tokio::time::{Instant, interval_at};

use self::balance::{Measurement, Move, ThreadLoad};
use self::idle_cpus::IdleCpus;
pub(super) use self::movable_connection::{ConnectionPlace, MovableStream};
use crate::command_error::CommandError;

/// The thread that runs the servers.
const MAIN: usize = 0;
/// Time between two measurements of the threads.
const INTERVAL: Duration = Duration::from_millis(100);

/// Returns the number of threads that `TOOLCRIB_THREADS` sets; one without it, which handles tens of thousands of calls per
/// second.
pub(crate) fn thread_count() -> Result<usize, CommandError> {
    let Ok(text) = std::env::var("TOOLCRIB_THREADS") else { return Ok(1) };
    text.parse().ok().filter(|threads| (1..=64).contains(threads)).ok_or_else(|| {
        CommandError::usage(format!("invalid `TOOLCRIB_THREADS`: `{text}`"))
            .hint("set it to a number from 1 to 64")
    })
}

/// The threads besides the main one. Dropping it ends them.
#[derive(Debug)]
pub(super) struct ConnectionThreads {
    threads: Arc<Threads>,
    others: Vec<Runtime>,
}

/// The threads that connections can be on.
#[derive(Debug)]
pub(super) struct Threads {
    /// The main thread comes first.
    all: Vec<Thread>,
    /// Index of the thread that gets new connections.
    for_new: AtomicUsize,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// Number of its connections.
    connections: AtomicUsize,
    /// Number of its connections that are to move to `target`.
    moves: AtomicUsize,
    target: AtomicUsize,
}

impl Thread {
    fn new(runtime: Handle) -> Self {
        let [connections, moves, target] = [const { AtomicUsize::new(0) }; 3];
        Self { runtime, connections, moves, target }
    }

    /// Measures the thread; `None` if it has ended.
    async fn measure(&self) -> Option<Measurement> {
        // A new task may run before those that wait. One that yields runs after all that are ready by then.
        let turn = async {
            let start = Instant::now();
            yield_now().await;
            start.elapsed()
        };
        let delay = self.runtime.spawn(turn).await.ok()?;
        let worked = self.runtime.metrics().worker_total_busy_duration(0);
        Some(Measurement { delay, worked, connections: self.connections.load(Ordering::Relaxed) })
    }
}

impl ConnectionThreads {
    /// Starts the threads besides the current one, so that there are `count`.
    pub(super) fn start(count: usize) -> Result<Self, CommandError> {
        let others = (1..count).map(|_| start_runtime()).collect::<io::Result<Vec<_>>>();
        let others = others.map_err(|error| CommandError::unexpected(&error))?;
        let runtimes = others.iter().map(Runtime::handle).cloned();
        let all = std::iter::once(Handle::current()).chain(runtimes).map(Thread::new).collect();
        Ok(Self { threads: Arc::new(Threads { all, for_new: AtomicUsize::new(MAIN) }), others })
    }

    /// Returns the threads if there are others than the main one.
    pub(super) fn several(&self) -> Option<Arc<Threads>> {
        (!self.others.is_empty()).then(|| self.threads.clone())
    }
}

impl Drop for ConnectionThreads {
    fn drop(&mut self) {
        // A blocking operation cannot be cancelled, and the gateway must not wait for it.
        self.others.drain(..).for_each(Runtime::shutdown_background);
    }
}

/// Starts a thread with a runtime. One of kind `current_thread` makes a system call for each of its tasks that another thread
/// wakes; this one does so only if it sleeps.
fn start_runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name("connections").enable_all().build()
}

impl Threads {
    /// Moves connections between the threads by their load, until one of the threads has ended.
    pub(super) async fn balance(self: Arc<Self>) {
        let mut loads: Vec<_> = self.all.iter().map(|_| ThreadLoad::default()).collect();
        let mut idle_cpus = IdleCpus::default();
        let mut last_tick = Instant::now();
        let mut ticks = interval_at(last_tick + INTERVAL, INTERVAL);
        loop {
            ticks.tick().await;
            let elapsed = last_tick.elapsed();
            last_tick += elapsed;
            for (thread, load) in self.all.iter().zip(&mut loads) {
                let Some(measured) = thread.measure().await else { return };
                load.record(&measured, elapsed);
            }
            let idle_cpus = idle_cpus.measure();
            tracing::trace!(?loads, ?idle_cpus, "measured the threads");
            self.for_new.store(balance::pick_thread(&loads, idle_cpus), Ordering::Relaxed);
            // A connection that was not active since the last request need not move.
            self.all.iter().for_each(|thread| thread.moves.store(0, Ordering::Relaxed));
            if let Some(planned) = balance::plan_move(&loads, idle_cpus) {
                tracing::debug!(?planned, "connections move to another thread");
                self.request(&planned);
                loads.iter_mut().for_each(ThreadLoad::forget_samples);
            }
        }
    }

    /// Asks connections to move. Each does so when it is next active.
    fn request(&self, planned: &Move) {
        let thread = &self.all[planned.from];
        thread.target.store(planned.to, Ordering::Relaxed);
        thread.moves.store(planned.connections, Ordering::Release);
    }

    /// Returns the thread that a connection on `from` has to move to, if one is to move.
    fn take_move(&self, from: usize) -> Option<usize> {
        let thread = &self.all[from];
        // One load while nothing has to move.
        if thread.moves.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let take_one = |moves: usize| moves.checked_sub(1);
        thread.moves.fetch_update(Ordering::Acquire, Ordering::Relaxed, take_one).ok()?;
        Some(thread.target.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
