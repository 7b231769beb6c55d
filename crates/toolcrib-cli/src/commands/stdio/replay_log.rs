//! Records the session and the outstanding requests of an agent, so that they can be replayed to another gateway.
//!
//! Does no I/O.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use serde_json::Value;
use toolcrib::protocol::era::client::{
    CANCELLED, DISCOVER, INITIALIZE, LISTEN, PING, PROMPTS_CHANGED, RESOURCE_UPDATED, RESOURCES_CHANGED,
    SET_LEVEL, SUBSCRIBE, TOOLS_CHANGED, UNSUBSCRIBE,
};
use toolcrib::protocol::era::handshake::INITIALIZED;
use toolcrib::protocol::json::object::{Object, as_string, parse_array, write_string};
use toolcrib::protocol::jsonrpc::{
    ClientMessage, RequestId, encode_error_response, encode_notification, encode_response, error_object,
};
use toolcrib::{Error, ErrorKind, ListKind};
use toolcrib_serve::{PIPE_END, is_batch, join_responses, listen_final_response};

use crate::hints::error_data;

/// The id prefix of replayed requests, whose responses the agent never sees.
const REPLAY_ID_PREFIX: &str = "toolcrib-again-";

/// The number of gateways that get the same request. The request may be what crashes them.
const MAX_ATTEMPTS: u8 = 3;

/// The session and the outstanding requests of an agent.
#[derive(Debug, Default)]
pub(super) struct ReplayLog {
    session: Option<ReplayedSession>,
    /// Requests without a response, by a number that gives their order.
    outstanding: BTreeMap<u64, OutstandingRequest>,
    numbers: HashMap<RequestId, u64>,
    last_number: u64,
    /// Requests of the gateway that the agent has not answered.
    questions: Vec<RequestId>,
    /// The highest number in the id of a question.
    last_question: u64,
    /// True if the gateway has announced that it reads no more requests from the pipe.
    has_pipe_ended: bool,
}

/// A session as the agent opened it.
#[derive(Debug, Default)]
struct ReplayedSession {
    /// The parameters of `initialize`.
    initialize_params: Option<Bytes>,
    is_initialized: bool,
    /// The parameters of the last request for a log level.
    log_level_params: Option<Bytes>,
    /// The parameters of every subscription, by URI.
    subscriptions: BTreeMap<String, Bytes>,
    has_listed_tools: bool,
    has_listed_prompts: bool,
    has_listed_resources: bool,
}

/// A request or batch without a response.
#[derive(Debug)]
struct OutstandingRequest {
    ids: Vec<RequestId>,
    is_batch: bool,
    method: String,
    params: Option<Bytes>,
    line: Bytes,
    /// True if the gateway may have received it.
    sent: bool,
    /// The number of gateways that it was sent to.
    attempts: u8,
}

/// The action for a line of the agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AgentLineAction {
    /// Send it to the gateway. A request has this number in the log.
    Forward(Option<u64>),
    /// Drop it: what it refers to no longer exists.
    Drop,
}

impl ReplayLog {
    /// Records a line of the agent, which counts as sent from now on.
    pub(super) fn record_agent_line(&mut self, line: &Bytes) -> AgentLineAction {
        if is_batch(line) {
            return AgentLineAction::Forward(self.add_batch(line));
        }
        match ClientMessage::parse(line) {
            Ok(ClientMessage::Request { id, method, params }) => AgentLineAction::Forward(Some(
                self.add(OutstandingRequest::new(vec![id], method, params, line)),
            )),
            Ok(ClientMessage::Notification { method, params }) => {
                self.record_notification(&method, params.as_ref())
            }
            Ok(ClientMessage::Response { id, .. }) => {
                match self.questions.iter().position(|question| *question == id) {
                    Some(at) => {
                        self.questions.swap_remove(at);
                        AgentLineAction::Forward(None)
                    }
                    None => AgentLineAction::Drop,
                }
            }
            // The gateway responds with the error.
            Err(_) => AgentLineAction::Forward(None),
        }
    }

    fn record_notification(&mut self, method: &str, params: Option<&Bytes>) -> AgentLineAction {
        if let (INITIALIZED, Some(session)) = (method, &mut self.session) {
            session.is_initialized = true;
        }
        let cancelled = (method == CANCELLED).then(|| cancelled_id(params?)).flatten();
        match cancelled.and_then(|id| self.remove(&id)) {
            Some(request) if !request.sent => AgentLineAction::Drop,
            _ => AgentLineAction::Forward(None),
        }
    }

    fn add(&mut self, mut request: OutstandingRequest) -> u64 {
        request.sent &= !self.has_pipe_ended;
        self.last_number += 1;
        for id in &request.ids {
            self.numbers.insert(id.clone(), self.last_number);
        }
        self.outstanding.insert(self.last_number, request);
        self.last_number
    }

