//! Threads that serve connections, each with a runtime of its own.
//!
//! A connection and its calls stay on one thread. On a runtime with several threads, tasks move between them: waking other
//! threads and smaller batches of messages made a call 1.6 times as expensive with two threads as with one. The main
//! thread runs the servers, and serves connections too.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::command_error::CommandError;

/// Returns the number of threads that `TOOLCRIB_THREADS` sets; one without it, which handles tens of thousands of calls per
/// second.
pub(crate) fn thread_count() -> Result<usize, CommandError> {
    let Ok(text) = std::env::var("TOOLCRIB_THREADS") else { return Ok(1) };
    text.parse().ok().filter(|threads| (1..=64).contains(threads)).ok_or_else(|| {
        CommandError::usage(format!("invalid `TOOLCRIB_THREADS`: `{text}`"))
            .hint("set it to a number from 1 to 64")
    })
}

/// The runtimes for connections. Dropping it ends the threads.
#[derive(Debug)]
pub(super) struct ConnectionThreads {
    /// The runtimes besides the one of the main thread.
    others: Vec<Handle>,
    /// Counts the connections.
    next: AtomicUsize,
    _stop: DropGuard,
}

impl ConnectionThreads {
    /// Starts the threads besides the main one, so that there are `count`.
    pub(super) fn start(count: usize) -> Result<Self, CommandError> {
        let stop = CancellationToken::new();
        let others = (1..count).map(|_| start_thread(stop.clone())).collect::<io::Result<_>>();
        let others = others.map_err(|error| CommandError::unexpected(&error))?;
        Ok(Self { others, next: AtomicUsize::new(0), _stop: stop.drop_guard() })
    }

    /// Returns whether there are other threads than the main one.
    pub(super) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns the runtime for the next connection, or `None` for that of the main thread.
    pub(super) fn pick(&self) -> Option<Handle> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % (self.others.len() + 1);
        turn.checked_sub(1).map(|other| self.others[other].clone())
    }
}

/// Starts a thread that runs tasks until `stop` is cancelled.
fn start_thread(stop: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let run = move || {
        runtime.block_on(stop.cancelled());
        // A blocking operation cannot be cancelled, and the thread must not wait for it.
        runtime.shutdown_background();
    };
    thread::Builder::new().name("connections".to_owned()).spawn(run)?;
    Ok(handle)
}
