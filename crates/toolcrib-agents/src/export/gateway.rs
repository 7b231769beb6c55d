//! The entry that starts toolcrib itself, as it is written into agents' files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use toolcrib::{CommandSpec, Config, ServerId, ServerSpec};

use crate::agents::{self, Agent, AgentFileScope, AgentPaths, InheritedEnvironment};
use crate::edit::file::{OriginalFile, is_same_file};
use crate::error::{AgentErrorKind, Error};
use crate::secret_heuristics;

use super::{invalid_file_error, is_toolcrib_entry, named_entries};

/// Name of the entry.
pub const ENTRY_NAME: &str = "toolcrib";

/// Variables that determine where toolcrib keeps its files.
const PATH_VARIABLES: [&str; 4] = ["TOOLCRIB_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"];

/// The toolcrib program that an entry starts, and its config.
#[derive(Debug, Clone, Copy)]
pub struct GatewayProgram<'a> {
    /// Path of the program.
    pub path: &'a Path,
    /// Config file given on the command line.
    pub config_flag: Option<&'a Path>,
    /// Parsed config, if it could be read.
    pub config: Option<&'a Config>,
    /// Environment variables needed to read the secrets of the config.
    pub secret_variables: &'a [String],
    /// Profile that the agent is limited to.
    pub profile: Option<&'a str>,
}

/// Returns the entry for an agent.
///
/// # Errors
///
/// Fails if [`ENTRY_NAME`] is not a valid server name.
pub fn gateway_spec(
    agent: &Agent,
    scope: AgentFileScope,
    paths: &AgentPaths,
    program: &GatewayProgram<'_>,
) -> Result<ServerSpec, Error> {
    let id: ServerId =
        ENTRY_NAME.parse().map_err(|_| Error::new(AgentErrorKind::InvalidRequest, "invalid entry name"))?;
    let mut command = CommandSpec::new(program_name(agent, scope, paths, program.path)).arg("stdio");
    if !is_shared_file(agent, scope, paths) {
        command = command.arg("--agent").arg(agent.id);
    }
    if let Some(path) = program.config_flag {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        command = command.arg("--config").arg(path.display().to_string());
    }
    if let Some(profile) = program.profile {
        command = command.arg("--profile").arg(profile);
    }
    if let (AgentFileScope::User, Some(home)) = (scope, paths.variable("TOOLCRIB_HOME")) {
        let home = std::path::absolute(home).unwrap_or_else(|_| PathBuf::from(home));
        command = command.env("TOOLCRIB_HOME", home.display().to_string());
    }
    if agent.entry_format.inherited_environment != InheritedEnvironment::All {
        let path_variables = PATH_VARIABLES
            .iter()
            .filter(|name| !command.env.contains_key(**name))
            .map(|name| (*name).to_owned());
        command.inherit_env = required_variables(program).into_iter().chain(path_variables).collect();
    }
    Ok(ServerSpec::command(id, command))
}

/// Returns whether another agent reads the same file, so that an entry in it cannot say which agent starts it.
fn is_shared_file(agent: &Agent, scope: AgentFileScope, paths: &AgentPaths) -> bool {
    let file = agent.config_file(scope, paths);
    agents::all().any(|other| other.id != agent.id && other.config_file(scope, paths) == file)
}

/// Returns the command that an agent starts for the entry in the text of its file, with the variables that the agent
/// passes to it.
///
/// # Errors
///
/// Fails if the text is invalid or has no such entry.
pub fn written_command(
    agent: &Agent,
    file: &Path,
    text: &str,
    paths: &AgentPaths,
) -> Result<CommandSpec, Error> {
    let document = agent.language.parse(text).map_err(|error| invalid_file_error(agent, file, &error))?;
    let entries = named_entries(agent, &document);
    let entry = entries.iter().find(|(name, _)| name == ENTRY_NAME).map(|(_, entry)| *entry);
    let strings = |value: &Json| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    let format = &agent.entry_format;
    let argv = entry.map(|entry| match &entry[format.command_key] {
        Json::String(program) => [vec![program.clone()], strings(&entry["args"])].concat(),
        argv => strings(argv),
    });
    let (Some(entry), Some(mut command)) = (entry, argv.and_then(CommandSpec::argv)) else {
        let message = format!("`{}` has no entry `{ENTRY_NAME}` with a command", file.display());
        let hint = format!("toolcrib export {}", agent.id);
        return Err(Error::new(AgentErrorKind::InvalidFile, message).with_hint(hint));
    };
    command.inherit_env = match format.inherited_environment {
        InheritedEnvironment::All => paths.variable_names().collect(),
        InheritedEnvironment::Listed => {
            format.passthrough_key.map_or_else(Vec::new, |key| strings(&entry[key]))
        }
        InheritedEnvironment::Filtered => {
            paths.variable_names().filter(|name| !secret_heuristics::is_secret_name(name)).collect()
        }
    };
    for (name, value) in entry[format.env_key].as_object().into_iter().flatten() {
        // The entry refers to a variable only to pass it on.
        match value.as_str() {
            Some(value) if value.contains(['$', '{']) => command.inherit_env.push(name.clone()),
            Some(value) => command = command.env(name.as_str(), value),
            None => {}
        }
    }
    Ok(command)
}

