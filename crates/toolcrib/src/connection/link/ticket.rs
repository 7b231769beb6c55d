//! `Ticket`: a claim on the answer to one request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::super::pending::{Ended, Heard};
use super::Shared;
use crate::error::{Error, ErrorKind};
use crate::wire::message::Answer;

/// A claim on the answer to one request. Dropping it early frees the number and tells the server to stop.
#[derive(Debug)]
pub(in crate::connection) struct Ticket {
    shared: Arc<Shared>,
    id: u64,
    receiver: oneshot::Receiver<Ended>,
    cancellable: bool,
}

impl Ticket {
    pub(super) fn new(shared: Arc<Shared>, id: u64, receiver: oneshot::Receiver<Ended>) -> Self {
        Self { shared, id, receiver, cancellable: true }
    }

    /// The request's number.
    pub(in crate::connection) fn id(&self) -> u64 {
        self.id
    }

    /// What was heard about the request last.
    pub(in crate::connection) fn heard(&self) -> Option<Heard> {
        self.shared.pending().heard(self.id)
    }

    /// For requests that the protocol does not allow to be cancelled.
    pub(in crate::connection) fn uncancellable(mut self) -> Self {
        self.cancellable = false;
        self
    }
}

impl Future for Ticket {
    type Output = Result<Answer, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(context).map(|ended| match ended {
            Ok(Ended::Answered(answer)) => Ok(answer),
            Ok(Ended::BadReply(why)) => {
                let server = &self.shared.server;
                Err(Error::new(ErrorKind::BadReply, format!("`{server}` sent a bad answer: {why}"))
                    .at(server))
            }
            Ok(Ended::Failed(error)) => Err(error),
            Ok(Ended::Lost { unsent }) => Err(self.shared.lost(unsent)),
            Err(_) => Err(self.shared.lost(false)),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let waiter = self.shared.pending().take_back(self.id);
        if waiter.is_some() && self.cancellable {
            self.shared.take_back(self.id);
        }
    }
}
