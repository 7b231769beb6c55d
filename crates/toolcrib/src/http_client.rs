//! The HTTP client: TCP, the proxy from the environment, TLS for https, and a pool of connections.

pub(crate) mod address_rules;
pub(crate) mod forward;
pub(crate) mod post;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Executor, Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use self::address_rules::{AddressRules, FORBIDDEN_ADDRESS};
use crate::util::tasks::SpawnBoxed as _;

/// Time limit for connecting and for the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle connections kept per host.
const MAX_IDLE_PER_HOST: usize = 32;
/// Idle time before TCP keepalive probes.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
/// Interval of HTTP/2 pings.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for the response to an HTTP/2 ping.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) type HttpClient = Client<Connector, Full<Bytes>>;

/// Builds a client with its own connection pool, whose tasks end with `shutdown`.
pub(crate) fn build_client(
    connector: Connector,
    tasks: TaskTracker,
    shutdown: CancellationToken,
) -> HttpClient {
    Client::builder(TrackedExecutor { tasks, shutdown })
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
        .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
        .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT)
        .build(connector)
}

/// Runs hyper's tasks where they are tracked.
#[derive(Clone)]
struct TrackedExecutor {
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for TrackedExecutor {
    fn execute(&self, future: F) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn_boxed(async move { shutdown.run_until_cancelled(future).await });
    }
}

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    proxies: Arc<Matcher>,
    tls: Option<TlsConnector>,
    /// Addresses that may be connected to without a proxy; all if absent.
    peers: Option<AddressRules>,
}

impl Connector {
    /// Creates a connector for one URL. Loads the system's certificates for https, which blocks for a moment.
    pub(crate) fn new(url: &Uri) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE)); // an HTTP/1.1 stream may be idle for long
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = match url.scheme_str() {
            Some("https") => Some(tls_connector(&[b"h2", b"http/1.1"])?),
            _ => None,
        };
        Ok(Self { tcp, proxies: Arc::new(Matcher::from_env()), tls, peers: None })
    }

    /// Creates a connector for other replicas at URLs with this scheme: without a proxy, because their requests are signed for
    /// the replica alone, and with HTTP/1.1, because streams of HTTP/2 on one connection are limited.
    pub(crate) fn for_replicas(url: &Uri, connect_timeout: Duration) -> Result<Self, String> {
        let mut connector = Self::new(url)?;
        connector.tcp.set_connect_timeout(Some(connect_timeout));
        connector.proxies = Arc::new(Matcher::builder().build());
        if url.scheme_str() == Some("https") {
            connector.tls = Some(tls_connector(&[b"http/1.1"])?);
        }
        Ok(connector)
    }

    /// Restricts direct connections to addresses that `rules` allow. Nothing is sent to others.
    pub(crate) fn restrict(mut self, rules: AddressRules) -> Self {
        self.peers = Some(rules);
        self
    }

    /// Returns the authorization header for requests that a proxy reads itself.
    pub(crate) fn proxy_authorization(&self, url: &Uri) -> Option<HeaderValue> {
        let plain = url.scheme_str() == Some("http");
        self.proxy(url).filter(|_| plain)?.basic_auth().cloned()
    }

    /// Returns the proxy for a URL; loopback is reached directly.
    fn proxy(&self, url: &Uri) -> Option<Intercept> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_loopback =
            host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if is_loopback { None } else { self.proxies.intercept(url) }
    }

    async fn connect(mut self, url: Uri) -> io::Result<HttpStream> {
        let proxy = self.proxy(&url);
        let Some(tls) = self.tls.take().filter(|_| url.scheme_str() == Some("https")) else {
            let (proxied, target) = match &proxy {
                Some(proxy) => (true, plain_proxy(proxy)?),
                None => (false, url),
            };
            let io = self.tcp.call(target).await.map_err(to_io_error)?;
            if !proxied {
                self.check_peer(&io)?;
            }
            return Ok(HttpStream::Plain { io, proxied });
        };
        let tcp = match &proxy {
            None => {
                let tcp = self.tcp.call(url.clone()).await.map_err(to_io_error)?;
                self.check_peer(&tcp)?;
                tcp
            }
            Some(proxy) => {
                let mut tunnel = Tunnel::new(plain_proxy(proxy)?, self.tcp);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                tunnel.call(url.clone()).await.map_err(|error| proxy_error(&error))?
            }
        };
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, tls.connect(name, tcp.into_inner()));
        Ok(HttpStream::Tls(Box::new(TokioIo::new(stream.await??))))
    }

    fn check_peer(&self, tcp: &TokioIo<TcpStream>) -> io::Result<()> {
        let Some(rules) = self.peers else { return Ok(()) };
        let peer = tcp.inner().peer_addr()?.ip();
        if rules.allow_address(peer) { Ok(()) } else { Err(io::Error::other(FORBIDDEN_ADDRESS)) }
    }
}

fn tls_connector(protocols: &[&[u8]]) -> Result<TlsConnector, String> {
    let trusted = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    if roots.add_parsable_certificates(trusted.certs).0 == 0 {
        let detail = trusted.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!("no trusted certificates were found on this system{detail}"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up TLS: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn plain_proxy(proxy: &Intercept) -> io::Result<Uri> {
    match proxy.uri().scheme_str() {
        Some("http") | None => Ok(proxy.uri().clone()),
        Some(scheme) => Err(io::Error::other(format!("proxy scheme `{scheme}` is not supported"))),
    }
}

fn proxy_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    io::Error::other(format!("the proxy could not connect: {}", root_cause(error)))
}

fn to_io_error(error: impl std::error::Error + 'static) -> io::Error {
    io::Error::other(root_cause(&error))
}

/// Returns the text of an error's innermost cause; the outer ones only repeat the context.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

impl Service<Uri> for Connector {
    type Response = HttpStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<HttpStream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        Box::pin(self.clone().connect(url))
    }
}

/// An open connection.
pub(crate) enum HttpStream {
    Plain { io: TokioIo<TcpStream>, proxied: bool },
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain { io, proxied } => io.inner().connected().proxy(*proxied),
            Self::Tls(io) => {
                let (tcp, tls) = io.inner().get_ref();
                let connected = tcp.connected();
                if tls.alpn_protocol() == Some(b"h2") { connected.negotiated_h2() } else { connected }
            }
        }
    }
}

impl Read for HttpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain { io, .. } => Pin::new(io).poll_read(context, room),
            Self::Tls(io) => Pin::new(io).poll_read(context, room),
        }
    }
}

impl Write for HttpStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain { io, .. } => Pin::new(io).poll_write(context, bytes),
            Self::Tls(io) => Pin::new(io).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain { io, .. } => Pin::new(io).poll_flush(context),
            Self::Tls(io) => Pin::new(io).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain { io, .. } => Pin::new(io).poll_shutdown(context),
            Self::Tls(io) => Pin::new(io).poll_shutdown(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain { io, .. } => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(match self.get_mut() {
            Self::Plain { io, .. } => Pin::new(io).poll_write_vectored(context, pieces),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(context, pieces),
        });
        Poll::Ready(written)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test]
    async fn plain_connection_uses_tcp_keepalive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let stream = Connector::new(&url).unwrap().connect(url).await.unwrap();
        let HttpStream::Plain { io, .. } = stream else { panic!("not a plain connection") };
        let socket = TcpSocket::from_std_stream(io.into_inner().into_std().unwrap());
        assert!(socket.keepalive().unwrap());
    }
}
