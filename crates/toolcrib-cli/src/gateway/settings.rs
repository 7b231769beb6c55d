//! Everything that a config sets in a running gateway, as one value.

use std::sync::Arc;

use toolcrib::config::{AuditSpec, Config, HostLimits, ListenSpec, SecretBackend};
use toolcrib::{Crib, RosterChanges, Settings};
use toolcrib_serve::{ActiveCallers, Callers};

use crate::audit::Audit;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::secrets::SecretLocator;

/// The settings of a gateway, resolved and checked.
#[derive(Debug)]
pub(super) struct GatewaySettings {
    /// Servers, access rules, usage limits and capacity.
    pub(super) settings: Settings,
    pub(super) callers: Callers,
    pub(super) secrets: SecretBackend,
    pub(super) audit: Option<AuditSpec>,
    pub(super) listen: ListenSpec,
    pub(super) limits: HostLimits,
}

impl GatewaySettings {
    /// Resolves the settings of a config. May block on a secret store, because it reads the tokens of callers.
    ///
    /// # Errors
    /// If the config is invalid or a token cannot be resolved.
    pub(super) fn from_config(config: &Config, secrets: &SecretLocator) -> Result<Self, CommandError> {
        if config.is_refused() {
            return Err(CommandError::invalid_config(config));
        }
        Ok(Self {
            settings: library_settings(config),
            callers: resolve_callers(config, &secrets.with_backend(&config.secrets))?,
            secrets: config.secrets.clone(),
            audit: config.audit.clone(),
            listen: config.listen.clone(),
            limits: config.limits.clone(),
        })
    }

    /// Returns whether these settings take effect only after a restart of a gateway that was opened with the others.
    pub(super) fn needs_restart(&self, listen: &ListenSpec, limits: &HostLimits) -> bool {
        // The maximum call timeout is applied with the roster, and the wait of lists before it.
        let own_limits = HostLimits {
            call_timeout_max: limits.call_timeout_max,
            listing_wait: limits.listing_wait,
            ..self.limits.clone()
        };
        own_limits != *limits || self.listen != *listen
    }
}

/// Resolves the tokens of the declared callers. May block on a secret store.
///
/// # Errors
/// If a token cannot be resolved, or two callers have the same token.
pub(super) fn resolve_callers(config: &Config, secrets: &SecretLocator) -> Result<Callers, CommandError> {
    Callers::resolve(&config.callers, |name| secrets.find(name))
        .map_err(|problem| CommandError::config_problem(&problem))
}

/// Returns the part of a config that the library applies.
pub(super) fn library_settings(config: &Config) -> Settings {
    Settings::new(config.roster.clone())
        .policy(config.policy.clone())
        .limits(config.usage_limits.clone())
        .capacity(config.capacity.clone())
}

/// The parts of a running gateway that settings apply to.
#[derive(Debug)]
pub(super) struct SettingsTarget {
    pub(super) crib: Crib,
    pub(super) callers: Arc<ActiveCallers>,
    pub(super) secrets: SecretLocator,
    pub(super) audit: Arc<Audit>,
    /// True if other machines can reach the gateway, so that callers must be declared.
    pub(super) is_exposed: bool,
}

impl SettingsTarget {
    /// Checks that the settings can be applied. Changes nothing.
    ///
    /// # Errors
    /// If other machines can reach the gateway and no callers are declared, or the audit file cannot be opened and is
    /// required.
    pub(super) fn check(&self, settings: &GatewaySettings) -> Result<(), CommandError> {
        if self.is_exposed && settings.callers.is_empty() {
            let message = "the gateway is reachable from other machines, but no `callers` are declared";
            let error = CommandError::new(ExitStatus::InvalidConfig, "config_invalid", message);
            return Err(error.hint("declare at least one caller"));
        }
        self.audit.prepare(settings.audit.as_ref())
    }

    /// Applies settings that were checked.
    ///
    /// # Cancel safety
    /// The settings are in force when this is first polled; dropping the future only skips waiting for the catalog.
    pub(super) async fn apply(&self, settings: GatewaySettings) -> RosterChanges {
        self.apply_in_steps(settings, || {}).await
    }

