//! Detects HTTP/2 clients that stop reading. A client that never opens its flow-control window cannot be detected by write
//! timeouts, because nothing is written to its connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use toolcrib::util::locks::IgnorePoison as _;

use crate::body::ResponseBody;
use crate::peek_io::STALL_TIMEOUT;

/// Bytes per frame. hyper buffers a frame until the client has room for it.
const MAX_FRAME: usize = 16 << 10;

/// The response bodies of one connection that wait for the client to read.
#[derive(Debug, Default)]
pub(crate) struct StallMonitor(Mutex<StallState>);

#[derive(Debug, Default)]
struct StallState {
    /// Start of the wait of each body.
    waiting_since: HashMap<u64, Instant>,
    last_number: u64,
}

impl StallMonitor {
    fn state(&self) -> MutexGuard<'_, StallState> {
        self.0.lock().ignore_poison()
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

    /// Wraps a body so that it is monitored while it is sent.
    pub(crate) fn track(self: &Arc<Self>, body: ResponseBody) -> MonitoredBody {
        let mut state = self.state();
        state.last_number += 1;
        let number = state.last_number;
        state.waiting_since.insert(number, Instant::now());
        drop(state);
        MonitoredBody { body, rest: Bytes::new(), number, monitor: self.clone() }
    }
}

/// A response body that is sent to an HTTP/2 client frame by frame.
pub(crate) struct MonitoredBody {
    body: ResponseBody,
    /// Rest of a chunk that was larger than one frame.
    rest: Bytes,
    number: u64,
    monitor: Arc<StallMonitor>,
}

impl Drop for MonitoredBody {
    fn drop(&mut self) {
        self.monitor.state().waiting_since.remove(&self.number);
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
        this.monitor.state().waiting_since.remove(&this.number);
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
        this.monitor.state().waiting_since.insert(this.number, Instant::now());
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
