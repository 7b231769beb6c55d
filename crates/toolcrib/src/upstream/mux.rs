//! Requests multiplexed over the transport of one server.
//!
//! A request is in the table before its bytes are sent; dropping its `PendingReply` removes it and cancels it at the
//! server. Notifications and requests of the server go to the client they belong to. When the transport breaks, all
//! pending requests fail with the server's exit report.

mod deadline_timer;
mod incoming;
#[cfg_attr(not(feature = "http"), expect(dead_code, reason = "the HTTP transport uses more of it"))]
pub(super) mod link;
mod oversize;
mod pending_reply;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::deadline::RequestDeadline;
use super::on_question::OnQuestion;
use super::pending::{PendingRequest, PendingRequests, RequestEnd, ResponseReceiver};
use super::relist::RelistQueue;
use super::transport::input_pipe::DirectInput;
use super::transport::{OutgoingQueue, QueuedMessage, Transport, TransportLink};
use crate::cache::ResponseCache;
use crate::call::client_context::InstanceOwner;
use crate::call::client_handlers::ClientHandlers;
use crate::call::instance_clients::InstanceClients;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::ServerNotification;
use crate::model::exit_report::ExitReport;
use crate::model::failure_class::{Delivery, FailureClass};
use crate::observer::event_channel::EventChannel;
use crate::protocol::era::client::PING;
use crate::protocol::framing::replace_line_breaks;
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc;
use crate::secrets::Redactor;
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

use link::CloseOnDrop;
pub(super) use pending_reply::PendingReply;

/// Bytes that may be queued for a server that does not read its input.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// The gateway's end of a multiplexed connection.
#[derive(Debug)]
pub(crate) struct Mux {
    inner: Arc<MuxInner>,
}

#[derive(Debug)]
struct MuxInner {
    server: ServerId,
    owner: Arc<InstanceOwner>,
    /// Answers requests of the server that no client answers.
    handlers: Option<Arc<ClientHandlers>>,
    pending: Mutex<PendingRequests>,
    outgoing: mpsc::UnboundedSender<QueuedMessage>,
    queued_bytes: AtomicUsize,
    /// Takes the only request in flight, past the empty queue.
    direct_input: OnceLock<DirectInput>,
    /// Wakes the task of the deadlines after the timer was set to an earlier time.
    timer_changed: Notify,
    garbage_lines: AtomicU64,
    /// Grows with every read from the server, also when it holds no valid message.
    received_count: AtomicU64,
    /// Set by the first valid message from the server.
    has_spoken_mcp: AtomicBool,
    /// The first line that was not a message.
    first_garbage_line: Arc<OnceLock<String>>,
    /// Removes the server's secrets from messages about it.
    redactor: Arc<Redactor>,
    /// The reason why the peer is not an MCP server, once that is known.
    not_mcp_reason: OnceLock<String>,
    /// Set when the server has methods of the session era, such as `ping`.
    has_ping: AtomicBool,
    /// Set when a client has chosen the log level of the server.
    is_log_level_set: AtomicBool,
    /// The name and version of the server as results show them, after the handshake.
    server_info: OnceLock<Bytes>,
    /// Set when the server turns out to speak HTTP+SSE.
    legacy_sse: AtomicBool,
    /// Set when the server is declared hung.
    hung: AtomicBool,
    /// The lists that have to be fetched again.
    relist_queue: RelistQueue,
    notifications: EventChannel<ServerNotification>,
    cache: Arc<ResponseCache>,
    /// The newest acknowledgement of a listen request.
    listen_ack: watch::Sender<ListenAck>,
    tasks: TaskTracker,
    /// True if log messages of the server may name the request that they belong to.
    logs_name_requests: bool,
    on_question: Option<OnQuestion>,
    /// Closes the server's input. Also cancelled when one direction breaks.
    close_input: CancellationToken,
    /// Set when the server is asked to stop, so that its exit is not a crash.
    stop_requested: AtomicBool,
    /// The error for calls that the stop interrupts, if it has a specific reason.
    stop_reason: OnceLock<Error>,
    /// Cancelled when one direction breaks; the parent of `close_input`.
    broken: CancellationToken,
    /// Cancelled when the peer is gone and all pending requests have ended.
    closed: CancellationToken,
    end: OnceLock<MuxEnd>,
}

/// The end of a connection.
#[derive(Debug, Clone, Default)]
struct MuxEnd {
    report: ExitReport,
    /// True if the gateway had asked the server to stop.
    was_stopped: bool,
}

/// The server's acknowledgement of a `subscriptions/listen` request.
#[derive(Debug, Default)]
struct ListenAck {
    request: u64,
    params: Option<Bytes>,
}

