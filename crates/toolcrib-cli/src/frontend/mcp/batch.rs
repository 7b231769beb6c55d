//! Several messages in one request, which one revision allowed: answered together.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Response, StatusCode};
use toolcrib::wire::message::{Id, code, reply};

use super::super::batch::{NO_SESSION, Part, parts, together, twice};
use super::super::body::Body;
use super::super::face::Visit;
use super::super::http::{Counter, json_response, respond};
use super::super::session::Session;
use super::super::session::stream::{EventLog, Opening};
use super::{Asked, refuse, sessions};

/// A message of a batch on its way.
enum Started {
    Working(Id, Arc<EventLog>),
    Refused(Vec<u8>),
}

/// Answers a batch, if its session is of the revision that had them.
pub(super) async fn answer(
    counter: &Counter,
    visit: &Visit,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response<Body> {
    let refused = |code, why: &str| refuse(StatusCode::BAD_REQUEST, None, code, why);
    let Ok(session) = sessions::find(counter, visit, headers) else {
        return refused(code::INVALID_REQUEST, NO_SESSION);
    };
    let parts = match parts(body, session.talk.revision) {
        Ok(parts) => parts,
        Err((code, why)) => return refused(code, &why),
    };
    let started: Vec<Started> = parts.into_iter().filter_map(|part| start(counter, &session, part)).collect();
    if started.is_empty() {
        return respond(StatusCode::ACCEPTED, Body::empty());
    }
    let mut answers = Vec::with_capacity(started.len());
    for started in started {
        match started {
            Started::Refused(answer) => answers.push(answer),
            Started::Working(id, log) => match log.opening(false).await {
                Opening::Whole(answer) => answers.push(reply(&id, &answer)),
                // What was taken back gets no answer.
                Opening::Gone | Opening::Stream => {}
            },
        }
    }
    json_response(StatusCode::OK, together(&answers))
}

/// Starts to work on one message; `None` for one that wants no answer.
fn start(counter: &Counter, session: &Arc<Session>, part: Part) -> Option<Started> {
    match part {
        Part::Refused(answer) => Some(Started::Refused(answer)),
        Part::Asks { id, method, params } => {
            let asked = Asked { id: id.clone(), method, params, streams: false };
            Some(match sessions::start(counter, session, asked) {
                Some(log) => Started::Working(id, log),
                None => Started::Refused(twice(&id)),
            })
        }
        Part::Says(said) => {
            sessions::take(counter, session, said);
            None
        }
    }
}
