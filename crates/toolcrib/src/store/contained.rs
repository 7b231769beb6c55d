//! An embedder's store whose panics are errors.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::{
    Admission, CounterList, CounterUsage, ExpiringValue, LimitRequest, Store, StoreError, StoreKey,
    StoreKind, StoreNotice, StoreReply, StoreResult, StoredValue, UsageRelease,
};
use crate::model::caller::Caller;
use crate::util::panics;

/// Wraps a store; an operation that panics fails.
#[derive(Debug)]
pub(crate) struct ContainedStore(pub(crate) Arc<dyn Store>);

impl ContainedStore {
    fn run<T: Send + 'static>(&self, operation: impl FnOnce(&dyn Store) -> StoreResult<T>) -> StoreResult<T> {
        let panicked = || Err(StoreError::new("the store panicked"));
        match panics::contain("store", || operation(&*self.0)) {
            Some(StoreReply::Ready(reply)) => StoreReply::Ready(reply),
            Some(StoreReply::Pending(reply)) => StoreReply::Pending(Box::pin(async move {
                panics::contain_future("store", reply).await.unwrap_or_else(panicked)
            })),
            None => StoreReply::Ready(panicked()),
        }
    }
}

impl Store for ContainedStore {
    /// Returns false if the store panics.
    fn is_shared(&self) -> bool {
        panics::contain("store", || self.0.is_shared()).unwrap_or(false)
    }

    fn get_with_ttl(&self, key: StoreKey<'_>) -> StoreResult<Option<ExpiringValue>> {
        self.run(|store| store.get_with_ttl(key))
    }

    fn take_and_put(
        &self,
        taken: StoreKey<'_>,
        put: StoreKey<'_>,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<Option<Bytes>> {
        self.run(|store| store.take_and_put(taken, put, value, ttl))
    }

    fn get(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        self.run(|store| store.get(key))
    }

    fn put(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<()> {
        self.run(|store| store.put(key, value, ttl))
    }

    fn put_if_absent(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<bool> {
        self.run(|store| store.put_if_absent(key, value, ttl))
    }

    fn replace(
        &self,
        key: StoreKey<'_>,
        expected: &Bytes,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<bool> {
        self.run(|store| store.replace(key, expected, value, ttl))
    }

    fn take(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        self.run(|store| store.take(key))
    }

    fn remove(&self, key: StoreKey<'_>) -> StoreResult<bool> {
        self.run(|store| store.remove(key))
    }

    fn list(&self, kind: StoreKind, prefix: &str) -> StoreResult<Vec<StoredValue>> {
        self.run(|store| store.list(kind, prefix))
    }

    fn reserve(&self, request: &LimitRequest<'_>) -> StoreResult<Admission> {
        self.run(|store| store.reserve(request))
    }

    fn release(&self, release: &UsageRelease<'_>) -> StoreResult<()> {
        self.run(|store| store.release(release))
    }

    fn usage(
        &self,
        caller: &Caller,
        counters: &CounterList<'_>,
        now: Instant,
    ) -> StoreResult<Vec<CounterUsage>> {
        self.run(|store| store.usage(caller, counters, now))
    }

    fn callers(&self) -> StoreResult<Vec<Caller>> {
        self.run(<dyn Store>::callers)
    }

    fn clear_usage(&self, caller: &Caller, counters: &CounterList<'_>) -> StoreResult<()> {
        self.run(|store| store.clear_usage(caller, counters))
    }

    fn publish(&self, key: StoreKey<'_>) -> StoreResult<()> {
        self.run(|store| store.publish(key))
    }

    /// Returns a closed receiver if the store panics.
    fn watch(&self, kind: StoreKind) -> broadcast::Receiver<StoreNotice> {
        panics::contain("store", || self.0.watch(kind)).unwrap_or_else(|| broadcast::channel(1).1)
    }
}
