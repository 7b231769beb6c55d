//! Calls that wait for a stateless client to return with answers.
//!
//! The client gets a signed state. It is valid once, for a limited time, and only for the same caller and the same call.
//! The call itself stays in this process. The store has a record of it, so that the state is valid once across replicas.
//!
//! A stateless server ends its call to ask, and the client could repeat it at any instance. If the instance belongs to one
//! client, only that instance knows its state: the client may return on another connection, so the lease on the instance
//! is kept, and the client gets a signed state in place of the server's own.

use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::call::Call;
use crate::call::trace::CallTrace;
use crate::call::updates::{CallUpdate, ServerRequest, UpdateSink};
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;
use crate::pipeline::router::CallRouter;
use crate::pipeline::{self, KeptLease};
use crate::protocol::era::input::{self, InputRequest, Questioner};
use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::{ResponsePayload, code, error_object};
use crate::protocol::versions::Era;
use crate::store::{OwnedKind, Replica, SigningKey, Store, StoreError, StoreKey, StoreKind};
use crate::supervisor::Lease;
use crate::util::encoding;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// The time that a suspended call waits for its client.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(600);
/// The number of calls that may be suspended in total.
const MAX_SUSPENDED: usize = 1000;
/// The number of calls that may be suspended per caller.
const MAX_PER_CALLER: usize = 200;
/// The wait for further requests after the first one, as each arrives in a message of its own.
const GATHER_TIME: Duration = Duration::from_millis(20);
/// The number of updates that are buffered while a call is suspended.
const UPDATE_BUFFER: usize = 256;
/// The prefix of a signed state.
const STATE_PREFIX: &str = "toolcrib.";

/// The suspended calls of a crib.
#[derive(Debug)]
pub(crate) struct SuspendedCalls {
    state: Mutex<SuspendedState>,
    /// Records of suspended calls, by id.
    store: Arc<dyn Store>,
    /// Generated on first use if none was set. Without a source of random numbers there is no key, and no call is suspended.
    key: OnceLock<Option<SigningKey>>,
    /// The address of this process, if there are replicas.
    replica: Option<Arc<Replica>>,
    /// The random name of this process in the records.
    owner: String,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct SuspendedState {
    calls: HashMap<String, SuspendedCall>,
    /// Instances that asked for input and wait for the call to be repeated.
    instances: HashMap<String, AskingInstance>,
    /// Whether no further calls are suspended.
    closed: bool,
}

/// A call whose future is owned here.
struct RunningCall {
    work: Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>,
    updates: mpsc::Receiver<CallUpdate>,
}

/// The request of a call that waits for its client. The repeated request must match it.
#[derive(Debug)]
struct OriginalRequest {
    caller: Caller,
    selector: Selector,
    method: Cow<'static, str>,
    params: Object,
}

/// A call that waits for its client.
struct SuspendedCall {
    running: RunningCall,
    requests: Vec<(String, ServerRequest)>,
    original: OriginalRequest,
    trace: CallTrace,
    /// Drops the call when the time is up.
    _timer: AbortOnDropHandle<()>,
}

/// The instance of one client that asked for input by the result of a call.
#[derive(Debug)]
struct AskingInstance {
    lease: Lease,
    original: OriginalRequest,
    /// The state that the server itself wants back, as raw JSON.
    server_state: Option<Bytes>,
    /// Releases the instance when the time is up.
    _timer: AbortOnDropHandle<()>,
}

impl SuspendedState {
    /// Returns whether one more call of a caller may wait.
    fn has_room_for(&self, caller: &Caller) -> bool {
        let of_calls = self.calls.values().map(|waiting| &waiting.original.caller);
        let of_instances = self.instances.values().map(|waiting| &waiting.original.caller);
        let caller_count = of_calls.chain(of_instances).filter(|waiting| *waiting == caller).count();
        !self.closed
            && self.calls.len() + self.instances.len() < MAX_SUSPENDED
            && caller_count < MAX_PER_CALLER
    }
}

impl std::fmt::Debug for SuspendedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SuspendedCall").field("original", &self.original).finish_non_exhaustive()
    }
}

