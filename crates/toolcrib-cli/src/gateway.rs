//! The running gateway: binds its listeners, accepts connections, and drains on shutdown.

mod call_observers;
mod client_certificate;
mod collected_metrics;
mod connection_threads;
mod dashboard_address;
mod dashboard_listener;
mod handle;
mod handover;
mod idle_exit;
mod listener;
mod lock;
mod log_files;
mod login_starter;
mod other_gateway;
mod peer_check;
mod settings;
mod shared_store;
mod signals;
mod socket_activation;
#[cfg(target_os = "linux")]
mod socket_owners;
mod standalone_crib;
mod tls;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::{Config, ListenSpec};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{CallEnd, Caller, Catalog, ClientCapabilities, Crib, CribBuilder, ErrorKind, Settings};
use toolcrib_serve::{
    ActiveCallers, AddressLimit, AddressPermit, AdminRoutes, ConnectionPeer, Entrypoint, FailedLogins,
    HttpGateway, McpService, StreamFuture, serve_connection,
};

use crate::audit::{AdminAction, Audit};
use crate::client;
use crate::command_error::CommandError;
use crate::dashboard;
use crate::exit::ExitStatus;
use crate::hints::hint_text;
use crate::paths::Paths;
use crate::secrets::SecretLocator;
use crate::sources::ConfigSources;

use self::call_observers::CallObservers;
pub(crate) use self::connection_threads::thread_count;
use self::connection_threads::{ConnectionPlace, ConnectionThreads, MovableStream, Threads};
pub(crate) use self::handle::GatewayHandle;
pub(crate) use self::handle::StampedConfig;
pub(crate) use self::handover::{Predecessor, Successor};
use self::idle_exit::{ConnectionCount, CountedStream, wait_until_unused};
pub(crate) use self::listener::GatewayMode;
use self::listener::{GatewayListeners, Listener};
pub(crate) use self::lock::{CANNOT_LOCK, StartLock};
use self::log_files::LogFiles;
pub(crate) use self::log_files::read_log;
use self::login_starter::LoopbackLogins;
pub(crate) use self::other_gateway::{OtherGateway, STOP_GRACE};
use self::peer_check::PeerCheck;
use self::settings::{GatewaySettings, SettingsTarget, with_waits};
use self::shared_store::LoadingKey;
pub(crate) use self::shared_store::{find_forwarding_note, find_store_problem, probe_store};
pub(crate) use self::signals::{SignalRequest, Signals};
pub(crate) use self::standalone_crib::StandaloneCrib;
pub(crate) use self::tls::find_tls_problem;

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
    listeners: GatewayListeners,
    /// Connections to its own socket.
    connections: ConnectionCount,
    drain_timeout: Duration,
    tasks: TaskTracker,
    threads: ConnectionThreads,
    logs: LogFiles,
    /// Ends the accept loops and tells every connection to finish.
    stop: CancellationToken,
    /// Ends the accept loops that run now.
    accepting: Mutex<CancellationToken>,
}

impl Gateway {
    /// Locks the config, binds the listeners and builds the crib. Connections are served from [`Gateway::accept`] on, and
    /// their admin requests by what `admin` returns.
    pub(crate) async fn open(
        paths: &Paths,
        mode: GatewayMode<'_>,
        sources: &ConfigSources,
        running: StampedConfig<'_>,
        predecessor: Option<&mut Predecessor>,
        admin: impl FnOnce(GatewayHandle) -> Arc<dyn AdminRoutes>,
    ) -> Result<Self, CommandError> {
        let signing_key = LoadingKey::start(paths, running.config);
        let opened = Self::open_without_key(paths, mode, sources, running, predecessor, admin).await;
        // Also after an error: the process must not exit while the key is written.
        let signing_key = signing_key.finish().await?;
        let gateway = opened?;
        signing_key.into_iter().for_each(|key| gateway.crib.set_signing_key(key));
        Ok(gateway)
    }

