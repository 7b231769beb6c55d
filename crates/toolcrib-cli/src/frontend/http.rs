//! HTTP: one connection, and which page of the gateway a request is for.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, UPGRADE, WWW_AUTHENTICATE};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::wire::dialect::client::Claims;
use toolcrib::{Caller, Project};

use super::admin::approvals::is_a_yes;
use super::body::Body;
use super::callers::Known;
use super::face::{Presence, View, Visit};
use super::lasting::{self, Rest};
use super::line::Line;
use super::stretch::{self, Ended};
use super::taken::Takers;
use super::{Desk, Door, mcp, stdio};
use crate::percent;

/// How long a client may take to send its headers.
const HEADERS: Duration = Duration::from_secs(10);
/// How long it may be silent between two requests.
const SILENCE: Duration = Duration::from_secs(5 * 60);
/// Requests that may be under way on one HTTP/2 connection.
const STREAMS: u32 = 256;

/// Where the client of a pipe works: a path, percent-encoded.
pub(crate) const PROJECT: &str = "toolcrib-project";

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Where a request is to be answered, for everything that outlives the request itself.
pub(super) struct Counter {
    pub(super) desk: Arc<Desk>,
    pub(super) door: Door,
    /// Who is at the other end of the connection, in the era that has no sessions.
    pub(super) client: Presence,
    /// What it says of itself there.
    pub(super) claims: Claims,
    /// Ends streams that would otherwise never end.
    pub(super) stop: CancellationToken,
}

/// Serves one connection to its end, or until nothing is left of it but a stream; after `stop`, the request under way
/// is its last.
pub(crate) async fn serve<I>(io: I, desk: Arc<Desk>, door: Door, stop: CancellationToken) -> Option<Rest>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let opened = tokio::select! {
        opened = timeout(HEADERS, Line::open(io)) => opened,
        () = stop.cancelled() => return None,
    };
    let Ok(Ok((line, newer))) = opened else { return None };
    let (client, claims) = (desk.face.welcome(), Claims::default());
    let counter = Arc::new(Counter { desk, door, client, claims, stop });
    if newer {
        Box::pin(serve_newer(line, counter)).await;
        return None;
    }
    let mut arrived_by = Instant::now() + HEADERS;
    loop {
        // In a box: what is needed only now and then takes no room while the connection is silent.
        match Box::pin(stretch::serve(&line, &counter)).await {
            Ended::Over => return None,
            Ended::Left(response) => return Some(Box::pin(lasting::write(line, *response))),
            Ended::Paused { asked: false, begun: true } if Instant::now() >= arrived_by => return None,
            Ended::Paused { asked: false, begun: true } => continue,
            Ended::Paused { begun: true, .. } => {}
            Ended::Paused { .. } => {
                let more = tokio::select! {
                    more = timeout(SILENCE, line.more()) => more.unwrap_or(false),
                    () = counter.stop.cancelled() => false,
                };
                if !more {
                    return None;
                }
            }
        }
        arrived_by = Instant::now() + HEADERS;
    }
}

/// Serves a connection of the newer HTTP to its end, or until its client takes nothing any more.
async fn serve_newer<I>(line: Line<I>, counter: Arc<Counter>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (tasks, stop) = (Tracked(counter.desk.tasks.clone()), counter.stop.clone());
    let mut builder = http2::Builder::new(tasks);
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
    let takers = Arc::<Takers>::default();
    let handed = takers.clone();
    let service = service_fn(move |request| {
        let (counter, handed) = (counter.clone(), handed.clone());
        Box::pin(async move {
            let response = answer(&counter, request).await;
            Ok::<_, Infallible>(response.map(|body| handed.hand(body)))
        })
    });
    let mut connection = Box::pin(builder.serve_connection(TokioIo::new(line), service));
    // A connection that breaks takes its requests with it; there is nobody left to tell.
    tokio::select! {
        _ = &mut connection => return,
        () = takers.stalled() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        () = takers.stalled() => {}
    }
}

/// Runs the requests of an HTTP/2 connection where somebody waits for their end.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        self.0.spawn(work);
    }
}

