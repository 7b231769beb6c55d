//! `MemoryStore`: the default store, which keeps the state of one process in memory.

mod pin_files;
mod token_bucket;
mod usage;
pub(crate) mod usage_file;
mod values;
mod window;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use super::{
    Admission, CounterList, CounterUsage, ExpiringValue, LimitCounter, LimitRequest, ReservationToken, Store,
    StoreError, StoreKey, StoreKind, StoreNotice, StoreReply, StoreResult, StoredValue, UsageRelease,
};
use crate::model::caller::Caller;
use crate::util::locks::IgnorePoison as _;
use pin_files::PinFiles;
use usage::{SavedUsage, Usage};
use values::Values;

/// Notices that a watcher can lag behind.
const NOTICE_BUFFER: usize = 256;

/// A store in the memory of one process. Every reply is ready. Approved tools can be kept in files; only operations on these
/// block.
pub struct MemoryStore {
    kinds: [KindState; StoreKind::ALL.len()],
    usage: Mutex<Usage>,
    usage_changed: Arc<Notify>,
    /// The approved tools, if they are kept in files instead of in memory.
    pin_files: Option<PinFiles>,
    /// Reservation tokens are nanoseconds since this time.
    created_at: Instant,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
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
            pin_files: None,
            created_at: Instant::now(),
        }
    }
}

impl MemoryStore {
    /// Keeps approved tools in a folder, one file per server. Operations on them block.
    #[must_use]
    pub fn with_pins_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.pin_files = Some(PinFiles::new(dir.into()));
        self
    }

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

    /// Returns the files that hold the values of a kind instead of this store's memory.
    fn files(&self, kind: StoreKind) -> Option<&PinFiles> {
        self.pin_files.as_ref().filter(|_| kind == StoreKind::Pin)
    }

    fn take_value(&self, key: StoreKey<'_>) -> Result<Option<Bytes>, StoreError> {
        match self.files(key.kind) {
            Some(files) => files.take(key.name),
            None => Ok(self.kind(key.kind).lock().take(key.name, Instant::now())),
        }
    }

    /// Takes a value and, if there was one, calls `set` with the values of the other kind. Both kinds are locked, in an order
    /// that is always the same, so that no other operation sees a part of it.
    fn exchange(
        &self,
        taken: StoreKey<'_>,
        put: StoreKey<'_>,
        set: impl FnOnce(&mut Values, Instant),
    ) -> Option<Bytes> {
        let now = Instant::now();
        if taken.kind == put.kind {
            let mut values = self.kind(taken.kind).lock();
            let found = values.take(taken.name, now)?;
            set(&mut values, now);
            return Some(found);
        }
        let is_taken_first = (taken.kind as usize) < (put.kind as usize);
        let first = self.kind(if is_taken_first { taken.kind } else { put.kind });
        let second = self.kind(if is_taken_first { put.kind } else { taken.kind });
        let mut first = first.lock();
        let mut second = second.lock();
        let source = if is_taken_first { &mut first } else { &mut second };
        let found = source.take(taken.name, now)?;
        set(if is_taken_first { &mut second } else { &mut first }, now);
        Some(found)
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
    fn is_shared(&self) -> bool {
        false
    }

    fn get(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        if let Some(files) = self.files(key.kind) {
            return StoreReply::Ready(files.read(key.name));
        }
        ready(self.kind(key.kind).lock().get(key.name, Instant::now()))
    }

    fn get_with_ttl(&self, key: StoreKey<'_>) -> StoreResult<Option<ExpiringValue>> {
        if let Some(files) = self.files(key.kind) {
            let value = files.read(key.name);
            return StoreReply::Ready(
                value.map(|value| value.map(|value| ExpiringValue { value, ttl: None })),
            );
        }
        ready(self.kind(key.kind).lock().get_with_ttl(key.name, Instant::now()))
    }

    fn put(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<()> {
        if let Some(files) = self.files(key.kind) {
            return StoreReply::Ready(files.write(key.name, &value));
        }
        self.kind(key.kind).lock().put(key.name, value, ttl, Instant::now());
        ready(())
    }

    fn put_if_absent(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<bool> {
        if let Some(files) = self.files(key.kind) {
            return StoreReply::Ready(files.write_if_absent(key.name, &value));
        }
        let now = Instant::now();
        let mut values = self.kind(key.kind).lock();
        let is_absent = values.get(key.name, now).is_none();
        if is_absent {
            values.put(key.name, value, ttl, now);
        }
        ready(is_absent)
    }

    fn replace(
        &self,
        key: StoreKey<'_>,
        expected: &Bytes,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<bool> {
        if let Some(files) = self.files(key.kind) {
            return StoreReply::Ready(files.write_if_equal(key.name, expected, &value));
        }
        let now = Instant::now();
        let mut values = self.kind(key.kind).lock();
        let is_expected = values.get(key.name, now).is_some_and(|current| current == *expected);
        if is_expected {
            values.put(key.name, value, ttl, now);
        }
        ready(is_expected)
    }

    fn take(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        StoreReply::Ready(self.take_value(key))
    }

    fn take_and_put(
        &self,
        taken: StoreKey<'_>,
        put: StoreKey<'_>,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<Option<Bytes>> {
        if self.files(taken.kind).is_some() || self.files(put.kind).is_some() {
            let message = "values in files cannot be exchanged in one step";
            return StoreReply::Ready(Err(StoreError::new(message)));
        }
        ready(self.exchange(taken, put, |values, now| values.put(put.name, value, ttl, now)))
    }

    fn remove(&self, key: StoreKey<'_>) -> StoreResult<bool> {
        StoreReply::Ready(self.take_value(key).map(|value| value.is_some()))
    }

    fn list(&self, kind: StoreKind, prefix: &str) -> StoreResult<Vec<StoredValue>> {
        if let Some(files) = self.files(kind) {
            return StoreReply::Ready(files.list(prefix));
        }
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

#[cfg(test)]
mod tests;
