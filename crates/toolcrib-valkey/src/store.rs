//! `ValkeyStore`: the store of several replicas.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use toolcrib::Caller;
use toolcrib::store::{
    Admission, CounterList, CounterUsage, ExpiringValue, LimitCounter, LimitRequest, Store, StoreError,
    StoreKey, StoreKind, StoreNotice, StoreReply, StoreResult, StoredValue, UsageRelease,
};
use toolcrib::util::tasks::SpawnBoxed as _;

use crate::command::{Keys, StoreCommand, StoreScript, format_ttl, kind_slot};
use crate::connection::StoreConnector;
use crate::health::{Health, StateWatch, StoreStatus};
use crate::leases::{LeasedCall, Leases};
use crate::operation::{QueuedMemory, StoreOperation};
use crate::resp::Reply;
use crate::store_url::{Servers, StoreUrl};
use crate::usage::{self, unexpected_reply};
use crate::worker::{Notices, Worker, timeout_error};

/// Operations that wait for the connection. Further ones fail.
const MAX_QUEUED: usize = 16 * 1024;
/// Bytes of operations that wait for the connection or their reply. Further ones fail.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;
/// The largest value that is stored.
const MAX_VALUE: usize = 16 * 1024 * 1024;

/// Options of a [`ValkeyStore`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ValkeyOptions {
    /// The text that all keys and channels start with. Gateways that share their state have the same prefix.
    pub prefix: String,
    /// The longest time that connecting takes, with the login.
    pub connect_timeout: Duration,
    /// The longest time that an operation takes.
    pub operation_timeout: Duration,
    /// Calls of a limit that are reserved at once. With 1, every limited call takes one round trip and limits are exact. With more,
    /// most calls take none, and any period can have up to this many calls more per gateway, caller and limit.
    pub limit_lease: NonZeroU32,
}

impl Default for ValkeyOptions {
    fn default() -> Self {
        Self {
            prefix: "toolcrib".to_owned(),
            connect_timeout: Duration::from_secs(1),
            operation_timeout: Duration::from_millis(500),
            limit_lease: NonZeroU32::MIN,
        }
    }
}

/// A store in Valkey or Redis.
#[derive(Debug)]
pub struct ValkeyStore {
    operations: mpsc::Sender<StoreOperation>,
    /// Bytes of operations that have no reply yet.
    queued_bytes: Arc<AtomicUsize>,
    notices: Arc<Notices>,
    health: Arc<Health>,
    keys: Keys,
    url: StoreUrl,
    operation_timeout: Duration,
    leases: Option<Arc<Leases>>,
}

impl ValkeyStore {
    /// Creates a store and connects in the background. Operations wait for the first attempt to connect.
    ///
    /// # Errors
    /// Fails if TLS cannot be used. A server that cannot be reached is no error; see [`ValkeyStore::status`].
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn connect(url: StoreUrl, options: ValkeyOptions) -> Result<Self, StoreError> {
        let keys = Keys { prefix: options.prefix };
        let connector = StoreConnector::new(url.clone(), keys.clone(), options.connect_timeout)?;
        let (operations, queue) = mpsc::channel(MAX_QUEUED);
        let notices = Arc::new(Notices::new(&keys));
        let health = Arc::new(Health::new());
        let leases = (options.limit_lease > NonZeroU32::MIN)
            .then(|| Arc::new(Leases::new(options.limit_lease, keys.clone(), operations.downgrade())));
        let worker = Worker {
            connector,
            queue,
            notices: notices.clone(),
            health: health.clone(),
            operation_timeout: options.operation_timeout,
            prefix: keys.prefix.clone(),
            leases: leases.clone(),
        };
        // Ends when the store is dropped.
        TaskTracker::new().spawn_boxed(worker.run());
        let operation_timeout = options.operation_timeout;
        let queued_bytes = Arc::default();
        Ok(Self { operations, queued_bytes, notices, health, keys, url, operation_timeout, leases })
    }

    /// Returns the state of the connection and the number of operations.
    pub fn status(&self) -> StoreStatus {
        self.health.status(self.url.to_string())
    }

    /// Returns the state, as soon as the first attempt to connect has ended, and its changes.
    pub fn watch_state(&self) -> StateWatch {
        self.health.watch()
    }

    /// Queues an operation and returns its parsed reply.
    fn start<T: Send + 'static>(
        &self,
        command: StoreCommand,
        parse: impl FnOnce(Reply) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreResult<T> {
        let (reply, receiver) = oneshot::channel();
        let memory = QueuedMemory::claim(&self.queued_bytes, command.size(), MAX_QUEUED_BYTES);
        // Fails if the reply is no longer awaited.
        let operation = StoreOperation::new(command, move |result| drop(reply.send(result.and_then(parse))));
        let is_queued =
            memory.is_some_and(|memory| self.operations.try_send(operation.with_memory(memory)).is_ok());
        if !is_queued {
            self.health.record_failure();
            let message =
                format!("more than {MAX_QUEUED} operations, or {MAX_QUEUED_BYTES} bytes, wait for the store");
            return StoreReply::Ready(Err(StoreError::new(message)));
        }
        StoreReply::Pending(Box::pin(wait_for_reply(receiver, self.operation_timeout)))
    }

