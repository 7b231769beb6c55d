//! Response bodies: whole ones without copies, and streams that hold the call they tell about.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};
use toolcrib::Told;
use toolcrib::wire::message::{Answer, Id, reply, result_head};
use toolcrib::wire::sse::write_event;

use super::face::told::told_line;

/// Results from this size on are sent as they are instead of being copied into one buffer.
const LARGE: usize = 16 << 10;
/// How long a stream may be silent.
const SILENCE: Duration = Duration::from_secs(15);
/// What is said then: nothing, to nobody.
const NOTHING: &[u8] = b": \n\n";

/// What answers a request.
pub(crate) enum Body {
    /// Bytes that are there, in up to three pieces.
    Whole([Option<Bytes>; 3]),
    /// Events as they come.
    Events(Box<Events>),
}

/// Events as they come, and a sign of life when none come.
pub(crate) struct Events {
    messages: Pin<Box<dyn Messages>>,
    silence: Pin<Box<Sleep>>,
}

/// Yields messages, each written as an event, until there are no more.
pub(crate) trait Messages: Send {
    /// The next event.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>>;
}

/// A call that answers some day.
pub(crate) type Working = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A call whose progress is told while it runs. Dropping the stream drops the call.
pub(crate) struct CallStream {
    pub(crate) id: Id,
    pub(crate) token: Option<Bytes>,
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

    /// Events as they come.
    pub(crate) fn events(messages: impl Messages + 'static) -> Self {
        Self::Events(Box::new(Events { messages: Box::pin(messages), silence: Box::pin(sleep(SILENCE)) }))
    }
}

impl Events {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let polled = match self.messages.as_mut().poll_next(context) {
            Poll::Pending => {
                ready!(self.silence.as_mut().poll(context));
                Some(NOTHING.to_vec())
            }
            Poll::Ready(event) => event,
        };
        self.silence.as_mut().reset(Instant::now() + SILENCE);
        Poll::Ready(polled)
    }
}

/// A message as an event without an id.
pub(crate) fn event(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 16);
    write_event(&mut out, message);
    out
}

impl CallStream {
    fn line(&self, told: Told) -> Option<Vec<u8>> {
        told_line(told, self.token.as_ref()).map(|line| event(&line))
    }
}

impl Messages for CallStream {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let stream = &mut *self;
        loop {
            let told = match stream.first.take() {
                Some(first) => Poll::Ready(Some(first)),
                None => stream.heard.poll_recv(context),
            };
            if let Poll::Ready(Some(told)) = told {
                match stream.line(told) {
                    Some(line) => return Poll::Ready(Some(line)),
                    None => continue,
                }
            }
            let Some(work) = &mut stream.work else { return Poll::Ready(None) };
            let answer = ready!(work.as_mut().poll(context));
            // Everything the server told before it answered was sent to us before the answer was.
            if let Ok(told) = stream.heard.try_recv() {
                stream.first = Some(told);
                stream.work = Some(Box::pin(std::future::ready(answer)));
                continue;
            }
            stream.work = None;
            return Poll::Ready(Some(event(&reply(&stream.id, &answer))));
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(pieces) => {
                Poll::Ready(pieces.iter_mut().find_map(Option::take).map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Events(events) => {
                let event = ready!(events.poll_event(context));
                Poll::Ready(event.map(|event| Ok(Frame::data(event.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole([None, None, None]))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(pieces) => {
                SizeHint::with_exact(pieces.iter().flatten().map(|bytes| bytes.len() as u64).sum())
            }
            Self::Events(_) => SizeHint::default(),
        }
    }
}
