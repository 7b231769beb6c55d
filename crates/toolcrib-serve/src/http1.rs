//! Serves HTTP/1 requests with hyper in phases. hyper holds 16 KiB of buffers per connection, so a phase ends, and frees
//! them, when the connection becomes idle.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use toolcrib::util::tasks::WokenFuture;

use crate::body::ResponseBody;
use crate::connection_waker::ConnectionWaker;
use crate::detached_stream::DetachedResponse;
use crate::draining;
use crate::gateway::ConnectionContext;
use crate::peek_io::PeekIo;
use crate::response_data::ResponseData;
use crate::routes::handle_request;

/// Time in which a client must send the headers of a request.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a phase ends as soon as it is idle. A request within this time reuses hyper's buffers.
const PHASE_TIME: Duration = Duration::from_millis(200);
/// The same time while many phases are open. The memory of phases would otherwise grow with the rate of requests.
const SHORT_PHASE_TIME: Duration = Duration::from_millis(20);
/// Size of hyper's buffers, and so of the largest head of a request.
const MAX_BUFFER: usize = 64 << 10;
/// Number of open phases above which new ones are short.
pub(crate) const MAX_LONG_PHASES: usize = 256;

/// The reason for the end of a phase.
pub(crate) enum ConnectionPhaseEnd {
    /// The connection is closed.
    Closed,
    /// The connection is closed for writing, and the client may still send the body of a refused request.
    Unread,
    /// This response continues without hyper.
    Detached(Box<Response<ResponseBody>>),
    /// No request is in flight.
    Idle {
        /// True if the phase served a request.
        served_request: bool,
        /// True if part of the next request has arrived.
        partial_request: bool,
    },
}

/// State shared by the requests of a phase.
#[derive(Default)]
struct PhaseState {
    detached: DetachedResponse,
    /// Number of requests whose heads have arrived.
    requests: AtomicUsize,
    /// Number of requests whose responses hyper has not taken completely.
    in_flight: AtomicUsize,
    /// True if the last request was refused before its body was read.
    has_unread_body: AtomicBool,
}

impl PhaseState {
    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Returns the end of the phase when hyper has closed the connection.
    fn closed_end(&self) -> ConnectionPhaseEnd {
        match self.has_unread_body.load(Ordering::Relaxed) {
            true => ConnectionPhaseEnd::Unread,
            false => ConnectionPhaseEnd::Closed,
        }
    }
}

/// A request that counts as in flight until this is dropped.
struct RequestGuard(Arc<PhaseState>);

