//! Sends one message and handles its HTTP response.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;
use tracing::debug;

use super::auth::is_auth_status;
use super::body::{self, BodyError, BodyKind, EventBody};
use super::outgoing_message::OutgoingMessage;
use super::session::UpstreamSession;
use super::{HttpConnection, HttpRoute, NOTIFICATION_TIMEOUT};
use crate::protocol::era::client::{CANCELLED, DISCOVER, INITIALIZE};
use crate::protocol::era::handshake::{self, ProbeOutcome};
use crate::protocol::era::meta;
use crate::protocol::framing::Frame;
use crate::protocol::header_mirror;
use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::{ResponsePayload, ServerMessage, code};
use crate::upstream::pending::RequestEnd;

pub(super) const REVISION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The next step after an HTTP response.
pub(super) enum ResponseVerdict {
    /// The request has ended.
    Done,
    /// The session has expired; the request was not processed.
    SessionExpired(Arc<UpstreamSession>),
    /// The headers do not match the server's current definition of the tool; the request was not processed.
    HeaderMismatch,
}

impl HttpConnection {
    /// Sends one message and ends its request if that fails.
    pub(super) async fn deliver(self: Arc<Self>, message: OutgoingMessage) {
        let Some(id) = message.request_id() else { return self.send_notification(&message).await };
        let route = self.route().clone();
        let sent = match &route {
            _ if message.method == INITIALIZE => self.clone().initialize(&message).await,
            HttpRoute::Sse(endpoint) => self.post_sse(endpoint, &message).await,
            _ => self.clone().send_request(&message, id).await,
        };
        if let Err(end) = sent {
            self.link.finish_request(id, end);
        }
    }

    /// Sends a message without a response. The stateless era cancels a request by closing its response.
    pub(super) async fn send_notification(&self, message: &OutgoingMessage) {
        let route = self.route().clone();
        let url = match &route {
            HttpRoute::Stateless if message.method == CANCELLED => return,
            HttpRoute::Stateless | HttpRoute::Session(_) => &self.url,
            HttpRoute::Sse(endpoint) => endpoint,
        };
        let customize = |headers: &mut HeaderMap| match &route {
            HttpRoute::Session(session) => session.add_headers(headers),
            HttpRoute::Stateless => self.add_stateless_headers(message, headers),
            HttpRoute::Sse(_) => {}
        };
        let sent = timeout(NOTIFICATION_TIMEOUT, async {
            let response = self.send(Method::POST, url, customize, message.body.clone()).await;
            if let Ok(response) = response {
                let status = response.status();
                body::read_error_body(response.into_body()).await;
                return Some(status);
            }
            None
        });
        match sent.await {
            Ok(Some(status)) if status.is_success() => {}
            Ok(Some(status)) => {
                debug!(server = %self.link.server(), method = message.method, %status, "the server did not accept a notification");
            }
            _ => {
                debug!(server = %self.link.server(), method = message.method, "a notification was not delivered");
            }
        }
    }