pub(super) async fn answer(counter: &Counter, request: Request<Incoming>) -> Response<Body> {
    let door = counter.door;
    if let Err(why) = counter.desk.guard.admit(request.version(), request.uri(), request.headers()) {
        return problem(StatusCode::FORBIDDEN, &why);
    }
    let path = request.uri().path();
    let Some(Known { mut caller, admin }) = counter.desk.admin.admit(door, request.headers()) else {
        return stranger(counter, &request).await;
    };
    let crib = &counter.desk.face.crib;
    if let Some(name) = path.strip_prefix("/mcp/p/") {
        // Whoever has a profile of its own does not get to look through another one.
        if !crib.has_profile(name) || caller.profile().is_some_and(|own| own != name) {
            return problem(StatusCode::NOT_FOUND, &format!("no profile is called `{name}`"));
        }
        caller = caller.within(name);
        return mcp::answer(counter, Visit::by(caller), request).await;
    }
    if path == "/mcp" {
        return mcp::answer(counter, Visit::by(caller), request).await;
    }
    if let Some(name) = path.strip_prefix("/mcp/s/") {
        let server = name.parse().ok().filter(|server| crib.has(server) && crib.sees(&caller, server));
        return match server {
            Some(server) => mcp::answer(counter, Visit { view: View::One(server), caller }, request).await,
            None => problem(StatusCode::NOT_FOUND, &format!("no server is called `{name}`")),
        };
    }
    if !admin && !is_health(path) {
        let why = format!("`{}` is no admin: `callers.{0}.admin = true` makes it one", caller.as_str());
        return problem(StatusCode::FORBIDDEN, &why);
    }
    if is_a_yes(path) && door != Door::Socket && caller == Caller::local() {
        return problem(StatusCode::FORBIDDEN, "a person says yes on the command line: `toolcrib approve`");
    }
    if path == "/api/v1/stdio" && door == Door::Socket {
        return upgrade(counter, request);
    }
    let query = request.uri().query();
    let (status, body) = counter.desk.admin.answer(&caller, request.method(), path, query).await;
    json_response(status, body.to_string())
}

fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Whoever shows no token learns whether we are well, and nothing else.
async fn stranger(counter: &Counter, request: &Request<Incoming>) -> Response<Body> {
    if is_health(request.uri().path()) && request.method() == Method::GET {
        let nobody = Caller::named("");
        let asked = counter.desk.admin.answer(&nobody, request.method(), request.uri().path(), None);
        let (status, _) = asked.await;
        return respond(status, Body::empty());
    }
    let why = "a caller shows its token: `Authorization: Bearer TOKEN`";
    let mut response = problem(StatusCode::UNAUTHORIZED, why);
    let challenge = HeaderValue::from_static("Bearer realm=\"toolcrib\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

/// Turns the connection into a pipe of MCP messages, for `toolcrib stdio`.
fn upgrade(counter: &Counter, mut request: Request<Incoming>) -> Response<Body> {
    if request.method() != Method::GET || request.headers().get(UPGRADE).is_none_or(|value| value != "mcp") {
        return problem(StatusCode::UPGRADE_REQUIRED, "this page is a pipe: `Upgrade: mcp`");
    }
    let (face, largest, stop) = (counter.desk.face.clone(), counter.desk.body, counter.stop.clone());
    // Whoever may use this socket is the same user as we are, and may say where it works.
    let place = request.headers().get(PROJECT).and_then(|place| place.to_str().ok()).map(percent::decode);
    let project = Project::of(place);
    let asked = percent::query(request.uri().query(), "asked").and_then(|asked| asked.parse().ok());
    let profile = percent::query(request.uri().query(), "profile");
    if let Some(name) = profile.as_ref().filter(|name| !face.crib.has_profile(name)) {
        return problem(StatusCode::NOT_FOUND, &format!("no profile is called `{name}`"));
    }
    let caller = profile.iter().fold(Caller::local(), |caller, profile| caller.within(profile));
    let upgraded = hyper::upgrade::on(&mut request);
    counter.desk.tasks.spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
        let known = (caller, project, asked.unwrap_or(0));
        stdio::serve(reader, writer, face, largest, known, stop).await;
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("mcp"));
    response.headers_mut().insert(hyper::header::CONNECTION, HeaderValue::from_static("upgrade"));
    response
}

pub(super) fn json_response(status: StatusCode, body: impl Into<bytes::Bytes>) -> Response<Body> {
    respond(status, Body::full(body))
}

pub(super) fn respond(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn problem(status: StatusCode, why: &str) -> Response<Body> {
    json_response(status, json!({"error": {"message": why}}).to_string())
}
