//! The handle of a running gateway, and its reload.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolcrib::Crib;
use toolcrib::config::{Config, GatewayLimits, ListenSpec, StoreSpec};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib_serve::{HttpGateway, McpService};
use toolcrib_valkey::StoreStatus;

use super::dashboard_address::DashboardAddress;
use super::handover::HandoverRequests;
use super::settings::{GatewaySettings, SettingsTarget};
use super::{collected_metrics, shared_store, watch};
use crate::audit::Audit;
use crate::command_error::{CommandError, ProblemReport};
use crate::environment::used_variables;
use crate::exit::ExitStatus;
use crate::history::{CallHistory, GatewayEvent};
use crate::report::ReloadReport;
use crate::report::status::ConfigReport;
use crate::secrets::SecretLocator;
use crate::sources::{ConfigSources, ConfigStamp};
use crate::telemetry::{MetricFamily, Telemetry};

/// A running gateway: its servers, its config and how to reload it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct GatewayHandle(Arc<HandleInner>);

#[derive(Debug)]
struct HandleInner {
    target: SettingsTarget,
    service: Arc<McpService>,
    file: PathBuf,
    sources: ConfigSources,
    /// True if `toolcrib stdio` started it.
    auto_started: bool,
    started: Instant,
    loaded: Mutex<LoadedConfig>,
    /// The settings that need a restart, as they were at the start.
    listen: ListenSpec,
    limits: GatewayLimits,
    store_spec: StoreSpec,
    /// Serialises reloads and holds the last result. A reload that waited while another one started shares its result.
    last_reload: tokio::sync::Mutex<Option<Result<ReloadReport, CommandError>>>,
    /// Number of reloads that were started.
    reloads_started: AtomicU64,
    /// The HTTP side, which owns this handle, once it is open.
    http: OnceLock<Weak<HttpGateway>>,
    closing: CancellationToken,
    dashboard: DashboardAddress,
    handovers: HandoverRequests,
}

/// The config that was read last.
#[derive(Debug)]
struct LoadedConfig {
    generation: u64,
    problems: Vec<ProblemReport>,
    /// Stamp of the config that was read last, whether or not it was applied.
    stamp: ConfigStamp,
    /// The environment variables that it uses.
    variables: BTreeSet<String>,
}

/// A config as a reload read it.
struct ReadConfig {
    problems: Vec<ProblemReport>,
    variables: BTreeSet<String>,
    stamp: ConfigStamp,
    /// The settings, or the reason why they cannot be applied.
    settings: Result<GatewaySettings, CommandError>,
}

/// A config and its stamp.
pub(crate) struct StampedConfig<'a> {
    pub(crate) config: &'a Config,
    pub(crate) stamp: ConfigStamp,
}

impl GatewayHandle {
    /// Creates the handle of a gateway that runs this config.
    pub(super) fn new(
        target: SettingsTarget,
        service: &Arc<McpService>,
        sources: &ConfigSources,
        running: StampedConfig<'_>,
        auto_started: bool,
        dashboard: DashboardAddress,
    ) -> Self {
        let StampedConfig { config, stamp } = running;
        Self(Arc::new(HandleInner {
            target,
            service: service.clone(),
            file: config.file.clone(),
            sources: sources.clone(),
            auto_started,
            started: Instant::now(),
            loaded: Mutex::new(LoadedConfig {
                generation: 1,
                problems: problems(config),
                stamp,
                variables: used_variables(config),
            }),
            listen: config.listen.clone(),
            limits: config.limits.clone(),
            store_spec: config.store.clone(),
            last_reload: tokio::sync::Mutex::default(),
            reloads_started: AtomicU64::new(0),
            http: OnceLock::new(),
            closing: CancellationToken::new(),
            dashboard,
            handovers: HandoverRequests::default(),
        }))
    }

    /// Returns the requests of other processes to replace this gateway.
    pub(crate) fn handovers(&self) -> &HandoverRequests {
        &self.0.handovers
    }

    /// Returns the servers.
    pub(crate) fn crib(&self) -> &Crib {
        &self.0.target.crib
    }

    /// Returns the service of its clients.
    pub(crate) fn service(&self) -> &McpService {
        &self.0.service
    }

