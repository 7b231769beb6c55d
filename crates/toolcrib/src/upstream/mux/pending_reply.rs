//! The response to one request, as a future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::sync::oneshot::{self, error::RecvError};

use super::super::pending::{Activity, RequestEnd};
use super::MuxInner;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::Delivery;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::upstream::transport::Exchange;

/// The response to one request. Dropping it early removes the request and cancels it at the server.
pub(in crate::upstream) struct PendingReply {
    inner: Arc<MuxInner>,
    id: u64,
    receiver: oneshot::Receiver<RequestEnd>,
    /// Sends the request and reads its response, if no other task does that.
    exchange: Option<Exchange>,
    cancel_on_drop: bool,
    /// Set when the request has ended. It is no longer in the table.
    has_ended: bool,
}

impl fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReply").field("id", &self.id).finish_non_exhaustive()
    }
}

impl PendingReply {
    pub(super) fn new(inner: Arc<MuxInner>, id: u64, receiver: oneshot::Receiver<RequestEnd>) -> Self {
        Self { inner, id, receiver, exchange: None, cancel_on_drop: true, has_ended: false }
    }

    /// Sets what sends the request while the reply is awaited.
    pub(super) fn set_exchange(&mut self, exchange: Exchange) {
        self.exchange = Some(exchange);
    }

    /// Sends the request and reads its response as far as possible. Returns the end of the request if it ended before that.
    fn poll_exchange(&mut self, context: &mut Context<'_>) -> Option<Result<RequestEnd, RecvError>> {
        let exchange = self.exchange.as_mut()?;
        // Without a waker, the task is not woken for the reply that it reads itself.
        let mut quiet = Context::from_waker(Waker::noop());
        if let Poll::Ready(end) = Pin::new(&mut self.receiver).poll(&mut quiet) {
            return Some(end);
        }
        if exchange.as_mut().poll(context).is_ready() {
            self.exchange = None;
        }
        None
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
}

impl Future for PendingReply {
    type Output = Result<ResponsePayload, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let end = match self.poll_exchange(context) {
            Some(end) => end,
            None => ready!(Pin::new(&mut self.receiver).poll(context)),
        };
        self.has_ended = true;
        if let Some(exchange) = self.exchange.take() {
            // The response goes on after the reply. Reading it to its end lets its connection be used again.
            self.inner.tasks.spawn(exchange);
        }
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
        let request = self.inner.pending().cancel(self.id);
        if let Some(request) = request.filter(|_| self.cancel_on_drop) {
            self.inner.send_cancelled(self.id, request.cancel_reason().as_deref());
            let ping = self.inner.add_ping_after_cancellation(&mut self.inner.pending());
            self.inner.send_ping(ping);
        }
    }
}
