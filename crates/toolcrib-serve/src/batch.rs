//! JSON-RPC batches, which revision 2025-03-26 allows: splits requests and joins responses.

use bytes::Bytes;
use toolcrib::protocol::era::client::INITIALIZE;
use toolcrib::protocol::json::object::{Object, parse_array};
use toolcrib::protocol::jsonrpc::{ClientMessage, RequestId, code, encode_error_response, error_object};
use toolcrib::protocol::versions::Revision;

/// Error message for a batch without a session.
pub(crate) const NEEDS_SESSION: &str = "batches are not allowed without a session";
/// Messages in one batch.
const MAX_MESSAGES: usize = 100;

/// One message of a batch.
#[derive(Debug)]
pub(crate) enum BatchPart {
    Request {
        id: RequestId,
        method: String,
        params: Option<Object>,
    },
    /// A notification or a reply, which gets no response.
    NoResponse(ClientMessage),
    /// An invalid message, with the error response to it.
    Invalid(Vec<u8>),
}

/// Returns whether the text is a JSON array.
pub fn is_batch(text: &[u8]) -> bool {
    text.trim_ascii_start().first() == Some(&b'[')
}

/// Splits a batch. The error is the JSON-RPC code and message for a batch that is not allowed in this revision or invalid.
pub(crate) fn parse_batch(text: &Bytes, revision: Revision) -> Result<Vec<BatchPart>, (i32, String)> {
    let refuse = |message: &str| Err((code::INVALID_REQUEST, message.to_owned()));
    if revision != Revision::V2025_03_26 {
        return refuse("batches are not allowed in this revision");
    }
    match parse_array(text) {
        Ok(messages) if messages.is_empty() => refuse("the batch is empty"),
        Ok(messages) if messages.len() > MAX_MESSAGES => refuse("the batch has too many messages"),
        Ok(messages) => Ok(messages.iter().map(parse_part).collect()),
        Err(bad) => Err((code::PARSE_ERROR, bad.reason)),
    }
}

fn parse_part(message: &Bytes) -> BatchPart {
    match ClientMessage::parse(message) {
        Err(bad) => invalid(bad.id.as_ref(), bad.code, &bad.reason),
        Ok(ClientMessage::Request { id, method, .. }) if method == INITIALIZE => {
            invalid(Some(&id), code::INVALID_REQUEST, "`initialize` must not be part of a batch")
        }
        Ok(ClientMessage::Request { id, method, params }) => {
            match params.map(|params| Object::parse(&params)).transpose() {
                Ok(params) => BatchPart::Request { id, method, params },
                Err(bad) => invalid(Some(&id), code::INVALID_PARAMS, &bad.reason),
            }
        }
        Ok(message) => BatchPart::NoResponse(message),
    }
}

fn invalid(id: Option<&RequestId>, code: i32, message: &str) -> BatchPart {
    BatchPart::Invalid(encode_error_response(id, &error_object(code, message, None)))
}

/// Returns the error response to a request whose id is already in use.
pub(crate) fn duplicate_id_response(id: &RequestId) -> Vec<u8> {
    encode_error_response(
        Some(id),
        &error_object(code::INVALID_REQUEST, "a request with this id is already in progress", None),
    )
}

/// Joins encoded responses into one array.
pub fn join_responses(responses: &[Vec<u8>]) -> Vec<u8> {
    [b"[".as_slice(), &responses.join(&b","[..]), b"]"].concat()
}
