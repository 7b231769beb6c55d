//! Lists servers that were never listed, in the background.
//!
//! A request for a list only asks for these listings; one task per server obtains them. A few servers start at the same
//! time, in the order in which they were asked for. A start that takes long makes room for the next one, so that servers
//! that hang cannot hide others. A server that fails is tried again with backoff, within its restart budget. Access rules
//! are asked before every start: one of the callers that asked for the listing must still be allowed to see the server.
//!
//! Lists wait for the first attempt of a server only, and within limits that count from its start: a server that hangs or
//! fails delays the first clients, and no later ones.

mod first_attempts;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::debug;

use self::first_attempts::FirstAttempts;
use crate::access::visible_catalogs::VisibleCatalogs;
use crate::catalog::Catalog;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::protocol::versions::Era;
use crate::registry::{RegisteredServer, Registry, RosterChanges};
use crate::spec::{FirstListingSettings, FirstListingWait, ServerId, Sharing};
use crate::supervisor::SupervisorServices;
use crate::util::change_counter::ChangeCounter;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// The time that a list waits for lists that are out of date, unless it is set.
pub(crate) const DEFAULT_LISTING_WAIT: Duration = Duration::from_millis(300);
/// The number of servers that are started in parallel to be listed.
const MAX_PARALLEL_STARTS: usize = 16;
/// A start that takes longer than this does not count as one of the parallel starts.
const COUNTED_START: Duration = Duration::from_secs(2);
/// The wait before the first new attempt; it doubles with each one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest wait before a new attempt.
const MAX_RETRY: Duration = Duration::from_secs(60);
/// The number of callers that are remembered for one discovery. The latest ones are kept.
const MAX_REQUESTERS: usize = 64;

/// The owner of all discoveries of a crib. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Discoverer {
    shared: Arc<DiscoveryShared>,
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// The part of a [`Discoverer`] that its tasks use. They hold no server between two attempts.
#[derive(Debug)]
struct DiscoveryShared {
    registry: Weak<Registry>,
    access: Arc<VisibleCatalogs>,
    listing_changes: Arc<ChangeCounter>,
    permits: Semaphore,
    running: Mutex<BTreeMap<ServerId, DiscoveryProgress>>,
    first_attempts: Mutex<FirstAttempts>,
    /// Changed when a discovery fails or ends.
    changed: watch::Sender<()>,
    listing_wait: Mutex<Duration>,
    first_listing: RwLock<Arc<FirstListingSettings>>,
}

/// The discovery of one server.
#[derive(Debug)]
struct DiscoveryProgress {
    /// The era of the first client that asked, in which the server is started.
    era: Era,
    /// Whether the listing is wanted without a caller that asked for it.
    is_unasked: bool,
    /// The callers that asked for the listing.
    requesters: Vec<Caller>,
    /// The last failed start.
    failure: Option<Error>,
    /// True once an attempt with all its restarts has failed.
    has_ended: bool,
    /// Notified when the server was replaced, so that the next attempt need not wait.
    replaced: Arc<Notify>,
}

/// The state of a server that is not in the catalog yet.
#[derive(Debug)]
pub(crate) enum DiscoveryState {
    /// Its first start has not ended.
    Pending,
    /// Its first start failed, and it is being restarted.
    Restarting(Error),
    /// It cannot be started now.
    Failed(Error),
}

/// The end of an attempt to list a server.
enum AttemptEnd {
    Listed,
    /// The server may no longer be seen by a caller that asked for the listing.
    Denied,
    Failed(Error),
}