    /// Creates an operation on one value. Its arguments follow the name of the value.
    fn value_command(
        &self,
        operation: &'static str,
        key: StoreKey<'_>,
        arguments: Vec<Bytes>,
    ) -> StoreCommand {
        let keys = vec![self.keys.value(key), self.keys.index(key.kind)];
        let mut all = vec![
            Bytes::from_static(operation.as_bytes()),
            self.keys.kind(key.kind).into(),
            key.name.to_owned().into(),
        ];
        all.extend(arguments);
        StoreCommand::script(StoreScript::Values, kind_slot(key.kind), keys, all)
    }

    /// Starts an operation that sets a value; `last_arguments` follow those of the value.
    fn start_put<T: Send + 'static>(
        &self,
        operation: &'static str,
        key: StoreKey<'_>,
        new: NewValue,
        parse: impl FnOnce(Reply) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreResult<T> {
        let bytes = new.value.len();
        if bytes > MAX_VALUE {
            let kind = key.kind.as_str();
            let message =
                format!("a `{kind}` of {bytes} bytes is too large for the store: at most {MAX_VALUE}");
            return StoreReply::Ready(Err(StoreError::new(message)));
        }
        let max = new.kind.max_values().map_or_else(Bytes::new, |max| max.to_string().into());
        let mut arguments = vec![new.value, format_ttl(new.ttl), max];
        arguments.extend(new.last_arguments);
        let mut command = self.value_command(operation, key, arguments);
        command.keys.extend(new.further_keys);
        self.start(command, parse)
    }
}

/// A value that an operation sets.
struct NewValue {
    kind: StoreKind,
    value: Bytes,
    ttl: Option<Duration>,
    further_keys: Vec<Bytes>,
    last_arguments: Vec<Bytes>,
}

impl NewValue {
    fn new(kind: StoreKind, value: Bytes, ttl: Option<Duration>) -> Self {
        Self { kind, value, ttl, further_keys: Vec::new(), last_arguments: Vec::new() }
    }
}

/// Waits for a reply, which has a time limit from now on.
fn wait_for_reply<T>(
    receiver: oneshot::Receiver<Result<T, StoreError>>,
    time: Duration,
) -> impl Future<Output = Result<T, StoreError>> {
    let deadline = Instant::now() + time;
    async move {
        match timeout_at(deadline, receiver).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(StoreError::new("the store was closed")),
            Err(_) => Err(timeout_error(time)),
        }
    }
}

fn parse_value(reply: Reply) -> Result<Option<Bytes>, StoreError> {
    match reply {
        Reply::Null => Ok(None),
        Reply::Text(value) => Ok(Some(value)),
        _ => Err(unexpected_reply()),
    }
}

fn parse_bool(reply: &Reply) -> Result<bool, StoreError> {
    match reply {
        Reply::Integer(number) => Ok(*number != 0),
        _ => Err(unexpected_reply()),
    }
}

fn parse_expiring_value(reply: Reply) -> Result<Option<ExpiringValue>, StoreError> {
    let Reply::Array(members) = reply else { return Err(unexpected_reply()) };
    match members.as_slice() {
        [Reply::Null, _] => Ok(None),
        [Reply::Text(value), Reply::Integer(ttl)] => {
            let ttl = u64::try_from(*ttl).ok().map(Duration::from_millis);
            Ok(Some(ExpiringValue { value: value.clone(), ttl }))
        }
        _ => Err(unexpected_reply()),
    }
}

fn parse_list(reply: Reply) -> Result<Vec<StoredValue>, StoreError> {
    let Reply::Array(members) = reply else { return Err(unexpected_reply()) };
    let parse = |pair: &[Reply]| match pair {
        [Reply::Text(name), Reply::Text(value)] => {
            let name = String::from_utf8(name.to_vec()).map_err(|_| unexpected_reply())?;
            Ok(StoredValue { name, value: value.clone() })
        }
        _ => Err(unexpected_reply()),
    };
    let mut values: Vec<StoredValue> = members.chunks_exact(2).map(parse).collect::<Result<_, _>>()?;
    values.sort_by(|first, second| first.name.cmp(&second.name));
    Ok(values)
}

fn parse_callers(reply: Reply) -> Result<Vec<Caller>, StoreError> {
    let Reply::Array(members) = reply else { return Err(unexpected_reply()) };
    let parse = |member| match member {
        Reply::Text(name) => Ok(Caller::new(&String::from_utf8_lossy(&name))),
        _ => Err(unexpected_reply()),
    };
    members.into_iter().map(parse).collect()
}

impl Store for ValkeyStore {
    fn is_shared(&self) -> bool {
        true
    }

