//! What a response holds: one message, or a stream of events with a message in each.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use tokio::time::timeout;

use super::dial::said_last;
use crate::wire::sse::{SseEvent, SseEvents};

/// How much is read of a body that only says what went wrong.
const WORDS: usize = 64 << 10;
/// How long the end of a stream is waited for once nothing more is wanted of it, so that its connection can be used
/// again.
const LINGER: Duration = Duration::from_secs(1);

/// What kind of body a response has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    Events,
    Other,
}

impl Kind {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let plain = headers.get(CONTENT_ENCODING).is_none_or(|value| value == "identity");
        let written = headers.get(CONTENT_TYPE).filter(|_| plain).and_then(|value| value.to_str().ok());
        let essence = written.and_then(|written| written.split(';').next()).unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("application/json") {
            Self::Json
        } else if essence.eq_ignore_ascii_case("text/event-stream") {
            Self::Events
        } else {
            Self::Other
        }
    }
}

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    TooLarge,
    Broken(String),
}

/// A whole body of at most `limit` bytes.
pub(super) async fn whole(mut body: Incoming, limit: usize) -> Result<Bytes, Unread> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::TooLarge);
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Unread::Broken(said_last(&error)))?;
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
            return Err(Unread::TooLarge);
        }
    }
    let whole = if all.is_empty() { first } else { all.freeze() };
    if whole.len() > limit { Err(Unread::TooLarge) } else { Ok(whole) }
}

/// What a body says about something that went wrong; nothing if it cannot be read.
pub(super) async fn words(body: Incoming) -> Bytes {
    timeout(LINGER * 5, whole(body, WORDS)).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// Events as they arrive.
pub(super) struct Stream {
    body: Incoming,
    events: SseEvents,
}

impl Stream {
    pub(super) fn new(body: Incoming, limit: usize) -> Self {
        Self { body, events: SseEvents::new(limit) }
    }

    /// The next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<SseEvent>, Unread> {
        loop {
            if let Some(event) = self.events.next_event().map_err(|_| Unread::TooLarge)? {
                return Ok(Some(event));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Unread::Broken(said_last(&error))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.events.push(&data);
                    }
                }
            }
        }
    }

    /// The last id the stream has set, and how long it wants a reader to wait before it comes back.
    pub(super) fn bookmark(&self) -> (Option<String>, Option<Duration>) {
        (self.events.last_id().map(str::to_owned), self.events.retry())
    }

    /// Reads on to a near end, so that the connection can be used again.
    pub(super) async fn finish(mut self) {
        let _ = timeout(LINGER, async { while let Ok(Some(_)) = self.next().await {} }).await;
    }
}
