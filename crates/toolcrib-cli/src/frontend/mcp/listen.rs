//! The streams on which stateless clients hear what changes.

use std::collections::VecDeque;

use hyper::{Response, StatusCode};
use toolcrib::wire::dialect::client::Claimed;
use toolcrib::wire::message::{code, reply};

use super::super::body::Body;
use super::super::face::watcher::Watcher;
use super::super::face::{Face, Visit};
use super::super::http::Counter;
use super::news::NewsStream;
use super::{Asked, events, refuse, stateless};

/// Answers with a stream that says first what will be told on it, and last that it is over.
pub(super) async fn open(counter: &Counter, visit: Visit, asked: Asked, claimed: &Claimed) -> Response<Body> {
    let Asked { id, params, streams, .. } = asked;
    if !streams {
        let why = "`Accept` must allow text/event-stream for this";
        return refuse(StatusCode::NOT_ACCEPTABLE, Some(&id), code::INVALID_REQUEST, why);
    }
    // Whatever changes while the client's wishes are read is told afterwards.
    let watcher = Watcher::new(counter.desk.face.clone(), visit.clone());
    let asker = Face::stateless(visit, claimed, counter.client.key, None);
    let told = match counter.desk.face.listen(&asker, &id, params.as_ref()).await {
        Ok(told) => told,
        Err(answer) => return stateless::whole(&id, &answer),
    };
    let (first, last) = (VecDeque::from([told.first()]), reply(&id, &told.last()));
    let over = counter.desk.admin.leave(&asker.visit.caller).child_token();
    if told.is_empty() {
        over.cancel();
    }
    events(Body::events(NewsStream::new(
        watcher,
        told,
        None,
        [over, counter.stop.clone()],
        first,
        Some(last),
    )))
}
