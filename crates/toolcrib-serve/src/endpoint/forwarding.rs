//! Requests for what another replica owns: sessions, suspended calls and stored results. They are forwarded to the owner.
//!
//! A session whose owner is gone is opened again here. A request that its owner may have received is not repeated, unless the
//! gateway itself answers it.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Request, Response, StatusCode};
use toolcrib::protocol::jsonrpc::{ClientMessage, RequestId, code, encode_error_response, encode_response};
use toolcrib::protocol::versions::Era;
use toolcrib::store::{OwnedKind, has_name_form};
use toolcrib::util::clock::wall_time;
use toolcrib::{Error, ErrorKind, ResponsePayload};

use super::headers::{self, SESSION_ID};
use super::relayed_events::RelayedEvents;
use super::sessions::{self, SessionError, session_error};
use super::{error_response, event_response, json_response, overloaded};
use crate::body::ResponseBody;
use crate::caller_assertion::{BodyDigest, FORWARDED, ForwardedTarget, request_path};
use crate::client_memory::MemoryClaim;
use crate::gateway::ConnectionContext;
use crate::replicas::{NoResponse, Replicas};
use crate::request_body::{RequestBodyError, read_frames};
use crate::response;
use crate::service::{EndpointScope, McpService};
use crate::session::shared::RestoredSession;

/// The header by which a replica says that it has not handled a forwarded request.
const REPLICA: &str = "toolcrib-replica";
/// The session of the request belongs to another replica.
const NOT_OWNER: &str = "not-owner";
/// The statement about the caller is not believed, or the caller is not known.
const REFUSED: &str = "refused";
/// Headers that are passed on to the owner, besides those that begin with `mcp-`.
const PASSED_HEADERS: [&str; 5] = ["accept", "content-type", "last-event-id", "traceparent", "tracestate"];
/// Owners that are tried for one request.
const MAX_OWNERS: usize = 3;

/// Marks a request that another replica has forwarded. It is not forwarded again.
#[derive(Debug, Clone, Copy)]
struct FromReplica {
    /// The digest of its body at that replica.
    body: BodyDigest,
}

/// A request on its way to the replica that owns its subject.
struct OutgoingRequest<'a> {
    conn: &'a ConnectionContext,
    replicas: &'a Replicas,
    scope: &'a EndpointScope,
    received: &'a Request<Incoming>,
    body: &'a Bytes,
}

/// What became of a request that was sent to another replica.
enum Forwarded {
    /// The response for the client.
    Response(Response<ResponseBody>),
    /// The replica does not have the session.
    NotOwner,
    Failed(NoResponse),
}

/// Authenticates the caller of a request that another replica has forwarded, and marks the request.
pub(super) fn accept(
    conn: &ConnectionContext,
    replicas: &Replicas,
    request: &mut Request<Incoming>,
) -> Result<EndpointScope, Box<Response<ResponseBody>>> {
    let verified = replicas.verify(request.method(), request.uri(), request.headers(), wall_time());
    let assertion = verified.map_err(refuse)?;
    let access = conn.gateway.callers.find_asserted(&assertion.caller).ok_or_else(|| {
        refuse("its caller is not known here with the same rights; give all replicas the same callers")
    })?;
    conn.login.succeed();
    if let Some(address) = conn.peer.address {
        replicas.record_peer(address);
    }
    request.extensions_mut().insert(FromReplica { body: assertion.body });
    super::endpoint_scope(conn, access, request.uri(), request.headers())
}

fn refuse(reason: &str) -> Box<Response<ResponseBody>> {
    let message = format!("a forwarded request was refused: {reason}");
    tracing::warn!("{message}");
    let mut response = error_response(StatusCode::FORBIDDEN, None, code::INVALID_REQUEST, &message);
    response.headers_mut().insert(REPLICA, HeaderValue::from_static(REFUSED));
    Box::new(response)
}

/// Forwards a request for something that another replica owns; `None` if it is to be handled here.
pub(super) async fn forward_elsewhere(
    conn: &ConnectionContext,
    replicas: &Replicas,
    scope: &EndpointScope,
    received: &Request<Incoming>,
    body: &Bytes,
) -> Option<Response<ResponseBody>> {
    let request = OutgoingRequest { conn, replicas, scope, received, body };
    let from_replica = received.extensions().get::<FromReplica>();
    if from_replica.is_some_and(|from| from.body != BodyDigest::new(body)) {
        return Some(*refuse("its body was changed on the way"));
    }
    let is_from_replica = from_replica.is_some();
    match headers::session_id(received.headers()) {
        Some(id) => {
            let sessions = &conn.gateway.sessions;
            // Sessions that are open here, also those of other callers, are handled here.
            if sessions.contains(id) || !has_name_form(id) {
                return None;
            }
            match is_from_replica {
                true => request.check_owner(id).await,
                false => request.forward_in_session(id).await,
            }
        }
        None if is_from_replica => None,
        None => request.forward_named().await,
    }
}

