//! The gateway as a running thing: bind, accept, drain on request, leave nothing behind.

mod addresses;
mod handed;
mod lock;
mod log_files;
mod signals;
pub(crate) mod watch;

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::Config;
use toolcrib::{Crib, CribBuilder};

use crate::audit::Audit;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::frontend::admin::Admin;
use crate::frontend::callers::Callers;
use crate::frontend::http;
use crate::frontend::lasting::Rest;
use crate::frontend::{Desk, Door};
use crate::listen::ListenAddr;
use crate::place::Place;
use crate::secrets::Keeper;
use crate::sources::Stamp;

use self::addresses::{Addresses, Admitted};
use self::lock::Lock;
use self::log_files::LogFiles;
pub(crate) use self::signals::{Asked, Signals};

/// How long answers that are already there may take to reach their clients once every server has stopped.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long to wait when no connection can be accepted: somebody must leave first.
const PAUSE: Duration = Duration::from_millis(50);

/// Descriptors that the public door does not use, as far as there are twice as many.
const RESERVED: usize = 256;

/// A gateway that listens.
pub(crate) struct Daemon {
    crib: Crib,
    admin: Admin,
    desk: Arc<Desk>,
    public: Listener,
    socket: Listener,
    drain: Duration,
    tasks: TaskTracker,
    logs: LogFiles,
    /// Ends the accept loops and asks every connection to finish.
    stop: CancellationToken,
    _lock: Lock,
}

/// Something that connections come in by.
enum Listener {
    Tcp(Arc<TcpListener>),
    Unix(Arc<UnixListener>, SocketFile),
}

/// A socket file of ours; it goes when we go.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Daemon {
    /// Takes the config's key, binds, and builds the crib. Nobody is answered before [`Daemon::accept`].
    pub(crate) async fn open(
        place: &Place,
        (config, stamp): (&Config, Stamp),
        listen: &ListenAddr,
    ) -> Result<Self, Failure> {
        let keeper = Keeper::new(place, &config.secrets);
        let callers = {
            let (config, keeper) = (config.clone(), keeper.clone());
            tokio::task::spawn_blocking(move || Callers::of(&config, &keeper)).await
        };
        let callers = callers.unwrap_or_else(|error| Err(Failure::unexpected(&error)))?;
        let handed = handed::listener(|name| std::env::var(name).ok()).map_err(|error| not_taken(&error))?;
        let listen = &handed.as_ref().map_or_else(|| listen.clone(), |(_, at)| ListenAddr::Tcp(*at));
        listen.guarded(!callers.is_empty())?;
        place.make_run()?;
        let lock = Lock::take(&place.lock())?;
        let public = match (handed, listen) {
            (Some((listener, _)), _) => TcpListener::from_std(listener).map(Listener::tcp),
            (None, ListenAddr::Tcp(address)) => TcpListener::bind(address).await.map(Listener::tcp),
            (None, ListenAddr::Unix(path)) => {
                refuse_living(path).await?;
                bind_unix(path)
            }
        };
        let public = public.map_err(|error| cannot_listen(listen, &error))?;
        let socket_path = place.socket();
        let socket = bind_unix(&socket_path)
            .map_err(|error| cannot_listen(&ListenAddr::Unix(socket_path.clone()), &error))?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let logs = LogFiles::new(place.logs(), &tasks);
        let audit = Arc::new(Audit::new(config.audit.as_ref())?);
        let crib = finish(builder(place, config, &keeper).log(logs.sink()).witness(audit.clone()))?;
        let sources = place.sources().clone().serving();
        let admin =
            Admin::new(crib.clone(), config, (sources, stamp), (callers, audit, keeper), listen.is_open());
        let mut hosts = config.listen.hosts.clone();
        hosts.extend(listen.host());
        let desk = Arc::new(Desk::new(crib.clone(), admin.clone(), &config.limits, hosts, place.advice()));
        let drain = config.limits.drain;
        Ok(Self { crib, admin, desk, public, socket, drain, tasks, logs, stop, _lock: lock })
    }

    /// Where it listens, for people and clients.
    pub(crate) fn address(&self) -> String {
        match &self.public {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}/mcp"),
                Err(error) => format!("http://?/mcp ({error})"),
            },
            Listener::Unix(_, file) => format!("unix:{}", file.0.display()),
        }
    }

    /// The port, when it listens on one.
    pub(crate) fn port(&self) -> Option<u16> {
        self.public.port()
    }

    /// Questions about it, and reloads.
    pub(crate) fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Answers from now on.
    pub(crate) fn accept(&self) {
        let rooms = [most_connections(), Semaphore::MAX_PERMITS];
        for (listener, most) in [&self.public, &self.socket].into_iter().zip(rooms) {
            let hall = Hall {
                room: Arc::new(Semaphore::new(most)),
                tasks: self.tasks.clone(),
                stop: self.stop.clone(),
            };
            let desk = self.desk.clone();
            match listener {
                Listener::Tcp(listener) => {
                    let serve = move |stream, stop| http::serve(stream, desk.clone(), Door::Tcp, stop);
                    self.tasks.spawn(accept_all(
                        TcpDoor(listener.clone(), Addresses::default()),
                        hall,
                        serve,
                    ));
                }
                Listener::Unix(listener, _) => {
                    let serve = move |stream, stop| http::serve(stream, desk.clone(), Door::Socket, stop);
                    self.tasks.spawn(accept_all(UnixDoor(listener.clone()), hall, serve));
                }
            }
        }
    }

    /// Accepts nothing more, lets calls in flight finish within the drain time or until `hurry`, stops every server.
    pub(crate) async fn close(self, hurry: impl Future<Output = ()>) {
        let Self { crib, admin, desk, public, socket, drain, tasks, logs, stop, .. } = self;
        admin.close();
        stop.cancel();
        // Whoever comes now finds nobody, instead of a door that nobody opens.
        drop((public, socket));
        tokio::select! {
            () = crib.shutdown(drain) => {}
            () = hurry => crib.shutdown(Duration::ZERO).await,
        }
        // The last lines are written, and no more come.
        drop(logs);
        tasks.close();
        let everybody_left = async { tokio::join!(tasks.wait(), desk.finish()) };
        if timeout(FAREWELL, everybody_left).await.is_err() {
            tracing::warn!("some clients did not take their answers in time");
        }
    }
}

