//! The one entry that leads to toolcrib itself: which command an agent runs for it, and what that command must be told.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use toolcrib::spec::{CommandSpec, Endpoint, ServerSpec};
use toolcrib::text::{Piece, Text};
use toolcrib::{Config, ServerId};

use crate::agents::{Agent, Environment, Ground, Scope};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::secrets;

/// What the entry is called.
pub(crate) const NAME: &str = "toolcrib";

/// Variables that say where toolcrib's own files are.
const PLACES: [&str; 4] = ["TOOLCRIB_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"];

/// The entry for an agent. `config` is the file that was named on the command line; `read` is what it says, as far as it
/// can be read.
pub(crate) fn spec(
    agent: &Agent,
    scope: Scope,
    ground: &Ground,
    config: Option<&Path>,
    read: Option<&Config>,
) -> Result<ServerSpec, Failure> {
    let id: ServerId = NAME.parse().map_err(|_| Failure::usage("the name of the entry is no name"))?;
    let mut command = CommandSpec::new(program(scope, ground)?).arg("stdio");
    if let Some(config) = config {
        let config = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
        command = command.arg("--config").arg(config.display().to_string());
    }
    if let (Scope::User, Some(home)) = (scope, ground.variable("TOOLCRIB_HOME")) {
        let home = std::path::absolute(home).unwrap_or_else(|_| PathBuf::from(home));
        command = command.env("TOOLCRIB_HOME", home.display().to_string());
    }
    if agent.words.environment != Environment::Whole {
        let places =
            PLACES.iter().filter(|name| !command.env.contains_key(**name)).map(|name| (*name).to_owned());
        command.inherit_env = read.map(variables).unwrap_or_default().into_iter().chain(places).collect();
    }
    Ok(ServerSpec::command(id, command))
}

/// How the agent finds us. Files of a project are other people's, too, so nothing of this machine is in them.
fn program(scope: Scope, ground: &Ground) -> Result<String, Failure> {
    let here = std::env::current_exe().map_err(|error| {
        Failure::new(Exit::Unexpected, "no_program", format!("cannot tell where this program is: {error}"))
    })?;
    let on_path = ground.variable("PATH").is_some_and(|path| leads_to(path, &here));
    match scope {
        Scope::User if !on_path => Ok(here.display().to_string()),
        _ => Ok(NAME.to_owned()),
    }
}

fn leads_to(path: &OsStr, program: &Path) -> bool {
    let found = std::env::split_paths(path).map(|folder| folder.join(NAME)).find(|file| file.is_file());
    found.and_then(|file| file.canonicalize().ok()) == program.canonicalize().ok()
}

/// The variables that servers get their values from: standing alone, toolcrib must have them.
fn variables(config: &Config) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = secrets::variables(config).into_iter().collect();
    for spec in config.roster.servers() {
        names.extend(spec.endpoint.texts().flat_map(Text::pieces).filter_map(|piece| match piece {
            Piece::Env { name, .. } => Some(name.to_owned()),
            _ => None,
        }));
        if let Endpoint::Command(command) = &spec.endpoint {
            names.extend(command.inherit_env.iter().cloned());
        }
    }
    names
}
