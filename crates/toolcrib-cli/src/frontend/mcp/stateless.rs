//! Requests of the stateless era: each stands alone, and ends when its connection does.

use std::sync::Arc;

use hyper::{Response, StatusCode};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use toolcrib::ErrorKind;
use toolcrib::wire::dialect::client::{Claimed, LISTEN};
use toolcrib::wire::message::{Answer, Id, code};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;

use super::super::body::{Body, CallStream, Working};
use super::super::face::told::WORDS_WAITING;
use super::super::face::{Face, Visit, refuse};
use super::super::http::{Counter, respond};
use super::{Asked, events, listen};

pub(super) async fn ask(counter: &Counter, visit: Visit, asked: Asked, claimed: Claimed) -> Response<Body> {
    if asked.method == LISTEN {
        return listen::open(counter, visit, asked, &claimed).await;
    }
    let Asked { id, method, params, streams } = asked;
    let tells = streams
        && (claimed.progress.is_some() || claimed.log.is_some())
        && Face::goes_out(&visit.view, Era::Stateless, &method);
    let face = counter.desk.face.clone();
    let asker = Face::stateless(visit, &claimed, counter.client.key, None);
    if !tells {
        let answer = face.respond(asker, &method, params, None).await;
        return whole(&id, &answer);
    }
    let (sink, mut heard) = mpsc::channel(WORDS_WAITING);
    // A task of its own, so that a client that does not read holds up nobody but itself; it ends with the stream.
    let working = async move { face.respond(asker, &method, params, Some(Arc::new(sink))).await };
    let working = AbortOnDropHandle::new(counter.desk.tasks.spawn(Box::pin(working)));
    let mut work: Working = Box::pin(async move { working.await.unwrap_or_else(|_| panicked()) });
    // A plain answer if it comes before anything else does, else a stream.
    let first = tokio::select! {
        biased;
        Some(first) = heard.recv() => first,
        answer = &mut work => match heard.try_recv() {
            // Everything the server told before it answered was sent to us before the answer was.
            Ok(first) => {
                work = Box::pin(std::future::ready(answer));
                first
            }
            Err(_) => return whole(&id, &answer),
        },
    };
    let stream = CallStream { id, token: claimed.progress, heard, first: Some(first), work: Some(work) };
    events(Body::events(stream))
}

pub(super) fn whole(id: &Id, answer: &Answer) -> Response<Body> {
    respond(status(answer), Body::answer(id, answer))
}

/// The status that the stateless era binds some errors to.
fn status(answer: &Answer) -> StatusCode {
    let Answer::Error(error) = answer else { return StatusCode::OK };
    let error = Object::parse(error).unwrap_or_default();
    let number = error.get("code").and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    match number {
        Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(number) if number == ErrorKind::ShuttingDown.facts().code => StatusCode::SERVICE_UNAVAILABLE,
        Some(code::HEADER_MISMATCH | code::LACKS_ABILITY | code::UNSUPPORTED_REVISION) => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}

fn panicked() -> Answer {
    refuse(code::INTERNAL, "this request could not be answered")
}
