//! The store that gateways share, as `[store]` declares it.

use std::sync::Arc;

use tokio::task::{JoinHandle, spawn_blocking};
use toolcrib::CribBuilder;
use toolcrib::config::{Config, Position, Problem, ProblemScope, StoreSpec};
use toolcrib::spec::template::{TemplateText, UnresolvedReference};
use toolcrib::store::{Replica, SigningKey, SigningKeyError};
use toolcrib_valkey::{StoreState, StoreStatus, StoreUrl, ValkeyOptions, ValkeyStore};
use zeroize::Zeroizing;

use crate::command_error::CommandError;
use crate::history::{CallHistory, GatewayEvent};
use crate::paths::Paths;
use crate::secrets::SecretLocator;
use crate::telemetry::{MetricFamily, MetricUnit};

/// A hint for a signing key.
const KEY_HINT: &str = "generate one with `openssl rand -hex 32`, and use the same for every gateway";

/// A hint for the address of a gateway.
const ADDRESS_HINT: &str = "write `address = \"http://HOST:PORT\"`, where the other gateways reach this one";

/// A hint for a URL.
const URL_HINT: &str = "write `url = \"valkey://HOST:PORT\"`";

/// `[store]` with its references resolved.
#[derive(Debug, Default)]
pub(super) struct StoreSettings {
    /// The servers; without them, state is kept in memory and files.
    server: Option<StoreServers>,
    /// The key that signs states which clients return.
    key: Option<SigningKey>,
    /// The URL at which other gateways reach this one.
    address: Option<String>,
}

#[derive(Debug)]
struct StoreServers {
    url: StoreUrl,
    options: ValkeyOptions,
}

impl StoreSettings {
    /// Resolves the section. May block on a secret store.
    ///
    /// # Errors
    /// If a reference has no value, the URL is invalid, or the key is too short.
    pub(super) fn from_config(config: &Config, secrets: &SecretLocator) -> Result<Self, Box<Problem>> {
        let spec = &config.store;
        let key = match &spec.key {
            Some(key) => Some(parse_key(config, &expand(config, "key", key, secrets)?)?),
            None => None,
        };
        let server = match &spec.url {
            Some(url) => Some(parse_servers(config, &expand(config, "url", url, secrets)?)?),
            None => None,
        };
        let address = match (&spec.address, &key) {
            (Some(address), Some(key)) => {
                let address = expand(config, "address", address, secrets)?;
                Some(parse_address(config, &address, key)?)
            }
            _ => None,
        };
        Ok(Self { server, key, address })
    }

    /// Adds the store and the configured signing key to a crib. The store connects in the background. Other gateways forward requests to
    /// the configured address, or to the one that the gateway listens on.
    ///
    /// # Errors
    /// If TLS cannot be used.
    pub(super) fn open(
        self,
        builder: CribBuilder,
        listen_address: Option<String>,
    ) -> Result<OpenedStore, CommandError> {
        let address = self.address.or(listen_address).filter(|_| self.server.is_some());
        let replica = self.key.as_ref().zip(address);
        let replica = replica.and_then(|(key, address)| Replica::new(&address, key.clone()).ok());
        if self.server.is_some() && replica.is_none() {
            tracing::warn!(
                "requests for sessions are not forwarded between gateways; set `store.key` and `store.address`"
            );
        }
        let builder = self.key.into_iter().fold(builder, CribBuilder::signing_key);
        let builder = replica.into_iter().fold(builder, CribBuilder::replica);
        let Some(StoreServers { url, options }) = self.server else {
            return Ok(OpenedStore { builder, store: None });
        };
        let store = ValkeyStore::connect(url, options).map_err(|error| CommandError::unexpected(&error))?;
        let store = Arc::new(store);
        Ok(OpenedStore { builder: builder.store(store.clone()), store: Some(store) })
    }
}

/// The signing key of the state folder, which is being read or created on a thread for blocking work, because a new key is synced to
/// disk.
pub(super) struct LoadingKey(Option<JoinHandle<Result<SigningKey, SigningKeyError>>>);

impl LoadingKey {
    /// Starts to read or create the key, unless the config sets one.
    pub(super) fn start(paths: &Paths, config: &Config) -> Self {
        let file = paths.signing_key_file();
        let is_configured = config.store.key.is_some();
        Self((!is_configured).then(|| spawn_blocking(move || SigningKey::open_or_create(&file))))
    }

    /// Waits for the key. Without one the gateway works, but does not recognize states from before a restart.
    pub(super) async fn finish(self) -> Result<Option<SigningKey>, CommandError> {
        let Some(loading) = self.0 else { return Ok(None) };
        let loaded = loading.await.map_err(|error| CommandError::unexpected(&error))?;
        let warn = |error: &SigningKeyError| {
            tracing::warn!("calls that wait for input will not be recognized after a restart: {error}");
        };
        Ok(loaded.inspect_err(warn).ok())
    }
}

/// A crib with its store, if it shares one with other gateways.
pub(super) struct OpenedStore {
    pub(super) builder: CribBuilder,
    pub(super) store: Option<Arc<ValkeyStore>>,
}

