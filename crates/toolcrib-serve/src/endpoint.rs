//! The MCP endpoint over Streamable HTTP: determines the era of a request, checks its headers and responds.

mod batch;
mod forwarding;
mod get_stream;
mod headers;
mod relayed_events;
mod session_request;
mod sessions;
pub(crate) mod sse;
mod stateless;

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use toolcrib::call::trace_meta;
use toolcrib::protocol::era::client::{self, DeclaredEra, INITIALIZE, RequestMeta};
use toolcrib::protocol::framing::OversizeMessage;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{
    ClientMessage, RequestId, ResponsePayload, code, encode_error_response, error_object,
};
use toolcrib::{Error, ServerId};

use self::forwarding::forward_elsewhere;
use self::headers::RequestHeaders;
use crate::batch::is_batch;
use crate::body::ResponseBody;
use crate::caller_assertion::FORWARDED;
use crate::callers::AuthenticatedCaller;
use crate::client_memory::{MemoryAccount, MemoryClaim};
use crate::connection_peer::Entrypoint;
use crate::gateway::ConnectionContext;
use crate::login_error::insufficient_scope;
use crate::request_body::{self, RequestBodyError};
use crate::resource::profile_scope;
use crate::response::{self, event_response, json_response};
use crate::service::{CatalogScope, EndpointScope};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Size from which a response counts towards the memory of clients until they have read it.
const MIN_CLAIMED_RESPONSE: usize = 64 << 10;

/// A parsed JSON-RPC request.
struct McpRequest {
    id: RequestId,
    method: String,
    params: Option<Object>,
    /// True if the client accepts an event stream as response.
    accepts_events: bool,
}

/// Returns whether a path belongs to the MCP endpoints over Streamable HTTP.
pub(crate) fn is_mcp_path(path: &str) -> bool {
    path == "/mcp" || path.starts_with("/mcp/p/") || path.starts_with("/mcp/s/")
}

/// Returns whether a path belongs to the MCP endpoints over HTTP+SSE.
pub(crate) fn is_sse_path(path: &str) -> bool {
    path == "/sse" || path.starts_with("/sse/")
}

/// Authenticates the caller of a request and returns the endpoint of the path for it.
async fn find_scope(
    conn: &ConnectionContext,
    target: &Uri,
    headers: &HeaderMap,
) -> Result<EndpointScope, Box<Response<ResponseBody>>> {
    let access = match conn.authenticate(target, headers).await {
        Ok(access) => access,
        Err(error) => return Err(Box::new(conn.refuse_login(&error, target, headers))),
    };
    endpoint_scope(conn, access, target, headers)
}

/// Returns the endpoint of a path for a caller.
fn endpoint_scope(
    conn: &ConnectionContext,
    access: Arc<AuthenticatedCaller>,
    target: &Uri,
    headers: &HeaderMap,
) -> Result<EndpointScope, Box<Response<ResponseBody>>> {
    let not_found = |message: String| Box::new(response::error_response(StatusCode::NOT_FOUND, &message));
    let crib = &conn.gateway.service.crib;
    let caller = &access.caller;
    let path = target.path();
    if let Some(name) = path.strip_prefix("/mcp/p/") {
        // A caller that is bound to a profile cannot use another one.
        let is_bound = caller.profile() == Some(name);
        if !crib.can_use_profile(caller, name) || caller.profile().is_some() && !is_bound {
            return Err(not_found(format!("no profile is called `{name}`")));
        }
        if !is_bound && !access.has_scope(&profile_scope(name)) {
            // Without issuers, a reload has just removed that of the token.
            let refusal = match conn.gateway.callers.issued() {
                Some(issued) => insufficient_scope(&issued, &conn.resource(target, headers)),
                None => response::unauthenticated(),
            };
            return Err(Box::new(refusal));
        }
        return Ok(EndpointScope::all(Arc::new(access.with_profile(name))));
    }
    if let Some(name) = path.strip_prefix("/mcp/s/") {
        let is_visible = |server: &ServerId| crib.contains(server) && crib.can_see(caller, server);
        let server = name.parse().ok().filter(is_visible);
        let server = server.ok_or_else(|| not_found(format!("no server is called `{name}`")))?;
        return Ok(EndpointScope { view: CatalogScope::One(server), ..EndpointScope::all(access) });
    }
    Ok(EndpointScope::all(access))
}

/// Handles one request to an MCP endpoint.
pub(crate) async fn respond(
    conn: &ConnectionContext,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    let found = match &conn.gateway.replicas {
        Some(replicas) if request.headers().contains_key(FORWARDED) => {
            forwarding::accept(conn, replicas, request)
        }
        _ => find_scope(conn, request.uri(), request.headers()).await,
    };
    let mut scope = match found {
        Ok(scope) => scope,
        Err(response) => return *response,
    };
    scope.transport = Some(conn.peer.transport());
    if *request.method() == Method::POST {
        return post(conn, scope, request).await;
    }
    // Boxed to keep the future of a request without replicas small.
    if let Some(replicas) = &conn.gateway.replicas
        && let Some(response) =
            Box::pin(forward_elsewhere(conn, replicas, &scope, request, &Bytes::new())).await
    {
        return response;
    }
    match *request.method() {
        Method::GET => get_stream::open(conn, &scope, request.headers()).await,
        Method::DELETE => sessions::delete(conn, &scope, request.headers()).await,
        _ => method_not_allowed(),
    }
}