/// Returns whether an agent's file has the entry of toolcrib. A file that cannot be read has none.
pub fn is_written(agent: &Agent, scope: AgentFileScope, paths: &AgentPaths) -> bool {
    let file = agent.config_file(scope, paths).and_then(|file| OriginalFile::read(&file).ok());
    let document = file.and_then(|file| agent.language.parse(file.text()).ok()).unwrap_or_default();
    let mut entries = named_entries(agent, &document).into_iter();
    entries.any(|(name, entry)| name == ENTRY_NAME && is_toolcrib_entry(entry))
}

/// A program that runs packages without installing them, from a cache that it cleans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackageRunner {
    /// Name of the program.
    pub name: &'static str,
    /// Command that installs toolcrib.
    pub install: &'static str,
}

impl PackageRunner {
    const NPX: Self = Self { name: "npx", install: "npm install -g toolcrib" };
    const UVX: Self = Self { name: "uvx", install: "uv tool install toolcrib" };
    const PIPX: Self = Self { name: "pipx run", install: "pipx install toolcrib" };

    /// Finds the runner whose cache a program is in.
    pub fn find(program: &Path) -> Option<Self> {
        let folders: Vec<&str> = program.components().filter_map(|part| part.as_os_str().to_str()).collect();
        let has = |name: &str| folders.contains(&name);
        let has_pair = |pair: [&str; 2]| folders.windows(2).any(|folders| folders == pair);
        match () {
            () if has("_npx") => Some(Self::NPX),
            () if has("archive-v0") => Some(Self::UVX),
            () if has_pair([".cache", "pipx"]) || has_pair(["pipx", ".cache"]) => Some(Self::PIPX),
            () => None,
        }
    }
}

/// Returns the program to run. Project files are shared with others, so they get no absolute path of this machine. Agents
/// that start from a desktop always get one, because their `PATH` is not that of a shell. The `PATH` of a package runner
/// is only for the program that it runs.
fn program_name(agent: &Agent, scope: AgentFileScope, paths: &AgentPaths, program: &Path) -> String {
    let path = paths.variable("PATH").filter(|_| PackageRunner::find(program).is_none());
    let on_path = path.and_then(|path| find_on_path(path, program));
    match (scope, on_path) {
        (AgentFileScope::User, Some(file)) if agent.starts_from_desktop => file.display().to_string(),
        (AgentFileScope::User, None) => program.display().to_string(),
        _ => ENTRY_NAME.to_owned(),
    }
}

/// Returns the path under which `toolcrib` on a search path is this program. A program that was removed while it runs has
/// no other name.
fn find_on_path(path: &OsStr, program: &Path) -> Option<PathBuf> {
    let found = std::env::split_paths(path).map(|dir| dir.join(ENTRY_NAME)).find(|file| file.is_file());
    match found {
        Some(file) if is_same_file(&file, program) => std::path::absolute(file).ok(),
        Some(_) => None,
        None => (!program.exists()).then(|| PathBuf::from(ENTRY_NAME)),
    }
}

/// Returns the variables that the config refers to. An agent has to pass them to toolcrib.
fn required_variables(program: &GatewayProgram<'_>) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = program.secret_variables.iter().cloned().collect();
    for spec in program.config.iter().flat_map(|config| config.roster.servers()) {
        names.extend(spec.endpoint.environment_variables());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_runner_is_found_by_its_cache() {
        for (program, runner) in [
            ("/home/me/.npm/_npx/7aa95/node_modules/@toolcrib/linux-x64/bin/toolcrib", Some("npx")),
            ("/home/me/.cache/uv/archive-v0/Xb1/bin/toolcrib", Some("uvx")),
            ("/home/me/.cache/pipx/5c0/bin/toolcrib", Some("pipx run")),
            ("/home/me/.local/share/pipx/venvs/toolcrib/bin/toolcrib", None),
            ("/home/me/.local/share/uv/tools/toolcrib/bin/toolcrib", None),
            ("/usr/lib/node_modules/toolcrib/node_modules/@toolcrib/linux-x64/bin/toolcrib", None),
            ("/usr/bin/toolcrib", None),
        ] {
            assert_eq!(PackageRunner::find(Path::new(program)).map(|found| found.name), runner, "{program}");
        }
    }
}