impl OriginalRequest {
    fn new(call: &Call) -> Self {
        Self {
            caller: call.caller.clone(),
            selector: call.selector.clone(),
            method: call.method.clone(),
            params: call.params.clone(),
        }
    }

    /// Returns whether a call has the same caller, target and parameters.
    fn is_repeated_by(&self, call: &Call) -> bool {
        self.caller == call.caller
            && self.selector == call.selector
            && self.method == call.method
            && is_same_call(&self.params, &call.params)
    }
}

/// The next step of a running call.
enum CallStep {
    Done(Result<Outcome, Error>),
    NeedsInput(Vec<ServerRequest>),
}

impl RunningCall {
    /// Runs until the call ends or the server needs input. Other updates go to `sink`.
    async fn step(&mut self, sink: Option<&Arc<dyn UpdateSink>>) -> CallStep {
        loop {
            tokio::select! {
                biased;
                Some(update) = self.updates.recv() => match update {
                    CallUpdate::Request(request) => {
                        return CallStep::NeedsInput(self.gather_requests(request, sink).await);
                    }
                    update => forward(sink, update),
                },
                outcome = &mut self.work => {
                    while let Ok(update) = self.updates.try_recv() {
                        forward(sink, update);
                    }
                    return CallStep::Done(outcome);
                }
            }
        }
    }

    /// Collects requests that the server sends together with the first one. Other updates go to `sink`.
    async fn gather_requests(
        &mut self,
        first: ServerRequest,
        sink: Option<&Arc<dyn UpdateSink>>,
    ) -> Vec<ServerRequest> {
        let mut requests = vec![first];
        let deadline = Instant::now() + GATHER_TIME;
        while let Ok(Some(update)) = timeout_at(deadline, self.updates.recv()).await {
            match update {
                CallUpdate::Request(request) => requests.push(request),
                update => forward(sink, update),
            }
        }
        requests
    }
}

fn forward(sink: Option<&Arc<dyn UpdateSink>>, update: CallUpdate) {
    if let Some(sink) = sink {
        // A sink that cannot keep up misses updates.
        let _ = sink.deliver_contained(update);
    }
}

impl SuspendedCalls {
    /// Creates an empty set; `tasks` owns the timers. Without a key, one is generated that is valid for this process.
    pub(crate) fn new(store: Arc<dyn Store>, key: Option<SigningKey>, tasks: TaskTracker) -> Self {
        let key = key.map(Some).map_or_else(OnceLock::new, OnceLock::from);
        let owner = encoding::random_hex().unwrap_or_default();
        Self { state: Mutex::default(), store, key, replica: None, owner, tasks }
    }

    /// Sets the key, unless there is one.
    pub(crate) fn set_key(&self, key: SigningKey) {
        let _ = self.key.set(Some(key));
    }

    /// Names this process in states, so that another replica can find the process that has the call.
    pub(crate) fn with_replica(mut self, replica: Option<Arc<Replica>>) -> Self {
        if let Some(replica) = &replica {
            self.key = OnceLock::from(Some(replica.key().clone()));
        }
        self.replica = replica;
        self
    }

    /// Returns the replica that this process is.
    pub(crate) fn replica(&self) -> Option<&Arc<Replica>> {
        self.replica.as_ref()
    }

