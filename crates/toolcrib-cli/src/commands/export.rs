//! `toolcrib export`: writes toolcrib or its servers into the files of agents, and undoes it.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::{Config, ServerSpec};
use toolcrib_agents::agents::{self, Agent, AgentFileScope, AgentPaths};
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::export::gateway::{self, GatewayProgram, PackageRunner};
use toolcrib_agents::export::{self, ExportPlan, ExportedServer, UndoResult, UndoneExport};
use toolcrib_agents::import::{self, ImportRequest, ImportedEntry, LeftOut, SecretExtraction};

use crate::cli::ExportArgs;
use crate::client;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::policy_test::find_profile;
use crate::secrets::{self, SecretLocator};

/// The inputs that are the same for every agent.
struct Exporter<'a> {
    args: &'a ExportArgs,
    scope: AgentFileScope,
    /// The file of `--config`.
    config_flag: Option<&'a Path>,
    paths: &'a Paths,
    agent_paths: AgentPaths,
    config: Option<Config>,
}

/// The change for one agent, made or only planned.
struct ExportResult {
    plan: ExportPlan,
    /// Names of the entries that toolcrib replaces.
    removed: Vec<String>,
    undone: Option<UndoResult>,
}

/// Entries of an agent's file that are servers of the config.
pub(super) struct Originals {
    pub(super) names: Vec<String>,
    /// The keys that lead to each entry.
    pub(super) keys: Vec<Vec<String>>,
}

/// Returns the entries of the file of an export that the config replaces.
pub(super) fn originals_in(plan: &ExportPlan, entries: &[ImportedEntry], config: &Config) -> Originals {
    let mut originals = Originals { names: Vec::new(), keys: Vec::new() };
    for entry in entries.iter().filter(|entry| entry.is_replaced_by(config)) {
        let is_in_file = entry.file.canonicalize().is_ok_and(|file| file == plan.file());
        if let Some(keys) = entry.keys.clone().filter(|_| is_in_file) {
            originals.names.push(entry.name.clone());
            originals.keys.push(keys);
        }
    }
    originals
}

