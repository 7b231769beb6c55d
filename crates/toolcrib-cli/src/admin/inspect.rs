//! The config, the access rules and the audit file in the admin API, and the link to the dashboard. Nothing is changed.

use std::path::Path;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use toolcrib::config::{ConfigChange, LayeredConfig};
use toolcrib::{Caller, ServerId};
use toolcrib_serve::{AdminReply, AdminRequest, query_value};

use super::Admin;
use super::errors::{error_reply, forbidden_reply};
use crate::audit;
use crate::cli::PolicyTestArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::policy_test::PolicyQuestion;
use crate::report::Report as _;
use crate::report::declared::{find_declared, why_json};
use crate::report::secrets::SecretsReport;
use crate::secrets::SecretUses;

impl Admin {
    /// Handles a request about the config, the rules, the audit file or the dashboard; `None` for any other path.
    pub(super) async fn respond_inspection(
        &self,
        request: &AdminRequest<'_>,
        path: &[&str],
    ) -> Option<AdminReply> {
        let method = request.method;
        let get = method == Method::GET;
        Some(match path {
            ["api", "v1", "config"] if get => self.config_values().await,
            ["api", "v1", "policy"] if get => self.test_policy(request.query).await,
            ["api", "v1", "audit"] if get => self.verify_audit().await,
            ["api", "v1", "secrets"] if get => self.secrets().await,
            ["api", "v1", "servers", server, "why"] if get => self.why(server).await,
            ["api", "v1", "ui"] if method == Method::POST => self.dashboard_link(request).await,
            _ => return None,
        })
    }

    /// Returns every value of the config files with its origin, and the problems. Possible secrets are hidden.
    async fn config_values(&self) -> AdminReply {
        let sources = self.gateway.sources().clone();
        let report = self.gateway.config_report().to_json();
        read_blocking(move || {
            let layered = sources.read_layers();
            let config = layered.resolve(&sources.gather_facts(&layered));
            let empty = LayeredConfig::from_texts(&[]);
            let values = layered.changes_since(&empty, Path::new(""));
            let files = config.files.iter().map(|file| file.display().to_string());
            let mut report = report;
            report["files"] = files.collect();
            report["values"] = values.iter().map(value_json).collect();
            report["audit"] = config.audit.as_ref().map(|audit| audit.file.display().to_string()).into();
            Ok(report)
        })
        .await
    }

    /// Explains why a server is on or off here, as `why --json` does.
    async fn why(&self, name: &str) -> AdminReply {
        let sources = self.gateway.sources().clone();
        let name = name.to_owned();
        read_blocking(move || {
            let layered = sources.read_layers();
            let config = layered.resolve(&sources.gather_facts(&layered));
            find_declared(&config, &name).map(|server| why_json(&layered, &config, server))
        })
        .await
    }

    /// Decides whether a caller may use a tool, as `policy test --json` does.
    async fn test_policy(&self, query: Option<&str>) -> AdminReply {
        let sources = self.gateway.sources().clone();
        let catalog = self.crib().catalog();
        let value = |key| query_value(query, key).filter(|value| !value.is_empty());
        let args = PolicyTestArgs {
            caller: value("caller").unwrap_or_else(|| Caller::local().as_str().to_owned()),
            groups: value("groups").iter().flat_map(|groups| groups.split(',')).map(str::to_owned).collect(),
            profile: value("profile"),
            tool: value("tool").unwrap_or_default(),
        };
        read_blocking(move || {
            let config = sources.load();
            let question = PolicyQuestion::new(&config, &args)?;
            let is_listed = |server: &ServerId| catalog.tools().iter().any(|tool| tool.server == *server);
            let mut tools = catalog.tools().iter().filter(|tool| tool.server == question.server);
            let exists = tools.any(|tool| *tool.own_name == *question.tool);
            let known = (exists || is_listed(&question.server)).then_some(exists);
            Ok(question.decide(&config, known).to_json())
        })
        .await
    }

    /// Returns which of the secrets that the config uses are set. Other stored secrets are not named.
    async fn secrets(&self) -> AdminReply {
        let sources = self.gateway.sources().clone();
        let locator = self.gateway.secrets().clone();
        read_blocking(move || {
            let config = sources.load();
            let locator = locator.with_backend(&config.secrets);
            Ok(SecretsReport::read(&locator, &SecretUses::from_config(&config))?.to_json())
        })
        .await
    }

    /// Verifies the hash chain of the audit file.
    async fn verify_audit(&self) -> AdminReply {
        let sources = self.gateway.sources().clone();
        read_blocking(move || {
            let Some(spec) = sources.load().audit else {
                return Ok(json!({"file": null, "intact": null}));
            };
            let file = spec.file.display().to_string();
            let verified = audit::verify(&spec.file).map_err(|error| {
                let message = format!("cannot read the audit file {file}: {error}");
                CommandError::new(ExitStatus::Failure, "unreadable", message)
            })?;
            Ok(match verified {
                Ok(chain) => chain.to_json(&spec.file),
                Err(broken) => json!({
                    "file": broken.file.display().to_string(),
                    "intact": false,
                    "line": broken.line,
                    "reason": broken.reason,
                }),
            })
        })
        .await
    }

    /// Creates a link that logs a browser in as the local caller. Only that caller may do so, and not over bare loopback HTTP.
    async fn dashboard_link(&self, request: &AdminRequest<'_>) -> AdminReply {
        if !request.can_approve || *request.caller != Caller::local() {
            return forbidden_reply("login codes are not given out here; run `toolcrib ui`");
        }
        match self.gateway.dashboard().create_link().await {
            Ok(link) => AdminReply::ok(json!({
                "url": link.url,
                "code": link.code,
                "expires_in": link.expires_in.as_secs_f64(),
            })),
            Err(error) => error_reply(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("cannot open an address for the dashboard: {error}"),
            ),
        }
    }
}

fn value_json(value: &ConfigChange) -> Value {
    json!({
        "key": value.key,
        "value": value.after,
        "file": value.origin.file.display().to_string(),
        "line": value.origin.line,
    })
}

/// Runs work that reads files on a thread for blocking work.
async fn read_blocking(work: impl FnOnce() -> Result<Value, CommandError> + Send + 'static) -> AdminReply {
    let done = tokio::task::spawn_blocking(work).await;
    match done.unwrap_or_else(|error| Err(CommandError::unexpected(&error))) {
        Ok(value) => AdminReply::ok(value),
        Err(error) => {
            let status = match error.exit {
                ExitStatus::Failure => StatusCode::NOT_FOUND,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            };
            AdminReply::new(status, error.to_json())
        }
    }
}