    /// Returns the secret store.
    pub(crate) fn secrets(&self) -> &SecretLocator {
        &self.0.target.secrets
    }

    /// Returns the audit file.
    pub(crate) fn audit(&self) -> &Audit {
        &self.0.target.audit
    }

    /// Returns what was observed about calls and servers.
    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.0.target.telemetry
    }

    /// Starts the export of spans and metrics, if the environment asks for it.
    fn start_export(&self) {
        let inner = Arc::downgrade(&self.0);
        let metrics = move || inner.upgrade().map(|inner| Self(inner).collect_metrics()).unwrap_or_default();
        self.telemetry().start_export(Arc::new(metrics));
    }

    /// Returns all metrics. Blocks, because it reads memory and CPU use from the system.
    pub(crate) fn collect_metrics(&self) -> Vec<MetricFamily> {
        collected_metrics::collect(self, self.http().map_or(0, |http| http.session_count()))
    }

    /// Returns the state of the store that it shares with other gateways, if there is one.
    pub(crate) fn store_status(&self) -> Option<StoreStatus> {
        self.0.target.store.as_ref().map(|store| store.status())
    }

    /// Logs and records each change of that state.
    pub(super) fn report_store_changes(&self) -> impl Future<Output = ()> + use<> {
        shared_store::report_changes(self.0.target.store.clone(), self.0.target.history.clone())
    }

    /// Returns the number of the config in use.
    pub(super) fn config_generation(&self) -> u64 {
        self.loaded().generation
    }

    /// Returns the files that make up the config.
    pub(crate) fn sources(&self) -> &ConfigSources {
        &self.0.sources
    }

    /// Returns the address of the dashboard.
    pub(crate) fn dashboard(&self) -> &DashboardAddress {
        &self.0.dashboard
    }

    /// Returns the history of calls and events.
    pub(crate) fn history(&self) -> &CallHistory {
        &self.0.target.history
    }

    /// Sets the HTTP side, and starts the export of spans and metrics.
    pub(super) fn set_http(&self, http: &Arc<HttpGateway>) {
        // There is one.
        let _ = self.0.http.set(Arc::downgrade(http));
        self.start_export();
    }

    /// Returns the HTTP side, which knows the clients.
    pub(crate) fn http(&self) -> Option<Arc<HttpGateway>> {
        self.0.http.get()?.upgrade()
    }

    /// Returns the time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// Returns the token that is cancelled when the gateway starts to stop.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// Reports the gateway as not ready from now on, and ends requests that wait for log lines.
    pub(crate) fn close(&self) {
        self.0.closing.cancel();
    }

    /// Returns the config in use and its problems, with the current problem of the audit file.
    pub(crate) fn config_report(&self) -> ConfigReport {
        let loaded = self.loaded();
        let target = &self.0.target;
        let tls_problem = target.tls.as_ref().and_then(|tls| tls.problem());
        let problems = loaded.problems.iter().cloned();
        let problems = problems.chain(target.audit.problem()).chain(tls_problem).collect();
        ConfigReport::new(&self.0.file, loaded.generation, problems)
    }

    /// Reads the config again and applies it. An invalid config changes nothing.
    pub(crate) async fn reload(&self) -> Result<ReloadReport, CommandError> {
        let started_before = self.0.reloads_started.load(Ordering::Acquire);
        let mut last_reload = self.0.last_reload.lock().await;
        let has_newer = self.0.reloads_started.load(Ordering::Acquire) > started_before;
        if let Some(result) = last_reload.as_ref().filter(|_| has_newer) {
            return result.clone();
        }
        self.0.reloads_started.fetch_add(1, Ordering::AcqRel);
        // A reload that is cancelled leaves no result to share.
        *last_reload = None;
        let result = self.load_and_apply().await;
        self.telemetry().record_reload(result.is_ok());
        let message = match &result {
            Ok(report) => report.summary(),
            Err(error) => format!("the config was not applied: {}", error.message),
        };
        self.history().record(GatewayEvent {
            kind: "reloaded",
            message: &message,
            ..GatewayEvent::default()
        });
        *last_reload = Some(result.clone());
        result
    }

    async fn load_and_apply(&self) -> Result<ReloadReport, CommandError> {
        let inner = self.0.clone();
        let loading = tokio::task::spawn_blocking(move || {
            let (config, stamp) = inner.sources.load_consistent();
            let settings = GatewaySettings::from_config(&config, &inner.target.secrets);
            let settings = settings.and_then(|settings| inner.target.check(&settings).map(|()| settings));
            ReadConfig { problems: problems(&config), variables: used_variables(&config), stamp, settings }
        });
        let read = loading.await.map_err(|error| {
            CommandError::new(ExitStatus::Failure, "unexpected", format!("cannot read the config: {error}"))
        })?;
        // Recorded first: `apply` uses the new roster immediately, but may then wait for calls to end.
        let ReadConfig { problems, variables, stamp, settings } = read;
        let generation = self.record_loaded(problems, stamp, settings.is_ok().then_some(variables));
        let settings = settings?;
        let restart_needed = settings.needs_restart(&self.0.listen, &self.0.limits, &self.0.store_spec);
        let changes = self.0.target.apply(settings).await?;
        Ok(ReloadReport::new(generation, &changes, restart_needed))
    }

    /// Records the config that was read, and returns the number of the config in use.
    fn record_loaded(
        &self,
        problems: Vec<ProblemReport>,
        stamp: ConfigStamp,
        used_variables: Option<BTreeSet<String>>,
    ) -> u64 {
        let mut loaded = self.loaded();
        loaded.problems = problems;
        loaded.stamp = stamp;
        // Only a valid config is used.
        if let Some(variables) = used_variables {
            loaded.variables = variables;
            loaded.generation += 1;
        }
        loaded.generation
    }

    /// Returns whether `toolcrib stdio` started it.
    pub(crate) fn is_auto_started(&self) -> bool {
        self.0.auto_started
    }

    /// Returns the environment variables that its config uses.
    pub(crate) fn used_variables(&self) -> BTreeSet<String> {
        self.loaded().variables.clone()
    }

    /// Waits until the config files differ from those read last.
    pub(crate) async fn config_changed(&self) {
        let read_stamp = || async {
            let sources = self.0.sources.clone();
            let last = self.loaded().stamp.clone();
            tokio::task::spawn_blocking(move || sources.stamp()).await.unwrap_or(last)
        };
        watch::wait_for_change(|| self.loaded().stamp.clone(), read_stamp).await;
    }

    fn loaded(&self) -> MutexGuard<'_, LoadedConfig> {
        self.0.loaded.lock().ignore_poison()
    }
}

