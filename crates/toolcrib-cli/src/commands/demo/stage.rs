//! The demo's view of the gateway: a client like any other, over HTTP.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use toolcrib::wire::message::Answer;
use toolcrib::wire::object::{self, Object};

use crate::client::Client;

/// How long something may take to become true.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often that is looked at.
const GLANCE: Duration = Duration::from_millis(2);

/// How a call ended.
pub(super) enum Called {
    /// With this text.
    Text(String),
    /// With an error of this kind.
    Failed {
        /// The stable name of the kind.
        kind: String,
        /// What the gateway said.
        message: String,
    },
}

impl Called {
    /// For endings that nobody wanted.
    pub(super) fn unexpected(&self) -> anyhow::Error {
        match self {
            Self::Text(text) => anyhow::anyhow!("the answer was `{text}`"),
            Self::Failed { kind, message } => anyhow::anyhow!("the call failed ({kind}): {message}"),
        }
    }
}

/// A client of the gateway that remembers every process it saw.
pub(super) struct Stage {
    client: Client,
    seen: BTreeSet<u64>,
}

impl Stage {
    /// A client of the gateway at this port.
    pub(super) fn at(port: u16) -> Self {
        let client = Client::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Self { client, seen: BTreeSet::new() }
    }

    /// A second client.
    pub(super) fn another(&self) -> Self {
        Self { client: self.client.clone(), seen: BTreeSet::new() }
    }

    /// Every process that was seen.
    pub(super) fn seen(&self) -> &BTreeSet<u64> {
        &self.seen
    }

    /// Calls a tool in the stateless form.
    pub(super) async fn call(&self, tool: &str, arguments: &Value) -> Result<Called> {
        let mut params = Object::default();
        params.set("name", object::string(tool));
        params.set("arguments", arguments.to_string());
        Ok(match self.client.ask("/mcp", "tools/call", params).await? {
            Answer::Result(result) => {
                let result: Value = serde_json::from_slice(&result)?;
                Called::Text(
                    result["content"][0]["text"].as_str().context("an answer without text")?.to_owned(),
                )
            }
            Answer::Error(error) => {
                let error: Value = serde_json::from_slice(&error)?;
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                Called::Failed { kind: text(&error["data"]["kind"]), message: text(&error["message"]) }
            }
        })
    }

    /// The names of all tools.
    pub(super) async fn tool_names(&self) -> Result<Vec<String>> {
        let Answer::Result(result) = self.client.ask("/mcp", "tools/list", Object::default()).await? else {
            bail!("the list was refused")
        };
        let result: Value = serde_json::from_slice(&result)?;
        let tools = result["tools"].as_array().context("a list without tools")?;
        Ok(tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect())
    }

    /// How every server is.
    pub(super) async fn servers(&mut self) -> Result<Vec<Value>> {
        let mut status = self.client.get("/api/v1/status").await?;
        let Value::Array(servers) = status["servers"].take() else { bail!("a status without servers") };
        for server in &servers {
            self.seen.extend(server["pid"].as_u64());
            let lines = server["stderr_tail"].as_array().into_iter().flatten().filter_map(Value::as_str);
            self.seen.extend(lines.filter_map(|line| line.rsplit_once("pid ")?.1.parse::<u64>().ok()));
        }
        Ok(servers)
    }

    /// Looks once more at what runs, so that nothing is forgotten when it is stopped.
    pub(super) async fn note_processes(&mut self) -> Result<()> {
        self.servers().await.map(drop)
    }

    /// How one server is.
    pub(super) async fn server(&mut self, name: &str) -> Result<Value> {
        let servers = self.servers().await?;
        servers
            .into_iter()
            .find(|server| server["name"] == name)
            .with_context(|| format!("there is no `{name}`"))
    }

    /// Waits until something is true of a server.
    pub(super) async fn until(&mut self, name: &str, so: impl Fn(&Value) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let server = self.server(name).await?;
            if so(&server) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("`{name}` did not get there: {server}");
            }
            sleep(GLANCE).await;
        }
    }

    /// Kills a process in a way that it cannot refuse.
    pub(super) fn kill(&self, pid: u64) -> Result<()> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process")?;
        kill_process(pid, Signal::KILL).context("cannot kill it")
    }
}