    fn add_batch(&mut self, line: &Bytes) -> Option<u64> {
        let request_id = |part: &Bytes| match ClientMessage::parse(part) {
            Ok(ClientMessage::Request { id, .. }) => Some(id),
            _ => None,
        };
        let ids: Vec<RequestId> = parse_array(line).ok()?.iter().filter_map(request_id).collect();
        if ids.is_empty() {
            return None;
        }
        let request =
            OutstandingRequest { is_batch: true, ..OutstandingRequest::new(ids, String::new(), None, line) };
        Some(self.add(request))
    }

    fn remove(&mut self, id: &RequestId) -> Option<OutstandingRequest> {
        let request = self.outstanding.remove(&self.numbers.remove(id)?)?;
        for id in &request.ids {
            self.numbers.remove(id);
        }
        Some(request)
    }

    /// Records that no byte of a request reached the gateway.
    pub(super) fn mark_unsent(&mut self, number: u64) {
        if let Some(request) = self.outstanding.get_mut(&number) {
            request.sent = false;
        }
    }

    /// Records a line of the gateway. Returns `false` if the agent must not see it.
    pub(super) fn record_gateway_line(&mut self, line: &Bytes) -> bool {
        if is_batch(line) {
            for part in parse_array(line).unwrap_or_default() {
                self.record_gateway_message(&part);
            }
            return true;
        }
        self.record_gateway_message(line)
    }

    fn record_gateway_message(&mut self, line: &Bytes) -> bool {
        let Ok(message) = Object::parse(line) else { return true };
        let id = message.get("id").cloned().and_then(RequestId::parse);
        let Some(id) = id else {
            if message.get_string("method").as_deref() == Some(PIPE_END) {
                self.record_pipe_end();
                return false;
            }
            self.record_withdrawal(&message);
            return true;
        };
        if message.get("method").is_some() {
            let number = as_string(id.as_bytes()).and_then(|id| id.rsplit('-').next()?.parse().ok());
            self.last_question = self.last_question.max(number.unwrap_or(0));
            self.questions.push(id);
            return true;
        }
        if as_string(id.as_bytes()).is_some_and(|id| id.starts_with(REPLAY_ID_PREFIX)) {
            return false;
        }
        let Some(request) = self.remove(&id) else { return true };
        match message.get("error") {
            None => self.record_success(request),
            // A batch is answered as a whole, so its parts are not resent.
            Some(error) if !request.is_batch && was_refused_unsent(error) => {
                self.add(OutstandingRequest { sent: false, ..request });
                return false;
            }
            Some(_) => {}
        }
        true
    }

    /// Records that the gateway has not run the requests that are outstanding, and will not run those that follow.
    fn record_pipe_end(&mut self) {
        self.has_pipe_ended = true;
        for request in self.outstanding.values_mut() {
            request.sent = false;
        }
    }

    /// Removes a question that the gateway cancels.
    fn record_withdrawal(&mut self, message: &Object) {
        if message.get_string("method").as_deref() == Some(CANCELLED)
            && let Some(id) = message.get("params").and_then(cancelled_id)
        {
            self.questions.retain(|question| *question != id);
        }
    }

    /// Records the effect of a successful request on the session.
    fn record_success(&mut self, request: OutstandingRequest) {
        let OutstandingRequest { method, params, .. } = request;
        if method == INITIALIZE {
            self.session = Some(ReplayedSession { initialize_params: params, ..ReplayedSession::default() });
            return;
        }
        let Some(session) = &mut self.session else { return };
        let uri = || Some(Object::parse(params.as_ref()?).ok()?.get_string("uri")?.into_owned());
        match method.as_str() {
            SET_LEVEL => session.log_level_params = params,
            SUBSCRIBE => {
                let uri = uri();
                session.subscriptions.extend(uri.zip(params));
            }
            UNSUBSCRIBE => drop(uri().and_then(|uri| session.subscriptions.remove(&uri))),
            _ => match ListKind::from_method(&method) {
                Some(ListKind::Tools) => session.has_listed_tools = true,
                Some(ListKind::Prompts) => session.has_listed_prompts = true,
                Some(ListKind::Resources | ListKind::Templates) => session.has_listed_resources = true,
                Some(_) | None => {}
            },
        }
    }