    /// Returns the id of a new suspended call.
    fn new_id(&self) -> Option<String> {
        match &self.replica {
            Some(replica) => replica.new_name(OwnedKind::SuspendedCall),
            None => encoding::random_hex(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SuspendedState> {
        self.state.lock().ignore_poison()
    }

    /// Drops every suspended call and refuses further ones.
    pub(crate) async fn close(&self) {
        let all = std::mem::replace(
            &mut *self.lock(),
            SuspendedState { closed: true, ..SuspendedState::default() },
        );
        let ids: Vec<String> = all.calls.into_keys().collect();
        for id in ids {
            // A record that cannot be removed expires.
            let _ = self.store.remove(record_key(&id)).wait().await;
        }
    }

    /// Runs a call of a client that can answer requests.
    pub(super) async fn run(
        self: &Arc<Self>,
        router: &Arc<CallRouter>,
        mut call: Call,
    ) -> Result<Outcome, Error> {
        let (sender, updates) = mpsc::channel(UPDATE_BUFFER);
        let sink = call.update_sink.replace(Arc::new(sender));
        let request = call.clone();
        let router = router.clone();
        let suspended = self.clone();
        let work =
            Box::pin(async move { suspended.run_once(&router, &mut call, KeptLease::default()).await });
        self.run_or_suspend(RunningCall { work, updates }, request, sink).await
    }

    /// Runs a call of a stateless client, on a lease that was kept for it if there is one.
    pub(super) async fn run_once(
        self: &Arc<Self>,
        router: &CallRouter,
        call: &mut Call,
        mut kept: KeptLease,
    ) -> Result<Outcome, Error> {
        // The public name in the parameters is replaced when they are sent.
        let original = OriginalRequest::new(call);
        let outcome = match pipeline::run_keeping_lease(router, call, &mut kept).await {
            Ok(outcome) => outcome,
            Err(error) => Box::pin(pipeline::run_after_login(router, call, &mut kept, error)).await?,
        };
        match kept.into_inner() {
            Some(lease) => Ok(self.keep_instance(lease, call, original, outcome)),
            None => Ok(outcome),
        }
    }

    /// Keeps the instance that asks for input, and replaces the state of the server in its result by a signed one. If too
    /// many calls wait, the result stays as it is.
    fn keep_instance(
        self: &Arc<Self>,
        lease: Lease,
        call: &Call,
        original: OriginalRequest,
        outcome: Outcome,
    ) -> Outcome {
        let ResponsePayload::Result(result) = &outcome.answer else { return outcome };
        let signed = self.new_id().and_then(|id| Some((id.clone(), self.sign(&id, call)?)));
        let (Some((id, token)), Ok(mut result)) = (signed, Object::parse(result)) else { return outcome };
        let mut state = self.lock();
        if !state.has_room_for(&call.caller) {
            return outcome;
        }
        let timer = AbortOnDropHandle::new(self.tasks.spawn_boxed(expire(Arc::downgrade(self), id.clone())));
        let server_state = result.get(input::REQUEST_STATE).map(|raw| Bytes::copy_from_slice(raw));
        state.instances.insert(id, AskingInstance { lease, original, server_state, _timer: timer });
        drop(state);
        result.set_unchecked(input::REQUEST_STATE, object::to_json_string(&token));
        Outcome { answer: ResponsePayload::Result(result.to_bytes()), ..outcome }
    }

    /// Removes and returns the instance that a state belongs to, if `call` repeats the call in which it asked.
    fn take_instance(&self, state: &str, call: &Call) -> Option<AskingInstance> {
        let id = state_id(state)?;
        let mut state = self.lock();
        state.instances.get(id).filter(|asking| asking.original.is_repeated_by(call))?;
        state.instances.remove(id)
    }

    /// Continues a call whose state was signed here.
    pub(super) async fn resume(
        self: &Arc<Self>,
        router: &Arc<CallRouter>,
        state: &str,
        mut call: Call,
    ) -> Result<Outcome, Error> {
        let Some(AskingInstance { lease, server_state, .. }) = self.take_instance(state, &call) else {
            return self.resume_suspended(state, call).await;
        };
        match server_state {
            Some(server_state) => call.params.set_unchecked(input::REQUEST_STATE, server_state),
            None => drop(call.params.remove(input::REQUEST_STATE)),
        }
        self.run_once(router, &mut call, KeptLease::new(lease)).await
    }

    /// Continues a suspended call with the client's answers. Missing answers are requested again.
    async fn resume_suspended(self: &Arc<Self>, state: &str, mut call: Call) -> Result<Outcome, Error> {
        let Some(SuspendedCall { running, requests, trace, .. }) = self.take(state, &call).await? else {
            self.check_owner(state).await?;
            return Ok(stateless(ResponsePayload::Error(input::invalid_state_error())));
        };
        let responses = call
            .params
            .get(input::INPUT_RESPONSES)
            .and_then(|raw| Object::parse(raw).ok())
            .unwrap_or_default();
        let mut missing = Vec::new();
        for (key, request) in requests {
            match responses.get(&key) {
                Some(response) => request.answer_scanned(ResponsePayload::Result(response.clone())),
                None => missing.push(request),
            }
        }
        let sink = call.update_sink.take();
        if !missing.is_empty() {
            return self.suspend(running, missing, call).await;
        }
        let current = std::mem::replace(&mut call.trace, trace.clone());
        current.continue_from(&trace);
        let outcome = self.run_or_suspend(running, call, sink).await;
        current.continue_from(&trace);
        outcome
    }

    async fn run_or_suspend(
        self: &Arc<Self>,
        mut running: RunningCall,
        call: Call,
        sink: Option<Arc<dyn UpdateSink>>,
    ) -> Result<Outcome, Error> {
        match running.step(sink.as_ref()).await {
            CallStep::Done(outcome) => outcome.map(without_own_question_mark),
            CallStep::NeedsInput(requests) => self.suspend(running, requests, call).await,
        }
    }

    /// Suspends a call and returns its requests to the client. The call ends if it cannot be suspended; its server has
    /// received it then.
    async fn suspend(
        self: &Arc<Self>,
        running: RunningCall,
        requests: Vec<ServerRequest>,
        call: Call,
    ) -> Result<Outcome, Error> {
        let signed = self.new_id().and_then(|id| Some((id.clone(), self.sign(&id, &call)?)));
        let Some((id, token)) = signed else {
            return Ok(refusal("cannot suspend a call that needs input: no source of random numbers"));
        };
        let keyed = |(index, request): (usize, ServerRequest)| (format!("ask-{}", index + 1), request);
        let requests: Vec<(String, ServerRequest)> = requests.into_iter().enumerate().map(keyed).collect();
        let question = |(key, request): &(String, ServerRequest)| InputRequest {
            key: key.clone(),
            method: request.method.clone(),
            params: request.params.clone(),
        };
        let questions: Vec<InputRequest> = requests.iter().map(question).collect();
        let is_own = requests.iter().all(|(_, request)| request.server.is_none());
        let server_info = requests.iter().find_map(|(_, request)| request.server_info.clone());
        let record = json!({"owner": self.owner, "caller": call.caller.as_str()}).to_string();
        let stored = self.store.put(record_key(&id), record.into(), Some(SUSPEND_TIMEOUT)).wait().await;
        if let Err(error) = stored {
            return Err(store_error("suspended", &error));
        }
        if !self.insert(&id, running, requests, call) {
            // A record that cannot be removed expires.
            let _ = self.store.remove(record_key(&id)).wait().await;
            return Ok(refusal("too many calls wait for input; answer some of them first"));
        }
        let questioner = if is_own { Questioner::Toolcrib } else { Questioner::Server(server_info.as_ref()) };
        let result = input::input_required_result(&questions, Some(&token), questioner);
        Ok(stateless(ResponsePayload::Result(result)))
    }

    /// Keeps a call until it is resumed or its time is up. Returns `false` if there are too many.
    fn insert(
        self: &Arc<Self>,
        id: &str,
        running: RunningCall,
        requests: Vec<(String, ServerRequest)>,
        call: Call,
    ) -> bool {
        let mut state = self.lock();
        if !state.has_room_for(&call.caller) {
            return false;
        }
        let timer =
            AbortOnDropHandle::new(self.tasks.spawn_boxed(expire(Arc::downgrade(self), id.to_owned())));
        let suspended = SuspendedCall {
            running,
            requests,
            original: OriginalRequest::new(&call),
            trace: call.trace,
            _timer: timer,
        };
        state.calls.insert(id.to_owned(), suspended);
        true
    }

    /// Returns whether a state was signed here for this caller and call. Other states belong to a server, or to another
    /// gateway behind this one.
    pub(super) fn has_signed(&self, state: &str, call: &Call) -> bool {
        let expected = state_id(state).and_then(|id| self.sign(id, call));
        expected.is_some_and(|expected| encoding::constant_time_eq(expected.as_bytes(), state.as_bytes()))
    }

    /// Removes and returns the call that a state belongs to, if `call` repeats it. Removing its record from the store
    /// decides which of several attempts gets it.
    async fn take(&self, state: &str, call: &Call) -> Result<Option<SuspendedCall>, Error> {
        let Some(id) = state_id(state) else { return Ok(None) };
        if !self.lock().calls.get(id).is_some_and(|suspended| suspended.original.is_repeated_by(call)) {
            return Ok(None);
        }
        let record = self.store.take(record_key(id)).wait().await;
        match record.map_err(|error| store_error("resumed", &error))? {
            Some(_) => Ok(self.lock().calls.remove(id)),
            None => Ok(None),
        }
    }

    /// Fails if a state belongs to a call that waits in another process.
    async fn check_owner(&self, state: &str) -> Result<(), Error> {
        let Some(id) = state_id(state).filter(|_| self.store.is_shared()) else { return Ok(()) };
        let record = self.store.get(record_key(id)).wait().await.ok().flatten();
        let record = record.and_then(|record| serde_json::from_slice::<Value>(&record).ok());
        match record.is_some_and(|record| record["owner"] != *self.owner) {
            true => Err(lost_call()),
            false => Ok(()),
        }
    }

    /// Returns the signed state for an id, its caller and its call.
    fn sign(&self, id: &str, call: &Call) -> Option<String> {
        let parts = [id, call.caller.as_str(), &call.method, call.name()];
        let key = self.key.get_or_init(|| SigningKey::random().ok()).as_ref()?;
        let signature = encoding::to_hex(&key.sign(&parts)?);
        Some(format!("{STATE_PREFIX}{id}.{signature}"))
    }
}

/// Returns the key of the record of a suspended call.
fn record_key(id: &str) -> StoreKey<'_> {
    StoreKey::new(StoreKind::SuspendedCall, id)
}

/// Returns the error for a call that could not be suspended or resumed. Its server has received it.
fn store_error(action: &str, error: &StoreError) -> Error {
    let message = format!("a call that needs input could not be {action}: {error}");
    Error::new(ErrorKind::StoreUnavailable, message).mark_maybe_sent()
}

/// Returns the error for a call that waits in a process that this one cannot reach.
fn lost_call() -> Error {
    let message = "a call that needs input cannot be resumed: the gateway that has it cannot be reached; \
                   the call may have run";
    Error::new(ErrorKind::Lost, message).mark_maybe_sent()
}

fn refusal(message: &str) -> Outcome {
    stateless(ResponsePayload::Error(error_object(code::INTERNAL_ERROR, message, None)))
}

/// Returns the id of the suspended call that a state belongs to, if it has the right format.
pub(crate) fn state_id(state: &str) -> Option<&str> {
    Some(state.strip_prefix(STATE_PREFIX)?.split_once('.')?.0)
}

async fn expire(suspended: Weak<SuspendedCalls>, id: String) {
    sleep(SUSPEND_TIMEOUT).await;
    if let Some(suspended) = suspended.upgrade() {
        let mut state = suspended.lock();
        let expired_call = state.calls.remove(&id);
        let expired_instance = state.instances.remove(&id);
        drop(state);
        drop(expired_call);
        drop(expired_instance);
    }
}

/// Returns whether two requests are equal except for members that differ between attempts.
fn is_same_call(first: &Object, second: &Object) -> bool {
    let is_compared =
        |(key, _): &(&str, &Bytes)| !matches!(*key, input::INPUT_RESPONSES | input::REQUEST_STATE | "_meta");
    let value = |raw: &Bytes| serde_json::from_slice::<Value>(raw).ok();
    first.iter().filter(is_compared).count() == second.iter().filter(is_compared).count()
        && first.iter().filter(is_compared).all(|(key, raw)| {
            second
                .get(key)
                .is_some_and(|other| raw == other || value(raw).is_some() && value(raw) == value(other))
        })
}

/// Makes sure that a server does not ask as toolcrib.
fn without_own_question_mark(outcome: Outcome) -> Outcome {
    let ResponsePayload::Result(result) = &outcome.answer else { return outcome };
    match input::remove_own_question_mark(result) {
        Some(result) => Outcome { answer: ResponsePayload::Result(result), ..outcome },
        None => outcome,
    }
}

fn stateless(answer: ResponsePayload) -> Outcome {
    Outcome { answer, era: Era::Stateless, server: None, server_info: None }
}

#[cfg(test)]
mod tests;
