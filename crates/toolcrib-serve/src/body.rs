//! HTTP response bodies: complete ones without copies, and event streams.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use toolcrib::CallUpdate;
use toolcrib::protocol::jsonrpc::{RequestId, ResponsePayload, encode_response, result_head};
use toolcrib::protocol::sse::write_event;

use crate::address_limit::AddressPermit;
use crate::client_memory::MemoryClaim;
use crate::service::updates::encode_update;

/// Size from which a result is sent as a piece of its own instead of being copied.
const LARGE_RESULT: usize = 16 << 10;
/// Time after which an idle stream sends a keep-alive comment.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// An SSE comment, which clients ignore.
const KEEP_ALIVE: &[u8] = b": \n\n";

/// The body of a response.
pub(crate) enum ResponseBody {
    /// Complete bytes in up to three pieces.
    Whole([Option<Bytes>; 3]),
    /// Server-sent events.
    Events(Box<EventStream>),
}

/// Server-sent events with keep-alive comments.
pub(crate) struct EventStream {
    messages: Pin<Box<dyn MessageSource>>,
    keep_alive: Pin<Box<Sleep>>,
    /// Counts the stream towards its client, if a proxy named that.
    pub(crate) client_permit: Option<AddressPermit>,
}

/// A source of messages, each encoded as an event.
pub(crate) trait MessageSource: Send {
    /// Polls for the next event; `None` at the end.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>>;
}

/// A call in progress.
pub(crate) type PendingCall = Pin<Box<dyn Future<Output = ResponsePayload> + Send>>;

/// A call as a stream of its updates and its response. Dropping the stream cancels the call.
pub(crate) struct CallStream {
    pub(crate) id: RequestId,
    pub(crate) progress_token: Option<Bytes>,
    pub(crate) updates: mpsc::Receiver<CallUpdate>,
    /// An update that was received already.
    pub(crate) next_update: Option<CallUpdate>,
    /// `None` once the response was sent.
    pub(crate) call: Option<PendingCall>,
}

impl ResponseBody {
    pub(crate) fn empty() -> Self {
        Self::Whole([None, None, None])
    }

    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Whole([Some(bytes.into()), None, None])
    }

    /// Creates the body of a JSON-RPC response. A large result is not copied.
    pub(crate) fn response(id: &RequestId, response: &ResponsePayload) -> Self {
        match response {
            ResponsePayload::Result(result) if result.len() >= LARGE_RESULT => {
                let head = Bytes::from(result_head(id));
                Self::Whole([Some(head), Some(result.clone()), Some(Bytes::from_static(b"}"))])
            }
            response => Self::full(encode_response(id, response)),
        }
    }

    /// Takes the pieces of complete bytes that are in three.
    pub(crate) fn take_pieces(&mut self) -> Option<[Bytes; 3]> {
        match self {
            Self::Whole([Some(head), Some(result), Some(tail)]) => {
                let pieces = [head, result, tail].map(std::mem::take);
                *self = Self::empty();
                Some(pieces)
            }
            Self::Whole(_) | Self::Events(_) => None,
        }
    }

    /// Returns the number of bytes, or 0 for a stream.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Whole(pieces) => pieces.iter().flatten().map(Bytes::len).sum(),
            Self::Events(_) => 0,
        }
    }

    /// Counts complete bytes towards the memory of clients until they have been written.
    pub(crate) fn with_claim(self, claim: MemoryClaim) -> Self {
        match self {
            Self::Whole([Some(head), Some(result), tail]) => {
                Self::Whole([Some(head), Some(claim.attach(result)), tail])
            }
            Self::Whole([Some(bytes), None, tail]) => Self::Whole([Some(claim.attach(bytes)), None, tail]),
            other => other,
        }
    }

    /// Creates a stream of events.
    pub(crate) fn events(messages: impl MessageSource + 'static) -> Self {
        Self::Events(Box::new(EventStream {
            messages: Box::pin(messages),
            keep_alive: Box::pin(sleep(KEEP_ALIVE_INTERVAL)),
            client_permit: None,
        }))
    }
}

impl EventStream {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let polled = match self.messages.as_mut().poll_next(context) {
            Poll::Pending => {
                ready!(self.keep_alive.as_mut().poll(context));
                Some(KEEP_ALIVE.to_vec())
            }
            Poll::Ready(event) => event,
        };
        self.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE_INTERVAL);
        Poll::Ready(polled)
    }
}

/// Encodes a message as an event without an id.
pub(crate) fn encode_event(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 16);
    write_event(&mut out, message);
    out
}

impl CallStream {
    fn encode(&self, update: CallUpdate) -> Option<Vec<u8>> {
        encode_update(update, self.progress_token.as_ref()).map(|message| encode_event(&message))
    }
}

impl MessageSource for CallStream {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let stream = &mut *self;
        loop {
            let update = match stream.next_update.take() {
                Some(update) => Poll::Ready(Some(update)),
                None => stream.updates.poll_recv(context),
            };
            if let Poll::Ready(Some(update)) = update {
                match stream.encode(update) {
                    Some(event) => return Poll::Ready(Some(event)),
                    None => continue,
                }
            }
            let Some(call) = &mut stream.call else { return Poll::Ready(None) };
            let response = ready!(call.as_mut().poll(context));
            // Updates sent before the response must precede it.
            if let Ok(update) = stream.updates.try_recv() {
                stream.next_update = Some(update);
                stream.call = Some(Box::pin(std::future::ready(response)));
                continue;
            }
            stream.call = None;
            return Poll::Ready(Some(encode_event(&encode_response(&stream.id, &response))));
        }
    }
}

/// A stream of encoded events that ends with the access of its caller.
pub(crate) struct RevocableEvents {
    events: mpsc::Receiver<Vec<u8>>,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl RevocableEvents {
    /// Ends a stream when `revoked` is cancelled.
    pub(crate) fn new(events: mpsc::Receiver<Vec<u8>>, revoked: CancellationToken) -> Self {
        Self { events, revoked: Box::pin(revoked.cancelled_owned()) }
    }
}

impl MessageSource for RevocableEvents {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        match self.revoked.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.events.poll_recv(context),
        }
    }
}

impl hyper::body::Body for ResponseBody {
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
            Self::Whole(_) => SizeHint::with_exact(self.len() as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}
