//! `CribBuilder`, which configures and builds a `Crib`.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Once, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::build_error::{BuildError, check_supported};
use super::catalog_publisher::{CatalogPublisher, spawn_catalog_publisher};
use super::handlers::{ClientOptions, spawn_notification_handler};
use super::saved_usage::SavedUsageFile;
use super::{Crib, CribInner, LISTINGS_FOLDER, ToolSearch};
use crate::access::approvals::Approvals;
use crate::access::expose::ExposeSettings;
use crate::access::pins::{PinStore, watch_pins};
use crate::access::policy::{GuardVerdict, Policy};
use crate::access::visible_catalogs::{Exposure, VisibleCatalogs};
use crate::cache::{CachePeers, ResponseCache, watch_peers};
use crate::call::executor::{ToolCall, ToolExecutor};
use crate::catalog::Catalog;
use crate::limits::limiter::Limiter;
use crate::limits::{CountedLimits, UsageLimits};
use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::model::log_line::LogLine;
use crate::model::outcome::Outcome;
use crate::observer::log_sink::LogSink;
use crate::observer::{Observer, Observers};
use crate::pipeline::discovery::{DEFAULT_LISTING_WAIT, Discoverer};
use crate::pipeline::router::{CallChecks, CallRouter};
use crate::pipeline::suspended_calls::SuspendedCalls;
use crate::process::{self, Spawner};
use crate::registry::Registry;
use crate::search::Embedder;
use crate::secrets::{SecretStore, SecretStoreHandle};

use crate::spec::{Capacity, FirstListingSettings, NameClash, Roster, ServerId, ServerSpec};
use crate::store::usage_file::{self, UsageFile};
use crate::store::{
    ContainedStore, MemoryStore, Replica, SigningKey, SigningKeyError, Store, StoreKind, StoreNotice,
};
use crate::supervisor::slots::SlotPool;
use crate::supervisor::{SupervisorServices, memory_watch};
use crate::util::tasks::SpawnBoxed as _;
use crate::util::{encoding, panics};

/// Servers that are called by their spec without being declared, unless the embedder sets another number.
const MAX_ADHOC: usize = 16;

/// Builds a [`Crib`].
///
/// ```no_run
/// use std::time::Duration;
/// use toolcrib::{Call, Capacity, CommandSpec, Crib, KeepAlive, Lifecycle, ServerSpec};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let command = CommandSpec::new("uvx").args(["mcp-server-git", "--repository", "."]).env("LC_ALL", "C");
/// let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::from_secs(60)), ..Lifecycle::default() };
/// let crib = Crib::builder()
///     .server(ServerSpec::command("git".parse()?, command).lifecycle(lifecycle))
///     .capacity(Capacity { servers: 8, ..Capacity::default() })
///     .state_dir("/var/lib/my-agent")
///     .build()?;
/// let outcome = crib.call(Call::tool("git_status").timeout(Duration::from_secs(10))).await?;
/// println!("{}", outcome.text());
/// crib.shutdown(Duration::from_secs(5)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct CribBuilder {
    roster: Roster,
    clash: Option<NameClash>,
    state_dir: Option<PathBuf>,
    pins_dir: Option<PathBuf>,
    shim: Option<PathBuf>,
    pub(super) listing_wait: Option<Duration>,
    pub(super) first_listing: FirstListingSettings,
    capacity: Capacity,
    policy: Policy,
    exposure: Option<Arc<dyn Exposure>>,
    embedder: Option<Arc<dyn Embedder>>,
    expose: ExposeSettings,
    limits: UsageLimits,
    usage_file: Option<PathBuf>,
    store: Option<Arc<dyn Store>>,
    signing_key: Option<SigningKey>,
    pub(super) replica: Option<Replica>,
    fallback: Option<Arc<dyn ToolExecutor>>,
    pub(super) client: ClientOptions,
    log: Option<LogSink>,
    observers: Vec<Arc<dyn Observer>>,
    secrets: Option<SecretStoreHandle>,
    max_adhoc_servers: Option<usize>,
    #[cfg(feature = "http")]
    pub(super) login_starter: Option<Arc<dyn crate::oauth::LoginStarter>>,
}

impl std::fmt::Debug for CribBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CribBuilder").field("roster", &self.roster).finish_non_exhaustive()
    }
}

