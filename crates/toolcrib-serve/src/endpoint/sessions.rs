//! Requests in a session. They continue when their connection ends; only the client cancels them.

use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response, StatusCode};
use toolcrib::protocol::era::client::{CANCELLED, negotiate_revision};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{
    ClientMessage, RequestId, ResponsePayload, code, encode_error_response, error_object,
};
use toolcrib::protocol::versions::Revision;
use toolcrib::store::StoreError;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{Error, ErrorKind};

use super::headers::{self, RequestHeaders, SESSION_ID};
use super::session_request::SessionRequest;
use super::{
    McpRequest, complete_response, error_response, event_response, method_not_allowed, overloaded,
    unsupported_revision,
};
use crate::body::ResponseBody;
use crate::gateway::ConnectionContext;
use crate::response::{self, json_response};
use crate::service::EndpointScope;
use crate::service::session_client::SessionClientState;
use crate::session::shared::RestoredSession;
use crate::session::stream::{EventLogReader, ResponseStart};
use crate::session::{NewSession, Session, SessionRef};

/// Largest size of what a client may declare in `initialize`, in bytes.
const MAX_DECLARED: usize = 64 << 10;
/// Memory of a session besides what its client declares, roughly.
const SESSION_SIZE: usize = 2 << 10;

/// Opens a session in response to `initialize`. It ends when its caller loses access.
pub(super) async fn open(
    conn: &ConnectionContext,
    scope: EndpointScope,
    request: &McpRequest,
) -> Response<ResponseBody> {
    let gateway = &conn.gateway;
    let declared = request.params.iter().flat_map(Object::iter).map(|(name, value)| name.len() + value.len());
    let declared: usize = declared.sum();
    if declared > MAX_DECLARED {
        let message =
            format!("`initialize` has {declared} bytes of parameters, at most {MAX_DECLARED} are allowed");
        return error_response(StatusCode::BAD_REQUEST, Some(&request.id), code::INVALID_PARAMS, &message);
    }
    let account = conn.memory(&scope.access);
    let Some(claim) = account.claim(declared + SESSION_SIZE) else {
        return overloaded(conn, Some(&request.id), &account.refusal("the session was not opened"));
    };
    gateway.service.introduce_client(request.params.as_ref());
    let scope = scope.with_client(request.params.as_ref());
    let result = gateway.service.initialize_result(&scope, negotiate_revision(request.params.as_ref())).await;
    let client = SessionClientState::new(&gateway.service, scope, request.params.as_ref(), None);
    let Some(session) = gateway.sessions.open(client, request.params.as_ref(), Some(claim)) else {
        let message = "too many sessions are open, and none is idle";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return error_response(status, Some(&request.id), code::INVALID_REQUEST, message);
    };
    spawn_expiry_task(conn, &session);
    gateway.sessions.report_new(&session.id);
    if let Err(error) = gateway.sessions.save(&session.id).await {
        gateway.sessions.discard(&session.id);
        return session_error(conn, Some(&request.id), SessionError::StoreUnavailable(error));
    }
    let mut response = response::respond(
        StatusCode::OK,
        ResponseBody::response(&request.id, &ResponsePayload::Result(result)),
    );
    if let Ok(id) = HeaderValue::from_str(&session.id) {
        response.headers_mut().insert(SESSION_ID, id);
    }
    response
}

/// Spawns the task that ends idle sessions, unless it runs.
fn spawn_expiry_task(conn: &ConnectionContext, session: &NewSession) {
    if session.needs_expiry_task {
        let sessions = conn.gateway.sessions.clone();
        conn.gateway.tasks.spawn_boxed(async move { sessions.expire_idle().await });
    }
}

/// Ends a session.
pub(super) async fn delete(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    headers: &HeaderMap,
) -> Response<ResponseBody> {
    let Some(id) = headers::session_id(headers) else { return method_not_allowed() };
    match conn.gateway.sessions.end_everywhere(id, scope).await {
        Ok(true) => response::respond(StatusCode::NO_CONTENT, ResponseBody::empty()),
        Ok(false) => session_error(conn, None, SessionError::Unknown),
        Err(error) => session_error(conn, None, SessionError::StoreUnavailable(error)),
    }
}

/// A request that is not in an open session.
#[derive(Debug, Clone)]
pub(super) enum SessionError {
    /// No session is named.
    Missing,
    /// The named session does not exist or has expired.
    Unknown,
    /// The store with the sessions of other gateways did not answer.
    StoreUnavailable(StoreError),
    /// Clients use too much memory to continue a session of another gateway.
    NoMemory(Error),
    /// Another replica opens the session at the same time.
    Moving,
}

/// Finds the session that a request names. A session of another gateway on the same store is continued here.
pub(super) async fn find(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    id: Option<&str>,
) -> Result<SessionRef, SessionError> {
    let id = id.ok_or(SessionError::Missing)?;
    let sessions = &conn.gateway.sessions;
    if let Some(session) = sessions.find(id, scope) {
        return Ok(session);
    }
    if sessions.has_inherited() {
        return Box::pin(continue_inherited(conn, scope, id)).await;
    }
    if !sessions.is_shared() {
        return Err(SessionError::Unknown);
    }
    match Box::pin(restore(conn, scope, id)).await? {
        RestoredSession::Open(_) => sessions.find(id, scope).ok_or(SessionError::Unknown),
        RestoredSession::Unknown => Err(SessionError::Unknown),
        RestoredSession::OpenElsewhere => Err(SessionError::Moving),
    }
}