async fn post(
    conn: &ConnectionContext,
    mut scope: EndpointScope,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    let request_headers = match RequestHeaders::parse(request.headers()) {
        Ok(request_headers) => request_headers,
        Err((status, message)) => return error_response(status, None, code::INVALID_REQUEST, message),
    };
    let body = match read_body(conn, &scope.access, request).await {
        Ok(body) => body,
        Err(response) => return *response,
    };
    // The body may take long to arrive, and the access of the caller may have changed meanwhile.
    if scope.caller().is_revoked() {
        scope = match Box::pin(find_scope(conn, request.uri(), request.headers())).await {
            Ok(scope) => scope,
            Err(response) => return *response,
        };
    }
    // Boxed to keep the future of a request without replicas small.
    if let Some(replicas) = &conn.gateway.replicas
        && let Some(response) = Box::pin(forward_elsewhere(conn, replicas, &scope, request, &body)).await
    {
        return response;
    }
    let headers = request.headers();
    if is_batch(&body) {
        if let Some(date) = &request_headers.unknown_revision {
            return unsupported_revision(None, date);
        }
        // Boxed, as below, to keep the future of a request in a session small.
        return Box::pin(batch::respond(conn, &scope, request_headers.session_id(), &body)).await;
    }
    let parsed = match ClientMessage::parse_with_params(&body) {
        Ok(parsed) => parsed,
        Err(bad) => return invalid_message(bad.id.as_ref(), bad.code, &bad.reason),
    };
    match parsed.message {
        ClientMessage::Request { id, method, .. } => {
            let params = match parsed.params.transpose() {
                Ok(params) => params,
                Err(bad) => return invalid_message(Some(&id), code::INVALID_PARAMS, &bad.reason),
            };
            let request = McpRequest { id, method, params, accepts_events: request_headers.accepts_events };
            handle_request(conn, scope, &request_headers, headers, request).await
        }
        ClientMessage::Notification { method, params }
            if is_stateless_notification(conn, &request_headers, params.as_ref()) =>
        {
            stateless::receive(conn, scope, method, params);
            response::respond(StatusCode::ACCEPTED, ResponseBody::empty())
        }
        ClientMessage::Response { id, .. } if request_headers.is_stateless() => unexpected_response(&id),
        message => Box::pin(sessions::handle_without_response(conn, &scope, &request_headers, message)).await,
    }
}

/// Returns whether a notification belongs to the stateless era. The header with its revision is required of requests only; without
/// one, the body names it.
fn is_stateless_notification(
    conn: &ConnectionContext,
    headers: &RequestHeaders,
    params: Option<&Bytes>,
) -> bool {
    if headers.names_era() {
        return headers.is_stateless();
    }
    let mut params = params.and_then(|params| Object::parse(params).ok());
    matches!(conn.meta_reader.read(params.as_mut()), DeclaredEra::Stateless(_))
}

fn invalid_message(id: Option<&RequestId>, code: i32, reason: &str) -> Response<ResponseBody> {
    error_response(StatusCode::BAD_REQUEST, id, code, reason)
}

/// Reads the body of a request.
async fn read_body(
    conn: &ConnectionContext,
    access: &AuthenticatedCaller,
    request: &mut Request<Incoming>,
) -> Result<Bytes, Box<Response<ResponseBody>>> {
    let mut claim = MemoryClaim::for_body(conn.memory(access));
    let read = request_body::read(request.body_mut(), conn.gateway.max_body, &mut claim).await;
    read.map_err(|error| Box::new(unread_body(conn, error, claim.account())))
}

