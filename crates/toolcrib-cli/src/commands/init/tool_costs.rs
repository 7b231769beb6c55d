//! What the tools of each agent cost it before and after `init`, in tokens of its model.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::access::expose::estimate_tokens;
use toolcrib::config::Config;
use toolcrib::{Caller, ClientCapabilities, Crib};
use toolcrib_agents::agents::Agent;
use toolcrib_agents::import::ImportedEntry;
use toolcrib_serve::search_list_bytes;

use super::plan::InitPlan;
use crate::command_error::CommandError;
use crate::commands::{SHUTDOWN_GRACE, until_interrupted};
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::report::tools::{FailureReport, ToolReport};
use crate::secrets::SecretLocator;
use crate::tool_listing::{self, ToolsWait};

/// The number of the search tools.
const SEARCH_TOOLS: usize = 3;

/// The tools that an agent is listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AgentToolCost {
    pub(super) tools: usize,
    bytes: usize,
    /// Whether it is listed only the tools that find the others.
    pub(super) is_search: bool,
}

/// The cost of an agent's tools before and after `init`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CostChange {
    pub(super) before: AgentToolCost,
    pub(super) after: AgentToolCost,
}

/// The tools of all servers of a plan.
#[derive(Debug, Default)]
pub(super) struct ListedTools {
    tools: Vec<ToolReport>,
    /// The servers that could not be listed.
    pub(super) failed: Vec<FailureReport>,
}

impl AgentToolCost {
    fn add(&mut self, bytes: usize) {
        self.tools += 1;
        self.bytes += bytes;
    }

    pub(super) fn tokens(&self) -> usize {
        estimate_tokens(self.bytes)
    }

    /// Returns what a client is listed instead if it searches.
    fn searched(self) -> Self {
        Self { tools: SEARCH_TOOLS, bytes: search_list_bytes(), is_search: true }
    }

    fn to_json(self) -> Value {
        json!({"tools": self.tools, "tokens": self.tokens(), "search": self.is_search})
    }
}

impl CostChange {
    pub(super) fn to_json(self) -> Value {
        json!({"before": self.before.to_json(), "after": self.after.to_json()})
    }
}

impl std::fmt::Display for CostChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |cost: &AgentToolCost| {
            let plural = if cost.tools == 1 { "" } else { "s" };
            format!("{} tool{plural}, {} tokens", cost.tools, cost.tokens())
        };
        write!(f, "{} → {}", text(&self.before), text(&self.after))?;
        if self.after.is_search { f.write_str(", which find the others") } else { Ok(()) }
    }
}

impl ListedTools {
    /// Starts every server of the planned config that was never listed, and lists its tools. Secrets that are only planned are
    /// taken from the plan. Returns `None` if a signal interrupts it.
    pub(super) async fn read(
        plan: &InitPlan,
        paths: &Paths,
        locator: &SecretLocator,
    ) -> Result<Option<Self>> {
        let planned = plan.import.secrets.clone();
        let locator = locator.clone();
        let secrets = move |name: &str| match planned.iter().find(|(planned, _)| planned == name) {
            Some((_, value)) => Ok(value.clone()),
            None => locator.find(name),
        };
        let builder = Crib::builder()
            .roster(plan.new_config.roster.clone())
            .state_dir(paths.state_dir())
            .pins_dir(paths.pins_dir())
            .client_capabilities(ClientCapabilities::all())
            .secrets(secrets)
            .shim_self();
        let crib = builder.build().map_err(|error| CommandError::unexpected(&error))?;
        let wait = Wait::new("listing the tools of your agents", ServerSource::Crib(&crib));
        let local = Caller::local();
        let listing = wait.run(tool_listing::list_tools(&crib, &local, ToolsWait::All));
        let listed = until_interrupted(listing).await;
        crib.shutdown(SHUTDOWN_GRACE).await;
        Ok(listed?.map(|report| Self { tools: report.tools, failed: report.failed }))
    }

    /// Returns the cost of an agent's tools: in its own entries and, if it uses toolcrib, through that.
    pub(super) fn cost_before(
        &self,
        agent: &Agent,
        entries: &[ImportedEntry],
        old: Option<&Config>,
    ) -> AgentToolCost {
        let mut cost = AgentToolCost::default();
        for entry in entries.iter().filter(|entry| entry.agent == Some(agent.id) && !entry.disabled) {
            let Some(server) = entry.server() else { continue };
            let is_allowed = |tool: &&ToolReport| {
                let allow = entry.tools.allow.as_ref();
                allow.is_none_or(|allow| allow.contains(&tool.tool)) && !entry.tools.deny.contains(&tool.tool)
            };
            for tool in self.tools.iter().filter(|tool| tool.server == server).filter(is_allowed) {
                cost.add(tool.definition.to_string().len());
            }
        }
        let through = old.map(|old| self.cost_through(agent, old, None)).unwrap_or_default();
        AgentToolCost {
            tools: cost.tools + through.tools,
            bytes: cost.bytes + through.bytes,
            is_search: through.is_search,
        }
    }

    /// Returns the cost of the tools that an agent is listed with a config.
    pub(super) fn cost_through(
        &self,
        agent: &Agent,
        config: &Config,
        profile: Option<&str>,
    ) -> AgentToolCost {
        let caller = config.policy.local_caller(Some(agent.id), profile);
        let mut cost = AgentToolCost::default();
        for tool in &self.tools {
            let Ok(server) = tool.server.parse() else { continue };
            let is_declared =
                config.declared.iter().any(|declared| declared.id == server && declared.enabled);
            if is_declared && config.policy.authorize(&caller, &server, Some(&tool.tool)).is_ok() {
                cost.add(tool.definition_bytes());
            }
        }
        match config.expose.is_search(&caller, agent.client_name(), || cost.bytes) {
            true => cost.searched(),
            false => cost,
        }
    }
}