impl Discoverer {
    pub(crate) fn new(
        registry: &Arc<Registry>,
        services: &SupervisorServices,
        listing_wait: Duration,
        first_listing: FirstListingSettings,
    ) -> Self {
        let stop = CancellationToken::new();
        let shared = DiscoveryShared {
            registry: Arc::downgrade(registry),
            access: services.access.clone(),
            listing_changes: services.listing_changes.clone(),
            permits: Semaphore::new(MAX_PARALLEL_STARTS),
            running: Mutex::default(),
            first_attempts: Mutex::default(),
            changed: watch::Sender::new(()),
            listing_wait: Mutex::new(listing_wait),
            first_listing: RwLock::new(Arc::new(first_listing)),
        };
        let _stop_on_drop = stop.clone().drop_guard();
        Self { shared: Arc::new(shared), tasks: services.tasks.clone(), stop, _stop_on_drop }
    }

    /// Returns the time that a list waits for lists that are out of date.
    pub(crate) fn listing_wait(&self) -> Duration {
        *self.shared.listing_wait.lock().ignore_poison()
    }

    pub(crate) fn set_listing_wait(&self, wait: Duration) {
        *self.shared.listing_wait.lock().ignore_poison() = wait;
    }

    /// Returns how long clients wait for servers that were never listed.
    pub(crate) fn first_listing(&self) -> Arc<FirstListingSettings> {
        self.shared.first_listing.read().ignore_poison().clone()
    }

    pub(crate) fn set_first_listing(&self, settings: FirstListingSettings) {
        *self.shared.first_listing.write().ignore_poison() = Arc::new(settings);
    }

    /// Ends all discoveries and starts no more.
    pub(crate) fn close(&self) {
        self.stop.cancel();
    }

    /// Asks for the listings of servers that have none, on behalf of a caller that may see them. An ejected server is not
    /// started.
    pub(crate) fn request(&self, caller: &Caller, era: Era, servers: &[RegisteredServer]) {
        self.begin(servers, era, |progress| progress.add_requester(caller));
    }

    /// Lists servers that were never listed without being asked, as far as no caller is needed for that and the rules let
    /// anyone see them.
    pub(crate) fn begin_unasked(&self, servers: &[RegisteredServer]) {
        let mut servers = servers.to_vec();
        servers.retain(|entry| {
            let spec = entry.spec();
            spec.sharing != Sharing::PerCaller && self.shared.access.can_start_unasked(&spec.id)
        });
        self.begin(&servers, Era::Session, |progress| progress.is_unasked = true);
    }

    fn begin(&self, servers: &[RegisteredServer], era: Era, ask: impl Fn(&mut DiscoveryProgress)) {
        if self.stop.is_cancelled() {
            return;
        }
        let now = Instant::now();
        for entry in servers.iter().filter(|entry| entry.needs_discovery(now) && !entry.is_ejected()) {
            let server = entry.spec().id.clone();
            if let Some(replaced) = self.shared.begin(&server, era, &ask) {
                self.tasks.spawn_boxed(run(self.shared.clone(), server, replaced, self.stop.clone()));
            }
        }
    }

    /// Lets servers that were replaced try again without waiting, and lists wait for them again.
    pub(crate) fn roster_changed(&self, changes: &RosterChanges) {
        changes.changed.iter().chain(&changes.added).for_each(|server| self.renew(server));
        changes.removed.iter().for_each(|server| self.shared.first_attempts().forget(server));
    }

    /// Lets a server try again without waiting, and lists wait for it again.
    pub(crate) fn renew(&self, server: &ServerId) {
        let mut running = self.shared.lock();
        self.shared.first_attempts().renew(server, Instant::now());
        running.get_mut(server).into_iter().for_each(DiscoveryProgress::renew);
    }

    /// Lets all servers that failed try again without waiting, and lists wait for them again.
    pub(crate) fn renew_all(&self) {
        let mut running = self.shared.lock();
        self.shared.first_attempts().renew_all(Instant::now());
        running.values_mut().filter(|progress| progress.failure.is_some()).for_each(DiscoveryProgress::renew);
    }

    /// Returns whether a server that has not failed is being discovered and has no listing yet.
    pub(crate) fn expects_listings(&self) -> bool {
        let running = self.shared.lock();
        let without_failure = running.iter().filter(|(_, progress)| progress.failure.is_none());
        let servers: Vec<ServerId> = without_failure.map(|(server, _)| server.clone()).collect();
        drop(running);
        servers.iter().any(|server| self.shared.find_unlisted(server).is_some())
    }

