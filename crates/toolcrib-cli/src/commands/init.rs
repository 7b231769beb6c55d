//! `toolcrib init`: imports the servers of all agents, lets the agents use toolcrib instead, and undoes it.

mod journal;
mod plan;
mod proof;
mod service_step;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib_agents::agents::{Agent, AgentFileScope, AgentPaths};
use toolcrib_agents::export;

use self::journal::{FileUndo, InitJournal, InitRecord, RecordedFile};
use self::plan::InitPlan;
use self::proof::AgentProof;
use self::service_step::ServiceStep;
use super::gateway_update::GatewayUpdate;
use super::import::store_secrets;
use crate::cli::InitArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::OtherGateway;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::report::tools::{FailureReport, ToolsReport};
use crate::secrets::SecretLocator;

/// Command that undoes everything.
const UNDO: &str = "toolcrib init --undo";

/// Shows the plan, asks, carries it out and checks the result.
pub(crate) async fn run(
    args: &InitArgs,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let locator = SecretLocator::new(paths, &paths.sources().load().secrets);
    let agent_paths = AgentPaths::from_env()?;
    if args.undo {
        let report = undo(&agent_paths, paths, &locator)?;
        print_undo(&report, &agent_paths, out)?;
        update_gateway_after_undo(paths, out).await?;
        return Ok(if report.left.is_empty() { ExitStatus::Success } else { ExitStatus::CheckFailed });
    }
    let mut plan = InitPlan::new(agent_paths, paths, config_flag, &locator)?;
    if !plan.has_agents {
        let error = CommandError::new(ExitStatus::Failure, "no_agent", "no installed agent was found");
        return Err(error.hint("toolcrib add NAME -- COMMAND").into());
    }
    if !args.no_service {
        plan.service = ServiceStep::plan(&plan.new_config, paths);
    }
    if plan.is_empty() {
        return print_nothing_to_do(&plan, out);
    }
    if !out.json {
        plan.print(out)?;
    }
    if !args.yes && !out.prompter().confirm("make these changes?")? {
        if out.json {
            out.print_json(&report_json(&plan, None))?;
        }
        let error = CommandError::new(ExitStatus::CheckFailed, "not_initialized", "nothing was changed");
        return Err(error.hint("toolcrib init --yes").into());
    }
    carry_out(&plan, paths, &locator)?;
    let has_new_service = plan.service.carry_out(config_flag, out).await?;
    let result = check_result(&plan, config_flag, paths, out).await?;
    if out.json {
        let mut report = report_json(&plan, result.as_ref());
        report["service_installed"] = has_new_service.into();
        out.print_json(&report)?;
    } else {
        print_result(&plan, result.as_ref(), out)?;
    }
    let Some(InitResult { proofs, .. }) = result else { return Ok(ExitStatus::Interrupted) };
    let failed = proofs.iter().any(|proof| proof.tools.is_err());
    Ok(if failed { ExitStatus::Unreachable } else { ExitStatus::Success })
}

fn print_nothing_to_do(plan: &InitPlan, out: &mut Output) -> Result<ExitStatus> {
    if out.json {
        out.print_json(&report_json(plan, None))?;
    }
    plan.warn_unusable(out)?;
    out.print_note("nothing to do: every agent uses toolcrib")?;
    Ok(ExitStatus::Success)
}

/// Makes the changes. What they replace is recorded first; secrets come before the config that refers to them, and the
/// config before the agents that need it.
fn carry_out(plan: &InitPlan, paths: &Paths, locator: &SecretLocator) -> Result<()> {
    for step in 0.. {
        if !take_step(step, plan, paths, locator)? {
            break;
        }
    }
    Ok(())
}

/// Carries out one step of the plan. Returns whether there is another one.
fn take_step(step: usize, plan: &InitPlan, paths: &Paths, locator: &SecretLocator) -> Result<bool> {
    match step {
        0 => InitJournal::new(paths.state_dir()).add(&plan.changes())?,
        1 => store_secrets(locator, &plan.import, "import")?,
        2 if plan.has_imports() => plan.config.replace(&plan.import.config_text)?,
        2 => {}
        _ => match plan.agents.get(step - 3) {
            Some(agent) => agent.export.write()?,
            None => return Ok(false),
        },
    }
    Ok(true)
}

