//! Checks requests and routes them by path.

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::time::sleep;
use toolcrib::util::encoding;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{Caller, Project};

use crate::admin_routes::AdminRequest;
use crate::body::ResponseBody;
use crate::callers::Entrypoint;
use crate::dashboard;
use crate::endpoint;
use crate::gateway::ConnectionContext;
use crate::login::FAILED_LOGIN_DELAY;
use crate::query::query_value;
use crate::response::{error_response, json_response, respond};
use crate::stdio::{PipeIdentity, serve_pipe};

/// Header with the percent-encoded project folder of a pipe client.
#[doc(hidden)]
pub const PROJECT_HEADER: &str = "toolcrib-project";

/// Handles a request. The response to one without a valid token is delayed, and may close the connection.
pub(crate) async fn handle_request(
    conn: &ConnectionContext,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let is_http2 = request.version() == Version::HTTP_2;
    let mut response = route_request(conn, request).await;
    if response.status() == StatusCode::UNAUTHORIZED {
        conn.login.fail();
        conn.gateway.record_failed_login(conn.address);
        // Boxed to keep the future of an ordinary request small.
        Box::pin(sleep(FAILED_LOGIN_DELAY)).await;
        if conn.login.is_refused() && !is_http2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        } else if conn.login.is_refused() {
            conn.stop.cancel();
        }
    }
    response
}

/// Checks host, origin and caller of a request and routes it by path.
async fn route_request(conn: &ConnectionContext, request: Request<Incoming>) -> Response<ResponseBody> {
    let gateway = &conn.gateway;
    if let Err(reason) = gateway.allowed_hosts.check(request.version(), request.uri(), request.headers()) {
        return error_response(StatusCode::FORBIDDEN, &reason);
    }
    let path = request.uri().path();
    if endpoint::is_endpoint_path(path) {
        return endpoint::respond(conn, request).await;
    }
    if let Some(response) = dashboard::respond(conn, &request) {
        return response;
    }
    let session = conn.session(request.headers());
    let is_logged_in = session.is_some();
    let Some(access) = session.or_else(|| conn.authenticate(request.headers())) else {
        return respond_unauthenticated(conn, &request).await;
    };
    let caller = &access.caller;
    if !access.admin && !is_health(path) {
        let caller = caller.as_str();
        let message = format!("caller `{caller}` is not an admin; set `callers.{caller}.admin = true`");
        return error_response(StatusCode::FORBIDDEN, &message);
    }
    if path == "/api/v1/stdio" && conn.entrypoint == Entrypoint::Socket {
        return upgrade_to_pipe(conn, request);
    }
    let can_approve = conn.can_approve(caller, is_logged_in);
    let request = AdminRequest { can_approve, ..admin_request(caller, &request) };
    let reply = gateway.admin.respond(request).await;
    json_response(reply.status, reply.body.to_string())
}

fn admin_request<'a>(caller: &'a Caller, request: &'a Request<Incoming>) -> AdminRequest<'a> {
    AdminRequest {
        caller,
        can_approve: false,
        method: request.method(),
        path: request.uri().path(),
        query: request.uri().query(),
    }
}

fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Answers a request without a valid token: only the status of the health checks is public.
async fn respond_unauthenticated(
    conn: &ConnectionContext,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    if is_health(request.uri().path()) && request.method() == Method::GET {
        let anonymous = Caller::new("");
        let reply = conn.gateway.admin.respond(admin_request(&anonymous, request)).await;
        return respond(reply.status, ResponseBody::empty());
    }
    conn.refuse_login()
}

/// Upgrades the connection to a pipe of MCP messages, for `toolcrib stdio`.
fn upgrade_to_pipe(conn: &ConnectionContext, mut request: Request<Incoming>) -> Response<ResponseBody> {
    if request.method() != Method::GET || request.headers().get(UPGRADE).is_none_or(|value| value != "mcp") {
        return error_response(StatusCode::UPGRADE_REQUIRED, "this path needs the header `Upgrade: mcp`");
    }
    let gateway = &conn.gateway;
    // A client of this socket is the same user and is trusted to name its folder.
    let folder = request
        .headers()
        .get(PROJECT_HEADER)
        .and_then(|folder| folder.to_str().ok())
        .map(|folder| encoding::percent_decode_lossy(folder).into_owned());
    let project = Project::from_roots(folder);
    let last_question = query_value(request.uri().query(), "asked").and_then(|number| number.parse().ok());
    let profile = query_value(request.uri().query(), "profile");
    if let Some(name) = profile.as_ref().filter(|name| !gateway.service.crib.has_profile(name)) {
        return error_response(StatusCode::NOT_FOUND, &format!("no profile is called `{name}`"));
    }
    let caller = profile.iter().fold(Caller::local(), |caller, profile| caller.with_profile(profile));
    let identity = PipeIdentity { caller, project, last_question: last_question.unwrap_or(0) };
    let service = gateway.service.clone();
    let max_message = gateway.max_body;
    let stop = conn.stop.clone();
    let upgraded = hyper::upgrade::on(&mut request);
    gateway.tasks.spawn_boxed(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
        serve_pipe(reader, writer, service, max_message, identity, stop).await;
    });
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("mcp"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
}
