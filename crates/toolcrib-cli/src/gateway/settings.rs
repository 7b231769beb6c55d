//! Everything that a config sets in a running gateway, as one value.

use std::sync::Arc;

use toolcrib::config::{
    AuditSpec, Config, GatewayLimits, HistorySpec, ListenSpec, SecretBackend, StoreSpec, TlsSpec,
};
use toolcrib::{Crib, CribBuilder, RosterChanges, Settings};
use toolcrib_serve::{ActiveCallers, Callers};
use toolcrib_valkey::ValkeyStore;

use super::peer_check::PeerCheck;
use super::shared_store::StoreSettings;
use super::tls::ServerTls;
use crate::audit::Audit;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::history::CallHistory;
use crate::secrets::SecretLocator;
use crate::telemetry::Telemetry;

/// The settings of a gateway, resolved and checked.
#[derive(Debug)]
pub(super) struct GatewaySettings {
    /// Servers, access rules, usage limits and capacity.
    pub(super) settings: Settings,
    pub(super) callers: Callers,
    pub(super) secrets: SecretBackend,
    pub(super) audit: Option<AuditSpec>,
    /// True if calls are counted and `/metrics` is served.
    pub(super) metrics: bool,
    pub(super) history: HistorySpec,
    pub(super) listen: ListenSpec,
    pub(super) limits: GatewayLimits,
    /// The store that it shares with other gateways, which is opened once.
    pub(super) store: StoreSettings,
    pub(super) store_spec: StoreSpec,
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
        let secrets = secrets.with_backend(&config.secrets);
        let store = StoreSettings::from_config(config, &secrets);
        Ok(Self {
            settings: library_settings(config),
            callers: resolve_callers(config, &secrets)?,
            secrets: config.secrets.clone(),
            audit: config.audit.clone(),
            metrics: config.metrics,
            history: config.history.clone(),
            listen: config.listen.clone(),
            limits: config.limits.clone(),
            store: store.map_err(|problem| CommandError::config_problem(&problem))?,
            store_spec: config.store.clone(),
        })
    }

    /// Returns whether these settings take effect only after a restart of a gateway that was opened with the others.
    pub(super) fn needs_restart(
        &self,
        listen: &ListenSpec,
        limits: &GatewayLimits,
        store: &StoreSpec,
    ) -> bool {
        // The maximum call timeout is applied with the roster, and the waits of lists before it.
        let own_limits = GatewayLimits {
            call_timeout_max: limits.call_timeout_max,
            listing_wait: limits.listing_wait,
            first_listing: limits.first_listing.clone(),
            ..self.limits.clone()
        };
        // Other files of TLS are read without a restart.
        let tls = match (&self.listen.tls, &listen.tls) {
            (Some(_), Some(old)) => Some(old.clone()),
            (new, _) => new.clone(),
        };
        let own_listen = ListenSpec { tls, ..self.listen.clone() };
        own_limits != *limits || own_listen != *listen || !self.store_spec.is_same(store)
    }
}

/// Resolves the tokens of the declared callers. May block on a secret store.
///
/// # Errors
/// If a token cannot be resolved, two callers have the same token, or a file with keys of an issuer cannot be used.
pub(super) fn resolve_callers(config: &Config, secrets: &SecretLocator) -> Result<Callers, CommandError> {
    let callers = Callers::resolve(&config.callers, |name| secrets.find(name));
    let checked = toolcrib::identity::check_key_files(&config.issuers);
    let callers = checked.and(callers).map_err(|problem| CommandError::config_problem(&problem))?;
    Ok(callers.with_issuers(config))
}

/// Returns whether the arguments of calls are recorded.
pub(super) fn records_arguments(audit: Option<&AuditSpec>) -> bool {
    audit.is_some_and(|audit| audit.arguments)
}

