//! MCP over a pair of pipes: for agents that start `toolcrib stdio`, and for that command when it is attached to a gateway.
//!
//! Both eras may be mixed on one pipe. Requests run concurrently; those in progress when the client disconnects get some time
//! to finish.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::model::trace_context::NetworkTransport;
use toolcrib::protocol::era::client::{
    self, CANCELLED, DeclaredEra, INITIALIZE, LISTEN, PING, RequestMeta, RequestMetaReader,
};
use toolcrib::protocol::framing::{Frame, FrameDecoder, OversizeMessage};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{
    ClientMessage, RequestId, ResponsePayload, code, encode_error_response, encode_notification,
    encode_response, error_object, find_request_id,
};
use toolcrib::protocol::versions::Era;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{Caller, ClientContext, Error, ErrorKind, Project};

use crate::batch::{BatchPart, NEEDS_SESSION, duplicate_id_response, is_batch, join_responses, parse_batch};
use crate::outbox::{Outbox, outbox};
use crate::service::change_watcher::ChangeWatcher;
use crate::service::in_flight::InFlight;
use crate::service::session_client::SessionClientState;
use crate::service::updates::{PendingQuestions, UpdateReceiver, UpdateWriter};
use crate::service::{ClientHandle, EndpointScope, McpService, RequestContext, error_payload};

/// Concurrent requests of one client.
const MAX_IN_FLIGHT: usize = 4096;
/// Time that requests get to finish after the client has disconnected.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Receives the response to one request of a batch.
type ReplySlot = oneshot::Sender<Vec<u8>>;

/// The identity of a pipe client.
#[derive(Debug, Clone)]
pub struct PipeIdentity {
    /// The caller whose rules apply.
    pub caller: Caller,
    /// The project the client works in, if it is known.
    pub project: Option<Project>,
    /// Number of the last question that this client was sent on an earlier pipe; new ones are numbered after it.
    pub last_question: u64,
    /// True if the client understands [`PIPE_END`], which it is then sent before a stopped pipe is closed.
    pub announces_end: bool,
}

/// The method of the last message on a pipe that was stopped. Requests that the client has sent and that are not answered by then
/// were not run.
#[doc(hidden)]
pub const PIPE_END: &str = "notifications/toolcrib/pipe_end";

impl PipeIdentity {
    /// Creates the identity of a client that was not connected before and works in no known project.
    pub fn new(caller: Caller) -> Self {
        Self { caller, project: None, last_question: 0, announces_end: false }
    }
}

/// One client on a pipe.
struct PipeClient {
    service: Arc<McpService>,
    scope: EndpointScope,
    out: Outbox,
    /// The session, once the client has sent `initialize`.
    session: watch::Sender<Option<Arc<SessionClientState>>>,
    /// The client of stateless requests.
    handle: ClientHandle,
    client_context: Arc<ClientContext>,
    /// Reads the `_meta` of stateless requests.
    meta_reader: RequestMetaReader,
    project: Option<Project>,
    /// The reasons for cancellations of stateless requests. Stateless clients are never asked during a call.
    stateless_questions: Arc<PendingQuestions>,
    /// Number of the last question that was sent before this pipe.
    last_question: u64,
    in_flight: Arc<InFlight<AbortHandle>>,
    tasks: TaskTracker,
    /// Cancelled at shutdown and disconnect; ends listen streams.
    stop_streams: CancellationToken,
}

/// The way a request is handled.
enum PipeRequestMode {
    InSession(Arc<SessionClientState>),
    Stateless(RequestMeta),
    /// A ping before `initialize`.
    Ping,
}

