//! Messages from the server: responses go to pending requests, notifications and requests to the client they belong
//! to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::call_context;
use super::super::pending::{ExpiredQuestion, NoRecipient, RequestEnd};
use super::{ListenAck, MuxInner};
use crate::cache::Invalidation;
use crate::call::updates::{CallUpdate, ServerRequest};
use crate::model::event::ServerNotification;
use crate::protocol::era::capabilities::{CREATE_MESSAGE, ClientCapabilities, ELICIT, LIST_ROOTS, LogLevel};
use crate::protocol::era::client::{
    CANCELLED, DISCOVER, ELICITATION_COMPLETE, INITIALIZE, LOG_MESSAGE, PING, PROGRESS, PROMPTS_CHANGED,
    RESOURCE_UPDATED, RESOURCES_CHANGED, SUBSCRIPTION_ACKNOWLEDGED, TASK_STATUS, TOOLS_CHANGED,
    missing_capability_error,
};
use crate::protocol::era::extensions::{is_extension_notification, is_extension_request};
use crate::protocol::era::meta;
use crate::protocol::framing::Frame;
use crate::protocol::json::object::{Object, as_integer, write_string};
use crate::protocol::jsonrpc::{
    self, RequestId, ResponsePayload, ServerMessage, code, error_object, excerpt,
};
use crate::protocol::list_kind::ListKind;
use crate::protocol::versions::Era;
use crate::util::tasks::SpawnBoxed as _;

/// Garbage lines accepted before the first valid message; startup banners are shorter.
const MAX_BANNER_LINES: u64 = 1000;

/// A request of the server that was passed to a client.
struct OpenQuestion {
    id: u64,
    answer: oneshot::Receiver<ResponsePayload>,
}

/// The error that answers a request of the server.
struct QuestionRefusal {
    code: i32,
    message: String,
}

impl NoRecipient {
    fn refusal(self, method: &str) -> QuestionRefusal {
        let message = match self {
            Self::NoCall | Self::CallEnded => {
                format!("`{method}` does not belong to a call, so there is no client to ask")
            }
            Self::Ambiguous => {
                format!("`{method}` may belong to calls of several clients, so none of them is asked")
            }
        };
        QuestionRefusal { code: code::INVALID_REQUEST, message }
    }
}

impl MuxInner {
    /// Records why the peer is not an MCP server and closes the connection. Ignored after the first valid message.
    pub(super) fn mark_not_mcp(&self, reason: impl Into<String>) {
        if !self.has_spoken_mcp.load(Ordering::Relaxed) {
            let _ = self.not_mcp_reason.set(reason.into()); // the first reason counts
            self.broken.cancel();
        }
    }

    /// Counts a line that is not a message. Returns `false` if there were too many before the first valid message.
    fn count_garbage_line(&self, line: &Bytes) -> bool {
        let count = self.garbage_lines.fetch_add(1, Ordering::Relaxed) + 1;
        if self.has_spoken_mcp.load(Ordering::Relaxed) {
            return true;
        }
        if !line.trim_ascii().is_empty() {
            self.first_garbage_line.get_or_init(|| excerpt(&self.redactor.redact_bytes(line.trim_ascii())));
        }
        if count >= MAX_BANNER_LINES {
            let first = self.first_garbage_line.get().map_or("", String::as_str);
            self.mark_not_mcp(format!(
                "it writes {count} lines that are not messages, the first is `{first}`"
            ));
        }
        count < MAX_BANNER_LINES
    }