/// Returns the part of a config that the library applies.
pub(super) fn library_settings(config: &Config) -> Settings {
    Settings::new(config.roster.clone())
        .policy(config.policy.clone())
        .expose(config.expose.clone())
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
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) history: Arc<CallHistory>,
    /// True if other machines can reach the gateway, so that callers must be declared.
    pub(super) is_exposed: bool,
    /// Tells connections of other users apart, which needs callers where it is not available.
    pub(super) peer_check: PeerCheck,
    /// TLS of the public address.
    pub(super) tls: Option<Arc<ServerTls>>,
    /// The store that it shares with other gateways.
    pub(super) store: Option<Arc<ValkeyStore>>,
}

impl SettingsTarget {
    /// Checks that the settings can be applied. Changes nothing.
    ///
    /// # Errors
    /// If other machines or unknown users can reach the gateway and no callers are declared, or the audit file cannot be
    /// opened and is required.
    pub(super) fn check(&self, settings: &GatewaySettings) -> Result<(), CommandError> {
        if self.is_exposed && settings.callers.is_empty() {
            let message =
                "the gateway is reachable from other machines, but no `callers` or `issuers` are declared";
            let error = CommandError::new(ExitStatus::InvalidConfig, "config_invalid", message);
            return Err(error.hint("declare at least one caller"));
        }
        self.peer_check.check_available(!settings.callers.is_empty())?;
        self.audit.prepare(settings.audit.as_ref())
    }

    /// Reads the files of TLS again. A gateway that serves plain HTTP needs a restart for TLS, and the other way round.
    async fn reload_tls(&self, spec: Option<TlsSpec>) {
        if let (Some(tls), Some(spec)) = (self.tls.clone(), spec) {
            // A panic has been logged.
            let _ = tokio::task::spawn_blocking(move || tls.reload(&spec)).await;
        }
    }

    /// Applies settings that were checked.
    ///
    /// # Errors
    /// If the gateway is being shut down.
    ///
    /// # Cancel safety
    /// The settings are in force when this is first polled; dropping the future only skips waiting for the catalog, for the
    /// files of TLS and for the store.
    pub(super) async fn apply(&self, settings: GatewaySettings) -> Result<RosterChanges, CommandError> {
        let GatewaySettings { settings, callers, secrets, audit, metrics, history, limits, listen, .. } =
            settings;
        self.history.apply(history, records_arguments(audit.as_ref()));
        self.audit.apply(audit);
        self.telemetry.set_serves_metrics(metrics);
        self.crib.set_listing_wait(limits.listing_wait);
        self.crib.set_first_listing(limits.first_listing);
        // Requests are served meanwhile: callers, rules and limits change together, and new servers come last, so that no
        // caller uses a server under rules that do not name it.
        let revocations = self.callers.replace(callers, || {
            self.crib.set_policy(settings.policy.clone());
            self.crib.set_limits(settings.limits.clone());
        });
        self.secrets.set_backend(secrets);
        // The next reload must not wait for a slow start.
        let (changes, stored, ()) = tokio::join!(
            self.crib.apply_without_boot(settings),
            revocations.wait(),
            self.reload_tls(listen.tls),
        );
        self.crib.begin_discovery();
        if let Err(error) = stored {
            tracing::warn!("other gateways may still accept callers that were removed or changed: {error}");
        }
        Ok(changes?)
    }
}

