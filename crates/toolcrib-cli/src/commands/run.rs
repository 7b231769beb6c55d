//! `toolcrib run`: an agent, started with toolcrib among its servers for this one session. No file of the agent's is
//! touched; the agent takes this process's place, so signals and its exit code are its own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::agents::{self, Agent, Ground, Scope, Session};
use crate::cli::Run;
use crate::edit::entry::{Language, Members};
use crate::edit::file::Original;
use crate::edit::jsonc::Manner;
use crate::exit::Exit;
use crate::export::{gateway, render};
use crate::failure::Failure;
use crate::place::Place;

/// How an agent is started.
#[derive(Debug, PartialEq, Eq)]
struct Launch {
    program: &'static str,
    args: Vec<OsString>,
    variable: Option<(&'static str, OsString)>,
}

/// Becomes the agent; comes back only if that fails.
pub(crate) fn run(args: &Run, named: Option<&Path>, place: &Place) -> Result<Exit> {
    let ground = Ground::find()?;
    let agent = Agent::find(&args.agent)?;
    let spec = gateway::spec(agent, Scope::User, &ground, named, place.read().ok().as_ref())?;
    let entry = render::entry(agent, &spec, None).members.unwrap_or_default();
    let launch = launch(agent, &entry, &ground, place.state(), &args.args)?;
    let error = Command::new(launch.program).args(&launch.args).envs(launch.variable).exec();
    let message = format!("cannot start {} (`{}`): {error}", agent.name, launch.program);
    let failure = Failure::new(Exit::Unreachable, "could_not_start", message);
    Err(failure.hint(format!("install {}, or put `{}` on `PATH`", agent.name, launch.program)).into())
}

fn launch(
    agent: &Agent,
    entry: &Members,
    ground: &Ground,
    state: &Path,
    args: &[OsString],
) -> Result<Launch, Failure> {
    let Some(program) = agent.session.program() else {
        let able: Vec<_> =
            agents::all().filter(|agent| agent.session != Session::None).map(|agent| agent.id).collect();
        let message = format!("{} cannot be given servers for one session", agent.name);
        let hint = format!("toolcrib export {}; `run` is for {}", agent.id, able.join(", "));
        return Err(Failure::usage(message).hint(hint));
    };
    let entries = json!({ gateway::NAME: Value::Object(entry.iter().cloned().collect()) });
    let (mut given, mut variable) = (Vec::new(), None);
    match agent.session {
        Session::None => {}
        Session::Flag { flag, around, .. } => {
            let settings = around.map_or_else(|| entries.clone(), |key| json!({ key: entries }));
            // In one word with its flag: some of these flags take as many words as follow.
            given.push(format!("{flag}={settings}").into());
        }
        Session::Overrides { .. } => {
            let table = agent.at.join(".");
            given.extend(overrides(&format!("{table}.{}", gateway::NAME), entry));
        }
        Session::Variable { variable: name, .. } => {
            variable = Some((name, joined(agent, name, entry, ground)?.into()));
        }
        Session::Home { variable: name, .. } => {
            variable = Some((name, other_home(agent, entry, ground, state)?.into_os_string()));
        }
        Session::Extension { flag, usual, .. } => {
            // The flag belongs to a subcommand.
            given.push(args.first().cloned().unwrap_or_else(|| usual.into()));
            given.extend([flag.into(), command_line(agent, entry)?.into()]);
            given.extend(args.iter().skip(1).cloned());
            return Ok(Launch { program, args: given, variable });
        }
    }
    given.extend(args.iter().cloned());
    Ok(Launch { program, args: given, variable })
}

/// `-c KEY=VALUE` for each value; strings and lists are the same in JSON and TOML.
fn overrides(at: &str, entry: &Members) -> Vec<OsString> {
    let mut words = Vec::new();
    for (key, value) in entry {
        let members =
            value.as_object().into_iter().flatten().map(|(inner, value)| (format!("{key}.{inner}"), value));
        let whole = (!value.is_object()).then(|| (key.clone(), value));
        for (key, value) in whole.into_iter().chain(members) {
            words.extend(["-c".into(), format!("{at}.{key}={value}").into()]);
        }
    }
    words
}

/// What a variable says already, with our entry in it.
fn joined(agent: &Agent, variable: &str, entry: &Members, ground: &Ground) -> Result<String, Failure> {
    let before =
        ground.variable(variable).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
    let read = Language::Json(Manner::Relaxed).put(&before, &agent.path(gateway::NAME), entry);
    read.map_err(|mistake| {
        Failure::usage(format!("`{variable}` is set to something that cannot be added to: {mistake}"))
            .hint(format!("unset {variable}"))
    })
}

/// A home of our own, in which everything leads to the agent's folder but for the settings: those have our entry as well.
fn other_home(agent: &Agent, entry: &Members, ground: &Ground, state: &Path) -> Result<PathBuf, Failure> {
    let file = agent.file(Scope::User, ground).unwrap_or_default();
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(Failure::usage(format!("{} has no folder", agent.name)));
    };
    let home = state.join("sessions").join(agent.id);
    let mirror = home.join(folder.file_name().unwrap_or_default());
    let settings = Original::read(&file)?;
    let text = agent.language.put(settings.text(), &agent.path(gateway::NAME), entry).map_err(|mistake| {
        let message = format!("`{}` cannot be added to: {mistake}", file.display());
        Failure::new(Exit::BadConfig, "agent_file_invalid", message).hint("repair it first")
    })?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&mirror);
    made.and_then(|()| lead(folder, &mirror, name)).map_err(|error| {
        Failure::new(
            Exit::Unexpected,
            "cannot_write",
            format!("cannot write `{}`: {error}", mirror.display()),
        )
    })?;
    Original::read(&mirror.join(name))?.replace(&text)?;
    Ok(home)
}