/// Exports to one agent or to all. With several, one that fails does not stop the others.
pub(crate) async fn run(
    args: &ExportArgs,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let agent_paths = AgentPaths::from_env()?;
    let scope = args.scope.into();
    let agents = select_agents(args, scope, &agent_paths)?;
    let needs_config = args.expand || args.replace || args.profile.is_some();
    let config = if needs_config { Some(paths.valid_config()?) } else { paths.read_config().ok() };
    if let (Some(profile), Some(config)) = (&args.profile, &config) {
        find_profile(config, profile)?;
    }
    if config.is_none() && !args.undo {
        let CommandError { message, hint, .. } = paths.missing_config_error();
        out.warn(&format!("{message}; agents get no tools without it"), hint.as_deref())?;
    }
    if let Some(error) = config.as_ref().and_then(super::missing_gateway_error)
        && !args.undo
        && (args.expand || !client::is_running(paths).await)
    {
        out.warn(&error.message, error.hint.as_deref())?;
    }
    if !args.undo && !args.expand {
        warn_temporary_program(out)?;
    }
    let exporter = Exporter { args, scope, config_flag, paths, agent_paths, config };
    let mut reports = Vec::new();
    let mut exit = ExitStatus::Success;
    for agent in agents {
        let result = match exporter.export(agent) {
            Ok(result) => result,
            Err(error) if args.all && error.code == "nothing_to_undo" => continue,
            Err(error) if args.all => {
                exit = error.exit;
                reports.push(json!({"agent": agent.id, "error": error.to_json()["error"]}));
                if !out.json {
                    out.print_error(&error)?;
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if args.check && result.plan.has_changes() && exit == ExitStatus::Success {
            exit = ExitStatus::CheckFailed;
        }
        reports.push(result.to_json(agent, scope));
        if !out.json {
            exporter.print_result(agent, &result, out)?;
        }
    }
    if out.json {
        out.print_json(&if args.all { Value::Array(reports) } else { reports.pop().unwrap_or_default() })?;
    }
    Ok(exit)
}

fn select_agents(
    args: &ExportArgs,
    scope: AgentFileScope,
    agent_paths: &AgentPaths,
) -> Result<Vec<&'static Agent>, CommandError> {
    if let Some(id) = &args.agent {
        return Ok(vec![Agent::find(id)?]);
    }
    let detected: Vec<_> = agents::all().filter(|agent| agent.is_detected(scope, agent_paths)).collect();
    if detected.is_empty() {
        let ids: Vec<_> = agents::all().map(|agent| agent.id).collect();
        return Err(CommandError::new(ExitStatus::Failure, "no_agent", "no installed agent was found")
            .hint(format!("`toolcrib export AGENT`, where AGENT is one of {}", ids.join(", "))));
    }
    Ok(detected)
}

impl ExportResult {
    fn to_json(&self, agent: &Agent, scope: AgentFileScope) -> Value {
        let plan = &self.plan;
        json!({
            "agent": agent.id,
            "file": plan.file().display().to_string(),
            "changed": plan.has_changes(),
            "removed": self.removed,
            "diff": plan.diff(),
            "warnings": plan.warnings,
            "next_step": agent.next_step(scope),
        })
    }
}

/// Warns if agents would start this program from a cache that a package runner cleans.
pub(super) fn warn_temporary_program(out: &mut Output) -> std::io::Result<()> {
    let program = std::env::current_exe().ok();
    let Some(runner) = program.as_deref().and_then(PackageRunner::find) else { return Ok(()) };
    let message = format!(
        "this toolcrib is in the cache of `{}`; if that is cleaned, agents cannot start it",
        runner.name
    );
    out.warn(&message, Some(&format!("run `{}`, then repeat this command", runner.install)))
}

/// Returns the entry that starts this program.
pub(super) fn gateway_spec(
    agent: &Agent,
    scope: AgentFileScope,
    agent_paths: &AgentPaths,
    config_flag: Option<&Path>,
    config: Option<&Config>,
    profile: Option<&str>,
) -> Result<ServerSpec, CommandError> {
    let path = std::env::current_exe().map_err(|error| {
        let message = format!("cannot find the path of this program: {error}");
        CommandError::new(ExitStatus::Failure, "no_program", message)
    })?;
    let secret_variables = config.map(secrets::required_variables).unwrap_or_default();
    let secret_variables = &secret_variables;
    let program = GatewayProgram { path: &path, config_flag, config, secret_variables, profile };
    Ok(gateway::gateway_spec(agent, scope, agent_paths, &program)?)
}

impl Exporter<'_> {
    /// Writes or undoes the change for one agent, unless this is a dry run.
    fn export(&self, agent: &Agent) -> Result<ExportResult, CommandError> {
        if self.args.undo {
            let UndoneExport { plan, result } =
                export::undo(agent, self.scope, &self.agent_paths, self.paths.state_dir())?;
            return Ok(ExportResult { plan, removed: Vec::new(), undone: Some(result) });
        }
        let mut plan = self.plan(agent)?;
        let removed = match &self.config {
            Some(config) if self.args.replace => self.remove_originals(agent, &mut plan, config)?,
            _ => Vec::new(),
        };
        if plan.has_changes() && !self.args.dry_run && !self.args.check {
            plan.write()?;
        }
        Ok(ExportResult { plan, removed, undone: None })
    }

    /// Removes the entries that are servers of the config, so that no server runs twice. Returns their names.
    fn remove_originals(
        &self,
        agent: &Agent,
        plan: &mut ExportPlan,
        config: &Config,
    ) -> Result<Vec<String>, CommandError> {
        let locator = SecretLocator::new(self.paths, &config.secrets);
        let config_text = OriginalFile::read(&self.paths.config)?;
        let entries = import::find_originals(&ImportRequest {
            from: agent.id,
            scope: self.scope,
            paths: &self.agent_paths,
            config_path: &self.paths.config,
            config_text: config_text.text(),
            secrets: SecretExtraction::Store(&locator),
            left_out: LeftOut::default(),
        })?;
        let originals = originals_in(plan, &entries, config);
        plan.remove_entries(agent, &originals.keys)?;
        for entry in entries.iter().filter(|entry| !originals.names.contains(&entry.name)) {
            let file = self.agent_paths.abbreviate(&entry.file);
            plan.warnings.push(format!("`{}` in `{file}` runs twice: remove it yourself", entry.name));
        }
        Ok(originals.names)
    }

    fn plan(&self, agent: &Agent) -> Result<ExportPlan, CommandError> {
        let config = self.config.as_ref();
        let profile = self.args.profile.as_deref();
        let gateway = gateway_spec(agent, self.scope, &self.agent_paths, self.config_flag, config, profile)?;
        let servers: Vec<ExportedServer<'_>> = match config.filter(|_| self.args.expand) {
            Some(config) => config
                .roster
                .servers()
                .map(|spec| ExportedServer::new(spec, config.policy.servers.get(&spec.id)))
                .collect(),
            None => vec![ExportedServer::new(&gateway, None)],
        };
        Ok(export::plan(agent, self.scope, &self.agent_paths, self.paths.state_dir(), &servers)?)
    }

    fn print_result(&self, agent: &Agent, result: &ExportResult, out: &mut Output) -> std::io::Result<()> {
        let ExportResult { plan, removed, undone } = result;
        let file = self.agent_paths.abbreviate(plan.file());
        let name = agent.name;
        for warning in &plan.warnings {
            out.warn(warning, None)?;
        }
        if let Some(undone) = undone {
            return out.print_note(&match undone {
                UndoResult::Restored => format!("{name}: restored `{file}`"),
                UndoResult::Removed => format!("{name}: removed `{file}`, which did not exist before"),
                UndoResult::EntriesRemoved => format!(
                    "{name}: `{file}` was changed since; undid only the entries of toolcrib and kept the rest"
                ),
                _ => format!("{name}: undid the export to `{file}`"),
            });
        }
        if !plan.has_changes() {
            return out.print_note(&format!("{name}: `{file}` needs no change"));
        }
        if self.args.dry_run || self.args.check {
            out.print_line(plan.diff().trim_end())?;
            return out.print_note(&format!("{name}: `{file}` would change"));
        }
        out.print_note(&format!("{name}: wrote `{file}`"))?;
        if !removed.is_empty() {
            let names: Vec<String> = removed.iter().map(|name| format!("`{name}`")).collect();
            out.print_note(&format!("{name}: removed {}, which toolcrib runs now", names.join(", ")))?;
        }
        out.print_note(&format!("next: {}", agent.next_step(self.scope)))?;
        let scope = if self.scope == AgentFileScope::Project { " --scope project" } else { "" };
        out.print_note(&format!("undo: toolcrib export {}{scope} --undo", agent.id))
    }
}