    async fn open_without_key(
        paths: &Paths,
        mode: GatewayMode<'_>,
        sources: &ConfigSources,
        running: StampedConfig<'_>,
        predecessor: Option<&mut Predecessor>,
        admin: impl FnOnce(GatewayHandle) -> Arc<dyn AdminRoutes>,
    ) -> Result<Self, CommandError> {
        let secrets = SecretLocator::new(paths, &running.config.secrets);
        let settings = load_settings(running.config, &secrets).await?;
        let mut listeners = GatewayListeners::open(paths, mode, &settings, predecessor).await?;
        let tasks = TaskTracker::new();
        let threads = ConnectionThreads::start(thread_count()?)?;
        let logs = LogFiles::new(paths.log_dir(), &tasks);
        let observers = CallObservers::open(paths, &settings)?;
        let builder = builder(paths, settings.settings, &secrets);
        let opened = settings.store.open(builder, listeners.reachable_url())?;
        let builder = with_waits(opened.builder, &settings.limits);
        let builder = builder.login_starter(LoopbackLogins { is_exposed: listeners.is_exposed() });
        let crib = build_crib(observers.attach(builder).log(logs.sink()))?;
        let callers = Arc::new(ActiveCallers::new(settings.callers));
        let CallObservers { audit, telemetry, history } = observers;
        let login_audit = audit.clone();
        let target = SettingsTarget {
            crib: crib.clone(),
            callers: callers.clone(),
            secrets,
            audit,
            telemetry,
            history,
            is_exposed: listeners.is_exposed(),
            peer_check: listeners.peer_check.clone(),
            tls: listeners.tls.clone(),
            store: opened.store,
        };
        let service = Arc::new(service(paths, &crib));
        let dashboard = listeners.dashboard(&settings.listen);
        let handle = GatewayHandle::new(target, &service, sources, running, listeners.is_auto(), dashboard);
        let http = HttpGateway::new(service, callers, &settings.limits)
            .with_admin(admin(handle.clone()))
            .with_dashboard(dashboard::FILES, handle.dashboard().sessions())
            .with_failed_logins(move |failed| record_failed_logins(&login_audit, failed));
        let http = Arc::new(with_addresses(http, &listeners, settings.listen));
        handle.set_http(&http);
        Ok(Self {
            crib,
            handle,
            http,
            listeners,
            connections: ConnectionCount::new(),
            drain_timeout: settings.limits.drain,
            tasks,
            threads,
            logs,
            stop: CancellationToken::new(),
            accepting: Mutex::default(),
        })
    }

    /// Returns the address it listens on, as shown to people and clients.
    pub(crate) fn address(&self) -> String {
        self.listeners.public.as_ref().unwrap_or(&self.listeners.socket).address(self.listeners.tls.is_some())
    }

    /// Returns whether other machines can reach it without TLS and without a proxy that publishes it over TLS.
    pub(crate) fn is_exposed_without_tls(&self, config: &Config) -> bool {
        let is_published = config.listen.public_url.as_ref().is_some_and(|url| url.starts_with("https://"));
        self.listeners.is_exposed() && self.listeners.tls.is_none() && !is_published
    }

    /// Returns the TCP port, if it listens on one.
    pub(crate) fn port(&self) -> Option<u16> {
        self.listeners.port()
    }

    /// Waits until no client was connected to its own socket, and no call was in flight, for this time.
    pub(crate) async fn wait_until_unused(&self, idle_exit: Duration) {
        if let Listener::Unix(_, file) = &self.listeners.socket {
            wait_until_unused(&self.connections, &self.crib, &file.path, idle_exit).await;
        }
    }

    /// Returns the handle: status and reloads.
    pub(crate) fn handle(&self) -> &GatewayHandle {
        &self.handle
    }

    /// Starts to serve connections. The gateway that this one replaces then moves its clients.
    pub(crate) async fn accept(&self, mut predecessor: Option<Predecessor>) {
        if let Some(predecessor) = &mut predecessor {
            predecessor.take_over_sessions(&self.http).await;
            self.listeners.set_owns_files(true);
        }
        self.allow_replacement();
        if let Some(tls) = &self.listeners.tls {
            self.tasks.spawn_boxed(tls.clone().watch(self.stop.clone()));
        }
        if let Some(threads) = self.threads.several() {
            self.tasks.spawn_boxed(self.stop.clone().run_until_cancelled_owned(threads.balance()));
        }
        self.accept_connections();
        // Clients list right after they have connected.
        self.crib.begin_discovery();
        if let Some(predecessor) = predecessor {
            self.tasks.spawn_boxed(predecessor.confirm(self.http.clone(), self.stop.clone()));
        }
        let catalog = self.handle.crib().watch_catalog();
        let store_changes = self.handle.report_store_changes();
        self.tasks.spawn_boxed(self.stop.clone().run_until_cancelled_owned(store_changes));
        self.tasks.spawn_boxed(return_free_memory(self.http.clone(), catalog, self.stop.clone()));
    }

