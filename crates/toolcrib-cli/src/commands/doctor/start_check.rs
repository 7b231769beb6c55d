//! The start of a server: through the gateway that already has it, or in this process.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::ServerId;
use toolcrib::config::Config;

use super::Check;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::gateway::StandaloneCrib;
use crate::paths::Paths;
use crate::progress::ServerSource;
use crate::report::server::ServerReport;

/// Starts servers and reports the first failure.
pub(super) enum ServerStarter {
    Gateway(GatewayClient),
    Standalone {
        standalone: StandaloneCrib,
        config_file: PathBuf,
    },
    /// For a server that is not declared yet.
    Trial(StandaloneCrib),
}

impl ServerStarter {
    /// Creates a starter of servers in this process.
    pub(super) fn standalone(paths: &Paths, config: &Config) -> Result<Self, CommandError> {
        let standalone = StandaloneCrib::new(paths, config)?;
        Ok(Self::Standalone { standalone, config_file: paths.config.clone() })
    }

    /// Stops the servers of this process.
    pub(super) async fn stop(&self) {
        if let Self::Standalone { standalone, .. } | Self::Trial(standalone) = self {
            standalone.shutdown(super::super::SHUTDOWN_GRACE).await;
        }
    }

    /// Returns the servers for the progress line.
    pub(super) fn watched(&self) -> ServerSource<'_> {
        match self {
            Self::Gateway(client) => ServerSource::Gateway(client),
            Self::Standalone { standalone, .. } | Self::Trial(standalone) => {
                ServerSource::Crib(&standalone.crib)
            }
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
            Self::Standalone { standalone, .. } | Self::Trial(standalone) => {
                let crib = &standalone.crib;
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
        let variable = stderr.iter().find_map(|line| missing_variable(line)).map(str::to_owned);
        let is_explained = lines.any(|line| error.message.contains(line));
        let mut message = format!("{} (after {})", error.message, format_seconds(elapsed));
        if let Some(line) = last_line.filter(|_| !is_explained) {
            message = format!("{message}: {line}");
        }
        let hint = error.hint.unwrap_or_else(|| format!("toolcrib logs {server}"));
        let fix = match self {
            Self::Gateway(_) => hint,
            Self::Standalone { config_file, .. } if hint.starts_with("toolcrib logs") => {
                format!("see `{hint}`, or check `servers.{server}` in {}", config_file.display())
            }
            Self::Standalone { config_file, .. } => {
                super::super::repair_hint(&hint, Some(server.as_str()), config_file)
            }
            Self::Trial(_) => match variable {
                Some(name) => {
                    format!("pass the variable with `-e {name}=VALUE` or `--inherit-env {name}`")
                }
                None if hint.contains(server.as_str()) => "check the command and its arguments".to_owned(),
                None => hint,
            },
        };
        Check::fail("start", message).fix(fix)
    }
}

/// Returns the environment variable that a server misses, if a line of its stderr says so.
fn missing_variable(line: &str) -> Option<&str> {
    let lower = line.to_lowercase();
    let says_missing =
        ["required", "missing", "not set", "must be set", "please set", "not found", "undefined"];
    if !says_missing.iter().any(|text| lower.contains(text)) {
        return None;
    }
    let is_variable = |word: &&str| {
        word.contains('_') && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').find(is_variable)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_variable_is_read_from_what_the_server_printed() {
        for (line, expected) in [
            ("Error: GITHUB_TOKEN environment variable is required", Some("GITHUB_TOKEN")),
            ("ValueError: environment variable 'BRAVE_API_KEY' not set", Some("BRAVE_API_KEY")),
            ("Please set SLACK_TEAM_ID2.", Some("SLACK_TEAM_ID2")),
            ("using GITHUB_TOKEN", None),
            ("the file my_file.txt was not found", None),
            ("ENOENT: not found", None),
        ] {
            assert_eq!(missing_variable(line), expected, "{line}");
        }
    }
}
