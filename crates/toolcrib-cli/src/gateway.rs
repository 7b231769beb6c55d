//! The running gateway: binds its listeners, accepts connections, and drains on shutdown.

mod handle;
mod lock;
mod log_files;
mod peer_check;
mod per_ip_limit;
mod settings;
mod signals;
mod socket_activation;
#[cfg(target_os = "linux")]
mod socket_owners;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::Config;
use toolcrib::store::SigningKey;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{CallEnd, Caller, Catalog, ClientCapabilities, Crib, CribBuilder, ErrorKind, Settings};
use toolcrib_serve::{
    ActiveCallers, AdminRoutes, ConnectionPeer, Entrypoint, FailedLogins, HttpGateway, McpService,
    StreamFuture, serve_connection,
};

use crate::audit::{AdminAction, Audit};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::hints::hint_text;
use crate::listen::ListenAddr;
use crate::paths::Paths;
use crate::secrets::SecretLocator;
use crate::sources::ConfigStamp;

pub(crate) use self::handle::GatewayHandle;
use self::handle::StampedConfig;
use self::lock::GatewayLock;
use self::log_files::LogFiles;
pub(crate) use self::log_files::read_log;
use self::peer_check::PeerCheck;
use self::per_ip_limit::{ConnectionPermit, ConnectionsByIp};
use self::settings::{GatewaySettings, SettingsTarget, library_settings};
pub(crate) use self::signals::{SignalRequest, Signals};

/// Time that finished responses get to reach their clients after every server has stopped.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay before the next attempt when `accept` fails, usually for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Time without a change of the catalog after which free memory is returned to the system: servers often start together.
const TRIM_DELAY: Duration = Duration::from_millis(200);
/// Changes of the catalog that are waited for at most. A server may change its lists all the time.
const MAX_TRIM_DELAYS: usize = 50;
/// Shortest time between two returns of free memory to the system.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// File descriptors that public connections may not use, or half of the limit if that is less.
const RESERVED_FDS: usize = 256;

/// A gateway with its listeners bound.
pub(crate) struct Gateway {
    crib: Crib,
    handle: GatewayHandle,
    http: Arc<HttpGateway>,
    public_listener: Listener,
    socket_listener: Listener,
    peer_check: PeerCheck,
    drain_timeout: Duration,
    tasks: TaskTracker,
    logs: LogFiles,
    /// Ends the accept loops and tells every connection to finish.
    stop: CancellationToken,
    _lock: GatewayLock,
}

/// An open port or socket.
enum Listener {
    Tcp(Arc<TcpListener>),
    Unix(Arc<UnixListener>, SocketFile),
}