    /// Accepts connections until [`Gateway::pause_accepting`].
    fn accept_connections(&self) {
        *self.accepting.lock().ignore_poison() = self.stop.child_token();
        if let Some(listener) = &self.listeners.public {
            self.accept_on(listener, false, max_public_connections());
        }
        self.accept_on(&self.listeners.socket, true, Semaphore::MAX_PERMITS);
        self.accept_dashboard();
    }

    /// Ends the accept loops. New connections wait in the queue of the system.
    fn pause_accepting(&self) {
        self.accepting.lock().ignore_poison().cancel();
    }

    /// Returns the limits of an accept loop.
    fn accept_limits(&self, max_connections: usize) -> AcceptLimits {
        AcceptLimits {
            permits: Arc::new(Semaphore::new(max_connections)),
            tasks: self.tasks.clone(),
            paused: self.accepting.lock().ignore_poison().clone(),
            stop: self.stop.clone(),
        }
    }

    /// Serves connections of one listener, the gateway's own socket or the public one, at most `max_connections` at the same
    /// time.
    fn accept_on(&self, listener: &Listener, is_own: bool, max_connections: usize) {
        let limits = self.accept_limits(max_connections);
        let http = self.http.clone();
        match listener {
            Listener::Tcp(listener) => {
                let by_ip = AddressLimit::default();
                let threads = self.threads.several();
                let acceptor = TcpAcceptor { listener: listener.clone(), by_ip, http: http.clone(), threads };
                let peer_check = self.listeners.peer_check.clone();
                let tls = self.listeners.tls.clone();
                let serve = move |accepted: AcceptedTcp, stop| {
                    let http = http.clone();
                    let peer_check = peer_check.clone();
                    let tls = tls.clone();
                    async move {
                        let AcceptedTcp { stream, peer } = accepted;
                        let peer = identify(peer_check, peer, stream.local_addr()).await;
                        match tls {
                            None => serve_connection(stream, http, peer, stop).await,
                            Some(tls) => tls.serve(stream, peer, http, stop).await,
                        }
                    }
                };
                self.tasks.spawn_boxed(accept_all(acceptor, limits, serve));
            }
            Listener::Unix(listener, _) => {
                let connections = self.connections.clone();
                let acceptor = UnixAcceptor { listener: listener.clone(), connections, is_own };
                let serve = move |accepted: AcceptedUnix, stop| {
                    serve_connection(accepted.stream, http.clone(), accepted.peer, stop)
                };
                self.tasks.spawn_boxed(accept_all(acceptor, limits, serve));
            }
        }
    }

