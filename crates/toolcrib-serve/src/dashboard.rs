//! The dashboard over HTTP: its files, and the login of browsers.

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, HeaderValue, ORIGIN, SET_COOKIE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::time::Instant;
use toolcrib::Caller;

use crate::body::ResponseBody;
use crate::callers::AuthenticatedCaller;
use crate::connection_peer::Entrypoint;
use crate::dashboard_sessions::SessionAccess;
use crate::gateway::ConnectionContext;
use crate::login_error::LoginError;
use crate::response::{error_response, json_response};
use crate::static_files;

/// The authorization scheme of a login code.
const CODE_SCHEME: &[u8] = b"Code ";

/// Answers a request for a file of the dashboard or about its login; `None` for any other path. These need no token.
pub(crate) async fn respond(
    conn: &ConnectionContext,
    request: &Request<Incoming>,
) -> Option<Response<ResponseBody>> {
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
        "/api/v1/session" if method == Method::GET => describe(conn, request.uri(), headers).await,
        "/api/v1/login" if method == Method::POST => log_in(conn, request.uri(), headers).await,
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
async fn describe(conn: &ConnectionContext, target: &Uri, headers: &HeaderMap) -> Response<ResponseBody> {
    let session = conn.session(headers);
    let is_logged_in = session.is_some();
    let found = match session {
        Some(access) => Ok(access),
        None => conn.authenticate(target, headers).await,
    };
    let access = match found {
        Ok(access) => access,
        Err(error) => return describe_anonymous(conn, &error, target, headers),
    };
    let can_approve = access.admin && conn.can_approve(&access.caller, is_logged_in);
    let mut description = caller_json(&access);
    description["can_approve"] = can_approve.into();
    description["logged_in"] = is_logged_in.into();
    json_response(StatusCode::OK, description.to_string())
}

/// Describes a request without a caller. Other users of this machine are refused, because they cannot log in, and so is a token that is not
/// valid: guesses are delayed and reported like everywhere else.
fn describe_anonymous(
    conn: &ConnectionContext,
    error: &LoginError,
    target: &Uri,
    headers: &HeaderMap,
) -> Response<ResponseBody> {
    let is_other_user = conn.peer.entrypoint == Entrypoint::OtherUser && conn.gateway.callers.is_empty();
    if is_other_user || headers.contains_key(AUTHORIZATION) {
        return conn.refuse_login(error, target, headers);
    }
    let anonymous = json!({"caller": null, "admin": false, "can_approve": false, "logged_in": false});
    json_response(StatusCode::OK, anonymous.to_string())
}

fn caller_json(access: &AuthenticatedCaller) -> Value {
    json!({"caller": access.caller.as_str(), "admin": access.admin})
}

/// Opens a session for a login code, or for the token of a caller.
async fn log_in(conn: &ConnectionContext, target: &Uri, headers: &HeaderMap) -> Response<ResponseBody> {
    let sessions = &conn.gateway.dashboard_sessions;
    let now = Instant::now();
    let access = match find_access(conn, target, headers, now).await {
        Ok(access) => access,
        Err(error) => return conn.refuse_login(&error, target, headers),
    };
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
async fn find_access(
    conn: &ConnectionContext,
    target: &Uri,
    headers: &HeaderMap,
    now: Instant,
) -> Result<SessionAccess, LoginError> {
    let authorization = headers.get(AUTHORIZATION).ok_or(LoginError::Missing)?;
    if let Some(code) = authorization.as_bytes().strip_prefix(CODE_SCHEME) {
        let is_allowed = conn.peer.entrypoint != Entrypoint::OtherUser && !conn.login.is_refused();
        let code = std::str::from_utf8(code).ok().filter(|_| is_allowed);
        let is_valid = code.is_some_and(|code| conn.gateway.dashboard_sessions.redeem_code(code, now));
        return if is_valid { Ok(SessionAccess::Local) } else { Err(LoginError::Missing) };
    }
    let access = conn.authenticate(target, headers).await?;
    match access.caller == Caller::local() {
        false => Ok(SessionAccess::Caller(access)),
        true => Err(LoginError::Missing),
    }
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