/// A socket file that is removed on drop.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Gateway {
    /// Locks the config, binds the listeners and builds the crib. Connections are served from [`Gateway::accept`] on, and
    /// their admin requests by what `admin` returns.
    pub(crate) async fn open(
        paths: &Paths,
        config: &Config,
        stamp: ConfigStamp,
        listen: &ListenAddr,
        admin: impl FnOnce(GatewayHandle) -> Arc<dyn AdminRoutes>,
    ) -> Result<Self, CommandError> {
        let secrets = SecretLocator::new(paths, &config.secrets);
        let settings = load_settings(config, &secrets).await?;
        let inherited = socket_activation::take_listener(|name| std::env::var(name).ok())
            .map_err(|error| activation_failed(&error))?;
        let listen = match &inherited {
            Some((_, address)) => &ListenAddr::Tcp(*address),
            None => listen,
        };
        listen.check_exposure(!settings.callers.is_empty())?;
        let peer_check = PeerCheck::new(listen, settings.listen.any_user);
        peer_check.check_available(!settings.callers.is_empty())?;
        paths.create_run_dir()?;
        let lock = GatewayLock::acquire(&paths.lock_path())?;
        let public = bind_public(inherited.map(|(listener, _)| listener), listen).await?;
        let socket = bind_own_socket(paths)?;
        let tasks = TaskTracker::new();
        let logs = LogFiles::new(paths.log_dir(), &tasks);
        let audit = Arc::new(Audit::new(settings.audit.as_ref())?);
        let builder = with_signing_key(builder(paths, settings.settings, &secrets), paths)
            .listing_wait(settings.limits.listing_wait);
        let crib = build_crib(builder.log(logs.sink()).observer(audit.clone()))?;
        let callers = Arc::new(ActiveCallers::new(settings.callers));
        let login_audit = audit.clone();
        let target = SettingsTarget {
            crib: crib.clone(),
            callers: callers.clone(),
            secrets,
            audit,
            is_exposed: listen.is_exposed(),
            peer_check: peer_check.clone(),
        };
        let sources = paths.sources().clone().for_gateway();
        let handle = GatewayHandle::new(target, sources, StampedConfig { config, stamp });
        let hosts = settings.listen.hosts.into_iter().chain(listen.host()).collect();
        let http = HttpGateway::new(service(paths, &crib), callers, &settings.limits)
            .with_admin(admin(handle.clone()))
            .with_hosts(hosts)
            .with_max_unauthenticated(max_public_connections() / 2)
            .with_failed_logins(move |failed| record_failed_logins(&login_audit, failed));
        Ok(Self {
            crib,
            handle,
            http: Arc::new(http),
            public_listener: public,
            socket_listener: socket,
            peer_check,
            drain_timeout: settings.limits.drain,
            tasks,
            logs,
            stop: CancellationToken::new(),
            _lock: lock,
        })
    }

    /// Returns the address it listens on, as shown to people and clients.
    pub(crate) fn address(&self) -> String {
        match &self.public_listener {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}/mcp"),
                Err(error) => format!("http://?/mcp ({error})"),
            },
            Listener::Unix(_, file) => format!("unix:{}", file.0.display()),
        }
    }

    /// Returns the TCP port, if it listens on one.
    pub(crate) fn port(&self) -> Option<u16> {
        self.public_listener.port()
    }

    /// Returns the handle: status and reloads.
    pub(crate) fn handle(&self) -> &GatewayHandle {
        &self.handle
    }

    /// Starts to serve connections.
    pub(crate) fn accept(&self) {
        self.accept_on(&self.public_listener, max_public_connections());
        self.accept_on(&self.socket_listener, Semaphore::MAX_PERMITS);
        let catalog = self.handle.crib().watch_catalog();
        self.tasks.spawn_boxed(return_free_memory(self.http.clone(), catalog, self.stop.clone()));
    }

    /// Serves connections of one listener, at most `max_connections` at the same time.
    fn accept_on(&self, listener: &Listener, max_connections: usize) {
        let limits = AcceptLimits {
            permits: Arc::new(Semaphore::new(max_connections)),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
        };
        let http = self.http.clone();
        match listener {
            Listener::Tcp(listener) => {
                let acceptor = TcpAcceptor { listener: listener.clone(), by_ip: ConnectionsByIp::default() };
                let peer_check = self.peer_check.clone();
                let serve = move |accepted: AcceptedTcp, stop| {
                    let http = http.clone();
                    let peer_check = peer_check.clone();
                    async move {
                        let AcceptedTcp { stream, peer } = accepted;
                        let peer = identify(peer_check, peer, stream.local_addr().ok()).await;
                        serve_connection(stream, http, peer, stop).await
                    }
                };
                self.tasks.spawn_boxed(accept_all(acceptor, limits, serve));
            }
            Listener::Unix(listener, _) => {
                let acceptor = UnixAcceptor { listener: listener.clone() };
                let serve =
                    move |stream, stop| serve_connection(stream, http.clone(), Entrypoint::Socket, stop);
                self.tasks.spawn_boxed(accept_all(acceptor, limits, serve));
            }
        }
    }

    /// Stops accepting, lets calls in flight finish within the drain timeout or until `hurry` resolves, and stops every
    /// server.
    pub(crate) async fn close(self, hurry: impl Future<Output = ()>) {
        let Self {
            crib,
            handle,
            http,
            public_listener,
            socket_listener,
            drain_timeout,
            tasks,
            logs,
            stop,
            ..
        } = self;
        handle.close();
        stop.cancel();
        // Closed listeners refuse new clients immediately; open ones would leave them waiting.
        drop(public_listener);
        drop(socket_listener);
        tokio::select! {
            () = crib.shutdown(drain_timeout) => {}
            () = hurry => crib.shutdown(Duration::ZERO).await,
        }
        // Ends the log writer after the last line.
        drop(logs);
        tasks.close();
        let all_ended = async { tokio::join!(tasks.wait(), http.finish()) };
        if timeout(FINAL_WRITE_TIMEOUT, all_ended).await.is_err() {
            tracing::warn!("some clients did not read their responses in time");
        }
    }
}

/// Returns the service of a crib, with hints as commands of this program.
fn service(paths: &Paths, crib: &Crib) -> McpService {
    let hints = paths.hints();
    McpService::new(crib.clone()).with_hints(move |hint| hints.complete(&hint_text(hint)).into_owned())
}

/// Resolves the settings of a config, which may read secret stores.
async fn load_settings(config: &Config, secrets: &SecretLocator) -> Result<GatewaySettings, CommandError> {
    let config = config.clone();
    let secrets = secrets.clone();
    let loaded = tokio::task::spawn_blocking(move || GatewaySettings::from_config(&config, &secrets)).await;
    loaded.unwrap_or_else(|error| Err(CommandError::unexpected(&error)))
}

