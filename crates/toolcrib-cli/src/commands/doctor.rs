//! `toolcrib doctor [SERVER]`: checks the config, the gateway and every server, and says what to do about each problem.

mod command_checks;
mod general_checks;
mod package;
mod start_check;

use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use toolcrib::config::Config;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{Crib, Endpoint, ServerId, ServerSpec};

use self::start_check::ServerStarter;
use crate::cli::DoctorArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{self, Signals};
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{Wait, WatchedServers};
use crate::secrets::SecretLocator;

/// Servers that are checked at the same time.
const MAX_PARALLEL: usize = 8;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckStatus {
    Pass,
    Warn,
    Fail,
}

impl CheckStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One check, with the command that fixes the problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    id: &'static str,
    server: Option<String>,
    status: CheckStatus,
    message: String,
    fix: Option<String>,
}

impl Check {
    fn new(id: &'static str, status: CheckStatus, message: impl Into<String>) -> Self {
        Self { id, server: None, status, message: message.into(), fix: None }
    }

    fn pass(id: &'static str, message: impl Into<String>) -> Self {
        Self::new(id, CheckStatus::Pass, message)
    }

    fn warn(id: &'static str, message: impl Into<String>) -> Self {
        Self::new(id, CheckStatus::Warn, message)
    }

    fn fail(id: &'static str, message: impl Into<String>) -> Self {
        Self::new(id, CheckStatus::Fail, message)
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    fn on_server(self, server: &ServerId) -> Self {
        Self { server: Some(server.to_string()), ..self }
    }

    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "server": self.server,
            "status": self.status.as_str(),
            "message": self.message,
            "fix": self.fix,
        })
    }
}

/// The checks so far. Each is printed when it is added, unless the output is JSON.
#[derive(Default)]
struct CheckList(Vec<Check>);

impl CheckList {
    fn add(&mut self, check: Check, out: &mut Output) -> Result<()> {
        if !out.json {
            let subject = match &check.server {
                Some(server) => format!("{server}: {}", check.id),
                None => check.id.to_owned(),
            };
            out.print_line(&format!("{}  {subject:<20}  {}", check.status.as_str(), check.message))?;
            if let Some(fix) = &check.fix {
                let fix = out.complete_hint(fix).replace('\n', "\n      ");
                out.print_line(&format!("      fix: {fix}"))?;
            }
        }
        self.0.push(check);
        Ok(())
    }

    fn count(&self, status: CheckStatus) -> usize {
        self.0.iter().filter(|check| check.status == status).count()
    }

    /// Prints the result, and returns the exit status: warnings do not count.
    fn finish(self, out: &mut Output) -> Result<ExitStatus> {
        let failed = self.count(CheckStatus::Fail);
        let warnings = super::check::format_count(self.count(CheckStatus::Warn), "warning");
        if out.json {
            let checks: Vec<Value> = self.0.iter().map(Check::to_json).collect();
            out.print_json(&json!({"checks": checks}))?;
        }
        out.print_note(&match failed {
            0 => format!("no check failed, {warnings}"),
            _ => format!("{} failed, {warnings}", super::check::format_count(failed, "check")),
        })?;
        Ok(if failed == 0 { ExitStatus::Success } else { ExitStatus::CheckFailed })
    }
}

/// Checks everything, or what concerns one server.
pub(crate) async fn run(args: &DoctorArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let mut list = CheckList::default();
    let gateway = GatewayClient::find(paths).await;
    for check in general_checks::check_gateway(&gateway, paths).await {
        list.add(check, out)?;
    }
    let gateway = gateway.ok().flatten();
    if !paths.has_config() {
        list.add(general_checks::missing_config(paths), out)?;
        return list.finish(out);
    }
    let config = paths.read_config()?;
    let server = args.server.as_deref();
    if let Some(name) = server.filter(|name| !config.origins.keys().any(|id| id.as_str() == *name)) {
        let message = format!("server `{name}` is not declared");
        return Err(CommandError::usage(message).hint("toolcrib ls").into());
    }
    for check in general_checks::check_config(&config, server, paths) {
        list.add(check, out)?;
    }
    if gateway.is_none() && config.is_refused() {
        return list.finish(out);
    }
    let is_interrupted = check_servers(config, server, gateway, paths, &mut list, out).await?;
    if is_interrupted { Ok(ExitStatus::Interrupted) } else { list.finish(out) }
}

