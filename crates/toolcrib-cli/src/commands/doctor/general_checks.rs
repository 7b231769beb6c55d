//! Checks that concern no single server: the gateway, its socket, port and service, and the config.

use std::io;
use std::net::TcpListener;

use toolcrib::config::{Config, Problem, ProblemScope};

use super::Check;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::commands::service::user_service::{ServiceState, UserService};
use crate::gateway::{self, OtherGateway};
use crate::listen::DEFAULT_PORT;
use crate::paths::Paths;
use crate::report::status::GatewayReport;
use crate::secrets::SecretLocator;

/// Checks the socket of the gateway, the gateway itself, and the port that it would use.
pub(super) async fn check_gateway(
    gateway: &Result<Option<GatewayClient>, CommandError>,
    paths: &Paths,
) -> Vec<Check> {
    match gateway {
        Err(error) => {
            let check = Check::fail("socket", error.message.clone());
            vec![error.hint.iter().fold(check, Check::fix)]
        }
        Ok(None) => {
            let socket = paths.socket_path();
            vec![
                Check::pass("socket", format!("`{}` is usable", socket.display())),
                Check::pass("gateway", "none is running; commands start the servers that they need"),
                check_port(),
            ]
        }
        Ok(Some(client)) => vec![check_running_gateway(client, paths).await],
    }
}

async fn check_running_gateway(client: &GatewayClient, paths: &Paths) -> Check {
    let other = OtherGateway::find(paths).ok().flatten();
    let starter =
        if other.is_some_and(|other| other.auto_started) { ", started in the background" } else { "" };
    match client.fetch::<GatewayReport>("/api/v1/status").await {
        Ok(GatewayReport { version, pid, .. }) if version == env!("CARGO_PKG_VERSION") => {
            Check::pass("gateway", format!("version {version} is running as pid {pid}{starter}"))
        }
        Ok(GatewayReport { version, pid, .. }) => {
            let own = env!("CARGO_PKG_VERSION");
            let message = format!("version {version} is running as pid {pid}, and this program is {own}");
            Check::warn("gateway", message).fix("run `toolcrib stop-gateway`, then start it again")
        }
        Err(error) => {
            let check = Check::fail("gateway", error.message);
            error.hint.iter().fold(check, Check::fix)
        }
    }
}

/// Checks the store that gateways share, if there is one.
pub(super) async fn check_store(config: &Config, paths: &Paths) -> Option<Check> {
    let secrets = SecretLocator::new(paths, &config.secrets);
    Some(match gateway::probe_store(config, &secrets).await? {
        Ok(url) => Check::pass("store", format!("`{url}` answers")),
        Err(reason) => Check::fail("store", reason).fix("start the store, or correct `store.url`"),
    })
}

/// Checks who starts the gateway: the service, or the first agent.
pub(super) fn check_service(config: &Config, paths: &Paths) -> Check {
    let service = UserService::find(paths);
    let state = match service.as_ref().map(UserService::state).transpose() {
        Ok(state) => state,
        Err(error) => return Check::warn("service", format!("{error:#}")).fix("toolcrib service status"),
    };
    match state.filter(|state| state.installed) {
        Some(state) => check_installed_service(&state),
        None => {
            let reason = match service.is_some() {
                true => "not installed",
                false => "neither a systemd user manager nor launchd is running",
            };
            match config.auto_start.enabled {
                true => Check::pass("service", format!("{reason}; the first agent starts the gateway")),
                false => {
                    let message =
                        format!("{reason}, and `gateway.auto-start` is off: agents share no servers");
                    Check::warn("service", message)
                        .fix("set `gateway.auto-start` to true, or run `toolcrib serve`")
                }
            }
        }
    }
}

/// Checks an installed service. The first unit is the one that has to be active: systemd starts the gateway with the first
/// connection to its sockets.
fn check_installed_service(state: &ServiceState) -> Check {
    let states: Vec<String> =
        state.units.iter().map(|unit| format!("{} is {}", unit.name, unit.state)).collect();
    let message = states.join(", ");
    match state.units.first() {
        Some(unit) if unit.state == "active" => Check::pass("service", message),
        _ => {
            let fix = "run `toolcrib service remove`, then `toolcrib service install`";
            Check::warn("service", format!("it is installed, but not active: {message}")).fix(fix)
        }
    }
}

fn check_port() -> Check {
    match TcpListener::bind(("127.0.0.1", DEFAULT_PORT)) {
        Ok(_) => Check::pass("port", format!("{DEFAULT_PORT} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let message = format!("{DEFAULT_PORT} is used by another program");
            Check::warn("port", message).fix("toolcrib serve --listen 127.0.0.1:0")
        }
        Err(error) => Check::warn("port", format!("cannot listen on port {DEFAULT_PORT}: {error}")),
    }
}

/// Returns the check for a machine without a config.
pub(super) fn missing_config(paths: &Paths) -> Check {
    let message = format!("there is no config yet: `{}`", paths.config.display());
    Check::warn("config", message).fix("run `toolcrib init`, or `toolcrib add NAME -- COMMAND`")
}

/// Reports the problems of the config; of one server only, if one is named.
pub(super) fn check_config(config: &Config, server: Option<&str>, paths: &Paths) -> Vec<Check> {
    let concerns = |problem: &&Problem| match &problem.scope {
        ProblemScope::Server(name) => server.is_none_or(|server| server == &**name),
        _ => true,
    };
    let mut checks: Vec<Check> = config.problems.iter().filter(concerns).map(check_problem).collect();
    if let Some((file, reason)) = paths.sources().unused_project_file() {
        let message = format!("`{}` {reason}", file.display());
        checks.push(Check::warn("config", message).fix("review it, then run `toolcrib allow`"));
    }
    if let Some(error) = super::super::missing_gateway_error(config) {
        let check = Check::fail("gateway", error.message);
        checks.push(error.hint.iter().fold(check, Check::fix));
    }
    if checks.is_empty() {
        let subject = match server {
            Some(server) => format!("`{server}`"),
            None => super::super::check::format_count(config.origins.len(), "server"),
        };
        checks.push(Check::pass("config", format!("{subject}, no problems")));
    }
    checks
}

fn check_problem(problem: &Problem) -> Check {
    let message = problem.to_string();
    let check = match &problem.scope {
        ProblemScope::Note => Check::warn("config", message),
        ProblemScope::Server(name) => {
            Check { server: Some(name.to_string()), ..Check::fail("config", message) }
        }
        _ => Check::fail("config", message),
    };
    problem.hint.iter().fold(check, Check::fix)
}