/// A crib for this config, as the daemon and the commands that stand alone use it; lists wait for new servers as long as
/// `patience` says, or as long as agents can bear.
pub(crate) fn build(place: &Place, config: &Config, patience: Option<Duration>) -> Result<Crib, Failure> {
    let audit = Arc::new(Audit::new(config.audit.as_ref())?);
    let builder = builder(place, config, &Keeper::new(place, &config.secrets)).witness(audit);
    finish(patience.into_iter().fold(builder, CribBuilder::patience))
}

fn builder(place: &Place, config: &Config, keeper: &Keeper) -> CribBuilder {
    let keeper = keeper.clone();
    let builder = Crib::builder().roster(config.roster.clone()).state_dir(place.state());
    let builder = builder.pins_dir(place.pins());
    let builder =
        builder.capacity(config.capacity.clone()).policy(config.policy.clone()).quota(config.quota.clone());
    let builder = builder.quota_file(place.quota()).secrets(move |name| keeper.find(name));
    own_program().into_iter().fold(builder, CribBuilder::shim)
}

/// This very program, even when another one has taken its place on disk: it is kept open for as long as this process
/// lives. Run by a debugger or a profiler, a process has a `/proc/self/exe` that is theirs to execute, but its own to open.
#[cfg(target_os = "linux")]
fn own_program() -> Option<String> {
    use std::os::fd::IntoRawFd as _;
    let program = std::fs::File::open("/proc/self/exe").ok()?;
    Some(format!("/proc/self/fd/{}", program.into_raw_fd()))
}

/// There are no shims here.
#[cfg(not(target_os = "linux"))]
fn own_program() -> Option<String> {
    None
}

