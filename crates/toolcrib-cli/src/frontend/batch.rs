//! Several messages at once, which one revision allowed: how they are taken apart, and how their answers go together.

use bytes::Bytes;
use toolcrib::wire::dialect::client::HELLO;
use toolcrib::wire::message::{ClientMessage, Id, code, error_object, error_reply};
use toolcrib::wire::object::{Object, elements};
use toolcrib::wire::revision::Revision;

/// Why a batch outside of any session is refused.
pub(super) const NO_SESSION: &str = "only one message at a time without a session";
/// Messages at once.
const MOST: usize = 100;

/// One message of a batch.
#[derive(Debug)]
pub(super) enum Part {
    /// A request.
    Asks { id: Id, method: String, params: Option<Object> },
    /// What wants no answer.
    Says(ClientMessage),
    /// What means nothing: the answer to it.
    Refused(Vec<u8>),
}

/// Whether this is a list of messages.
pub(crate) fn is_batch(text: &[u8]) -> bool {
    text.trim_ascii_start().first() == Some(&b'[')
}

/// Takes a batch apart, if its session is of the revision that had them; else the code and the reason of its refusal.
pub(super) fn parts(text: &Bytes, session: Revision) -> Result<Vec<Part>, (i32, String)> {
    let refused = |why: &str| Err((code::INVALID_REQUEST, why.to_owned()));
    if session != Revision::V2025_03_26 {
        return refused("only one message at a time in this revision");
    }
    match elements(text) {
        Ok(messages) if messages.is_empty() => refused("there is no message in this list"),
        Ok(messages) if messages.len() > MOST => refused("there are too many messages in this list"),
        Ok(messages) => Ok(messages.iter().map(part).collect()),
        Err(bad) => Err((code::PARSE, bad.why)),
    }
}

fn part(message: &Bytes) -> Part {
    match ClientMessage::parse(message) {
        Err(bad) => refused(bad.id.as_ref(), bad.code, &bad.why),
        Ok(ClientMessage::Request { id, method, .. }) if method == HELLO => {
            refused(Some(&id), code::INVALID_REQUEST, "a session is opened by a message of its own")
        }
        Ok(ClientMessage::Request { id, method, params }) => {
            match params.map(|params| Object::parse(&params)).transpose() {
                Ok(params) => Part::Asks { id, method, params },
                Err(bad) => refused(Some(&id), code::INVALID_PARAMS, &bad.why),
            }
        }
        Ok(said) => Part::Says(said),
    }
}

fn refused(id: Option<&Id>, code: i32, why: &str) -> Part {
    Part::Refused(error_reply(id, &error_object(code, why, None)))
}

/// The answer to a request whose id another one has that is under way.
pub(super) fn twice(id: &Id) -> Vec<u8> {
    error_reply(Some(id), &error_object(code::INVALID_REQUEST, "a request with this id is under way", None))
}

/// The answers as one list.
pub(crate) fn together(answers: &[Vec<u8>]) -> Vec<u8> {
    [b"[".as_slice(), &answers.join(&b","[..]), b"]"].concat()
}
