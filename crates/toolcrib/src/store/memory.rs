//! `MemoryStore`: the default store, which keeps the state of one process in memory.

mod token_bucket;
mod usage;
pub(crate) mod usage_file;
mod values;
mod window;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use super::{
    Admission, CounterList, CounterUsage, LimitCounter, LimitRequest, ReservationToken, Store, StoreKey,
    StoreKind, StoreNotice, StoreReply, StoreResult, StoredValue, UsageRelease,
};
use crate::model::caller::Caller;
use crate::util::locks::IgnorePoison as _;
use usage::{SavedUsage, Usage};
use values::Values;

/// Notices that a watcher can lag behind.
const NOTICE_BUFFER: usize = 256;

/// A store in the memory of one process. Every reply is ready.
#[derive(Debug)]
pub struct MemoryStore {
    kinds: [KindState; StoreKind::ALL.len()],
    usage: Mutex<Usage>,
    usage_changed: Arc<Notify>,
    /// Reservation tokens are nanoseconds since this time.
    created_at: Instant,
}

/// The values and watchers of one kind.
#[derive(Debug)]
struct KindState {
    values: Mutex<Values>,
    /// Created by the first watcher.
    notices: OnceLock<broadcast::Sender<StoreNotice>>,
}

impl KindState {
    fn new(kind: StoreKind) -> Self {
        Self { values: Mutex::new(Values::new(kind.max_values())), notices: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().ignore_poison()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            kinds: StoreKind::ALL.map(KindState::new),
            usage: Mutex::default(),
            usage_changed: Arc::default(),
            created_at: Instant::now(),
        }
    }
}

impl MemoryStore {
    /// Continues from the usage in a file. `find_counters` returns the counters of a caller's limits with a config key;
    /// usage of other limits is dropped.
    pub(crate) fn restore_usage(&self, file: &Path, find_counters: impl Fn(&str, &str) -> Vec<LimitCounter>) {
        let saved = usage_file::read(file);
        self.lock_usage().restore(saved, find_counters, Instant::now());
    }

    /// Returns the usage of every quota, to be saved.
    pub(crate) fn usage_snapshot(&self) -> Vec<SavedUsage> {
        self.lock_usage().snapshot(Instant::now())
    }

    /// Notified whenever usage changes.
    pub(crate) fn usage_changed(&self) -> Arc<Notify> {
        self.usage_changed.clone()
    }

    fn lock_usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().ignore_poison()
    }

    fn kind(&self, kind: StoreKind) -> &KindState {
        &self.kinds[kind as usize]
    }

    fn token(&self, send_at: Instant) -> ReservationToken {
        let since = send_at.saturating_duration_since(self.created_at);
        ReservationToken(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn send_time(&self, token: ReservationToken) -> Instant {
        self.created_at + Duration::from_nanos(token.0)
    }
}

fn ready<T>(value: T) -> StoreResult<T> {
    StoreReply::Ready(Ok(value))
}

impl Store for MemoryStore {
    fn get(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        ready(self.kind(key.kind).lock().get(key.name, Instant::now()))
    }

    fn put(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<()> {
        self.kind(key.kind).lock().put(key.name, value, ttl, Instant::now());
        ready(())
    }

    fn put_if_absent(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<bool> {
        let now = Instant::now();
        let mut values = self.kind(key.kind).lock();
        let is_absent = values.get(key.name, now).is_none();
        if is_absent {
            values.put(key.name, value, ttl, now);
        }
        ready(is_absent)
    }

    fn take(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        ready(self.kind(key.kind).lock().take(key.name, Instant::now()))
    }

    fn remove(&self, key: StoreKey<'_>) -> StoreResult<bool> {
        ready(self.kind(key.kind).lock().take(key.name, Instant::now()).is_some())
    }

    fn list(&self, kind: StoreKind, prefix: &str) -> StoreResult<Vec<StoredValue>> {
        ready(self.kind(kind).lock().list(prefix, Instant::now()))
    }

    fn reserve(&self, request: &LimitRequest<'_>) -> StoreResult<Admission> {
        let reserved = self.lock_usage().reserve(request);
        ready(match reserved {
            Ok(send_at) => {
                self.usage_changed.notify_one();
                let delay = send_at.saturating_duration_since(request.now);
                Admission::Admitted { delay, token: self.token(send_at) }
            }
            Err(refusal) => Admission::Refused(refusal),
        })
    }

    fn release(&self, release: &UsageRelease<'_>) -> StoreResult<()> {
        let send_at = self.send_time(release.token);
        self.lock_usage().release(release.caller, &release.counters, send_at);
        self.usage_changed.notify_one();
        ready(())
    }

    fn usage(
        &self,
        caller: &Caller,
        counters: &CounterList<'_>,
        now: Instant,
    ) -> StoreResult<Vec<CounterUsage>> {
        ready(self.lock_usage().usage(caller, counters, now))
    }

    fn callers(&self) -> StoreResult<Vec<Caller>> {
        ready(self.lock_usage().callers())
    }

    fn clear_usage(&self, caller: &Caller, counters: &CounterList<'_>) -> StoreResult<()> {
        self.lock_usage().clear(caller, counters);
        ready(())
    }

    fn publish(&self, key: StoreKey<'_>) -> StoreResult<()> {
        if let Some(notices) = self.kind(key.kind).notices.get() {
            // Fails if the last watcher has left.
            let _ = notices.send(StoreNotice::Changed(key.name.into()));
        }
        ready(())
    }

    fn watch(&self, kind: StoreKind) -> broadcast::Receiver<StoreNotice> {
        self.kind(kind).notices.get_or_init(|| broadcast::Sender::new(NOTICE_BUFFER)).subscribe()
    }
}
