//! MCP over Streamable HTTP: which era a request is in, whether its headers agree with it, and its answer.

mod headers;
mod news;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;
use toolcrib::wire::dialect::client::{self, CANCELLED, Claim, HELLO};
use toolcrib::wire::message::{Answer, ClientMessage, Id, code, error_object, error_reply};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;

use self::headers::{SESSION, Stated};
use super::body::{Body, CallStream, Working};
use super::face::{self, View, progress_token};
use super::http::{Counter, json_response, respond};
use super::session::Session;

/// Progress that may wait for a slow reader.
const PROGRESS_WAITING: usize = 64;
/// How much of a body that is too large is read, so that the sender gets to see the answer.
const SWALLOWED: usize = 1 << 20;
/// How long that may take.
const SWALLOWING: Duration = Duration::from_secs(1);
/// How long a request may take to arrive.
const SENDING: Duration = Duration::from_secs(30);

/// A request as it is answered: who asks, in which era, what.
struct Asked {
    id: Id,
    method: String,
    params: Option<Object>,
    streams: bool,
}

/// Answers one request to an MCP endpoint.
pub(super) async fn answer(counter: &Counter, view: View, request: Request<Incoming>) -> Response<Body> {
    match *request.method() {
        Method::POST => post(counter, view, request).await,
        Method::GET => news::listen(counter, &view, request.headers()),
        Method::DELETE => match headers::session(request.headers()) {
            Some(id) if counter.desk.sessions.end(id, &view) => {
                respond(StatusCode::NO_CONTENT, Body::empty())
            }
            Some(_) => no_session(None),
            None => not_allowed(),
        },
        _ => not_allowed(),
    }
}

async fn post(counter: &Counter, view: View, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let stated = match Stated::read(&head.headers) {
        Ok(stated) => stated,
        Err((status, why)) => return refuse(status, None, code::INVALID_REQUEST, why),
    };
    let waits = head.headers.contains_key(EXPECT);
    let body = match read(body, counter.desk.body, waits).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    let message = match ClientMessage::parse(&body) {
        Ok(message) => message,
        Err(bad) => return refuse(StatusCode::BAD_REQUEST, bad.id.as_ref(), bad.code, &bad.why),
    };
    match message {
        ClientMessage::Request { id, method, params } => {
            let params = match params.map(|params| Object::parse(&params)).transpose() {
                Ok(params) => params,
                Err(bad) => {
                    return refuse(StatusCode::BAD_REQUEST, Some(&id), code::INVALID_PARAMS, &bad.why);
                }
            };
            let asked = Asked { id, method, params, streams: stated.takes_events };
            ask(counter, view, &stated, &head.headers, asked).await
        }
        ClientMessage::Notification { method, params } => {
            hear(counter, &view, &stated, &head.headers, &method, params.as_ref())
        }
        ClientMessage::Reply { .. } => respond(StatusCode::ACCEPTED, Body::empty()),
    }
}

/// Reads a body of at most `limit` bytes. One that is too large is refused as soon as that is known; a sender that does
/// not wait for our word (`waits`) gets to read why if it sends only a little too much.
async fn read(body: Incoming, limit: usize, waits: bool) -> Result<Bytes, Response<Body>> {
    let too_large = || {
        let why = format!("a request has at most {limit} bytes");
        let mut response = refuse(StatusCode::PAYLOAD_TOO_LARGE, None, code::INVALID_REQUEST, &why);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    };
    if body.size_hint().lower() > limit as u64 {
        if !waits {
            let _ = timeout(SWALLOWING, Limited::new(body, SWALLOWED).collect()).await;
        }
        return Err(too_large());
    }
    match timeout(SENDING, Limited::new(body, limit).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => {
            Err(refuse(StatusCode::BAD_REQUEST, None, code::INVALID_REQUEST, "the request ended early"))
        }
        Err(_) => {
            let why = "the request took too long to arrive";
            Err(refuse(StatusCode::REQUEST_TIMEOUT, None, code::INVALID_REQUEST, why))
        }
    }
}

/// The era is the message's own claim; without one it is a session's.
async fn ask(
    counter: &Counter,
    view: View,
    stated: &Stated,
    headers: &HeaderMap,
    asked: Asked,
) -> Response<Body> {
    match client::claim(asked.params.as_ref()) {
        Claim::Stateless(revision) => {
            match stated.agree(revision, &asked.method, asked.params.as_ref(), headers) {
                Ok(()) => ask_stateless(counter, view, asked).await,
                Err(why) => refuse(StatusCode::BAD_REQUEST, Some(&asked.id), code::HEADER_MISMATCH, &why),
            }
        }
        Claim::Broken(error) => json_response(StatusCode::BAD_REQUEST, error_reply(Some(&asked.id), &error)),
        Claim::None if stated.stateless() => {
            let why = "a request of this revision names it in `params._meta` too";
            refuse(StatusCode::BAD_REQUEST, Some(&asked.id), code::INVALID_PARAMS, why)
        }
        Claim::None if asked.method == HELLO => begin(counter, view, &asked),
        Claim::None => match session(counter, &view, headers) {
            Ok(session) => ask_in_session(counter, view, &session, asked).await,
            Err(id_given) => no_session(Some((&asked.id, id_given))),
        },
    }
}

