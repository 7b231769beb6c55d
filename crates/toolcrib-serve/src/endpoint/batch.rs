//! JSON-RPC batches in one HTTP request.

use bytes::Bytes;
use hyper::{Response, StatusCode};
use toolcrib::protocol::jsonrpc::{RequestId, code, encode_response};

use super::session_request::SessionRequest;
use super::sessions::{SessionError, session_error};
use super::{McpRequest, error_response, sessions};
use crate::batch::{BatchPart, NEEDS_SESSION, duplicate_id_response, join_responses, parse_batch};
use crate::body::ResponseBody;
use crate::gateway::ConnectionContext;
use crate::response::{self, json_response};
use crate::service::EndpointScope;
use crate::session::SessionRef;
use crate::session::stream::ResponseStart;

/// A message of a batch that gets a response.
enum StartedMessage<'a> {
    InFlight(RequestId, SessionRequest<'a>),
    Done(Vec<u8>),
}

/// Handles a batch and sends the responses together.
pub(super) async fn respond(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    session_id: Option<&str>,
    body: &Bytes,
) -> Response<ResponseBody> {
    let refuse = |code, message: &str| error_response(StatusCode::BAD_REQUEST, None, code, message);
    let session = match sessions::find(conn, scope, session_id).await {
        Ok(session) => session,
        Err(SessionError::Missing | SessionError::Unknown) => {
            return refuse(code::INVALID_REQUEST, NEEDS_SESSION);
        }
        Err(error) => return session_error(conn, None, error),
    };
    let parts = match parse_batch(body, session.client.revision) {
        Ok(parts) => parts,
        Err((code, message)) => return refuse(code, &message),
    };
    let started: Vec<StartedMessage<'_>> =
        parts.into_iter().filter_map(|part| start(conn, &session, part)).collect();
    if started.is_empty() {
        return response::respond(StatusCode::ACCEPTED, ResponseBody::empty());
    }
    let mut responses = Vec::with_capacity(started.len());
    for message in started {
        match message {
            StartedMessage::Done(response) => responses.push(response),
            StartedMessage::InFlight(id, request) => match request.wait_for_start(false).await {
                ResponseStart::Complete(response) => responses.push(encode_response(&id, &response)),
                // A cancelled request gets no response.
                ResponseStart::Cancelled | ResponseStart::Stream => {}
            },
        }
    }
    json_response(StatusCode::OK, join_responses(&responses))
}

/// Starts to handle one message; `None` for one that gets no response.
fn start<'a>(
    conn: &'a ConnectionContext,
    session: &SessionRef,
    part: BatchPart,
) -> Option<StartedMessage<'a>> {
    match part {
        BatchPart::Invalid(response) => Some(StartedMessage::Done(response)),
        BatchPart::Request { id, method, params } => {
            let request = McpRequest { id: id.clone(), method, params, accepts_events: false };
            Some(match SessionRequest::start(conn, session, request) {
                Some(mut request) => {
                    // The requests of a batch run at the same time.
                    request.continue_in_task();
                    StartedMessage::InFlight(id, request)
                }
                None => StartedMessage::Done(duplicate_id_response(&id)),
            })
        }
        BatchPart::NoResponse(message) => {
            sessions::receive(conn, session, message);
            None
        }
    }
}
