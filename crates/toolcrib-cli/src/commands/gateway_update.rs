//! Puts a change in force in the running gateway, so that it applies when the command returns.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::server_path;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::ReloadReport;
use crate::report::status::GatewayReport;

/// The time limit for the gateway to apply a change.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for a server to be up again.
const RESTART_TIMEOUT: Duration = Duration::from_secs(30);

/// What the gateway of a config did with a change.
#[derive(Debug)]
pub(super) enum GatewayUpdate {
    /// No gateway is running.
    NotRunning,
    /// It uses the config with this number.
    Applied { generation: u64 },
    /// It keeps its previous config.
    Failed(CommandError),
}

impl GatewayUpdate {
    /// Lets the running gateway read the config again, and waits until it uses it.
    pub(super) async fn reload(paths: &Paths) -> Self {
        let client = match GatewayClient::find(paths).await {
            Ok(Some(client)) => client,
            Ok(None) => return Self::NotRunning,
            Err(error) => return Self::Failed(error),
        };
        let reloaded = timeout(UPDATE_TIMEOUT, client.submit::<ReloadReport>("/api/v1/reload")).await;
        match reloaded.unwrap_or_else(|_| Err(timeout_error("the gateway", UPDATE_TIMEOUT))) {
            Ok(report) => Self::Applied { generation: report.generation },
            Err(error) => Self::Failed(error),
        }
    }

    /// Returns the member `gateway` of `--json`.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::NotRunning => Value::Null,
            Self::Applied { generation } => json!({"generation": generation}),
            Self::Failed(error) => json!({"error": error.message}),
        }
    }

    /// Says what the gateway did; nothing if none is running.
    pub(super) fn print(&self, out: &mut Output) -> std::io::Result<()> {
        match self {
            Self::NotRunning => Ok(()),
            Self::Applied { .. } => out.print_note("the running gateway uses the change"),
            Self::Failed(error) => {
                let message = format!("the running gateway does not use the change: {}", error.message);
                out.warn(&message, Some(error.hint.as_deref().unwrap_or("toolcrib status")))
            }
        }
    }
}

/// The servers that were restarted, and those that could not be.
#[derive(Debug, Default)]
pub(super) struct RestartedServers {
    pub(super) names: Vec<String>,
    pub(super) failures: Vec<CommandError>,
}

impl RestartedServers {
    /// Returns the failures as members of `--json` output.
    pub(super) fn failures_to_json(&self) -> Value {
        let failure = |error: &CommandError| json!({"server": error.data["server"], "code": error.code, "message": error.message, "hint": error.hint});
        self.failures.iter().map(failure).collect()
    }
}

/// Restarts those of the servers that are not asleep. The others get new values when they start.
pub(super) async fn restart_running(
    paths: &Paths,
    servers: &[&str],
) -> Result<RestartedServers, CommandError> {
    let mut restarted = RestartedServers::default();
    let Some(client) = GatewayClient::find(paths).await? else { return Ok(restarted) };
    let status: GatewayReport = client.fetch("/api/v1/status").await?;
    let is_asleep = |state: &str| matches!(state, "asleep" | "disabled");
    for server in status.servers.iter().filter(|server| !is_asleep(&server.state)) {
        if !servers.contains(&server.name.as_str()) {
            continue;
        }
        let path = format!("{}/restart", server_path(&server.name));
        let restart = timeout(RESTART_TIMEOUT, client.post(&path)).await;
        match restart.unwrap_or_else(|_| Err(timeout_error(&server.name, RESTART_TIMEOUT))) {
            Ok(_) => restarted.names.push(server.name.clone()),
            Err(mut error) => {
                error.data["server"] = json!(server.name);
                restarted.failures.push(error);
            }
        }
    }
    Ok(restarted)
}

fn timeout_error(subject: &str, limit: Duration) -> CommandError {
    let message = format!("{subject} did not answer within {} s", limit.as_secs());
    CommandError::new(ExitStatus::TimedOut, "timed_out", message)
}
