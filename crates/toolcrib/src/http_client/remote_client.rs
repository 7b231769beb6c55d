//! The client of one remote server, whose HTTP/1.1 connections have no tasks of their own.
//!
//! A connection is polled by the request that uses it and by the reader of the response, so that a request takes no task switch.
//! An idle connection is not polled at all: the next request notices that the server has closed it, and is sent on another one.
//! An HTTP/2 connection carries many requests, and has a task.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::TokioTimer;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::{
    Connector, HTTP2_PING_INTERVAL, HTTP2_PING_TIMEOUT, HttpStream, IDLE_TIMEOUT, MAX_IDLE_PER_HOST,
    TrackedExecutor, root_cause,
};
use crate::util::locks::IgnorePoison as _;

type RequestBody = Full<Bytes>;
/// The reason why a request failed, and the request if it was not sent.
type SendFailure = Box<TrySendError<Request<RequestBody>>>;

/// Interval at which idle connections are looked through.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

/// The reason why a request has no response.
pub(crate) enum RemoteError {
    /// No connection could be opened.
    Unreachable(String),
    /// The connection broke after data may have been sent.
    Broken(String),
}

/// Sends requests to one remote server over connections that are kept for the next request.
pub(crate) struct RemoteClient {
    pool: Arc<ConnectionPool>,
}

