//! `toolcrib init`: imports the servers of all agents, lets the agents use toolcrib instead, and undoes it.

mod choices;
mod journal;
mod plan;
mod proof;
mod scopes;
mod service_step;
mod tool_costs;
mod undo;

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib_agents::agents::{AgentFileScope, AgentPaths};

use self::choices::{InitChoices, PlanAnswer};
use self::journal::InitJournal;
use self::plan::{InitPlan, StepDescription};
use self::proof::AgentProof;
use self::service_step::ServiceStep;
use super::gateway_update::GatewayUpdate;
use super::import::store_secrets;
use crate::cli::InitArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
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
        let report = undo::undo(&agent_paths, paths, &locator)?;
        report.print(&agent_paths, out)?;
        undo::update_gateway(paths, out).await?;
        return Ok(if report.is_complete() { ExitStatus::Success } else { ExitStatus::CheckFailed });
    }
    let inputs = PlanInputs { args, config_flag, paths, locator: &locator };
    let plan = match inputs.choose_plan(&agent_paths, out).await? {
        ChosenPlan::Confirmed(plan) => *plan,
        ChosenPlan::Ended(exit) => return Ok(exit),
    };
    let continuation = confirmed_command(args, &plan.choices);
    if let Err(error) = carry_out(&plan, paths, &locator, &continuation) {
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

/// What a plan is made from.
struct PlanInputs<'a> {
    args: &'a InitArgs,
    config_flag: Option<&'a Path>,
    paths: &'a Paths,
    locator: &'a SecretLocator,
}

/// The result of showing the plan.
enum ChosenPlan {
    /// The changes are to be made.
    Confirmed(Box<InitPlan>),
    /// Nothing is to be changed.
    Ended(ExitStatus),
}

impl PlanInputs<'_> {
    /// Shows the plan and asks, again without what was left out, until the changes are confirmed or rejected.
    async fn choose_plan(&self, agent_paths: &AgentPaths, out: &mut Output) -> Result<ChosenPlan> {
        let Self { args, config_flag, paths, locator } = *self;
        let mut choices = InitChoices::new(args)?;
        let asks = out.prompter().is_interactive() && !args.yes && !args.dry_run;
        loop {
            let mut plan = InitPlan::new(agent_paths.clone(), paths, config_flag, locator, choices.clone())?;
            if !plan.has_agents {
                let error =
                    CommandError::new(ExitStatus::Failure, "no_agent", "no installed agent was found");
                return Err(error.hint("toolcrib add NAME -- COMMAND").into());
            }
            if !args.no_service {
                plan.service = ServiceStep::plan(&plan.new_config, paths);
            }
            if plan.is_empty() {
                return print_nothing_to_do(&plan, out).map(ChosenPlan::Ended);
            }
            if !plan.count_tools(paths, locator).await? {
                return Ok(ChosenPlan::Ended(ExitStatus::Interrupted));
            }
            if !out.json {
                plan.print(asks, out)?;
                super::export::warn_temporary_program(out)?;
            }
            if args.yes {
                return Ok(ChosenPlan::Confirmed(Box::new(plan)));
            }
            let answer = if asks { choices::ask(&plan, out.prompter())? } else { PlanAnswer::No };
            match answer {
                PlanAnswer::Yes => return Ok(ChosenPlan::Confirmed(Box::new(plan))),
                PlanAnswer::No => return end_without_changes(args, &plan, out).map(ChosenPlan::Ended),
                PlanAnswer::LeaveOut(names) => choices.except.extend(names),
            }
        }
    }
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
    Err(error.hint(confirmed_command(args, &plan.choices)).into())
}

/// Returns the command that makes the changes without a prompt.
fn confirmed_command(args: &InitArgs, choices: &InitChoices) -> String {
    let command = if args.no_service { "toolcrib init --yes --no-service" } else { "toolcrib init --yes" };
    command.to_owned() + &choices.to_options()
}