/// Builds a crib for commands that run without a gateway.
pub(crate) fn build(paths: &Paths, config: &Config) -> Result<Crib, CommandError> {
    let audit = Arc::new(Audit::new(config.audit.as_ref())?);
    let secrets = SecretLocator::new(paths, &config.secrets);
    let builder = builder(paths, library_settings(config), &secrets).observer(audit);
    build_crib(builder.listing_wait(config.limits.listing_wait))
}

fn builder(paths: &Paths, settings: Settings, secrets: &SecretLocator) -> CribBuilder {
    Crib::builder()
        .roster(settings.roster)
        .policy(settings.policy)
        .expose(settings.expose)
        .limits(settings.limits)
        .capacity(settings.capacity)
        .state_dir(paths.state_dir())
        .pins_dir(paths.pins_dir())
        .usage_file(paths.usage_file())
        .client_capabilities(ClientCapabilities::all())
        .secrets(secrets.clone())
        .shim_self()
}

/// Adds the signing key of the state folder. Without it the gateway works, but does not recognize states from before a
/// restart.
fn with_signing_key(builder: CribBuilder, paths: &Paths) -> CribBuilder {
    match SigningKey::open_or_create(&paths.signing_key_file()) {
        Ok(key) => builder.signing_key(key),
        Err(error) => {
            tracing::warn!("calls that wait for input will not be recognized after a restart: {error}");
            builder
        }
    }
}

fn build_crib(builder: CribBuilder) -> Result<Crib, CommandError> {
    builder
        .build()
        .map_err(|error| CommandError::new(ExitStatus::InvalidConfig, "config_invalid", error.to_string()))
}

impl Listener {
    fn tcp(listener: TcpListener) -> Self {
        Self::Tcp(Arc::new(listener))
    }

    fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
            Self::Unix(..) => None,
        }
    }
}

/// Refuses a configured socket path on which another process listens. The gateway's own socket is covered by the lock.
async fn refuse_if_in_use(path: &Path) -> Result<(), CommandError> {
    match UnixStream::connect(path).await {
        Ok(_) => {
            Err(CommandError::usage(format!("another process is already listening on `{}`", path.display())))
        }
        Err(_) => Ok(()),
    }
}

/// Uses the inherited socket, or binds the configured address.
async fn bind_public(
    inherited: Option<std::net::TcpListener>,
    listen: &ListenAddr,
) -> Result<Listener, CommandError> {
    let bound = match (inherited, listen) {
        (Some(listener), _) => TcpListener::from_std(listener).map(Listener::tcp),
        (None, ListenAddr::Tcp(address)) => TcpListener::bind(address).await.map(Listener::tcp),
        (None, ListenAddr::Unix(path)) => {
            refuse_if_in_use(path).await?;
            bind_unix(path)
        }
    };
    bound.map_err(|error| cannot_listen(listen, &error))
}

/// Binds a socket file that only this user can open, replacing one that a dead process left behind.
fn bind_unix(path: &Path) -> io::Result<Listener> {
    use std::os::unix::fs::FileTypeExt as _;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file of that name exists")),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(Listener::Unix(Arc::new(listener), file))
}

/// Binds the gateway's own socket.
fn bind_own_socket(paths: &Paths) -> Result<Listener, CommandError> {
    let path = paths.socket_path();
    bind_unix(&path).map_err(|error| cannot_listen(&ListenAddr::Unix(path.clone()), &error))
}

fn activation_failed(error: &io::Error) -> CommandError {
    let message = format!("cannot use the socket passed in `LISTEN_FDS`: {error}");
    CommandError::new(ExitStatus::Failure, "cannot_listen", message)
        .hint("pass exactly one listening TCP socket")
}

fn cannot_listen(listen: &ListenAddr, cause: &io::Error) -> CommandError {
    let message = format!("cannot listen on {listen}: {cause}");
    let error = CommandError::new(ExitStatus::Failure, "cannot_listen", message);
    match (cause.kind(), listen) {
        (io::ErrorKind::AddrInUse, ListenAddr::Tcp(_)) => {
            error.hint("toolcrib serve --listen 127.0.0.1:0 picks a free port")
        }
        _ => error,
    }
}

/// Finds out who is at the other end of a connection, without blocking other connections.
async fn identify(check: PeerCheck, peer: SocketAddr, local: Option<SocketAddr>) -> ConnectionPeer {
    let identified = match check.is_fast() {
        true => check.identify(peer, local),
        false => {
            let identifying = tokio::task::spawn_blocking(move || check.identify(peer, local)).await;
            identifying.unwrap_or_else(|_| ConnectionPeer::new(Entrypoint::OtherUser, peer.ip()))
        }
    };
    if identified.entrypoint() == Entrypoint::OtherUser {
        tracing::debug!(%peer, "a connection belongs to another user");
    }
    identified
}

