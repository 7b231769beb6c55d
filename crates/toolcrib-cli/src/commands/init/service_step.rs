//! The service in the plan of `init`.

use std::path::Path;

use serde_json::{Value, json};
use toolcrib::config::Config;

use crate::commands::service::user_service::{self, UserService};
use crate::gateway::OtherGateway;
use crate::output::Output;
use crate::paths::Paths;

/// What `init` does about the service.
#[derive(Default)]
pub(super) enum ServiceStep {
    /// Installs it.
    Install(Box<UserService>),
    /// Nothing: it is installed already, or not wanted.
    #[default]
    Unchanged,
    /// Nothing, for this reason.
    Skip { reason: String },
}

impl ServiceStep {
    /// Decides whether the service can be installed. Changes nothing.
    pub(super) fn plan(config: &Config, paths: &Paths) -> Self {
        let skip = |reason: String| Self::Skip { reason };
        let Some(service) = UserService::find(paths) else {
            return skip("neither a systemd user manager nor launchd is running".to_owned());
        };
        match service.is_installed() {
            Ok(true) => return Self::Unchanged,
            Ok(false) => {}
            Err(error) => return skip(format!("{error:#}")),
        }
        let missing = user_service::missing_variables(config);
        if !missing.is_empty() {
            return skip(format!(
                "servers use {}, which a service does not get from this shell",
                missing.join(", ")
            ));
        }
        match OtherGateway::find(&paths.clone().without_project()) {
            Ok(Some(other)) if !other.auto_started => {
                skip(format!("a gateway is running for this config (pid {})", other.pid))
            }
            Ok(_) => Self::Install(Box::new(service)),
            Err(error) => skip(error.message),
        }
    }

    /// Returns whether the service is installed by this `init`.
    pub(super) fn is_install(&self) -> bool {
        matches!(self, Self::Install(_))
    }

    /// Prints the line of the plan, or who starts the gateway without a service.
    pub(super) fn print(&self, config: &Config, out: &mut Output) -> std::io::Result<()> {
        match self {
            Self::Install(service) => out.print_line(&format!(
                "install the service `{}` ({}), which runs the gateway",
                service.name(),
                service.manager_name()
            )),
            Self::Unchanged => Ok(()),
            Self::Skip { reason } => {
                let starter = match config.auto_start.enabled {
                    true => "the first agent starts the gateway, and the others share it",
                    false => "`gateway.auto-start` is off, so each agent has its own servers",
                };
                out.print_line(&format!("install no service: {reason}; without one, {starter}"))
            }
        }
    }

    /// Returns the member `service` of the plan.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Install(service) => {
                json!({"install": true, "name": service.name(), "manager": service.manager_name()})
            }
            Self::Unchanged => json!({"install": false, "reason": null}),
            Self::Skip { reason } => json!({"install": false, "reason": reason}),
        }
    }

    /// Installs the service, if that is planned. Agents work without it, so a failure is only reported. Returns whether it
    /// was installed.
    pub(super) async fn carry_out(
        &self,
        config_flag: Option<&Path>,
        out: &mut Output,
    ) -> std::io::Result<bool> {
        let Self::Install(service) = self else { return Ok(false) };
        match service.install_default(config_flag).await {
            Ok(_) => {
                let name = service.name();
                out.print_note(&format!("installed the service `{name}` ({})", service.manager_name()))?;
                Ok(true)
            }
            Err(error) => {
                out.warn(
                    &format!("the service was not installed: {error:#}"),
                    Some("toolcrib service install"),
                )?;
                Ok(false)
            }
        }
    }
}

/// What undoing did to the service.
pub(super) enum ServiceRemoval {
    Removed,
    NotInstalled,
    /// It is still installed, for this reason.
    Left {
        reason: String,
    },
}

/// Removes the service that an earlier `init` installed. Only a running manager of services can stop it.
pub(super) fn remove(paths: &Paths) -> ServiceRemoval {
    let Some(service) = UserService::find(paths) else {
        return match user_service::find_installed_file(paths) {
            Some(file) => ServiceRemoval::Left {
                reason: format!(
                    "`{}` exists, and neither a systemd user manager nor launchd is running to stop it",
                    file.display()
                ),
            },
            None => ServiceRemoval::NotInstalled,
        };
    };
    match service.remove() {
        Ok(true) => ServiceRemoval::Removed,
        Ok(false) => ServiceRemoval::NotInstalled,
        Err(error) => ServiceRemoval::Left { reason: format!("{error:#}") },
    }
}