/// Makes everything in a mirror lead to a folder, but for one name. What the agent itself put there stays.
fn lead(folder: &Path, mirror: &Path, but: &OsStr) -> io::Result<()> {
    for found in fs::read_dir(mirror)?.flatten() {
        if found.file_type()?.is_symlink() && !found.path().exists() {
            fs::remove_file(found.path())?;
        }
    }
    for found in fs::read_dir(folder).into_iter().flatten().flatten() {
        let link = mirror.join(found.file_name());
        if found.file_name() != but && fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(found.path(), link)?;
        }
    }
    Ok(())
}

/// Variables, program and arguments in one line, for those who split it at blanks.
fn command_line(agent: &Agent, entry: &Members) -> Result<String, Failure> {
    let find = |key: &str| entry.iter().find(|(member, _)| member == key).map(|(_, value)| value);
    let none = Map::new();
    let env = find(agent.words.env).and_then(Value::as_object).unwrap_or(&none);
    let mut words: Vec<String> =
        env.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
    let args = find("args").and_then(Value::as_array).into_iter().flatten();
    words.extend(
        find(agent.words.command).into_iter().chain(args).filter_map(Value::as_str).map(str::to_owned),
    );
    match words.iter().find(|word| word.contains(char::is_whitespace)) {
        Some(word) => {
            Err(Failure::usage(format!("{} cannot be given `{word}`: it has a blank in it", agent.name))
                .hint(format!("toolcrib export {}", agent.id)))
        }
        None => Ok(words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(agent: &str, env: &[(&str, &str)], args: &[&str], state: &Path) -> Result<Launch, Failure> {
        let variables =
            env.iter().chain(&[("HOME", "/h")]).map(|(name, value)| ((*name).to_owned(), (*value).into()));
        let ground = Ground::of(variables.collect(), Path::new("/p")).unwrap();
        let agent = Agent::find(agent).unwrap();
        let command = toolcrib::spec::CommandSpec::new("toolcrib").arg("stdio").env("TOOLCRIB_HOME", "/t");
        let spec = toolcrib::spec::ServerSpec::command("toolcrib".parse().unwrap(), command);
        let entry = render::entry(agent, &spec, None).members.unwrap();
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        launch(agent, &entry, &ground, state, &args)
    }

    fn words(agent: &str, args: &[&str]) -> Vec<String> {
        let launch = started(agent, &[], args, Path::new("/s")).unwrap();
        launch.args.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn flags_stand_before_what_the_person_typed() {
        let entry = r#"{"args":["stdio"],"command":"toolcrib","env":{"TOOLCRIB_HOME":"/t"},"type":"stdio"}"#;
        assert_eq!(
            words("claude", &["-p", "hi"]),
            [&format!("--mcp-config={{\"mcpServers\":{{\"toolcrib\":{entry}}}}}"), "-p", "hi"]
        );
        assert!(
            words("copilot", &[])[0].starts_with("--additional-mcp-config={\"mcpServers\":{\"toolcrib\":{")
        );
        assert!(words("amp", &[])[0].starts_with("--mcp-config={\"toolcrib\":{"));
    }

    #[test]
    fn codex_is_told_value_by_value() {
        let want = [
            "-c",
            r#"mcp_servers.toolcrib.command="toolcrib""#,
            "-c",
            r#"mcp_servers.toolcrib.args=["stdio"]"#,
            "-c",
            r#"mcp_servers.toolcrib.env.TOOLCRIB_HOME="/t""#,
            "exec",
        ];
        assert_eq!(words("codex", &["exec"]), want);
    }

    #[test]
    fn goose_is_told_behind_its_subcommand() {
        let line = "TOOLCRIB_HOME=/t toolcrib stdio";
        assert_eq!(words("goose", &[]), ["session", "--with-extension", line]);
        assert_eq!(words("goose", &["run", "-t", "x"]), ["run", "--with-extension", line, "-t", "x"]);
    }

    #[test]
    fn what_a_variable_says_already_stays() {
        let set = [("OPENCODE_CONFIG_CONTENT", r#"{"mcp": {"a": {"type": "remote"}}}"#)];
        let launch = started("opencode", &set, &[], Path::new("/s")).unwrap();
        let (name, value) = launch.variable.unwrap();
        let value: Value = serde_json::from_str(value.to_str().unwrap()).unwrap();
        assert_eq!((name, &value["mcp"]["a"]["type"]), ("OPENCODE_CONFIG_CONTENT", &json!("remote")));
        assert_eq!(value["mcp"]["toolcrib"]["command"], json!(["toolcrib", "stdio"]));
        let bad = started("opencode", &[("OPENCODE_CONFIG_CONTENT", "{")], &[], Path::new("/s"));
        assert!(bad.unwrap_err().message.contains("OPENCODE_CONFIG_CONTENT"));
    }

    #[test]
    fn gemini_gets_a_home_of_ours_that_leads_to_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs/.gemini");
        fs::create_dir_all(&theirs).unwrap();
        fs::write(theirs.join("settings.json"), "{\"theme\": \"x\"} // mine").unwrap();
        fs::write(theirs.join("oauth_creds.json"), "secret").unwrap();
        let set = [("GEMINI_CLI_HOME", theirs.parent().unwrap().to_str().unwrap())];
        for _ in 0..2 {
            let launch = started("gemini", &set, &[], dir.path()).unwrap();
            let (name, home) = launch.variable.unwrap();
            let ours = Path::new(&home).join(".gemini");
            let text = Language::Json(Manner::Relaxed)
                .read(&fs::read_to_string(ours.join("settings.json")).unwrap());
            let text = text.unwrap();
            assert_eq!((name, &text["theme"]), ("GEMINI_CLI_HOME", &json!("x")));
            assert_eq!(text["mcpServers"]["toolcrib"]["command"], "toolcrib");
            assert_eq!(fs::read_to_string(ours.join("oauth_creds.json")).unwrap(), "secret");
        }
        assert_eq!(fs::read_to_string(theirs.join("settings.json")).unwrap(), "{\"theme\": \"x\"} // mine");
        fs::remove_file(theirs.join("oauth_creds.json")).unwrap();
        let launch = started("gemini", &set, &[], dir.path()).unwrap();
        let ours = Path::new(&launch.variable.unwrap().1).join(".gemini");
        assert!(
            fs::symlink_metadata(ours.join("oauth_creds.json")).is_err(),
            "what is gone there is gone here"
        );
    }

    #[test]
    fn who_cannot_be_told_is_named_with_those_who_can() {
        let failure = started("zed", &[], &[], Path::new("/s")).unwrap_err();
        assert!(failure.hint.unwrap().contains("claude, codex, copilot, gemini, opencode, goose, amp, qwen"));
    }
}