impl CribBuilder {
    /// Adds a server.
    #[must_use]
    pub fn server(mut self, spec: ServerSpec) -> Self {
        if let Err(clash) = self.roster.add(spec) {
            self.clash.get_or_insert(clash);
        }
        self
    }

    /// Adds all servers of a roster.
    #[must_use]
    pub fn roster(self, roster: Roster) -> Self {
        roster.into_servers().fold(self, Self::server)
    }

    /// Sets the folder where listings and running processes are recorded. Processes that a killed crib left behind are
    /// ended when the next crib with this folder is built. Without a folder nothing is kept between runs.
    #[must_use]
    pub fn state_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(dir.into());
        self
    }

    /// Sets the folder of the approved tool definitions. The default is `pins` in the state folder. It is not used if
    /// [`CribBuilder::store`] is set.
    #[must_use]
    pub fn pins_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.pins_dir = Some(dir.into());
        self
    }

    /// Sets a program that runs between this process and each server. It ends the server and its whole process tree when
    /// this process ends for any reason. The program must call [`run_shim`](crate::run_shim) first in its `main`. Without a
    /// shim the server gets a parent-death signal, and processes that it started may survive. Only used on Linux.
    #[must_use]
    pub fn shim(mut self, program: impl Into<PathBuf>) -> Self {
        self.shim = Some(program.into());
        self
    }

    /// Like [`CribBuilder::shim`] with the program that is running, even after its file has been replaced. Its `main` must
    /// call [`run_shim`](crate::run_shim) first.
    ///
    /// ```no_run
    /// use std::process::ExitCode;
    /// use toolcrib::Crib;
    ///
    /// fn main() -> ExitCode {
    ///     if let Some(code) = toolcrib::run_shim() {
    ///         return code;
    ///     }
    ///     let runtime = tokio::runtime::Runtime::new().expect("cannot start a runtime");
    ///     runtime.block_on(async {
    ///         let _crib = Crib::builder().shim_self().build().expect("cannot build the crib");
    ///     });
    ///     ExitCode::SUCCESS
    /// }
    /// ```
    #[must_use]
    pub fn shim_self(self) -> Self {
        match process::own_program() {
            Some(program) => self.shim(program),
            None => self,
        }
    }

    /// Sets how many servers exist at the same time that are called by their spec without being declared; see
    /// [`Crib::call_spec`]. The default is 16.
    #[must_use]
    pub fn max_adhoc_servers(mut self, max: usize) -> Self {
        self.max_adhoc_servers = Some(max);
        self
    }

    /// Sets a function that receives every stderr line and event of each server. It must not block.
    #[must_use]
    pub fn log<F>(mut self, log: F) -> Self
    where
        F: Fn(LogLine<'_>) + Send + Sync + 'static,
    {
        self.log = Some(LogSink(Arc::new(log)));
        self
    }

    /// Sets the store that resolves `${secret:NAME}`. It is read when a connection starts, on a thread where it may block; a
    /// shutdown waits for it. The values are only held by that connection.
    #[must_use]
    pub fn secrets(mut self, store: impl SecretStore + 'static) -> Self {
        self.secrets = Some(SecretStoreHandle(Arc::new(store)));
        self
    }

    /// Adds an observer that receives the record of every call, including refused ones. Each observer can refuse calls
    /// that it could not record.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Sets the limits of all servers together. The default is no limit.
    #[must_use]
    pub fn capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets the access rules. The default allows every caller everything.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        let guard = self.policy.guard.take();
        self.policy = Policy { guard, ..policy };
        self
    }

    /// Sets what is listed to each caller. Without it, everything that a caller may call is listed.
    #[must_use]
    pub fn exposure(mut self, exposure: Arc<dyn Exposure>) -> Self {
        self.exposure = Some(exposure);
        self
    }

    /// Sets how a gateway lists tools to its clients. The default lists every tool.
    #[must_use]
    pub fn expose(mut self, expose: ExposeSettings) -> Self {
        self.expose = expose;
        self
    }

    /// Sets the function that supplies vectors for [`Crib::search`]. Without it, tools are found by their words alone.
    #[must_use]
    pub fn embedder(mut self, embedder: Arc<dyn Embedder>) -> Self {
        self.embedder = Some(embedder);
        self
    }

    /// Sets a function that decides in addition to the policy, by caller, server and the server's own name of a tool,
    /// prompt or resource; without a name it decides about the server as a whole. It is asked for every list and every call,
    /// before a server is started, and about the local caller before a server starts with the crib; no verdict is kept. It
    /// must not block. [`Crib::set_guard`] replaces it.
    #[must_use]
    pub fn guard<F>(mut self, guard: F) -> Self
    where
        F: Fn(&Caller, &ServerId, Option<&str>) -> GuardVerdict + Send + Sync + 'static,
    {
        self.policy.guard = Some(Arc::new(guard));
        self
    }

    /// Sets the usage limits of callers and clients. The default is no limit.
    #[must_use]
    pub fn limits(mut self, limits: UsageLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the file that keeps quota usage between runs. Without it every crib starts with no usage. It is not used if
    /// [`CribBuilder::store`] is set.
    #[must_use]
    pub fn usage_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.usage_file = Some(file.into());
        self
    }

    /// Sets the store that this crib shares with others: usage of limits, approvals, approved tool definitions, records of
    /// suspended calls and, if other processes use it, cached responses. The default is a [`MemoryStore`] of its own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroU32;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use toolcrib::store::{MemoryStore, Store};
    /// use toolcrib::{Call, Crib, ErrorKind, ServerSpec, Toolbox, UsageLimit, UsageLimits};
    ///
    /// # let schema = serde_json::json!({"type": "object"});
    /// # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
    /// # let house = ServerSpec::in_process("house".parse()?, tools);
    /// let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    /// let once = UsageLimit::quota(NonZeroU32::MIN, Duration::from_secs(60));
    /// let limits = UsageLimits { everyone: vec![once], ..UsageLimits::default() };
    /// let builder = || Crib::builder().server(house.clone()).limits(limits.clone()).store(store.clone());
    /// let first = builder().build()?;
    /// let second = builder().build()?;
    /// first.call(Call::tool("greet")).await?;
    /// let refused = second.call(Call::tool("greet")).await.unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::OverQuota);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the key that signs the states which stateless clients return. The default is a random key, so that a state is
    /// not recognized after a restart.
    #[must_use]
    pub fn signing_key(mut self, key: SigningKey) -> Self {
        self.signing_key = Some(key);
        self
    }

    /// Reads the signing key from a file, which is created with a random key if there is none. Blocks.
    ///
    /// # Errors
    /// Fails if the file cannot be read or created, or does not have a key that only its owner can read.
    pub fn signing_key_file(self, file: impl AsRef<Path>) -> Result<Self, SigningKeyError> {
        Ok(self.signing_key(SigningKey::open_or_create(file.as_ref())?))
    }

    /// Sets the function that runs tools by names that no server offers. It gets the arguments, the caller, the id of the
    /// call and its deadline; when the deadline has passed, its future is dropped.
    #[must_use]
    pub fn fallback<F, A>(self, fallback: F) -> Self
    where
        F: Fn(ToolCall) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        self.fallback_executor(fallback)
    }

    /// Like [`CribBuilder::fallback`] with any executor, such as another [`Crib`].
    #[must_use]
    pub fn fallback_executor(mut self, executor: impl ToolExecutor + 'static) -> Self {
        self.fallback = Some(Arc::new(executor));
        self
    }

    /// Builds the crib in the current tokio runtime, which needs timers and I/O.
    ///
    /// # Errors
    /// Fails if two servers have the same name, if a server is remote and the library was compiled without the feature
    /// `http`, if there is no suitable runtime, or if this program is to be its own shim and has not called
    /// [`run_shim`](crate::run_shim).
    pub fn build(mut self) -> Result<Crib, BuildError> {
        self.check()?;
        let store = self.store.take().map(|store| Arc::new(ContainedStore(store)) as Arc<dyn Store>);
        let usage_file = self.usage_file.take().filter(|_| store.is_none());
        let pins_dir = self.pins_dir.take().or_else(|| Some(self.state_dir.as_ref()?.join("pins")));
        let pins_dir = pins_dir.filter(|_| store.is_none());
        let memory = open_memory_store(&self.limits, usage_file.as_deref(), pins_dir.clone());
        let tasks = TaskTracker::new();
        let cache = Arc::new(open_cache(store.as_ref(), &tasks));
        cache.set_max_bytes(self.capacity.cache);
        let notices = store.as_ref().map(StoreNotices::watch);
        let store: Arc<dyn Store> = store.unwrap_or_else(|| memory.clone());
        let pins = Arc::new(PinStore::new(store.clone(), pins_dir, tasks.clone()));
        let stop_tasks = CancellationToken::new();
        let services = self.open_services(cache, pins, tasks, &stop_tasks);
        let listings_dir = self.state_dir.map(|dir| dir.join(LISTINGS_FOLDER));
        let max_adhoc = self.max_adhoc_servers.unwrap_or(MAX_ADHOC);
        let registry = Arc::new(Registry::new(listings_dir, max_adhoc, services.clone()));
        let _ = registry.apply(self.roster); // cannot fail: a new registry is not closed
        registry.set_limits_client_results(self.expose.limits_results());
        let listing_wait = self.listing_wait.unwrap_or(DEFAULT_LISTING_WAIT);
        let discoverer = Discoverer::new(&registry, &services, listing_wait, self.first_listing);
        let (catalog_sender, catalog) = watch::channel(Arc::new(Catalog::build(1, &registry.listings())));
        let catalog_sender = Arc::new(catalog_sender);
        if registry.has_unlisted_process() {
            // The first list starts them together.
            services.spawner.start_fork_server(&services.tasks);
        }
        let checks = CallChecks {
            visible_catalogs: services.access.clone(),
            limiter: Limiter::new(self.limits, store.clone(), services.tasks.clone()),
            approvals: Approvals::new(store.clone()),
        };
        let router = CallRouter::new(registry, catalog, services.clone(), checks, discoverer, self.fallback);
        #[cfg(feature = "http")]
        let router = super::logins::with_in_band_logins(router, self.login_starter, &stop_tasks);
        let inner = Arc::new(CribInner {
            router: Arc::new(router),
            catalog_publisher: CatalogPublisher::new(&catalog_sender),
            suspended: Arc::new(
                SuspendedCalls::new(store.clone(), self.signing_key, services.tasks.clone())
                    .with_replica(self.replica.map(Arc::new)),
            ),
            store,
            closing: AtomicBool::new(false),
            capacity: watch::Sender::new(self.capacity),
            stop_tasks,
            observers: services.observers,
            in_flight: TaskTracker::new(),
            stopping: Mutex::default(),
            observers_closed: Once::new(),
            search: ToolSearch::new(self.embedder),
            expose: RwLock::new(Arc::new(self.expose)),
            saved_usage: usage_file.map(|file| SavedUsageFile { memory, file: UsageFile::new(file) }),
        });
        spawn_watchers(&inner, notices, catalog_sender);
        spawn_notification_handler(&inner);
        Ok(Crib { inner })
    }

    /// Checks everything that can prevent a crib from being built.
    fn check(&self) -> Result<(), BuildError> {
        if let Some(clash) = &self.clash {
            return Err(clash.clone().into());
        }
        check_supported(&self.roster)?;
        check_runtime()?;
        match self.shim.as_deref().is_some_and(process::is_unprepared_shim) {
            true => Err(BuildError::ShimNotRun),
            false => Ok(()),
        }
    }

    /// Returns the logins to remote servers. They need a place for their tokens and for the lock of their renewal.
    #[cfg(feature = "http")]
    fn logins(&self) -> Option<crate::oauth::Logins> {
        let secrets = self.secrets.as_ref()?.0.clone();
        Some(crate::oauth::Logins::new(secrets, self.state_dir.as_ref()?))
    }

    /// Creates what all supervisors share, and takes its settings out of the builder.
    fn open_services(
        &mut self,
        cache: Arc<ResponseCache>,
        pins: Arc<PinStore>,
        tasks: TaskTracker,
        stop_tasks: &CancellationToken,
    ) -> SupervisorServices {
        let trees_dir = self.state_dir.as_ref().map(|dir| dir.join("trees"));
        let declaration = std::mem::take(&mut self.client).into_declaration(&tasks, stop_tasks);
        let policy = std::mem::take(&mut self.policy);
        SupervisorServices {
            cache,
            tasks,
            access: Arc::new(VisibleCatalogs::new(policy, self.exposure.take())),
            declaration: Arc::new(declaration),
            spawner: Arc::new(Spawner::new(self.shim.take(), trees_dir)),
            slots: Arc::new(SlotPool::new(self.capacity.servers)),
            log: self.log.take(),
            observers: Observers::new(std::mem::take(&mut self.observers)),
            pins,
            #[cfg(feature = "http")]
            logins: self.logins(),
            secrets: self.secrets.take(),
            ..SupervisorServices::default()
        }
    }
}

