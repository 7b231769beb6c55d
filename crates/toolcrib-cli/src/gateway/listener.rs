//! The gateway's listeners: bound here, or passed on by a service manager.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use toolcrib::config::{ListenSpec, TlsSpec};
use toolcrib::util::files::create_private_folder;
use toolcrib::util::locks::IgnorePoison as _;

use super::dashboard_address::DashboardAddress;
use super::handover::{HandedListener, Predecessor};
use super::lock::{self, GatewayLock};
use super::peer_check::PeerCheck;
use super::settings::GatewaySettings;
use super::socket_activation::InheritedListeners;
use super::tls::ServerTls;
use crate::client;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::listen::{self, ListenAddr};
use crate::paths::Paths;

/// Time that a gateway which is started in the background waits for a gateway that is stopping.
const PREVIOUS_GATEWAY_TIMEOUT: Duration = Duration::from_secs(15);

/// The way a gateway is started.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GatewayMode<'a> {
    /// In the foreground, with this address besides its own socket.
    Serve(&'a ListenAddr),
    /// In the background by `toolcrib stdio`, with its own socket only.
    Auto,
}

/// The open listeners of a gateway, and the lock that allows only one.
pub(super) struct GatewayListeners {
    /// The listener at `address`.
    pub(super) public: Option<Listener>,
    /// The gateway's own socket.
    pub(super) socket: Listener,
    /// The public address; absent if the gateway was started in the background.
    pub(super) address: Option<ListenAddr>,
    /// Tells connections to the public address apart.
    pub(super) peer_check: PeerCheck,
    /// TLS of the public address.
    pub(super) tls: Option<Arc<ServerTls>>,
    /// The listener for the dashboard alone, if the gateway that this one replaces had it open.
    handed_dashboard: Option<TcpListener>,
    /// True if a service manager owns the sockets, and would start another gateway for their connections.
    pub(super) is_activated: bool,
    lock: HeldLock,
}

/// The lock of the gateway, unless another process that replaces it has it.
struct HeldLock {
    path: PathBuf,
    is_auto: bool,
    lock: Mutex<Option<GatewayLock>>,
}

impl GatewayListeners {
    /// Takes the lock and opens the listeners, or takes those that a service manager or the running gateway passed on.
    pub(super) async fn open(
        paths: &Paths,
        mode: GatewayMode<'_>,
        settings: &GatewaySettings,
        mut predecessor: Option<&mut Predecessor>,
    ) -> Result<Self, CommandError> {
        let is_auto = matches!(mode, GatewayMode::Auto);
        let mut inherited = match mode {
            GatewayMode::Serve(_) => InheritedListeners::take(|name| std::env::var(name).ok()),
            GatewayMode::Auto => Ok(InheritedListeners::default()),
        }
        .map_err(|error| activation_failed(&error))?;
        let is_activated = !inherited.is_empty();
        if is_activated && predecessor.is_some() {
            return Err(CommandError::usage(
                "`--replace` does not work with the sockets of a service manager",
            )
            .hint("stop the running gateway first: `toolcrib stop-gateway`"));
        }
        let inherited_address = inherited.tcp_address().map_err(|error| activation_failed(&error))?;
        let address = match mode {
            GatewayMode::Auto => None,
            GatewayMode::Serve(address) => {
                let handed = match &predecessor {
                    Some(predecessor) => predecessor.check_address(address)?,
                    None => inherited_address.map(ListenAddr::Tcp),
                };
                Some(handed.unwrap_or_else(|| address.clone()))
            }
        };
        let peer_check = check_listen(address.as_ref(), settings)?;
        let tls = open_tls(address.as_ref(), settings.listen.tls.as_ref())?;
        paths.create_run_dir()?;
        if let Some(predecessor) = &mut predecessor {
            predecessor.take().await?;
        }
        let waits = is_auto || predecessor.is_some();
        let patience = waits.then_some(PREVIOUS_GATEWAY_TIMEOUT);
        let lock = HeldLock::acquire(paths.lock_path(), is_auto, patience).await?;
        refuse_second_gateway(paths).await?;
        let handed = predecessor.as_mut().and_then(|predecessor| predecessor.take_public());
        let public = match (handed, &address) {
            (Some(handed), _) => Some(Listener::from_handed(handed)),
            (None, Some(address)) => {
                // The peer of every connection is checked.
                let mode = if settings.callers.has_users() { 0o666 } else { 0o600 };
                Some(bind_public(inherited.take_tcp(), address, mode).await?)
            }
            (None, None) => None,
        };
        let socket = match &mut predecessor {
            Some(predecessor) => take_own_socket(paths, predecessor)?,
            None => bind_own_socket(paths, &mut inherited)?,
        };
        let handed_dashboard = predecessor.and_then(Predecessor::take_dashboard);
        record_address(paths);
        Ok(Self { public, socket, address, peer_check, tls, handed_dashboard, is_activated, lock })
    }

    /// Releases the lock for the process that replaces this gateway.
    pub(super) fn release_lock(&self) {
        self.lock.lock.lock().ignore_poison().take();
    }

