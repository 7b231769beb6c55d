//! The official Rust SDK as a client of the same server, for comparison.

use anyhow::{Context, Result, bail};
use rmcp::model::{CallToolRequestParams, JsonObject};
use rmcp::service::{Peer, RoleClient, RunningService, ServiceExt as _};
use rmcp::transport::TokioChildProcess;
use serde_json::Value;
use tokio::process::Command;

use crate::load::{self, Concurrent, Load};

pub(crate) struct Sdk {
    service: RunningService<RoleClient, ()>,
}

impl Sdk {
    pub(crate) async fn open(echo_server: &str) -> Result<Self> {
        let mut command = Command::new(echo_server);
        command.args(["--id", "s0"]);
        Ok(Self { service: ().serve(TokioChildProcess::new(command)?).await? })
    }

    /// Makes `calls` calls of `echo`, one after the other.
    pub(crate) async fn sequential(&self, calls: u64) -> Result<()> {
        for number in 0..calls {
            let text = load::text(number);
            checked_call(self.service.peer(), "echo", arguments(None, &text), &text).await?;
        }
        Ok(())
    }

    pub(crate) async fn concurrent(&self, load: Load) -> Result<Concurrent> {
        let peer = self.service.peer().clone();
        load::run(load, move |number| {
            let peer = peer.clone();
            async move {
                let text = load::text(number);
                checked_call(&peer, load.tool(), arguments(load.sleep_ms, &text), &text).await
            }
        })
        .await
    }

    pub(crate) async fn close(self) -> Result<()> {
        self.service.cancel().await?;
        Ok(())
    }
}

/// Returns the arguments in the form that the SDK takes.
fn arguments(sleep_ms: Option<u64>, text: &str) -> JsonObject {
    let mut arguments = JsonObject::new();
    arguments.insert("text".to_owned(), Value::from(text));
    if let Some(sleep_ms) = sleep_ms {
        arguments.insert("ms".to_owned(), Value::from(sleep_ms));
    }
    arguments
}

async fn checked_call(
    peer: &Peer<RoleClient>,
    tool: &'static str,
    arguments: JsonObject,
    expected: &str,
) -> Result<()> {
    let result = peer.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await?;
    let content = result.content.first().context("no content")?;
    let text = &content.as_text().context("no text")?.text;
    if text != expected {
        bail!("{tool} answered {text:?} instead of {expected:?}");
    }
    Ok(())
}