    /// Returns the state of a server that is not in the catalog.
    pub(crate) fn state(&self, entry: &RegisteredServer) -> DiscoveryState {
        let running = self.shared.lock();
        let progress = running.get(&entry.spec().id);
        let is_renewed = progress.is_some() && self.shared.first_attempts().is_renewed(&entry.spec().id);
        let earlier = || if is_renewed { None } else { entry.start_failure() };
        let failure = progress.and_then(|progress| progress.failure.clone()).or_else(earlier);
        match (failure, progress) {
            (Some(failure), Some(progress)) if !progress.has_ended => DiscoveryState::Restarting(failure),
            (Some(failure), _) => DiscoveryState::Failed(failure),
            (None, Some(_)) => DiscoveryState::Pending,
            // The catalog is about to change.
            (None, None) if entry.listing().is_some() => DiscoveryState::Pending,
            (None, None) if self.stop.is_cancelled() => {
                DiscoveryState::Failed(Error::new(ErrorKind::ShuttingDown, "toolcrib is shutting down"))
            }
            (None, None) => DiscoveryState::Failed(not_started_error(&entry.spec().id)),
        }
    }

    /// Waits until no server is both missing from the catalog and awaited. `time_left` returns how much longer a server in a
    /// state is awaited.
    pub(crate) async fn wait_while(
        &self,
        servers: &[RegisteredServer],
        mut catalog: watch::Receiver<Arc<Catalog>>,
        time_left: impl Fn(&ServerId, &DiscoveryState) -> Duration,
    ) {
        let mut changed = self.shared.changed.subscribe();
        loop {
            let current = catalog.borrow_and_update().clone();
            changed.mark_unchanged();
            let mut longest = Duration::ZERO;
            let mut all_listed = true;
            for entry in servers.iter().filter(|entry| current.is_undiscovered(&entry.spec().id)) {
                let left = time_left(&entry.spec().id, &self.state(entry));
                longest = longest.max(left);
                all_listed &= left.is_zero() || entry.listing().is_some();
            }
            if longest.is_zero() {
                return;
            }
            if all_listed {
                self.shared.listing_changes.apply_now();
            }
            tokio::select! {
                changed = catalog.changed() => if changed.is_err() { return },
                _ = changed.changed() => {}
                () = sleep(longest) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Waits for the first attempts to list servers, as long as this request does.
    pub(crate) async fn wait_for_first_attempts(
        &self,
        servers: &[RegisteredServer],
        catalog: watch::Receiver<Arc<Catalog>>,
        wait: FirstListingWait,
    ) {
        let deadline = Instant::now() + wait.request;
        let time_left = |server: &ServerId, state: &DiscoveryState| match state {
            DiscoveryState::Pending => {
                self.time_left(server, wait).min(deadline.saturating_duration_since(Instant::now()))
            }
            DiscoveryState::Restarting(_) | DiscoveryState::Failed(_) => Duration::ZERO,
        };
        self.wait_while(servers, catalog, time_left).await;
    }

    /// Returns how much longer lists wait for the first attempt of a server.
    pub(crate) fn time_left(&self, server: &ServerId, wait: FirstListingWait) -> Duration {
        self.shared.first_attempts().time_left(server, wait, Instant::now())
    }
}

/// Discovers one server until it is listed or a further attempt is pointless.
async fn run(shared: Arc<DiscoveryShared>, server: ServerId, replaced: Arc<Notify>, stop: CancellationToken) {
    let _running = RunningDiscovery { shared: &shared, server: &server, replaced };
    tokio::select! {
        () = shared.discover(&server) => {}
        () = stop.cancelled() => {}
    }
}

/// Removes the progress of a discovery when it ends.
struct RunningDiscovery<'a> {
    shared: &'a DiscoveryShared,
    server: &'a ServerId,
    /// Identifies the progress of this discovery.
    replaced: Arc<Notify>,
}

impl Drop for RunningDiscovery<'_> {
    fn drop(&mut self) {
        let mut running = self.shared.lock();
        let is_own = |progress: &DiscoveryProgress| Arc::ptr_eq(&progress.replaced, &self.replaced);
        if running.get(self.server).is_some_and(is_own) {
            running.remove(self.server);
        }
        drop(running);
        self.shared.changed.send_replace(());
    }
}

impl DiscoveryShared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ServerId, DiscoveryProgress>> {
        self.running.lock().ignore_poison()
    }

