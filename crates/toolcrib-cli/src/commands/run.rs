//! `toolcrib run`: starts an agent with toolcrib as a server for one session, without changing the agent's files. The agent
//! replaces this process, so it receives signals and sets the exit code.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib_agents::agents::{self, Agent, AgentFileScope, AgentPaths, SessionSupport};
use toolcrib_agents::edit::entry::{EntryMembers, FileLanguage};
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::edit::jsonc::JsonDialect;
use toolcrib_agents::export::gateway::ENTRY_NAME;
use toolcrib_agents::export::render;

use super::export::gateway_spec;
use crate::cli::RunArgs;
use crate::client;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::paths::Paths;
use crate::policy_test::find_profile;

/// The command line and environment variable that start an agent.
#[derive(Debug, PartialEq, Eq)]
struct AgentLaunch {
    program: &'static str,
    args: Vec<OsString>,
    variable: Option<(&'static str, OsString)>,
}

/// Replaces this process with the agent. Returns only if that fails.
pub(crate) async fn run(args: &RunArgs, config_flag: Option<&Path>, paths: &Paths) -> Result<ExitStatus> {
    let agent_paths = AgentPaths::from_env()?;
    let agent = Agent::find(&args.agent)?;
    let config = paths.valid_config()?;
    if let Some(profile) = &args.profile {
        find_profile(&config, profile)?;
    }
    if let Some(error) = super::missing_gateway_error(&config)
        && !client::is_running(paths).await
    {
        return Err(error.into());
    }
    let profile = args.profile.as_deref();
    let scope = AgentFileScope::User;
    let spec = gateway_spec(agent, scope, &agent_paths, config_flag, Some(&config), profile)?;
    let entry = render::render_entry(agent, &spec, None).members.unwrap_or_default();
    let launch = plan_launch(agent, &entry, &agent_paths, paths.state_dir(), &args.args)?;
    let error = Command::new(launch.program).args(&launch.args).envs(launch.variable).exec();
    let message = format!("cannot start {} (`{}`): {error}", agent.name, launch.program);
    let hint = format!("install {}, or add `{}` to `PATH`", agent.name, launch.program);
    Err(CommandError::new(ExitStatus::Unreachable, "could_not_start", message).hint(hint).into())
}

fn plan_launch(
    agent: &Agent,
    entry: &EntryMembers,
    agent_paths: &AgentPaths,
    state_dir: &Path,
    args: &[OsString],
) -> Result<AgentLaunch, CommandError> {
    let Some(program) = agent.session_support.program() else {
        return Err(unsupported_agent_error(agent));
    };
    let entries = json!({ ENTRY_NAME: Value::Object(entry.iter().cloned().collect()) });
    let mut launch_args = Vec::new();
    let mut variable = None;
    match agent.session_support {
        SessionSupport::Flag { flag, wrapper_key, .. } => {
            let settings = wrapper_key.map_or_else(|| entries.clone(), |key| json!({ key: entries }));
            // `flag=value` in one argument, because some of these flags take any number of values.
            launch_args.push(format!("{flag}={settings}").into());
        }
        SessionSupport::Overrides { .. } => {
            launch_args.extend(override_args(&agent.entry_path(ENTRY_NAME).join("."), entry));
        }
        SessionSupport::Variable { variable: name, .. } => {
            variable = Some((name, extended_variable(agent, name, entry, agent_paths)?.into()));
        }
        SessionSupport::HomeDir { variable: name, .. } => {
            variable = Some((name, session_home(agent, entry, agent_paths, state_dir)?.into_os_string()));
        }
        SessionSupport::Extension { flag, default_subcommand, .. } => {
            // The flag goes after the subcommand.
            launch_args.push(args.first().cloned().unwrap_or_else(|| default_subcommand.into()));
            launch_args.extend([flag.into(), command_line(agent, entry)?.into()]);
            launch_args.extend(args.iter().skip(1).cloned());
            return Ok(AgentLaunch { program, args: launch_args, variable });
        }
        _ => return Err(unsupported_agent_error(agent)),
    }
    launch_args.extend(args.iter().cloned());
    Ok(AgentLaunch { program, args: launch_args, variable })
}

fn unsupported_agent_error(agent: &Agent) -> CommandError {
    let supported: Vec<_> = agents::all()
        .filter(|agent| agent.session_support != SessionSupport::None)
        .map(|agent| agent.id)
        .collect();
    let message = format!("{} does not support servers for one session", agent.name);
    let hint = format!("use `toolcrib export {}`; `run` supports {}", agent.id, supported.join(", "));
    CommandError::usage(message).hint(hint)
}

/// Returns `-c TABLE.KEY=VALUE` for each value. Strings and lists have the same syntax in JSON and TOML.
fn override_args(table: &str, entry: &EntryMembers) -> Vec<OsString> {
    let mut args = Vec::new();
    let mut push = |key: &str, value: &Value| {
        args.push("-c".into());
        args.push(format!("{table}.{key}={value}").into());
    };
    for (key, value) in entry {
        match value.as_object() {
            Some(members) => {
                members.iter().for_each(|(member, value)| push(&format!("{key}.{member}"), value));
            }
            None => push(key, value),
        }
    }
    args
}

/// Returns the value of a variable with the entry added to it.
fn extended_variable(
    agent: &Agent,
    variable: &str,
    entry: &EntryMembers,
    agent_paths: &AgentPaths,
) -> Result<String, CommandError> {
    let current =
        agent_paths.variable(variable).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
    let extended =
        FileLanguage::Json(JsonDialect::Relaxed).set_entry(&current, &agent.entry_path(ENTRY_NAME), entry);
    extended.map_err(|error| {
        CommandError::usage(format!("cannot add an entry to the value of `{variable}`: {error}"))
            .hint(format!("unset {variable}"))
    })
}

/// Creates a home folder for the session. Its settings file has the entry; everything else links to the agent's own folder.
fn session_home(
    agent: &Agent,
    entry: &EntryMembers,
    agent_paths: &AgentPaths,
    state_dir: &Path,
) -> Result<PathBuf, CommandError> {
    let file = agent.config_file(AgentFileScope::User, agent_paths).unwrap_or_default();
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(CommandError::usage(format!("{} has no settings folder", agent.name)));
    };
    let home = state_dir.join("sessions").join(agent.id);
    let mirror = home.join(folder.file_name().unwrap_or_default());
    let settings = OriginalFile::read(&file)?;
    let text =
        agent.language.set_entry(settings.text(), &agent.entry_path(ENTRY_NAME), entry).map_err(|error| {
            let message = format!("cannot add an entry to `{}`: {error}", file.display());
            CommandError::new(ExitStatus::InvalidConfig, "agent_file_invalid", message)
                .hint("repair the file first")
        })?;
    let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&mirror);
    created.and_then(|()| link_contents(folder, &mirror, name)).map_err(|error| {
        let message = format!("cannot write `{}`: {error}", mirror.display());
        CommandError::new(ExitStatus::Failure, "cannot_write", message)
    })?;
    OriginalFile::read(&mirror.join(name))?.replace(&text)?;
    Ok(home)
}

