//! Connects an agent to the gateway again after it was lost, or serves the agent standalone if no gateway comes back.

use std::future::pending;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::Project;
use toolcrib::util::encoding;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib_serve::{McpService, PROJECT_HEADER, PipeIdentity, serve_pipe};

use super::{AgentOptions, auto_start};
use crate::client;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{OtherGateway, StandaloneCrib};
use crate::paths::Paths;

/// The time that messages wait for a gateway before this command serves the agent itself.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause between two attempts to connect. It doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The time limit for a gateway to accept the upgrade.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of the response head of an upgrade.
const MAX_HEAD_SIZE: usize = 16 << 10;
/// The buffer size of the pipe to a gateway in this process.
const PIPE_CAPACITY: usize = 64 << 10;

/// Connects to the gateway of a config.
pub(super) struct GatewayConnector<'a> {
    paths: &'a Paths,
    config_flag: Option<&'a Path>,
    agent: AgentOptions<'a>,
    /// The crib of this command while it serves the agent itself.
    own_crib: Option<StandaloneCrib>,
    tasks: TaskTracker,
}

/// A connection to a gateway that carries MCP messages, one per line.
pub(super) struct GatewayPipe {
    pub(super) from: Box<dyn AsyncRead + Unpin>,
    pub(super) to: Box<dyn AsyncWrite + Unpin>,
    /// Bytes that were read together with the upgrade response.
    pub(super) buffered: Vec<u8>,
}

impl<'a> GatewayConnector<'a> {
    pub(super) fn new(paths: &'a Paths, config_flag: Option<&'a Path>, agent: AgentOptions<'a>) -> Self {
        Self { paths, config_flag, agent, own_crib: None, tasks: TaskTracker::new() }
    }

    /// Returns the maximum size of a message according to the current config, or the default if it cannot be read.
    pub(super) fn max_message_size(&self) -> usize {
        self.paths
            .read_config()
            .map_or_else(|_| toolcrib::config::GatewayLimits::default(), |config| config.limits)
            .body
    }

    /// Upgrades a connection to MCP and sends the working folder, the agent and the profile. The gateway numbers its questions after
    /// `last_question`.
    pub(super) async fn upgrade(&self, stream: UnixStream, last_question: u64) -> Result<GatewayPipe> {
        let (mut from, mut to) = stream.into_split();
        let project = super::working_folder().map_or_else(String::new, |folder| {
            format!("{}: {}\r\n", PROJECT_HEADER, encoding::percent_encode(&folder))
        });
        let parameter = |name: &str, value: Option<&str>| {
            value.map_or_else(String::new, |value| format!("&{name}={}", encoding::percent_encode(value)))
        };
        let agent = parameter("agent", self.agent.name);
        let profile = parameter("profile", self.agent.profile);
        let request = format!(
            "GET /api/v1/stdio?end=1&asked={last_question}{agent}{profile} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: mcp\r\n\
             {project}\r\n"
        );
        to.write_all(request.as_bytes()).await?;
        let buffered = timeout(UPGRADE_TIMEOUT, read_upgrade_response(&mut from))
            .await
            .map_err(|_| gateway_lost("it did not respond"))??;
        Ok(GatewayPipe { from: Box::new(from), to: Box::new(to), buffered })
    }