    /// Handles one message, which arrived on the stream of the request `origin` if it arrived on one. Returns `false`
    /// if the stream cannot be read further.
    pub(super) fn receive(self: &Arc<Self>, frame: &Frame, origin: Option<u64>) -> bool {
        let line = match frame {
            Frame::Line(line) => line,
            Frame::Oversize(oversize) => return self.receive_oversize(oversize, origin),
        };
        match ServerMessage::parse(line) {
            // The stream of a request carries no response to another request.
            ServerMessage::Response { id, .. } if origin.is_some_and(|origin| origin != id) => {
                self.fail_likely_owner(origin.as_slice(), &format!("the id {id} belongs to another request"));
            }
            ServerMessage::BadResponse { reason, .. } if origin.is_some() => {
                self.fail_likely_owner(origin.as_slice(), &reason);
            }
            ServerMessage::Response { id, payload: answer } => {
                self.has_spoken_mcp.store(true, Ordering::Relaxed);
                self.finish_request(id, RequestEnd::Answered(answer));
            }
            ServerMessage::BadResponse { ids, reason } => self.fail_likely_owner(&ids, &reason),
            ServerMessage::Request { id, method, params } => {
                self.handle_request(id, &method, params.as_ref(), origin);
            }
            ServerMessage::Notification { method, params } => {
                self.handle_notification(&method, params, origin);
            }
            ServerMessage::Garbage => return self.count_garbage_line(line),
        }
        true
    }

