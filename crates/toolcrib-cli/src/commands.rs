//! The commands, one per file, and what they share.

pub(crate) mod add;
pub(crate) mod add_json;
mod agent_profiles;
pub(crate) mod allow;
pub(crate) mod approve;
pub(crate) mod audit;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod complete;
mod config_changes;
mod config_document;
mod content;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod enable;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod export;
mod first_list;
mod gateway_update;
pub(crate) mod help;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod ls;
mod mcp_peer;
pub(crate) mod policy;
pub(crate) mod prompts;
mod questions;
pub(crate) mod remove;
pub(crate) mod resources;
pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod service;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod stdio;
pub(crate) mod stop;
pub(crate) mod stop_gateway;
pub(crate) mod tools;
pub(crate) mod top;
pub(crate) mod ui;
pub(crate) mod why;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use toolcrib::catalog::public_name::SEPARATOR;
use toolcrib::config::{Config, Problem, ProblemScope};
use toolcrib::util::encoding;
use toolcrib::{Crib, ErrorKind};

use crate::cli::Cli;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{Signals, StandaloneCrib};
use crate::hints::hint_text;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::report::Report as _;
use crate::report::server::ServerReport;

/// The time that a standalone command waits for calls in flight when it stops its servers.
const SHUTDOWN_GRACE: Duration = Duration::ZERO;

/// Runs `work` with its own crib, for commands without a gateway. Servers are stopped however the work ends. Returns `None`
/// if a signal interrupts it.
async fn run_standalone<W, F>(paths: &Paths, out: &mut Output, work: W) -> Result<Option<F::Output>>
where
    W: FnOnce(Crib) -> F,
    F: Future,
{
    let work = async |crib: Crib| {
        let wait = Wait::new("waiting for the server", ServerSource::Crib(&crib));
        wait.run(work(crib.clone())).await
    };
    run_with_config(paths, paths.valid_config()?, out, work, |output, _| output).await
}

/// Like [`run_standalone`], with a config that was read. `finish` gets the result before the servers are stopped, so that
/// a server that is slow to stop does not delay it.
async fn run_with_config<W, F, P, R>(
    paths: &Paths,
    config: Config,
    out: &mut Output,
    work: W,
    finish: P,
) -> Result<R>
where
    W: FnOnce(Crib) -> F,
    F: Future,
    P: FnOnce(Option<F::Output>, &mut Output) -> R,
{
    out.warn_problems(&config.problems)?;
    let mut signals = Signals::new()?;
    let standalone = StandaloneCrib::new(paths, &config)?;
    let crib = standalone.crib.clone();
    let output = tokio::select! {
        output = work(crib.clone()) => Some(output),
        () = signals.wait_for_any() => None,
    };
    let finished = finish(output, out);
    let stop = Wait::new("stopping the servers", ServerSource::Crib(&crib));
    stop.run(standalone.shutdown(SHUTDOWN_GRACE)).await;
    Ok(finished)
}

/// Returns the error for a server that `run-on` places in the gateway of this host, if that gateway does not run.
fn missing_gateway_error(config: &Config) -> Option<CommandError> {
    let (server, port) =
        config.declared.iter().find_map(|server| Some((&server.id, server.missing_gateway?)))?;
    let message = format!("`{server}` runs in the gateway of this host, and none answers on port {port}");
    // Without callers and issuers, a gateway is only for this machine.
    let address = if config.requires_tokens() { "0.0.0.0" } else { "127.0.0.1" };
    let hint = format!("toolcrib serve --listen {address}:{port}");
    Some(CommandError { message, ..CommandError::no_gateway() }.hint(hint))
}

/// Replaces hints that need a gateway, for commands that run without one.
fn standalone_hint(hint: &str, server: Option<&str>, paths: &Paths) -> String {
    repair_hint(hint, server, &paths.config)
}

