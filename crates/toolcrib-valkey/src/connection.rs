//! `StoreConnection`: one connection to a server, ready for commands.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use toolcrib::store::{StoreError, StoreKind};

use crate::command::{CommandName, Keys, StoreCommand, StoreScript};
use crate::resp::{self, Reply};
use crate::store_url::{Address, Servers, StoreUrl};

/// Bytes that are read at least at a time.
const READ_SIZE: usize = 16 * 1024;

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// How connections are opened.
#[derive(Clone)]
pub(crate) struct StoreConnector {
    url: StoreUrl,
    tls: Option<TlsConnector>,
    keys: Keys,
    connect_timeout: Duration,
}

/// A connection that has logged in.
pub(crate) struct StoreConnection {
    stream: Box<dyn ByteStream>,
    buffer: BytesMut,
    /// The digests of the scripts, in the order of [`StoreScript::ALL`].
    scripts: Vec<Bytes>,
    address: Address,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Commands of the store, and notices.
    Main,
    /// Commands of the store at another node of a cluster.
    Node,
    /// Questions to a sentinel.
    Sentinel,
}

impl StoreConnector {
    /// Creates a connector. Loads the system's certificates for TLS, which blocks for a moment.
    pub(crate) fn new(url: StoreUrl, keys: Keys, connect_timeout: Duration) -> Result<Self, StoreError> {
        let tls = if url.uses_tls { Some(tls_connector()?) } else { None };
        Ok(Self { url, tls, keys, connect_timeout })
    }

    pub(crate) fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// Connects to one server and logs in.
    pub(crate) async fn open(
        &self,
        address: &Address,
        purpose: Purpose,
    ) -> Result<StoreConnection, StoreError> {
        let opened = timeout(self.connect_timeout, self.open_unbounded(address, purpose)).await;
        opened.unwrap_or_else(|_| {
            let time = self.connect_timeout;
            Err(StoreError::new(format!(
                "cannot connect to the store at {address}: no answer within {time:?}"
            )))
        })
    }

    async fn open_unbounded(
        &self,
        address: &Address,
        purpose: Purpose,
    ) -> Result<StoreConnection, StoreError> {
        let failed = |error: io::Error| {
            let reason = io_reason(&error);
            StoreError::new(format!("cannot connect to the store at {address}: {reason}"))
        };
        let stream = self.connect(address).await.map_err(failed)?;
        let buffer = BytesMut::new();
        let mut connection =
            StoreConnection { stream, buffer, scripts: Vec::new(), address: address.clone() };
        let is_replica = connection.log_in(&self.url, purpose).await?;
        if is_replica && !matches!(self.url.servers, Servers::Cluster(_)) {
            let message = format!("cannot use the store at {address}: it is a replica; name its primary");
            return Err(StoreError::new(message));
        }
        if purpose != Purpose::Sentinel {
            connection.load_scripts().await?;
        }
        if purpose == Purpose::Main {
            connection.subscribe(&self.keys).await?;
        }
        Ok(connection)
    }

