//! `toolcrib init`: imports the servers of all agents, lets the agents use toolcrib instead, and undoes it.

mod journal;
mod plan;
mod proof;
mod service_step;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib_agents::agents::{AgentFileScope, AgentPaths};
use toolcrib_agents::export;

use self::journal::{FileUndo, InitJournal, InitRecord, RecordedFile};
use self::plan::{InitPlan, StepDescription};
use self::proof::AgentProof;
use self::service_step::{ServiceRemoval, ServiceStep};
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
        return Ok(if report.is_complete() { ExitStatus::Success } else { ExitStatus::CheckFailed });
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
        super::export::warn_temporary_program(out)?;
    }
    if args.dry_run || (!args.yes && !out.prompter().confirm("make these changes?")?) {
        return end_without_changes(args, &plan, out);
    }
    if let Err(error) = carry_out(&plan, paths, &locator, confirmed_command(args)) {
        print_stop(&error, out)?;
        return Err(error.into());
    }
    let has_new_service = plan.service.carry_out(config_flag, out).await?;
    let result = check_result(&plan, config_flag, paths, out).await;
    if result.is_err() {
        let undo = out.complete_hint(UNDO);
        out.print_note(&format!("all files are changed, but could not be checked; undo: {undo}"))?;
    }
    let result = result?;
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

/// Ends before the first change: with `--dry-run`, or because the changes were not confirmed.
fn end_without_changes(args: &InitArgs, plan: &InitPlan, out: &mut Output) -> Result<ExitStatus> {
    if out.json {
        out.print_json(&report_json(plan, None))?;
    }
    if args.dry_run {
        return Ok(ExitStatus::Success);
    }
    let error = CommandError::new(ExitStatus::CheckFailed, "not_initialized", "nothing was changed");
    Err(error.hint(confirmed_command(args)).into())
}

/// Returns the command that makes the changes without a prompt.
fn confirmed_command(args: &InitArgs) -> &'static str {
    if args.no_service { "toolcrib init --yes --no-service" } else { "toolcrib init --yes" }
}

fn print_nothing_to_do(plan: &InitPlan, out: &mut Output) -> Result<ExitStatus> {
    if out.json {
        out.print_json(&report_json(plan, None))?;
    }
    plan.warn_unusable(out)?;
    out.print_note(match plan.unusable.is_empty() {
        true => "nothing to do: every agent uses toolcrib",
        false => "nothing was changed: the agents above are left out, and every other one uses toolcrib",
    })?;
    Ok(ExitStatus::Success)
}

/// Makes the changes. What they replace is recorded first; secrets come before the config that refers to them, and the
/// config before the agents that need it. If one of them fails, the error says what was done before it and what was not.
fn carry_out(
    plan: &InitPlan,
    paths: &Paths,
    locator: &SecretLocator,
    continuation: &str,
) -> Result<(), CommandError> {
    for step in 0.. {
        match take_step(step, plan, paths, locator) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) if step == 0 => return Err(error),
            Err(error) => return Err(stopped_error(error, step, plan, continuation)),
        }
    }
    Ok(())
}