/// Links everything in a folder into a mirror, except one file, and removes broken links. Files that the agent created in
/// the mirror stay.
fn link_contents(folder: &Path, mirror: &Path, except: &OsStr) -> io::Result<()> {
    for entry in fs::read_dir(mirror)?.flatten() {
        if entry.file_type()?.is_symlink() && !entry.path().exists() {
            fs::remove_file(entry.path())?;
        }
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let link = mirror.join(entry.file_name());
        if entry.file_name() != except && fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(entry.path(), link)?;
        }
    }
    Ok(())
}

/// Returns variables, program and arguments in one line, for agents that split it at spaces.
fn command_line(agent: &Agent, entry: &EntryMembers) -> Result<String, CommandError> {
    let words = render::command_words(agent, entry);
    match words.iter().find(|word| word.contains(char::is_whitespace)) {
        Some(word) => {
            Err(CommandError::usage(format!("cannot pass `{word}` to {}: it contains a space", agent.name))
                .hint(format!("toolcrib export {}", agent.id)))
        }
        None => Ok(words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(
        agent: &str,
        env: &[(&str, &str)],
        args: &[&str],
        state_dir: &Path,
    ) -> Result<AgentLaunch, CommandError> {
        let variables =
            env.iter().chain(&[("HOME", "/h")]).map(|(name, value)| ((*name).to_owned(), (*value).into()));
        let agent_paths = AgentPaths::new(variables.collect(), Path::new("/p")).unwrap();
        let agent = Agent::find(agent).unwrap();
        let command = toolcrib::spec::CommandSpec::new("toolcrib").arg("stdio").env("TOOLCRIB_HOME", "/t");
        let spec = toolcrib::spec::ServerSpec::command("toolcrib".parse().unwrap(), command);
        let entry = render::render_entry(agent, &spec, None).members.unwrap();
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        plan_launch(agent, &entry, &agent_paths, state_dir, &args)
    }

    fn planned_args(agent: &str, args: &[&str]) -> Vec<String> {
        let launch = plan(agent, &[], args, Path::new("/s")).unwrap();
        launch.args.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn flag_comes_before_user_arguments() {
        let entry = r#"{"args":["stdio"],"command":"toolcrib","env":{"TOOLCRIB_HOME":"/t"},"type":"stdio"}"#;
        assert_eq!(
            planned_args("claude", &["-p", "hi"]),
            [&format!("--mcp-config={{\"mcpServers\":{{\"toolcrib\":{entry}}}}}"), "-p", "hi"]
        );
        assert!(
            planned_args("copilot", &[])[0]
                .starts_with("--additional-mcp-config={\"mcpServers\":{\"toolcrib\":{")
        );
        assert!(planned_args("amp", &[])[0].starts_with("--mcp-config={\"toolcrib\":{"));
    }

    #[test]
    fn codex_gets_one_override_per_value() {
        let expected = [
            "-c",
            r#"mcp_servers.toolcrib.command="toolcrib""#,
            "-c",
            r#"mcp_servers.toolcrib.args=["stdio"]"#,
            "-c",
            r#"mcp_servers.toolcrib.env.TOOLCRIB_HOME="/t""#,
            "exec",
        ];
        assert_eq!(planned_args("codex", &["exec"]), expected);
    }

    #[test]
    fn goose_gets_flag_after_subcommand() {
        let line = "TOOLCRIB_HOME=/t toolcrib stdio";
        assert_eq!(planned_args("goose", &[]), ["session", "--with-extension", line]);
        assert_eq!(planned_args("goose", &["run", "-t", "x"]), ["run", "--with-extension", line, "-t", "x"]);
    }

    #[test]
    fn existing_variable_value_is_kept() {
        let set = [("OPENCODE_CONFIG_CONTENT", r#"{"mcp": {"a": {"type": "remote"}}}"#)];
        let launch = plan("opencode", &set, &[], Path::new("/s")).unwrap();
        let (name, value) = launch.variable.unwrap();
        let value: Value = serde_json::from_str(value.to_str().unwrap()).unwrap();
        assert_eq!((name, &value["mcp"]["a"]["type"]), ("OPENCODE_CONFIG_CONTENT", &json!("remote")));
        assert_eq!(value["mcp"]["toolcrib"]["command"], json!(["toolcrib", "stdio"]));
        let bad = plan("opencode", &[("OPENCODE_CONFIG_CONTENT", "{")], &[], Path::new("/s"));
        assert!(bad.unwrap_err().message.contains("OPENCODE_CONFIG_CONTENT"));
    }

    #[test]
    fn gemini_gets_session_home_linked_to_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let agent_folder = dir.path().join("agent_folder/.gemini");
        fs::create_dir_all(&agent_folder).unwrap();
        fs::write(agent_folder.join("settings.json"), "{\"theme\": \"x\"} // mine").unwrap();
        fs::write(agent_folder.join("oauth_creds.json"), "secret").unwrap();
        let set = [("GEMINI_CLI_HOME", agent_folder.parent().unwrap().to_str().unwrap())];
        for _ in 0..2 {
            let launch = plan("gemini", &set, &[], dir.path()).unwrap();
            let (name, home) = launch.variable.unwrap();
            let session_folder = Path::new(&home).join(".gemini");
            let text = FileLanguage::Json(JsonDialect::Relaxed)
                .parse(&fs::read_to_string(session_folder.join("settings.json")).unwrap());
            let text = text.unwrap();
            assert_eq!((name, &text["theme"]), ("GEMINI_CLI_HOME", &json!("x")));
            assert_eq!(text["mcpServers"]["toolcrib"]["command"], "toolcrib");
            assert_eq!(fs::read_to_string(session_folder.join("oauth_creds.json")).unwrap(), "secret");
        }
        assert_eq!(
            fs::read_to_string(agent_folder.join("settings.json")).unwrap(),
            "{\"theme\": \"x\"} // mine"
        );
        fs::remove_file(agent_folder.join("oauth_creds.json")).unwrap();
        let launch = plan("gemini", &set, &[], dir.path()).unwrap();
        let session_folder = Path::new(&launch.variable.unwrap().1).join(".gemini");
        assert!(
            fs::symlink_metadata(session_folder.join("oauth_creds.json")).is_err(),
            "broken links are removed"
        );
    }

    #[test]
    fn unsupported_agent_error_lists_supported_agents() {
        let error = plan("zed", &[], &[], Path::new("/s")).unwrap_err();
        assert!(error.hint.unwrap().contains("claude, codex, copilot, gemini, opencode, goose, amp, qwen"));
    }
}
