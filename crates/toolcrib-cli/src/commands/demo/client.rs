//! The HTTP client of the demo.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::protocol::jsonrpc::ResponsePayload;

use crate::client::GatewayClient;
use crate::report::Report as _;
use crate::report::server::ServerReport;
use crate::report::status::GatewayReport;

/// The time limit of [`DemoClient::wait_until`].
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The polling interval of [`DemoClient::wait_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The result of a call.
pub(super) enum DemoCallResult {
    /// The text of a successful result.
    Text(String),
    /// An error of the gateway.
    Failed {
        /// The stable name of the error kind.
        kind: String,
        /// The message of the gateway.
        message: String,
    },
}

impl DemoCallResult {
    /// Returns an error that describes an unexpected result.
    pub(super) fn to_error(&self) -> anyhow::Error {
        match self {
            Self::Text(text) => anyhow::anyhow!("unexpected result: `{text}`"),
            Self::Failed { kind, message } => anyhow::anyhow!("the call failed ({kind}): {message}"),
        }
    }
}

/// A client of the gateway that remembers every server process it saw.
pub(super) struct DemoClient {
    client: GatewayClient,
    seen_pids: BTreeSet<u64>,
}

impl DemoClient {
    /// Creates a client of the gateway at this port.
    pub(super) fn new(port: u16) -> Self {
        let client = GatewayClient::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Self { client, seen_pids: BTreeSet::new() }
    }

    /// Returns a second client of the same gateway.
    pub(super) fn second_client(&self) -> Self {
        Self { client: self.client.clone(), seen_pids: BTreeSet::new() }
    }

    /// Returns the pids of all processes that were seen.
    pub(super) fn seen_pids(&self) -> &BTreeSet<u64> {
        &self.seen_pids
    }

    /// Calls a tool.
    pub(super) async fn call(&self, tool: &str, arguments: &Value) -> Result<DemoCallResult> {
        let mut params = Object::default();
        params.set_unchecked("name", object::to_json_string(tool));
        params.set_unchecked("arguments", arguments.to_string());
        Ok(match self.client.request("/mcp", "tools/call", params).await?.into_result() {
            Ok(result) => {
                let result: Value = serde_json::from_slice(&result)?;
                DemoCallResult::Text(
                    result["content"][0]["text"].as_str().context("the result has no text")?.to_owned(),
                )
            }
            Err(error) => {
                let error: Value = serde_json::from_slice(&error)?;
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                DemoCallResult::Failed {
                    kind: text(&error["data"]["kind"]),
                    message: text(&error["message"]),
                }
            }
        })
    }

    /// Returns the names of all tools.
    pub(super) async fn tool_names(&self) -> Result<Vec<String>> {
        let ResponsePayload::Result(result) =
            self.client.request("/mcp", "tools/list", Object::default()).await?
        else {
            bail!("`tools/list` failed")
        };
        let result: Value = serde_json::from_slice(&result)?;
        let tools = result["tools"].as_array().context("the result has no `tools`")?;
        Ok(tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect())
    }

    /// Returns the status of all servers and remembers their pids.
    pub(super) async fn servers(&mut self) -> Result<Vec<ServerReport>> {
        let status: GatewayReport = self.client.fetch("/api/v1/status").await?;
        for server in &status.servers {
            self.seen_pids.extend(server.pid);
            let lines = server.stderr_tail.iter();
            self.seen_pids.extend(lines.filter_map(|line| line.rsplit_once("pid ")?.1.parse::<u64>().ok()));
        }
        Ok(status.servers)
    }

    /// Remembers the pids of all running servers.
    pub(super) async fn note_processes(&mut self) -> Result<()> {
        self.servers().await.map(drop)
    }

    /// Returns the status of one server.
    pub(super) async fn server(&mut self, name: &str) -> Result<ServerReport> {
        let servers = self.servers().await?;
        servers
            .into_iter()
            .find(|server| server.name == name)
            .with_context(|| format!("the status has no server `{name}`"))
    }

    /// Waits until the status of a server meets a condition.
    pub(super) async fn wait_until(
        &mut self,
        name: &str,
        condition: impl Fn(&ServerReport) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            let server = self.server(name).await?;
            if condition(&server) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("timed out waiting for `{name}`: {}", server.to_json());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Kills a process with SIGKILL.
    pub(super) fn kill(&self, pid: u64) -> Result<()> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("not a valid pid")?;
        kill_process(pid, Signal::KILL).context("cannot kill the process")
    }
}