/// Returns a note if requests for sessions are forwarded to this gateway only with the right listener.
pub(crate) fn find_forwarding_note(config: &Config) -> Option<Problem> {
    let spec = &config.store;
    if spec.url.is_none() || spec.key.is_none() || spec.address.is_some() {
        return None;
    }
    let message = "requests for sessions are forwarded to this gateway only if `serve --listen` names an address that other \
                   machines can reach, because `store.address` is not set";
    let problem = problem(config, message.to_owned(), ADDRESS_HINT);
    Some(Problem { scope: ProblemScope::Note, ..*problem })
}

/// Returns a problem of `[store]`, if its references or values cannot be used.
pub(crate) fn find_store_problem(config: &Config, secrets: &SecretLocator) -> Option<Problem> {
    StoreSettings::from_config(config, secrets).err().map(|problem| *problem)
}

/// Connects to the store of a config. Returns `None` if it has none, else the servers, or the reason why they cannot be used.
pub(crate) async fn probe_store(config: &Config, secrets: &SecretLocator) -> Option<Result<String, String>> {
    let settings = match StoreSettings::from_config(config, secrets) {
        Ok(settings) => settings,
        Err(problem) => return Some(Err(problem.to_string())),
    };
    let StoreServers { url, options } = settings.server?;
    let shown = url.to_string();
    let store = match ValkeyStore::connect(url, options) {
        Ok(store) => store,
        Err(error) => return Some(Err(error.to_string())),
    };
    match store.watch_state().next().await {
        Some(StoreState::Down(reason)) => Some(Err(reason)),
        _ => Some(Ok(shown)),
    }
}

fn parse_key(config: &Config, key: &str) -> Result<SigningKey, Box<Problem>> {
    SigningKey::from_bytes(key.as_bytes())
        .map_err(|error| problem(config, format!("`store.key`: {error}"), KEY_HINT))
}

fn parse_address(config: &Config, address: &str, key: &SigningKey) -> Result<String, Box<Problem>> {
    match Replica::new(address, key.clone()) {
        Ok(replica) => Ok(replica.address().to_owned()),
        Err(error) => Err(problem(config, format!("`store.address`: {error}"), ADDRESS_HINT)),
    }
}

fn parse_servers(config: &Config, url: &str) -> Result<StoreServers, Box<Problem>> {
    match url.parse() {
        Ok(url) => Ok(StoreServers { url, options: options(&config.store) }),
        Err(error) => Err(problem(config, format!("`store.url`: {error}"), URL_HINT)),
    }
}

fn options(spec: &StoreSpec) -> ValkeyOptions {
    let mut options = ValkeyOptions::default();
    options.prefix.clone_from(&spec.prefix);
    options.limit_lease = spec.limit_lease;
    options.connect_timeout = spec.connect_timeout;
    options.operation_timeout = spec.timeout;
    options
}

fn expand(
    config: &Config,
    key: &str,
    text: &TemplateText,
    secrets: &SecretLocator,
) -> Result<Zeroizing<String>, Box<Problem>> {
    text.expand(|name| secrets.find(name)).map(Zeroizing::new).map_err(|error| {
        let hint = match &error {
            UnresolvedReference::Secret(name, error) => error.hint(name),
            _ => "give it a value".to_owned(),
        };
        problem(config, format!("`store.{key}`: {error}"), &hint)
    })
}

fn problem(config: &Config, message: String, hint: &str) -> Box<Problem> {
    let origin = config.store.origin.as_ref();
    Box::new(Problem {
        file: origin.map_or_else(|| config.file.clone(), |origin| origin.file.clone()),
        position: origin.map(|origin| Position { line: origin.line, column: 1 }),
        scope: ProblemScope::WholeConfig,
        message,
        hint: Some(hint.to_owned()),
    })
}

/// Logs and records each change of the store's state, if there is a store.
pub(super) async fn report_changes(store: Option<Arc<ValkeyStore>>, history: Arc<CallHistory>) {
    let Some(store) = store else { return };
    let url = store.status().url;
    let mut changes = store.watch_state();
    let report = |kind, message: &str| {
        history.record(GatewayEvent { kind, server: "", caller: "", message });
    };
    while let Some(state) = changes.next().await {
        match state {
            StoreState::Down(reason) => {
                tracing::warn!("the store `{url}` is down: {reason}");
                report("store_down", &reason);
            }
            _ => {
                tracing::info!("the store `{url}` is up");
                report("store_up", &format!("connected to `{url}`"));
            }
        }
    }
}

/// Returns the metrics of the store.
pub(super) fn families(status: &StoreStatus) -> [MetricFamily; 4] {
    let mut up = MetricFamily::gauge("toolcrib.store.up", "Whether the shared store is connected: 1 or 0.");
    up.add_count(&[], u64::from(status.state == StoreState::Up));
    let mut operations =
        MetricFamily::counter("toolcrib.store.operations", "Operations of the shared store that succeeded.");
    operations.add_count(&[], status.operations);
    let mut duration = MetricFamily::counter(
        "toolcrib.store.operation.duration",
        "Time that the successful operations of the shared store took, together.",
    )
    .with_unit(MetricUnit::Seconds);
    duration.add(&[], status.duration.as_secs_f64());
    let mut failures =
        MetricFamily::counter("toolcrib.store.failures", "Operations of the shared store that failed.");
    failures.add_count(&[], status.failures);
    [up, operations, duration, failures]
}