    /// Applies settings and calls `after_step` between the steps. Requests are served meanwhile, so the order matters:
    /// no caller may use a server under rules that do not name it. Access that ends is revoked first; new access is
    /// granted once its rules and limits are in force; new servers come last.
    async fn apply_in_steps(&self, settings: GatewaySettings, after_step: impl Fn()) -> RosterChanges {
        let GatewaySettings { settings, callers, secrets, audit, limits, .. } = settings;
        self.audit.apply(audit);
        self.crib.set_listing_wait(limits.listing_wait);
        let revoked = self.callers.revoke_changed(&callers);
        after_step();
        self.crib.set_policy(settings.policy.clone());
        self.crib.set_limits(settings.limits.clone());
        after_step();
        let replaced = self.callers.replace(callers);
        after_step();
        self.secrets.set_backend(secrets);
        let (changes, revoked, replaced) =
            tokio::join!(self.crib.apply(settings), revoked.wait(), replaced.wait());
        if let Err(error) = revoked.and(replaced) {
            tracing::warn!("other gateways may still accept callers that were removed or changed: {error}");
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::time::Duration;

    use hyper::HeaderMap;
    use hyper::header::{AUTHORIZATION, HeaderValue};
    use toolcrib_serve::Entrypoint;

    use super::*;
    use crate::paths::Paths;

    /// Returns the settings of a config with these callers and the server `house`, which is never started.
    fn settings(callers: &str) -> GatewaySettings {
        let text = format!("[servers.house]\ncommand = 'x'\n{callers}");
        let config = Config::parse(Path::new("/x/config.toml"), &text);
        assert!(config.problems.is_empty(), "{:?}", config.problems);
        GatewaySettings::from_config(&config, &secrets()).unwrap()
    }

    fn secrets() -> SecretLocator {
        SecretLocator::new(&Paths::under(Path::new("/nowhere")), &SecretBackend::File)
    }

    fn target(settings: GatewaySettings) -> SettingsTarget {
        let GatewaySettings { settings, callers, .. } = settings;
        SettingsTarget {
            crib: Crib::builder().roster(settings.roster).policy(settings.policy).build().unwrap(),
            callers: Arc::new(ActiveCallers::new(callers)),
            secrets: secrets(),
            audit: Arc::new(Audit::new(None).unwrap()),
            is_exposed: false,
        }
    }

    /// Returns whether a client with this token may use `house` now.
    fn can_use(target: &SettingsTarget, token: &str) -> bool {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        let authenticated = target.callers.authenticate(Entrypoint::Tcp, &headers);
        authenticated.is_some_and(|found| target.crib.can_see(&found.caller, &"house".parse().unwrap()))
    }

    /// Applies the second config over the first, and returns whether a client with this token may use `house` before,
    /// between the steps, and after.
    async fn access_during_reload(before: &str, after: &str, token: &str) -> Vec<bool> {
        let target = target(settings(before));
        let access = RefCell::new(vec![can_use(&target, token)]);
        let observe = || access.borrow_mut().push(can_use(&target, token));
        target.apply_in_steps(settings(after), observe).await;
        observe();
        target.crib.shutdown(Duration::ZERO).await;
        access.into_inner()
    }

    #[test]
    fn invalid_token_is_a_config_error() {
        let text = "[callers.a]\ntoken = 'x'\n[callers.b]\ntoken = 'x'";
        let config = Config::parse(Path::new("/x/config.toml"), text);
        let error = resolve_callers(&config, &secrets()).unwrap_err();
        assert_eq!(error.exit, ExitStatus::InvalidConfig);
        assert_eq!(error.message, "/x/config.toml:3:1: `callers.a` and `callers.b` have the same token");
    }

    const ONE: &str = "[callers.one]\ntoken = 'first'\n";
    const DENIED: &str = "[callers.two]\ntoken = 'second'\ndeny = ['house.*']\n";

    #[tokio::test]
    async fn new_caller_is_subject_to_its_rules_from_the_start() {
        let access = access_during_reload(ONE, &format!("{ONE}{DENIED}"), "second").await;
        assert!(!access.contains(&true), "{access:?}");
    }

    #[tokio::test]
    async fn removed_caller_is_subject_to_its_rules_until_the_end() {
        let access = access_during_reload(&format!("{ONE}{DENIED}"), ONE, "second").await;
        assert!(!access.contains(&true), "{access:?}");
        let access = access_during_reload(DENIED, ONE, "second").await;
        assert!(!access.contains(&true), "{access:?}");
    }

    #[tokio::test]
    async fn unchanged_caller_keeps_its_access_during_a_reload() {
        let access = access_during_reload(ONE, &format!("{ONE}{DENIED}"), "first").await;
        assert!(!access.contains(&false), "{access:?}");
    }
}
