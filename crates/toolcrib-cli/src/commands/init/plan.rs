//! The plan of `init`: the servers to import, and the change of each agent's file.

use std::path::Path;

use serde_json::{Value, json};
use toolcrib::config::{Config, DeclaredServer};
use toolcrib_agents::agents::{self, Agent, AgentFileScope, AgentPaths};
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::export::{self, ChangedEntries, ExportPlan, ExportedServer, gateway};
use toolcrib_agents::import::{
    self, Import, ImportRequest, ImportVerdict, ImportedEntry, LeftOut, SecretExtraction,
};

use super::journal::{FileChange, InitChanges};
use super::service_step::ServiceStep;
use crate::command_error::CommandError;
use crate::commands::export::{gateway_spec, originals_in};
use crate::commands::import::open_config;
use crate::output::Output;
use crate::paths::Paths;
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
    /// Whether any agent is installed.
    pub(super) has_agents: bool,
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
    ) -> Result<Self, CommandError> {
        let config = open_config(paths)?;
        let import = import::import(&ImportRequest {
            from: "auto",
            scope: AgentFileScope::User,
            paths: &agent_paths,
            config_path: &paths.config,
            config_text: config.text(),
            secrets: SecretExtraction::Store(locator),
            left_out: LeftOut { project_entries: true, ..LeftOut::default() },
        })?;
        let is_new = |name: &&String| locator.find(name).is_err();
        let new_secrets = import.secrets.iter().map(|(name, _)| name).filter(is_new).cloned().collect();
        let new_config = Config::parse(&paths.config, &import.config_text);
        let mut plan = Self {
            agent_paths,
            import,
            config,
            new_config,
            agents: Vec::new(),
            unusable: Vec::new(),
            has_agents: false,
            new_secrets,
            service: ServiceStep::default(),
        };
        for agent in agents::all() {
            if agent.is_detected(AgentFileScope::User, &plan.agent_paths) {
                plan.has_agents = true;
                plan.add_agent(agent, config_flag, paths);
            }
        }
        // The entries of agents work only with a config.
        if !plan.agents.is_empty() && !plan.config.exists() && !plan.has_imports() {
            FIRST_CONFIG.clone_into(&mut plan.import.config_text);
        }
        Ok(plan)
    }

    fn add_agent(&mut self, agent: &'static Agent, config_flag: Option<&Path>, paths: &Paths) {
        match self.plan_agent(agent, config_flag, paths) {
            // Several agents may use the same file through links.
            Ok(plan) if self.agents.iter().any(|other| other.export.file() == plan.export.file()) => {}
            Ok(plan) if plan.export.has_changes() => self.agents.push(plan),
            Ok(_) => {}
            Err(error) => self.unusable.push(UnusableAgent { agent, error }),
        }
    }

    fn plan_agent(
        &self,
        agent: &'static Agent,
        config_flag: Option<&Path>,
        paths: &Paths,
    ) -> Result<AgentPlan, CommandError> {
        let scope = AgentFileScope::User;
        let gateway =
            gateway_spec(agent, scope, &self.agent_paths, config_flag, Some(&self.new_config), None)?;
        let servers = [ExportedServer::new(&gateway, None)];
        let mut export = export::plan(agent, scope, &self.agent_paths, paths.state_dir(), &servers)?;
        let originals = originals_in(&export, &self.import.entries, &self.new_config);
        export.remove_entries(agent, &originals.keys)?;
        if export.has_changes() {
            export.check_writable()?;
        }
        Ok(AgentPlan { agent, export, removed: originals.names })
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

    /// Prints the plan for people.
    pub(super) fn print(&self, out: &mut Output) -> std::io::Result<()> {
        let short = |path: &Path| self.agent_paths.abbreviate(path);
        if self.has_imports() {
            let config = short(self.config.path());
            out.print_line(&match self.imported().next() {
                Some(_) => format!("import into `{config}`:"),
                None => format!("create `{config}`, without servers"),
            })?;
        }
        for (entry, name) in self.imported() {
            let declared = self.new_config.declared.iter().find(|server| server.id.as_str() == name);
            let endpoint = declared.map(DeclaredServer::command_or_url).unwrap_or_default();
            let state = if declared.is_some_and(|server| !server.enabled) { ", disabled" } else { "" };
            out.print_line(&format!("  {name}: {endpoint}  (`{}`{state})", short(&entry.file)))?;
            entry.notes.iter().try_for_each(|note| out.print_line(&format!("    {note}")))?;
        }
        if !self.agents.is_empty() {
            out.print_line("let these agents use toolcrib:")?;
        }
        for AgentPlan { agent, export, removed } in &self.agents {
            let names: Vec<String> = removed.iter().map(|name| format!("`{name}`")).collect();
            let change = match names.is_empty() {
                true => "add `toolcrib`".to_owned(),
                false => format!("replace {} by `toolcrib`", names.join(", ")),
            };
            out.print_line(&format!("  {}: {change} in `{}`", agent.name, short(export.file())))?;
        }
        for KeptEntry { entry, reason } in self.kept() {
            out.print_line(&format!("keep `{}` in `{}`: {reason}", entry.name, short(&entry.file)))?;
        }
        self.service.print(&self.new_config, out)?;
        for warning in self.agents.iter().flat_map(|plan| &plan.export.warnings) {
            out.warn(warning, None)?;
        }
        self.warn_unusable(out)
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
            "service": self.service.to_json(),
        })
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