/// Checks a server that is not declared yet, and starts it in this process. Returns whether no check failed.
pub(super) async fn try_server(config: Config, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let mut list = CheckList::default();
    let is_interrupted = check_servers(config, None, None, paths, &mut list, out).await?;
    let failed = list.count(CheckStatus::Fail);
    Ok(match (is_interrupted, failed) {
        (true, _) => ExitStatus::Interrupted,
        (false, 0) => ExitStatus::Success,
        (false, _) => ExitStatus::CheckFailed,
    })
}

/// Checks the active servers of a config, a few at a time, and prints the results in the order of their names. Starts them in
/// the gateway if there is one, else in this process. Returns whether a signal interrupted it.
async fn check_servers(
    config: Config,
    only: Option<&str>,
    gateway: Option<GatewayClient>,
    paths: &Paths,
    list: &mut CheckList,
    out: &mut Output,
) -> Result<bool> {
    let crib = gateway::build(paths, &config)?;
    let starter = match gateway.clone() {
        Some(client) => ServerStarter::Gateway(client),
        None => ServerStarter::Standalone { crib: crib.clone(), config_file: paths.config.clone() },
    };
    let checker = Arc::new(ServerChecker { starter, secrets: SecretLocator::new(paths, &config.secrets) });
    let is_active = |spec: &&ServerSpec| {
        let is_enabled = config.declared.iter().any(|server| server.id == spec.id && server.active)
            || config.declared.is_empty();
        is_enabled && only.is_none_or(|only| spec.id.as_str() == only)
    };
    let specs: Vec<ServerSpec> = config.roster.servers().filter(is_active).cloned().collect();
    let mut signals = Signals::new()?;
    let checks = print_checks(checker, specs, &crib, gateway.as_ref(), list, out);
    let is_interrupted = tokio::select! {
        printed = checks => {
            printed?;
            false
        }
        () = signals.wait_for_any() => true,
    };
    let stop = Wait::new("stopping the servers", WatchedServers::Crib(&crib));
    stop.run(crib.shutdown(super::SHUTDOWN_GRACE)).await;
    Ok(is_interrupted)
}

async fn print_checks(
    checker: Arc<ServerChecker>,
    specs: Vec<ServerSpec>,
    crib: &Crib,
    gateway: Option<&GatewayClient>,
    list: &mut CheckList,
    out: &mut Output,
) -> Result<()> {
    let permits = Arc::new(Semaphore::new(MAX_PARALLEL));
    let tasks = TaskTracker::new();
    let check = |spec: ServerSpec| {
        let checker = checker.clone();
        let permits = permits.clone();
        tasks.spawn_boxed(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire().await.ok();
            checker.check(&spec).await
        })
    };
    let running: Vec<JoinHandle<Vec<Check>>> = specs.into_iter().map(check).collect();
    for task in running {
        let servers = gateway.map_or(WatchedServers::Crib(crib), WatchedServers::Gateway);
        for check in Wait::new("starting the servers", servers).run(task).await? {
            list.add(check, out)?;
        }
    }
    Ok(())
}

/// Checks single servers.
struct ServerChecker {
    starter: ServerStarter,
    secrets: SecretLocator,
}

impl ServerChecker {
    /// Runs every check of one server: what its declaration needs, then its start.
    async fn check(&self, spec: &ServerSpec) -> Vec<Check> {
        let secrets = self.secrets.clone();
        let declared = spec.clone();
        let uses_gateway = matches!(self.starter, ServerStarter::Gateway(_));
        // Secret stores and the file system may block.
        let checked = tokio::task::spawn_blocking(move || {
            let mut checks = command_checks::check_references(&declared.endpoint, &secrets, uses_gateway);
            if let Endpoint::Command(command) = &declared.endpoint {
                checks.extend(command_checks::check_program(command, &declared.id));
            }
            checks
        });
        let mut checks = checked.await.unwrap_or_default();
        let start = self.starter.check(&spec.id).await;
        if let Endpoint::Command(command) = &spec.endpoint {
            checks.extend(package::check(command, start.status == CheckStatus::Pass).await);
        }
        checks.push(start);
        checks.into_iter().map(|check| check.on_server(&spec.id)).collect()
    }
}