    async fn connect(&self, address: &Address) -> io::Result<Box<dyn ByteStream>> {
        let (host, port) = match address {
            Address::Tcp { host, port } => (host.as_str(), *port),
            #[cfg(unix)]
            Address::Unix(path) => return Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

/// Returns a connector that trusts the system's certificates.
fn tls_connector() -> Result<TlsConnector, StoreError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| StoreError::new(format!("cannot use TLS for the store: {error}")))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns the commands that were not executed because the server has lost their scripts, and the notices after them, which must not
/// arrive before the changes that they announce.
fn find_lost_scripts(commands: &[StoreCommand], replies: &[Reply]) -> Vec<usize> {
    let is_lost = |reply: &Reply| matches!(reply, Reply::Error(error) if error.starts_with("NOSCRIPT"));
    let Some(first) = replies.iter().position(is_lost) else { return Vec::new() };
    let is_notice = |index: usize| commands[index].name == CommandName::Plain("PUBLISH");
    (first..replies.len()).filter(|index| is_lost(&replies[*index]) || is_notice(*index)).collect()
}

/// Returns whether the reply to a login names the role of a replica.
fn is_replica(hello: &Reply) -> bool {
    let Reply::Array(members) = hello else { return false };
    let text = |text: &'static str| Reply::Text(Bytes::from_static(text.as_bytes()));
    members.chunks_exact(2).any(|pair| pair[0] == text("role") && pair[1] == text("replica"))
}

/// Returns the text of an error without its number.
fn io_reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

impl StoreConnection {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sends commands and waits for their replies, in order. Messages that the server pushes in between go to `push`. Scripts that the
    /// server has lost are loaded and run again.
    pub(crate) async fn exchange(
        &mut self,
        commands: &[StoreCommand],
        mut push: impl FnMut(Vec<Reply>),
    ) -> Result<Vec<Reply>, StoreError> {
        let mut replies = self.exchange_once(commands, &mut push).await?;
        let repeated = find_lost_scripts(commands, &replies);
        if repeated.is_empty() {
            return Ok(replies);
        }
        self.scripts.clear();
        self.load_scripts().await?;
        let again: Vec<StoreCommand> = repeated.iter().map(|index| commands[*index].clone()).collect();
        for (index, reply) in repeated.into_iter().zip(self.exchange_once(&again, &mut push).await?) {
            replies[index] = reply;
        }
        Ok(replies)
    }

    async fn exchange_once(
        &mut self,
        commands: &[StoreCommand],
        push: &mut impl FnMut(Vec<Reply>),
    ) -> Result<Vec<Reply>, StoreError> {
        let mut output = BytesMut::new();
        for command in commands {
            self.write(command, &mut output);
        }
        self.send(&output).await?;
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            match self.read().await? {
                Reply::Push(message) => push(message),
                reply => replies.push(reply),
            }
        }
        Ok(replies)
    }

    /// Waits for a message that the server pushes.
    ///
    /// # Cancel safety
    /// No message is lost if the future is dropped.
    pub(crate) async fn next_push(&mut self) -> Result<Vec<Reply>, StoreError> {
        match self.read().await? {
            Reply::Push(message) => Ok(message),
            _ => Err(self.failed("a reply to no command")),
        }
    }

    fn write(&self, command: &StoreCommand, output: &mut BytesMut) {
        let mut parts = Vec::with_capacity(command.keys.len() + command.arguments.len() + 3);
        match command.name {
            CommandName::Plain(name) => parts.push(Bytes::from_static(name.as_bytes())),
            CommandName::Script(script) => {
                parts.push(Bytes::from_static(b"EVALSHA"));
                parts.push(self.scripts.get(script as usize).cloned().unwrap_or_default());
                parts.push(command.keys.len().to_string().into());
            }
        }
        parts.extend(command.keys.iter().cloned());
        parts.extend(command.arguments.iter().cloned());
        resp::write_command(output, &parts);
    }

    async fn send(&mut self, output: &[u8]) -> Result<(), StoreError> {
        let sent = async {
            self.stream.write_all(output).await?;
            self.stream.flush().await
        };
        match sent.await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(&io_reason(&error))),
        }
    }

    async fn read(&mut self) -> Result<Reply, StoreError> {
        loop {
            match resp::read_value(&mut self.buffer) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(error) => return Err(self.failed(&error.to_string())),
            }
            self.buffer.reserve(READ_SIZE);
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(self.failed("the server closed the connection")),
                Ok(_) => {}
                Err(error) => return Err(self.failed(&io_reason(&error))),
            }
        }
    }

    fn failed(&self, reason: &str) -> StoreError {
        StoreError::new(format!("the connection to the store at {} failed: {reason}", self.address))
    }

    /// Sends a command that must succeed before the connection is used.
    pub(crate) async fn run(
        &mut self,
        name: &'static str,
        arguments: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let replies = self.exchange_once(&[StoreCommand::plain(name, arguments)], &mut drop).await?;
        match replies.into_iter().next() {
            Some(Reply::Error(error)) => Err(self.refused(name, &error)),
            Some(reply) => Ok(reply),
            None => Err(self.failed("no reply")),
        }
    }

    /// Explains why the server refuses a command of the login.
    fn refused(&self, name: &str, error: &str) -> StoreError {
        let address = &self.address;
        let code = error.split(' ').next().unwrap_or_default();
        let reason = match code {
            "WRONGPASS" => "wrong user or password in `store.url`".to_owned(),
            "NOAUTH" => "the server requires a password; add it to `store.url`".to_owned(),
            "NOPERM" => format!("the user lacks the permission for `{name}`: {error}"),
            "ERR" if name == "hello" && error.contains("unknown command") => {
                "the server is too old; Valkey, or Redis 6 or later, is needed".to_owned()
            }
            _ => format!("`{name}` failed: {error}"),
        };
        StoreError::new(format!("cannot use the store at {address}: {reason}"))
    }

    /// Logs in. Returns whether the server is a replica, which cannot be written.
    async fn log_in(&mut self, url: &StoreUrl, purpose: Purpose) -> Result<bool, StoreError> {
        let is_sentinel = purpose == Purpose::Sentinel;
        let mut hello = self.greet(url, !is_sentinel).await?;
        // Few sentinels require a login, and others refuse users that they do not know.
        if is_sentinel && matches!(&hello, Reply::Error(error) if error.starts_with("NOAUTH")) {
            hello = self.greet(url, true).await?;
        }
        if let Reply::Error(error) = hello {
            return Err(self.refused("hello", &error));
        }
        if url.database != 0 && !is_sentinel {
            self.run("SELECT", vec![url.database.to_string().into()]).await?;
        }
        Ok(is_replica(&hello))
    }

    /// Selects the protocol, with or without the user and password of the URL.
    async fn greet(&mut self, url: &StoreUrl, with_login: bool) -> Result<Reply, StoreError> {
        let mut hello = vec![Bytes::from_static(b"3")];
        if let Some(password) = url.password.as_ref().filter(|_| with_login) {
            let user = url.user.as_deref().unwrap_or("default");
            hello.extend(["AUTH".to_owned().into(), user.to_owned().into(), password.to_string().into()]);
        }
        hello.extend([Bytes::from_static(b"SETNAME"), Bytes::from_static(b"toolcrib")]);
        let replies = self.exchange_once(&[StoreCommand::plain("hello", hello)], &mut drop).await?;
        replies.into_iter().next().ok_or_else(|| self.failed("no reply"))
    }

    async fn load_scripts(&mut self) -> Result<(), StoreError> {
        for script in StoreScript::ALL {
            let source = Bytes::from_static(script.source().as_bytes());
            match self.run("SCRIPT", vec![Bytes::from_static(b"LOAD"), source]).await? {
                Reply::Text(digest) => self.scripts.push(digest),
                _ => return Err(self.failed("no digest of a script")),
            }
        }
        Ok(())
    }

    /// Subscribes to the notices of every kind. The server confirms them with pushed messages, and refuses with a reply.
    async fn subscribe(&mut self, keys: &Keys) -> Result<(), StoreError> {
        let channels = StoreKind::ALL.map(|kind| keys.channel(kind)).to_vec();
        let commands = [StoreCommand::plain("SUBSCRIBE", channels), StoreCommand::plain("PING", Vec::new())];
        let mut output = BytesMut::new();
        for command in &commands {
            self.write(command, &mut output);
        }
        self.send(&output).await?;
        loop {
            match self.read().await? {
                Reply::Push(_) => {}
                Reply::Error(error) => return Err(self.refused("SUBSCRIBE", &error)),
                _ => return Ok(()),
            }
        }
    }
}
