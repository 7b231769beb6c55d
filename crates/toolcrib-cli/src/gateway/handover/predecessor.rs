//! The side of the new gateway: takes the listeners of the running one over.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::AddressFamily;
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolcrib_serve::HttpGateway;

use super::{HandoverChannel, PROTOCOL, ReceivedOffer, handover_path};
use crate::client::{self, GatewayClient};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::other_gateway::OtherGateway;
use crate::listen::ListenAddr;
use crate::paths::Paths;

/// Time in which the running gateway must answer each message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Length of the queue of connections that were not accepted yet.
const BACKLOG: i32 = 1024;

/// The running gateway that this process replaces.
pub(crate) struct Predecessor {
    pub(crate) pid: u32,
    channel: HandoverChannel,
    public: Option<HandedListener>,
    socket: Option<UnixListener>,
    dashboard: Option<TcpListener>,
    sessions: Vec<Value>,
    /// Messages of clients for the replaced gateway.
    messages: Option<UnboundedReceiver<Value>>,
}

/// A public listener of the running gateway.
pub(in crate::gateway) enum HandedListener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

/// The socket on which the running gateway connects to this process, removed on drop.
struct HandoverSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for HandoverSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl HandoverSocket {
    fn bind(paths: &Paths) -> Result<Self, CommandError> {
        paths.create_run_dir()?;
        let path = handover_path(&paths.socket_path());
        // Left behind by a process that was killed. The lock of a start allows one of them at a time.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .map_err(|error| failed(&format!("cannot open `{}`: {error}", path.display())))?;
        Ok(Self { listener, path })
    }
}

impl Predecessor {
    /// Finds the running gateway of this config and gets its listeners, which both processes have then. Returns `None` if none is
    /// running.
    ///
    /// # Errors
    /// If the gateway refuses, or does not answer. It goes on in any case.
    pub(crate) async fn connect(paths: &Paths) -> Result<Option<Self>, CommandError> {
        let Some(other) = OtherGateway::find(paths)? else { return Ok(None) };
        if !other.is_at(&paths.lock_path()) {
            let error = failed(&format!("the running gateway (pid {}) uses another run folder", other.pid));
            return Err(error.hint("run the command with the `XDG_RUNTIME_DIR` of the running gateway"));
        }
        let socket = HandoverSocket::bind(paths)?;
        let gateway = GatewayClient::Socket(paths.socket_path());
        let asked = timeout(ANSWER_TIMEOUT, gateway.post("/api/v1/handover")).await;
        asked.map_err(|_| failed("the running gateway did not answer"))?.map_err(|error| {
            let message = format!("the running gateway (pid {}): {}", other.pid, error.message);
            failed(&message).hint("`toolcrib stop-gateway`, then `toolcrib serve`")
        })?;
        let accepted = timeout(ANSWER_TIMEOUT, socket.listener.accept()).await;
        let (stream, _) = accepted
            .map_err(|_| failed("the running gateway did not connect"))?
            .map_err(|error| lost(&error))?;
        if !client::is_trusted_peer(&stream) {
            return Err(failed("a process of another user connected in place of the running gateway"));
        }
        let channel = HandoverChannel::new(stream);
        let offer = timeout(ANSWER_TIMEOUT, channel.receive_offer()).await;
        let offer = offer
            .map_err(|_| failed("the running gateway sent no listeners"))?
            .map_err(|error| lost(&error))?;
        Self::new(other.pid, channel, offer).map(Some).map_err(|error| lost(&error))
    }

