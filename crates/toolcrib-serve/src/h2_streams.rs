//! The open streams of an HTTP/2 connection. Detects connections that have none for too long, and clients that stop reading:
//! a client that never opens its flow-control window cannot be detected by write timeouts, because nothing is written to its
//! connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use toolcrib::util::locks::IgnorePoison as _;

use crate::body::ResponseBody;
use crate::peek_io::STALL_TIMEOUT;

/// Bytes per frame. hyper buffers a frame until the client has room for it.
const MAX_FRAME: usize = 16 << 10;

/// The open streams of one connection, and the response bodies that wait for the client to read.
#[derive(Debug, Default)]
pub(crate) struct StreamMonitor(Mutex<StreamState>);

#[derive(Debug)]
struct StreamState {
    /// Start of the wait of each body.
    waiting_since: HashMap<u64, Instant>,
    last_number: u64,
    open: usize,
    /// When the connection was opened, or its last stream was closed.
    idle_since: Instant,
}

impl Default for StreamState {
    fn default() -> Self {
        Self { waiting_since: HashMap::new(), last_number: 0, open: 0, idle_since: Instant::now() }
    }
}

impl StreamMonitor {
    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.0.lock().ignore_poison()
    }

    /// Waits until no stream has been open for the time that `limit` returns. The time may become longer, not shorter.
    pub(crate) async fn idle(&self, limit: impl Fn() -> Duration) {
        loop {
            let now = Instant::now();
            let since = {
                let state = self.state();
                if state.open == 0 { state.idle_since } else { now }
            };
            let end = since + limit();
            if now >= end {
                return;
            }
            sleep_until(end).await;
        }
    }

    /// Counts a stream whose request has arrived.
    pub(crate) fn open_stream(self: &Arc<Self>) -> OpenStream {
        self.state().open += 1;
        OpenStream(self.clone())
    }

    /// Waits until a body has not been read for too long.
    pub(crate) async fn stalled(&self) {
        loop {
            let now = Instant::now();
            let oldest = self.state().waiting_since.values().min().copied().unwrap_or(now);
            if now >= oldest + STALL_TIMEOUT {
                return;
            }
            sleep_until(oldest + STALL_TIMEOUT).await;
        }
    }
}

/// A stream that counts as open until this is dropped.
pub(crate) struct OpenStream(Arc<StreamMonitor>);

impl OpenStream {
    /// Wraps a body so that it is monitored while it is sent.
    pub(crate) fn track(self, body: ResponseBody) -> MonitoredBody {
        let mut state = self.0.state();
        state.last_number += 1;
        let number = state.last_number;
        state.waiting_since.insert(number, Instant::now());
        drop(state);
        MonitoredBody { body, rest: Bytes::new(), number, stream: self }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.open -= 1;
        if state.open == 0 {
            state.idle_since = Instant::now();
        }
    }
}

/// A response body that is sent to an HTTP/2 client frame by frame.
pub(crate) struct MonitoredBody {
    body: ResponseBody,
    /// Rest of a chunk that was larger than one frame.
    rest: Bytes,
    number: u64,
    stream: OpenStream,
}

impl Drop for MonitoredBody {
    fn drop(&mut self) {
        self.stream.0.state().waiting_since.remove(&self.number);
    }
}

impl hyper::body::Body for MonitoredBody {
    type Data = Bytes;
    type Error = Infallible;

    /// hyper polls for a frame only when the client has begun to read the previous one. The last byte is sent as a frame of
    /// its own, so that a client that stops before the end is detected too.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        this.stream.0.state().waiting_since.remove(&this.number);
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
            length @ 2..=MAX_FRAME if this.body.is_end_stream() => length - 1,
            length => length.min(MAX_FRAME),
        };
        let frame = this.rest.split_to(length);
        this.stream.0.state().waiting_since.insert(this.number, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(frame))))
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
