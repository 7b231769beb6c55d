//! The event stream of another replica, passed on to a client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::body::Body;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::sse::SseDecoder;

use crate::body::{MessageSource, encode_event};

/// Time without an event after which a stream is broken. Streams have a keep-alive comment every 15 seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(40);

/// The events of another replica. Only whole events are passed on.
pub(super) struct RelayedEvents<B> {
    body: Option<B>,
    buffer: BytesMut,
    /// Bytes of the buffer that were searched for the end of an event.
    searched: usize,
    silence: Pin<Box<Sleep>>,
    /// Resolves when the caller loses access.
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The response to the request that opened the stream, for the case that the stream breaks before its own response.
    substitute: Option<Vec<u8>>,
}

impl<B: Body<Data = Bytes> + Unpin> RelayedEvents<B> {
    /// Passes on the body of a response until `revoked` is cancelled.
    pub(super) fn new(body: B, revoked: CancellationToken, substitute: Option<Vec<u8>>) -> Self {
        Self {
            body: Some(body),
            buffer: BytesMut::new(),
            searched: 0,
            silence: Box::pin(sleep(SILENCE_TIMEOUT)),
            revoked: Box::pin(revoked.cancelled_owned()),
            substitute,
        }
    }

    /// Returns the next whole event.
    fn take_event(&mut self) -> Option<Vec<u8>> {
        let unsearched = &self.buffer[self.searched..];
        let Some(position) = unsearched.windows(2).position(|pair| pair == b"\n\n") else {
            self.searched = self.buffer.len().saturating_sub(1);
            return None;
        };
        let end = self.searched + position + 2;
        let event = self.buffer[..end].to_vec();
        self.buffer.advance(end);
        self.searched = 0;
        if self.substitute.is_some() && is_response(&event) {
            self.substitute = None;
        }
        Some(event)
    }

    /// Ends the stream after it broke.
    fn fail(&mut self) -> Option<Vec<u8>> {
        self.body = None;
        self.substitute.take().map(|response| encode_event(&response))
    }
}

/// Returns whether an event is a response to the client.
fn is_response(event: &[u8]) -> bool {
    let mut decoder = SseDecoder::new(usize::MAX);
    decoder.push(event);
    let Ok(Some(event)) = decoder.next_event() else { return false };
    let message = Object::parse(&event.data).unwrap_or_default();
    message.get("id").is_some() && message.get("method").is_none()
}

impl<B: Body<Data = Bytes> + Unpin + Send> MessageSource for RelayedEvents<B> {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let relayed = &mut *self;
        if relayed.revoked.as_mut().poll(context).is_ready() {
            relayed.body = None;
            return Poll::Ready(None);
        }
        loop {
            if let Some(event) = relayed.take_event() {
                return Poll::Ready(Some(event));
            }
            let Some(body) = &mut relayed.body else { return Poll::Ready(None) };
            match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        relayed.buffer.extend_from_slice(&data);
                        relayed.silence.as_mut().reset(Instant::now() + SILENCE_TIMEOUT);
                    }
                }
                Poll::Ready(None) => {
                    relayed.body = None;
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(relayed.fail()),
                Poll::Pending if relayed.silence.as_mut().poll(context).is_ready() => {
                    return Poll::Ready(relayed.fail());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::io;

    use hyper::body::Frame;

    use super::*;

    const RESPONSE: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";

    /// A body in pieces, which ends properly, breaks, or falls silent.
    struct PiecedBody {
        pieces: VecDeque<&'static str>,
        end: BodyEnd,
    }

    #[derive(Clone, Copy)]
    enum BodyEnd {
        Complete,
        Broken,
        Silent,
    }

    impl Body for PiecedBody {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            match (self.pieces.pop_front(), self.end) {
                (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(piece.as_bytes()))))),
                (None, BodyEnd::Complete) => Poll::Ready(None),
                (None, BodyEnd::Broken) => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
                (None, BodyEnd::Silent) => Poll::Pending,
            }
        }
    }

    /// Returns everything that a client gets; `lost` stands for the substitute.
    async fn relay(pieces: &[&'static str], end: BodyEnd, revoked: bool) -> String {
        let body = PiecedBody { pieces: pieces.iter().copied().collect(), end };
        let token = CancellationToken::new();
        if revoked {
            token.cancel();
        }
        let mut events = RelayedEvents::new(body, token, Some(b"lost".to_vec()));
        let mut text = Vec::new();
        while let Some(event) = poll_fn(|context| Pin::new(&mut events).poll_next(context)).await {
            text.extend(event);
        }
        String::from_utf8(text).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn broken_stream_ends_with_a_response_unless_there_was_one() {
        let lost = "data: lost\n\n";
        for end in [BodyEnd::Broken, BodyEnd::Silent] {
            assert_eq!(relay(&[": \n", "\ndata: {\"id\""], end, false).await, format!(": \n\n{lost}"));
            assert_eq!(relay(&[RESPONSE], end, false).await, RESPONSE);
        }
        assert_eq!(relay(&[": \n\n: \n\n"], BodyEnd::Complete, false).await, ": \n\n: \n\n");
        assert_eq!(relay(&[RESPONSE], BodyEnd::Silent, true).await, "", "the caller has lost access");
    }

    #[test]
    fn response_is_told_from_other_messages() {
        for (event, expected) in [
            ("id: 1-1\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n", true),
            ("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":1}}\n\n", true),
            ("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"elicitation/create\"}\n\n", false),
            ("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n", false),
            ("id: 1-0\nretry: 1000\ndata: \n\n", false),
            (": \n\n", false),
        ] {
            assert_eq!(is_response(event.as_bytes()), expected, "{event}");
        }
    }
}
