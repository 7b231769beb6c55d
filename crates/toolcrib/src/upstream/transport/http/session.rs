//! Sessions of session-era servers: opened, resumed after a break, renewed when they expire, ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::auth::is_auth_status;
use super::body::{self, BodyError, BodyKind, EventBody, StreamPosition};
use super::outgoing_message::OutgoingMessage;
use super::post::{ErrorBody, REVISION, is_stateless_era_code};
use super::{HttpConnection, HttpRoute};
use crate::protocol::era::handshake;
use crate::protocol::framing::Frame;
use crate::protocol::jsonrpc::{ResponsePayload, ServerMessage, code, encode_notification};
use crate::protocol::versions::Revision;
use crate::spec::TransportKind;
use crate::upstream::pending::RequestEnd;
use crate::util::locks::IgnorePoison as _;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Attempts to resume a broken stream without receiving anything new.
const MAX_RESUMES: u32 = 5;
/// Delay before a stream is resumed, unless the server sets one.
const RESUME_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay before a listen stream that keeps breaking is opened again.
const MAX_RESUME_DELAY: Duration = Duration::from_secs(60);
/// A listen stream that stayed open this long is considered stable.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// A session at the server.
#[derive(Debug)]
pub(super) struct UpstreamSession {
    /// Its id; some servers set none.
    id: Option<HeaderValue>,
    /// The negotiated revision, for revisions that have a header for it.
    revision: Option<HeaderValue>,
    /// Counts the sessions of this connection.
    generation: u64,
    /// The body of the `initialize` request that opened it.
    initialize_body: Bytes,
}

impl UpstreamSession {
    /// Adds the headers of a request in this session.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        if let Some(id) = &self.id {
            headers.insert(SESSION_ID, id.clone());
        }
        if let Some(revision) = &self.revision {
            headers.insert(REVISION, revision.clone());
        }
    }

    /// Returns whether an error status means that the session has expired. The protocol uses 404; some servers send
    /// 400 instead.
    pub(super) fn is_expired_by(&self, status: StatusCode, error: Option<&ErrorBody>) -> bool {
        let is_unknown_method = error
            .is_some_and(|error| error.has_request_id && error.code == Some(code::METHOD_NOT_FOUND.into()));
        let mentions_session = || {
            error.is_some_and(|error| {
                let text = error.object.to_ascii_lowercase();
                !error.has_request_id && memchr::memmem::find(&text, b"session").is_some()
            })
        };
        self.id.is_some()
            && match status {
                StatusCode::NOT_FOUND => !is_unknown_method,
                StatusCode::BAD_REQUEST => mentions_session(),
                _ => false,
            }
    }
}

impl HttpConnection {
    /// Opens a session with a client's `initialize` request. A server that does not understand it may use the older
    /// HTTP+SSE transport.
    pub(super) async fn initialize(self: Arc<Self>, message: &OutgoingMessage) -> Result<(), RequestEnd> {
        if self.transport == TransportKind::Sse {
            return self.clone().initialize_over_sse(message).await;
        }
        match self.open_session(message, 0).await {
            Ok(received) => {
                self.dispatch(received, message);
                match message.request_id() {
                    Some(id) if self.link.is_pending(id) => Err(RequestEnd::BadReply(
                        "the HTTP response contains no JSON-RPC response".to_owned(),
                    )),
                    _ => Ok(()),
                }
            }
            Err(SessionOpenError { end, try_sse: true }) if self.transport == TransportKind::Auto => {
                match self.clone().initialize_over_sse(message).await {
                    // The first error explains more.
                    Err(_) => Err(end),
                    opened => opened,
                }
            }
            Err(error) => Err(error.end),
        }
    }

