//! Response bodies: whole ones without copies, and streams that hold the call they tell about.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;
use toolcrib::Told;
use toolcrib::wire::message::{Answer, Id, reply, result_head};
use toolcrib::wire::sse::write_event;

use super::face::told_line;

/// Results from this size on are sent as they are instead of being copied into one buffer.
const LARGE: usize = 16 << 10;

/// What answers a request.
pub(crate) enum Body {
    /// Bytes that are there, in up to three pieces.
    Whole([Option<Bytes>; 3]),
    /// Progress as it comes, then the answer.
    Call(Box<CallStream>),
    /// Messages as they come.
    Messages(Pin<Box<dyn Messages>>),
}

/// Yields messages until there are no more.
pub(crate) trait Messages: Send {
    /// The next message.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>>;
}

/// A call that answers some day; `None` if it was taken back, which gets no answer.
pub(crate) type Working = Pin<Box<dyn Future<Output = Option<Answer>> + Send>>;

/// A call whose progress is told while it runs. Dropping the stream drops the call.
pub(crate) struct CallStream {
    pub(crate) id: Id,
    pub(crate) token: Bytes,
    pub(crate) heard: mpsc::Receiver<Told>,
    /// What was heard before the stream began.
    pub(crate) first: Option<Told>,
    /// `None` once the answer was sent.
    pub(crate) work: Option<Working>,
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::Whole([None, None, None])
    }

    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Whole([Some(bytes.into()), None, None])
    }

    /// An answer; a large result goes out as the server's own bytes.
    pub(crate) fn answer(id: &Id, answer: &Answer) -> Self {
        match answer {
            Answer::Result(result) if result.len() >= LARGE => {
                let head = Bytes::from(result_head(id));
                Self::Whole([Some(head), Some(result.clone()), Some(Bytes::from_static(b"}"))])
            }
            answer => Self::full(reply(id, answer)),
        }
    }
}

impl CallStream {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(told_line(first, &self.token)));
        }
        if let Poll::Ready(Some(progress)) = self.heard.poll_recv(context) {
            return Poll::Ready(Some(told_line(progress, &self.token)));
        }
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        let answer = ready!(work.as_mut().poll(context));
        // Everything the server told before it answered was sent to us before the answer was.
        if let Ok(progress) = self.heard.try_recv() {
            let line = told_line(progress, &self.token);
            self.work = Some(Box::pin(std::future::ready(answer)));
            return Poll::Ready(Some(line));
        }
        self.work = None;
        Poll::Ready(answer.map(|answer| reply(&self.id, &answer)))
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = match self.get_mut() {
            Self::Whole(pieces) => {
                return Poll::Ready(
                    pieces.iter_mut().find_map(Option::take).map(|bytes| Ok(Frame::data(bytes))),
                );
            }
            Self::Call(stream) => ready!(stream.poll_event(context)),
            Self::Messages(messages) => ready!(messages.as_mut().poll_next(context)),
        };
        Poll::Ready(message.map(|message| {
            let mut event = Vec::with_capacity(message.len() + 16);
            write_event(&mut event, &message);
            Ok(Frame::data(event.into()))
        }))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole([None, None, None]))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(pieces) => {
                SizeHint::with_exact(pieces.iter().flatten().map(|bytes| bytes.len() as u64).sum())
            }
            Self::Call(_) | Self::Messages(_) => SizeHint::default(),
        }
    }
}
