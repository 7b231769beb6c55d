//! `Takers`: whether an HTTP/2 client takes what it is sent. Whoever never opens its window is left like somebody who
//! never reads; the connection itself cannot tell, because nothing is written to it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, sleep_until};

use super::body::Body;
use super::line::STALLED;

/// Bytes that are handed over at a time: what is handed over is kept elsewhere until it is taken.
const PIECE: usize = 16 << 10;

/// The answers of one connection that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Takers(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Since when each has waited.
    since: HashMap<u64, Instant>,
    last: u64,
}

impl Takers {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes when an answer was not taken for too long.
    pub(super) async fn stalled(&self) {
        loop {
            let now = Instant::now();
            let oldest = self.waiting().since.values().min().copied().unwrap_or(now);
            if now >= oldest + STALLED {
                return;
            }
            sleep_until(oldest + STALLED).await;
        }
    }

    /// An answer that is watched while it is taken.
    pub(super) fn hand(self: &Arc<Self>, body: Body) -> Handed {
        let mut waiting = self.waiting();
        waiting.last += 1;
        let number = waiting.last;
        waiting.since.insert(number, Instant::now());
        drop(waiting);
        Handed { body, rest: Bytes::new(), number, takers: self.clone() }
    }
}

/// An answer on its way to an HTTP/2 client, piece by piece.
pub(super) struct Handed {
    body: Body,
    /// What is left of a piece that was too large.
    rest: Bytes,
    number: u64,
    takers: Arc<Takers>,
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.takers.waiting().since.remove(&self.number);
    }
}

impl hyper::body::Body for Handed {
    type Data = Bytes;
    type Error = Infallible;

    /// Asked again only when what was handed over before has begun to be taken. The last byte goes alone: it waits for
    /// room of its own, which shows whether those before it were taken.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        this.takers.waiting().since.remove(&this.number);
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
            }
        }
        let length = match this.rest.len() {
            length @ 2..=PIECE if this.body.is_end_stream() => length - 1,
            length => length.min(PIECE),
        };
        let piece = this.rest.split_to(length);
        this.takers.waiting().since.insert(this.number, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.body.size_hint().exact() {
            Some(more) => SizeHint::with_exact(more + self.rest.len() as u64),
            None => SizeHint::default(),
        }
    }
}