/// Carries out one step of the plan. Returns whether there is another one.
fn take_step(
    step: usize,
    plan: &InitPlan,
    paths: &Paths,
    locator: &SecretLocator,
) -> Result<bool, CommandError> {
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

/// Completes the error of a step by what was done before it, what was not, and how to go on.
fn stopped_error(error: CommandError, step: usize, plan: &InitPlan, continuation: &str) -> CommandError {
    let (done, not_done): (Vec<_>, Vec<_>) =
        plan.describe_steps().into_iter().partition(|described| described.step < step);
    let texts = |steps: Vec<StepDescription>| -> Vec<String> {
        steps.into_iter().map(|described| described.text).collect()
    };
    let go_on = format!("`{continuation}` continues, `{UNDO}` undoes what was done");
    let hint = match &error.hint {
        Some(hint) => format!("{hint}; {go_on}"),
        None => go_on,
    };
    let data = json!({"done": texts(done), "not_done": texts(not_done), "undo": UNDO});
    CommandError { data, ..error }.hint(hint)
}

/// Prints what was done before an error, and what was not.
fn print_stop(error: &CommandError, out: &mut Output) -> std::io::Result<()> {
    for (key, label) in [("done", "done"), ("not_done", "not done")] {
        let Some(steps) = error.data[key].as_array() else { continue };
        let steps: Vec<&str> = steps.iter().filter_map(Value::as_str).collect();
        let text = if steps.is_empty() { "nothing".to_owned() } else { steps.join(", ") };
        out.print_note(&format!("{label}: {text}"))?;
    }
    Ok(())
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
    let mut listing = ToolsReport::default();
    if !plan.new_config.roster.is_empty() {
        out.print_note("starting the servers once to list their tools …")?;
        let Some(listed) = proof::list_servers(paths, out).await? else { return Ok(None) };
        listing = listed;
    }
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
    if plan.new_config.roster.is_empty() {
        out.print_note("next: `toolcrib add NAME -- COMMAND` declares a server for all of them")?;
    }
    for plan in &plan.agents {
        out.print_note(&format!(
            "next, {}: {}",
            plan.agent.name,
            plan.agent.next_step(AgentFileScope::User)
        ))?;
    }
    out.print_note(&format!("undo: {}", out.complete_hint(UNDO)))
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
    /// Files that were edited since, and have everything but the change.
    edited: Vec<RecordedFile>,
    left: Vec<RecordedFile>,
    service_removed: bool,
    /// Why the service is still installed.
    service_left: Option<String>,
}

impl UndoReport {
    fn is_complete(&self) -> bool {
        self.left.is_empty() && self.service_left.is_none()
    }
}

/// Undoes every `init`, the newest first. What was edited since stays.
fn undo(agent_paths: &AgentPaths, paths: &Paths, locator: &SecretLocator) -> Result<UndoReport> {
    let journal = InitJournal::new(paths.state_dir());
    let records = journal.records()?;
    if records.is_empty() {
        let error = CommandError::new(ExitStatus::Failure, "nothing_to_undo", "no `init` to undo");
        return Err(error.into());
    }
    let mut report = UndoReport::default();
    for (number, record) in records {
        let mut left = undo_files(&record, agent_paths, paths, &mut report)?;
        // An agent that was not restored still needs the gateway, and each file that was not restored the secrets.
        if record.service && left.files.iter().all(|file| file.agent.is_none()) {
            left.service = undo_service(paths, &mut report);
        }
        if left.files.is_empty() {
            record.secrets.iter().try_for_each(|name| locator.remove(name).map(|_| ()))?;
        }
        journal.finish(number, &left)?;
    }
    Ok(report)
}

/// Removes the service. Returns whether it is still installed.
fn undo_service(paths: &Paths, report: &mut UndoReport) -> bool {
    match service_step::remove(paths) {
        ServiceRemoval::Removed => report.service_removed = true,
        ServiceRemoval::NotInstalled => {}
        ServiceRemoval::Left { reason } => {
            report.service_left = Some(reason);
            return true;
        }
    }
    false
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
        let is_in = |list: &[RecordedFile]| list.iter().any(|other| other.path == file.path);
        match file.undo(agent_paths)? {
            FileUndo::Restored => report.restored.push(file.path.clone()),
            FileUndo::Unchanged => {}
            FileUndo::EditsKept if is_in(&report.edited) => {}
            FileUndo::EditsKept => report.edited.push(file.clone()),
            FileUndo::Edited => {
                if !is_in(&report.left) {
                    report.left.push(file.clone());
                }
                left.files.push(file.clone());
                continue;
            }
        }
        export::forget_undone(&file.path, file.before()?.as_deref(), paths.state_dir());
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
        let edited: Vec<String> = report.edited.iter().map(|file| text(&file.path)).collect();
        let left: Vec<Value> = report.left.iter().map(left).collect();
        return out.print_json(&json!({
            "restored": restored, "edited": edited, "left": left,
            "service_removed": report.service_removed, "service_left": report.service_left,
        }));
    }
    for path in &report.restored {
        out.print_line(&format!("restored `{}`", agent_paths.abbreviate(path)))?;
    }
    for file in &report.edited {
        let path = agent_paths.abbreviate(&file.path);
        let removed = match file.agent {
            Some(_) => "the entry of toolcrib is removed, and what it replaced is back",
            None => "what `init` added is removed",
        };
        out.print_line(&format!("`{path}` was edited since, which stays; {removed}"))?;
    }
    if report.service_removed {
        out.print_line("removed the service")?;
    }
    if report.restored.is_empty() && report.edited.is_empty() && report.is_complete() {
        out.print_note("all files are as they were before")?;
    }
    if let Some(reason) = &report.service_left {
        out.warn(&format!("the service is still installed: {reason}"), Some(UNDO))?;
    }
    for file in &report.left {
        let path = agent_paths.abbreviate(&file.path);
        let before = match &file.backup {
            Some(backup) => format!("its contents before are in `{}`", backup.display()),
            None => "it did not exist before".to_owned(),
        };
        let hint = match file.agent {
            Some(_) => format!("repair the file, then run `{UNDO}` again"),
            None => "`toolcrib rm NAME` removes a server that you no longer need".to_owned(),
        };
        out.warn(&format!("`{path}` was edited since and cannot be changed; {before}"), Some(&hint))?;
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

    /// A user with three agents, one of which has no file yet.
    struct TestUser {
        dir: tempfile::TempDir,
        paths: Paths,
        locator: SecretLocator,
    }

    impl TestUser {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let paths = Paths::under(&dir.path().join("toolcrib"));
            let locator = SecretLocator::new(&paths, &SecretBackend::File);
            let user = Self { dir, paths, locator };
            for (path, text) in [(".codex/config.toml", CODEX), (".kiro/settings/mcp.json", KIRO)] {
                let path = user.home().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            fs::create_dir_all(user.home().join(".cline")).unwrap();
            user
        }

        fn home(&self) -> PathBuf {
            self.dir.path().join("user")
        }

        fn agent_paths(&self) -> AgentPaths {
            let home = ("HOME".to_owned(), self.home().into_os_string());
            AgentPaths::new(vec![home], &self.home()).unwrap()
        }

        fn plan(&self) -> InitPlan {
            InitPlan::new(self.agent_paths(), &self.paths, None, &self.locator).unwrap()
        }

        fn undo(&self) -> Result<UndoReport> {
            undo(&self.agent_paths(), &self.paths, &self.locator)
        }
    }

    #[test]
    fn undo_restores_everything_after_any_number_of_steps() {
        for steps in 0..10 {
            let user = TestUser::new();
            let before = read_tree(&user.home());
            let plan = user.plan();
            assert_eq!((plan.agents.len(), plan.file_changes().len()), (3, 4));
            let take = |step: &usize| take_step(*step, &plan, &user.paths, &user.locator).unwrap();
            let taken = (0..steps).take_while(take).count();
            assert_eq!(taken, steps.min(6));
            assert_eq!(read_tree(&user.home()) == before, steps <= 3);
            if steps == 0 {
                continue;
            }
            assert_eq!(user.locator.find("a-api-token").is_ok(), steps > 1);
            let report = user.undo().unwrap();
            assert_eq!((report.left.len(), report.restored.len()), (0, taken.saturating_sub(2)));
            assert_eq!(read_tree(&user.home()), before, "after {steps} steps");
            assert!(!user.home().join(".cline/data").exists() && !user.paths.config.exists());
            assert!(user.locator.find("a-api-token").is_err());
            assert!(user.undo().is_err(), "nothing is left to undo");
        }
    }

    #[test]
    fn failed_init_says_what_was_done_and_can_be_continued() {
        let user = TestUser::new();
        let before = read_tree(&user.home());
        let plan = user.plan();
        let kiro = user.home().join(".kiro/settings/mcp.json");
        // The agent writes its own file between the plan and the change.
        fs::write(&kiro, "{}").unwrap();
        let error = carry_out(&plan, &user.paths, &user.locator, "toolcrib init --yes").unwrap_err();
        let names: Vec<&str> = plan.agents.iter().map(|plan| plan.agent.name).collect();
        let failed = names.iter().position(|name| *name == "Kiro").unwrap();
        let config = format!("`{}`", plan.config.path().display());
        let done = [&["secrets `a-api-token`", &config][..], &names[..failed]].concat();
        assert_eq!(error.data["done"], json!(done));
        assert_eq!(error.data["not_done"], json!(names[failed..]));
        assert_eq!(
            error.hint.as_deref(),
            Some(
                "run the command again; `toolcrib init --yes` continues, `toolcrib init --undo` undoes what was done"
            )
        );
        fs::write(&kiro, KIRO).unwrap();
        carry_out(&user.plan(), &user.paths, &user.locator, "").unwrap();
        assert!(!fs::read_to_string(&kiro).unwrap().contains("\"b\""), "toolcrib replaces it");
        assert!(user.undo().unwrap().is_complete());
        assert_eq!(read_tree(&user.home()), before);
    }
}