/// Checks that there is a runtime with timers and I/O. tokio has no function that tells, and panics where one is missing.
fn check_runtime() -> Result<(), BuildError> {
    if Handle::try_current().is_err() {
        return Err(BuildError::NoRuntime);
    }
    let has_timer = panics::contain("tokio timer", || drop(tokio::time::sleep(Duration::ZERO)));
    has_timer.ok_or(BuildError::NoTimer)?;
    let has_io = panics::contain("tokio I/O driver", open_socket);
    has_io.ok_or(BuildError::NoIo)
}

/// Opens and closes a socket, which panics without an I/O driver. An error of the socket itself does not matter.
fn open_socket() {
    #[cfg(unix)]
    drop(tokio::net::UnixDatagram::unbound());
    #[cfg(not(unix))]
    if let Ok(socket) = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)) {
        let _ = socket.set_nonblocking(true);
        drop(tokio::net::UdpSocket::from_std(socket));
    }
}

/// Creates a cache that announces its invalidations if the store is shared.
fn open_cache(store: Option<&Arc<dyn Store>>, tasks: &TaskTracker) -> ResponseCache {
    let cache = ResponseCache::default();
    match (store, encoding::random_hex()) {
        (Some(store), Some(replica)) => {
            cache.with_peers(CachePeers::new(store.clone(), replica, tasks.clone()))
        }
        _ => cache,
    }
}

