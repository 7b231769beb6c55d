//! The plan of `init`: the servers to import, and the change of each agent's file.

use std::path::Path;

use serde_json::{Value, json};
use toolcrib::config::{Config, DeclaredServer};
use toolcrib_agents::agents::{self, Agent, AgentFileScope, AgentPaths};
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::edit::toml::TomlFile;
use toolcrib_agents::export::{self, ChangedEntries, ExportPlan, ExportedServer, gateway};
use toolcrib_agents::import::{
    self, Import, ImportRequest, ImportVerdict, ImportedEntry, LeftOut, SecretExtraction,
};

use super::choices::InitChoices;
use super::journal::{FileChange, InitChanges};
use super::scopes::{AgentScope, AgentScopes, ScopeInput};
use super::service_step::ServiceStep;
use super::tool_costs::{CostChange, ListedTools};
use crate::command_error::CommandError;
use crate::commands::export::{gateway_spec, originals_in};
use crate::commands::import::open_config;
use crate::output::Output;
use crate::paths::Paths;
use crate::policy_test::find_profile;
use crate::report::tools::FailureReport;
use crate::secrets::SecretLocator;

/// The config of a user whose agents have no servers.
const FIRST_CONFIG: &str = "# Servers, as `toolcrib add time -- uvx mcp-server-time` declares them.\n";

/// Everything that `init` would change.
pub(super) struct InitPlan {
    pub(super) agent_paths: AgentPaths,
    pub(super) import: Import,
    pub(super) config: OriginalFile,
    /// The config after the import.
    pub(super) new_config: Config,
    /// The agents whose files change.
    pub(super) agents: Vec<AgentPlan>,
    /// The agents whose files cannot be used.
    pub(super) unusable: Vec<UnusableAgent>,
    /// The agents that have no servers and get none.
    pub(super) idle: Vec<&'static Agent>,
    /// Whether any agent is installed.
    pub(super) has_agents: bool,
    pub(super) choices: InitChoices,
    /// The config before the import.
    old_config: Config,
    scopes: AgentScopes,
    listed: ListedTools,
    /// Whether the tools of some agent are searched from now on.
    adds_search: bool,
    /// Names of the imported secrets that the store does not have yet.
    pub(super) new_secrets: Vec<String>,
    pub(super) service: ServiceStep,
}

/// The change of one agent's file.
pub(super) struct AgentPlan {
    pub(super) agent: &'static Agent,
    pub(super) export: ExportPlan,
    /// Names of the entries that the change removes.
    pub(super) removed: Vec<String>,
    /// What its tools cost, once they were listed.
    pub(super) cost: Option<CostChange>,
}

/// An agent whose file cannot be changed.
pub(super) struct UnusableAgent {
    pub(super) agent: &'static Agent,
    pub(super) error: CommandError,
}

impl InitPlan {
    /// Reads the files of all agents and plans the changes. Writes nothing.
    pub(super) fn new(
        agent_paths: AgentPaths,
        paths: &Paths,
        config_flag: Option<&Path>,
        locator: &SecretLocator,
        choices: InitChoices,
    ) -> Result<Self, CommandError> {
        let config = open_config(paths)?;
        let left_out = choices.left_out_agents();
        let import = import::import(&ImportRequest {
            from: "auto",
            scope: AgentFileScope::User,
            paths: &agent_paths,
            config_path: &paths.config,
            config_text: config.text(),
            secrets: SecretExtraction::Store(locator),
            left_out: LeftOut {
                agents: &left_out,
                servers: &choices.except,
                project_entries: !choices.share,
            },
        })?;
        choices.check_names(&import.entries)?;
        let is_new = |name: &&String| locator.find(name).is_err();
        let new_secrets = import.secrets.iter().map(|(name, _)| name).filter(is_new).cloned().collect();
        let mut plan = Self {
            old_config: Config::parse(&paths.config, config.text()),
            new_config: Config::parse(&paths.config, &import.config_text),
            agent_paths,
            import,
            config,
            agents: Vec::new(),
            unusable: Vec::new(),
            idle: Vec::new(),
            has_agents: false,
            choices,
            scopes: AgentScopes::default(),
            listed: ListedTools::default(),
            adds_search: false,
            new_secrets,
            service: ServiceStep::default(),
        };
        if let Some(profile) = &plan.choices.profile {
            find_profile(&plan.new_config, profile)?;
        }
        plan.add_agents(config_flag, paths)?;
        // The entries of agents work only with a config.
        if !plan.agents.is_empty() && !plan.config.exists() && !plan.has_imports() {
            FIRST_CONFIG.clone_into(&mut plan.import.config_text);
        }
        Ok(plan)
    }

