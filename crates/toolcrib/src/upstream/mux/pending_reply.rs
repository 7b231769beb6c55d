//! The response to one request, as a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::pending::{Activity, RequestEnd};
use super::MuxInner;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::Delivery;
use crate::protocol::jsonrpc::ResponsePayload;

/// The response to one request. Dropping it early removes the request and cancels it at the server.
#[derive(Debug)]
pub(in crate::upstream) struct PendingReply {
    inner: Arc<MuxInner>,
    id: u64,
    receiver: oneshot::Receiver<RequestEnd>,
    cancel_on_drop: bool,
    /// Set when the request is no longer in the table, so that it need not be cancelled.
    has_ended: bool,
    /// The deadline of a request that has timed out.
    missed_deadline: Option<Instant>,
}

impl PendingReply {
    pub(super) fn new(inner: Arc<MuxInner>, id: u64, receiver: oneshot::Receiver<RequestEnd>) -> Self {
        Self { inner, id, receiver, cancel_on_drop: true, has_ended: false, missed_deadline: None }
    }

    /// Returns the request's id.
    pub(in crate::upstream) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the newest sign of life of the request.
    pub(in crate::upstream) fn last_activity(&self) -> Option<Activity> {
        self.inner.pending().last_activity(self.id)
    }

    /// Returns the deadline of the request if it passed before the response.
    pub(in crate::upstream) fn missed_deadline(&self) -> Option<Instant> {
        self.missed_deadline
    }

    /// Adds the reason to the error of a request that has timed out, if it is known.
    pub(in crate::upstream) fn explain_timeout(&self, error: Error) -> Error {
        self.inner.explain_timeout(self.id, error)
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
        let end = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.has_ended = !matches!(end, Ok(RequestEnd::TimedOut(_)));
        Poll::Ready(match end {
            Ok(RequestEnd::Answered(response)) => Ok(response),
            Ok(RequestEnd::BadReply(reason)) => {
                let server = &self.inner.server;
                Err(Error::new(ErrorKind::BadReply, format!("`{server}` sent a bad response: {reason}"))
                    .with_server(server))
            }
            Ok(RequestEnd::Failed(error)) => Err(error),
            Ok(RequestEnd::TimedOut(until)) => {
                self.missed_deadline = Some(until);
                let server = &self.inner.server;
                Err(Error::new(ErrorKind::TimedOut, format!("`{server}` did not answer in time"))
                    .with_server(server))
            }
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
