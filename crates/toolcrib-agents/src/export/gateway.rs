//! The entry that starts toolcrib itself, as it is written into agents' files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use toolcrib::{CommandSpec, Config, ServerId, ServerSpec};

use crate::agents::{Agent, AgentFileScope, AgentPaths, InheritedEnvironment};
use crate::edit::file::is_same_file;
use crate::error::{AgentErrorKind, Error};

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
    let mut command = CommandSpec::new(program_name(scope, paths, program.path)).arg("stdio");
    if let Some(path) = program.config_flag {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        command = command.arg("--config").arg(path.display().to_string());
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

/// Returns the program to run. Project files are shared with others, so they get no absolute path of this machine.
fn program_name(scope: AgentFileScope, paths: &AgentPaths, program: &Path) -> String {
    let on_path = paths.variable("PATH").is_some_and(|path| resolves_to(path, program));
    match scope {
        AgentFileScope::User if !on_path => program.display().to_string(),
        _ => ENTRY_NAME.to_owned(),
    }
}

/// Returns whether `toolcrib` on a search path is this program. A program that was removed while it runs has no other
/// name.
fn resolves_to(path: &OsStr, program: &Path) -> bool {
    let found = std::env::split_paths(path).map(|dir| dir.join(ENTRY_NAME)).find(|file| file.is_file());
    match found {
        Some(file) => is_same_file(&file, program),
        None => !program.exists(),
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
