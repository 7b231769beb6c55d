//! A live, multiplexed connection to one server.
//!
//! Any number of calls share it. It speaks the server's era, enforces the server's limits and knows how to stop the
//! server. When the server exits, all calls in flight fail immediately.

mod call_context;
pub(crate) mod deadline;
mod fair_queue;
pub(crate) mod handshake;
pub(crate) mod launch;
pub(crate) mod listing;
pub(crate) mod mux;
pub(crate) mod on_question;
mod pending;
pub(crate) mod relist;
mod seen_clients;
mod subscriptions;
mod task_call;
pub(crate) mod transport;

use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::call::Call;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::Delivery;
use crate::model::hint::Hint;
use crate::model::outcome::Outcome;
use crate::model::trace_context::NetworkTransport;
use crate::process::ServerProcess;
use crate::protocol::era::client::{DISCOVER, PING, PROGRESS, ROOTS_CHANGED};
use crate::protocol::era::handshake::HandshakeResult;
use crate::protocol::era::{self, input};
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::{ResponsePayload, move_own_code};
use crate::protocol::versions::Era;
use crate::spec::{InProcessServer, ServerId, ServerLimits, ServerSpec, ToolsSpec};
use crate::util::locks::IgnorePoison as _;
use crate::util::panics;
use deadline::{Deadline, RequestDeadline};
use fair_queue::{FairQueue, Turn, TurnRequest};
use listing::ClientLists;
use mux::{Mux, PendingReply};
use pending::ResponseReceiver;
use subscriptions::ResourceSubscriptions;
use task_call::TaskOnlyTools;
use transport::MessageLimit;

/// Interval at which [`Connection::ping`] checks for other activity of the server.
const ACTIVITY_POLL: Duration = Duration::from_millis(50);

/// A live, multiplexed connection to one server.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) server: ServerId,
    /// True if it serves all clients.
    is_shared: bool,
    mux: Mux,
    peer: Peer,
    pub(crate) handshake: HandshakeResult,
    /// The name and version that the server sees, as JSON.
    client_info: Bytes,
    settings: RwLock<Arc<CallSettings>>,
    message_limit: MessageLimit,
    call_queue: FairQueue,
    subscriptions: ResourceSubscriptions,
    task_only_tools: TaskOnlyTools,
    client_lists: ClientLists,
}

/// The part of a spec that every call on a connection follows. It can be replaced while the connection is open.
#[derive(Debug)]
struct CallSettings {
    limits: ServerLimits,
    tools: ToolsSpec,
}

impl CallSettings {
    fn from_spec(spec: &ServerSpec) -> Self {
        Self { limits: spec.limits.clone(), tools: spec.tools.clone() }
    }
}

/// The server's side of a connection.
#[derive(Debug)]
pub(crate) enum Peer {
    Process(ServerProcess),
    InProcess(AbortOnDropHandle<()>, InProcessServer),
    /// A process that the gateway does not manage. The HTTP transport ends its session.
    Remote,
}

