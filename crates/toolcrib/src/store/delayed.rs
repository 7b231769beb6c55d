//! `DelayedStore`: a store for tests that answers every operation later, from another task. The integration tests of the
//! library and the tests of `toolcrib-serve` include this file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{
    Admission, Caller, CounterList, CounterUsage, ExpiringValue, LimitCounter, LimitRequest, MemoryStore,
    Store, StoreError, StoreKey, StoreKind, StoreNotice, StoreReply, StoreResult, StoredValue, UsageRelease,
};

type Operation = Box<dyn FnOnce(&MemoryStore) + Send>;

/// A memory store behind a queue, which counts as shared. Its clock is that of its own task.
#[derive(Debug)]
pub(crate) struct DelayedStore {
    operations: mpsc::UnboundedSender<Operation>,
    memory: Arc<MemoryStore>,
    is_failing: AtomicBool,
}

impl DelayedStore {
    pub(crate) fn new() -> Self {
        let memory = Arc::new(MemoryStore::default());
        let (operations, queue) = mpsc::unbounded_channel();
        TaskTracker::new().spawn(run(queue, memory.clone()));
        Self { operations, memory, is_failing: AtomicBool::new(false) }
    }

    /// Makes every later operation fail, or work again.
    pub(crate) fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Ordering::Relaxed);
    }

    fn start<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&MemoryStore) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        if self.is_failing.load(Ordering::Relaxed) {
            return StoreReply::Pending(Box::pin(async {
                yield_now().await;
                Err(StoreError::new("connection refused"))
            }));
        }
        let (sender, receiver) = oneshot::channel();
        let queued = self.operations.send(Box::new(move |memory| {
            let StoreReply::Ready(reply) = operation(memory) else { return };
            // Fails if the reply was dropped.
            let _ = sender.send(reply);
        }));
        assert!(queued.is_ok(), "the task of the store runs");
        StoreReply::Pending(Box::pin(async move {
            receiver.await.unwrap_or_else(|_| Err(StoreError::new("the store was dropped")))
        }))
    }
}

async fn run(mut queue: mpsc::UnboundedReceiver<Operation>, memory: Arc<MemoryStore>) {
    while let Some(operation) = queue.recv().await {
        yield_now().await;
        operation(&memory);
    }
}

/// A key that outlives the call of a method.
struct OwnedKey {
    kind: StoreKind,
    name: String,
}

impl OwnedKey {
    fn new(key: StoreKey<'_>) -> Self {
        Self { kind: key.kind, name: key.name.to_owned() }
    }

    fn as_key(&self) -> StoreKey<'_> {
        StoreKey::new(self.kind, &self.name)
    }
}

fn owned(counters: &CounterList<'_>) -> Vec<LimitCounter> {
    counters.iter().cloned().collect()
}

impl Store for DelayedStore {
    fn is_shared(&self) -> bool {
        true
    }

    fn get(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        let key = OwnedKey::new(key);
        self.start(move |memory| memory.get(key.as_key()))
    }

    fn get_with_ttl(&self, key: StoreKey<'_>) -> StoreResult<Option<ExpiringValue>> {
        let key = OwnedKey::new(key);
        self.start(move |memory| memory.get_with_ttl(key.as_key()))
    }

    fn put(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<()> {
        let key = OwnedKey::new(key);
        self.start(move |memory| memory.put(key.as_key(), value, ttl))
    }

    fn put_if_absent(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<bool> {
        let key = OwnedKey::new(key);
        self.start(move |memory| memory.put_if_absent(key.as_key(), value, ttl))
    }

    fn replace(
        &self,
        key: StoreKey<'_>,
        expected: &Bytes,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<bool> {
        let key = OwnedKey::new(key);
        let expected = expected.clone();
        self.start(move |memory| memory.replace(key.as_key(), &expected, value, ttl))
    }

    fn take(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        let key = OwnedKey::new(key);
        self.start(move |memory| memory.take(key.as_key()))
    }

    fn take_and_put(
        &self,
        taken: StoreKey<'_>,
        put: StoreKey<'_>,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<Option<Bytes>> {
        let taken = OwnedKey::new(taken);
        let put = OwnedKey::new(put);
        self.start(move |memory| memory.take_and_put(taken.as_key(), put.as_key(), value, ttl))
    }

    fn remove(&self, key: StoreKey<'_>) -> StoreResult<bool> {
        let key = OwnedKey::new(key);
        self.start(move |memory| memory.remove(key.as_key()))
    }

    fn list(&self, kind: StoreKind, prefix: &str) -> StoreResult<Vec<StoredValue>> {
        let prefix = prefix.to_owned();
        self.start(move |memory| memory.list(kind, &prefix))
    }

    fn reserve(&self, request: &LimitRequest<'_>) -> StoreResult<Admission> {
        let caller = request.caller.clone();
        let counters = owned(&request.counters);
        let max_wait = request.max_wait;
        self.start(move |memory| {
            let counters = counters.iter().collect();
            memory.reserve(&LimitRequest { caller: &caller, counters, max_wait, now: Instant::now() })
        })
    }

    fn release(&self, release: &UsageRelease<'_>) -> StoreResult<()> {
        let caller = release.caller.clone();
        let counters = owned(&release.counters);
        let token = release.token;
        self.start(move |memory| {
            let counters = counters.iter().collect();
            memory.release(&UsageRelease { caller: &caller, counters, token })
        })
    }

    fn usage(
        &self,
        caller: &Caller,
        counters: &CounterList<'_>,
        _now: Instant,
    ) -> StoreResult<Vec<CounterUsage>> {
        let caller = caller.clone();
        let counters = owned(counters);
        self.start(move |memory| memory.usage(&caller, &counters.iter().collect(), Instant::now()))
    }

    fn callers(&self) -> StoreResult<Vec<Caller>> {
        self.start(MemoryStore::callers)
    }

    fn clear_usage(&self, caller: &Caller, counters: &CounterList<'_>) -> StoreResult<()> {
        let caller = caller.clone();
        let counters = owned(counters);
        self.start(move |memory| memory.clear_usage(&caller, &counters.iter().collect()))
    }

    fn publish(&self, key: StoreKey<'_>) -> StoreResult<()> {
        let key = OwnedKey::new(key);
        self.start(move |memory| memory.publish(key.as_key()))
    }

    fn watch(&self, kind: StoreKind) -> broadcast::Receiver<StoreNotice> {
        self.memory.watch(kind)
    }
}