    fn fail_likely_owner(&self, ids: &[u64], reason: &str) {
        let owner = self.pending().take_likely_owner(ids);
        match owner {
            Some(request) => {
                request.finish(RequestEnd::BadReply(self.redactor.redact(reason).into_owned()));
            }
            None => drop(self.garbage_lines.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Answers a request of the server: immediately, or when the client it belongs to has answered.
    fn handle_request(
        self: &Arc<Self>,
        id: RequestId,
        method: &str,
        params: Option<&Bytes>,
        origin: Option<u64>,
    ) {
        let question = match method {
            PING => return self.reply(&id, &ResponsePayload::Result(Bytes::from_static(b"{}"))),
            // Only clients send these: the peer echoes its input.
            INITIALIZE | DISCOVER => return self.mark_not_mcp("it echoes its input, as `cat` does"),
            CREATE_MESSAGE | ELICIT | LIST_ROOTS => {
                self.report_question(method, origin);
                self.ask_client(&id, method, params, origin)
            }
            _ => self.ask_with_unknown_method(&id, method, params, origin),
        };
        match question {
            Err(QuestionRefusal { code, message }) => {
                self.reply(&id, &ResponsePayload::Error(error_object(code, &message, None)));
            }
            Ok(question) => {
                let inner = self.clone();
                self.tasks.spawn_boxed(async move {
                    let answer = tokio::select! {
                        answer = question.answer => answer.unwrap_or_else(|_| {
                            let reason = "the client disconnected without an answer";
                            ResponsePayload::Error(error_object(code::INVALID_REQUEST, reason, None))
                        }),
                        () = inner.broken.cancelled() => return,
                    };
                    if inner.pending().close_question(question.id) {
                        inner.reply(&id, &answer);
                    }
                });
            }
        }
    }

    /// Reports that the server sends requests to its clients, if this one may belong to a call and does not say to which.
    fn report_question(&self, method: &str, origin: Option<u64>) {
        if let Some(on_question) = &self.on_question
            && origin.is_none()
            && self.pending().in_flight() > 0
        {
            on_question.report(method);
        }
    }

    pub(super) fn reply(&self, id: &RequestId, answer: &ResponsePayload) {
        self.send(None, jsonrpc::encode_response(id, answer));
    }

    /// Passes a request of the server to the client it belongs to. If no call identifies the client, the owner of the
    /// instance is asked.
    fn ask_client(
        self: &Arc<Self>,
        id: &RequestId,
        method: &str,
        params: Option<&Bytes>,
        origin: Option<u64>,
    ) -> Result<OpenQuestion, QuestionRefusal> {
        let mut pending = self.pending();
        let (call, client) = match pending.find_client(origin) {
            Ok(found) => found,
            Err(no_recipient) => {
                let expired = match no_recipient {
                    NoRecipient::Ambiguous => pending.close_contested_questions(Instant::now()),
                    NoRecipient::NoCall | NoRecipient::CallEnded => Vec::new(),
                };
                drop(pending);
                self.refuse_expired(expired);
                return self.ask_owner(id, method, params).ok_or_else(|| no_recipient.refusal(method));
            }
        };
        let unable = |code, detail: &str| QuestionRefusal {
            code,
            message: format!("the client does not support `{method}`{detail}"),
        };
        let is_known_method = client.capabilities.supports_method(method);
        if let Some(missing) = client.missing_for(method, params) {
            // In the stateless era a missing capability ends the call with its own error. Not for roots: servers ask
            // for them whenever they can, and can do without.
            let ends = client.era == Era::Stateless && method != LIST_ROOTS;
            if let Some(request) = ends.then(|| pending.cancel(call)).flatten() {
                drop(pending);
                request
                    .finish(RequestEnd::Answered(ResponsePayload::Error(missing_capability_error(&missing))));
                self.send_cancelled(call, None);
            }
            return Err(match is_known_method {
                true => unable(code::INVALID_PARAMS, " with these parameters"),
                false => unable(code::METHOD_NOT_FOUND, ""),
            });
        }
        let opened = pending.open_question(call, id.clone(), origin.is_some());
        drop(pending);
        if let Some((question, sink)) = opened {
            let (request, answer) = ServerRequest::new(method.to_owned(), params.cloned());
            let request = request.with_server(&self.server).with_server_info(self.server_info.get());
            if sink.deliver_contained(CallUpdate::Request(self.with_expiry(request, question))) {
                return Ok(OpenQuestion { id: question, answer });
            }
            self.pending().close_question(question);
        }
        self.ask_owner(id, method, params).ok_or_else(|| unable(code::METHOD_NOT_FOUND, ""))
    }

    /// Tells the server that a client did not answer in time, and the client that its answer is no longer needed.
    fn refuse_expired(&self, expired: Vec<ExpiredQuestion>) {
        for ExpiredQuestion { id, updates } in expired {
            let reason = "the client did not answer in time, and another client is to be asked";
            self.reply(&id, &ResponsePayload::Error(error_object(code::INVALID_REQUEST, reason, None)));
            if let Some(updates) = updates {
                updates.deliver_contained(CallUpdate::RequestWithdrawn);
            }
        }
    }

    /// Passes a request that the protocol does not define to the client it belongs to, if that client is in a session and
    /// takes such messages.
    fn ask_with_unknown_method(
        self: &Arc<Self>,
        id: &RequestId,
        method: &str,
        params: Option<&Bytes>,
        origin: Option<u64>,
    ) -> Result<OpenQuestion, QuestionRefusal> {
        let may_ask = is_extension_request(method)
            && match self.pending().find_client(origin) {
                Ok((_, client)) => client.era == Era::Session && client.takes_unknown_messages(),
                // The only client of the instance decides.
                Err(_) => true,
            };
        let asked = may_ask.then(|| self.ask_client(id, method, params, origin).ok()).flatten();
        asked.ok_or_else(|| QuestionRefusal {
            code: code::METHOD_NOT_FOUND,
            message: format!("unknown method `{method}`"),
        })
    }

    /// Passes a request that no client can answer to the owner of the instance, if it supports the method, or else to the
    /// embedder's handlers.
    fn ask_owner(
        self: &Arc<Self>,
        id: &RequestId,
        method: &str,
        params: Option<&Bytes>,
    ) -> Option<OpenQuestion> {
        let can_answer =
            |capabilities: &ClientCapabilities| capabilities.missing_for(method, params).is_none();
        let owner = match is_extension_request(method) {
            true => self.owner.clients.only_recipient(),
            false => self
                .owner
                .capabilities
                .as_ref()
                .filter(|own| can_answer(own))
                .and(self.owner.update_sink.clone()),
        };
        let handlers = self.handlers.as_ref().filter(|handlers| handlers.can_answer(method, params));
        if owner.is_none() && handlers.is_none() {
            return None;
        }
        let question = self.pending().open_owner_question(id.clone());
        let (request, answer) = ServerRequest::new(method.to_owned(), params.cloned());
        let request = self.with_expiry(
            request.with_server(&self.server).with_server_info(self.server_info.get()),
            question,
        );
        let is_delivered = match (owner, handlers) {
            (Some(sink), _) => sink.deliver_contained(CallUpdate::Request(request)),
            (None, Some(handlers)) => handlers.answer(request, None),
            (None, None) => false,
        };
        if is_delivered {
            return Some(OpenQuestion { id: question, answer });
        }
        self.pending().close_question(question);
        None
    }

    /// Makes a request expire when the server no longer waits for its answer, and passes its progress to the server.
    fn with_expiry(self: &Arc<Self>, request: ServerRequest, question: u64) -> ServerRequest {
        let inner = Arc::downgrade(self);
        let asking = inner.clone();
        let request = request.with_progress(move |params| {
            if let Some(inner) = asking.upgrade() {
                inner.send(None, jsonrpc::encode_notification(PROGRESS, Some(params)));
            }
        });
        request.withdrawn_when(move || {
            inner.upgrade().is_none_or(|inner| !inner.pending().is_question_open(question))
        })
    }

    /// Sends an update to the client of a request, if it has one. A client that cannot keep up misses some.
    fn send_update(&self, id: u64, update: CallUpdate) {
        let sink = self.pending().update_sink(id, matches!(update, CallUpdate::Progress(_)));
        if let Some(sink) = sink {
            sink.deliver_contained(update);
        }
    }

    /// Cancels a request at the server, with the client's reason if it gave one.
    pub(super) fn send_cancelled(&self, id: u64, reason: Option<&str>) {
        let mut params = format!(r#"{{"requestId":{id},"reason":"#).into_bytes();
        write_string(&mut params, reason.unwrap_or("cancelled by the caller"));
        params.push(b'}');
        self.send(Some(id), jsonrpc::encode_notification(CANCELLED, Some(&params)));
    }

    fn handle_notification(&self, method: &str, params: Option<Bytes>, origin: Option<u64>) {
        match method {
            PROGRESS => {
                let Some(Ok(mut progress)) = params.map(|params| Object::parse(&params)) else { return };
                let token = progress.remove("progressToken").and_then(|raw| as_integer(&raw));
                if let Some(id) = token {
                    self.send_update(id, CallUpdate::Progress(progress));
                }
            }
            LOG_MESSAGE => {
                if let Some(params) = params {
                    self.handle_log_message(params, origin);
                }
            }
            CANCELLED => {
                let params = params.and_then(|params| Object::parse(&params).ok());
                let id = params.and_then(|params| RequestId::parse(params.get("requestId")?.clone()));
                let sink = id.and_then(|id| self.pending().withdraw_question(&id));
                if let Some(sink) = sink.as_ref().or(self.owner.update_sink.as_ref()) {
                    sink.deliver_contained(CallUpdate::RequestWithdrawn);
                }
            }
            ELICITATION_COMPLETE => self.publish_named(ELICITATION_COMPLETE, "elicitationId", params),
            TASK_STATUS => self.publish_named(TASK_STATUS, "taskId", params),
            TOOLS_CHANGED => self.announce_change(&[ListKind::Tools]),
            PROMPTS_CHANGED => self.announce_change(&[ListKind::Prompts]),
            RESOURCES_CHANGED => self.announce_change(&[ListKind::Resources, ListKind::Templates]),
            SUBSCRIPTION_ACKNOWLEDGED => {
                let request = params.as_ref().and_then(subscription_id).or(origin);
                self.listen_ack.send_replace(ListenAck { request: request.unwrap_or_default(), params });
            }
            RESOURCE_UPDATED => {
                let params = params.and_then(|params| Object::parse(&params).ok());
                let uri = params.as_ref().and_then(|params| Some(params.get_string("uri")?.into_owned()));
                if let Some((uri, params)) = uri.zip(params) {
                    let server = self.server.clone();
                    let instance = self.owner.key.clone();
                    self.cache.invalidate(&server, Some(&instance), Invalidation::Resource(&uri));
                    self.notifications.send(ServerNotification::ResourceUpdated {
                        server,
                        instance,
                        uri: uri.into(),
                        details: update_details(params),
                    });
                }
            }
            _ => self.handle_extension_notification(method, params, origin),
        }
    }

    /// Passes a notification that the protocol does not define to the client it belongs to: the owner of the call, or the
    /// only client of the instance. One that may belong to several clients is dropped.
    fn handle_extension_notification(&self, method: &str, params: Option<Bytes>, origin: Option<u64>) {
        if !is_extension_notification(method) {
            return;
        }
        let found =
            self.pending().find_client(origin).map(|(call, client)| (call, client.takes_unknown_messages()));
        let update = CallUpdate::Notification { method: method.to_owned(), params };
        match found {
            Ok((call, true)) => self.send_update(call, update),
            Ok((_, false)) => {}
            Err(_) => {
                if let Some(client) = self.owner.clients.only_recipient() {
                    client.deliver_contained(update);
                }
            }
        }
    }

    /// Handles an announced change of lists.
    fn announce_change(&self, lists: &[ListKind]) {
        self.cache.invalidate(&self.server, Some(&self.owner.key), Invalidation::All);
        self.relist_queue.announce(lists.iter().copied().collect());
    }

    /// Publishes a notification about the object that the member `key` names.
    fn publish_named(&self, method: &'static str, key: &str, params: Option<Bytes>) {
        let Some(params) = params else { return };
        let object = Object::parse(&params).ok();
        if let Some(name) = object.as_ref().and_then(|object| object.get_string(key)) {
            let server = self.server.clone();
            let name = (&*name).into();
            self.notifications.send(ServerNotification::FollowUp { server, method, name, params });
        }
    }

    /// Sends a log message to the only client with a call in flight. If no call is in flight, it is published, for the client
    /// of the last call if it may be about that call.
    fn handle_log_message(&self, mut params: Bytes, mut origin: Option<u64>) {
        if self.logs_name_requests {
            origin = origin.or_else(|| call_context::take_request(&mut params));
        }
        let level = LogLevel::from_message(&params);
        let is_level_set = self.is_log_level_set.load(Ordering::Relaxed);
        let mut pending = self.pending();
        let found = pending.find_client(origin).map(|(call, client)| {
            let is_wanted = client.wants_log(level, is_level_set);
            is_wanted.then_some(call)
        });
        match found {
            Ok(call) => {
                drop(pending);
                if let Some(call) = call {
                    self.send_update(call, CallUpdate::Log(params));
                }
            }
            Err(NoRecipient::Ambiguous | NoRecipient::CallEnded) => {}
            Err(NoRecipient::NoCall) => {
                let client = pending.find_last_client();
                let is_wanted = client.is_none_or(|client| client.wants_log(level, is_level_set));
                let client = client.map(|client| client.key);
                drop(pending);
                if is_wanted {
                    let server = self.server.clone();
                    let instance = self.owner.key.clone();
                    self.notifications.send(ServerNotification::Log { server, instance, client, params });
                }
            }
        }
    }
}

/// Returns the parameters of a notification about a resource except its URI and what belongs to this hop; `None` if there
/// are none.
fn update_details(mut params: Object) -> Option<Bytes> {
    params.remove("uri");
    if let Some(mut meta) = params.get("_meta").and_then(|raw| Object::parse(raw).ok())
        && meta.remove(meta::SUBSCRIPTION_ID).is_some()
    {
        match meta.is_empty() {
            true => drop(params.remove("_meta")),
            false => params.set_unchecked("_meta", meta.to_bytes()),
        }
    }
    (!params.is_empty()).then(|| params.to_bytes())
}

/// Returns the listen request that a notification belongs to.
fn subscription_id(params: &Bytes) -> Option<u64> {
    let meta = Object::parse(Object::parse(params).ok()?.get("_meta")?).ok()?;
    as_integer(meta.get(meta::SUBSCRIPTION_ID)?)
}