/// The services that a [`Mux`] uses.
#[derive(Debug)]
pub(super) struct MuxContext {
    pub(super) owner: Arc<InstanceOwner>,
    /// Answers requests of the server that no client answers.
    pub(super) handlers: Option<Arc<ClientHandlers>>,
    pub(super) notifications: EventChannel<ServerNotification>,
    pub(super) cache: Arc<ResponseCache>,
    /// Receives the first line from the server that is not a message.
    pub(super) first_garbage_line: Arc<OnceLock<String>>,
    pub(super) redactor: Arc<Redactor>,
    pub(super) tasks: TaskTracker,
    /// True if log messages of the server may name the request that they belong to.
    pub(super) logs_name_requests: bool,
    /// Learns about requests to clients, of a server that clients share.
    pub(super) on_question: Option<OnQuestion>,
}

impl Mux {
    /// Creates a mux and runs its transport.
    pub(super) fn new(server: ServerId, context: MuxContext, transport: impl Transport) -> Self {
        let MuxContext {
            owner,
            handlers,
            notifications,
            cache,
            first_garbage_line,
            redactor,
            tasks,
            logs_name_requests,
            on_question,
        } = context;
        let (outgoing, messages) = mpsc::unbounded_channel();
        let broken = CancellationToken::new();
        let inner = Arc::new(MuxInner {
            server,
            owner,
            handlers,
            pending: Mutex::default(),
            outgoing,
            queued_bytes: AtomicUsize::new(0),
            direct_input: OnceLock::new(),
            timer_changed: Notify::new(),
            garbage_lines: AtomicU64::new(0),
            received_count: AtomicU64::new(0),
            has_spoken_mcp: AtomicBool::new(false),
            first_garbage_line,
            redactor,
            not_mcp_reason: OnceLock::new(),
            has_ping: AtomicBool::new(false),
            is_log_level_set: AtomicBool::new(false),
            server_info: OnceLock::new(),
            legacy_sse: AtomicBool::new(false),
            hung: AtomicBool::new(false),
            relist_queue: RelistQueue::default(),
            notifications,
            cache,
            listen_ack: watch::Sender::default(),
            tasks,
            logs_name_requests,
            on_question,
            close_input: broken.child_token(),
            stop_requested: AtomicBool::new(false),
            stop_reason: OnceLock::new(),
            broken,
            closed: CancellationToken::new(),
            end: OnceLock::new(),
        });
        let link = TransportLink::new(inner.clone());
        let queue = OutgoingQueue::new(inner.clone(), messages);
        let closer = CloseOnDrop::new(link.clone());
        let running = Box::new(transport).run(link, queue);
        inner.tasks.spawn_boxed(async move { closer.close(running.await) });
        inner.tasks.spawn_boxed(deadline_timer::run(inner.clone()));
        Self { inner }
    }

    pub(super) fn redactor(&self) -> &Redactor {
        &self.inner.redactor
    }

    /// Sends a request. `params` gets the request id and writes a JSON object.
    pub(super) fn send_request(
        &self,
        method: &str,
        receiver: Option<ResponseReceiver>,
        deadline: Option<RequestDeadline>,
        params: impl FnOnce(u64, &mut Vec<u8>),
    ) -> Result<PendingReply, Error> {
        let (reply_sender, reply_receiver) = oneshot::channel();
        let mut pending = self.inner.pending();
        let id = pending.insert(PendingRequest::new(reply_sender, receiver).with_deadline(deadline));
        let ping = self.inner.add_ping_after_cancellation(&mut pending);
        let is_alone = pending.check_alone();
        let must_wake_timer = pending.set_timer_earlier(deadline);
        drop(pending);
        if must_wake_timer {
            self.inner.timer_changed.notify_one();
        }
        let id = id.ok_or_else(|| self.exit_error(Delivery::NotSent))?;
        self.inner.send_ping(ping);
        let pending_reply = PendingReply::new(self.inner.clone(), id, reply_receiver);
        let mut line = Vec::with_capacity(256);
        jsonrpc::write_request_head(&mut line, id, method);
        params(id, &mut line);
        line.push(b'}');
        if let Err(error) = self.check_queue(line.len()) {
            self.inner.pending().remove(id); // never sent, so there is nothing to cancel
            return Err(error);
        }
        match is_alone {
            true => self.inner.send_directly(id, line),
            false => self.inner.send(Some(id), line),
        }
        Ok(pending_reply)
    }

    /// Returns an error if a message of this size has to wait for too many others.
    fn check_queue(&self, len: usize) -> Result<(), Error> {
        let queued = self.inner.queued_bytes.load(Ordering::Relaxed);
        if queued == 0 || queued + len <= MAX_QUEUED_BYTES {
            return Ok(());
        }
        let server = &self.inner.server;
        let error = Error::new(ErrorKind::TimedOut, format!("`{server}` does not read its input"));
        Err(error.with_server(server).mark_not_sent())
    }