/// A stateless call ends when its connection does.
async fn ask_stateless(counter: &Counter, view: View, asked: Asked) -> Response<Body> {
    let Asked { id, method, params, streams } = asked;
    // Of all errors, the stateless era binds this one to a status.
    let status = if face::knows(&method, Era::Stateless) { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let token = progress_token(params.as_ref()).filter(|_| streams);
    let crib = counter.desk.crib.clone();
    let Some(token) = token else {
        let answer = face::respond(&crib, &view, Era::Stateless, &method, params, None).await;
        return respond(status, Body::answer(&id, &answer));
    };
    let (sink, heard) = mpsc::channel(PROGRESS_WAITING);
    let work: Working = Box::pin(async move {
        Some(face::respond(&crib, &view, Era::Stateless, &method, params, Some(sink)).await)
    });
    whole_or_stream(id, status, token, heard, work).await
}

/// A session's call goes on when its connection ends; only the client itself takes it back.
async fn ask_in_session(
    counter: &Counter,
    view: View,
    session: &Arc<Session>,
    asked: Asked,
) -> Response<Body> {
    let Asked { id, method, params, streams } = asked;
    let token = progress_token(params.as_ref()).filter(|_| streams);
    let (sink, heard) = token.is_some().then(|| mpsc::channel(PROGRESS_WAITING)).unzip();
    let (crib, entered, under_way) = (counter.desk.crib.clone(), id.clone(), session.clone());
    let mut task = None;
    let fresh = session.under_way.enter(&id, || {
        let working = counter.desk.tasks.spawn(async move {
            let answer = face::respond(&crib, &view, Era::Session, &method, params, sink).await;
            under_way.under_way.leave(&entered);
            answer
        });
        let abort = working.abort_handle();
        task = Some(working);
        abort
    });
    let Some(task) = task.filter(|_| fresh) else {
        let why = "a request with this id is under way";
        return refuse(StatusCode::BAD_REQUEST, Some(&id), code::INVALID_REQUEST, why);
    };
    match token.zip(heard) {
        None => match task.await {
            Ok(answer) => respond(StatusCode::OK, Body::answer(&id, &answer)),
            Err(_) => taken_back(),
        },
        Some((token, heard)) => {
            whole_or_stream(id, StatusCode::OK, token, heard, Box::pin(async { task.await.ok() })).await
        }
    }
}

/// A plain answer if it comes before any progress does, else a stream.
async fn whole_or_stream(
    id: Id,
    status: StatusCode,
    token: Bytes,
    mut heard: mpsc::Receiver<toolcrib::Told>,
    mut work: Working,
) -> Response<Body> {
    let first = tokio::select! {
        biased;
        Some(first) = heard.recv() => first,
        answer = &mut work => return match answer {
            Some(answer) => respond(status, Body::answer(&id, &answer)),
            None => taken_back(),
        },
    };
    let stream = CallStream { id, token, heard, first: Some(first), work: Some(work) };
    events(Body::Call(Box::new(stream)))
}

fn events(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A request that was taken back gets no answer: a stream without events.
fn taken_back() -> Response<Body> {
    events(Body::empty())
}

fn begin(counter: &Counter, view: View, asked: &Asked) -> Response<Body> {
    let revision = client::agreed_revision(asked.params.as_ref());
    let Some(session) = counter.desk.sessions.begin(view) else {
        let why = "too many sessions are open and busy";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, Some(&asked.id), code::INVALID_REQUEST, why);
    };
    let answer = Answer::Result(client::hello_result(revision, true));
    let mut response = respond(StatusCode::OK, Body::answer(&asked.id, &answer));
    if let Ok(session) = HeaderValue::from_str(&session) {
        response.headers_mut().insert(SESSION, session);
    }
    response
}

fn hear(
    counter: &Counter,
    view: &View,
    stated: &Stated,
    headers: &HeaderMap,
    method: &str,
    params: Option<&Bytes>,
) -> Response<Body> {
    if stated.stateless() {
        return respond(StatusCode::ACCEPTED, Body::empty());
    }
    match session(counter, view, headers) {
        Ok(session) => {
            if method == CANCELLED {
                session.under_way.cancel(params.and_then(|params| Object::parse(params).ok()).as_ref());
            }
            respond(StatusCode::ACCEPTED, Body::empty())
        }
        Err(true) => no_session(None),
        Err(false) => refuse(StatusCode::BAD_REQUEST, None, code::INVALID_REQUEST, "this needs a session"),
    }
}

/// The session a request is in; `Err` tells whether it named one.
fn session(counter: &Counter, view: &View, headers: &HeaderMap) -> Result<Arc<Session>, bool> {
    let id = headers::session(headers).ok_or(false)?;
    counter.desk.sessions.find(id, view).ok_or(true)
}

fn no_session(asked: Option<(&Id, bool)>) -> Response<Body> {
    match asked {
        Some((id, false)) => {
            let why = "open a session first, or name a revision in `params._meta`";
            refuse(StatusCode::BAD_REQUEST, Some(id), code::INVALID_REQUEST, why)
        }
        asked => {
            let id = asked.map(|(id, _)| id);
            refuse(StatusCode::NOT_FOUND, id, code::INVALID_REQUEST, "there is no such session (any more)")
        }
    }
}

fn not_allowed() -> Response<Body> {
    let mut response = refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        None,
        code::INVALID_REQUEST,
        "this page takes POST, and in a session GET and DELETE",
    );
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    response
}

fn refuse(status: StatusCode, id: Option<&Id>, code: i32, why: &str) -> Response<Body> {
    json_response(status, error_reply(id, &error_object(code, why, None)))
}