/// What `init` found out after the changes.
struct InitResult {
    /// What a gateway that was running did with the changes.
    gateway: GatewayUpdate,
    listing: ToolsReport,
    proofs: Vec<AgentProof>,
}

async fn check_result(
    plan: &InitPlan,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<Option<InitResult>> {
    let gateway = GatewayUpdate::reload(paths).await;
    gateway.print(out)?;
    if let GatewayUpdate::NotRunning = gateway {
        proof::start_gateway(config_flag, paths, out).await?;
    }
    out.print_note("starting the servers once to list their tools …")?;
    let listing = match plan.new_config.roster.is_empty() {
        true => ToolsReport::default(),
        false => match proof::list_servers(paths, out).await? {
            Some(listing) => listing,
            None => return Ok(None),
        },
    };
    let proofs = proof::prove_agents(&plan.agents, &plan.agent_paths).await?;
    Ok(proofs.map(|proofs| InitResult { gateway, listing, proofs }))
}

fn print_result(plan: &InitPlan, result: Option<&InitResult>, out: &mut Output) -> std::io::Result<()> {
    if let Some(InitResult { listing, proofs, .. }) = result {
        for error in &listing.failed {
            out.warn(&error.message, error.hint.as_deref())?;
        }
        for AgentProof { agent, tools } in proofs {
            match tools {
                Ok(tools) => out.print_line(&format!("{}: {tools} tools through toolcrib", agent.name))?,
                Err(error) => {
                    let message = format!("{}: the entry does not work: {}", agent.name, error.message);
                    out.warn(&message, error.hint.as_deref())?;
                }
            }
        }
    }
    for plan in &plan.agents {
        out.print_note(&format!(
            "next, {}: {}",
            plan.agent.name,
            plan.agent.next_step(AgentFileScope::User)
        ))?;
    }
    out.print_note(&format!("undo: {UNDO}"))
}

fn report_json(plan: &InitPlan, result: Option<&InitResult>) -> Value {
    let mut report = json!({"plan": plan.to_json(), "changed": result.is_some()});
    if let Some(InitResult { gateway, listing, proofs }) = result {
        report["gateway"] = gateway.to_json();
        report["tools"] = listing.tools.len().into();
        report["failed"] = listing.failed.iter().map(FailureReport::to_short_json).collect();
        report["proofs"] = proofs.iter().map(AgentProof::to_json).collect();
        report["undo"] = UNDO.into();
    }
    report
}

/// What undoing did to all files.
#[derive(Default)]
struct UndoReport {
    restored: Vec<PathBuf>,
    left: Vec<RecordedFile>,
    service_removed: bool,
}

/// Undoes every `init`, the newest first. Files that were edited since are not changed.
fn undo(agent_paths: &AgentPaths, paths: &Paths, locator: &SecretLocator) -> Result<UndoReport> {
    let journal = InitJournal::new(paths.state_dir());
    let records = journal.records()?;
    if records.is_empty() {
        let error = CommandError::new(ExitStatus::Failure, "nothing_to_undo", "no `init` to undo");
        return Err(error.into());
    }
    let mut report = UndoReport::default();
    for (number, record) in records {
        let left = undo_files(&record, agent_paths, paths, &mut report)?;
        // An agent that was not restored still needs the gateway, and each file that was not restored the secrets.
        if record.service && left.files.iter().all(|file| file.agent.is_none()) {
            report.service_removed |= service_step::remove(paths)?;
        }
        if left.files.is_empty() {
            record.secrets.iter().try_for_each(|name| locator.remove(name).map(|_| ()))?;
        }
        journal.finish(number, &left)?;
    }
    Ok(report)
}

/// Undoes the changes of one `init`: agents first, so that they work without toolcrib before its config goes. Returns what
/// is left.
fn undo_files(
    record: &InitRecord,
    agent_paths: &AgentPaths,
    paths: &Paths,
    report: &mut UndoReport,
) -> Result<InitRecord> {
    let mut left = InitRecord { files: Vec::new(), ..record.clone() };
    for file in record.files.iter().rev() {
        match file.undo(agent_paths)? {
            FileUndo::Restored => report.restored.push(file.path.clone()),
            FileUndo::Unchanged => {}
            FileUndo::Edited => {
                if !report.left.iter().any(|other| other.path == file.path) {
                    report.left.push(file.clone());
                }
                left.files.push(file.clone());
            }
        }
        export::forget_undone(&file.path, paths.state_dir());
    }
    Ok(left)
}

/// Lets no gateway keep the config that was undone. A gateway that an agent started is stopped: agents that still use
/// toolcrib start it again.
async fn update_gateway_after_undo(paths: &Paths, out: &mut Output) -> Result<()> {
    match OtherGateway::find(paths)? {
        Some(other) if other.auto_started => {
            let stopped = other.stop(paths.sources().load().limits.drain);
            Ok(Wait::new("stopping the gateway", ServerSource::None).run(stopped).await?)
        }
        Some(_) => Ok(GatewayUpdate::reload(paths).await.print(out)?),
        None => Ok(()),
    }
}

fn print_undo(report: &UndoReport, agent_paths: &AgentPaths, out: &mut Output) -> std::io::Result<()> {
    if out.json {
        let text = |path: &Path| path.display().to_string();
        let left = |file: &RecordedFile| json!({"file": text(&file.path), "backup": file.backup.as_deref().map(text)});
        let restored: Vec<String> = report.restored.iter().map(|path| text(path)).collect();
        let left: Vec<Value> = report.left.iter().map(left).collect();
        return out.print_json(&json!({
            "restored": restored, "left": left, "service_removed": report.service_removed,
        }));
    }
    for path in &report.restored {
        out.print_line(&format!("restored `{}`", agent_paths.abbreviate(path)))?;
    }
    if report.service_removed {
        out.print_line("removed the service")?;
    }
    for file in &report.left {
        let path = agent_paths.abbreviate(&file.path);
        let before = match &file.backup {
            Some(backup) => format!("its contents before are in `{}`", backup.display()),
            None => "it did not exist before".to_owned(),
        };
        let hint = match file.agent {
            Some(Agent { id, .. }) => format!(
                "toolcrib export {id} --undo removes only the entry of toolcrib and puts back what it replaced"
            ),
            None => "toolcrib rm NAME removes a server that you no longer need".to_owned(),
        };
        out.warn(&format!("`{path}` was edited since and is not changed; {before}"), Some(&hint))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use toolcrib::config::SecretBackend;

    use super::*;

    const CODEX: &str = "# mine\n[mcp_servers.a]\ncommand = 'x'\nenv = { API_TOKEN = 'abc' }\n";
    const KIRO: &str = "{\"mcpServers\": {\"b\": {\"command\": \"y\"}}}";

    /// Returns the contents of all files below a folder.
    fn read_tree(dir: &Path) -> BTreeMap<PathBuf, String> {
        let mut tree = BTreeMap::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => tree.extend(read_tree(&path)),
                false => drop(tree.insert(path.clone(), fs::read_to_string(&path).unwrap())),
            }
        }
        tree
    }

    #[test]
    fn undo_restores_everything_after_any_number_of_steps() {
        for steps in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            let user = dir.path().join("user");
            for (path, text) in [(".codex/config.toml", CODEX), (".kiro/settings/mcp.json", KIRO)] {
                let path = user.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            // Installed, but without a file.
            fs::create_dir_all(user.join(".cline")).unwrap();
            let before = read_tree(&user);
            let variables = || vec![("HOME".to_owned(), user.clone().into_os_string())];
            let agent_paths = || AgentPaths::new(variables(), &user).unwrap();
            let paths = Paths::under(&dir.path().join("toolcrib"));
            let locator = SecretLocator::new(&paths, &SecretBackend::File);
            let plan = InitPlan::new(agent_paths(), &paths, None, &locator).unwrap();
            assert_eq!((plan.agents.len(), plan.file_changes().len()), (3, 4));
            let taken =
                (0..steps).take_while(|step| take_step(*step, &plan, &paths, &locator).unwrap()).count();
            assert_eq!(taken, steps.min(6));
            assert_eq!(read_tree(&user) == before, steps <= 3);
            if steps == 0 {
                continue;
            }
            assert_eq!(locator.find("api-token").is_ok(), steps > 1);
            let report = undo(&agent_paths(), &paths, &locator).unwrap();
            assert_eq!((report.left.len(), report.restored.len()), (0, taken.saturating_sub(2)));
            assert_eq!(read_tree(&user), before, "after {steps} steps");
            assert!(!user.join(".cline/data").exists() && !paths.config.exists());
            assert!(locator.find("api-token").is_err());
            assert!(undo(&agent_paths(), &paths, &locator).is_err(), "nothing is left to undo");
        }
    }
}