    /// Handles the loss of the gateway. Keeps requests that can be resent, and returns the messages for the agent about
    /// all others.
    pub(super) fn gateway_lost(&mut self) -> Vec<Vec<u8>> {
        self.has_pipe_ended = false;
        let mut lines = Vec::new();
        for (number, mut request) in std::mem::take(&mut self.outstanding) {
            if !request.sent || request.is_repeatable() && request.attempts < MAX_ATTEMPTS {
                request.sent = false;
                self.outstanding.insert(number, request);
                continue;
            }
            for id in &request.ids {
                self.numbers.remove(id);
            }
            lines.push(request.lost_response());
        }
        for question in self.questions.drain(..) {
            let id = String::from_utf8_lossy(question.as_bytes()).into_owned();
            let params = format!(r#"{{"requestId":{id},"reason":"the gateway was lost"}}"#);
            lines.push(encode_notification(CANCELLED, Some(params.as_bytes())));
        }
        lines
    }

    /// Removes all outstanding requests and returns their error responses.
    pub(super) fn fail_all(&mut self, reason: &str) -> Vec<Vec<u8>> {
        let error =
            Error::new(ErrorKind::ShuttingDown, format!("the gateway is no longer available: {reason}"));
        self.numbers.clear();
        std::mem::take(&mut self.outstanding)
            .into_values()
            .map(|request| request.error_response(&error))
            .collect()
    }

    /// Returns whether no request is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Returns the highest number of a question. Another gateway continues after it.
    pub(super) fn last_question(&self) -> u64 {
        self.last_question
    }

    /// Returns the lines that restore the session at another gateway, followed by all outstanding requests, which then count
    /// as sent.
    pub(super) fn replay(&mut self) -> Vec<Bytes> {
        let mut lines = Vec::new();
        if let Some(session) = &self.session {
            let mut number = 0;
            let mut push_request = |method: &str, params: Option<&Bytes>| {
                number += 1;
                lines.push(replay_request(number, method, params));
            };
            push_request(INITIALIZE, session.initialize_params.as_ref());
            if let Some(params) = &session.log_level_params {
                push_request(SET_LEVEL, Some(params));
            }
            session.subscriptions.values().for_each(|params| push_request(SUBSCRIBE, Some(params)));
            if session.is_initialized {
                lines.insert(1, encode_notification(INITIALIZED, None).into());
            }
        }
        for request in self.outstanding.values_mut() {
            request.sent = true;
            request.attempts += 1;
            lines.push(request.line.clone());
        }
        lines
    }

    /// Returns change notifications for everything that the agent has read, because it may differ at another gateway.
    pub(super) fn change_notifications(&self) -> Vec<Vec<u8>> {
        let Some(session) = &self.session else { return Vec::new() };
        let lists = [
            (TOOLS_CHANGED, session.has_listed_tools),
            (PROMPTS_CHANGED, session.has_listed_prompts),
            (RESOURCES_CHANGED, session.has_listed_resources),
        ];
        let listed = lists.into_iter().filter(|(_, has_listed)| *has_listed);
        let changed = listed.map(|(method, _)| encode_notification(method, None));
        let updated = session.subscriptions.keys().map(|uri| {
            let mut params = Object::default();
            params.set_unchecked("uri", toolcrib::protocol::json::object::to_json_string(uri));
            encode_notification(RESOURCE_UPDATED, Some(&params.to_bytes()))
        });
        changed.chain(updated).collect()
    }
}

impl OutstandingRequest {
    fn new(ids: Vec<RequestId>, method: String, params: Option<Bytes>, line: &Bytes) -> Self {
        Self { ids, is_batch: false, method, params, line: line.clone(), sent: true, attempts: 1 }
    }

    /// Returns whether sending it twice has the same effect as sending it once.
    fn is_repeatable(&self) -> bool {
        let reads = [
            "resources/read",
            "prompts/get",
            "completion/complete",
            "tasks/get",
            "tasks/list",
            "tasks/result",
        ];
        let method = self.method.as_str();
        ListKind::from_method(method).is_some()
            || matches!(method, INITIALIZE | PING | SET_LEVEL | SUBSCRIBE | UNSUBSCRIBE | DISCOVER)
            || reads.contains(&method)
    }

    /// Returns the response to a request that may have run and cannot be resent.
    fn lost_response(&self) -> Vec<u8> {
        if let (LISTEN, [id]) = (self.method.as_str(), self.ids.as_slice()) {
            return encode_response(id, &listen_final_response(id));
        }
        let subject = if self.is_batch { "a batch" } else { &self.method };
        let message = format!("the gateway was lost during `{subject}`; the call may have run");
        self.error_response(
            &Error::new(ErrorKind::Lost, message).with_hint("check whether it ran before you repeat it"),
        )
    }

    fn error_response(&self, error: &Error) -> Vec<u8> {
        let error = error_object(error.kind().facts().code, &error.to_string(), Some(&error_data(error)));
        let answers: Vec<Vec<u8>> =
            self.ids.iter().map(|id| encode_error_response(Some(id), &error)).collect();
        if self.is_batch { join_responses(&answers) } else { answers.concat() }
    }
}

/// Returns the id of the request that a cancellation refers to.
fn cancelled_id(params: &Bytes) -> Option<RequestId> {
    RequestId::parse(Object::parse(params).ok()?.get("requestId")?.clone())
}

/// Returns whether a gateway that shuts down reports that it never sent the request to a server.
fn was_refused_unsent(error: &Bytes) -> bool {
    let error: Value = serde_json::from_slice(error).unwrap_or_default();
    error["code"] == ErrorKind::ShuttingDown.facts().code && error["data"]["sent"] == "never"
}

/// Encodes a replayed request.
fn replay_request(number: u64, method: &str, params: Option<&Bytes>) -> Bytes {
    let mut out = format!(r#"{{"jsonrpc":"2.0","id":"{REPLAY_ID_PREFIX}{number}","method":"#).into_bytes();
    write_string(&mut out, method);
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params);
    }
    out.push(b'}');
    out.into()
}

#[cfg(test)]
mod tests;