    fn new(pid: u32, channel: HandoverChannel, offer: ReceivedOffer) -> io::Result<Self> {
        let ReceivedOffer { message, descriptors } = offer;
        if message["protocol"] != PROTOCOL {
            return Err(io::Error::other("it uses another version of the hand-over"));
        }
        let kinds = message["listeners"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut predecessor = Self {
            pid,
            channel,
            public: None,
            socket: None,
            dashboard: None,
            sessions: Vec::new(),
            messages: None,
        };
        for (kind, descriptor) in kinds.iter().zip(descriptors) {
            match kind.as_str().unwrap_or_default() {
                "public" => predecessor.public = Some(HandedListener::open(descriptor)?),
                "socket" => predecessor.socket = Some(open_unix(descriptor)?),
                "dashboard" => predecessor.dashboard = Some(open_tcp(descriptor)?),
                _ => {}
            }
        }
        match predecessor.socket {
            Some(_) => Ok(predecessor),
            None => Err(io::Error::other("it did not pass its own socket")),
        }
    }

    /// Returns the public address of the running gateway, which is kept: `requested` must be the same.
    ///
    /// # Errors
    /// If it is another address.
    pub(in crate::gateway) fn check_address(
        &self,
        requested: &ListenAddr,
    ) -> Result<Option<ListenAddr>, CommandError> {
        let Some(public) = &self.public else { return Ok(None) };
        let address = public.address();
        let is_same = match (&address, requested) {
            (ListenAddr::Tcp(own), ListenAddr::Tcp(requested)) => {
                own.ip() == requested.ip() && (requested.port() == 0 || own.port() == requested.port())
            }
            (own, requested) => own == requested,
        };
        if is_same {
            return Ok(Some(address));
        }
        let message = format!("the running gateway listens on {address}, not on {requested}");
        Err(CommandError::usage(message)
            .hint(format!("`toolcrib serve --replace --listen {address}`, or `toolcrib stop-gateway` first")))
    }

    /// Tells the running gateway to stop accepting connections and to release its lock and its files. If this process ends before
    /// [`Predecessor::confirm`], the running gateway goes on.
    pub(in crate::gateway) async fn take(&mut self) -> Result<(), CommandError> {
        self.channel.send(&json!({"take": true})).await.map_err(|error| lost(&error))?;
        let answer = timeout(ANSWER_TIMEOUT, self.channel.receive()).await;
        let mut answer = answer
            .map_err(|_| failed("the running gateway did not answer"))?
            .map_err(|error| lost(&error))?;
        if let Value::Array(sessions) = answer["sessions"].take() {
            self.sessions = sessions;
        }
        Ok(())
    }

    /// Takes the public listener.
    pub(in crate::gateway) fn take_public(&mut self) -> Option<HandedListener> {
        self.public.take()
    }

    /// Takes the gateway's own socket. Clients see this process as its owner.
    pub(in crate::gateway) fn take_socket(&mut self) -> io::Result<Option<UnixListener>> {
        let Some(socket) = self.socket.take() else { return Ok(None) };
        // Linux names the process that called `listen` last as the peer of a connection.
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Some(socket))
    }

    /// Takes the listener for the dashboard.
    pub(in crate::gateway) fn take_dashboard(&mut self) -> Option<TcpListener> {
        self.dashboard.take()
    }

    /// Takes over the sessions.
    pub(in crate::gateway) async fn take_over_sessions(&mut self, http: &HttpGateway) {
        let (sender, messages) = unbounded_channel();
        http.set_predecessor(Some(sender));
        self.messages = Some(messages);
        for session in std::mem::take(&mut self.sessions) {
            http.take_over_session(&session).await;
        }
    }

    /// Tells the replaced gateway that this one accepts connections. Until that ends, takes over sessions that change there, and passes
    /// messages back to it.
    pub(in crate::gateway) async fn confirm(mut self, http: Arc<HttpGateway>, stop: CancellationToken) {
        let mut is_open = self.channel.send(&json!({"started": true})).await.is_ok();
        let HandoverChannel { reader, writer } = &mut self.channel;
        let Some(messages) = &mut self.messages else { return };
        let send = async {
            while let Some(message) = messages.recv().await {
                // Fails when the replaced gateway has ended, which the other side notices.
                let _ = writer.send(&json!({"message": message})).await;
            }
        };
        let receive = async {
            while is_open {
                match reader.receive().await {
                    Ok(message) => http.take_over_session(&message["session"]).await,
                    Err(_) => is_open = false,
                }
            }
            // Ends `send`.
            http.set_predecessor(None);
        };
        tokio::select! {
            _ = async { tokio::join!(send, receive) } => {}
            () = stop.cancelled() => {}
        }
    }
}

impl HandedListener {
    fn open(descriptor: OwnedFd) -> io::Result<Self> {
        match rustix::net::getsockname(&descriptor)?.address_family() {
            AddressFamily::UNIX => {
                let listener = open_unix(descriptor)?;
                let address = listener.local_addr()?;
                let path =
                    address.as_pathname().ok_or_else(|| io::Error::other("a socket without a path"))?;
                let path = path.to_owned();
                Ok(Self::Unix(listener, path))
            }
            _ => {
                let listener = open_tcp(descriptor)?;
                let address = listener.local_addr()?;
                Ok(Self::Tcp(listener, address))
            }
        }
    }

    fn address(&self) -> ListenAddr {
        match self {
            Self::Tcp(_, address) => ListenAddr::Tcp(*address),
            Self::Unix(_, path) => ListenAddr::Unix(path.clone()),
        }
    }
}

fn open_tcp(descriptor: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(descriptor);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn open_unix(descriptor: OwnedFd) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::from(descriptor);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn failed(reason: &str) -> CommandError {
    CommandError::new(ExitStatus::Failure, "cannot_replace", format!("cannot replace the gateway: {reason}"))
}

fn lost(error: &io::Error) -> CommandError {
    failed(&format!("the connection to it failed: {error}"))
}
