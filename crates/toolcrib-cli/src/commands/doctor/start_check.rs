//! The start of a server: through the gateway that already has it, or in this process.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::config::Config;
use toolcrib::{Crib, ServerId};

use super::Check;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::gateway;
use crate::paths::Paths;
use crate::progress::ServerSource;
use crate::report::server::ServerReport;

/// Starts servers and reports the first failure.
pub(super) enum ServerStarter {
    Gateway(GatewayClient),
    Standalone { crib: Crib, config_file: PathBuf },
}

impl ServerStarter {
    /// Creates a starter of servers in this process.
    pub(super) fn standalone(paths: &Paths, config: &Config) -> Result<Self, CommandError> {
        Ok(Self::Standalone { crib: gateway::build(paths, config)?, config_file: paths.config.clone() })
    }

    /// Returns the servers for the progress line.
    pub(super) fn watched(&self) -> ServerSource<'_> {
        match self {
            Self::Gateway(client) => ServerSource::Gateway(client),
            Self::Standalone { crib, .. } => ServerSource::Crib(crib),
        }
    }

    /// Starts a server unless it runs. A server of the gateway is started there, so that it never runs twice.
    pub(super) async fn check(&self, server: &ServerId) -> Check {
        let began = Instant::now();
        match self.start(server).await {
            Ok(status) => started_check(&status, began.elapsed()),
            Err(error) => self.failed_check(server, error, began.elapsed()),
        }
    }

    async fn start(&self, server: &ServerId) -> Result<ServerReport, CommandError> {
        match self {
            Self::Gateway(client) => {
                client.submit(&format!("{}/start", super::super::server_path(server.as_str()))).await
            }
            Self::Standalone { crib, .. } => {
                crib.start(server).await?;
                let status = crib.server_status(server);
                Ok(status.map(|status| ServerReport::new(&status, None, 0)).unwrap_or_default())
            }
        }
    }

    fn failed_check(&self, server: &ServerId, error: CommandError, elapsed: Duration) -> Check {
        let stderr = error.stderr_tail();
        let mut lines = stderr.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
        let last_line = lines.clone().next_back().map(str::to_owned);
        let is_explained = lines.any(|line| error.message.contains(line));
        let mut message = format!("{} (after {})", error.message, format_seconds(elapsed));
        if let Some(line) = last_line.filter(|_| !is_explained) {
            message = format!("{message}: {line}");
        }
        let hint = error.hint.unwrap_or_else(|| format!("toolcrib logs {server}"));
        let fix = match self {
            Self::Gateway(_) => hint,
            Self::Standalone { config_file, .. } => {
                super::super::repair_hint(&hint, Some(server.as_str()), config_file)
            }
        };
        Check::fail("start", message).fix(fix)
    }
}

fn started_check(status: &ServerReport, elapsed: Duration) -> Check {
    if matches!(status.login.as_str(), "expired" | "needed") {
        let message = format!("calls fail: the login is {}", status.login);
        return Check::fail("login", message).fix(format!("toolcrib login {}", status.name));
    }
    let tools = status.tools.unwrap_or_default();
    let tools = super::super::check::format_count(usize::try_from(tools).unwrap_or(usize::MAX), "tool");
    let message = format!("ready after {}, {tools}", format_seconds(elapsed));
    match status.listing_errors.first() {
        Some(error) => {
            let message = format!("{message}; it does not answer `{}`: {}", error.list, error.message);
            Check::warn("start", message).fix(format!("toolcrib logs {}", status.name))
        }
        None => Check::pass("start", message),
    }
}

fn format_seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}
