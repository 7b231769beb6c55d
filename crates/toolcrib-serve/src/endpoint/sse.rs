//! HTTP+SSE, the transport of clients of 2024-11-05: an event stream, and an address for the client's messages. Its requests are
//! handled in a session like those of `/mcp`, which ends with the stream.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::sync::mpsc;
use toolcrib::protocol::era::client::INITIALIZE;
use toolcrib::protocol::jsonrpc::{ClientMessage, RequestId, code, encode_error_response, error_object};
use toolcrib::util::tasks::SpawnBoxed as _;

use super::headers::{RequestHeaders, SESSION_ID, accepts_events};
use super::session_request::SessionRequest;
use super::{
    McpRequest, add_trace_context, error_response, find_scope, get_stream, invalid_message, read_body,
    sessions,
};
use crate::batch::{duplicate_id_response, is_batch};
use crate::body::{MessageSource, ResponseBody, RevocableEvents, encode_event};
use crate::gateway::{ConnectionContext, HttpGateway};
use crate::query::query_value;
use crate::response::{self, event_response};
use crate::service::EndpointScope;
use crate::session::SessionRef;
use crate::session::sse_clients::{SseClient, SseClients};
use crate::session::stream::EventLogReader;

/// Encoded events that wait until the client reads.
const MAX_QUEUED_EVENTS: usize = 1;

/// Handles a request to `/sse`, `/sse/p/PROFILE` or `/sse/s/SERVER`: GET opens the stream, POST sends a message.
pub(crate) async fn respond(
    conn: &ConnectionContext,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    let Some(clients) = &conn.gateway.sse_clients else {
        let message =
            "HTTP+SSE is off: use `/mcp`, or set `sse = true` in `[listen]` for clients that cannot";
        return response::error_response(StatusCode::NOT_FOUND, message);
    };
    let Some(endpoint) = endpoint_target(request.uri()) else {
        return response::error_response(StatusCode::NOT_FOUND, "there is no endpoint with this path");
    };
    let mut scope = match find_scope(conn, &endpoint, request.headers()).await {
        Ok(scope) => scope,
        Err(response) => return *response,
    };
    scope.transport = Some(conn.peer.transport());
    match *request.method() {
        Method::GET => open(conn, clients, scope, request),
        Method::POST => receive(conn, clients, scope, request).await,
        _ => {
            let message = "method not allowed: use GET for the event stream and POST for messages";
            let mut response = response::error_response(StatusCode::METHOD_NOT_ALLOWED, message);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
            response
        }
    }
}

/// Returns the endpoint that decides about servers and access, such as `/mcp/s/git` for `/sse/s/git`.
fn endpoint_target(target: &Uri) -> Option<Uri> {
    let endpoint = format!("/mcp{}", target.path().strip_prefix("/sse")?);
    let mut parts = target.clone().into_parts();
    parts.path_and_query = Some(endpoint.parse().ok()?);
    Uri::from_parts(parts).ok().filter(|target| super::is_mcp_path(target.path()))
}

/// Opens the event stream of a client. Its first event is the address for the messages of the client.
fn open(
    conn: &ConnectionContext,
    clients: &Arc<SseClients>,
    scope: EndpointScope,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    if !accepts_events(request.headers()) {
        return response::error_response(StatusCode::NOT_ACCEPTABLE, "`Accept` must allow text/event-stream");
    }
    let gateway = &conn.gateway;
    let (events, receiver) = mpsc::channel(MAX_QUEUED_EVENTS);
    let revoked = scope.access.revoked.clone();
    let ended = conn.stop.child_token();
    let client = Arc::new(SseClient { scope, events, ended, session: OnceLock::new() });
    let Some(id) = clients.add(client.clone(), gateway.sessions.max_sessions()) else {
        let message = "too many event streams are open; close one, or raise `limits.sessions`";
        return response::error_response(StatusCode::SERVICE_UNAVAILABLE, message);
    };
    let resource = conn.root_resource(request.uri(), request.headers());
    let address = format!("{}{}?session={id}", resource.proxy_path(), request.uri().path());
    // The queue is empty and open.
    let _ = client.events.try_send(format!("event: endpoint\ndata: {address}\n\n").into_bytes());
    gateway.tasks.spawn_boxed(watch(gateway.clone(), clients.clone(), id, client));
    event_response(ResponseBody::events(RevocableEvents::new(receiver, revoked)))
}

/// Waits until a stream ends. A client that has left loses its session; one that the gateway parts with still gets the responses to
/// its requests in progress.
async fn watch(gateway: Arc<HttpGateway>, clients: Arc<SseClients>, id: String, client: Arc<SseClient>) {
    tokio::select! {
        () = client.events.closed() => {}
        () = client.ended.cancelled() => {}
        () = gateway.draining.wait() => {}
    }
    clients.remove(&id);
    client.ended.cancel();
    if client.events.is_closed()
        && let Some(session) = client.session.get()
    {
        gateway.sessions.end(session, &client.scope);
    }
}

