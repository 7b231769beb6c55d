//! Services that all supervisors of a crib share: tasks, event channels, slots, cache, pins and secrets.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::Supervisor;
use super::slots::SlotPool;
use crate::access::pins::{PinStore, Pins};
use crate::access::visible_catalogs::VisibleCatalogs;
use crate::cache::ResponseCache;
use crate::call::client_declaration::ClientDeclaration;
use crate::model::event::{Event, ServerNotification};
use crate::model::listing::Listing;
use crate::model::log_line::LogSource;
use crate::observer::Observers;
use crate::observer::event_channel::EventChannel;
use crate::observer::log_sink::LogSink;
use crate::process::Spawner;
use crate::secrets::{KnownCallers, SecretStoreHandle};
use crate::spec::{Pinning, ServerId, ServerSpec};
use crate::util::change_counter::ChangeCounter;
use crate::util::clock::SuspendClock;
use crate::util::deferred_writes::DeferredWrites;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// Pause before the store is asked again which tools are approved.
const LOAD_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Tools that a log line names.
const MAX_LOGGED_TOOLS: usize = 20;

/// Services and shared state of all supervisors of a crib. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SupervisorServices {
    /// Owns all background tasks.
    pub(crate) tasks: TaskTracker,
    /// Receive the lifecycle events of servers.
    pub(crate) observers: Observers,
    /// Notifications from servers that belong to no call.
    pub(crate) notifications: EventChannel<ServerNotification>,
    /// Changes of listings, rules and servers that the catalog has to show.
    pub(crate) listing_changes: Arc<ChangeCounter>,
    /// Cancelled when draining servers must stop without waiting for their calls, and deferred writes must be made.
    pub(crate) abort_drain: CancellationToken,
    /// Files about servers that are written a moment later.
    pub(crate) writes: DeferredWrites,
    /// Starts child processes.
    pub(crate) spawner: Arc<Spawner>,
    /// Limits how many servers run.
    pub(crate) slots: Arc<SlotPool>,
    /// Servers that finish their calls before they stop.
    pub(crate) draining: Arc<DrainingSet>,
    /// Measures how long the machine was suspended.
    pub(crate) suspend_clock: SuspendClock,
    /// Cached responses of servers.
    pub(crate) cache: Arc<ResponseCache>,
    /// Receives the log lines of all servers.
    pub(crate) log: Option<LogSink>,
    /// Approved tool definitions.
    pub(crate) pins: Arc<PinStore>,
    /// The access rules, which decide whether a server may start without a call.
    pub(crate) access: Arc<VisibleCatalogs>,
    /// The client that servers see.
    pub(crate) declaration: Arc<ClientDeclaration>,
    /// Resolves secrets.
    pub(crate) secrets: Option<SecretStoreHandle>,
    /// The tokens with which callers authenticate.
    pub(crate) known_callers: KnownCallers,
    /// The logins to remote servers.
    #[cfg(feature = "http")]
    pub(crate) logins: Option<crate::oauth::Logins>,
}

impl SupervisorServices {
    /// Logs an event of a server and sends it to all observers and subscribers.
    pub(crate) fn emit(&self, server: &ServerId, event: Event) {
        if let Some(log) = &self.log {
            log.write(server, LogSource::Event(&event));
        }
        self.observers.send_server_event(event);
    }

    /// Compares a listing with the approved definitions and reports new differences. `is_complete` says whether it is
    /// the listing of the whole server rather than of one instance.
    pub(crate) fn check_pins(
        &self,
        spec: &ServerSpec,
        listing: &Arc<Listing>,
        is_complete: bool,
    ) -> Option<Arc<Pins>> {
        let pins = self.pins.for_server(spec)?;
        let server = &spec.id;
        let Some(check) = pins.check_changed_listing(listing, is_complete) else { return Some(pins) };
        if let Some(error) = check.read_error {
            warn!(%server, "nothing of it counts as approved: {error}");
        }
        if check.is_first {
            self.save_pins(server, pins.clone(), listing.clone());
        }
        if check.needs_load && pins.start_loading() {
            self.load_pins(server, pins.clone(), listing.clone());
        }
        if !check.newly_unapproved.is_empty() {
            let count = check.newly_unapproved.len();
            let first = check.newly_unapproved.iter().take(MAX_LOGGED_TOOLS);
            let mut tools: Vec<String> =
                first.map(|found| format!("{found} ({})", found.status.as_str())).collect();
            if count > tools.len() {
                tools.push(format!("and {} more", count - tools.len()));
            }
            let withheld = spec.pin == Pinning::Strict;
            warn!(
                %server,
                tools = tools.join(", "),
                withheld,
                "offers definitions that are not what was approved"
            );
            let tools = check.newly_unapproved;
            self.emit(server, Event::Unapproved { server: server.clone(), tools, withheld });
        }
        Some(pins)
    }