struct ConnectionPool {
    connector: Connector,
    /// The host of the server as requests name it.
    host: Option<HeaderValue>,
    /// Runs the tasks of connections; the runtime of a caller may end earlier.
    runtime: Handle,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    kept: Mutex<KeptConnections>,
    /// Held while a connection to a server with HTTP/2 is opened, which is shared.
    opening_http2: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KeptConnections {
    idle: Vec<Box<Http1Connection>>,
    /// True while a task closes connections that have been idle for long.
    has_sweeper: bool,
    http2: Option<http2::SendRequest<RequestBody>>,
    /// True if the newest connection uses HTTP/2.
    is_http2: bool,
}

/// A connection that carries one request at a time.
struct Http1Connection {
    sender: http1::SendRequest<RequestBody>,
    /// `None` when it has ended.
    connection: Option<http1::Connection<HttpStream, RequestBody>>,
    is_proxied: bool,
    idle_since: Instant,
}

/// A connection that a request can be sent on.
struct ReadyConnection {
    protocol: ConnectionProtocol,
    /// True if no request was sent on it before.
    is_new: bool,
}

enum ConnectionProtocol {
    Http1(Box<Http1Connection>),
    Http2(http2::SendRequest<RequestBody>),
}

impl RemoteClient {
    /// Creates a client for the server at `url` in the current runtime, whose tasks end with `shutdown`.
    pub(crate) fn new(
        url: &Uri,
        connector: Connector,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Self {
        let pool = ConnectionPool {
            connector,
            host: host_header(url),
            runtime: Handle::current(),
            tasks,
            shutdown,
            kept: Mutex::default(),
            opening_http2: tokio::sync::Mutex::default(),
        };
        Self { pool: Arc::new(pool) }
    }

    /// Sends a request and returns the head of the response. A request that was not sent because its connection had been closed
    /// is sent on another one.
    pub(crate) async fn request(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<RemoteBody>, RemoteError> {
        let url = request.uri().clone();
        loop {
            let ReadyConnection { protocol, is_new } = match self.pool.take() {
                Some(connection) => connection,
                None => self.pool.open(&url).await?,
            };
            let sent = match protocol {
                ConnectionProtocol::Http1(connection) => {
                    self.pool.prepare_http1(&mut request, connection.is_proxied);
                    connection.send(request, &self.pool).await
                }
                ConnectionProtocol::Http2(mut sender) => {
                    let sent = sender.try_send_request(request).await;
                    sent.map(|response| response.map(RemoteBody::from)).map_err(Box::new)
                }
            };
            let mut failure = match sent {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            // It was not sent: the server had closed the connection.
            let Some(returned) = failure.take_message().filter(|_| !is_new) else {
                return Err(RemoteError::Broken(root_cause(&failure.into_error())));
            };
            request = returned;
            *request.uri_mut() = url.clone();
        }
    }
}

/// Returns the `Host` header for a URL: its host, and its port unless that is the usual one.
fn host_header(url: &Uri) -> Option<HeaderValue> {
    let host = url.host()?;
    let usual_port = if url.scheme_str() == Some("https") { 443 } else { 80 };
    match url.port_u16().filter(|port| *port != usual_port) {
        Some(port) => HeaderValue::try_from(format!("{host}:{port}")).ok(),
        None => HeaderValue::from_str(host).ok(),
    }
}

impl ConnectionPool {
    fn kept(&self) -> MutexGuard<'_, KeptConnections> {
        self.kept.lock().ignore_poison()
    }

    /// Sets the target and the host of a request as HTTP/1.1 has them.
    fn prepare_http1(&self, request: &mut Request<RequestBody>, is_proxied: bool) {
        if !is_proxied {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
        }
        let headers = request.headers_mut();
        if let Some(host) = self.host.as_ref().filter(|_| !headers.contains_key(HOST)) {
            headers.insert(HOST, host.clone());
        }
    }

    /// Takes a kept connection.
    fn take(&self) -> Option<ReadyConnection> {
        let mut kept = self.kept();
        kept.http2.take_if(|sender| sender.is_closed());
        let protocol = match &kept.http2 {
            Some(sender) => ConnectionProtocol::Http2(sender.clone()),
            // The newest one is the least likely to have been closed.
            None => ConnectionProtocol::Http1(kept.idle.pop()?),
        };
        Some(ReadyConnection { protocol, is_new: false })
    }

    /// Opens a connection. With HTTP/2, one that another request has opened in the meantime is shared.
    async fn open(self: &Arc<Self>, url: &Uri) -> Result<ReadyConnection, RemoteError> {
        let is_http2 = self.kept().is_http2;
        let _opening = match is_http2 {
            true => Some(self.opening_http2.lock().await),
            false => None,
        };
        if let Some(connection) = is_http2.then(|| self.take()).flatten() {
            return Ok(connection);
        }
        let pool = self.clone();
        let url = url.clone();
        // In the runtime of the server's supervisor: that of the caller may end while the connection is kept.
        let opening = self.spawn(async move { pool.connect(url).await });
        let opened = AbortOnDropHandle::new(opening).await.ok().flatten();
        match opened.unwrap_or_else(|| Err("it was closed".to_owned())) {
            Ok(protocol) => Ok(ReadyConnection { protocol, is_new: true }),
            Err(reason) => Err(RemoteError::Unreachable(reason)),
        }
    }

    /// Spawns a task that ends when the client is shut down.
    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let shutdown = self.shutdown.clone();
        let task: Pin<Box<dyn Future<Output = Option<T>> + Send>> =
            Box::pin(shutdown.run_until_cancelled_owned(task));
        self.tasks.spawn_on(task, &self.runtime)
    }

    async fn connect(&self, url: Uri) -> Result<ConnectionProtocol, String> {
        let stream = self.connector.clone().connect(url).await.map_err(|error| root_cause(&error))?;
        let is_http2 = stream.connected().is_negotiated_h2();
        self.kept().is_http2 = is_http2;
        if is_http2 {
            return self.start_http2(stream).await.map_err(|error| root_cause(&error));
        }
        let is_proxied = matches!(stream, HttpStream::Plain { proxied: true, .. });
        let (sender, connection) = http1::handshake(stream).await.map_err(|error| root_cause(&error))?;
        Ok(ConnectionProtocol::Http1(Box::new(Http1Connection {
            sender,
            connection: Some(connection),
            is_proxied,
            idle_since: Instant::now(),
        })))
    }

    async fn start_http2(&self, stream: HttpStream) -> hyper::Result<ConnectionProtocol> {
        let executor = TrackedExecutor { tasks: self.tasks.clone(), shutdown: self.shutdown.clone() };
        let mut builder = http2::Builder::new(executor.clone());
        builder.timer(TokioTimer::new());
        builder.keep_alive_interval(HTTP2_PING_INTERVAL).keep_alive_timeout(HTTP2_PING_TIMEOUT);
        let (sender, connection) = builder.handshake(stream).await?;
        hyper::rt::Executor::execute(&executor, async move { drop(connection.await) });
        self.kept().http2 = Some(sender.clone());
        Ok(ConnectionProtocol::Http2(sender))
    }

    /// Keeps a connection for the next request, if the server keeps it open.
    fn keep(self: &Arc<Self>, mut connection: Box<Http1Connection>) {
        // Replaces the waker of the task that has used it, which nothing should wake for this connection from now on.
        let mut context = Context::from_waker(Waker::noop());
        if !connection.poll_open(&mut context)
            || !connection.sender.is_ready()
            || self.shutdown.is_cancelled()
        {
            return;
        }
        connection.idle_since = Instant::now();
        let mut kept = self.kept();
        if kept.idle.len() < MAX_IDLE_PER_HOST {
            kept.idle.push(connection);
        }
        if !std::mem::replace(&mut kept.has_sweeper, true) {
            drop(kept);
            self.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes connections that have been idle for long. Returns false if none is left.
    fn close_idle(&self) -> bool {
        let mut kept = self.kept();
        kept.idle.retain(|connection| connection.idle_since.elapsed() < IDLE_TIMEOUT);
        kept.has_sweeper = !kept.idle.is_empty();
        kept.has_sweeper
    }
}

/// Closes idle connections until there are none.
async fn sweep(pool: Weak<ConnectionPool>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_idle()) {
            return;
        }
    }
}

impl Http1Connection {
    /// Does what the connection has to do, and returns whether it is still open.
    fn poll_open(&mut self, context: &mut Context<'_>) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let is_open = Pin::new(connection).poll(context).is_pending();
        if !is_open {
            self.connection = None; // returns a request that was not sent
        }
        is_open
    }

