//! The response to one request, as a future.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::super::pending::{Activity, RequestEnd};
use super::super::transport::Exchange;
use super::MuxInner;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::Delivery;
use crate::protocol::jsonrpc::ResponsePayload;

/// The response to one request. Dropping it early removes the request and cancels it at the server.
pub(in crate::upstream) struct PendingReply {
    inner: Arc<MuxInner>,
    id: u64,
    receiver: oneshot::Receiver<RequestEnd>,
    /// Sends the request and receives its response; `None` if the transport does that, or the exchange has ended.
    pub(super) exchange: Option<Exchange>,
    cancel_on_drop: bool,
    /// Set when the request has ended. It is no longer in the table.
    has_ended: bool,
}

impl PendingReply {
    pub(super) fn new(inner: Arc<MuxInner>, id: u64, receiver: oneshot::Receiver<RequestEnd>) -> Self {
        Self { inner, id, receiver, exchange: None, cancel_on_drop: true, has_ended: false }
    }

    /// Returns the request's id.
    pub(in crate::upstream) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the newest sign of life of the request.
    pub(in crate::upstream) fn last_activity(&self) -> Option<Activity> {
        self.inner.pending().last_activity(self.id)
    }

    /// Does not cancel the request on drop; the protocol does not allow that for every request.
    pub(in crate::upstream) fn without_cancellation(mut self) -> Self {
        self.cancel_on_drop = false;
        self
    }

    /// Drives the exchange, if there is one. One that panics ends without a response, as it does in a task of its own.
    fn poll_exchange(&mut self, context: &mut Context<'_>) {
        let Some(exchange) = &mut self.exchange else { return };
        let polled = catch_unwind(AssertUnwindSafe(|| exchange.as_mut().poll(context)));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.exchange = None;
        }
    }
}

impl fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReply").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Future for PendingReply {
    type Output = Result<ResponsePayload, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_exchange(context);
        let end = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.has_ended = true;
        Poll::Ready(match end {
            Ok(RequestEnd::Answered(response)) => Ok(response),
            Ok(RequestEnd::BadReply(reason)) => {
                let server = &self.inner.server;
                Err(Error::new(ErrorKind::BadReply, format!("`{server}` sent a bad response: {reason}"))
                    .with_server(server))
            }
            Ok(RequestEnd::Failed(error)) => Err(error),
            Ok(RequestEnd::Lost(delivery)) => Err(self.inner.exit_error(delivery)),
            Err(_) => Err(self.inner.exit_error(Delivery::MaybeSent)),
        })
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // The stateless era has no other way to cancel a request.
        self.exchange = None;
        let request = self.inner.pending().cancel(self.id);
        if let Some(request) = request.filter(|_| self.cancel_on_drop) {
            self.inner.send_cancelled(self.id, request.cancel_reason().as_deref());
            let ping = self.inner.add_ping_after_cancellation(&mut self.inner.pending());
            self.inner.send_ping(ping);
        }
    }
}