    fn save_pins(&self, server: &ServerId, pins: Arc<Pins>, listing: Arc<Listing>) {
        let name = server.clone();
        self.write_later(server, move || {
            if let Err(error) = pins.save_first_seen(&listing) {
                warn!(server = %name, %error, "cannot save its pinned definitions");
            }
        });
    }

    /// Writes a file about a server that no request waits for; see [`DeferredWrites`].
    pub(crate) fn write_later(&self, server: &ServerId, write: impl FnOnce() + Send + 'static) {
        self.writes.add(server.as_str(), write, &self.tasks, &self.abort_drain);
    }

    /// Writes a file about a server, after those that are to be written later.
    pub(crate) fn write_now(&self, server: &ServerId, write: impl FnOnce() + Send + 'static) {
        self.write_later(server, write);
        let writes = self.writes.clone();
        self.tasks.spawn_boxed(async move { writes.flush().await });
    }

    /// Asks the store which definitions are approved, until it answers. The listing is compared again then.
    fn load_pins(&self, server: &ServerId, pins: Arc<Pins>, listing: Arc<Listing>) {
        let server = server.clone();
        let listing_changes = self.listing_changes.clone();
        let stop = self.abort_drain.clone();
        self.tasks.spawn_boxed(async move {
            while let Err(error) = pins.load(&listing).await {
                warn!(%server, "nothing of it counts as approved: {error}");
                tokio::select! {
                    () = sleep(LOAD_RETRY_DELAY) => {}
                    () = stop.cancelled() => return,
                }
            }
            pins.finish_loading();
            listing_changes.report();
        });
    }

    /// Returns the current time plus the time the machine was suspended, for the expiry of cached data. The suspended
    /// time is in whole seconds, because the two clocks cannot be read at the same time.
    pub(crate) fn now_including_suspend(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.suspend_clock.total_suspended().as_secs())
    }
}

impl Default for SupervisorServices {
    fn default() -> Self {
        Self {
            tasks: TaskTracker::new(),
            observers: Observers::default(),
            notifications: EventChannel::default(),
            listing_changes: Arc::default(),
            abort_drain: CancellationToken::new(),
            writes: DeferredWrites::default(),
            spawner: Arc::default(),
            slots: Arc::new(SlotPool::new(usize::MAX)),
            draining: Arc::default(),
            suspend_clock: SuspendClock::default(),
            cache: Arc::default(),
            log: None,
            pins: Arc::default(),
            access: Arc::default(),
            declaration: Arc::default(),
            secrets: None,
            known_callers: KnownCallers::default(),
            #[cfg(feature = "http")]
            logins: None,
        }
    }
}

/// Supervisors that were replaced or removed, until they have finished their calls and stopped.
#[derive(Debug, Default)]
pub(crate) struct DrainingSet(Mutex<Vec<Supervisor>>);

impl DrainingSet {
    fn lock(&self) -> MutexGuard<'_, Vec<Supervisor>> {
        self.0.lock().ignore_poison()
    }

    pub(crate) fn all(&self) -> Vec<Supervisor> {
        self.lock().clone()
    }

    pub(super) fn add(&self, supervisor: Supervisor) {
        self.lock().push(supervisor);
    }

    pub(super) fn remove(&self, supervisor: &Supervisor) {
        let is_same = |other: &mut Supervisor| other.is_same(supervisor);
        let removed: Vec<Supervisor> = self.lock().extract_if(.., is_same).collect();
        // Dropping an embedder's in-process server may take a while and must not happen under the lock.
        drop(removed);
    }
}