    /// Plans the change of each agent's file, and the profiles with which agents keep the servers that they had.
    fn add_agents(&mut self, config_flag: Option<&Path>, paths: &Paths) -> Result<(), CommandError> {
        let is_installed = |agent: &&'static Agent| {
            self.choices.is_named(agent) || agent.is_detected(AgentFileScope::User, &self.agent_paths)
        };
        let installed: Vec<&'static Agent> = agents::all().filter(is_installed).collect();
        let chosen: Vec<&'static Agent> =
            installed.iter().copied().filter(|agent| self.choices.includes(agent)).collect();
        self.has_agents = !chosen.is_empty();
        if self.choices.profile.is_none() {
            self.scopes = AgentScopes::new(&ScopeInput {
                agent_paths: &self.agent_paths,
                old: &self.old_config,
                new: &self.new_config,
                entries: &self.import.entries,
                agents: &installed,
                widened: if self.choices.share { &chosen } else { &[] },
            });
        }
        let has_servers = self.new_config.declared.iter().any(|server| server.enabled);
        let mut scoped = Vec::new();
        for agent in installed {
            let scope = self.scopes.get(agent);
            let is_connected = scope.is_some_and(|scope| scope.is_connected);
            let is_idle = has_servers && !is_connected && scope.is_some_and(|scope| scope.servers.is_empty());
            match chosen.iter().any(|chosen| chosen.id == agent.id) {
                true if is_idle => self.idle.push(agent),
                true if self.add_agent(agent, config_flag, paths) => scoped.push(agent),
                false if is_connected => scoped.push(agent),
                _ => {}
            }
        }
        if self.choices.profile.is_none() {
            let text = self.scopes.add_profiles(&self.import.config_text, &scoped);
            let text = text.map_err(|error| CommandError::unexpected(&error))?;
            self.set_config_text(text, paths);
        }
        Ok(())
    }

    fn set_config_text(&mut self, text: String, paths: &Paths) {
        self.new_config = Config::parse(&paths.config, &text);
        self.import.config_text = text;
    }

    /// Plans the change of an agent's file. Returns whether the agent uses toolcrib afterwards.
    fn add_agent(&mut self, agent: &'static Agent, config_flag: Option<&Path>, paths: &Paths) -> bool {
        match self.plan_agent(agent, config_flag, paths) {
            // Several agents may use the same file through links.
            Ok(plan) if self.agents.iter().any(|other| other.export.file() == plan.export.file()) => false,
            Ok(plan) => {
                if plan.export.has_changes() {
                    self.agents.push(plan);
                }
                true
            }
            Err(error) => {
                self.unusable.push(UnusableAgent { agent, error });
                false
            }
        }
    }

    /// Lists the tools of all servers, computes what they cost each agent, and chooses the search mode for agents that would be
    /// listed more than the budget and do not search themselves. Returns whether it was not interrupted.
    pub(super) async fn count_tools(
        &mut self,
        paths: &Paths,
        locator: &SecretLocator,
    ) -> anyhow::Result<bool> {
        if self.agents.is_empty() || self.new_config.roster.is_empty() {
            return Ok(true);
        }
        let Some(listed) = ListedTools::read(self, paths, locator).await? else { return Ok(false) };
        self.listed = listed;
        self.compute_costs();
        let budget = self.new_config.expose.budget;
        let is_too_long = |plan: &AgentPlan| {
            let is_above = plan.cost.is_some_and(|cost| cost.after.tokens() > budget);
            is_above && plan.agent.client_name().is_none()
        };
        let mut file =
            TomlFile::parse(&self.import.config_text).map_err(|error| CommandError::unexpected(&error))?;
        if self.agents.iter().any(is_too_long) && !file.contains(&["expose", "mode"]) {
            file.set(&["expose", "mode"], &"auto".into())
                .map_err(|error| CommandError::unexpected(&error))?;
            self.adds_search = true;
            self.set_config_text(file.render(), paths);
            self.compute_costs();
        }
        Ok(true)
    }

    fn compute_costs(&mut self) {
        let profile = self.choices.profile.as_deref();
        let cost = |agent: &Agent| {
            let is_connected = self.scopes.get(agent).is_some_and(|scope| scope.is_connected);
            let old = is_connected.then_some(&self.old_config);
            CostChange {
                before: self.listed.cost_before(agent, &self.import.entries, old),
                after: self.listed.cost_through(agent, &self.new_config, profile),
            }
        };
        let costs: Vec<CostChange> = self.agents.iter().map(|plan| cost(plan.agent)).collect();
        for (plan, cost) in self.agents.iter_mut().zip(costs) {
            plan.cost = Some(cost);
        }
    }

    /// Returns what the numbers of the printed plan stand for: servers that are imported, then agents.
    pub(super) fn numbered_names(&self) -> Vec<String> {
        let servers = self.imported().map(|(_, name)| name.to_owned());
        servers.chain(self.agents.iter().map(|plan| plan.agent.id.to_owned())).collect()
    }

    fn plan_agent(
        &self,
        agent: &'static Agent,
        config_flag: Option<&Path>,
        paths: &Paths,
    ) -> Result<AgentPlan, CommandError> {
        let scope = AgentFileScope::User;
        let profile = self.choices.profile.as_deref();
        let config = Some(&self.new_config);
        let gateway = gateway_spec(agent, scope, &self.agent_paths, config_flag, config, profile)?;
        let servers = [ExportedServer::new(&gateway, None)];
        let mut export = export::plan(agent, scope, &self.agent_paths, paths.state_dir(), &servers)?;
        let originals = originals_in(&export, &self.import.entries, &self.new_config);
        export.remove_entries(agent, &originals.keys)?;
        if export.has_changes() {
            export.check_writable()?;
        }
        Ok(AgentPlan { agent, export, removed: originals.names, cost: None })
    }

    /// Returns whether the config changes.
    pub(super) fn has_imports(&self) -> bool {
        self.import.config_text != self.config.text()
    }

    /// Returns whether there is nothing to change.
    pub(super) fn is_empty(&self) -> bool {
        self.agents.is_empty() && !self.has_imports() && !self.service.is_install()
    }

    /// Returns the changes of files, in the order in which they are made.
    pub(super) fn file_changes(&self) -> Vec<FileChange<'_>> {
        let before = self.config.exists().then(|| self.config.text());
        let config = FileChange {
            path: self.config.path(),
            agent: None,
            before,
            after: &self.import.config_text,
            entries: ChangedEntries::default(),
        };
        let agents = self.agents.iter().map(|plan| FileChange {
            path: plan.export.file(),
            agent: Some(plan.agent),
            before: plan.export.before(),
            after: plan.export.after(),
            entries: plan.export.changed_entries(),
        });
        std::iter::once(config).filter(|_| self.has_imports()).chain(agents).collect()
    }

    /// Returns everything that changes, for the journal.
    pub(super) fn changes(&self) -> InitChanges<'_> {
        InitChanges {
            files: self.file_changes(),
            secrets: &self.new_secrets,
            service: self.service.is_install(),
        }
    }

    /// Returns what each step of `init` changes, in order; see `take_step`.
    pub(super) fn describe_steps(&self) -> Vec<StepDescription> {
        let names: Vec<String> = self.import.secrets.iter().map(|(name, _)| format!("`{name}`")).collect();
        let secrets = (!names.is_empty()).then(|| format!("secrets {}", names.join(", ")));
        let config =
            self.has_imports().then(|| format!("`{}`", self.agent_paths.abbreviate(self.config.path())));
        let agents = self.agents.iter().map(|plan| Some(plan.agent.name.to_owned()));
        let service = self.service.is_install().then(|| "the service".to_owned());
        let texts = [secrets, config].into_iter().chain(agents).chain([service]);
        // The first step writes the journal.
        texts.zip(1..).filter_map(|(text, step)| Some(StepDescription { step, text: text? })).collect()
    }

    fn imported(&self) -> impl Iterator<Item = (&ImportedEntry, &str)> {
        self.import.entries.iter().filter_map(|entry| match &entry.verdict {
            ImportVerdict::Imported(name) => Some((entry, name.as_str())),
            _ => None,
        })
    }

    /// Returns the entries that stay in the files that change, with the reason.
    fn kept(&self) -> Vec<KeptEntry<'_>> {
        let is_planned = |agent: &str| self.agents.iter().any(|plan| plan.agent.id == agent);
        let reason = |entry: &ImportedEntry| match &entry.verdict {
            ImportVerdict::Skipped(reason) => Some(reason.clone()),
            _ if !entry.is_replaced_by(&self.new_config) => Some("the config has it disabled".to_owned()),
            _ if entry.keys.is_none() => Some("remove it from that list yourself".to_owned()),
            _ => None,
        };
        let entries = self.import.entries.iter().filter(|entry| entry.agent.is_some_and(is_planned));
        let is_own = |kept: &KeptEntry<'_>| kept.entry.name == gateway::ENTRY_NAME && kept.entry.is_gateway;
        let kept = entries.filter_map(|entry| Some(KeptEntry { entry, reason: reason(entry)? }));
        kept.filter(|kept| !is_own(kept)).collect()
    }

    /// Prints the plan for people, with numbers if they can be typed to leave something out.
    pub(super) fn print(&self, is_numbered: bool, out: &mut Output) -> std::io::Result<()> {
        let short = |path: &Path| self.agent_paths.abbreviate(path);
        let mut numbers = (1..).map(|number| if is_numbered { format!("{number}. ") } else { String::new() });
        let mut number = || numbers.next().unwrap_or_default();
        if self.has_imports() {
            let config = short(self.config.path());
            out.print_line(&match self.imported().next() {
                Some(_) => format!("import into `{config}`:"),
                None if self.config.exists() => format!("change `{config}`"),
                None => format!("create `{config}`, without servers"),
            })?;
        }
        for (entry, name) in self.imported() {
            let declared = self.new_config.declared.iter().find(|server| server.id.as_str() == name);
            let endpoint = declared.map(DeclaredServer::command_or_url).unwrap_or_default();
            let state = if declared.is_some_and(|server| !server.enabled) { ", disabled" } else { "" };
            let file = short(&entry.file);
            out.print_line(&format!("  {}{name}: {endpoint}  (`{file}`{state})", number()))?;
            entry.notes.iter().try_for_each(|note| out.print_line(&format!("    {note}")))?;
        }
        if !self.agents.is_empty() {
            out.print_line("let these agents use toolcrib:")?;
        }
        for plan in &self.agents {
            let file = short(plan.export.file());
            out.print_line(&format!("  {}{}: {} in `{file}`", number(), plan.agent.name, plan.change()))?;
            self.print_scope(plan, out)?;
        }
        for KeptEntry { entry, reason } in self.kept() {
            out.print_line(&format!("keep `{}` in `{}`: {reason}", entry.name, short(&entry.file)))?;
        }
        self.print_notes(out)?;
        self.service.print(&self.new_config, out)?;
        for warning in self.agents.iter().flat_map(|plan| &plan.export.warnings) {
            out.warn(warning, None)?;
        }
        for error in &self.listed.failed {
            out.warn(&format!("{}; its tools are not counted", error.message), error.hint.as_deref())?;
        }
        self.warn_unusable(out)
    }

    /// Prints which servers an agent has afterwards, and what its tools cost.
    fn print_scope(&self, plan: &AgentPlan, out: &mut Output) -> std::io::Result<()> {
        let scope = self.scopes.get(plan.agent);
        if let Some(AgentScope { servers, profile: Some(profile), .. }) = scope {
            let names: Vec<String> = servers.iter().map(|name| format!("`{name}`")).collect();
            out.print_line(&format!("    only {} (`profiles.{profile}`)", names.join(", ")))?;
        }
        match plan.cost {
            Some(cost) => out.print_line(&format!("    {cost}")),
            None => Ok(()),
        }
    }

    /// Prints what differs from setting up every agent with everything.
    pub(super) fn print_notes(&self, out: &mut Output) -> std::io::Result<()> {
        if !self.idle.is_empty() {
            let names: Vec<&str> = self.idle.iter().map(|agent| agent.name).collect();
            out.print_line(&format!("leave out {}: no servers of its own", names.join(", ")))?;
        }
        let has_scopes = self
            .agents
            .iter()
            .any(|plan| self.scopes.get(plan.agent).is_some_and(|scope| scope.profile.is_some()));
        if (has_scopes || !self.idle.is_empty()) && !self.choices.share {
            out.print_line("each agent keeps what it had; `--share` gives every server to every agent")?;
        }
        if self.adds_search {
            let budget = self.new_config.expose.budget;
            out.print_line(&format!(
                "set `expose.mode = \"auto\"`: agents search tools of more than {budget} tokens, instead of being listed them"
            ))?;
        }
        Ok(())
    }

    /// Prints which agents are left out, and why.
    pub(super) fn warn_unusable(&self, out: &mut Output) -> std::io::Result<()> {
        for UnusableAgent { agent, error } in &self.unusable {
            out.warn(&format!("{} is left out: {}", agent.name, error.message), error.hint.as_deref())?;
        }
        Ok(())
    }

    pub(super) fn to_json(&self) -> Value {
        let file = |path: &Path| path.display().to_string();
        let servers: Vec<Value> = self
            .imported()
            .map(|(entry, name)| {
                json!({"name": name, "agent": entry.agent, "file": file(&entry.file), "notes": entry.notes})
            })
            .collect();
        let agents: Vec<Value> = self
            .agents
            .iter()
            .map(|plan| {
                json!({
                    "agent": plan.agent.id,
                    "file": file(plan.export.file()),
                    "removed": plan.removed,
                    "servers": self.scopes.get(plan.agent).map(|scope| &scope.servers),
                    "profile": self.scopes.get(plan.agent).and_then(|scope| scope.profile.as_deref()),
                    "tools": plan.cost.map(CostChange::to_json),
                    "diff": plan.export.diff(),
                    "warnings": plan.export.warnings,
                    "next_step": plan.agent.next_step(AgentFileScope::User),
                })
            })
            .collect();
        let kept: Vec<Value> = self
            .kept()
            .iter()
            .map(|kept| {
                let entry = kept.entry;
                json!({"name": entry.name, "agent": entry.agent, "file": file(&entry.file), "reason": kept.reason})
            })
            .collect();
        let unusable: Vec<Value> = self
            .unusable
            .iter()
            .map(|left| json!({"agent": left.agent.id, "error": left.error.to_json()["error"]}))
            .collect();
        json!({
            "config": file(self.config.path()),
            "servers": servers,
            "agents": agents,
            "kept": kept,
            "unusable": unusable,
            "idle": self.idle.iter().map(|agent| agent.id).collect::<Vec<_>>(),
            "search": self.adds_search,
            "failed": self.listed.failed.iter().map(FailureReport::to_short_json).collect::<Vec<_>>(),
            "service": self.service.to_json(),
        })
    }
}

impl AgentPlan {
    /// Returns what changes in the agent's file.
    fn change(&self) -> String {
        let names: Vec<String> = self.removed.iter().map(|name| format!("`{name}`")).collect();
        match names.is_empty() {
            true => "add `toolcrib`".to_owned(),
            false => format!("replace {} by `toolcrib`", names.join(", ")),
        }
    }
}

/// What one step of `init` changes.
pub(super) struct StepDescription {
    pub(super) step: usize,
    pub(super) text: String,
}

/// An entry that stays in its file.
struct KeptEntry<'a> {
    entry: &'a ImportedEntry,
    reason: String,
}
