//! Call records: facts are collected while a call runs and reported to observers exactly once, however the call ends.
//!
//! Facts are only collected if there is an observer.

pub(crate) mod event_channel;
pub(crate) mod log_sink;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::call::Call;
use crate::call::trace::CallTrace;
use crate::call::trace_meta;
use crate::model::call_id::CallId;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::{CallClient, CallEnd, CallRecord, CallTiming, Decision, Event};
use crate::model::outcome::Outcome;
use crate::model::target::Target;
use crate::model::trace_context::{CallSpans, TraceContext};
use crate::protocol::era::input;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::util::{clock, panics, time_id};
use event_channel::EventChannel;

/// The word for an observer in messages about panics.
const ROLE: &str = "observer";

/// Receives a record of every call when it ends, before the caller gets the outcome. Methods must not block. A method that
/// panics is logged; only a panic in [`Observer::check_ready`] refuses the call.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use toolcrib::{Call, CallRecord, Crib, Observer, ServerSpec, Toolbox};
///
/// #[derive(Default)]
/// struct CallLog {
///     lines: Mutex<Vec<String>>,
/// }
///
/// impl Observer for CallLog {
///     fn call_ended(&self, record: &CallRecord) {
///         let line = format!("{} {} {}", record.caller.as_str(), record.name, record.end.name());
///         self.lines.lock().unwrap().push(line);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
/// # let house = ServerSpec::in_process("house".parse()?, tools);
/// let log = Arc::new(CallLog::default());
/// let crib = Crib::builder().server(house).observer(log.clone()).build()?;
/// crib.call(Call::tool("greet")).await?;
/// assert_eq!(*log.lines.lock().unwrap(), ["local greet ok"]);
/// # Ok(())
/// # }
/// ```
pub trait Observer: Send + Sync {
    /// Returns whether records are wanted now. Without an enabled observer, no facts are collected.
    fn is_enabled(&self) -> bool {
        true
    }

    /// Called before each call; an error refuses the call.
    ///
    /// # Errors
    /// Fails if the observer cannot record calls now and calls must not run unrecorded.
    fn check_ready(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns whether records should contain the arguments.
    fn wants_arguments(&self) -> bool {
        false
    }

    /// Receives the record of a call that ended.
    fn call_ended(&self, record: &CallRecord);

    /// Returns whether calls may be traced. Asked once, when the crib is built; one observer of a crib can trace calls.
    fn traces_calls(&self) -> bool {
        false
    }

    /// Returns the spans of a call that starts, or `None` if it is not traced. `parent` is the trace that the client passed
    /// on in `_meta`. The server gets the new position in the trace in the same way.
    fn start_spans(&self, parent: Option<TraceContext>) -> Option<CallSpans> {
        let _ = parent;
        None
    }

    /// Receives an event of a server, even if no records are wanted now. Calls are not among them.
    fn server_event(&self, event: &Event) {
        let _ = event;
    }

    /// Called once, after the last call. This method may block to flush.
    fn close(&self) {}
}

/// The event stream and the observers of a crib.
#[derive(Clone, Default)]
pub(crate) struct Observers {
    events: EventChannel<Event>,
    observers: Arc<[Arc<dyn Observer>]>,
    /// The observer that traces calls.
    tracer: Option<Arc<dyn Observer>>,
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("observers", &self.observers.len()).finish_non_exhaustive()
    }
}

impl Observers {
    pub(crate) fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        let traces_calls = |observer: &&Arc<dyn Observer>| {
            panics::contain(ROLE, || observer.traces_calls()).unwrap_or(false)
        };
        let tracer = observers.iter().find(traces_calls).cloned();
        Self { events: EventChannel::default(), observers: observers.into(), tracer }
    }

    /// Returns whether calls may be traced.
    pub(crate) fn traces_calls(&self) -> bool {
        self.tracer.is_some()
    }

    /// Starts the spans of a call and passes its trace on to the server.
    fn start_spans(&self, call: &mut Call) -> Option<Arc<CallSpans>> {
        let tracer = self.tracer.as_ref()?;
        let parent = trace_meta::read(&call.params);
        let mut spans = panics::contain(ROLE, || tracer.start_spans(parent))??;
        spans.session = call.client_context.as_ref().and_then(|context| context.session_id());
        spans.client_transport = call.client_transport;
        trace_meta::write(&mut call.params, &spans.outgoing());
        Some(Arc::new(spans))
    }

    /// Reports that no more calls follow.
    pub(crate) fn close(&self) {
        for observer in &*self.observers {
            panics::contain(ROLE, || observer.close());
        }
    }

    /// Delivers an event of a server.
    pub(crate) fn send_server_event(&self, event: Event) {
        for observer in &*self.observers {
            panics::contain(ROLE, || observer.server_event(&event));
        }
        self.events.send(event);
    }

    /// Returns a receiver of all events from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Ends the stream of events.
    pub(crate) fn close_events(&self) {
        self.events.close();
    }

    /// Returns whether calls are recorded. An observer that panics counts as enabled.
    fn has_any(&self) -> bool {
        let is_enabled = || self.observers.iter().any(|observer| observer.is_enabled());
        panics::contain(ROLE, is_enabled).unwrap_or(true) || self.events.has_receivers()
    }

    /// Returns the first error of an observer that cannot record calls now. One that panics cannot.
    fn check_ready(&self) -> Result<(), Error> {
        let panicked = || Err(Error::new(ErrorKind::Unrecorded, "an observer panicked"));
        let check = || self.observers.iter().try_for_each(|observer| observer.check_ready());
        panics::contain(ROLE, check).unwrap_or_else(panicked)
    }

    /// Delivers the record of a call. Only observers that want the arguments get them; events never contain them.
    /// The record is large, so that it is not passed by value.
    fn report(&self, record: &mut CallRecord, call: &Call) {
        for observer in &*self.observers {
            panics::contain(ROLE, || {
                if observer.is_enabled() {
                    let wants_arguments = observer.wants_arguments();
                    if wants_arguments || record.arguments.is_some() {
                        record.arguments = call.get_arguments().filter(|_| wants_arguments).cloned();
                    }
                    observer.call_ended(record);
                }
            });
        }
        if self.events.has_receivers() {
            record.arguments = None;
            self.events.send(Event::CallEnded(Arc::new(record.clone())));
        }
    }
}

