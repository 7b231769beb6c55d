//! Checks after `init` that each agent's entry works: starts exactly what the file says and lists its tools.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::{Caller, CommandSpec, Crib, ServerSpec};
use toolcrib_agents::agents::{Agent, AgentPaths};
use toolcrib_agents::export::gateway;

use super::plan::AgentPlan;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::commands::stdio::auto_start;
use crate::commands::{SHUTDOWN_GRACE, missing_gateway_error, run_standalone, until_interrupted};
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::report::tools::ToolsReport;
use crate::tool_listing::{self, ToolsWait};

/// The answer of one agent's entry.
pub(super) struct AgentProof {
    pub(super) agent: &'static Agent,
    /// The number of tools, or why there is none.
    pub(super) tools: Result<usize, CommandError>,
}

impl AgentProof {
    pub(super) fn to_json(&self) -> Value {
        match &self.tools {
            Ok(tools) => json!({"agent": self.agent.id, "tools": tools}),
            Err(error) => json!({"agent": self.agent.id, "error": error.to_json()["error"]}),
        }
    }
}

/// Starts the gateway that the agents share, as the first of them would. It must not be started by an entry that is checked:
/// it would be stopped with that entry.
pub(super) async fn start_gateway(config_flag: Option<&Path>, paths: &Paths, out: &mut Output) -> Result<()> {
    let config = paths.valid_config()?;
    if missing_gateway_error(&config).is_some() || auto_start::refusal(paths, &config)?.is_some() {
        return Ok(());
    }
    if let Err(reason) = auto_start::start(paths, config_flag).await {
        out.warn(&format!("cannot start a gateway: {reason}"), Some("toolcrib doctor"))?;
    }
    Ok(())
}

/// Lists the tools of every server of the config once, so that each entry has the same to show. Returns `None` if a signal
/// interrupts it.
pub(super) async fn list_servers(paths: &Paths, out: &mut Output) -> Result<Option<ToolsReport>> {
    match GatewayClient::find(paths).await? {
        Some(client) => {
            let wait = Wait::new("listing tools", ServerSource::Gateway(&client));
            Ok(until_interrupted(wait.run(client.fetch("/api/v1/tools?wait=1"))).await?.transpose()?)
        }
        None => {
            let list =
                async |crib: Crib| tool_listing::list_tools(&crib, &Caller::local(), ToolsWait::All).await;
            run_standalone(paths, out, list).await
        }
    }
}

/// Starts the entry of each agent and lists its tools, all at the same time. Returns `None` if a signal interrupts it.
pub(super) async fn prove_agents(
    plans: &[AgentPlan],
    agent_paths: &AgentPaths,
) -> Result<Option<Vec<AgentProof>>> {
    let mut builder = Crib::builder().shim_self();
    let mut unreadable = Vec::new();
    for AgentPlan { agent, export, .. } in plans {
        match read_command(agent, export.file(), agent_paths) {
            Ok(command) => {
                let id = agent.id.parse().map_err(|error| CommandError::unexpected(&error))?;
                builder = builder.server(ServerSpec::command(id, command));
            }
            Err(error) => unreadable.push(AgentProof { agent, tools: Err(error) }),
        }
    }
    let crib = builder.build().map_err(|error| CommandError::unexpected(&error))?;
    let wait = Wait::new("starting the entries of the agents", ServerSource::Crib(&crib));
    let discoveries = until_interrupted(wait.run(crib.discover())).await;
    crib.shutdown(SHUTDOWN_GRACE).await;
    let Some(discoveries) = discoveries? else { return Ok(None) };
    let mut proofs = unreadable;
    for discovery in discoveries {
        let agent = Agent::find(discovery.server.as_str())?;
        let tools = discovery.tools.map(|tools| tools.len()).map_err(CommandError::from);
        proofs.push(AgentProof { agent, tools });
    }
    Ok(Some(proofs))
}

fn read_command(agent: &Agent, file: &Path, agent_paths: &AgentPaths) -> Result<CommandSpec, CommandError> {
    let text = fs::read_to_string(file).map_err(|error| CommandError::unexpected(&error))?;
    Ok(gateway::written_command(agent, file, &text, agent_paths)?)
}