/// Serves one client until it disconnects or, after `stop`, until its requests are answered. Messages may have at most
/// `max_message` bytes.
///
/// # Cancel safety
/// Not cancel safe: if the future is dropped, requests in progress go on without their client, and what they answer is
/// lost. Cancel `stop` instead.
pub async fn serve_pipe<R, W>(
    mut reader: R,
    writer: W,
    service: Arc<McpService>,
    max_message: usize,
    identity: PipeIdentity,
    stop: CancellationToken,
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let PipeIdentity { caller, project, last_question, announces_end } = identity;
    let (out, receiver) = outbox();
    let (session, session_changes) = watch::channel(None);
    let tasks = TaskTracker::new();
    let mut writing = tasks.spawn_boxed(receiver.write(writer));
    let scope = EndpointScope { transport: Some(NetworkTransport::Pipe), ..EndpointScope::trusted(caller) };
    let notifying = tasks.spawn_boxed(notify_sessions(service.clone(), session_changes, out.clone()));
    let pipe = PipeClient {
        handle: service.connect_client(),
        scope,
        client_context: Arc::new(ClientContext::default().project(project.clone())),
        project,
        stateless_questions: Arc::default(),
        last_question,
        service,
        out,
        session,
        meta_reader: RequestMetaReader::default(),
        in_flight: Arc::default(),
        tasks: TaskTracker::new(),
        stop_streams: stop.child_token(),
    };
    let mut frames = FrameDecoder::new(max_message);
    loop {
        let is_stopping = pipe.tasks.is_closed();
        tokio::select! {
            count = pipe.read(&mut reader, &mut frames) => if !matches!(count, Ok(1..)) { break },
            // Ends as soon as no request is in progress. A crib that shuts down refuses new calls.
            () = stop.cancelled(), if !is_stopping => { pipe.tasks.close(); }
            () = pipe.tasks.wait(), if is_stopping => break,
            // The client no longer reads.
            _ = &mut writing => break,
        }
        while let Some(frame) = frames.next_frame() {
            pipe.handle_frame(frame).await;
        }
    }
    notifying.abort();
    if announces_end && stop.is_cancelled() {
        pipe.out.send(encode_notification(PIPE_END, None)).await;
    } else if let Some(rest) = frames.take_remainder() {
        pipe.handle_line(&rest).await;
    }
    pipe.disconnect().await;
    // The writer ends after the last message, if the client reads it in time.
    if !writing.is_finished() {
        let _ = timeout(DRAIN_TIMEOUT, writing).await;
    }
}

impl PipeClient {
    async fn handle_frame(&self, frame: Frame) {
        match frame {
            Frame::Line(line) if line.trim_ascii().is_empty() => {}
            Frame::Line(line) => self.handle_line(&line).await,
            Frame::Oversize(OversizeMessage { end: Some(_), .. }) => {}
            Frame::Oversize(oversize) => {
                let id = find_request_id(&oversize.head);
                self.send_error(id.as_ref(), code::INVALID_REQUEST, &oversize.describe_request()).await;
            }
        }
    }

    /// Reads input once the client has read at least half of the queued output.
    async fn read(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        frames: &mut FrameDecoder,
    ) -> io::Result<usize> {
        self.out.wait_for_room().await;
        reader.read_buf(frames.read_buffer()).await
    }

    async fn handle_line(&self, line: &Bytes) {
        if is_batch(line) {
            return self.handle_batch(line).await;
        }
        let parsed = match ClientMessage::parse_with_params(line) {
            Ok(parsed) => parsed,
            Err(bad) => return self.send_error(bad.id.as_ref(), bad.code, &bad.reason).await,
        };
        match parsed.message {
            ClientMessage::Request { id, method, .. } => match parsed.params.transpose() {
                Ok(params) => self.handle_request(id, method, params).await,
                Err(bad) => self.send_error(Some(&id), code::INVALID_PARAMS, &bad.reason).await,
            },
            message => self.handle_without_response(message),
        }
    }

    /// Handles a notification or a reply.
    fn handle_without_response(&self, message: ClientMessage) {
        match message {
            ClientMessage::Notification { method, params } if method == CANCELLED => {
                let params = params.and_then(|params| Object::parse(&params).ok());
                self.stateless_questions.set_cancel_reason(params.as_ref());
                if let Some(session) = &*self.session.borrow() {
                    session.questions.set_cancel_reason(params.as_ref());
                }
                self.in_flight.cancel(params.as_ref());
            }
            ClientMessage::Response { id, payload: answer } => {
                if let Some(session) = &*self.session.borrow() {
                    session.questions.answer(&id, answer);
                }
            }
            ClientMessage::Notification { method, params } => self.forward_notification(method, params),
            ClientMessage::Request { .. } => {}
        }
    }