/// Replaces hints that need a gateway by one about the declaration of the server.
fn repair_hint(hint: &str, server: Option<&str>, config: &Path) -> String {
    match server {
        Some(server) if hint.starts_with("toolcrib restart") => {
            format!("check `servers.{server}` in {}", config.display())
        }
        _ => hint.split(", then run `toolcrib restart").next().unwrap_or(hint).to_owned(),
    }
}

/// Runs `work` until a signal interrupts it, then returns `None`.
async fn until_interrupted<F: Future>(work: F) -> Result<Option<F::Output>> {
    let mut signals = Signals::new()?;
    Ok(tokio::select! {
        output = work => Some(output),
        () = signals.wait_for_any() => None,
    })
}

/// Returns the path of one server in the admin API.
fn server_path(server: &str) -> String {
    format!("/api/v1/servers/{}", encoding::percent_encode(server))
}

/// Turns the error for an unknown server into a usage error, because the name came from the command line.
fn mark_unknown_server<T>(response: Result<T, CommandError>) -> Result<T, CommandError> {
    let unknown = ErrorKind::Unknown.facts();
    response.map_err(|error| {
        if error.code != unknown.name {
            return error;
        }
        let has_default_hint = error.hint == Some(hint_text(&ErrorKind::Unknown.default_hint(None)));
        let usage = CommandError { exit: ExitStatus::Failure, ..error };
        if has_default_hint { usage.hint("toolcrib status") } else { usage }
    })
}

/// Replaces an error by the problem of the config that disables the server, if that is why the server of a command is not
/// known.
pub(crate) fn with_config_problem(error: anyhow::Error, cli: &Cli) -> anyhow::Error {
    let is_unknown = |error: &CommandError| {
        error.code == ErrorKind::Unknown.facts().name || error.code == CommandError::no_gateway().code
    };
    let Some(name) = cli.command.server_or_tool() else { return error };
    if !error.downcast_ref::<CommandError>().is_some_and(is_unknown) {
        return error;
    }
    let paths = Paths::find(cli.globals.config.as_deref());
    let Ok(config) = paths.and_then(|paths| paths.read_config()) else { return error };
    let is_server = |server: &str| {
        let tool = name.strip_prefix(server);
        tool.is_some_and(|tool| tool.is_empty() || tool.starts_with('.') || tool.starts_with(SEPARATOR))
    };
    let disables_it =
        |scope: &ProblemScope| matches!(scope, ProblemScope::Server(server) if is_server(server));
    // Of several problems, an unknown key is the likely cause of the others.
    let problems = || config.problems.iter().filter(|problem| disables_it(&problem.scope));
    let has_suggestion =
        |problem: &&Problem| problem.hint.as_ref().is_some_and(|hint| hint.starts_with("did you mean"));
    match problems().find(has_suggestion).or_else(|| problems().next()) {
        Some(problem) => CommandError::config_problem(problem).into(),
        None => error,
    }
}

/// Sends an action for one server to the gateway and prints the server's new state.
async fn run_server_action(
    paths: &Paths,
    server: &str,
    action: &str,
    out: &mut Output,
) -> Result<ExitStatus> {
    let client = GatewayClient::require(paths).await?;
    let path = format!("{}/{action}", server_path(server));
    let gerund = if action == "stop" { "stopping" } else { "restarting" };
    let wait = Wait::new(format!("{gerund} `{server}`"), ServerSource::Gateway(&client)).on_server(server);
    let response = until_interrupted(wait.run(client.post(&path))).await?;
    let Some(response) = response else { return Ok(ExitStatus::Interrupted) };
    let status = mark_unknown_server(response)?;
    if out.json {
        out.print_json(&status)?;
        return Ok(ExitStatus::Success);
    }
    let ServerReport { state, pid, .. } = ServerReport::from_json(&status);
    match pid {
        Some(pid) => out.print_note(&format!("`{server}` is {state}, pid {pid}"))?,
        None => out.print_note(&format!("`{server}` is {state}"))?,
    }
    Ok(ExitStatus::Success)
}