impl RequestGuard {
    fn new(phase: &Arc<PhaseState>) -> Self {
        phase.requests.fetch_add(1, Ordering::Relaxed);
        phase.in_flight.fetch_add(1, Ordering::AcqRel);
        Self(phase.clone())
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A phase that counts as open until this is dropped.
struct OpenPhase<'a>(&'a AtomicUsize);

impl<'a> OpenPhase<'a> {
    /// Counts a new phase, and returns the time that it lasts.
    fn start(open_phases: &'a AtomicUsize) -> (Self, Duration) {
        let others = open_phases.fetch_add(1, Ordering::Relaxed);
        (Self(open_phases), if others < MAX_LONG_PHASES { PHASE_TIME } else { SHORT_PHASE_TIME })
    }
}

impl Drop for OpenPhase<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The head of a request that has arrived in part. hyper parses it from the start whenever more of it arrives, and a new phase
/// would do so again, so the phase goes on until the head is complete or its time is up.
struct PartialHead {
    /// Number of requests before it.
    requests: usize,
    /// True if a request was in flight when the connection was last polled.
    was_busy: bool,
    /// Number of bytes that were read before it.
    bytes_before: u64,
    /// When the rest must have arrived, if a part arrived before this phase.
    due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl PartialHead {
    /// Creates a head of which nothing has been read in this phase.
    fn new(due: Instant) -> Self {
        Self { requests: 0, was_busy: false, bytes_before: 0, due: Some(due), timer: None }
    }

    /// Returns whether a part of a head has arrived. Call it whenever the connection was polled.
    fn has_arrived(&mut self, phase: &PhaseState, bytes_read: u64) -> bool {
        let requests = phase.requests.load(Ordering::Relaxed);
        let is_busy = !phase.is_idle();
        // What was read since then may be the rest of a body.
        if is_busy || self.was_busy || requests != self.requests {
            *self = Self { requests, was_busy: is_busy, bytes_before: bytes_read, due: None, timer: None };
        }
        bytes_read != self.bytes_before
    }

    /// Ready when the time is up.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let due = self.due;
        let start = || Box::pin(sleep_until(due.unwrap_or_else(|| Instant::now() + HEADER_TIMEOUT)));
        self.timer.get_or_insert_with(start).as_mut().poll(context)
    }
}

/// Serves a connection until it ends or becomes idle. A head that has arrived in part must be complete at `head_due`. Once the
/// gateway stops, the current request is the last.
pub(crate) async fn serve<I>(
    io: &PeekIo<I>,
    conn: &Arc<ConnectionContext>,
    head_due: Instant,
) -> ConnectionPhaseEnd
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (_open_phase, phase_time) = OpenPhase::start(&conn.gateway.open_phases);
    let phase = Arc::<PhaseState>::default();
    let service_phase = phase.clone();
    let service_conn = conn.clone();
    let service = service_fn(move |request| {
        let guard = RequestGuard::new(&service_phase);
        respond_in_phase(service_conn.clone(), guard, request)
    });
    let mut builder = http1::Builder::new();
    // The caller enforces the header timeout across phases. Unless half-closed connections are allowed, hyper reads while a request
    // is in flight, and allocates another buffer for that each time. `PeekIo` notices a disconnect instead.
    let builder = builder.header_read_timeout(None).max_buf_size(MAX_BUFFER).half_close(true);
    let mut connection = builder.serve_connection(TokioIo::new(io.clone()), service).with_upgrades();
    let waker = ConnectionWaker::new();
    let connection_waker = Waker::from(waker.clone());
    let mut idle_timer = pin!(sleep(phase_time));
    let bytes_before = io.bytes_read();
    let mut head = PartialHead::new(head_due);
    let stopped = pin!(conn.stop.cancelled());
    let mut stopped = WokenFuture::new(stopped);
    let end = tokio::select! {
        biased;
        end = poll_fn(|context| {
            waker.set_task(context.waker());
            let connection_context = &mut Context::from_waker(&connection_waker);
            match poll_connection(io, &phase, &mut connection, connection_context) {
                Poll::Pending => {
                    let is_partial = head.has_arrived(&phase, io.bytes_read() - bytes_before);
                    match phase.is_idle() && !io.is_writing() {
                        true if is_partial => {
                            head.poll_timeout(context).map(|()| Some(ConnectionPhaseEnd::Closed))
                        }
                        true => idle_timer.as_mut().poll(context).map(|()| None),
                        false => Poll::Pending,
                    }
                }
                polled => polled.map(Some),
            }
        }) => end,
        () = &mut stopped => {
            if phase.is_idle() && !io.is_writing() {
                return ConnectionPhaseEnd::Closed;
            }
            Pin::new(&mut connection).graceful_shutdown();
            Some(poll_fn(|context| poll_connection(io, &phase, &mut connection, context)).await)
        }
    };
    end.unwrap_or_else(|| ConnectionPhaseEnd::Idle {
        served_request: phase.requests.load(Ordering::Relaxed) > 0,
        partial_request: connection.into_parts().is_some_and(|parts| io.unread(&parts.read_buf)),
    })
}

/// Handles a request of a phase. Does not return if the response is detached from the connection. While the gateway drains, the
/// response is the last one on the connection.
async fn respond_in_phase(
    conn: Arc<ConnectionContext>,
    guard: RequestGuard,
    mut request: Request<Incoming>,
) -> Result<Response<CountedBody>, Infallible> {
    let can_detach = DetachedResponse::can_detach(&request);
    let mut response = handle_request(&conn, &mut request).await;
    let has_unread_body = !response.status().is_success() && !request.body().is_end_stream();
    guard.0.has_unread_body.store(has_unread_body, Ordering::Relaxed);
    if conn.gateway.draining.is_on() {
        draining::close_connection(&mut response);
    }
    if can_detach && matches!(response.body(), ResponseBody::Events(_)) {
        guard.0.detached.set(response);
        return pending().await;
    }
    Ok(response.map(|body| CountedBody { body, _guard: guard }))
}

/// Ready when the connection is closed, its client disconnected, or a response is to be detached.
fn poll_connection<I: AsyncRead + Unpin>(
    io: &PeekIo<I>,
    phase: &PhaseState,
    connection: &mut (impl Future + Unpin),
    context: &mut Context<'_>,
) -> Poll<ConnectionPhaseEnd> {
    match phase.detached.poll(connection, context) {
        Poll::Pending if io.is_disconnected(context) => Poll::Ready(ConnectionPhaseEnd::Closed),
        Poll::Pending => Poll::Pending,
        Poll::Ready(None) => Poll::Ready(phase.closed_end()),
        Poll::Ready(Some(response)) => Poll::Ready(ConnectionPhaseEnd::Detached(Box::new(response))),
    }
}

/// A response body that keeps its request in flight until hyper has taken all of it.
struct CountedBody {
    body: ResponseBody,
    _guard: RequestGuard,
}

impl hyper::body::Body for CountedBody {
    type Data = ResponseData;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseData>, Infallible>>> {
        if let Some(pieces) = self.body.take_pieces() {
            return Poll::Ready(Some(Ok(Frame::data(ResponseData::Several(Box::new(pieces))))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        polled.map(|frame| frame.map(|Ok(frame)| Ok(frame.map_data(ResponseData::One))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