    /// Forwards a notification that the protocol does not define, in the era that it declares or in the session.
    fn forward_notification(&self, method: String, params: Option<Bytes>) {
        let Ok(mut params) = params.map_or(Ok(Object::default()), |params| Object::parse(&params)) else {
            return;
        };
        let service = &self.service;
        if let DeclaredEra::Stateless(meta) = self.meta_reader.read(Some(&mut params)) {
            let context = RequestContext::stateless(self.scope.clone(), &meta, self.handle.key)
                .with_client_context(self.client_context.clone());
            service.spawn_notification(&self.tasks, &self.handle, context, method, params);
        } else if let Some(session) = &*self.session.borrow() {
            session.receive_notification(service, &self.tasks, method, Some(params.to_bytes()));
        }
    }

    /// Handles the messages of a batch concurrently and sends their responses together.
    async fn handle_batch(&self, line: &Bytes) {
        let session = self.session.borrow().clone();
        let Some(session) = session else {
            return self.send_error(None, code::INVALID_REQUEST, NEEDS_SESSION).await;
        };
        let parts = match parse_batch(line, session.revision) {
            Ok(parts) => parts,
            Err((code, message)) => return self.send_error(None, code, &message).await,
        };
        let mut pending = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                BatchPart::NoResponse(message) => self.handle_without_response(message),
                BatchPart::Invalid(response) => pending.push(Err(response)),
                BatchPart::Request { id, method, params } => {
                    let (slot, response) = oneshot::channel();
                    let mode = PipeRequestMode::InSession(session.clone());
                    let started = self.start(&id, method, params, mode, Some(slot));
                    pending.push(if started { Ok(response) } else { Err(duplicate_id_response(&id)) });
                }
            }
        }
        let out = self.out.clone();
        self.tasks.spawn_boxed(async move {
            let mut responses = Vec::new();
            for response in pending {
                match response {
                    // A cancelled request gets no response.
                    Ok(response) => responses.extend(response.await),
                    Err(response) => responses.push(response),
                }
            }
            if !responses.is_empty() {
                out.send(join_responses(&responses)).await;
            }
        });
    }

    async fn handle_request(&self, id: RequestId, method: String, mut params: Option<Object>) {
        let session = self.session.borrow().clone();
        let mode = match self.meta_reader.read(params.as_mut()) {
            DeclaredEra::Stateless(meta) => {
                self.service.recent_clients.record_stateless(
                    &self.handle,
                    &self.scope,
                    &meta,
                    &self.meta_reader,
                );
                PipeRequestMode::Stateless(meta)
            }
            DeclaredEra::UnsupportedVersion(date) => {
                let error = client::unsupported_version_error(&date);
                return self.out.send(encode_error_response(Some(&id), &error)).await;
            }
            DeclaredEra::Invalid(error) => {
                return self.out.send(encode_error_response(Some(&id), &error)).await;
            }
            DeclaredEra::Undeclared if method == INITIALIZE => {
                return self.open_session(&id, params.as_ref()).await;
            }
            DeclaredEra::Undeclared => match session {
                Some(session) => PipeRequestMode::InSession(session),
                None if method == PING => PipeRequestMode::Ping,
                None => {
                    let message = "send `initialize` first, or name a revision in `params._meta`";
                    return self.send_error(Some(&id), code::INVALID_REQUEST, message).await;
                }
            },
        };
        if self.tasks.len() >= MAX_IN_FLIGHT {
            let error = Error::new(ErrorKind::OverQuota, "this client has too many requests in progress");
            return self.out.send(encode_response(&id, &error_payload(&error))).await;
        }
        if !self.start(&id, method, params, mode, None) {
            self.out.send(duplicate_id_response(&id)).await;
        }
    }

    async fn open_session(&self, id: &RequestId, params: Option<&Object>) {
        let revision = client::negotiate_revision(params);
        self.service.introduce_client(params);
        let scope = self.scope.clone().with_client(params);
        let result = self.service.initialize_result(&scope, revision).await;
        let session = SessionClientState::new(&self.service, scope, params, self.project.clone());
        session.questions.set_last_number(self.last_question);
        session.idle_updates.connect(self.out.weak_sender());
        self.out.send(encode_response(id, &ResponsePayload::Result(result))).await;
        let session = Arc::new(session);
        self.service.recent_clients.add_pipe(&session);
        self.session.send_replace(Some(session));
    }

    /// Handles a request in a task of its own; the response goes to the client or into a batch. Returns `false` if a request
    /// with this id is in progress.
    fn start(
        &self,
        id: &RequestId,
        method: String,
        params: Option<Object>,
        mode: PipeRequestMode,
        batch: Option<ReplySlot>,
    ) -> bool {
        let service = self.service.clone();
        let out = self.out.clone();
        let in_flight = self.in_flight.clone();
        let stop_streams = self.stop_streams.clone();
        let scope = self.scope.clone();
        let key = self.handle.key;
        let client_context = self.client_context.clone();
        let questions = self.stateless_questions.clone();
        let request_id = id.clone();
        self.in_flight.start(id, || {
            let handler = async move {
                let response = match mode {
                    PipeRequestMode::InSession(session) => {
                        session.respond(&service, &request_id, &method, params, Some(&out)).await
                    }
                    PipeRequestMode::Ping => ResponsePayload::Result(client::empty_result(Era::Session)),
                    PipeRequestMode::Stateless(meta) => {
                        let context =
                            RequestContext::stateless(scope, &meta, key).with_client_context(client_context);
                        if method == LISTEN {
                            listen(&service, context, &request_id, params.as_ref(), &out, &stop_streams).await
                        } else {
                            let receiver = UpdateReceiver {
                                request_id: &request_id,
                                progress_token: meta.progress_token,
                                questions: &questions,
                            };
                            respond_stateless(&service, context, &method, params, receiver, &out).await
                        }
                    }
                };
                in_flight.finish(&request_id);
                let message = encode_response(&request_id, &response);
                match batch {
                    None => out.send(message).await,
                    Some(slot) => drop(slot.send(message)),
                }
            };
            self.tasks.spawn(handler).abort_handle()
        })
    }

    /// Handles the end of input: requests in progress get some time to finish, but the client can no longer be asked.
    async fn disconnect(self) {
        self.stop_streams.cancel();
        if let Some(session) = &*self.session.borrow() {
            session.questions.close();
        }
        self.tasks.close();
        if timeout(DRAIN_TIMEOUT, self.tasks.wait()).await.is_err() {
            self.in_flight.cancel_all();
        }
    }

    async fn send_error(&self, id: Option<&RequestId>, code: i32, message: &str) {
        self.out.send(encode_error_response(id, &error_object(code, message, None))).await;
    }
}

