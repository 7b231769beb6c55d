//! Serves HTTP connections.

use std::convert::Infallible;
use std::io;
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

use crate::connection_clients::ConnectionClients;
use crate::connection_peer::{ConnectionPeer, Entrypoint};
use crate::detached_stream::{self, StreamFuture};
use crate::gateway::{ConnectionContext, HttpGateway};
use crate::h2_streams::StreamMonitor;
use crate::http1::{self, ConnectionPhaseEnd, HEADER_TIMEOUT};
use crate::login::ConnectionLogin;
use crate::peek_io::PeekIo;
use crate::routes::handle_request;

/// Time after which an idle connection is closed. A connection without a valid token gets only the time for headers.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Time after which a silent HTTP/2 client is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Time in which it must answer.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that an HTTP/2 connection without a request stays open after the client was told that it is closed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
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
    peer: impl Into<ConnectionPeer>,
    stop: CancellationToken,
) -> Option<StreamFuture>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // One type for TCP and Unix sockets: both HTTP versions are otherwise compiled for each of them, which is 250 KB.
    serve_client(Box::new(io), gateway, peer.into(), stop).await
}

/// A connection whose handshake has succeeded.
#[derive(Debug)]
pub struct OpenedConnection<I> {
    /// The byte stream.
    pub io: I,
    /// Its other end.
    pub peer: ConnectionPeer,
}

/// Serves one connection like [`serve_connection`] after a handshake, such as that of TLS. A handshake that takes longer than ten
/// seconds fails; if there are too many at the same time, the oldest fails.
///
/// # Cancel safety
/// As [`serve_connection`].
pub async fn serve_after_handshake<I>(
    handshake: impl Future<Output = io::Result<OpenedConnection<I>>> + Send,
    gateway: Arc<HttpGateway>,
    stop: CancellationToken,
) -> Option<StreamFuture>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let abandoned = stop.child_token();
    let slot = gateway.handshakes.enter(&abandoned);
    // Boxed, so that an open connection does not hold the memory of the handshake.
    let opened = tokio::select! {
        opened = timeout(HEADER_TIMEOUT, Box::pin(handshake)) => opened,
        () = abandoned.cancelled() => return None,
    };
    drop(slot);
    match opened {
        Ok(Ok(OpenedConnection { io, peer })) => serve_connection(io, gateway, peer, stop).await,
        Ok(Err(error)) => {
            tracing::debug!("a handshake failed: {error}");
            None
        }
        Err(_) => {
            tracing::debug!("a handshake took too long");
            None
        }
    }
}

async fn serve_client(
    io: Box<dyn ClientIo>,
    gateway: Arc<HttpGateway>,
    peer: ConnectionPeer,
    stop: CancellationToken,
) -> Option<StreamFuture> {
    let stop = stop.child_token();
    let is_proxy = peer.address.is_some_and(|address| gateway.is_trusted_proxy(address));
    let peer = ConnectionPeer { is_proxy, ..peer };
    let needs_login = peer.entrypoint != Entrypoint::Socket && !is_proxy;
    let unauthenticated = gateway.unauthenticated.as_ref().filter(|_| needs_login);
    let login = ConnectionLogin::new(unauthenticated.map(|connections| connections.enter(&stop)));
    let opened = tokio::select! {
        opened = timeout(HEADER_TIMEOUT, PeekIo::detect_version(io)) => opened,
        () = stop.cancelled() => return None,
    };
    let Ok(Ok((io, is_http2))) = opened else { return None };
    let clients = ConnectionClients::default();
    let meta_reader = RequestMetaReader::default();
    let conn = Arc::new(ConnectionContext { gateway, peer, clients, meta_reader, stop, login });
    if is_http2 {
        Box::pin(serve_http2(io, conn)).await;
        return None;
    }
    let mut headers_due = Instant::now() + HEADER_TIMEOUT;
    loop {
        // Boxed, so that an idle connection does not hold the memory of this future.
        match Box::pin(http1::serve(&io, &conn, headers_due)).await {
            ConnectionPhaseEnd::Closed => return None,
            ConnectionPhaseEnd::Unread => {
                let discarding = Box::pin(io.discard_input());
                conn.stop.run_until_cancelled(discarding).await;
                return None;
            }
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
                    has_more = timeout(idle_timeout(&conn), io.wait_readable()) => has_more.unwrap_or(false),
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

/// Returns the time after which a connection without a request is closed.
fn idle_timeout(conn: &ConnectionContext) -> Duration {
    if conn.login.is_authenticated() { IDLE_TIMEOUT } else { HEADER_TIMEOUT }
}

/// Serves an HTTP/2 connection until it ends, is idle for too long, or its client stops reading.
async fn serve_http2(io: PeekIo<Box<dyn ClientIo>>, conn: Arc<ConnectionContext>) {
    let stop = conn.stop.clone();
    let mut builder = http2::Builder::new(TrackedRequests(conn.gateway.tasks.clone()));
    builder.timer(TokioTimer::new()).max_concurrent_streams(MAX_HTTP2_STREAMS);
    builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    let monitor = Arc::<StreamMonitor>::default();
    let shared_monitor = monitor.clone();
    let shared_conn = conn.clone();
    let service = service_fn(move |mut request| {
        let conn = shared_conn.clone();
        let stream = shared_monitor.open_stream();
        Box::pin(async move {
            let response = handle_request(&conn, &mut request).await;
            Ok::<_, Infallible>(response.map(|body| stream.track(body)))
        })
    });
    let mut connection = Box::pin(builder.serve_connection(TokioIo::new(io), service));
    // Errors are ignored: the requests of a broken connection end with it.
    tokio::select! {
        _ = &mut connection => return,
        () = monitor.stalled() => return,
        () = monitor.idle(|| idle_timeout(&conn)) => {}
        () = stop.cancelled() => {}
        () = conn.gateway.draining.wait() => {}
    }
    connection.as_mut().graceful_shutdown();
    // A client that does not confirm the shutdown gets no further time.
    tokio::select! {
        _ = connection => {}
        () = monitor.stalled() => {}
        () = monitor.idle(|| SHUTDOWN_TIMEOUT) => {}
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