/// The notices of a store that other cribs use, received before anything is read from it.
struct StoreNotices {
    responses: broadcast::Receiver<StoreNotice>,
    pins: broadcast::Receiver<StoreNotice>,
}

impl StoreNotices {
    fn watch(store: &Arc<dyn Store>) -> Self {
        Self { responses: store.watch(StoreKind::CachedResponse), pins: store.watch(StoreKind::Pin) }
    }

    /// Spawns the tasks that take over what other cribs change.
    fn spawn_watchers(self, services: &SupervisorServices, stop: &CancellationToken) {
        let cache = Arc::downgrade(&services.cache);
        services.tasks.spawn_boxed(watch_peers(cache, self.responses, stop.clone()));
        let pins = Arc::downgrade(&services.pins);
        let changes = services.listing_changes.clone();
        services.tasks.spawn_boxed(watch_pins(pins, self.pins, changes, stop.clone()));
    }
}

/// Creates a store that continues from the usage in the file and keeps approved tools in the folder.
fn open_memory_store(
    limits: &UsageLimits,
    usage_file: Option<&Path>,
    pins_dir: Option<PathBuf>,
) -> Arc<MemoryStore> {
    let memory = pins_dir.into_iter().fold(MemoryStore::default(), MemoryStore::with_pins_dir);
    if let Some(file) = usage_file {
        let limits = CountedLimits::new(limits.clone());
        memory.restore_usage(file, |caller, config_key| limits.named(caller, config_key));
    }
    Arc::new(memory)
}

