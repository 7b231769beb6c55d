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
use toolcrib::{Endpoint, ServerId, ServerSpec};

use self::start_check::ServerStarter;
use crate::cli::DoctorArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{Signals, StandaloneCrib};
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::Wait;
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

    fn to_json(&self) -> Value {
        let checks: Vec<Value> = self.0.iter().map(Check::to_json).collect();
        json!({"checks": checks})
    }

    /// Prints the result, and returns the exit status: warnings do not count.
    fn finish(self, out: &mut Output) -> Result<ExitStatus> {
        let failed = self.count(CheckStatus::Fail);
        let warnings = super::check::format_count(self.count(CheckStatus::Warn), "warning");
        if out.json {
            out.print_json(&self.to_json())?;
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
    list.add(general_checks::check_service(&config, paths), out)?;
    if let Some(check) = general_checks::check_store(&config, paths).await {
        list.add(check, out)?;
    }
    for check in general_checks::check_config(&config, server, paths) {
        list.add(check, out)?;
    }
    let starter = match gateway {
        Some(client) => ServerStarter::Gateway(client),
        None if config.is_refused() => return list.finish(out),
        None => ServerStarter::standalone(paths, &config)?,
    };
    let is_active = |spec: &&ServerSpec| {
        let mut declared = config.declared.iter();
        declared.any(|declared| declared.id == spec.id && declared.active && declared.enabled)
            && server.is_none_or(|server| spec.id.as_str() == server)
    };
    let specs = config.roster.servers().filter(is_active).cloned().collect();
    let checker = ServerChecker { starter, secrets: SecretLocator::new(paths, &config.secrets) };
    match checker.check_all(specs, &mut list, out).await? {
        Completion::Done => list.finish(out),
        Completion::Interrupted => Ok(ExitStatus::Interrupted),
    }
}

/// Checks the servers of a config that is not in use yet, and starts them in this process. Fails if a check fails.
pub(super) async fn try_servers(config: &Config, paths: &Paths, out: &mut Output) -> Result<Completion> {
    let mut list = CheckList::default();
    let starter = ServerStarter::Trial(StandaloneCrib::new(paths, config)?);
    let checker = ServerChecker { starter, secrets: SecretLocator::new(paths, &config.secrets) };
    let specs = config.roster.servers().cloned().collect();
    let completion = checker.check_all(specs, &mut list, out).await?;
    if list.count(CheckStatus::Fail) == 0 {
        return Ok(completion);
    }
    let message = "a check failed; nothing was written";
    let error = CommandError::new(ExitStatus::CheckFailed, "check_failed", message);
    Err(CommandError { data: list.to_json(), ..error.hint("leave out `--try` to write it anyway") }.into())
}

/// The end of the checks of all servers.
pub(super) enum Completion {
    Done,
    /// A signal arrived.
    Interrupted,
}

/// Checks single servers.
struct ServerChecker {
    starter: ServerStarter,
    secrets: SecretLocator,
}

impl ServerChecker {
    /// Checks servers, a few at a time, and prints the results in their order. Servers of this process are stopped afterwards.
    async fn check_all(
        self,
        specs: Vec<ServerSpec>,
        list: &mut CheckList,
        out: &mut Output,
    ) -> Result<Completion> {
        let mut signals = Signals::new()?;
        let checker = Arc::new(self);
        let completion = tokio::select! {
            printed = checker.print_checks(specs, list, out) => printed.map(|()| Completion::Done),
            () = signals.wait_for_any() => Ok(Completion::Interrupted),
        };
        if !matches!(checker.starter, ServerStarter::Gateway(_)) {
            let stop = Wait::new("stopping the servers", checker.starter.watched());
            stop.run(checker.starter.stop()).await;
        }
        completion
    }

    async fn print_checks(
        self: &Arc<Self>,
        specs: Vec<ServerSpec>,
        list: &mut CheckList,
        out: &mut Output,
    ) -> Result<()> {
        let permits = Arc::new(Semaphore::new(MAX_PARALLEL));
        let tasks = TaskTracker::new();
        let check = |spec: ServerSpec| {
            let checker = self.clone();
            let permits = permits.clone();
            tasks.spawn_boxed(async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await.ok();
                checker.check(&spec).await
            })
        };
        let running: Vec<JoinHandle<Vec<Check>>> = specs.into_iter().map(check).collect();
        for task in running {
            let wait = Wait::new("starting the servers", self.starter.watched());
            for check in wait.run(task).await? {
                list.add(check, out)?;
            }
        }
        Ok(())
    }

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
        let mut checks = checked.await.unwrap_or_else(|error| {
            vec![Check::fail("config", format!("the declaration could not be checked: {error}"))]
        });
        let start = self.starter.check(&spec.id).await;
        if let Endpoint::Command(command) = &spec.endpoint {
            checks.extend(package::check(command, start.status == CheckStatus::Pass).await);
        }
        checks.push(start);
        checks.into_iter().map(|check| check.on_server(&spec.id)).collect()
    }
}