/// Continues a session of the gateway that this one has replaced.
async fn continue_inherited(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    id: &str,
) -> Result<SessionRef, SessionError> {
    let account = conn.memory(&scope.access);
    let Some(claim) = account.claim(SESSION_SIZE) else {
        return Err(SessionError::NoMemory(account.refusal("the session was not continued")));
    };
    let sessions = &conn.gateway.sessions;
    let continued = sessions.continue_inherited(&conn.gateway.service, id, scope, claim).await;
    spawn_expiry_task(conn, &continued.ok_or(SessionError::Unknown)?);
    sessions.find(id, scope).ok_or(SessionError::Unknown)
}

/// Opens a session of another gateway here.
pub(super) async fn restore(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    id: &str,
) -> Result<RestoredSession, SessionError> {
    // The size of the record is limited, because that of the session was.
    let account = conn.memory(&scope.access);
    let Some(claim) = account.claim(SESSION_SIZE) else {
        return Err(SessionError::NoMemory(account.refusal("the session was not continued")));
    };
    let restored = conn.gateway.sessions.restore(&conn.gateway.service, id, scope, claim).await;
    let restored = restored.map_err(SessionError::StoreUnavailable)?;
    if let RestoredSession::Open(session) = &restored {
        spawn_expiry_task(conn, session);
    }
    Ok(restored)
}

/// Returns the response to a request that is not in an open session.
pub(super) fn session_error(
    conn: &ConnectionContext,
    id: Option<&RequestId>,
    error: SessionError,
) -> Response<ResponseBody> {
    let (status, message) = match error {
        SessionError::Unknown => (StatusCode::NOT_FOUND, "unknown or expired session"),
        SessionError::Missing => {
            (StatusCode::BAD_REQUEST, "send `initialize` first, or name a revision in `params._meta`")
        }
        SessionError::NoMemory(error) => return overloaded(conn, id, &error),
        SessionError::Moving => {
            let message = "the session is moving to another gateway, because the one that had it is gone";
            return overloaded(conn, id, &Error::new(ErrorKind::Overloaded, message));
        }
        SessionError::StoreUnavailable(error) => {
            let message = format!("the sessions of other gateways are not known: {error}");
            let error = Error::new(ErrorKind::StoreUnavailable, message);
            let object = error_object(error.kind().facts().code, &error.to_string(), Some(&error.data()));
            return json_response(StatusCode::SERVICE_UNAVAILABLE, encode_error_response(id, &object));
        }
    };
    error_response(status, id, code::INVALID_REQUEST, message)
}

/// Handles a notification or a reply, and responds with `202 Accepted`.
pub(super) async fn handle_without_response(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    request_headers: &RequestHeaders,
    message: ClientMessage,
) -> Response<ResponseBody> {
    if let Some(date) = &request_headers.unknown_revision {
        return unsupported_revision(None, date);
    }
    match find(conn, scope, request_headers.session_id()).await {
        Ok(session) => {
            receive(conn, &session, message);
            response::respond(StatusCode::ACCEPTED, ResponseBody::empty())
        }
        Err(error) => session_error(conn, None, error),
    }
}

/// Handles a notification or a reply in a session.
pub(super) fn receive(conn: &ConnectionContext, session: &Session, message: ClientMessage) {
    conn.gateway.sessions.pass_back(session, &message);
    match message {
        ClientMessage::Notification { method, params } if method != CANCELLED => {
            let gateway = &conn.gateway;
            session.client.receive_notification(&gateway.service, &gateway.tasks, method, params);
        }
        message => session.client.receive_reply(message),
    }
}

/// Handles a request. The response is complete if it comes soon and nothing comes before it, and a stream otherwise.
pub(super) async fn respond(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    session_id: Option<&str>,
    request: McpRequest,
) -> Response<ResponseBody> {
    let session = match find(conn, scope, session_id).await {
        Ok(session) => session,
        Err(error) => return session_error(conn, Some(&request.id), error),
    };
    let id = request.id.clone();
    let accepts_events = request.accepts_events;
    let Some(request) = SessionRequest::start(conn, &session, request) else { return duplicate_id(&id) };
    let log = request.log.clone();
    let start = request.wait_for_start(accepts_events).await;
    conn.gateway.sessions.report_change(&session);
    match start {
        ResponseStart::Complete(response) => {
            complete_response(conn, &session.client.scope.access, StatusCode::OK, &id, &response)
        }
        // A cancelled request gets no response: a stream without events.
        ResponseStart::Cancelled => event_response(ResponseBody::empty()),
        ResponseStart::Stream => {
            session.streams.keep(log.clone());
            // Older clients would mistake the empty event for a message.
            let send_priming_event = session.client.revision >= Revision::V2025_11_25;
            event_response(ResponseBody::events(EventLogReader::from_start(log, send_priming_event)))
        }
    }
}

fn duplicate_id(id: &RequestId) -> Response<ResponseBody> {
    let message = "a request with this id is already in progress";
    error_response(StatusCode::BAD_REQUEST, Some(id), code::INVALID_REQUEST, message)
}