fn spawn_usage_writer(inner: &CribInner, saved: &SavedUsageFile) {
    let used = saved.memory.usage_changed();
    let memory = Arc::downgrade(&saved.memory);
    let snapshot = move || Some(memory.upgrade()?.usage_snapshot());
    let writer = usage_file::save_on_change(saved.file.clone(), used, snapshot, inner.stop_tasks.clone());
    inner.router.services.tasks.spawn_boxed(writer);
}

/// Spawns the tasks that save usage, and that watch the store, the memory of servers, and their listings.
fn spawn_watchers(
    inner: &Arc<CribInner>,
    notices: Option<StoreNotices>,
    catalog: Arc<watch::Sender<Arc<Catalog>>>,
) {
    if let Some(saved) = &inner.saved_usage {
        spawn_usage_writer(inner, saved);
    }
    if let Some(notices) = notices {
        notices.spawn_watchers(&inner.router.services, &inner.stop_tasks);
    }
    spawn_memory_watch(inner);
    spawn_catalog_publisher(inner, catalog);
}

fn spawn_memory_watch(inner: &CribInner) {
    let router = Arc::downgrade(&inner.router);
    let servers = move || {
        let router = router.upgrade()?;
        Some(memory_watch::WatchedServers {
            supervisors: router.registry.supervisors(),
            any_limited: router.registry.has_memory_limit(),
        })
    };
    let watch = memory_watch::watch(servers, inner.capacity.subscribe(), inner.stop_tasks.clone());
    inner.router.services.tasks.spawn_boxed(watch);
}