    fn get(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        let command = StoreCommand::plain("GET", vec![self.keys.value(key)]).in_slot(kind_slot(key.kind));
        self.start(command, parse_value)
    }

    fn get_with_ttl(&self, key: StoreKey<'_>) -> StoreResult<Option<ExpiringValue>> {
        self.start(self.value_command("get-with-ttl", key, Vec::new()), parse_expiring_value)
    }

    fn put(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<()> {
        let new = NewValue::new(key.kind, value, ttl);
        self.start_put("put", key, new, |reply| parse_bool(&reply).map(drop))
    }

    fn put_if_absent(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<bool> {
        self.start_put("put-if-absent", key, NewValue::new(key.kind, value, ttl), |reply| parse_bool(&reply))
    }

    fn replace(
        &self,
        key: StoreKey<'_>,
        expected: &Bytes,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<bool> {
        let last_arguments = vec![expected.clone()];
        let new = NewValue { last_arguments, ..NewValue::new(key.kind, value, ttl) };
        self.start_put("replace", key, new, |reply| parse_bool(&reply))
    }

    fn take(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>> {
        self.start(self.value_command("take", key, Vec::new()), parse_value)
    }

    /// In a cluster, fails for kinds that are on different nodes.
    fn take_and_put(
        &self,
        taken: StoreKey<'_>,
        put: StoreKey<'_>,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<Option<Bytes>> {
        let is_cluster = matches!(self.url.servers, Servers::Cluster(_));
        if is_cluster && kind_slot(taken.kind) != kind_slot(put.kind) {
            let message = "values of these kinds cannot be exchanged in one step in a cluster";
            return StoreReply::Ready(Err(StoreError::new(message)));
        }
        let new = NewValue {
            further_keys: vec![self.keys.value(put), self.keys.index(put.kind)],
            last_arguments: vec![self.keys.kind(put.kind).into(), put.name.to_owned().into()],
            ..NewValue::new(put.kind, value, ttl)
        };
        self.start_put("exchange", taken, new, parse_value)
    }

    fn remove(&self, key: StoreKey<'_>) -> StoreResult<bool> {
        let command = self.value_command("take", key, Vec::new());
        self.start(command, |reply| parse_value(reply).map(|value| value.is_some()))
    }

    fn list(&self, kind: StoreKind, prefix: &str) -> StoreResult<Vec<StoredValue>> {
        self.start(self.value_command("list", StoreKey::new(kind, prefix), Vec::new()), parse_list)
    }

    fn reserve(&self, request: &LimitRequest<'_>) -> StoreResult<Admission> {
        let LimitRequest { caller, counters, max_wait, .. } = request;
        if let Some(leases) = &self.leases {
            return match leases.reserve(request) {
                LeasedCall::Admitted(admission) => StoreReply::Ready(Ok(admission)),
                LeasedCall::Waiting(receiver) => {
                    StoreReply::Pending(Box::pin(wait_for_reply(receiver, self.operation_timeout)))
                }
            };
        }
        let command = usage::reserve(&self.keys, caller.as_str(), counters, *max_wait, 1);
        let counters: Vec<LimitCounter> = counters.iter().cloned().collect();
        self.start(command, move |reply| {
            usage::parse_reserved(&reply, &counters).map(|reserved| reserved.admission)
        })
    }

    fn release(&self, release: &UsageRelease<'_>) -> StoreResult<()> {
        let UsageRelease { caller, counters, token } = release;
        let leases = self.leases.as_ref();
        if leases.is_some_and(|leases| leases.release(caller.as_str(), counters, *token)) {
            return StoreReply::Ready(Ok(()));
        }
        let command = usage::release(&self.keys, caller.as_str(), counters, *token, 1);
        self.start(command, |_| Ok(()))
    }

    fn usage(
        &self,
        caller: &Caller,
        counters: &CounterList<'_>,
        _now: Instant,
    ) -> StoreResult<Vec<CounterUsage>> {
        let command = usage::command(&self.keys, "usage", caller.as_str(), counters, Vec::new());
        self.start(command, usage::parse_usage)
    }

    fn callers(&self) -> StoreResult<Vec<Caller>> {
        let command = usage::command(&self.keys, "callers", "", &CounterList::default(), Vec::new());
        self.start(command, parse_callers)
    }

    fn clear_usage(&self, caller: &Caller, counters: &CounterList<'_>) -> StoreResult<()> {
        if let Some(leases) = &self.leases {
            leases.forget(caller.as_str(), counters);
        }
        let command = usage::command(&self.keys, "clear", caller.as_str(), counters, Vec::new());
        self.start(command, |_| Ok(()))
    }

    fn publish(&self, key: StoreKey<'_>) -> StoreResult<()> {
        let arguments = vec![self.keys.channel(key.kind), key.name.to_owned().into()];
        self.start(StoreCommand::plain("PUBLISH", arguments), |_| Ok(()))
    }

    fn watch(&self, kind: StoreKind) -> broadcast::Receiver<StoreNotice> {
        self.notices.watch(kind)
    }
}
