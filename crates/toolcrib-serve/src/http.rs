//! Serves HTTP connections.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::protocol::era::client::RequestMetaReader;
use toolcrib::util::tasks::SpawnBoxed as _;

use crate::callers::Entrypoint;
use crate::detached_stream::{self, StreamFuture};
use crate::gateway::{ConnectionContext, HttpGateway};
use crate::h2_stall::StallMonitor;
use crate::http1::{self, ConnectionPhaseEnd};
use crate::peek_io::PeekIo;
use crate::routes::handle_request;

/// Time in which a client must send the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Concurrent requests on one HTTP/2 connection.
const MAX_HTTP2_STREAMS: u32 = 256;

/// A byte stream to a client.
trait ClientIo: AsyncRead + AsyncWrite + Unpin + Send {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send> ClientIo for I {}

/// Serves one connection until it ends. A connection that carries only a stream by then is returned as a future, which uses
/// less memory and must be awaited. After `stop`, the current request is the last.
///
/// # Cancel safety
/// Dropping the future closes the connection. Calls of sessions go on, as after a lost connection; stateless requests are
/// cancelled.
pub async fn serve_connection<I>(
    io: I,
    gateway: Arc<HttpGateway>,
    entrypoint: Entrypoint,
    stop: CancellationToken,
) -> Option<StreamFuture>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // One type for TCP and Unix sockets: both HTTP versions are otherwise compiled for each of them, which is 250 KB.
    serve_client(Box::new(io), gateway, entrypoint, stop).await
}

async fn serve_client(
    io: Box<dyn ClientIo>,
    gateway: Arc<HttpGateway>,
    entrypoint: Entrypoint,
    stop: CancellationToken,
) -> Option<StreamFuture> {
    let opened = tokio::select! {
        opened = timeout(HEADER_TIMEOUT, PeekIo::detect_version(io)) => opened,
        () = stop.cancelled() => return None,
    };
    let Ok(Ok((io, is_http2))) = opened else { return None };
    let client = gateway.service.connect_client();
    let meta_reader = RequestMetaReader::default();
    let conn = Arc::new(ConnectionContext { gateway, entrypoint, client, meta_reader, stop });
    if is_http2 {
        Box::pin(serve_http2(io, conn)).await;
        return None;
    }
    let mut headers_due = Instant::now() + HEADER_TIMEOUT;
    loop {
        // Boxed, so that an idle connection does not hold the memory of this future.
        match Box::pin(http1::serve(&io, &conn)).await {
            ConnectionPhaseEnd::Closed => return None,
            ConnectionPhaseEnd::Detached(response) => {
                return Some(Box::pin(detached_stream::write(io, *response)));
            }
            ConnectionPhaseEnd::Idle { served_request: false, partial_request: true } => {
                if Instant::now() >= headers_due {
                    return None;
                }
                continue;
            }
            ConnectionPhaseEnd::Idle { partial_request: true, .. } => {}
            ConnectionPhaseEnd::Idle { .. } => {
                let has_more = tokio::select! {
                    has_more = timeout(IDLE_TIMEOUT, io.wait_readable()) => has_more.unwrap_or(false),
                    () = conn.stop.cancelled() => false,
                };
                if !has_more {
                    return None;
                }
            }
        }
        headers_due = Instant::now() + HEADER_TIMEOUT;
    }
}

/// Serves an HTTP/2 connection until it ends or its client stops reading.
async fn serve_http2(io: PeekIo<Box<dyn ClientIo>>, conn: Arc<ConnectionContext>) {
    let stop = conn.stop.clone();
    let mut builder = http2::Builder::new(TrackedRequests(conn.gateway.tasks.clone()));
    builder.timer(TokioTimer::new()).max_concurrent_streams(MAX_HTTP2_STREAMS);
    let monitor = Arc::<StallMonitor>::default();
    let shared_monitor = monitor.clone();
    let service = service_fn(move |request| {
        let conn = conn.clone();
        let monitor = shared_monitor.clone();
        Box::pin(async move {
            let response = handle_request(&conn, request).await;
            Ok::<_, Infallible>(response.map(|body| monitor.track(body)))
        })
    });
    let mut connection = Box::pin(builder.serve_connection(TokioIo::new(io), service));
    // Errors are ignored: the requests of a broken connection end with it.
    tokio::select! {
        _ = &mut connection => return,
        () = monitor.stalled() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        () = monitor.stalled() => {}
    }
}

/// Spawns the requests of an HTTP/2 connection on a tracker that shutdown waits for.
#[derive(Clone)]
struct TrackedRequests(TaskTracker);

impl<F> hyper::rt::Executor<F> for TrackedRequests
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, request: F) {
        self.0.spawn_boxed(request);
    }
}