/// A call that is recorded exactly once, even if it is dropped before it ends.
pub(crate) struct ObservedCall<'a> {
    pub(crate) call: Box<Call>,
    observers: &'a Observers,
    /// When the call started; `None` if it is not recorded, or is recorded already.
    started: Option<Instant>,
    /// The id that the error of the call has, if it failed.
    id: Option<CallId>,
    spans: Option<Arc<CallSpans>>,
}

impl<'a> ObservedCall<'a> {
    pub(crate) fn new(mut call: Box<Call>, observers: &'a Observers) -> Self {
        let observed = observers.has_any();
        let mut spans = None;
        if observed {
            call.trace = CallTrace::enabled();
            spans = observers.start_spans(&mut call);
        }
        Self { call, observers, started: observed.then(Instant::now), id: None, spans }
    }

    /// Adds the id of the call to its error, if the call is recorded.
    pub(crate) fn name_call(&mut self, error: Error) -> Error {
        if self.started.is_none() {
            return error;
        }
        let id = *self.id.get_or_insert_with(|| new_call_id(clock::wall_time()));
        error.with_call_id(id)
    }

    /// Returns the first error of an observer that cannot record calls now.
    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        self.observers.check_ready()
    }

    /// Records the end of the call.
    pub(crate) fn finish(mut self, outcome: &Result<Outcome, Error>) {
        if let Some(started) = self.started.take() {
            self.report(started, Some(outcome));
        }
    }

    fn report(&mut self, started: Instant, outcome: Option<&Result<Outcome, Error>>) {
        let now = Instant::now();
        let call = &mut self.call;
        let mut trace = std::mem::take(&mut call.trace);
        let mut copied;
        let facts = match trace.unshared_facts() {
            Some(facts) => facts,
            None => {
                let Some(copy) = trace.copy_at_end(now) else { return };
                copied = copy;
                &mut copied
            }
        };
        facts.end_attempt(now);
        let failure = outcome.and_then(|outcome| outcome.as_ref().err());
        let is_denied =
            facts.denial.is_some() || failure.is_some_and(|error| error.kind() == ErrorKind::Denied);
        let (server, name) = match facts.target.take() {
            Some(Target { server, name }) => (Some(server), name),
            None => (failure.and_then(Error::server).cloned(), call.name().into()),
        };
        let duration = now.saturating_duration_since(started);
        let policy = match facts.decided {
            Some(decided) => decided.saturating_duration_since(started),
            // Everything that happened to a call that was denied is the decision.
            None if is_denied => duration,
            None => Duration::ZERO,
        };
        // A call that was continued had its server for longer than itself.
        let timing = CallTiming { policy, server: facts.timing.server.min(duration), ..facts.timing };
        if let Some(spans) = self.spans.as_mut().and_then(Arc::get_mut) {
            spans.server_transport = facts.server_transport;
        }
        let at = clock::wall_time();
        let mut record = CallRecord {
            id: self.id.unwrap_or_else(|| new_call_id(at)),
            at,
            caller: call.caller.clone(),
            client: CallClient { key: call.client.key, name: call.client_name.take(), era: call.client.era },
            method: call.method.clone(),
            server,
            name,
            decision: if is_denied { Decision::Denied } else { facts.decision },
            denial: facts.denial.take(),
            cache: facts.cache,
            request_bytes: call.params.iter().map(|(_, value)| value.len()).sum(),
            response_bytes: outcome.map_or(0, response_bytes),
            end: outcome.map_or(CallEnd::Cancelled, |outcome| call_end(outcome, facts.is_error)),
            duration,
            timing,
            attempts: facts.attempts,
            approval: failure.and_then(Error::approval_id).map(Arc::from),
            spans: self.spans.take(),
            arguments: None,
        };
        self.observers.report(&mut record, call);
        trace.recycle();
    }
}

impl Drop for ObservedCall<'_> {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            self.report(started, None);
        }
    }
}

/// Returns the id of a call that ends at `now`.
fn new_call_id(now: SystemTime) -> CallId {
    CallId::from_number(time_id::next_time_id(now))
}

fn response_bytes(outcome: &Result<Outcome, Error>) -> usize {
    outcome.as_ref().map_or(0, |outcome| outcome.raw().len())
}

/// Returns the end of a call. `is_error` says whether the answer of the server is an error, if that is known.
fn call_end(outcome: &Result<Outcome, Error>, is_error: Option<bool>) -> CallEnd {
    match outcome {
        Err(error) => CallEnd::Failed(error.kind()),
        Ok(outcome) if is_error.unwrap_or_else(|| outcome.is_error()) => CallEnd::ToolError,
        Ok(Outcome { answer: ResponsePayload::Result(result), era: Era::Stateless, .. })
            if input::parse_required_input(result).is_ok_and(|needed| needed.is_some()) =>
        {
            CallEnd::InputRequired
        }
        Ok(_) => CallEnd::Done,
    }
}
