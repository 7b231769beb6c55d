//! Response bodies: one message, or a stream of events with a message each.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use tokio::time::timeout;

use crate::http_client::root_cause;
use crate::protocol::framing::OversizeMessage;
use crate::protocol::sse::{SseDecoder, SseEvent};
use crate::upstream::transport::TransportLink;

/// Maximum size of an error body.
const MAX_ERROR_BODY: usize = 64 << 10;
/// Time to wait for the end of a stream that is not needed further, so that its connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The content type of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyKind {
    Json,
    Events,
    Other,
}

impl BodyKind {
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let is_unencoded = headers.get(CONTENT_ENCODING).is_none_or(|value| value == "identity");
        let content_type =
            headers.get(CONTENT_TYPE).filter(|_| is_unencoded).and_then(|value| value.to_str().ok());
        let essence =
            content_type.and_then(|content_type| content_type.split(';').next()).unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("application/json") {
            Self::Json
        } else if essence.eq_ignore_ascii_case("text/event-stream") {
            Self::Events
        } else {
            Self::Other
        }
    }
}

/// The reason why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// The body or an event is over the limit. The events behind it can be read.
    TooLarge(OversizeMessage),
    Broken(String),
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read_all(mut body: Incoming, limit: usize) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyError::TooLarge(OversizeMessage::new(body.size_hint().exact(), limit)));
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Broken(root_cause(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
        if all.len() > limit {
            return Err(BodyError::TooLarge(OversizeMessage::new(None, limit)));
        }
    }
    let whole = if all.is_empty() { first } else { all.freeze() };
    match whole.len() <= limit {
        true => Ok(whole),
        false => Err(BodyError::TooLarge(OversizeMessage::new(Some(whole.len() as u64), limit))),
    }
}

/// Reads the body of an error response; empty if it cannot be read.
pub(super) async fn read_error_body(body: Incoming) -> Bytes {
    timeout(DRAIN_TIMEOUT * 5, read_all(body, MAX_ERROR_BODY))
        .await
        .ok()
        .and_then(Result::ok)
        .unwrap_or_default()
}

/// The position at which to resume an event stream, and after which delay.
#[derive(Debug, Default)]
pub(super) struct StreamPosition {
    pub(super) last_event_id: Option<String>,
    pub(super) retry: Option<Duration>,
}

impl StreamPosition {
    /// Keeps the earlier values where the newer stream has set none.
    pub(super) fn advance(&mut self, newer: Self) {
        self.last_event_id = newer.last_event_id.or(self.last_event_id.take());
        self.retry = newer.retry.or(self.retry);
    }
}

/// An event stream.
pub(super) struct EventBody {
    body: Incoming,
    events: SseDecoder,
    link: TransportLink,
}

impl EventBody {
    /// Creates a stream whose traffic, also without a message in it, counts as activity of the server.
    pub(super) fn new(body: Incoming, limit: usize, link: &TransportLink) -> Self {
        Self { body, events: SseDecoder::new(limit), link: link.clone() }
    }

    /// Returns the next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<SseEvent>, BodyError> {
        loop {
            if let Some(event) = self.events.next_event().map_err(BodyError::TooLarge)? {
                return Ok(Some(event));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(BodyError::Broken(root_cause(&error))),
                Some(Ok(frame)) => {
                    self.link.count_read();
                    if let Ok(data) = frame.into_data() {
                        self.events.push(&data);
                    }
                }
            }
        }
    }

    /// Returns the last event id and retry delay that the stream has set.
    pub(super) fn position(&self) -> StreamPosition {
        StreamPosition {
            last_event_id: self.events.last_event_id().map(str::to_owned),
            retry: self.events.retry_delay(),
        }
    }

    /// Reads to the end of a stream that is about to end, so that its connection can be reused.
    pub(super) async fn drain(mut self) {
        let draining = async { while let Ok(Some(_)) | Err(BodyError::TooLarge(_)) = self.next().await {} };
        let _ = timeout(DRAIN_TIMEOUT, draining).await;
    }
}