    /// Opens a session and returns the message with the server's response.
    async fn open_session(
        &self,
        message: &OutgoingMessage,
        generation: u64,
    ) -> Result<Bytes, SessionOpenError> {
        let sent = self.send(Method::POST, &self.url, |_| {}, message.body.clone()).await;
        let response = sent.map_err(|error| SessionOpenError::new(self.request_error(error, message)))?;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            let error_body = body::read_error_body(body).await;
            let error = ErrorBody::parse(&error_body);
            let is_stateless = error.as_ref().and_then(|error| error.code).is_some_and(is_stateless_era_code);
            let try_sse = !is_stateless && matches!(parts.status.as_u16(), 400 | 404 | 405);
            let end = self.errors.status_error(parts.status, &parts.headers, &error_body, message);
            let end = match error {
                Some(error) if parts.status.is_client_error() && !is_auth_status(parts.status) => {
                    RequestEnd::Answered(ResponsePayload::Error(error.object))
                }
                _ => end,
            };
            return Err(SessionOpenError { end, try_sse });
        }
        let received = match BodyKind::from_headers(&parts.headers) {
            BodyKind::Json => {
                body::read_all(body, self.message_limit.get()).await.map_err(|reason| self.body_error(reason))
            }
            BodyKind::Events => {
                self.read_first_reply(EventBody::new(body, self.message_limit.get(), &self.link)).await
            }
            BodyKind::Other => {
                Err(RequestEnd::BadReply("the HTTP response is neither JSON nor events".to_owned()))
            }
        };
        let received = received.map_err(SessionOpenError::new)?;
        if let ServerMessage::Response { payload, .. } = ServerMessage::parse(&received)
            && let Ok(result) = handshake::parse_initialize_response(&payload)
        {
            let has_version_header = result.revision >= Revision::V2025_06_18;
            let revision = has_version_header.then(|| HeaderValue::from_static(result.revision.as_str()));
            *self.route() = HttpRoute::Session(Arc::new(UpstreamSession {
                id: parts.headers.get(SESSION_ID).cloned(),
                revision,
                generation,
                initialize_body: message.body.clone(),
            }));
        }
        Ok(received)
    }

    /// Returns the first response on a stream and ignores messages before it.
    pub(super) async fn read_first_reply(&self, mut stream: EventBody) -> Result<Bytes, RequestEnd> {
        loop {
            match stream.next().await.map_err(|reason| self.body_error(reason))? {
                None => return Err(self.errors.connection_broken("the stream ended")),
                Some(event)
                    if matches!(ServerMessage::parse(&event.data), ServerMessage::Response { .. }) =>
                {
                    stream.drain().await;
                    return Ok(event.data);
                }
                Some(event) => drop(event),
            }
        }
    }

    /// Sends `notifications/initialized` and starts the listen stream.
    pub(super) async fn confirm_session(self: &Arc<Self>, message: &OutgoingMessage) {
        self.send_notification(message).await;
        self.start_listening();
    }

    fn start_listening(self: &Arc<Self>) {
        let HttpRoute::Session(session) = self.route().clone() else { return };
        let listen_task = AbortOnDropHandle::new(self.spawn(self.clone().run_listen_stream(session)));
        // Replacing the task ends the stream of an earlier session.
        *self.listen_task.lock().ignore_poison() = Some(listen_task);
    }

    /// Replaces an expired session, once for all requests that notice. Returns `false` if the request must not be
    /// sent again.
    pub(super) async fn renew_session(
        self: &Arc<Self>,
        expired: &UpstreamSession,
        message: &OutgoingMessage,
    ) -> Result<bool, RequestEnd> {
        let _guard = self.renewing.lock().await;
        if let HttpRoute::Session(current) = &*self.route()
            && current.generation != expired.generation
        {
            return Ok(true);
        }
        info!(server = %self.link.server(), "session expired, opening a new one");
        let initialize = OutgoingMessage::replay(expired.initialize_body.clone());
        match self.open_session(&initialize, expired.generation + 1).await {
            Ok(_) => {}
            Err(SessionOpenError { end: RequestEnd::Answered(_), .. }) if self.is_established() => {
                self.abandon(message, "it no longer supports sessions");
                return Ok(false);
            }
            Err(error) => return Err(self.errors.session_not_renewed(error.end)),
        }
        let initialized = encode_notification(handshake::INITIALIZED, None);
        self.send_notification(&OutgoingMessage::replay(initialized.into())).await;
        let sticky_requests = self.sticky_requests.lock().ignore_poison().clone();
        for body in sticky_requests.into_values() {
            self.send_notification(&OutgoingMessage::replay(body)).await;
        }
        self.start_listening();
        self.link.request_relist(); // a server that lost its sessions may have changed its tools
        Ok(true)
    }

    /// Remembers a request whose effect lasts for a session, so that it can be sent again in the next one.
    pub(super) fn remember_sticky_request(&self, message: &OutgoingMessage) {
        let key = match &*message.method {
            "logging/setLevel" => String::new(),
            "resources/subscribe" | "resources/unsubscribe" => {
                let params = message.params().unwrap_or_default();
                params.get_string("uri").unwrap_or_default().into_owned()
            }
            _ => return,
        };
        let mut sticky_requests = self.sticky_requests.lock().ignore_poison();
        if message.method == "resources/unsubscribe" {
            sticky_requests.remove(&key);
        } else {
            sticky_requests.insert(key, message.body.clone());
        }
    }

    /// Ends the session at the server.
    pub(super) async fn end_session(&self) {
        let session = match &*self.route() {
            HttpRoute::Session(session) if session.id.is_some() => session.clone(),
            _ => return,
        };
        let customize = |headers: &mut HeaderMap| {
            session.add_headers(headers);
            headers.remove(CONTENT_TYPE);
        };
        // Servers need not support this.
        let _ = self.send(Method::DELETE, &self.url, customize, Bytes::new()).await;
    }

    /// Reads messages outside of any request while the session is current and the server offers a stream for them. A
    /// stream that ends is opened again, with growing delays if it keeps breaking.
    async fn run_listen_stream(self: Arc<Self>, session: Arc<UpstreamSession>) {
        let mut position = StreamPosition::default();
        let mut was_opened = false;
        let mut failures = 0;
        let mut attempts = 0_u32;
        while self.is_current(&session) {
            match self.open_event_stream(&session, position.last_event_id.as_deref()).await {
                Ok(mut stream) => {
                    // Before the stream is open, announcements are lost.
                    self.link.report_missed_announcements();
                    if was_opened && (failures > 0 || position.last_event_id.is_none()) {
                        self.link.request_relist(); // also for servers that announce changes without declaring it
                    }
                    was_opened = true;
                    failures = 0;
                    let opened = Instant::now();
                    loop {
                        let frame = match stream.next().await {
                            Ok(Some(event)) => Frame::Line(event.data),
                            Err(BodyError::TooLarge(oversize)) => Frame::Oversize(oversize),
                            Ok(None) | Err(_) => break,
                        };
                        attempts = 0;
                        if frame != Frame::Line(Bytes::new()) {
                            self.link.receive(&frame, None);
                        }
                    }
                    if opened.elapsed() >= STABLE_AFTER {
                        attempts = 0;
                    }
                    position.advance(stream.position());
                }
                Err(_) if !was_opened => return, // the server offers no such stream
                // A server that is down may come back; other errors are final after some attempts.
                Err(status) if !status.is_server_error() && failures >= MAX_RESUMES => return,
                Err(_) => failures += 1,
            }
            attempts = attempts.saturating_add(1);
            sleep(position.retry.unwrap_or(RESUME_DELAY).saturating_mul(attempts).min(MAX_RESUME_DELAY))
                .await;
        }
    }

    fn is_current(&self, session: &UpstreamSession) -> bool {
        matches!(&*self.route(), HttpRoute::Session(current) if current.generation == session.generation)
    }

    /// Opens an event stream that belongs to no request, or resumes one after `last_event_id`.
    async fn open_event_stream(
        &self,
        session: &UpstreamSession,
        last_event_id: Option<&str>,
    ) -> Result<EventBody, StatusCode> {
        let last_event_id = last_event_id.and_then(|id| HeaderValue::from_str(id).ok());
        let customize = |headers: &mut HeaderMap| {
            session.add_headers(headers);
            headers.remove(CONTENT_TYPE);
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
            if let Some(last_event_id) = &last_event_id {
                headers.insert(LAST_EVENT_ID, last_event_id.clone());
            }
        };
        let sent = self.send(Method::GET, &self.url, customize, Bytes::new()).await;
        let response = sent.map_err(|_| StatusCode::BAD_GATEWAY)?;
        let status = response.status();
        if !status.is_success() || BodyKind::from_headers(response.headers()) != BodyKind::Events {
            return Err(status);
        }
        Ok(EventBody::new(response.into_body(), self.message_limit.get(), &self.link))
    }

    /// Reads the stream of a request until its response. In a session, a stream that breaks is resumed if the server
    /// numbers its events.
    pub(super) async fn read_until_reply(
        &self,
        mut stream: EventBody,
        message: &OutgoingMessage,
        id: u64,
        session: Option<&UpstreamSession>,
    ) -> Result<(), RequestEnd> {
        let mut position = StreamPosition::default();
        let mut resumes = 0;
        loop {
            let end = loop {
                match stream.next().await {
                    Ok(None) => break "the stream ended".to_owned(),
                    Err(BodyError::Broken(reason)) => break reason,
                    Err(BodyError::TooLarge(oversize)) => {
                        self.link.receive(&Frame::Oversize(oversize), Some(id));
                    }
                    Ok(Some(event)) => {
                        resumes = 0;
                        if event.name == "message" && !event.data.is_empty() {
                            self.dispatch(event.data, message);
                        }
                    }
                }
                if !self.link.is_pending(id) {
                    stream.drain().await;
                    return Ok(());
                }
            };
            position.advance(stream.position());
            stream = loop {
                let (Some(session), Some(last_event_id)) = (session, position.last_event_id.as_deref())
                else {
                    return Err(self.errors.connection_broken(&end));
                };
                if resumes >= MAX_RESUMES {
                    return Err(self.errors.connection_broken(&end));
                }
                resumes += 1;
                sleep(position.retry.unwrap_or(RESUME_DELAY)).await;
                match self.open_event_stream(session, Some(last_event_id)).await {
                    Ok(stream) => break stream,
                    Err(status) if status.is_server_error() => {}
                    Err(_) => return Err(self.errors.connection_broken(&end)),
                }
            };
        }
    }
}

/// The reason why no session was opened.
struct SessionOpenError {
    end: RequestEnd,
    /// True if the server may use HTTP+SSE instead.
    try_sse: bool,
}

impl SessionOpenError {
    fn new(end: RequestEnd) -> Self {
        Self { end, try_sse: false }
    }
}
