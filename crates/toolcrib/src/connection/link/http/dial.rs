//! How a remote server is reached: over TCP, through the proxy that the environment names, with TLS where its address
//! asks for it.

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

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How many of them are.
const MOST_IDLE: usize = 32;
/// When the system asks whether the other end of a quiet connection still lives.
const QUIET: Duration = Duration::from_secs(60);
/// When a shared connection is asked whether it still lives, and how long it may take to say so.
const ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

pub(super) type HttpClient = Client<Dialer, Full<Bytes>>;

/// A client with a pool of connections of its own, whose tasks all end with `over`.
pub(super) fn client(dialer: Dialer, tasks: TaskTracker, over: CancellationToken) -> HttpClient {
    Client::builder(Tasks { tasks, over })
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MOST_IDLE)
        .http2_keep_alive_interval(ALIVE.0)
        .http2_keep_alive_timeout(ALIVE.1)
        .build(dialer)
}

/// Runs what hyper wants run, where it is waited for.
#[derive(Clone)]
struct Tasks {
    tasks: TaskTracker,
    over: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        let over = self.over.clone();
        self.tasks.spawn(async move { over.run_until_cancelled(future).await });
    }
}

/// Makes connections.
#[derive(Clone)]
pub(super) struct Dialer {
    tcp: HttpConnector,
    proxies: Arc<Matcher>,
    tls: Option<TlsConnector>,
}

impl Dialer {
    /// For one address. Reads the system's certificates if it needs them, which takes a moment.
    pub(super) fn new(address: &Uri) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(QUIET)); // a stream over HTTP/1.1 may have nothing to say for long
        tcp.set_connect_timeout(Some(CONNECT));
        let tls = match address.scheme_str() {
            Some("https") => Some(tls()?),
            _ => None,
        };
        Ok(Self { tcp, proxies: Arc::new(Matcher::from_env()), tls })
    }

    /// What a proxy wants to see with every request that it reads itself.
    pub(super) fn proxy_authorization(&self, address: &Uri) -> Option<HeaderValue> {
        let plain = address.scheme_str() == Some("http");
        self.proxy(address).filter(|_| plain)?.basic_auth().cloned()
    }

    /// The proxy for an address; this machine is reached without one.
    fn proxy(&self, address: &Uri) -> Option<Intercept> {
        let host = address.host().unwrap_or_default().trim_matches(['[', ']']);
        let here = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if here { None } else { self.proxies.intercept(address) }
    }

    async fn dial(mut self, address: Uri) -> io::Result<Wire> {
        let proxy = self.proxy(&address);
        let Some(tls) = self.tls.take().filter(|_| address.scheme_str() == Some("https")) else {
            let (proxied, next) = match &proxy {
                Some(proxy) => (true, plain_proxy(proxy)?),
                None => (false, address),
            };
            let io = self.tcp.call(next).await.map_err(innermost)?;
            return Ok(Wire::Plain { io, proxied });
        };
        let tcp = match &proxy {
            None => self.tcp.call(address.clone()).await.map_err(innermost)?,
            Some(proxy) => {
                let mut tunnel = Tunnel::new(plain_proxy(proxy)?, self.tcp);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                tunnel.call(address.clone()).await.map_err(|error| via_proxy(&error))?
            }
        };
        let host = address.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = tokio::time::timeout(CONNECT, tls.connect(name, tcp.into_inner()));
        Ok(Wire::Tls(Box::new(TokioIo::new(stream.await??))))
    }
}

fn tls() -> Result<TlsConnector, String> {
    let trusted = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    if roots.add_parsable_certificates(trusted.certs).0 == 0 {
        let why = trusted.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!("this system trusts no certificates{why}"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn plain_proxy(proxy: &Intercept) -> io::Result<Uri> {
    match proxy.uri().scheme_str() {
        Some("http") | None => Ok(proxy.uri().clone()),
        Some(scheme) => Err(io::Error::other(format!("a proxy that speaks `{scheme}` is not supported"))),
    }
}

fn via_proxy(error: &(dyn std::error::Error + 'static)) -> io::Error {
    io::Error::other(format!("the proxy could not connect: {}", said_last(error)))
}

fn innermost(error: impl std::error::Error + 'static) -> io::Error {
    io::Error::other(said_last(&error))
}

/// What the innermost cause of an error says; those around it only repeat where it happened.
pub(super) fn said_last(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

impl Service<Uri> for Dialer {
    type Response = Wire;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Wire>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        Box::pin(self.clone().dial(address))
    }
}

/// One connection.
pub(super) enum Wire {
    Plain { io: TokioIo<TcpStream>, proxied: bool },
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for Wire {
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

impl Read for Wire {
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

impl Write for Wire {
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
    async fn a_quiet_connection_is_asked_whether_it_lives() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let wire = Dialer::new(&address).unwrap().dial(address).await.unwrap();
        let Wire::Plain { io, .. } = wire else { panic!("it is not a plain one") };
        let socket = TcpSocket::from_std_stream(io.into_inner().into_std().unwrap());
        assert!(socket.keepalive().unwrap());
    }
}
