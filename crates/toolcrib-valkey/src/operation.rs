//! `StoreOperation`: a command on its way to the server, and what is done with its reply.

use std::fmt;

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
}

impl StoreOperation {
    pub(crate) fn new(
        command: StoreCommand,
        handler: impl FnOnce(Result<Reply, StoreError>) + Send + 'static,
    ) -> Self {
        Self { command, waiter: ReplyWaiter { handler: Box::new(handler), started: Instant::now() } }
    }
}
