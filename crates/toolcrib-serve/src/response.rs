//! HTTP responses that are not specific to MCP.

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::body::ResponseBody;

/// Returns a response with a JSON body.
pub(crate) fn json_response(status: StatusCode, body: impl Into<Bytes>) -> Response<ResponseBody> {
    respond(status, ResponseBody::full(body))
}

/// Returns a response whose content type is JSON.
pub(crate) fn respond(status: StatusCode, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns an event stream response.
pub(crate) fn event_response(body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns an error in the format of the admin API.
pub(crate) fn error_response(status: StatusCode, message: &str) -> Response<ResponseBody> {
    json_response(status, json!({"error": {"message": message}}).to_string())
}

/// Returns the response to a request of another user of this machine, who needs a token that is not declared.
pub(crate) fn other_user() -> Response<ResponseBody> {
    let message = "this connection belongs to another user, and no `callers` are declared";
    let hint = "declare `[callers.NAME]` with a `token`, or set `listen.any-user = true` to let every user of this machine in";
    json_response(StatusCode::FORBIDDEN, json!({"error": {"message": message, "hint": hint}}).to_string())
}

/// Returns the response to a request from another machine, which a proxy passed on, while no callers are declared.
pub(crate) fn remote_client() -> Response<ResponseBody> {
    let message = "this request came from another machine through a proxy, and no `callers` are declared";
    let hint = "declare `[callers.NAME]` with a `token`";
    json_response(StatusCode::FORBIDDEN, json!({"error": {"message": message, "hint": hint}}).to_string())
}

/// Returns the response to a request without a valid token.
pub(crate) fn unauthenticated() -> Response<ResponseBody> {
    let message = "missing or unknown token: send `Authorization: Bearer TOKEN`";
    let mut response = error_response(StatusCode::UNAUTHORIZED, message);
    let challenge = HeaderValue::from_static("Bearer realm=\"toolcrib\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}