/// Returns the response to a request whose body was not read.
fn unread_body(
    conn: &ConnectionContext,
    error: RequestBodyError,
    account: &MemoryAccount,
) -> Response<ResponseBody> {
    let refuse = |status, message: &str| error_response(status, None, code::INVALID_REQUEST, message);
    let mut response = match error {
        RequestBodyError::TooLarge(size) => {
            let oversize = OversizeMessage::new(size, conn.gateway.max_body);
            refuse(StatusCode::PAYLOAD_TOO_LARGE, &oversize.describe_request())
        }
        RequestBodyError::NoMemory => overloaded(conn, None, &account.refusal("the request was not read")),
        RequestBodyError::Incomplete => refuse(StatusCode::BAD_REQUEST, "the request body is incomplete"),
        RequestBodyError::TimedOut => {
            refuse(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time")
        }
    };
    if matches!(error, RequestBodyError::TooLarge(_) | RequestBodyError::NoMemory) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Returns the response to a request that is refused because clients use too much memory.
fn overloaded(conn: &ConnectionContext, id: Option<&RequestId>, error: &Error) -> Response<ResponseBody> {
    let object = conn.gateway.service.error_object(error);
    let mut response = json_response(StatusCode::SERVICE_UNAVAILABLE, encode_error_response(id, &object));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Returns a complete response. A large one counts towards the memory of clients until it has been read, and is replaced by an
/// error if there is too little.
fn complete_response(
    conn: &ConnectionContext,
    access: &AuthenticatedCaller,
    status: StatusCode,
    id: &RequestId,
    payload: &ResponsePayload,
) -> Response<ResponseBody> {
    let body = ResponseBody::response(id, payload);
    let size = body.len();
    if size < MIN_CLAIMED_RESPONSE {
        return response::respond(status, body);
    }
    let account = conn.memory(access);
    match account.claim(size) {
        Some(claim) => response::respond(status, body.with_claim(claim)),
        None => {
            let error = account.refusal("the result was discarded").mark_maybe_sent();
            overloaded(conn, Some(id), &error)
        }
    }
}

/// Handles a request in the era that its `_meta` declares, or in a session without one.
async fn handle_request(
    conn: &ConnectionContext,
    scope: EndpointScope,
    request_headers: &RequestHeaders,
    headers: &HeaderMap,
    mut request: McpRequest,
) -> Response<ResponseBody> {
    if conn.gateway.service.crib.traces_calls() && request.method != INITIALIZE {
        add_trace_context(headers, request.params.as_mut());
    }
    match conn.meta_reader.read(request.params.as_mut()) {
        DeclaredEra::Stateless(meta) => {
            Box::pin(handle_stateless(conn, scope, request_headers, headers, request, meta)).await
        }
        DeclaredEra::UnsupportedVersion(date) => match request_headers.names_other_revision(&date) {
            false => unsupported_revision(Some(&request.id), &date),
            true => {
                let message = format!("`MCP-Protocol-Version` must be `{date}`, as in the body");
                error_response(StatusCode::BAD_REQUEST, Some(&request.id), code::HEADER_MISMATCH, &message)
            }
        },
        DeclaredEra::Invalid(error) => {
            json_response(StatusCode::BAD_REQUEST, encode_error_response(Some(&request.id), &error))
        }
        DeclaredEra::Undeclared if request_headers.is_stateless() => {
            let message = "requests of this revision must name it in `params._meta`";
            error_response(StatusCode::BAD_REQUEST, Some(&request.id), code::INVALID_PARAMS, message)
        }
        DeclaredEra::Undeclared => match &request_headers.unknown_revision {
            Some(date) => unsupported_revision(Some(&request.id), date),
            None if request.method == INITIALIZE => Box::pin(sessions::open(conn, scope, &request)).await,
            None => sessions::respond(conn, &scope, request_headers.session_id(), request).await,
        },
    }
}

/// Handles a request of the stateless era if its headers agree with its body.
async fn handle_stateless(
    conn: &ConnectionContext,
    scope: EndpointScope,
    request_headers: &RequestHeaders,
    headers: &HeaderMap,
    request: McpRequest,
    meta: RequestMeta,
) -> Response<ResponseBody> {
    let params = request.params.as_ref();
    let mut checked = request_headers.check_body(meta.revision, &request.method, params, headers);
    // On the gateway's own socket there is no proxy that could have acted on the headers.
    if checked.is_ok() && conn.peer.entrypoint != Entrypoint::Socket {
        let service = &conn.gateway.service;
        checked = headers::check_header_params(service, &scope, &request.method, params, headers).await;
    }
    match checked {
        Ok(()) => stateless::respond(conn, scope, request, meta).await,
        Err(reason) => {
            error_response(StatusCode::BAD_REQUEST, Some(&request.id), code::HEADER_MISMATCH, &reason)
        }
    }
}

/// Adds the trace context of the headers to the parameters, unless these have one.
fn add_trace_context(headers: &HeaderMap, params: Option<&mut Object>) {
    let header = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let (Some(traceparent), Some(params)) = (header(&TRACEPARENT), params) {
        trace_meta::add_from_headers(params, traceparent, header(&TRACESTATE));
    }
}

/// Returns the error response to a response of a client, which no server has asked for in the stateless era.
fn unexpected_response(id: &RequestId) -> Response<ResponseBody> {
    let message = "a client of this revision sends no responses, because servers send it no requests";
    error_response(StatusCode::BAD_REQUEST, Some(id), code::INVALID_REQUEST, message)
}

/// Returns the error response to a request of an unsupported revision.
fn unsupported_revision(id: Option<&RequestId>, date: &str) -> Response<ResponseBody> {
    json_response(
        StatusCode::BAD_REQUEST,
        encode_error_response(id, &client::unsupported_version_error(date)),
    )
}

fn method_not_allowed() -> Response<ResponseBody> {
    let message = "method not allowed: use POST; GET and DELETE need a session";
    let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, None, code::INVALID_REQUEST, message);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    response
}

/// Returns a JSON-RPC error response.
fn error_response(
    status: StatusCode,
    id: Option<&RequestId>,
    code: i32,
    message: &str,
) -> Response<ResponseBody> {
    json_response(status, encode_error_response(id, &error_object(code, message, None)))
}