    /// Connects to a gateway, waiting until there is one. If `has_work`, a gateway is started, or this command serves the agent
    /// itself: immediately if the last gateway was started this way, else after [`RECONNECT_TIMEOUT`]. Returns `None` once
    /// `is_done`.
    pub(super) async fn reconnect(
        &mut self,
        last_question: u64,
        has_work: impl Fn() -> bool,
        is_done: impl Fn() -> bool,
    ) -> Result<Option<GatewayPipe>> {
        self.close().await;
        let was_auto_started = OtherGateway::was_auto_started(self.paths);
        let patience = if was_auto_started { Duration::ZERO } else { RECONNECT_TIMEOUT };
        let deadline = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        while !is_done() {
            // Any error may be temporary, for example while the socket folder is created again.
            if let Ok(Some(stream)) = client::connect(self.paths).await
                && let Ok(pipe) = self.upgrade(stream, last_question).await
            {
                return Ok(Some(pipe));
            }
            if has_work() && Instant::now() >= deadline {
                return match self.start_gateway(last_question).await? {
                    Some(pipe) => Ok(Some(pipe)),
                    None => self.serve_standalone(last_question).map(Some),
                };
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        Ok(None)
    }

    /// Starts a gateway in the background and connects to it. Returns `None` if that is not possible.
    async fn start_gateway(&self, last_question: u64) -> Result<Option<GatewayPipe>> {
        if auto_start::refusal(self.paths, &self.paths.valid_config()?)?.is_some() {
            return Ok(None);
        }
        match auto_start::start(self.paths, self.config_flag).await {
            Ok(started) => Ok(self.upgrade(started.stream, last_question).await.ok()),
            Err(reason) => {
                tracing::warn!("cannot start a gateway: {reason}");
                Ok(None)
            }
        }
    }

    /// Starts an MCP service in this process and returns a pipe to it.
    fn serve_standalone(&mut self, last_question: u64) -> Result<GatewayPipe> {
        let config = self.paths.valid_config()?;
        let standalone = StandaloneCrib::new(self.paths, &config)?;
        tracing::warn!("the gateway did not come back; continuing without it");
        standalone.crib.begin_discovery();
        let service = Arc::new(McpService::new(standalone.crib.clone()));
        let caller = standalone.crib.local_caller(self.agent.name, self.agent.profile);
        self.own_crib = Some(standalone);
        let (agent_end, service_end) = tokio::io::duplex(PIPE_CAPACITY);
        let (reader, writer) = tokio::io::split(service_end);
        let identity = PipeIdentity {
            caller,
            project: Project::from_roots(super::working_folder()),
            last_question,
            announces_end: false,
        };
        let max_message_size = config.limits.body;
        let stop = CancellationToken::new();
        let serve = serve_pipe(reader, writer, service, max_message_size, identity, stop);
        self.tasks.spawn_boxed(serve);
        let (from, to) = tokio::io::split(agent_end);
        Ok(GatewayPipe { from: Box::new(from), to: Box::new(to), buffered: Vec::new() })
    }

    /// Waits until a gateway is available and no request is outstanding. Never returns while attached to a gateway.
    pub(super) async fn wait_for_gateway(&self, is_idle: impl Fn() -> bool) {
        if self.own_crib.is_none() {
            return pending().await;
        }
        loop {
            sleep(MAX_PAUSE).await;
            if is_idle() && matches!(client::connect(self.paths).await, Ok(Some(_))) && is_idle() {
                tracing::info!("a gateway is available again; attaching to it");
                return;
            }
        }
    }

    /// Stops the servers that this command started itself.
    pub(super) async fn close(&mut self) {
        if let Some(crib) = self.own_crib.take() {
            crib.shutdown(super::super::SHUTDOWN_GRACE).await;
        }
    }
}

/// Reads the response to an upgrade request and returns the bytes that follow it.
async fn read_upgrade_response(from: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            let status = String::from_utf8_lossy(&head[..end]).lines().next().unwrap_or_default().to_owned();
            let accepted = status.split(' ').nth(1) == Some("101");
            return if accepted { Ok(head.split_off(end + 4)) } else { Err(gateway_lost(&status).into()) };
        }
        let count: io::Result<usize> = from.read_buf(&mut head).await;
        if head.len() > MAX_HEAD_SIZE || count? == 0 {
            return Err(gateway_lost("its response ended early").into());
        }
    }
}

fn gateway_lost(reason: &str) -> CommandError {
    CommandError::new(ExitStatus::Unreachable, "gateway_lost", format!("lost the gateway: {reason}"))
        .hint("toolcrib status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn upgrade_response_keeps_following_bytes() {
        let mut accepted: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: mcp\r\n\r\n{\"a\":1}\n";
        assert_eq!(read_upgrade_response(&mut accepted).await.unwrap(), b"{\"a\":1}\n");
        for mut refused in [&b"HTTP/1.1 503 no\r\n\r\n"[..], b"", b"HTTP/1.1 101"] {
            assert!(read_upgrade_response(&mut refused).await.is_err());
        }
    }
}