fn finish(builder: CribBuilder) -> Result<Crib, Failure> {
    builder.build().map_err(|clash| Failure::new(Exit::BadConfig, "config_invalid", clash.to_string()))
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

/// The lock says that no daemon of ours uses our own socket; a path that somebody chose may be anybody's.
async fn refuse_living(path: &Path) -> Result<(), Failure> {
    match UnixStream::connect(path).await {
        Ok(_) => Err(Failure::usage(format!("somebody is listening on `{}` already", path.display()))),
        Err(_) => Ok(()),
    }
}

/// Binds a socket file that only this user can use, in place of one that a dead process left.
fn bind_unix(path: &Path) -> io::Result<Listener> {
    use std::os::unix::fs::FileTypeExt as _;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of that name")),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(Listener::Unix(Arc::new(listener), file))
}

fn not_taken(error: &io::Error) -> Failure {
    let message = format!("cannot take the socket that `LISTEN_FDS` promises: {error}");
    Failure::new(Exit::Unexpected, "cannot_listen", message).hint("hand over one TCP socket that listens")
}

fn cannot_listen(listen: &ListenAddr, error: &io::Error) -> Failure {
    let failure =
        Failure::new(Exit::Unexpected, "cannot_listen", format!("cannot listen on {listen}: {error}"));
    match (error.kind(), listen) {
        (io::ErrorKind::AddrInUse, ListenAddr::Tcp(_)) => {
            failure.hint("toolcrib serve --listen 127.0.0.1:0 picks a free port")
        }
        _ => failure,
    }
}

/// Where one kind of connection comes in.
trait Incoming {
    type Stream;
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<Admitted>)>> + Send;
}

struct TcpDoor(Arc<TcpListener>, Addresses);
struct UnixDoor(Arc<UnixListener>);

impl Incoming for TcpDoor {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<Admitted>)> {
        loop {
            let (stream, from) = self.0.accept().await?;
            let Some(admitted) = self.1.admit(from.ip()) else {
                tracing::debug!(%from, "too many connections from there");
                continue;
            };
            let _ = stream.set_nodelay(true);
            return Ok((stream, Some(admitted)));
        }
    }
}

impl Incoming for UnixDoor {
    type Stream = UnixStream;

    /// The file is this user's alone; who it is that opened it is asked all the same, because such a one needs no token.
    async fn accept(&self) -> io::Result<(UnixStream, Option<Admitted>)> {
        let us = rustix::process::geteuid().as_raw();
        loop {
            let (stream, _) = self.0.accept().await?;
            if stream.peer_cred().is_ok_and(|peer| peer.uid() == us || peer.uid() == 0) {
                return Ok((stream, None));
            }
            tracing::warn!("somebody else opened our socket, and was sent away");
        }
    }
}

/// Where connections that came in by one door are.
struct Hall {
    /// A place for each that may be there.
    room: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Connections that may come in by the public door. The other descriptors are for servers, and for whoever asks at our own
/// socket why nobody gets in.
fn most_connections() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    (files - RESERVED.min(files / 2)).min(Semaphore::MAX_PERMITS)
}

/// Gives every connection a task. When there is no room for another one, or none can be accepted, it waits and goes on.
async fn accept_all<I, S, F>(door: I, hall: Hall, serve: S)
where
    I: Incoming,
    S: Fn(I::Stream, CancellationToken) -> F,
    F: Future<Output = Option<Rest>> + Send + 'static,
{
    let mut failing = false;
    loop {
        let come = async {
            let place = hall.room.clone().acquire_owned().await;
            (place, door.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = hall.stop.cancelled() => return,
            come = come => come,
        };
        match accepted {
            Ok((stream, admitted)) => {
                failing = false;
                let place = (place, admitted);
                let (served, tasks) = (serve(stream, hall.stop.clone()), hall.tasks.clone());
                hall.tasks.spawn(async move {
                    if let Some(rest) = served.await {
                        // A task keeps all the room that it ever needed: what lasts gets a small one of its own.
                        tasks.spawn(async move {
                            rest.await;
                            drop(place);
                        });
                    }
                });
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "cannot accept connections, trying again");
                }
                failing = true;
                sleep(PAUSE).await;
            }
        }
    }
}
