//! The seam between a [`Mux`](super::mux::Mux) and what carries its messages: stdio pipes, HTTP, or an in-process
//! pipe.

#[cfg(feature = "http")]
pub(crate) mod http;
#[cfg(not(feature = "http"))]
pub(super) mod http_disabled;
pub(crate) mod in_process;
pub(super) mod input_pipe;
pub(super) mod output_pipe;
pub(super) mod stdio;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::exit_report::ExitReport;

#[cfg(not(feature = "http"))]
pub(super) use self::http_disabled as http;
pub(super) use super::mux::link::{OutgoingQueue, TransportLink};

/// The run loop of a transport, allocated once per connection.
pub(super) type TransportFuture = Pin<Box<dyn Future<Output = ExitReport> + Send>>;

/// Carries the messages of one connection.
///
/// A transport reports facts; the mux decides what they mean for the callers. The contract:
///
/// - **Sending.** The transport takes messages from `outgoing` and sends each at most once. A message that it has
///   taken counts as maybe sent, until it reports otherwise with [`TransportLink::report_written`] or
///   [`TransportLink::mark_not_sent`]. Messages that are still queued when `outgoing` is dropped were not sent. With
///   [`TransportLink::set_direct_input`], the mux writes the only request in flight itself while nothing is queued.
/// - **Receiving.** Every message from the server goes to [`TransportLink::receive`].
/// - **One request fails.** If the connection goes on, the transport ends that request with
///   [`TransportLink::finish_request`].
/// - **Closing.** After [`TransportLink::close_requested`] the transport sends nothing more and closes the server's
///   input; it may still receive. After [`TransportLink::disconnected`] it stops both directions.
/// - **End.** The future completes when the server is gone, with a report of how it ended. All requests that are
///   still pending then fail with this report.
pub(super) trait Transport: Send + 'static {
    /// Runs the connection until it ends.
    fn run(self: Box<Self>, link: TransportLink, outgoing: OutgoingQueue) -> TransportFuture;
}

/// Maximum size of a message from the server, in bytes. Clones share it, so that it can change while a connection is open.
#[derive(Debug, Clone)]
pub(super) struct MessageLimit(Arc<AtomicUsize>);

impl MessageLimit {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

/// A message waiting to be sent, and the id of the request it belongs to.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    /// The request that the message is, or that it cancels.
    pub(super) id: Option<u64>,
    /// The JSON text and a line end.
    pub(super) line: Vec<u8>,
}