/// Receives a message. What it asks for is answered on the event stream.
async fn receive(
    conn: &ConnectionContext,
    clients: &SseClients,
    scope: EndpointScope,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    let id = query_value(request.uri().query(), "session");
    let Some(client) = id.and_then(|id| clients.find(&id, &scope)) else {
        let message = "no event stream is open for this address; open one with GET";
        return error_response(StatusCode::NOT_FOUND, None, code::INVALID_REQUEST, message);
    };
    if let Err((status, message)) = RequestHeaders::parse(request.headers()) {
        return error_response(status, None, code::INVALID_REQUEST, message);
    }
    let body = match read_body(conn, &scope.access, request).await {
        Ok(body) => body,
        Err(response) => return *response,
    };
    if is_batch(&body) {
        return invalid_message(None, code::INVALID_REQUEST, "send one message per request");
    }
    let parsed = match ClientMessage::parse_with_params(&body) {
        Ok(parsed) => parsed,
        Err(bad) => return invalid_message(bad.id.as_ref(), bad.code, &bad.reason),
    };
    let session = client.session.get().and_then(|id| conn.gateway.sessions.find(id, &client.scope));
    match parsed.message {
        ClientMessage::Request { id, method, .. } => {
            let mut params = match parsed.params.transpose() {
                Ok(params) => params,
                Err(bad) => return invalid_message(Some(&id), code::INVALID_PARAMS, &bad.reason),
            };
            if conn.gateway.service.crib.traces_calls() && method != INITIALIZE {
                add_trace_context(request.headers(), params.as_mut());
            }
            let request = McpRequest { id, method, params, accepts_events: true };
            match session {
                Some(session) => start(conn, &client, &session, request).await,
                None => initialize(conn, &client, scope, &request).await,
            }
        }
        message => {
            if let Some(session) = session {
                sessions::receive(conn, &session, message);
            }
        }
    }
    response::respond(StatusCode::ACCEPTED, ResponseBody::empty())
}

/// Sends an error on the event stream. Clients wait for it there.
async fn send_error(client: &SseClient, id: &RequestId, message: &str) {
    let error = error_object(code::INVALID_REQUEST, message, None);
    send(client, &encode_error_response(Some(id), &error)).await;
}

async fn send(client: &SseClient, message: &[u8]) {
    // Fails only if the client has left.
    let _ = client.events.send(encode_event(message)).await;
}

/// Opens the session of a client, and sends it what has no request on its stream.
async fn initialize(
    conn: &ConnectionContext,
    client: &SseClient,
    scope: EndpointScope,
    request: &McpRequest,
) {
    if request.method != INITIALIZE || client.session.get().is_some() {
        return send_error(client, &request.id, "send `initialize` first, once per event stream").await;
    }
    let response = sessions::open(conn, scope, request).await;
    let id = response.headers().get(SESSION_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let Ok(body) = response.into_body().collect().await;
    if let Some(id) = id {
        let session = conn.gateway.sessions.find(&id, &client.scope);
        let is_first = client.session.set(id.clone()).is_ok();
        // The client may have left meanwhile.
        if !is_first || client.ended.is_cancelled() {
            conn.gateway.sessions.discard(&id);
        }
        if let Some((session, hold)) =
            session.and_then(|session| session.hold_stream().map(|hold| (session, hold)))
        {
            let stream = get_stream::notifications(&conn.gateway, &session, hold, client.ended.clone());
            conn.gateway.tasks.spawn_boxed(forward(stream, client.events.clone()));
        }
    }
    send(client, &body.to_bytes()).await;
}

/// Starts a request. Its response, and what comes before it, go to the event stream.
async fn start(conn: &ConnectionContext, client: &SseClient, session: &SessionRef, request: McpRequest) {
    let id = request.id.clone();
    let Some(mut request) = SessionRequest::start(conn, session, request) else {
        return send(client, &duplicate_id_response(&id)).await;
    };
    request.log.start_stream();
    let reader = EventLogReader::from_start(request.log.clone(), false);
    conn.gateway.tasks.spawn_boxed(forward(reader, client.events.clone()));
    request.continue_in_task();
}

/// Sends the events of a source until it ends or the client leaves.
async fn forward(source: impl MessageSource, events: mpsc::Sender<Vec<u8>>) {
    let mut source = pin!(source);
    while let Some(event) = poll_fn(|context| source.as_mut().poll_next(context)).await {
        if events.send(event).await.is_err() {
            return;
        }
    }
}