impl OutgoingRequest<'_> {
    /// Refuses a forwarded request for a session that belongs to another replica.
    async fn check_owner(&self, id: &str) -> Option<Response<ResponseBody>> {
        match self.conn.gateway.sessions.find_owner(id, self.scope).await {
            Ok(Some(owner)) if owner.address.as_deref().is_some_and(|owner| owner != self.own_address()) => {
                let mut response = response::respond(StatusCode::MISDIRECTED_REQUEST, ResponseBody::empty());
                response.headers_mut().insert(REPLICA, HeaderValue::from_static(NOT_OWNER));
                Some(response)
            }
            Ok(_) => None,
            Err(error) => Some(session_error(self.conn, None, SessionError::StoreUnavailable(error))),
        }
    }

    fn own_address(&self) -> &str {
        self.replicas.own.address()
    }

    /// Forwards a request in a session. The id names the replica that has opened the session, and its record the replica that
    /// has it now, which is remembered; if that one is gone, the session is opened here.
    async fn forward_in_session(&self, id: &str) -> Option<Response<ResponseBody>> {
        let sessions = &self.conn.gateway.sessions;
        let mut tried: Vec<String> = Vec::new();
        let named = self.replicas.own.owner(OwnedKind::Session, id);
        let known = self.replicas.moved_to(id).or_else(|| named.clone());
        let mut next = known.filter(|owner| self.can_send(owner));
        for _ in 0..MAX_OWNERS {
            if let Some(owner) = next.take() {
                match self.send(&owner).await {
                    Forwarded::Response(response) => {
                        if named.as_ref() != Some(&owner) {
                            self.replicas.record_move(id, &owner);
                        }
                        return Some(response);
                    }
                    Forwarded::NotOwner => self.replicas.forget_move(id),
                    Forwarded::Failed(failure) if failure.may_be_sent && self.is_call() => {
                        return Some(self.lost_call(&owner, &failure.reason));
                    }
                    Forwarded::Failed(failure) if failure.is_gone => {
                        self.replicas.forget_move(id);
                        tracing::info!(replica = owner, "a replica is gone: {}", failure.reason);
                    }
                    Forwarded::Failed(failure) => return Some(self.unavailable(&owner, &failure.reason)),
                }
                tried.push(owner);
            }
            let recorded = match sessions.find_owner(id, self.scope).await {
                Ok(recorded) => recorded?,
                Err(error) => {
                    return Some(session_error(self.conn, None, SessionError::StoreUnavailable(error)));
                }
            };
            next = recorded.address.map(|owner| owner.to_string());
            next = next.filter(|owner| self.can_send(owner) && !tried.contains(owner));
            if next.is_none() {
                match sessions::restore(self.conn, self.scope, id).await {
                    Ok(RestoredSession::OpenElsewhere) => tried.clear(),
                    Ok(_) => return None,
                    Err(error) => return Some(session_error(self.conn, None, error)),
                }
            }
        }
        Some(session_error(self.conn, None, SessionError::Moving))
    }

    /// Returns whether an owner is another replica that is not known to be gone.
    fn can_send(&self, owner: &str) -> bool {
        owner != self.own_address() && !self.replicas.is_gone(owner)
    }

    /// Forwards a stateless request that names a suspended call or a stored result of another replica.
    async fn forward_named(&self) -> Option<Response<ResponseBody>> {
        let service = &self.conn.gateway.service;
        let owned = service.find_owned(self.body)?;
        let owner = &owned.owner;
        if owner == self.own_address() {
            return None;
        }
        match self.send(owner).await {
            Forwarded::Response(response) => Some(response),
            Forwarded::NotOwner => None,
            // The result is unknown here, which the response says.
            Forwarded::Failed(failure) if !owned.is_call && !failure.may_be_sent => None,
            Forwarded::Failed(failure) => Some(self.lost_call(owner, &failure.reason)),
        }
    }

    /// Sends the request to its owner.
    async fn send(&self, owner: &str) -> Forwarded {
        let not_sent = |reason: &str| {
            Forwarded::Failed(NoResponse { reason: reason.to_owned(), is_gone: false, may_be_sent: false })
        };
        let Some(caller) = self.conn.gateway.callers.assert_caller(&self.scope.access) else {
            return not_sent("the caller has just lost access");
        };
        let received = self.received;
        let target = ForwardedTarget::new(owner, received.method(), received.uri(), received.headers());
        let digest = BodyDigest::new(self.body);
        let assertion = caller.encode(&self.replicas.own, &target, digest, wall_time());
        let assertion = assertion.and_then(|value| HeaderValue::try_from(value).ok());
        let (Some(assertion), Ok(url)) =
            (assertion, format!("{owner}{}", request_path(received.uri())).parse())
        else {
            return not_sent("it cannot be addressed");
        };
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = received.method().clone();
        *request.uri_mut() = url;
        *request.headers_mut() = passed_headers(received.headers());
        request.headers_mut().insert(FORWARDED, assertion);
        match self.replicas.send(owner, request).await {
            Ok(response) => self.relay(owner, response).await,
            Err(failure) => Forwarded::Failed(failure),
        }
    }

    /// Passes on the response of the owner.
    async fn relay(&self, owner: &str, response: Response<Incoming>) -> Forwarded {
        let (head, body) = response.into_parts();
        match head.headers.get(REPLICA).and_then(|value| value.to_str().ok()) {
            Some(NOT_OWNER) => return Forwarded::NotOwner,
            Some(_) => {
                let reason = "it refused a forwarded request; its log says why";
                return Forwarded::Response(self.unavailable(owner, reason));
            }
            None => {}
        }
        let content_type = head.headers.get(CONTENT_TYPE);
        let is_stream = content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        let mut relayed = match is_stream {
            true => {
                let substitute = self.request_id().map(|id| {
                    encode_response(
                        &id,
                        &ResponsePayload::Error(self.lost_call_error(owner, "the stream broke")),
                    )
                });
                let revoked = self.scope.access.revoked.clone();
                event_response(ResponseBody::events(RelayedEvents::new(body, revoked, substitute)))
            }
            false => match self.read_response(owner, body).await {
                Ok(body) => response::respond(head.status, ResponseBody::full(body)),
                Err(response) => return Forwarded::Response(*response),
            },
        };
        *relayed.status_mut() = head.status;
        for name in [SESSION_ID, RETRY_AFTER] {
            if let Some(value) = head.headers.get(&name) {
                relayed.headers_mut().insert(name, value.clone());
            }
        }
        Forwarded::Response(relayed)
    }

    /// Reads a complete response.
    async fn read_response(
        &self,
        owner: &str,
        mut body: Incoming,
    ) -> Result<Bytes, Box<Response<ResponseBody>>> {
        let account = self.conn.memory(&self.scope.access);
        let mut claim = MemoryClaim::for_body(account.clone());
        let read = tokio::select! {
            biased;
            read = read_frames(&mut body, usize::MAX, &mut claim) => read,
            reason = self.replicas.wait_until_gone(owner) => {
                return Err(Box::new(self.lost_call(owner, &reason)));
            }
        };
        match read {
            Ok(body) => Ok(body),
            Err(RequestBodyError::NoMemory) => {
                let error = account.refusal("the result was discarded").mark_maybe_sent();
                Err(Box::new(overloaded(self.conn, self.request_id().as_ref(), &error)))
            }
            Err(_) => Err(Box::new(self.lost_call(owner, "the response broke off"))),
        }
    }

    /// Returns whether the request is a call that must not be made twice.
    fn is_call(&self) -> bool {
        match ClientMessage::parse(self.body) {
            Ok(ClientMessage::Request { method, .. }) => {
                [Era::Session, Era::Stateless].iter().any(|era| McpService::is_forwarded(*era, &method))
            }
            Ok(_) => false,
            // A batch may contain calls; a GET or DELETE has no body.
            Err(_) => !self.body.is_empty(),
        }
    }

    /// Returns the id of the request, if it is one.
    fn request_id(&self) -> Option<RequestId> {
        match ClientMessage::parse(self.body) {
            Ok(ClientMessage::Request { id, .. }) => Some(id),
            _ => None,
        }
    }

    /// Returns the error for a call that its owner may have made.
    fn lost_call_error(&self, owner: &str, reason: &str) -> Bytes {
        let message =
            format!("lost the gateway `{owner}` with the call in flight: {reason}; the call may have run");
        let error = Error::new(ErrorKind::Lost, message).mark_maybe_sent();
        self.conn.gateway.service.error_object(&error)
    }

    fn lost_call(&self, owner: &str, reason: &str) -> Response<ResponseBody> {
        let error = self.lost_call_error(owner, reason);
        json_response(StatusCode::OK, encode_error_response(self.request_id().as_ref(), &error))
    }

    /// Returns the error for a request that its owner does not handle.
    fn unavailable(&self, owner: &str, reason: &str) -> Response<ResponseBody> {
        tracing::warn!(replica = owner, "a request was not forwarded: {reason}");
        let message = format!("the gateway `{owner}`, which has this session, cannot be used: {reason}");
        let error = Error::new(ErrorKind::Overloaded, message)
            .with_hint("give all replicas the same `store.key` and the same callers, and the same time");
        overloaded(self.conn, self.request_id().as_ref(), &error)
    }
}

/// Returns the headers that the owner gets. Credentials and headers of proxies are not among them.
fn passed_headers(headers: &HeaderMap) -> HeaderMap {
    let is_passed = |name: &str| PASSED_HEADERS.contains(&name) || name.starts_with("mcp-");
    let mut passed: HeaderMap = headers
        .iter()
        .filter(|(name, _)| is_passed(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    passed.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    passed
}