    fn first_attempts(&self) -> MutexGuard<'_, FirstAttempts> {
        self.first_attempts.lock().ignore_poison()
    }

    /// Records that a discovery begins, and returns what is notified when the server is replaced. Returns `None` if one is
    /// running. `ask` records who wants the listing.
    fn begin(
        &self,
        server: &ServerId,
        era: Era,
        ask: impl Fn(&mut DiscoveryProgress),
    ) -> Option<Arc<Notify>> {
        match self.lock().entry(server.clone()) {
            Entry::Occupied(mut running) => {
                ask(running.get_mut());
                None
            }
            Entry::Vacant(vacant) => {
                self.first_attempts().request(server);
                let progress = vacant.insert(DiscoveryProgress {
                    era,
                    is_unasked: false,
                    requesters: Vec::new(),
                    failure: None,
                    has_ended: false,
                    replaced: Arc::default(),
                });
                ask(progress);
                Some(progress.replaced.clone())
            }
        }
    }

    /// Returns the latest caller that asked for the listing and may see the server now, or the local one if the listing is
    /// wanted unasked. If none may, the discovery is removed, so that a later request begins another one.
    fn find_allowed_requester(&self, server: &ServerId) -> Option<Caller> {
        loop {
            let progress = self.lock();
            let is_unasked = progress.get(server)?.is_unasked;
            let requesters = progress.get(server)?.requesters.clone();
            drop(progress);
            // Without the lock, because this may call the embedder's guard.
            let allowed = requesters.iter().rev().find(|caller| self.access.can_see(caller, server));
            if let Some(caller) = allowed {
                return Some(caller.clone());
            }
            if is_unasked && self.access.can_start_unasked(server) {
                return Some(Caller::local());
            }
            let mut running = self.lock();
            let has_same_requesters = |progress: &DiscoveryProgress| {
                progress.requesters.len() == requesters.len()
                    && progress.requesters.iter().zip(&requesters).all(|(a, b)| is_same_caller(a, b))
            };
            if running.get(server).is_some_and(has_same_requesters) {
                running.remove(server);
                return None;
            }
        }
    }

    async fn discover(&self, server: &ServerId) {
        let mut retry_wait = FIRST_RETRY;
        loop {
            let permit = self.permits.acquire().await.ok();
            let Some(entry) = self.find_unlisted(server) else { return };
            let end = match self.find_allowed_requester(server) {
                Some(caller) => {
                    self.first_attempts().start(server, Instant::now());
                    self.attempt(server, &entry, &caller, permit).await
                }
                None => AttemptEnd::Denied,
            };
            let error = match end {
                AttemptEnd::Listed => {
                    self.first_attempts().record_answer(server, Instant::now());
                    return;
                }
                AttemptEnd::Denied => {
                    debug!(%server, "not listed, because access to it is denied");
                    return;
                }
                AttemptEnd::Failed(error) => error,
            };
            if error.kind() == ErrorKind::ShuttingDown {
                if self.is_replaced(&entry) {
                    continue;
                }
                return;
            }
            let next_attempt = next_attempt(&entry, &error, retry_wait, Instant::now());
            drop(entry);
            debug!(%server, %error, "cannot be listed");
            let replaced = self.record_failure(server, error, true);
            let Some(next_attempt) = next_attempt else { return };
            retry_wait = (retry_wait * 2).min(MAX_RETRY);
            tokio::select! {
                () = sleep_until(next_attempt) => {}
                () = replaced.notified() => retry_wait = FIRST_RETRY,
            }
        }
    }

    /// Starts a server, and waits for restarts as long as its supervisor does. Every failure is recorded immediately, and
    /// access is checked before the restart. The permit is released early if the start takes long.
    async fn attempt(
        &self,
        server: &ServerId,
        entry: &RegisteredServer,
        caller: &Caller,
        mut permit: Option<SemaphorePermit<'_>>,
    ) -> AttemptEnd {
        let era = self.lock().get(server).map_or(Era::Session, |progress| progress.era);
        let mut start = std::pin::pin!(entry.discover(caller, era));
        let mut failure = std::pin::pin!(entry.failure_after(entry.failure_count()));
        let mut counted = std::pin::pin!(sleep(COUNTED_START));
        loop {
            tokio::select! {
                biased;
                listed = &mut start => return listed.map_or_else(AttemptEnd::Failed, |()| AttemptEnd::Listed),
                error = &mut failure => {
                    self.record_failure(server, error, false);
                    if self.find_allowed_requester(server).is_none() {
                        return AttemptEnd::Denied;
                    }
                    failure.set(entry.failure_after(entry.failure_count()));
                }
                () = &mut counted, if permit.is_some() => permit = None,
            }
        }
    }

    /// Returns a server that is enabled and has to be started to be listed.
    fn find_unlisted(&self, server: &ServerId) -> Option<RegisteredServer> {
        let entry = self.registry.upgrade()?.get(server)?.ok()?;
        entry.needs_discovery(Instant::now()).then_some(entry)
    }

    fn is_replaced(&self, entry: &RegisteredServer) -> bool {
        self.registry.upgrade().is_some_and(|registry| registry.is_replaced(entry))
    }

    /// Records a failed start, and returns what is notified when the server is replaced. `has_ended` says whether it was the
    /// last start of an attempt.
    fn record_failure(&self, server: &ServerId, error: Error, has_ended: bool) -> Arc<Notify> {
        let mut running = self.lock();
        self.first_attempts().record_failure(server);
        let replaced = match running.get_mut(server) {
            Some(progress) => {
                progress.failure = Some(error);
                progress.has_ended |= has_ended;
                progress.replaced.clone()
            }
            None => Arc::default(),
        };
        drop(running);
        self.changed.send_replace(());
        replaced
    }
}