    /// Sends a request, and once more if the server did not process it: its session had expired or its headers were
    /// out of date.
    async fn send_request(self: Arc<Self>, message: &OutgoingMessage, id: u64) -> Result<(), RequestEnd> {
        if message.method == DISCOVER {
            let _ = self.probe_body.set(message.body.clone()); // the handshake sets it first
        }
        for is_retry in [false, true] {
            let route = self.route().clone();
            if matches!(route, HttpRoute::Session(_)) {
                self.remember_sticky_request(message);
            }
            let customize = |headers: &mut HeaderMap| match &route {
                HttpRoute::Session(session) => session.add_headers(headers),
                _ => self.add_stateless_headers(message, headers),
            };
            let sent = self.send(Method::POST, &self.url, customize, message.body.clone()).await;
            let response = sent.map_err(|error| self.request_error(error, message))?;
            match self.handle_response(response, message, id, &route).await? {
                ResponseVerdict::Done => {
                    if !message.is_handshake() && !self.is_established() {
                        self.is_established.store(true, Ordering::Relaxed);
                        self.fetch_published_card();
                    }
                    return Ok(());
                }
                ResponseVerdict::SessionExpired(session) if !is_retry => {
                    if !self.renew_session(&session, message).await? {
                        return Ok(());
                    }
                }
                ResponseVerdict::HeaderMismatch if !is_retry => {
                    self.header_params.wait_for_relist(|| self.link.request_relist()).await;
                }
                ResponseVerdict::SessionExpired(_) => {
                    return Err(RequestEnd::BadReply("the new session expired immediately".to_owned()));
                }
                ResponseVerdict::HeaderMismatch => {
                    return Err(RequestEnd::BadReply(
                        "it rejects the headers of the request as mismatched".to_owned(),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Adds the headers of a stateless request.
    fn add_stateless_headers(&self, message: &OutgoingMessage, headers: &mut HeaderMap) {
        let Some(params) = message.params() else { return };
        let mut insert = |name: HeaderName, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        let revision = params.get("_meta").and_then(|raw| Object::parse(raw).ok());
        if let Some(revision) = revision.as_ref().and_then(|meta| meta.get_string(meta::PROTOCOL_VERSION)) {
            insert(REVISION, &revision);
        }
        insert(METHOD, &message.method);
        let Some(name) = header_mirror::name_header(&message.method, &params) else { return };
        insert(NAME, &header_mirror::encode_header(&name));
        let params_in_headers = self.header_params.get(&name).filter(|_| message.method == "tools/call");
        if let (Some(params_in_headers), Some(arguments)) = (params_in_headers, params.get("arguments")) {
            for param in params_in_headers.iter() {
                if let (Some(value), Ok(name)) =
                    (param.header_value(arguments), HeaderName::from_bytes(param.header.as_bytes()))
                {
                    insert(name, &value);
                }
            }
        }
    }

    async fn handle_response(
        &self,
        response: Response<Incoming>,
        message: &OutgoingMessage,
        id: u64,
        route: &HttpRoute,
    ) -> Result<ResponseVerdict, RequestEnd> {
        let status = response.status();
        if !status.is_success() {
            let (parts, body) = response.into_parts();
            let error_body = body::read_error_body(body).await;
            return self.handle_error_status(status, &parts.headers, &error_body, message, route).await;
        }
        let kind = BodyKind::from_headers(response.headers());
        match kind {
            BodyKind::Json => {
                let response_body = body::read_all(response.into_body(), self.message_limit.get())
                    .await
                    .map_err(|reason| self.body_error(reason))?;
                if matches!(route, HttpRoute::Stateless) && is_header_mismatch(&response_body) {
                    return Ok(ResponseVerdict::HeaderMismatch);
                }
                self.dispatch(response_body, message);
            }
            BodyKind::Events => {
                let stream = EventBody::new(response.into_body(), self.message_limit.get(), &self.link);
                let session = if let HttpRoute::Session(session) = route { Some(&**session) } else { None };
                self.read_until_reply(stream, message, id, session).await?;
            }
            BodyKind::Other => {
                let status = status.as_u16();
                return Err(RequestEnd::BadReply(format!("HTTP {status} without JSON or events")));
            }
        }
        if self.link.is_pending(id) {
            return Err(RequestEnd::BadReply("the HTTP response contains no JSON-RPC response".to_owned()));
        }
        Ok(ResponseVerdict::Done)
    }

    /// Handles an error status. A JSON-RPC error in the body is the response, unless it is about the session, the era
    /// or the headers.
    async fn handle_error_status(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        error_body: &Bytes,
        message: &OutgoingMessage,
        route: &HttpRoute,
    ) -> Result<ResponseVerdict, RequestEnd> {
        let status_error = || Err(self.errors.status_error(status, headers, error_body, message));
        let error = ErrorBody::parse(error_body);
        if is_auth_status(status) || status.is_server_error() {
            return status_error();
        }
        if let HttpRoute::Session(session) = route
            && session.is_expired_by(status, error.as_ref())
        {
            return Ok(ResponseVerdict::SessionExpired(session.clone()));
        }
        let may_have_changed_era = matches!(route, HttpRoute::Stateless)
            && self.is_established()
            && has_changed_era(status, error.as_ref());
        // The error may concern only this request.
        if may_have_changed_era && !self.is_still_stateless().await {
            self.abandon(message, "it no longer supports the stateless era");
            return Ok(ResponseVerdict::Done);
        }
        match error {
            Some(error) if error.code == Some(i64::from(code::HEADER_MISMATCH)) => {
                Ok(ResponseVerdict::HeaderMismatch)
            }
            Some(error) => Err(RequestEnd::Answered(ResponsePayload::Error(error.object))),
            None => status_error(),
        }
    }

    /// Probes the era again. Returns `false` only if the server denies it, not if it cannot be reached.
    async fn is_still_stateless(&self) -> bool {
        let Some(body) = self.probe_body.get() else { return true };
        let probe = OutgoingMessage::replay(body.clone());
        let reply = timeout(NOTIFICATION_TIMEOUT, async {
            let customize = |headers: &mut HeaderMap| self.add_stateless_headers(&probe, headers);
            let sent = self.send(Method::POST, &self.url, customize, probe.body.clone()).await;
            let (parts, body) = sent.ok()?.into_parts();
            if is_auth_status(parts.status) || parts.status.is_server_error() {
                return None;
            }
            match BodyKind::from_headers(&parts.headers) {
                BodyKind::Json => body::read_all(body, self.message_limit.get()).await.ok(),
                BodyKind::Events => self
                    .read_first_reply(EventBody::new(body, self.message_limit.get(), &self.link))
                    .await
                    .ok(),
                BodyKind::Other => Some(Bytes::new()),
            }
        });
        let Ok(Some(message)) = reply.await else { return true };
        match ServerMessage::parse(&message) {
            ServerMessage::Response { payload, .. } => {
                matches!(handshake::parse_probe_response(&payload), ProbeOutcome::Stateless(_))
            }
            _ => false,
        }
    }

    pub(super) fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Relaxed)
    }

    /// Closes the connection because the server has changed its era. The request was not processed, so its caller may
    /// send it on the next connection.
    pub(super) fn abandon(&self, message: &OutgoingMessage, reason: &str) {
        if let Some(id) = message.request_id() {
            self.link.mark_not_sent(id);
        }
        self.mark_lost(reason);
    }

    /// Dispatches a received message.
    pub(super) fn dispatch(&self, received: Bytes, request: &OutgoingMessage) {
        let is_listing = request.method == "tools/list" && matches!(*self.route(), HttpRoute::Stateless);
        let received =
            if is_listing { self.header_params.read_page(self.link.server(), received) } else { received };
        // Revision 2025-03-26 allows batches of responses.
        if received.trim_ascii_start().first() == Some(&b'[')
            && let Ok(messages) = object::parse_array(&received)
        {
            for message in messages {
                self.link.receive(&Frame::Line(message), request.request_id());
            }
            return;
        }
        self.link.receive(&Frame::Line(received), request.request_id());
    }

    pub(super) fn body_error(&self, reason: BodyError) -> RequestEnd {
        match reason {
            BodyError::TooLarge(oversize) => RequestEnd::Failed(self.link.oversize_error(&oversize)),
            BodyError::Broken(reason) => self.errors.connection_broken(&reason),
        }
    }
}

/// Returns whether an error is one that a stateless server does not send: unknown revision, unknown URL, or a missing
/// session.
fn has_changed_era(status: StatusCode, error: Option<&ErrorBody>) -> bool {
    match error {
        None => matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED),
        Some(error) if error.code == Some(code::UNSUPPORTED_VERSION.into()) => true,
        Some(error) => {
            matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
                && !error.has_request_id
                && !error.code.is_some_and(is_stateless_era_code)
        }
    }
}

/// Returns whether an error code is one of the stateless era.
pub(super) fn is_stateless_era_code(code: i64) -> bool {
    matches!(code, -32602 | -32601 | -32022..=-32020)
}

/// Returns whether a body is the header mismatch error, which some servers send with a success status.
fn is_header_mismatch(message: &Bytes) -> bool {
    message.len() < 4096
        && memchr::memmem::find(message, b"-32020").is_some()
        && ErrorBody::parse(message).is_some_and(|error| error.code == Some(i64::from(code::HEADER_MISMATCH)))
}

/// A JSON-RPC error in a body.
pub(super) struct ErrorBody {
    pub(super) code: Option<i64>,
    pub(super) object: Bytes,
    /// True if it has the id of a request.
    pub(super) has_request_id: bool,
}

impl ErrorBody {
    pub(super) fn parse(body: &Bytes) -> Option<Self> {
        let message = Object::parse(body).ok()?;
        let object = message.get("error").filter(|raw| raw.first() == Some(&b'{'))?.clone();
        let code = Object::parse(&object).ok()?.get("code").cloned();
        let code = code.and_then(|raw| std::str::from_utf8(&raw).ok()?.parse().ok());
        let has_request_id = message.get("id").is_some_and(|id| &**id != b"null");
        Some(Self { code, object, has_request_id })
    }
}