    /// Sends a notification with these parameters.
    pub(super) fn send_notification(&self, method: &str, params: &Object) -> Result<(), Error> {
        if self.is_closed() {
            return Err(self.exit_error(Delivery::NotSent));
        }
        let params = (!params.is_empty()).then(|| params.to_bytes());
        let line = jsonrpc::encode_notification(method, params.as_deref());
        self.check_queue(line.len())?;
        self.inner.send(None, line);
        Ok(())
    }

    pub(super) fn notify(&self, method: &str) {
        self.inner.send(None, jsonrpc::encode_notification(method, None));
    }

    pub(super) fn request_stop(&self) {
        self.inner.stop_requested.store(true, Ordering::Relaxed);
        self.inner.close_input.cancel();
    }

    /// Sets the error for calls that the stop interrupts.
    pub(super) fn set_stop_reason(&self, reason: Error) {
        // Only the first reason counts.
        let _ = self.inner.stop_reason.set(reason);
    }

    pub(super) async fn closed(&self) {
        self.inner.closed.cancelled().await;
    }

    /// Returns whether the server exited because it was asked to stop.
    pub(super) fn was_stopped(&self) -> bool {
        self.inner.end.get().is_some_and(|end| end.was_stopped)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.inner.end.get().is_some()
    }

    pub(super) fn relist_queue(&self) -> &RelistQueue {
        &self.inner.relist_queue
    }

    /// Waits until the server acknowledges the listen request `id`; returns the notification's parameters.
    pub(super) async fn wait_acknowledged(&self, id: u64) -> Option<Bytes> {
        let mut listen_ack = self.inner.listen_ack.subscribe();
        // `inner` holds the sender, so waiting cannot fail.
        listen_ack.wait_for(|ack| ack.request == id).await.ok()?.params.clone()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.inner.pending().in_flight()
    }

    /// Returns the remembered clients.
    pub(super) fn seen_clients(&self) -> Vec<u64> {
        self.inner
            .pending()
            .seen_clients()
            .as_ref()
            .map_or_else(Vec::new, |clients| clients.as_slice().to_vec())
    }

    pub(super) fn forget_client(&self, client: u64) {
        if let Some(clients) = self.inner.pending().seen_clients() {
            clients.remove(client);
        }
    }

    /// Returns whether any request of the server waits for an answer.
    pub(super) fn has_open_questions(&self) -> bool {
        self.inner.pending().has_open_questions()
    }

    /// Returns a count that grows with every read from the server.
    pub(super) fn received_count(&self) -> u64 {
        self.inner.received_count.load(Ordering::Relaxed)
    }

    /// Returns why the peer is not an MCP server, once that is known.
    pub(super) fn not_mcp_reason(&self) -> Option<&str> {
        self.inner.not_mcp_reason.get().map(String::as_str)
    }

    /// Returns whether the peer has sent a valid message.
    pub(super) fn has_spoken_mcp(&self) -> bool {
        self.inner.has_spoken_mcp.load(Ordering::Relaxed)
    }

    /// Returns the first line that is not a message, if there was one before the first message.
    pub(super) fn first_garbage_line(&self) -> Option<&str> {
        self.inner.first_garbage_line.get().map(String::as_str)
    }

    /// Returns the clients of the instance.
    pub(super) fn clients(&self) -> &InstanceClients {
        &self.inner.owner.clients
    }

    /// Declares the server hung and fails all pending requests.
    pub(super) fn mark_hung(&self) {
        self.inner.hung.store(true, Ordering::Relaxed);
        self.inner.broken.cancel();
    }

    /// Remembers the client of the last call, for log messages that arrive after its response.
    pub(super) fn remember_last_client(&self) {
        self.inner.pending().remember_last_client();
    }

    /// Sets the name and version of the server as results show them.
    pub(super) fn set_server_info(&self, info: Bytes) {
        // There is one handshake.
        let _ = self.inner.server_info.set(info);
    }

    /// Returns the name and version of the server as results show them.
    pub(super) fn server_info(&self) -> Option<Bytes> {
        self.inner.server_info.get().cloned()
    }

    /// Records that a client has chosen the log level of the server.
    pub(super) fn mark_log_level_set(&self) {
        self.inner.is_log_level_set.store(true, Ordering::Relaxed);
    }

    /// Records that the server has opened a session: it can be pinged, and may send requests to clients, which are remembered if
    /// anyone wants to know of such requests.
    pub(super) fn enable_session(&self) {
        self.inner.has_ping.store(true, Ordering::Relaxed);
        if self.inner.on_question.is_some() {
            self.inner.pending().seen_clients().get_or_insert_default();
        }
    }