impl DiscoveryProgress {
    fn renew(&mut self) {
        self.failure = None;
        self.has_ended = false;
        self.replaced.notify_one();
    }

    fn add_requester(&mut self, caller: &Caller) {
        if self.requesters.iter().any(|requester| is_same_caller(requester, caller)) {
            return;
        }
        if self.requesters.len() == MAX_REQUESTERS {
            self.requesters.remove(0);
        }
        self.requesters.push(caller.clone());
    }
}

/// Returns whether two callers have the same name and the same profile, so that the same rules apply to them.
fn is_same_caller(one: &Caller, other: &Caller) -> bool {
    one == other && one.profile() == other.profile()
}

/// Returns the error of a server that was not started, because access to it was denied in the meantime.
fn not_started_error(server: &ServerId) -> Error {
    let message = format!("`{server}` was not started: access to it is denied");
    Error::new(ErrorKind::Denied, message).with_server(server)
}

/// Returns when a server is tried again after a failure; `None` if that would not help.
fn next_attempt(entry: &RegisteredServer, error: &Error, wait: Duration, now: Instant) -> Option<Instant> {
    let is_retried = error.class().is_none_or(|class| class.facts().retried_in_background);
    if entry.is_ejected() || !is_retried {
        return None;
    }
    let gate_opens = entry.retry_at(now).unwrap_or(now);
    Some(gate_opens.max(now + wait))
}
