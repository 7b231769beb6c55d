//! Requests of the stateless era, which end with their connection.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use toolcrib::ErrorKind;
use toolcrib::protocol::era::client::{DeclaredEra, LISTEN, RequestMeta};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{RequestId, ResponsePayload, code, encode_response};
use toolcrib::protocol::versions::Era;
use toolcrib::util::tasks::SpawnBoxed as _;

use super::get_stream::GetStream;
use super::{McpRequest, complete_response, error_response, event_response};
use crate::body::{CallStream, PendingCall, ResponseBody};
use crate::callers::AuthenticatedCaller;
use crate::gateway::ConnectionContext;
use crate::service::change_watcher::ChangeWatcher;
use crate::service::updates::MAX_QUEUED_UPDATES;
use crate::service::{EndpointScope, McpService, RequestContext, reject};

/// Handles a request. The response is complete if nothing comes before it, and a stream otherwise.
pub(super) async fn respond(
    conn: &ConnectionContext,
    scope: EndpointScope,
    request: McpRequest,
    meta: RequestMeta,
) -> Response<ResponseBody> {
    if request.method == LISTEN {
        // Boxed to keep the future of a call small.
        return Box::pin(open_listen_stream(conn, scope, request, &meta)).await;
    }
    let McpRequest { id, method, params, accepts_events } = request;
    let wants_updates = accepts_events
        && (meta.wants_updates() || scope.view.server().is_some())
        && McpService::is_forwarded(Era::Stateless, &method);
    let service = conn.gateway.service.clone();
    let access = scope.access.clone();
    let client = conn.client(scope.caller());
    service.recent_clients.record_stateless(&client, &scope, &meta, &conn.meta_reader);
    let context = RequestContext::stateless(scope, &meta, client.key);
    if !wants_updates {
        let response = service.plan(context, &method, params).respond().await;
        return respond_completely(conn, &access, &id, &response);
    }
    let (sink, mut updates) = mpsc::channel(MAX_QUEUED_UPDATES);
    let context = context.with_updates(Arc::new(sink));
    let mut call: PendingCall =
        Box::pin(async move { service.plan(context, &method, params).respond().await });
    let first = tokio::select! {
        biased;
        Some(first) = updates.recv() => first,
        response = &mut call => match updates.try_recv() {
            // Updates sent before the response must precede it.
            Ok(first) => {
                call = Box::pin(std::future::ready(response));
                first
            }
            Err(_) => return respond_completely(conn, &access, &id, &response),
        },
    };
    // From here in a task of its own, so that a client that does not read delays only itself. Ends with the stream.
    let call = AbortOnDropHandle::new(conn.gateway.tasks.spawn_boxed(call));
    let call: PendingCall = Box::pin(async move { call.await.unwrap_or_else(|_| internal_error()) });
    let stream = CallStream {
        id,
        progress_token: meta.progress_token,
        updates,
        next_update: Some(first),
        call: Some(call),
    };
    event_response(ResponseBody::events(stream))
}

/// Forwards a notification that the protocol does not define and that declares its era; others are ignored.
pub(super) fn receive(conn: &ConnectionContext, scope: EndpointScope, method: String, params: Option<Bytes>) {
    let Some(Ok(mut params)) = params.map(|params| Object::parse(&params)) else { return };
    if let DeclaredEra::Stateless(meta) = conn.meta_reader.read(Some(&mut params)) {
        let client = conn.client(scope.caller());
        let context = RequestContext::stateless(scope, &meta, client.key);
        let gateway = &conn.gateway;
        gateway.service.spawn_notification(&gateway.tasks, &client, context, method, params);
    }
}

/// Responds with a stream that starts with an acknowledgement and ends with the response to the request.
async fn open_listen_stream(
    conn: &ConnectionContext,
    scope: EndpointScope,
    request: McpRequest,
    meta: &RequestMeta,
) -> Response<ResponseBody> {
    let McpRequest { id, params, accepts_events, .. } = request;
    if !accepts_events {
        let message = "`Accept` must allow text/event-stream for this method";
        return error_response(StatusCode::NOT_ACCEPTABLE, Some(&id), code::INVALID_REQUEST, message);
    }
    // Created first, so that no change is missed while the stream is opened.
    let service = &conn.gateway.service;
    let key = conn.client(scope.caller()).key;
    let context = RequestContext::stateless(scope, meta, key);
    let watcher = ChangeWatcher::new(service.clone(), context.scope.clone());
    let stream = match service.listen(&context, &id, params.as_ref()).await {
        Ok(stream) => stream,
        Err(response) => return respond_completely(conn, &context.scope.access, &id, &response),
    };
    let first = VecDeque::from([stream.acknowledgement()]);
    let last = encode_response(&id, &stream.final_response());
    let ended = context.scope.access.revoked.child_token();
    if stream.is_empty() {
        ended.cancel();
    }
    let ends = [ended, conn.stop.clone(), conn.gateway.draining.token()];
    event_response(ResponseBody::events(GetStream::new(watcher, stream, None, ends, first, Some(last))))
}

/// Returns a response without a stream.
fn respond_completely(
    conn: &ConnectionContext,
    access: &AuthenticatedCaller,
    id: &RequestId,
    response: &ResponsePayload,
) -> Response<ResponseBody> {
    complete_response(conn, access, status(response), id, response)
}

/// Returns the HTTP status that the stateless era defines for an error.
fn status(response: &ResponsePayload) -> StatusCode {
    let ResponsePayload::Error(error) = response else { return StatusCode::OK };
    let error = Object::parse(error).unwrap_or_default();
    let number = error.get("code").and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    match number {
        Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(number) if number == ErrorKind::ShuttingDown.facts().code => StatusCode::SERVICE_UNAVAILABLE,
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}

/// Returns the response to a request whose task panicked.
fn internal_error() -> ResponsePayload {
    reject(code::INTERNAL_ERROR, "internal error: the request handler failed")
}