fn problems(config: &Config) -> Vec<ProblemReport> {
    config.problems.iter().map(ProblemReport::new).collect()
}

#[cfg(test)]
impl GatewayHandle {
    /// Creates the handle of a gateway whose config is one file, without listeners.
    pub(crate) fn for_test(crib: Crib, file: &std::path::Path) -> Self {
        Self::for_test_with(crib, file, Arc::new(CallHistory::disabled()))
    }

    /// Like [`GatewayHandle::for_test`], with a history that the crib has as an observer.
    pub(crate) fn for_test_with(crib: Crib, file: &std::path::Path, history: Arc<CallHistory>) -> Self {
        use toolcrib_serve::ActiveCallers;

        use super::peer_check::PeerCheck;
        use super::settings::resolve_callers;
        use crate::paths::Paths;
        let sources = ConfigSources::single_file(file);
        let (config, stamp) = sources.load_consistent();
        let secrets = SecretLocator::new(&Paths::under(std::path::Path::new("/nowhere")), &config.secrets);
        let callers = resolve_callers(&config, &secrets).unwrap();
        let target = SettingsTarget {
            crib,
            callers: Arc::new(ActiveCallers::new(callers)),
            secrets,
            audit: Arc::new(Audit::new(None).unwrap()),
            telemetry: Arc::new(Telemetry::new(config.metrics, None)),
            history,
            is_exposed: false,
            peer_check: PeerCheck::AnyUser,
            tls: None,
            store: None,
        };
        let service = Arc::new(McpService::new(target.crib.clone()));
        let running = StampedConfig { config: &config, stamp };
        Self::new(target, &service, &sources, running, false, DashboardAddress::new(None, true))
    }
}