/// Records requests without a valid token, which have no caller, in the audit file.
fn record_failed_logins(audit: &Audit, failed: &FailedLogins) {
    let address = failed.address.map_or_else(|| "unknown address".to_owned(), |address| address.to_string());
    let name = match failed.count {
        1 => address,
        count => format!("{address} ({count} requests)"),
    };
    audit.record_action(&AdminAction {
        caller: &Caller::new(""),
        method: "login",
        server: None,
        name: &name,
        end: CallEnd::Failed(ErrorKind::Denied),
        started: Instant::now(),
    });
}

/// Returns free memory to the system when clients have released much of it, and after servers were started and listed.
async fn return_free_memory(
    http: Arc<HttpGateway>,
    mut catalog: Receiver<Arc<Catalog>>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = http.wait_for_released_memory() => {}
            changed = catalog.changed() => if changed.is_err() { return },
        }
        for _ in 0..MAX_TRIM_DELAYS {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = timeout(TRIM_DELAY, catalog.changed()) => if changed.is_err() { break },
            }
        }
        // The allocator searches all its memory, so this is not done on the thread that serves requests.
        let _ = tokio::task::spawn_blocking(toolcrib::return_free_memory).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(TRIM_INTERVAL) => {}
        }
    }
}

/// Accepts connections of one kind.
trait Acceptor {
    type Stream;
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<ConnectionPermit>)>> + Send;
}

struct TcpAcceptor {
    listener: Arc<TcpListener>,
    by_ip: ConnectionsByIp,
}

/// A connection and the address of its client.
struct AcceptedTcp {
    stream: TcpStream,
    peer: SocketAddr,
}

struct UnixAcceptor {
    listener: Arc<UnixListener>,
}

impl Acceptor for TcpAcceptor {
    type Stream = AcceptedTcp;

    async fn accept(&self) -> io::Result<(AcceptedTcp, Option<ConnectionPermit>)> {
        loop {
            let (stream, peer) = self.listener.accept().await?;
            let Some(permit) = self.by_ip.try_acquire(peer.ip()) else {
                tracing::debug!(%peer, "rejected a connection: too many from this address");
                continue;
            };
            let _ = stream.set_nodelay(true);
            return Ok((AcceptedTcp { stream, peer }, Some(permit)));
        }
    }
}

impl Acceptor for UnixAcceptor {
    type Stream = UnixStream;

    /// Accepts only this user and root. File permissions should ensure that already, but a client of this socket needs no
    /// token, so the peer is checked as well.
    async fn accept(&self) -> io::Result<(UnixStream, Option<ConnectionPermit>)> {
        let own_uid = rustix::process::geteuid().as_raw();
        loop {
            let (stream, _) = self.listener.accept().await?;
            if stream.peer_cred().is_ok_and(|peer| peer.uid() == own_uid || peer.uid() == 0) {
                return Ok((stream, None));
            }
            tracing::warn!("rejected a connection from another user");
        }
    }
}

/// Limits and shutdown signal of one accept loop.
struct AcceptLimits {
    /// One permit per open connection.
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Returns how many public connections may be open. The remaining descriptors are for servers and for the gateway's own
/// socket, so that `toolcrib status` works while the public listener is full.
fn max_public_connections() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    (limit - RESERVED_FDS.min(limit / 2)).min(Semaphore::MAX_PERMITS)
}

/// Serves every connection in its own task. Waits when the limit is reached or `accept` fails, then continues.
async fn accept_all<I, S, F>(acceptor: I, limits: AcceptLimits, serve: S)
where
    I: Acceptor,
    S: Fn(I::Stream, CancellationToken) -> F,
    F: Future<Output = Option<StreamFuture>> + Send + 'static,
{
    let mut failing = false;
    loop {
        let next = async {
            let permit = limits.permits.clone().acquire_owned().await;
            (permit, acceptor.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = limits.stop.cancelled() => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, ip_permit)) => {
                failing = false;
                let permits = (permit, ip_permit);
                let connection = serve(stream, limits.stop.clone());
                let tasks = limits.tasks.clone();
                limits.tasks.spawn_boxed(async move {
                    if let Some(stream) = connection.await {
                        // A task never shrinks, so a long-lived stream moves to a small task of its own.
                        tasks.spawn_boxed(async move {
                            stream.await;
                            drop(permits);
                        });
                    }
                });
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "cannot accept connections, retrying");
                }
                failing = true;
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}
