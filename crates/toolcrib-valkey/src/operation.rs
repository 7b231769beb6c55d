//! `StoreOperation`: a command on its way to the server, and what is done with its reply.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;
use toolcrib::store::StoreError;

use crate::command::StoreCommand;
use crate::resp::Reply;

/// Receives the reply to an operation.
type ReplyHandler = Box<dyn FnOnce(Result<Reply, StoreError>) + Send>;

/// An operation that is to be sent.
pub(crate) struct StoreOperation {
    pub(crate) command: StoreCommand,
    pub(crate) waiter: ReplyWaiter,
}

impl fmt::Debug for StoreOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOperation").field("command", &self.command).finish_non_exhaustive()
    }
}

/// What waits for the reply to an operation.
pub(crate) struct ReplyWaiter {
    pub(crate) handler: ReplyHandler,
    pub(crate) started: Instant,
    /// The memory of the command, if it is limited.
    memory: Option<QueuedMemory>,
}

/// Bytes of commands that wait for the server. They are given back when this is dropped.
pub(crate) struct QueuedMemory {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl QueuedMemory {
    /// Adds bytes to a total. Returns `None` if it would exceed `max`.
    pub(crate) fn claim(total: &Arc<AtomicUsize>, bytes: usize, max: usize) -> Option<Self> {
        let claim = Self { total: total.clone(), bytes };
        (total.fetch_add(bytes, Ordering::Relaxed) + bytes <= max).then_some(claim)
    }
}

impl Drop for QueuedMemory {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl StoreOperation {
    pub(crate) fn new(
        command: StoreCommand,
        handler: impl FnOnce(Result<Reply, StoreError>) + Send + 'static,
    ) -> Self {
        let waiter = ReplyWaiter { handler: Box::new(handler), started: Instant::now(), memory: None };
        Self { command, waiter }
    }

    /// Keeps a claim until the reply has arrived.
    pub(crate) fn with_memory(mut self, memory: QueuedMemory) -> Self {
        self.waiter.memory = Some(memory);
        self
    }
}