impl Connection {
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.peer {
            Peer::Process(process) => Some(process.pid()),
            Peer::InProcess(..) | Peer::Remote => None,
        }
    }

    /// Returns how messages are carried; `None` within this process.
    pub(crate) fn transport(&self) -> Option<NetworkTransport> {
        match &self.peer {
            Peer::Process(_) => Some(NetworkTransport::Pipe),
            Peer::InProcess(..) => None,
            Peer::Remote => Some(NetworkTransport::Tcp),
        }
    }

    /// Returns the server's memory use in bytes, if it can be measured.
    pub(crate) fn memory_usage(&self) -> Option<u64> {
        match &self.peer {
            Peer::Process(process) => process.memory_usage(),
            Peer::InProcess(_, server) => panics::contain("in-process server", || server.0.memory())?,
            Peer::Remote => None,
        }
    }

    /// Returns the CPU time that the server has used, if it can be measured.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        match &self.peer {
            Peer::Process(process) => process.cpu_time(),
            Peer::InProcess(..) | Peer::Remote => None,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.mux.in_flight()
    }

    /// Returns the clients that have sent calls, if they are remembered: those of a shared server that may ask them.
    pub(crate) fn seen_clients(&self) -> Vec<u64> {
        self.mux.seen_clients()
    }

    /// Forgets a client that has disconnected.
    pub(crate) fn forget_client(&self, client: u64) {
        self.mux.forget_client(client);
    }

    /// Returns the number of calls that wait for a turn.
    pub(crate) fn queued(&self) -> usize {
        self.call_queue.waiting()
    }

    pub(crate) fn garbage_lines(&self) -> u64 {
        self.mux.garbage_lines()
    }

    fn settings(&self) -> Arc<CallSettings> {
        self.settings.read().ignore_poison().clone()
    }

    /// Takes over the settings of a changed spec for calls from now on. Calls in flight keep their deadlines.
    pub(crate) fn apply_settings(&self, spec: &ServerSpec) {
        *self.settings.write().ignore_poison() = Arc::new(CallSettings::from_spec(spec));
        self.message_limit.set(spec.limits.message);
        self.call_queue.set_in_flight(spec.limits.in_flight.get());
    }

    /// Waits until the server is gone and all calls in flight have ended.
    pub(crate) async fn closed(&self) {
        self.mux.closed().await;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.mux.is_closed()
    }

    /// Returns whether the server exited because it was asked to stop.
    pub(crate) fn was_stopped(&self) -> bool {
        self.mux.was_stopped()
    }

    /// Returns whether the server is not run by this gateway.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.peer, Peer::Remote)
    }

    /// Returns whether the server speaks HTTP+SSE.
    pub(crate) fn is_legacy_sse(&self) -> bool {
        self.mux.is_legacy_sse()
    }

    /// Declares the server hung and fails all calls in flight immediately.
    pub(crate) fn mark_hung(&self) {
        self.mux.mark_hung();
    }

    /// Sets the error for calls in flight that a following stop interrupts.
    pub(crate) fn set_stop_reason(&self, reason: &Error) {
        self.mux.set_stop_reason(reason.clone());
    }

    /// Pings the server. Any message within the limit counts as a response. So does its exit, which is reported
    /// elsewhere.
    pub(crate) async fn ping(&self, limit: Duration) -> bool {
        let received = self.mux.received_count();
        let until = Instant::now() + limit;
        let method = if self.era() == Era::Session { PING } else { DISCOVER };
        let mut reply = match self.send_request(method, &mut Object::default(), None, None) {
            Ok(reply) => reply,
            Err(error) => return self.is_closed() || error.kind() == ErrorKind::BadReply,
        };
        loop {
            match timeout_at(until.min(Instant::now() + ACTIVITY_POLL), &mut reply).await {
                Ok(Ok(_)) => return true,
                Ok(Err(error)) => return self.is_closed() || error.kind() == ErrorKind::BadReply,
                Err(_) if self.is_closed() || self.mux.received_count() != received => return true,
                Err(_) if Instant::now() >= until => return false,
                Err(_) => {}
            }
        }
    }

    /// Returns why the server is gone.
    pub(crate) fn exit_error(&self) -> Error {
        self.mux.exit_error(Delivery::MaybeSent)
    }

    /// Sends a notification in the session era; the stateless era has none.
    pub(crate) fn notify(&self, method: &str) {
        if self.era() == Era::Session {
            self.mux.notify(method);
        }
    }

    /// Closes the server's input, then stops the server: gracefully first, then by force.
    pub(crate) async fn stop(&self) {
        self.mux.request_stop();
        match &self.peer {
            Peer::Process(process) => process.stop(self.mux.is_hung()).await,
            Peer::InProcess(task, _) => task.abort(),
            Peer::Remote => {}
        }
        self.mux.closed().await;
    }

    /// Sends a call and waits for the response. Dropping the future cancels the call at the server.
    pub(crate) async fn call(
        &self,
        call: &mut Call,
        own_name: &str,
        began: Instant,
    ) -> Result<Outcome, Error> {
        if self.era() == Era::Session && call.params.get(input::REQUEST_STATE).is_some() {
            return Ok(self.to_outcome(ResponsePayload::Error(input::invalid_state_error())));
        }
        self.add_client(call);
        if call.is_notification {
            return self.notify_for(call, own_name);
        }
        let settings = self.settings();
        let deadline = Deadline::new(&settings.limits, &settings.tools, own_name, began);
        let requested = self.call_queue.request(call.client.key);
        let is_queued = !matches!(requested, TurnRequest::Granted(_));
        call.sent_late |= is_queued;
        let turn = self.wait_for_turn(requested, &deadline).await;
        if is_queued {
            call.trace.record(|facts| facts.end_queue_wait(Instant::now()));
        }
        let turn = turn?;
        if let Some(level) = call.client.log_level {
            Box::pin(self.raise_log_level(level)).await;
        }
        call.set_own_name(own_name);
        if let Peer::InProcess(_, server) = &self.peer
            && server.0.wants_call_context()
        {
            call_context::write(call, deadline.initial(), Instant::now());
        }
        let receiver = ResponseReceiver {
            client: call.client.clone(),
            updates: call.update_sink.clone(),
            turn: Some(turn),
        };
        let needs_task = self.needs_task(call, own_name);
        if needs_task {
            call.params.set_unchecked("task", "{}");
        }
        let request_deadline = Some(deadline.for_request());
        let sent = self.send_request(&call.method, &mut call.params, Some(receiver), request_deadline);
        if needs_task {
            call.params.remove("task");
        }
        let reply = sent?;
        call.dispatched = true;
        let mut response = self.await_reply(reply, &deadline).await?;
        if needs_task {
            response = Box::pin(self.await_task_result(call, response, &deadline)).await?;
        }
        Ok(self.to_outcome(response))
    }

    /// Records that a client uses the instance.
    pub(crate) fn add_client(&self, call: &Call) {
        self.mux.clients().add(&call.client, call.client_context.as_ref());
    }

    /// Sends a notification of a client. The outcome is an empty result.
    fn notify_for(&self, call: &mut Call, own_name: &str) -> Result<Outcome, Error> {
        call.set_own_name(own_name);
        let is_passed = match call.method() {
            // Those of one client are not those of a session that others use too. Its own instances are notified by themselves.
            ROOTS_CHANGED => self.is_shared && self.mux.clients().is_only(call.client.key),
            // A token of one client must not be mistaken for that of a question to another.
            PROGRESS => !self.mux.has_open_questions(),
            _ => true,
        };
        if !is_passed {
            return Ok(self.to_outcome(ResponsePayload::Result(Bytes::from_static(b"{}"))));
        }
        let revision = self.handshake.revision;
        era::adapt_params_for_server(&mut call.params, revision, Some(&call.client), &self.client_info, None);
        self.mux.send_notification(&call.method, &call.params)?;
        call.dispatched = true;
        Ok(self.to_outcome(ResponsePayload::Result(Bytes::from_static(b"{}"))))
    }

    pub(crate) fn era(&self) -> Era {
        self.handshake.revision.era()
    }

    fn to_outcome(&self, response: ResponsePayload) -> Outcome {
        let response = match response {
            ResponsePayload::Error(error) => {
                ResponsePayload::Error(self.mux.redactor().redact_json(move_own_code(error)))
            }
            response => response,
        };
        Outcome {
            answer: response,
            era: self.era(),
            server: Some(self.server.clone()),
            server_info: self.mux.server_info(),
        }
    }

    /// Waits for one of the server's in-flight turns; the wait counts towards the call's deadline.
    async fn acquire_turn(&self, client: u64, deadline: &Deadline<'_>) -> Result<Turn, Error> {
        self.wait_for_turn(self.call_queue.request(client), deadline).await
    }

    async fn wait_for_turn(&self, requested: TurnRequest, deadline: &Deadline<'_>) -> Result<Turn, Error> {
        let server = &self.server;
        let in_flight = || self.settings().limits.in_flight;
        let refuse = |kind, message| {
            let hint = Hint::RaiseLimit { key: format!("servers.{server}.limits.in-flight") };
            Error::new(kind, message).with_server(server).with_hint(hint).mark_not_sent()
        };
        let full = || {
            let message = format!("`{server}` is busy with {} calls and its queue is full", in_flight());
            refuse(ErrorKind::Overloaded, message)
        };
        let mut queued = match requested {
            TurnRequest::Granted(turn) => return Ok(turn),
            TurnRequest::Queued(queued) => queued,
            TurnRequest::Full => return Err(full()),
        };
        match Box::pin(timeout_at(deadline.initial(), queued.wait())).await {
            Ok(turn) => turn.ok_or_else(full),
            Err(_) => {
                let others = in_flight();
                let message =
                    format!("`{server}` was busy with {others} other calls until the call timed out");
                Err(refuse(ErrorKind::TimedOut, message))
            }
        }
    }

    /// Sends a request of the gateway itself and waits for the response.
    pub(crate) async fn request(&self, method: &str, mut params: Object) -> Result<ResponsePayload, Error> {
        let settings = self.settings();
        let deadline = Deadline::new(&settings.limits, &settings.tools, "", Instant::now());
        let reply = self.send_request(method, &mut params, None, Some(deadline.for_request()))?;
        self.await_reply(reply, &deadline).await
    }

    fn send_request(
        &self,
        method: &str,
        params: &mut Object,
        receiver: Option<ResponseReceiver>,
        deadline: Option<RequestDeadline>,
    ) -> Result<PendingReply, Error> {
        let revision = self.handshake.revision;
        let client = receiver.as_ref().map(|receiver| receiver.client.clone());
        let wants_updates = receiver.as_ref().is_some_and(|receiver| receiver.updates.is_some());
        self.mux.send_request(method, receiver, deadline, |id, line| {
            let progress_token = wants_updates.then_some(id);
            era::adapt_params_for_server(
                params,
                revision,
                client.as_ref(),
                &self.client_info,
                progress_token,
            );
            params.write_to(line);
        })
    }

    /// Waits for the response to a request with this deadline.
    async fn await_reply(
        &self,
        mut reply: PendingReply,
        deadline: &Deadline<'_>,
    ) -> Result<ResponsePayload, Error> {
        let response = (&mut reply).await;
        match reply.missed_deadline() {
            Some(until) => Err(reply.explain_timeout(deadline.timeout_error(&self.server, until))),
            None => response,
        }
    }
}

#[cfg(test)]
mod tests;
