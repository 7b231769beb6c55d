//! Requests in a session: they find their session again, go on when their connection ends, and only the client itself
//! takes them back.

use std::sync::Arc;

use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response, StatusCode};
use toolcrib::wire::dialect::client::{CANCELLED, ROOTS_CHANGED, agreed_revision};
use toolcrib::wire::message::{Answer, ClientMessage, Id, code};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Revision;

use super::super::body::Body;
use super::super::face::Visit;
use super::super::face::talk::Talk;
use super::super::http::{Counter, respond};
use super::super::session::Session;
use super::super::session::stream::{EventLog, Opening, Reader};
use super::headers::{self, SESSION, Stated};
use super::{Asked, events, not_allowed, refuse, unspoken};

/// Opens a session.
pub(super) async fn begin(counter: &Counter, visit: Visit, asked: &Asked) -> Response<Body> {
    let desk = &counter.desk;
    let hello = desk.face.hello(&visit, agreed_revision(asked.params.as_ref())).await;
    let leave = desk.admin.leave(&visit.caller);
    let talk = Talk::new(&desk.face, visit, asked.params.as_ref(), None);
    let Some(begun) = desk.sessions.begin(talk, &leave) else {
        let why = "too many sessions are open and busy";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, Some(&asked.id), code::INVALID_REQUEST, why);
    };
    if begun.unwatched {
        let desk = desk.clone();
        counter.desk.tasks.spawn(async move { desk.sessions.watch().await });
    }
    let mut response = respond(StatusCode::OK, Body::answer(&asked.id, &Answer::Result(hello)));
    if let Ok(session) = HeaderValue::from_str(&begun.id) {
        response.headers_mut().insert(SESSION, session);
    }
    response
}

/// Ends a session.
pub(super) fn delete(counter: &Counter, visit: &Visit, headers: &HeaderMap) -> Response<Body> {
    let desk = &counter.desk;
    match headers::session(headers) {
        Some(id) if desk.sessions.end(id, visit) => respond(StatusCode::NO_CONTENT, Body::empty()),
        Some(_) => no_session(None, true),
        None => not_allowed(),
    }
}

/// The session a request is in; `Err` tells whether it named one.
pub(super) fn find(counter: &Counter, visit: &Visit, headers: &HeaderMap) -> Result<Arc<Session>, bool> {
    let id = headers::session(headers).ok_or(false)?;
    counter.desk.sessions.find(id, visit).ok_or(true)
}

/// The answer to a request that is in no session, or in one that is over.
pub(super) fn no_session(id: Option<&Id>, named: bool) -> Response<Body> {
    let (status, why) = match named {
        true => (StatusCode::NOT_FOUND, "there is no such session (any more)"),
        false => (StatusCode::BAD_REQUEST, "open a session first, or name a revision in `params._meta`"),
    };
    refuse(status, id, code::INVALID_REQUEST, why)
}

/// Hears what wants no answer: that a request is taken back, or what the client answers to us.
pub(super) fn hear(
    counter: &Counter,
    visit: &Visit,
    stated: &Stated,
    headers: &HeaderMap,
    said: ClientMessage,
) -> Response<Body> {
    if let Some(date) = &stated.unknown {
        return unspoken(None, date);
    }
    match find(counter, visit, headers) {
        Ok(session) => {
            take(counter, &session, said);
            respond(StatusCode::ACCEPTED, Body::empty())
        }
        Err(named) => no_session(None, named),
    }
}

/// Takes what wants no answer.
pub(super) fn take(counter: &Counter, session: &Session, said: ClientMessage) {
    match said {
        ClientMessage::Notification { method, params } if method == CANCELLED => {
            let params = params.and_then(|params| Object::parse(&params).ok());
            session.talk.under_way.cancel(params.as_ref());
        }
        ClientMessage::Notification { method, .. } if method == ROOTS_CHANGED => {
            session.talk.moved(&counter.desk.face);
        }
        ClientMessage::Reply { id, answer } => session.talk.asks.answer(&id, answer),
        _ => {}
    }
}

/// Answers a request: plainly if the answer comes soon and before anything else, else with a stream.
pub(super) async fn ask(
    counter: &Counter,
    visit: &Visit,
    headers: &HeaderMap,
    asked: Asked,
) -> Response<Body> {
    let session = match find(counter, visit, headers) {
        Ok(session) => session,
        Err(named) => return no_session(Some(&asked.id), named),
    };
    let (id, streams) = (asked.id.clone(), asked.streams);
    let Some(log) = start(counter, &session, asked) else { return twice(&id) };
    match log.opening(streams).await {
        Opening::Whole(answer) => respond(StatusCode::OK, Body::answer(&id, &answer)),
        // A request that was taken back gets no answer: a stream without events.
        Opening::Gone => events(Body::empty()),
        Opening::Stream => {
            session.streams.keep(log.clone());
            // Older clients would take the empty event for a message.
            let primes = session.talk.revision >= Revision::V2025_11_25;
            events(Body::events(Reader::first(log, primes)))
        }
    }
}

pub(super) fn twice(id: &Id) -> Response<Body> {
    let why = "a request with this id is under way";
    refuse(StatusCode::BAD_REQUEST, Some(id), code::INVALID_REQUEST, why)
}

/// Starts to work on a request, in a task of its own; `None` if one with its id is under way.
pub(super) fn start(counter: &Counter, session: &Arc<Session>, asked: Asked) -> Option<Arc<EventLog>> {
    let Asked { id, method, params, streams } = asked;
    let log = session.streams.begin();
    let (face, working, writes) = (counter.desk.face.clone(), session.clone(), log.clone());
    let entered = id.clone();
    let fresh = session.talk.under_way.enter(&id, || {
        let ending = Ending(writes);
        let work = async move {
            let out = streams.then_some(&ending.0);
            let answer = working.talk.respond(&face, &method, params, out).await;
            working.talk.under_way.leave(&entered);
            ending.0.finish(&entered, answer);
            working.touch();
        };
        // In a box: a task is moved several times before and after it runs.
        counter.desk.tasks.spawn(Box::pin(work)).abort_handle()
    });
    fresh.then_some(log)
}

/// Ends the log of a request that is dropped.
struct Ending(Arc<EventLog>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}