fn print_nothing_to_do(plan: &InitPlan, out: &mut Output) -> Result<ExitStatus> {
    if out.json {
        out.print_json(&report_json(plan, None))?;
    }
    if !out.json {
        plan.print_notes(out)?;
    }
    plan.warn_unusable(out)?;
    out.print_note(match plan.unusable.is_empty() {
        true if !plan.idle.is_empty() => "nothing to do: every agent with servers uses toolcrib",
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;

    use toolcrib::config::SecretBackend;

    use super::undo::{UndoReport, undo};
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

        /// Returns a plan that gives every server to every agent.
        fn plan(&self) -> InitPlan {
            self.plan_with(InitChoices { share: true, ..InitChoices::default() })
        }

        fn plan_with(&self, choices: InitChoices) -> InitPlan {
            InitPlan::new(self.agent_paths(), &self.paths, None, &self.locator, choices).unwrap()
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

    /// Returns the servers of the profile of an agent in a config.
    fn profile_servers(config_text: &str, agent: &str) -> Option<Vec<String>> {
        let file = toolcrib_agents::edit::toml::TomlFile::parse(config_text).unwrap();
        let servers = file.get(&["profiles", &format!("agent-{agent}"), "servers"])?;
        Some(servers.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn agents_keep_their_servers_and_get_those_of_the_config() {
        let user = TestUser::new();
        let default = InitChoices::default;
        let plan = user.plan_with(default());
        let names = |plan: &InitPlan| plan.agents.iter().map(|plan| plan.agent.id).collect::<Vec<_>>();
        assert_eq!(names(&plan), ["codex", "kiro"]);
        assert_eq!(plan.idle.iter().map(|agent| agent.id).collect::<Vec<_>>(), ["cline"], "it had no server");
        let text = &plan.import.config_text;
        assert_eq!(profile_servers(text, "codex"), Some(vec!["a".to_owned()]), "{text}");
        assert_eq!(profile_servers(text, "kiro"), Some(vec!["b".to_owned()]), "{text}");
        let declared = TestUser::new();
        fs::create_dir_all(declared.paths.config.parent().unwrap()).unwrap();
        let config = "[servers.c]\ncommand = 'z'\n\n[profiles.agent-codex]\nservers = [\"c\"] # mine\n";
        fs::write(&declared.paths.config, config).unwrap();
        let plan = declared.plan_with(default());
        assert_eq!(names(&plan).len(), 3, "servers of the config are for every agent");
        let texts = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let servers = |plan: &InitPlan, agent| profile_servers(&plan.import.config_text, agent);
        assert_eq!(servers(&plan, "codex"), texts(&["c", "a"]));
        assert_eq!((servers(&plan, "kiro"), servers(&plan, "cline")), (texts(&["b", "c"]), texts(&["c"])));
        assert!(plan.import.config_text.contains("# mine"), "{}", plan.import.config_text);
        let shared = declared.plan();
        assert_eq!((servers(&shared, "codex"), servers(&shared, "cline")), (texts(&["c", "a", "b"]), None));
    }

    #[test]
    fn choices_leave_out_agents_and_servers() {
        let user = TestUser::new();
        let codex = || vec![toolcrib_agents::agents::Agent::find("codex").unwrap()];
        let only = user.plan_with(InitChoices { agents: codex(), ..InitChoices::default() });
        assert_eq!((only.agents.len(), only.agents[0].agent.id), (1, "codex"));
        assert!(!only.import.config_text.contains("servers.b"), "{}", only.import.config_text);
        for except in ["codex", "a"] {
            let plan =
                user.plan_with(InitChoices { except: vec![except.to_owned()], ..InitChoices::default() });
            assert!(!plan.import.config_text.contains("servers.a"), "{}", plan.import.config_text);
            assert_eq!(plan.agents.len(), 1, "{except}");
        }
        let unknown = InitChoices { except: vec!["nope".to_owned()], ..InitChoices::default() };
        let error =
            InitPlan::new(user.agent_paths(), &user.paths, None, &user.locator, unknown).err().unwrap();
        assert!(error.message.contains("`nope` is neither an agent nor a server"), "{}", error.message);
    }

    #[test]
    fn agents_keep_their_lists_of_tools() {
        let user = TestUser::new();
        fs::write(
            user.home().join(".codex/config.toml"),
            "[mcp_servers.a]\ncommand = 'x'\nenabled_tools = ['t']\n[mcp_servers.c]\ncommand = 'z'\n",
        )
        .unwrap();
        let kiro = r#"{"mcpServers": {"a": {"command": "x", "disabledTools": ["u"]}}}"#;
        fs::write(user.home().join(".kiro/settings/mcp.json"), kiro).unwrap();
        let plan = user.plan_with(InitChoices::default());
        let may_use = |agent: &str, tool: &str| {
            let caller = plan.new_config.policy.local_caller(Some(agent), None);
            let (server, tool) = tool.split_once('.').unwrap();
            plan.new_config.policy.authorize(&caller, &server.parse().unwrap(), Some(tool)).is_ok()
        };
        let tools = ["a.t", "a.u", "a.v", "c.t"];
        assert_eq!(tools.map(|tool| may_use("codex", tool)), [true, false, false, true]);
        assert_eq!(tools.map(|tool| may_use("kiro", tool)), [true, false, true, false]);
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