    async fn send(
        mut self: Box<Self>,
        request: Request<RequestBody>,
        pool: &Arc<ConnectionPool>,
    ) -> Result<Response<RemoteBody>, SendFailure> {
        let mut sent = pin!(self.sender.try_send_request(request));
        let response = poll_fn(|context| {
            self.poll_open(context);
            poll_quietly(sent.as_mut())
        })
        .await
        .map_err(Box::new)?;
        let (head, incoming) = response.into_parts();
        let is_open = self.connection.is_some();
        let in_use = is_open.then(|| InUse { connection: self, pool: pool.clone() });
        Ok(Response::from_parts(head, RemoteBody { incoming, in_use }))
    }
}

/// Polls a future that only the connection makes ready, after the connection was polled by the same task. It needs no waker, and
/// a task is not woken for what it has just done. The budget of the task must not hide a result.
fn poll_quietly<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    pin!(unconstrained(future)).poll(&mut context)
}

/// The body of a response. The connection is kept when the body was read to its end, and closed if it is dropped before.
pub(crate) struct RemoteBody {
    incoming: Incoming,
    /// The connection that the reader of the body polls; `None` if it has a task or has ended.
    in_use: Option<InUse>,
}

/// A connection during a response, and the pool that it returns to.
struct InUse {
    connection: Box<Http1Connection>,
    pool: Arc<ConnectionPool>,
}

impl From<Incoming> for RemoteBody {
    /// Creates the body of a response whose connection has a task.
    fn from(incoming: Incoming) -> Self {
        Self { incoming, in_use: None }
    }
}

impl Body for RemoteBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Self { incoming, in_use } = &mut *self;
        let Some(InUse { connection, .. }) = in_use else { return Pin::new(incoming).poll_frame(context) };
        let mut quiet = Context::from_waker(Waker::noop());
        let mut frame = Pin::new(&mut *incoming).poll_frame(&mut quiet);
        if frame.is_pending() {
            if !connection.poll_open(context) {
                *in_use = None; // a body that is not complete ends with an error
            }
            frame = Pin::new(incoming).poll_frame(&mut quiet);
        }
        let frame = ready!(frame);
        if frame.is_none()
            && let Some(InUse { connection, pool }) = in_use.take()
        {
            pool.keep(connection);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

    async fn listen() -> (TcpListener, RemoteClient, Uri) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}/mcp?a=b", listener.local_addr().unwrap()).parse().unwrap();
        let connector = Connector::new(&url).unwrap();
        let client = RemoteClient::new(&url, connector, TaskTracker::new(), CancellationToken::new());
        (listener, client, url)
    }

    fn post(url: &Uri) -> Request<RequestBody> {
        Request::post(url).body(Full::new(Bytes::from_static(b"ping"))).unwrap()
    }

    /// Reads one request up to the end of its body.
    async fn read_request(stream: &mut TcpStream) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"ping") {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "the connection was closed");
        }
        String::from_utf8(request).unwrap()
    }

    async fn read_response(client: &RemoteClient, url: &Uri) -> Bytes {
        let Ok(response) = client.request(post(url)).await else { panic!("no response") };
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn connection_is_used_again_after_its_response_was_read() {
        let (listener, client, url) = listen().await;
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut requests = Vec::new();
            for _ in 0..3 {
                requests.push(read_request(&mut stream).await);
                stream.write_all(RESPONSE).await.unwrap();
            }
            requests
        });
        for _ in 0..3 {
            assert_eq!(read_response(&client, &url).await, "{}");
        }
        let host = format!("host: {}\r\n", url.authority().unwrap());
        for request in server.await.unwrap() {
            assert!(request.starts_with("POST /mcp?a=b HTTP/1.1\r\n"), "{request}");
            assert!(request.contains(&host), "{request}");
        }
    }

    #[tokio::test]
    async fn request_is_sent_on_another_connection_if_the_kept_one_is_closed() {
        let (listener, client, url) = listen().await;
        let mut peers = Vec::new();
        for _ in 0..2 {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                read_request(&mut stream).await;
                stream.write_all(RESPONSE).await.unwrap();
                stream
            };
            let (response, stream) = tokio::join!(read_response(&client, &url), serve);
            assert_eq!(response, "{}");
            assert_eq!(client.pool.kept().idle.len(), 1);
            peers.push(stream.peer_addr().unwrap());
            drop(stream);
            // The end of the connection arrives before this one is accepted.
            let (_other, _) =
                tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        }
        assert_ne!(peers[0], peers[1]);
    }

    #[tokio::test]
    async fn connection_is_closed_if_its_response_is_dropped() {
        let (listener, client, url) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
            stream
        };
        let (response, mut stream) = tokio::join!(client.request(post(&url)), serve);
        drop(response.ok());
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(client.pool.kept().idle.is_empty());
    }

    #[tokio::test]
    async fn incomplete_body_is_an_error() {
        let (listener, client, url) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
        };
        let (response, ()) = tokio::join!(client.request(post(&url)), serve);
        let Ok(response) = response else { panic!("no response") };
        assert!(response.into_body().collect().await.is_err());
    }

    #[tokio::test]
    async fn idle_connection_is_closed_after_a_while() {
        let (listener, client, url) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(RESPONSE).await.unwrap();
            stream
        };
        let (_, mut stream) = tokio::join!(read_response(&client, &url), serve);
        tokio::time::pause();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(client.pool.kept().idle.is_empty());
    }
}