    /// Stops accepting, lets calls in flight finish within the drain timeout or until `hurry` resolves, and stops every
    /// server.
    pub(crate) async fn close(self, hurry: impl Future<Output = ()>) {
        let Self { crib, handle, http, listeners, drain_timeout, tasks, logs, stop, .. } = self;
        handle.close();
        stop.cancel();
        // Closed listeners refuse new clients immediately; open ones would leave them waiting.
        let _lock = listeners.close();
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

/// Sets by which names, through which proxies and with which transports clients reach the gateway.
fn with_addresses(http: HttpGateway, listeners: &GatewayListeners, listen: ListenSpec) -> HttpGateway {
    let http = if listen.sse { http.with_sse() } else { http };
    http.with_hosts(listeners.hosts(&listen), listen.origins)
        .with_public_address(listen.public_url, listeners.port())
        .with_trusted_proxies(listen.trusted_proxies)
        .with_max_unauthenticated(max_public_connections() / 2)
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

fn build_crib(builder: CribBuilder) -> Result<Crib, CommandError> {
    builder
        .build()
        .map_err(|error| CommandError::new(ExitStatus::InvalidConfig, "config_invalid", error.to_string()))
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
    /// Held while a connection is open.
    type Permit: Send + 'static;
    fn accept(&self) -> impl Future<Output = io::Result<Accepted<Self::Stream, Self::Permit>>> + Send;
}

/// A connection that was accepted.
struct Accepted<S, P> {
    stream: S,
    permit: P,
    /// Its thread, if there are several.
    place: Option<ConnectionPlace>,
}

struct TcpAcceptor {
    listener: Arc<TcpListener>,
    by_ip: AddressLimit,
    http: Arc<HttpGateway>,
    /// The threads for the connections, if there are several.
    threads: Option<Arc<Threads>>,
}

/// A connection and the address of its client.
struct AcceptedTcp {
    stream: MovableStream,
    peer: SocketAddr,
}

struct UnixAcceptor {
    listener: Arc<UnixListener>,
    connections: ConnectionCount,
    /// True for the gateway's own socket, on which there is only the local caller.
    is_own: bool,
}

struct AcceptedUnix {
    stream: CountedStream,
    peer: ConnectionPeer,
}

impl Acceptor for TcpAcceptor {
    type Stream = AcceptedTcp;
    type Permit = Option<AddressPermit>;

    /// Accepts a connection. Those of trusted proxies and of other replicas are not limited, because they are used by many
    /// clients.
    async fn accept(&self) -> io::Result<Accepted<AcceptedTcp, Option<AddressPermit>>> {
        loop {
            let (stream, peer) = self.listener.accept().await?;
            let is_shared = self.http.is_trusted_proxy(peer.ip()) || self.http.is_replica(peer.ip());
            let permit = match is_shared {
                true => None,
                false => match self.by_ip.try_acquire(peer.ip()) {
                    Some(permit) => Some(permit),
                    None => {
                        tracing::debug!(%peer, "rejected a connection: too many from this address");
                        continue;
                    }
                },
            };
            let _ = stream.set_nodelay(true);
            let place = self.threads.clone().map(ConnectionPlace::new);
            let stream = MovableStream::new(stream, place.as_ref());
            return Ok(Accepted { stream: AcceptedTcp { stream, peer }, permit, place });
        }
    }
}

impl Acceptor for UnixAcceptor {
    type Stream = AcceptedUnix;
    type Permit = ();

    /// Accepts a connection. On the gateway's own socket, only this user and root are accepted. File permissions should ensure
    /// that already, but a client of this socket needs no token, so the peer is checked as well.
    async fn accept(&self) -> io::Result<Accepted<AcceptedUnix, ()>> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let uid = stream.peer_cred().ok().map(|peer| peer.uid());
            let peer = match uid.is_some_and(client::is_trusted_user) {
                true if self.is_own => Entrypoint::Socket.into(),
                true => ConnectionPeer::from(Entrypoint::Socket).with_uid(uid),
                false if self.is_own => {
                    tracing::warn!("rejected a connection from another user");
                    continue;
                }
                false => ConnectionPeer::from(Entrypoint::OtherUser).with_uid(uid),
            };
            let stream = AcceptedUnix { stream: self.connections.add(stream), peer };
            return Ok(Accepted { stream, permit: (), place: None });
        }
    }
}

/// Limits and shutdown signal of one accept loop.
struct AcceptLimits {
    /// One permit per open connection.
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    /// Ends the loop.
    paused: CancellationToken,
    /// Tells the connections to finish.
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
            () = limits.paused.cancelled() => return,
            next = next => next,
        };
        match accepted {
            Ok(accepted) => {
                failing = false;
                let permits = (permit, accepted.permit);
                let connection = serve(accepted.stream, limits.stop.clone());
                let tasks = limits.tasks.clone();
                let task = async move {
                    if let Some(stream) = connection.await {
                        // A task never shrinks, so a long-lived stream moves to a small task of its own.
                        tasks.spawn_boxed(async move {
                            stream.await;
                            drop(permits);
                        });
                    }
                };
                match accepted.place {
                    Some(place) => place.spawn(limits.tasks.clone(), task),
                    None => drop(limits.tasks.spawn_boxed(task)),
                }
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