    /// Takes the lock again, because that process has failed.
    pub(super) async fn lock_again(&self) -> Result<(), CommandError> {
        let HeldLock { path, is_auto, lock } = &self.lock;
        let held = GatewayLock::acquire(path, *is_auto, Some(PREVIOUS_GATEWAY_TIMEOUT)).await?;
        lock.lock().ignore_poison().replace(held);
        Ok(())
    }

    /// Sets whether this gateway removes its socket files when it ends. Between two gateways, one of them does.
    pub(super) fn set_owns_files(&self, owns_files: bool) {
        for listener in self.public.iter().chain([&self.socket]) {
            if let Listener::Unix(_, file) = listener {
                file.is_removed.store(owns_files, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether `toolcrib stdio` started the gateway.
    pub(super) fn is_auto(&self) -> bool {
        self.lock.is_auto
    }

    /// Returns whether other machines can reach the gateway.
    pub(super) fn is_exposed(&self) -> bool {
        self.address.as_ref().is_some_and(ListenAddr::is_exposed)
    }

    /// Returns the TCP port, if the gateway listens on one.
    pub(super) fn port(&self) -> Option<u16> {
        self.public.as_ref().and_then(Listener::tcp_address).map(|address| address.port())
    }

    /// Returns the URL at which other machines reach the gateway, if its address says so.
    pub(super) fn reachable_url(&self) -> Option<String> {
        let address = self.public.as_ref().and_then(Listener::tcp_address)?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let is_reachable = !address.ip().is_loopback() && !address.ip().is_unspecified();
        is_reachable.then(|| format!("{scheme}://{address}"))
    }

    /// Returns the names under which clients may address the gateway.
    pub(super) fn hosts(&self, listen: &ListenSpec) -> Vec<String> {
        let own_host = self.address.as_ref().and_then(ListenAddr::host);
        let public_host = listen.public_url.as_deref().and_then(listen::url_host);
        listen.hosts.iter().cloned().chain(own_host).chain(public_host).collect()
    }

    /// Returns where the dashboard is and how people log in to it.
    pub(super) fn dashboard(&mut self, listen: &ListenSpec) -> DashboardAddress {
        let handed = self.handed_dashboard.take();
        DashboardAddress::new(self.dashboard_url(listen), self.accepts_codes()).with_listener(handed)
    }

    /// Returns the URL of the dashboard for a browser on this machine, if the gateway has a TCP address.
    fn dashboard_url(&self, listen: &ListenSpec) -> Option<String> {
        let address = self.public.as_ref().and_then(Listener::tcp_address)?;
        if let Some(url) = &listen.public_url {
            return Some(format!("{}/", url.trim_end_matches('/')));
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{}/", SocketAddr::new(reachable_ip(address.ip()), address.port())))
    }

    /// Returns whether the dashboard may accept login codes: connections of other users, who may see a code among the arguments of a
    /// browser, can be told apart, or were let in on purpose.
    fn accepts_codes(&self) -> bool {
        match &self.public {
            Some(Listener::Tcp(_)) => self.peer_check.is_available(),
            _ => PeerCheck::new(&ListenAddr::default(), false).is_available(),
        }
    }

    /// Closes the listeners and keeps the lock, because the gateway has not ended.
    pub(super) fn close(self) -> Option<GatewayLock> {
        self.lock.lock.into_inner().ignore_poison()
    }
}

impl HeldLock {
    async fn acquire(path: PathBuf, is_auto: bool, patience: Option<Duration>) -> Result<Self, CommandError> {
        let lock = GatewayLock::acquire(&path, is_auto, patience).await?;
        Ok(Self { path, is_auto, lock: Mutex::new(Some(lock)) })
    }
}

/// An open port or socket.
pub(super) enum Listener {
    Tcp(Arc<TcpListener>),
    Unix(Arc<UnixListener>, SocketFile),
}

/// A socket file that is removed on drop, unless a service manager or the next gateway owns it.
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    is_removed: AtomicBool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_removed.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    fn tcp(listener: TcpListener) -> Self {
        Self::Tcp(Arc::new(listener))
    }

    fn unix(listener: UnixListener, path: PathBuf, is_removed: bool) -> Self {
        Self::Unix(Arc::new(listener), SocketFile { path, is_removed: AtomicBool::new(is_removed) })
    }

    /// Uses a listener of the gateway that this one replaces, and that needs the file if this one fails.
    fn from_handed(handed: HandedListener) -> Self {
        match handed {
            HandedListener::Tcp(listener, _) => Self::tcp(listener),
            HandedListener::Unix(listener, path) => Self::unix(listener, path, false),
        }
    }

    /// Returns the TCP address, if it has one.
    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// Returns the address as shown to people and clients.
    pub(super) fn address(&self, is_tls: bool) -> String {
        let scheme = if is_tls { "https" } else { "http" };
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("{scheme}://{address}/mcp"),
                Err(error) => format!("{scheme}://?/mcp ({error})"),
            },
            Self::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }
}

/// Uses the inherited TCP socket, or binds the configured address.
async fn bind_public(
    inherited: Option<std::net::TcpListener>,
    listen: &ListenAddr,
    file_mode: u32,
) -> Result<Listener, CommandError> {
    let bound = match (inherited, listen) {
        (Some(listener), _) => TcpListener::from_std(listener).map(Listener::tcp),
        (None, ListenAddr::Tcp(address)) => TcpListener::bind(address).await.map(Listener::tcp),
        (None, ListenAddr::Unix(path)) => {
            refuse_if_in_use(path).await?;
            bind_unix(path, file_mode)
        }
    };
    bound.map_err(|error| cannot_listen(listen, &error))
}

/// Uses the inherited socket if it is the gateway's own, or binds that.
fn bind_own_socket(paths: &Paths, inherited: &mut InheritedListeners) -> Result<Listener, CommandError> {
    let path = paths.socket_path();
    let bound = match inherited.take_unix(&path).map_err(|error| activation_failed(&error))? {
        Some(listener) => {
            UnixListener::from_std(listener).map(|listener| Listener::unix(listener, path.clone(), false))
        }
        None => bind_unix(&path, 0o600),
    };
    bound.map_err(|error| cannot_listen(&ListenAddr::Unix(path.clone()), &error))
}

/// Uses the own socket of the gateway that this one replaces.
fn take_own_socket(paths: &Paths, predecessor: &mut Predecessor) -> Result<Listener, CommandError> {
    let path = paths.socket_path();
    match predecessor.take_socket() {
        Ok(Some(listener)) => Ok(Listener::unix(listener, path, false)),
        Ok(None) => bind_own_socket(paths, &mut InheritedListeners::default()),
        Err(error) => Err(cannot_listen(&ListenAddr::Unix(path), &error)),
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

/// Binds a socket file with these permissions, replacing one that a dead process left behind.
fn bind_unix(path: &Path, mode: u32) -> io::Result<Listener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file of that name exists")),
        Err(_) => {}
    }
    let listener = Listener::unix(UnixListener::bind(path)?, path.to_owned(), true);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

fn cannot_listen(listen: &ListenAddr, cause: &io::Error) -> CommandError {
    let message = format!("cannot listen on {listen}: {cause}");
    let error = CommandError::new(ExitStatus::Failure, "cannot_listen", message);
    match (cause.kind(), listen) {
        (io::ErrorKind::AddrInUse, ListenAddr::Tcp(_)) => {
            error.hint("`toolcrib serve --listen 127.0.0.1:0` picks a free port")
        }
        _ => error,
    }
}

/// Checks that clients of this address are known, and returns how they are told apart.
fn check_listen(listen: Option<&ListenAddr>, settings: &GatewaySettings) -> Result<PeerCheck, CommandError> {
    let requires_tokens = !settings.callers.is_empty();
    // Only this user can open the gateway's own socket.
    let Some(listen) = listen else { return Ok(PeerCheck::AnyUser) };
    listen.check_exposure(requires_tokens)?;
    let peer_check = PeerCheck::new(listen, settings.listen.any_user);
    peer_check.check_available(requires_tokens)?;
    Ok(peer_check)
}

/// Reads the files of TLS, which only TCP addresses use.
fn open_tls(
    address: Option<&ListenAddr>,
    spec: Option<&TlsSpec>,
) -> Result<Option<Arc<ServerTls>>, CommandError> {
    match (address, spec) {
        (Some(ListenAddr::Tcp(_)), Some(spec)) => ServerTls::open(spec).map(|tls| Some(Arc::new(tls))),
        _ => Ok(None),
    }
}

/// Refuses to start beside a gateway whose environment made it use another folder for its socket and its lock.
async fn refuse_second_gateway(paths: &Paths) -> Result<(), CommandError> {
    let own = paths.socket_path();
    for path in paths.socket_candidates().iter().filter(|path| **path != own) {
        // A recorded address may be outdated.
        if let Ok(Some(_)) = client::connect_at(path).await {
            return Err(lock::already_running(&path.with_extension("lock")));
        }
    }
    Ok(())
}

/// Returns an address of this machine by which a browser on it reaches a listener.
fn reachable_ip(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn activation_failed(error: &io::Error) -> CommandError {
    let message = format!("cannot use the sockets passed in `LISTEN_FDS`: {error}");
    CommandError::new(ExitStatus::Failure, "cannot_listen", message)
        .hint("pass one listening TCP socket, the gateway's own Unix socket, or both")
}

/// Records the address of the gateway, for clients whose environment does not lead to its socket. The record stays when the
/// gateway ends: clients find that nothing listens there.
fn record_address(paths: &Paths) {
    let file = paths.address_record();
    let socket = paths.socket_path();
    let written = create_private_folder(&paths.gateways_dir())
        .and_then(|()| std::fs::write(&file, socket.as_os_str().as_bytes()));
    if let Err(error) = written {
        let file = file.display();
        tracing::warn!("cannot write `{file}`: {error}; clients may not find this gateway");
    }
}
