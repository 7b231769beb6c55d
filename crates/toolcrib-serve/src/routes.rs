//! Checks requests and routes them by path.

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use toolcrib::util::encoding;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{Caller, Project};

use crate::admin_routes::AdminRequest;
use crate::body::{ResponseBody, RevocableEvents};
use crate::callers::IssuedCallers;
use crate::connection_peer::Entrypoint;
use crate::cors;
use crate::dashboard;
use crate::endpoint;
use crate::forwarded::ForwardedClient;
use crate::gateway::ConnectionContext;
use crate::login::FAILED_LOGIN_DELAY;
use crate::login_error::LoginError;
use crate::query::query_value;
use crate::resource::METADATA_PATH;
use crate::response::{self, error_response, event_response, json_response, respond};
use crate::stdio::{PipeIdentity, serve_pipe};

/// Header with the percent-encoded project folder of a pipe client.
#[doc(hidden)]
pub const PROJECT_HEADER: &str = "toolcrib-project";

/// Handles a request. The response to one without a valid token is delayed, and may close the connection.
pub(crate) async fn handle_request(
    conn: &ConnectionContext,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    if conn.peer.is_proxy {
        return Box::pin(handle_forwarded(conn, request)).await;
    }
    let is_http2 = request.version() == Version::HTTP_2;
    let mut response = route_request(conn, request, None).await;
    if response.status() == StatusCode::UNAUTHORIZED {
        conn.login.fail();
        conn.gateway.record_failed_login(conn.peer.address);
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

/// Handles a request that a trusted proxy passed on. Its connection carries requests of many clients, so it is not closed for
/// failed logins of one of them; the number of requests at the same time is limited for each client.
async fn handle_forwarded(
    conn: &ConnectionContext,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    let gateway = &conn.gateway;
    let Ok(client) = ForwardedClient::read(request.headers(), &gateway.trusted_proxies) else {
        let message = "`Forwarded` and `X-Forwarded-…` describe different clients; \
                       let the proxy remove the headers that it does not set";
        return error_response(StatusCode::BAD_REQUEST, message);
    };
    if client.is_remote && gateway.callers.is_empty() && !is_health(request.uri().path()) {
        return response::remote_client();
    }
    conn.report_url_conflict(&client);
    let counted = client.address.map(|address| gateway.client_requests.try_acquire(address));
    if let Some(None) = counted {
        let message = "too many requests of this address at the same time";
        return error_response(StatusCode::TOO_MANY_REQUESTS, message);
    }
    let mut response = route_request(conn, request, client.host.as_deref()).await;
    if response.status() == StatusCode::UNAUTHORIZED {
        gateway.record_failed_login(client.address.or(conn.peer.address));
        sleep(FAILED_LOGIN_DELAY).await;
    }
    if let ResponseBody::Events(events) = response.body_mut() {
        events.client_permit = counted.flatten();
    }
    response
}

/// Checks host, origin and caller of a request and routes it by path. A proxy may name the host that its client addressed.
async fn route_request(
    conn: &ConnectionContext,
    request: &mut Request<Incoming>,
    forwarded_host: Option<&str>,
) -> Response<ResponseBody> {
    let gateway = &conn.gateway;
    let checked =
        gateway.allowed_hosts.check(request.version(), request.uri(), request.headers(), forwarded_host);
    let page = match checked {
        Ok(page) => page.cloned(),
        Err(reason) => return error_response(StatusCode::FORBIDDEN, &reason),
    };
    if request.uri().path().ends_with('/') {
        remove_last_slash(request);
    }
    let Some(page) = page else { return respond_at_path(conn, request).await };
    if !is_for_pages(request.uri().path()) {
        let message = "web pages of other origins may use the MCP endpoints only";
        return error_response(StatusCode::FORBIDDEN, message);
    }
    let mut response = match cors::answer_preflight(request.method(), request.headers()) {
        Some(answer) => answer,
        // Boxed to keep the future of other requests small.
        None => Box::pin(respond_at_path(conn, request)).await,
    };
    cors::allow(&mut response, page);
    response
}

/// Handles a request whose host and origin were checked.
async fn respond_at_path(
    conn: &ConnectionContext,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    if endpoint::is_mcp_path(request.uri().path()) {
        return endpoint::respond(conn, request).await;
    }
    // Boxed to keep the future of a request to an endpoint small.
    Box::pin(respond_elsewhere(conn, request)).await
}

/// Returns whether allowed web pages may use a path: the MCP endpoints, and where they find out how to log in.
fn is_for_pages(path: &str) -> bool {
    let path = path.strip_prefix(METADATA_PATH).unwrap_or(path);
    endpoint::is_mcp_path(path) || endpoint::is_sse_path(path)
}

/// Removes the slash at the end of an endpoint's path: many clients are configured with one.
fn remove_last_slash(request: &mut Request<Incoming>) {
    let path = request.uri().path();
    let shorter =
        path.strip_suffix('/').filter(|path| endpoint::is_mcp_path(path) || endpoint::is_sse_path(path));
    if let Some(target) = shorter.and_then(|path| with_path(request.uri(), path)) {
        *request.uri_mut() = target;
    }
}

/// Returns a request target with another path, and the same host and query.
pub(crate) fn with_path(target: &Uri, path: &str) -> Option<Uri> {
    let mut parts = target.clone().into_parts();
    let query = target.query().map(|query| format!("?{query}")).unwrap_or_default();
    parts.path_and_query = Some(format!("{path}{query}").parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Handles a request to another path than those of the MCP endpoints.
async fn respond_elsewhere(
    conn: &ConnectionContext,
    request: &mut Request<Incoming>,
) -> Response<ResponseBody> {
    let gateway = &conn.gateway;
    let path = request.uri().path();
    if endpoint::is_sse_path(path) {
        return endpoint::sse::respond(conn, request).await;
    }
    if let Some(resource) = path.strip_prefix(METADATA_PATH)
        && let Some(issued) = gateway.callers.issued()
    {
        return resource_metadata(conn, &issued, request, resource);
    }
    if let Some(response) = dashboard::respond(conn, request).await {
        return response;
    }
    let session = conn.session(request.headers());
    let is_logged_in = session.is_some();
    let access = match session {
        Some(access) => access,
        None => match conn.authenticate(request.uri(), request.headers()).await {
            Ok(access) => access,
            Err(error) => return respond_unauthenticated(conn, request, &error).await,
        },
    };
    let caller = &access.caller;
    if path == "/metrics" {
        return respond_metrics(conn, caller, request).await;
    }
    if !access.admin && !is_health(path) && !is_own_data(request) {
        let caller = caller.as_str();
        let message = format!("caller `{caller}` is not an admin; set `callers.{caller}.admin = true`");
        return error_response(StatusCode::FORBIDDEN, &message);
    }
    let is_own_socket = conn.peer.entrypoint == Entrypoint::Socket;
    if path == "/api/v1/stdio" && is_own_socket && *caller == Caller::local() {
        return upgrade_to_pipe(conn, request);
    }
    let can_approve = conn.can_approve(caller, is_logged_in);
    let request = AdminRequest { can_approve, is_admin: access.admin, ..admin_request(caller, request) };
    match gateway.admin.open_events(&request) {
        Some(Ok(events)) => {
            let events = RevocableEvents::new(events, access.revoked.clone());
            return event_response(ResponseBody::events(events));
        }
        Some(Err(reply)) => return json_response(reply.status, reply.body.to_string()),
        None => {}
    }
    let reply = gateway.admin.respond(request).await;
    json_response(reply.status, reply.body.to_string())
}

/// Responds with the metrics, to callers that may read them.
async fn respond_metrics(
    conn: &ConnectionContext,
    caller: &Caller,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    if !caller.can_read_metrics() {
        let caller = caller.as_str();
        let message =
            format!("caller `{caller}` may not read metrics; set `callers.{caller}.metrics = true`");
        return error_response(StatusCode::FORBIDDEN, &message);
    }
    if request.method() != Method::GET {
        return error_response(StatusCode::METHOD_NOT_ALLOWED, "`/metrics` supports GET only");
    }
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    match conn.gateway.admin.metrics(accept).await {
        Some(metrics) => {
            let mut response = respond(StatusCode::OK, ResponseBody::full(metrics.text));
            let content_type = HeaderValue::from_static(metrics.content_type);
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
        None => {
            let message = "metrics are not served; set `metrics.enabled = true`";
            error_response(StatusCode::NOT_FOUND, message)
        }
    }
}

fn admin_request<'a>(caller: &'a Caller, request: &'a Request<Incoming>) -> AdminRequest<'a> {
    AdminRequest {
        caller,
        can_approve: false,
        is_admin: false,
        method: request.method(),
        path: request.uri().path(),
        query: request.uri().query(),
        last_event_id: request.headers().get("last-event-id").and_then(|id| id.to_str().ok()),
    }
}

/// Returns whether every caller may make the request, because the response has only what is about the caller.
fn is_own_data(request: &Request<Incoming>) -> bool {
    let path = request.uri().path();
    let is_one_call = || path.strip_prefix("/api/v1/calls/").is_some_and(|id| !id.contains('/'));
    request.method() == Method::GET
        && (matches!(path, "/api/v1/calls" | "/api/v1/clients" | "/api/v1/events" | "/api/v1/stats")
            || is_one_call())
}

fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Answers a request without a valid token: only the status of the health checks is public.
async fn respond_unauthenticated(
    conn: &ConnectionContext,
    request: &Request<Incoming>,
    error: &LoginError,
) -> Response<ResponseBody> {
    if is_health(request.uri().path()) && request.method() == Method::GET {
        let anonymous = Caller::new("");
        let reply = conn.gateway.admin.respond(admin_request(&anonymous, request)).await;
        return respond(reply.status, ResponseBody::empty());
    }
    conn.refuse_login(error, request.uri(), request.headers())
}

/// Returns the metadata of an endpoint, which names the issuers that clients get tokens from. It is the same for endpoints that
/// do not exist, so that it does not reveal which do.
fn resource_metadata(
    conn: &ConnectionContext,
    issued: &IssuedCallers,
    request: &Request<Incoming>,
    path: &str,
) -> Response<ResponseBody> {
    if request.method() != Method::GET {
        let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let root = conn.root_resource(request.uri(), request.headers());
    match root.find_endpoint(path) {
        Some(resource) => {
            let scopes = issued.requested_scopes(&resource);
            json_response(StatusCode::OK, resource.metadata(issued.issuer_urls(), &scopes))
        }
        None => error_response(StatusCode::NOT_FOUND, "there is no endpoint with this path"),
    }
}

/// Upgrades the connection to a pipe of MCP messages, for `toolcrib stdio`.
fn upgrade_to_pipe(conn: &ConnectionContext, request: &mut Request<Incoming>) -> Response<ResponseBody> {
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
    let agent = query_value(request.uri().query(), "agent");
    let caller = gateway.service.crib.local_caller(agent.as_deref(), profile.as_deref());
    let announces_end = query_value(request.uri().query(), "end").is_some();
    let last_question = last_question.unwrap_or(0);
    let identity = PipeIdentity { caller, project, last_question, announces_end };
    let service = gateway.service.clone();
    let max_message = gateway.max_body;
    let stop = conn.stop.clone();
    let draining = gateway.draining.token();
    let upgraded = hyper::upgrade::on(request);
    gateway.tasks.spawn_boxed(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
        let end = CancellationToken::new();
        let pipe = serve_pipe(reader, writer, service, max_message, identity, end.clone());
        tokio::pin!(pipe);
        tokio::select! {
            () = &mut pipe => return,
            () = stop.cancelled() => {}
            () = draining.cancelled() => {}
        }
        end.cancel();
        pipe.await;
    });
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("mcp"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
}