    /// Returns whether the server turned out to speak HTTP+SSE.
    pub(super) fn is_legacy_sse(&self) -> bool {
        self.inner.legacy_sse.load(Ordering::Relaxed)
    }

    pub(super) fn is_hung(&self) -> bool {
        self.inner.hung.load(Ordering::Relaxed)
    }

    pub(super) fn garbage_lines(&self) -> u64 {
        self.inner.garbage_lines.load(Ordering::Relaxed)
    }

    pub(super) fn exit_error(&self, delivery: Delivery) -> Error {
        self.inner.exit_error(delivery)
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        self.inner.broken.cancel();
    }
}

/// Makes a message one line.
fn end_line(message: &mut Vec<u8>) {
    replace_line_breaks(message);
    message.push(b'\n');
}

impl MuxInner {
    fn pending(&self) -> MutexGuard<'_, PendingRequests> {
        self.pending.lock().ignore_poison()
    }

    fn send(&self, id: Option<u64>, mut line: Vec<u8>) {
        end_line(&mut line);
        self.queue(id, line);
    }

    /// Sends the only request in flight. It is written immediately if nothing is queued, which saves a task switch: 5 % of the
    /// instructions of a call. With more requests, one write for all of them is cheaper.
    fn send_directly(&self, id: u64, mut line: Vec<u8>) {
        end_line(&mut line);
        let is_written = self.queued_bytes.load(Ordering::Relaxed) == 0
            && self.direct_input.get().is_some_and(|input| input.try_write(&line));
        if !is_written {
            self.queue(Some(id), line);
        }
    }

    fn queue(&self, id: Option<u64>, line: Vec<u8>) {
        let queued = self.queued_bytes.fetch_add(line.len(), Ordering::Relaxed);
        if queued > 2 * MAX_QUEUED_BYTES {
            self.broken.cancel(); // the server sends requests and never reads the answers
        }
        // The transport drops its queue when it ends. The request then fails as not sent.
        if let Err(mpsc::error::SendError(QueuedMessage { id: Some(id), .. })) =
            self.outgoing.send(QueuedMessage { id, line })
        {
            self.pending().mark_not_sent(id);
        }
    }

    /// Adds a ping if a cancelled request makes it unclear which client a question belongs to.
    fn add_ping_after_cancellation(&self, pending: &mut PendingRequests) -> Option<u64> {
        self.has_ping.load(Ordering::Relaxed).then(|| pending.insert_ping_after_cancellation()).flatten()
    }

    /// Sends a ping with this id, if there is one.
    fn send_ping(&self, id: Option<u64>) {
        if let Some(id) = id {
            let mut line = Vec::new();
            jsonrpc::write_request_head(&mut line, id, PING);
            line.extend_from_slice(b"{}}");
            self.send(Some(id), line);
        }
    }

    fn finish_request(&self, id: u64, end: RequestEnd) {
        let request = self.pending().remove(id);
        if let Some(request) = request {
            request.finish(end);
        }
    }

    fn close(&self, report: ExitReport) {
        // Called once, when the transport has ended.
        let _ = self.end.set(MuxEnd { report, was_stopped: self.stop_requested.load(Ordering::Relaxed) });
        let requests = self.pending().close();
        for request in requests {
            request.finish_lost();
        }
        self.owner.clients.process_ended();
        self.closed.cancel();
    }

    fn exit_error(&self, delivery: Delivery) -> Error {
        let not_sent = delivery == Delivery::NotSent;
        let MuxEnd { report, was_stopped } = self.end.get().cloned().unwrap_or_default();
        if let Some(reason) = self.stop_reason.get().filter(|_| was_stopped).cloned() {
            let error = reason.with_exit_report(report);
            return if not_sent { error.mark_not_sent() } else { error };
        }
        let server = &self.server;
        let (message, class) = match (was_stopped, not_sent) {
            _ if self.hung.load(Ordering::Relaxed) => {
                let message = "hung: it answered neither a call nor a ping, and was replaced";
                (format!("`{server}` {message}"), Some(FailureClass::Hung))
            }
            (true, _) => (format!("`{server}` was stopped"), None),
            (false, true) => (format!("`{server}` is gone: {report}"), Some(report.failure_class())),
            (false, false) => (format!("`{server}` died: {report}"), Some(report.failure_class())),
        };
        let error = Error::new(ErrorKind::Lost, message).with_server(server).with_exit_report(report);
        let error = class.into_iter().fold(error, Error::with_class);
        if not_sent { error.mark_not_sent() } else { error }
    }
}
