//! MCP over Streamable HTTP: which era a request is in, whether its headers agree with it, and its answer.

mod batch;
mod headers;
mod listen;
mod news;
mod sessions;
mod stateless;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::time::timeout;
use toolcrib::wire::dialect::client::{self, Claim, HELLO};
use toolcrib::wire::message::{ClientMessage, Id, code, error_object, error_reply};
use toolcrib::wire::object::Object;

use self::headers::Stated;
use super::Door;
use super::batch::is_batch;
use super::body::Body;
use super::face::Visit;
use super::http::{Counter, json_response, respond};

/// How much of a body that is too large is read, so that the sender gets to see the answer.
const SWALLOWED: usize = 1 << 20;
/// How long that may take.
const SWALLOWING: Duration = Duration::from_secs(1);
/// How long a request may take to arrive.
const SENDING: Duration = Duration::from_secs(30);

/// A request as it is answered.
struct Asked {
    id: Id,
    method: String,
    params: Option<Object>,
    /// Whether the client takes events beside plain answers.
    streams: bool,
}

/// Answers one request to an MCP endpoint.
pub(super) async fn answer(counter: &Counter, visit: Visit, request: Request<Incoming>) -> Response<Body> {
    match *request.method() {
        Method::POST => post(counter, visit, request).await,
        Method::GET => news::get(counter, &visit, request.headers()),
        Method::DELETE => sessions::delete(counter, &visit, request.headers()),
        _ => not_allowed(),
    }
}

async fn post(counter: &Counter, visit: Visit, request: Request<Incoming>) -> Response<Body> {
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
    if is_batch(&body) {
        if let Some(date) = &stated.unknown {
            return unspoken(None, date);
        }
        return batch::answer(counter, &visit, &head.headers, &body).await;
    }
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
            ask(counter, visit, &stated, &head.headers, asked).await
        }
        ClientMessage::Notification { .. } | ClientMessage::Reply { .. } if stated.stateless() => {
            respond(StatusCode::ACCEPTED, Body::empty())
        }
        said => sessions::hear(counter, &visit, &stated, &head.headers, said),
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
    visit: Visit,
    stated: &Stated,
    headers: &HeaderMap,
    mut asked: Asked,
) -> Response<Body> {
    match counter.claims.read(asked.params.as_mut()) {
        Claim::Stateless(claimed) => {
            let agreed = stated.agree(claimed.revision, &asked.method, asked.params.as_ref(), headers);
            // Nothing stands between us and whoever came by our own socket that could have read headers alone.
            let agreed = agreed.and_then(|()| match counter.door {
                Door::Socket => Ok(()),
                Door::Tcp => headers::mirrored(
                    &counter.desk.face,
                    &visit,
                    &asked.method,
                    asked.params.as_ref(),
                    headers,
                ),
            });
            match agreed {
                Ok(()) => stateless::ask(counter, visit, asked, claimed).await,
                Err(why) => refuse(StatusCode::BAD_REQUEST, Some(&asked.id), code::HEADER_MISMATCH, &why),
            }
        }
        Claim::Unspoken(date) => match stated.names_other(&date) {
            false => unspoken(Some(&asked.id), &date),
            true => {
                let why = format!("`MCP-Protocol-Version` must be `{date}`, as in the body");
                refuse(StatusCode::BAD_REQUEST, Some(&asked.id), code::HEADER_MISMATCH, &why)
            }
        },
        Claim::Broken(error) => json_response(StatusCode::BAD_REQUEST, error_reply(Some(&asked.id), &error)),
        Claim::None if stated.stateless() => {
            let why = "a request of this revision names it in `params._meta` too";
            refuse(StatusCode::BAD_REQUEST, Some(&asked.id), code::INVALID_PARAMS, why)
        }
        Claim::None => match &stated.unknown {
            Some(date) => unspoken(Some(&asked.id), date),
            None if asked.method == HELLO => sessions::begin(counter, visit, &asked).await,
            None => sessions::ask(counter, &visit, headers, asked).await,
        },
    }
}

/// The answer to a request of a revision that is not spoken here.
fn unspoken(id: Option<&Id>, date: &str) -> Response<Body> {
    json_response(StatusCode::BAD_REQUEST, error_reply(id, &client::unsupported(date)))
}

fn events(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
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
