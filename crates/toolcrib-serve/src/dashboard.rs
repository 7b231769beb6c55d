//! The dashboard over HTTP: its files, and the login of browsers.

use hyper::header::{AUTHORIZATION, CACHE_CONTROL, HeaderValue, ORIGIN, SET_COOKIE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;
use toolcrib::Caller;

use crate::body::ResponseBody;
use crate::callers::{AuthenticatedCaller, Entrypoint};
use crate::dashboard_sessions::SessionAccess;
use crate::gateway::ConnectionContext;
use crate::response::{error_response, json_response};
use crate::static_files;

/// The authorization scheme of a login code.
const CODE_SCHEME: &[u8] = b"Code ";

/// Answers a request for a file of the dashboard or about its login; `None` for any other path. These need no token.
pub(crate) fn respond<B>(conn: &ConnectionContext, request: &Request<B>) -> Option<Response<ResponseBody>> {
    let path = request.uri().path();
    let method = request.method();
    let headers = request.headers();
    let files = conn.gateway.dashboard_files;
    if let Some(file) = files.iter().find(|file| file.path == path) {
        return Some(static_files::respond(file, method, headers));
    }
    if files.is_empty() {
        return None;
    }
    let mut response = match path {
        "/api/v1/session" if method == Method::GET => describe(conn, headers),
        "/api/v1/login" if method == Method::POST => log_in(conn, headers),
        "/api/v1/logout" if method == Method::POST => log_out(conn, headers),
        "/api/v1/session" | "/api/v1/login" | "/api/v1/logout" => {
            error_response(StatusCode::METHOD_NOT_ALLOWED, &format!("`{path}` does not support {method}"))
        }
        _ => return None,
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

/// Describes the caller of a request: whether there is one, and what it may do.
fn describe(conn: &ConnectionContext, headers: &HeaderMap) -> Response<ResponseBody> {
    let session = conn.session(headers);
    let is_logged_in = session.is_some();
    let Some(access) = session.or_else(|| conn.authenticate(headers)) else {
        if conn.entrypoint == Entrypoint::OtherUser && conn.gateway.callers.is_empty() {
            return conn.refuse_login();
        }
        let anonymous = json!({"caller": null, "admin": false, "can_approve": false, "logged_in": false});
        return json_response(StatusCode::OK, anonymous.to_string());
    };
    let can_approve = access.admin && conn.can_approve(&access.caller, is_logged_in);
    let mut description = caller_json(&access);
    description["can_approve"] = can_approve.into();
    description["logged_in"] = is_logged_in.into();
    json_response(StatusCode::OK, description.to_string())
}

fn caller_json(access: &AuthenticatedCaller) -> Value {
    json!({"caller": access.caller.as_str(), "admin": access.admin})
}

/// Opens a session for a login code, or for the token of a caller.
fn log_in(conn: &ConnectionContext, headers: &HeaderMap) -> Response<ResponseBody> {
    let sessions = &conn.gateway.dashboard_sessions;
    let now = Instant::now();
    let Some(access) = find_access(conn, headers, now) else { return conn.refuse_login() };
    let Some(secrets) = sessions.open(access.clone(), now) else {
        let message = "this system has no source of random numbers";
        return error_response(StatusCode::SERVICE_UNAVAILABLE, message);
    };
    conn.login.succeed();
    let mut reply = match access {
        SessionAccess::Local => json!({"caller": Caller::local().as_str(), "admin": true}),
        SessionAccess::Caller(access) => caller_json(&access),
    };
    reply["key"] = secrets.key.into();
    let mut response = json_response(StatusCode::OK, reply.to_string());
    set_cookie(&mut response, &secrets.cookie, "", headers);
    response
}

/// Returns the access that a login gives. A code is not accepted from another user of this machine, who may have seen it among the
/// arguments of a browser; and a request without a secret never opens a session, which may approve calls.
fn find_access(conn: &ConnectionContext, headers: &HeaderMap, now: Instant) -> Option<SessionAccess> {
    let authorization = headers.get(AUTHORIZATION)?;
    if let Some(code) = authorization.as_bytes().strip_prefix(CODE_SCHEME) {
        let is_allowed = conn.entrypoint != Entrypoint::OtherUser && !conn.login.is_refused();
        let code = std::str::from_utf8(code).ok().filter(|_| is_allowed)?;
        return conn.gateway.dashboard_sessions.redeem_code(code, now).then_some(SessionAccess::Local);
    }
    let access = conn.authenticate(headers)?;
    (access.caller != Caller::local()).then_some(SessionAccess::Caller(access))
}

/// Ends the session of a request.
fn log_out(conn: &ConnectionContext, headers: &HeaderMap) -> Response<ResponseBody> {
    let sessions = &conn.gateway.dashboard_sessions;
    sessions.close(headers);
    let mut response = json_response(StatusCode::OK, "{}");
    set_cookie(&mut response, &sessions.removed_cookie(), "; Max-Age=0", headers);
    response
}

/// Sets a cookie that scripts cannot read and pages of other sites do not send. Browsers always name the origin of a POST request, and
/// with it whether the page came over TLS.
fn set_cookie(response: &mut Response<ResponseBody>, cookie: &str, lifetime: &str, headers: &HeaderMap) {
    let is_tls = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https:"));
    let secure = if is_tls { "; Secure" } else { "" };
    let value = format!("{cookie}; Path=/; HttpOnly; SameSite=Strict{secure}{lifetime}");
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
}
