//! Several messages in one request, which one revision allowed: answered together.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Response, StatusCode};
use toolcrib::wire::dialect::client::HELLO;
use toolcrib::wire::message::{ClientMessage, Id, code, error_object, error_reply, reply};
use toolcrib::wire::object::{Object, elements};
use toolcrib::wire::revision::Revision;

use super::super::body::Body;
use super::super::face::View;
use super::super::http::{Counter, json_response, respond};
use super::super::session::Session;
use super::super::session::stream::{EventLog, Opening};
use super::{Asked, refuse, sessions};

/// Messages in one request.
const MOST: usize = 100;

/// A message of a batch on its way.
enum Started {
    Working(Id, Arc<EventLog>),
    Refused(Vec<u8>),
}

/// Answers a batch, if its session is of the revision that had them.
pub(super) async fn answer(
    counter: &Counter,
    view: &View,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response<Body> {
    let refused = |why: &str| refuse(StatusCode::BAD_REQUEST, None, code::INVALID_REQUEST, why);
    let Ok(session) = sessions::find(counter, view, headers) else {
        return refused("one request is one message");
    };
    if session.talk.revision != Revision::V2025_03_26 {
        return refused("one request is one message in this revision");
    }
    let messages = match elements(body) {
        Ok(messages) if messages.is_empty() => return refused("there is no message in this list"),
        Ok(messages) if messages.len() > MOST => return refused("there are too many messages in this list"),
        Ok(messages) => messages,
        Err(bad) => return refuse(StatusCode::BAD_REQUEST, None, code::PARSE, &bad.why),
    };
    let started: Vec<Started> =
        messages.iter().filter_map(|message| start(counter, &session, message)).collect();
    if started.is_empty() {
        return respond(StatusCode::ACCEPTED, Body::empty());
    }
    let mut answers = vec![b'['];
    for started in started {
        let answer = match started {
            Started::Refused(answer) => answer,
            Started::Working(id, log) => match log.opening(false).await {
                Opening::Whole(answer) => reply(&id, &answer),
                // What was taken back gets no answer.
                Opening::Gone | Opening::Stream => continue,
            },
        };
        if answers.len() > 1 {
            answers.push(b',');
        }
        answers.extend_from_slice(&answer);
    }
    answers.push(b']');
    json_response(StatusCode::OK, answers)
}

/// Starts to work on one message; `None` for one that wants no answer.
fn start(counter: &Counter, session: &Arc<Session>, message: &Bytes) -> Option<Started> {
    let refused = |id: Option<&Id>, code, why: &str| {
        Some(Started::Refused(error_reply(id, &error_object(code, why, None))))
    };
    match ClientMessage::parse(message) {
        Err(bad) => refused(bad.id.as_ref(), bad.code, &bad.why),
        Ok(ClientMessage::Request { id, method, .. }) if method == HELLO => {
            refused(Some(&id), code::INVALID_REQUEST, "a session is opened by a message of its own")
        }
        Ok(ClientMessage::Request { id, method, params }) => {
            let params = match params.map(|params| Object::parse(&params)).transpose() {
                Ok(params) => params,
                Err(bad) => return refused(Some(&id), code::INVALID_PARAMS, &bad.why),
            };
            let asked = Asked { id: id.clone(), method, params, streams: false };
            match sessions::start(counter, session, asked) {
                Some(log) => Some(Started::Working(id, log)),
                None => refused(Some(&id), code::INVALID_REQUEST, "a request with this id is under way"),
            }
        }
        Ok(said) => {
            sessions::take(session, said);
            None
        }
    }
}