/// Sets how long lists wait for servers.
pub(super) fn with_waits(builder: CribBuilder, limits: &GatewayLimits) -> CribBuilder {
    builder.listing_wait(limits.listing_wait).first_listing(limits.first_listing.clone())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use hyper::HeaderMap;
    use hyper::header::{AUTHORIZATION, HeaderValue};
    use toolcrib::{Call, Caller, ErrorKind, ServerId};
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
            telemetry: Arc::new(Telemetry::new(false, None)),
            history: Arc::new(CallHistory::disabled()),
            is_exposed: false,
            peer_check: PeerCheck::AnyUser,
            tls: None,
            store: None,
        }
    }

    fn house() -> ServerId {
        "house".parse().unwrap()
    }

    /// Returns the caller with this token, if it may use the gateway now.
    fn authenticate(target: &SettingsTarget, token: &str) -> Option<Caller> {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        Some(target.callers.authenticate(&Entrypoint::Tcp.into(), &headers)?.caller.clone())
    }

    /// Applies two configs in turn, many times, while another thread makes requests with this token. Returns whether a
    /// request was ever allowed to use `house`, and whether one was ever refused.
    async fn access_during_reloads(first: &str, second: &str, token: &'static str) -> ObservedAccess {
        let target = Arc::new(target(settings(first)));
        let is_done = Arc::new(AtomicBool::new(false));
        let observer = thread::spawn({
            let target = target.clone();
            let is_done = is_done.clone();
            move || {
                let mut observed = ObservedAccess::default();
                while !is_done.load(Ordering::Relaxed) {
                    let caller = authenticate(&target, token);
                    let can_use = caller.is_some_and(|caller| target.crib.can_see(&caller, &house()));
                    observed.allowed |= can_use;
                    observed.refused |= !can_use;
                }
                observed
            }
        });
        for round in 0..RELOADS {
            target.apply(settings(if round % 2 == 0 { second } else { first })).await.unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        let observed = observer.join().unwrap();
        target.crib.shutdown(Duration::ZERO).await;
        observed
    }

    #[derive(Debug, Default)]
    struct ObservedAccess {
        allowed: bool,
        refused: bool,
    }

    #[test]
    fn invalid_token_is_a_config_error() {
        let text = "[callers.a]\ntoken = 'x'\n[callers.b]\ntoken = 'x'";
        let config = Config::parse(Path::new("/x/config.toml"), text);
        let error = resolve_callers(&config, &secrets()).unwrap_err();
        assert_eq!(error.exit, ExitStatus::InvalidConfig);
        assert_eq!(error.message, "/x/config.toml:3:1: `callers.a` and `callers.b` have the same token");
    }

    /// Enough for a request to meet the moment between two steps of a reload.
    const RELOADS: usize = 500;
    const ONE: &str = "[callers.one]\ntoken = 'first'\n";
    const DENIED: &str = "[callers.two]\ntoken = 'second'\ndeny = ['house.*']\n";

    #[tokio::test]
    async fn new_caller_is_subject_to_its_rules_from_the_start() {
        let access = access_during_reloads(ONE, &format!("{ONE}{DENIED}"), "second").await;
        assert!(!access.allowed);
        let access = access_during_reloads(DENIED, ONE, "second").await;
        assert!(!access.allowed);
    }

    #[tokio::test]
    async fn caller_that_is_removed_after_authentication_is_denied() {
        let target = target(settings(&format!("{ONE}{DENIED}")));
        let kept = authenticate(&target, "first").unwrap();
        let removed = authenticate(&target, "second").unwrap();
        target.apply(settings(ONE)).await.unwrap();
        assert!(target.crib.can_see(&kept, &house()));
        assert!(!target.crib.can_see(&removed, &house()), "its rules were removed with it");
        assert_eq!(target.crib.catalog_for(&removed).servers().count(), 0);
        let error = target.crib.call(Call::tool_on(house(), "x").caller(removed)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        target.crib.shutdown(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn caller_whose_rights_changed_is_authenticated_again() {
        let declared = "[callers.two]\ntoken = 'second'\ndeny = ['house.x']\n";
        let target = target(settings(declared));
        let before = authenticate(&target, "second").unwrap();
        target.apply(settings(&format!("{declared}admin = true\n"))).await.unwrap();
        let visible_to = |caller: &Caller| target.crib.catalog_for(caller).servers().count();
        assert_eq!(visible_to(&before), 0);
        let after = authenticate(&target, "second").unwrap();
        assert_eq!((visible_to(&after), visible_to(&before)), (1, 0), "both have the same name");
        target.crib.shutdown(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn unchanged_caller_keeps_its_access_during_a_reload() {
        let access = access_during_reloads(ONE, &format!("{ONE}{DENIED}"), "first").await;
        assert!(!access.refused);
    }
}