async fn respond_stateless(
    service: &McpService,
    context: RequestContext,
    method: &str,
    params: Option<Object>,
    receiver: UpdateReceiver<'_>,
    out: &Outbox,
) -> ResponsePayload {
    if !McpService::is_forwarded(Era::Stateless, method) {
        return service.plan(context, method, params).respond().await;
    }
    // Also without updates: the server is told the reason of a cancellation.
    let updates = Arc::new(UpdateWriter::new(receiver, out));
    let response = service.plan(context.with_updates(updates.clone()), method, params).respond().await;
    updates.send_withdrawals();
    response
}

/// Sends change notifications until the client cancels the request or the pipe ends.
async fn listen(
    service: &Arc<McpService>,
    context: RequestContext,
    id: &RequestId,
    params: Option<&Object>,
    out: &Outbox,
    stop: &CancellationToken,
) -> ResponsePayload {
    let mut watcher = ChangeWatcher::new(service.clone(), context.scope.clone());
    let mut stream = match service.listen(&context, id, params).await {
        Ok(stream) => stream,
        Err(response) => return response,
    };
    out.send(stream.acknowledgement()).await;
    while !stream.is_empty() {
        let messages = tokio::select! {
            messages = watcher.next_messages(&mut stream) => messages,
            () = stop.cancelled() => None,
        };
        let Some(messages) = messages else { break };
        for message in messages {
            out.send(message).await;
        }
    }
    stream.final_response()
}

/// Sends change notifications to the current session.
async fn notify_sessions(
    service: Arc<McpService>,
    mut session_changes: watch::Receiver<Option<Arc<SessionClientState>>>,
    out: Outbox,
) {
    loop {
        let session = match session_changes.wait_for(Option::is_some).await {
            Ok(session) => session.clone(),
            Err(_) => return,
        };
        let Some(mut session) = session else { return };
        let mut watcher = ChangeWatcher::new(service.clone(), session.scope.clone());
        loop {
            tokio::select! {
                messages = watcher.next_messages(&mut session) => {
                    let Some(messages) = messages else { return };
                    for message in messages {
                        out.send(message).await;
                    }
                }
                changed = session_changes.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
            }
        }
    }
}
