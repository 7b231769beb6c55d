//! Bridges the protocol eras: delivers a server's requests during a call to a client of either era.
//!
//! A session client is asked while its call runs, even if the server is stateless and ends the call to ask. A stateless
//! client gets the requests as the result of its call, which waits in `SuspendedCalls`; the client repeats the call with
//! the answers. If client and server are of the same era, the bytes pass unchanged.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};

use super::suspended_calls::SuspendedCalls;
use crate::call::Call;
use crate::call::updates::{CallUpdate, ServerRequest};
use crate::model::error::{Error, ErrorKind};
use crate::model::outcome::Outcome;
use crate::pipeline::router::CallRouter;
use crate::pipeline::{self, KeptLease};
use crate::protocol::era::capabilities::{ClientCapabilities, ELICIT};
use crate::protocol::era::client::missing_capability_error;
use crate::protocol::era::handshake;
use crate::protocol::era::input::{self, InputRequest, Questioner, RequiredInput};
use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::{ResponsePayload, code, error_object};
use crate::protocol::versions::Era;
use crate::spec::ServerId;
use crate::util::encoding;

/// The number of times that a server may ask for input within one call.
const MAX_ROUNDS: usize = 8;
/// The time limit for a client's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// The pause before a call is repeated when the server asks for a repetition without a question.
const REPEAT_DELAY: Duration = Duration::from_millis(250);

/// The future of a call, without its type: the code of a future is compiled again in every crate whose futures contain it.
/// The whole pipeline would be in the program three times.
type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send + 'a>>;

/// Runs one call and passes the server's requests to the client.
pub(crate) async fn run(
    router: &Arc<CallRouter>,
    suspended: &Arc<SuspendedCalls>,
    call: &mut Call,
) -> Result<Outcome, Error> {
    let first = start(router, suspended, call).await;
    if is_asked_in_session(call) {
        return match &first {
            Ok(outcome) if required_input(outcome)?.is_none() => first,
            _ => continue_in_session(router, call, first).await,
        };
    }
    match input::can_require_input(&call.method) {
        true => first.map(|outcome| url_error_to_input_request(outcome, &call.client.capabilities)),
        false => first,
    }
}

/// Returns whether the client is asked while its call runs. A stateless client is asked by the result of its call.
fn is_asked_in_session(call: &Call) -> bool {
    call.client.era == Era::Session || call.handlers.is_some()
}

/// Returns the first attempt of a call, or its continuation if a stateless client sends the call again with answers.
fn start<'a>(
    router: &'a Arc<CallRouter>,
    suspended: &'a Arc<SuspendedCalls>,
    call: &'a mut Call,
) -> CallFuture<'a> {
    if is_asked_in_session(call) || !input::can_require_input(&call.method) {
        return Box::pin(pipeline::run(router, call));
    }
    let state = call.params.get_string(input::REQUEST_STATE);
    match state.filter(|state| suspended.has_signed(state, call)).map(Cow::into_owned) {
        Some(state) => Box::pin(async move { suspended.resume(router, &state, call.clone()).await }),
        None if call.client.capabilities.has_any() => Box::pin(suspended.run(router, call.clone())),
        None => Box::pin(pipeline::run(router, call)),
    }
}

/// Converts a session-era error that asks to open URLs into a stateless result that asks the same.
fn url_error_to_input_request(outcome: Outcome, capabilities: &ClientCapabilities) -> Outcome {
    let ResponsePayload::Error(error) = &outcome.answer else { return outcome };
    let questions = (outcome.era == Era::Session).then(|| input::parse_url_elicitations(error)).flatten();
    let Some(questions) = questions else { return outcome };
    let missing = questions
        .iter()
        .find_map(|request| capabilities.missing_for(&request.method, request.params.as_ref()));
    let answer = match missing {
        Some(missing) => ResponsePayload::Error(missing_capability_error(&missing)),
        None => {
            let questioner = Questioner::Server(outcome.server_info.as_ref());
            ResponsePayload::Result(input::input_required_result(&questions, None, questioner))
        }
    };
    Outcome { answer, era: Era::Stateless, ..outcome }
}

/// Lets the person log in or asks the client for input, as the first attempt requires, and repeats the call.
fn continue_in_session<'a>(
    router: &'a CallRouter,
    call: &'a mut Call,
    first: Result<Outcome, Error>,
) -> CallFuture<'a> {
    Box::pin(repeat_in_session(router, call, first))
}

async fn repeat_in_session(
    router: &CallRouter,
    call: &mut Call,
    first: Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    let mut attempt = first;
    for _ in 0..MAX_ROUNDS {
        let outcome = with_login(router, call, attempt).await?;
        let Some(RequiredInput { requests: questions, state }) = required_input(&outcome)? else {
            return Ok(outcome);
        };
        if questions.is_empty() {
            sleep(REPEAT_DELAY).await;
        }
        match ask_client(call, outcome.server.as_ref(), questions).await {
            Ok(responses) => call.params.set_unchecked(input::INPUT_RESPONSES, responses),
            Err(refusal) => return Ok(Outcome { answer: refusal_payload(call, refusal), ..outcome }),
        }
        match state {
            Some(state) => call.params.set_unchecked(input::REQUEST_STATE, state),
            None => drop(call.params.remove(input::REQUEST_STATE)),
        }
        attempt = pipeline::run(router, call).await;
    }
    let outcome = with_login(router, call, attempt).await?;
    match required_input(&outcome)? {
        None => Ok(outcome),
        Some(_) => {
            let message = format!("the server asked for input more than {MAX_ROUNDS} times in one call");
            Err(Error::new(ErrorKind::BadReply, message))
        }
    }
}

/// Returns the outcome of an attempt, or of another one after a login if it failed for lack of that.
async fn with_login(
    router: &CallRouter,
    call: &mut Call,
    attempt: Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    match attempt {
        Ok(outcome) => Ok(outcome),
        Err(error) => pipeline::run_after_login(router, call, &mut KeptLease::default(), error).await,
    }
}

/// Returns the input that an outcome asks for. Only stateless servers ask that way.
fn required_input(outcome: &Outcome) -> Result<Option<RequiredInput>, Error> {
    match &outcome.answer {
        ResponsePayload::Result(result) if outcome.era == Era::Stateless => {
            input::parse_required_input(result)
                .map_err(|lookalike| Error::new(ErrorKind::BadReply, lookalike.to_string()))
        }
        _ => Ok(None),
    }
}

/// Returns the answer to a call that ends because the client gave no input: a failed tool result if it is a tool call.
fn refusal_payload(call: &Call, refusal: Bytes) -> ResponsePayload {
    if call.method != "tools/call" {
        return ResponsePayload::Error(refusal);
    }
    let text = format!("the server needs input: {}", handshake::error_message(&refusal));
    let result = serde_json::json!({"resultType": "complete", "isError": true, "content": [{"type": "text", "text": text}]});
    ResponsePayload::Result(result.to_string().into())
}

/// Sends all questions at the same time. Returns the answers as an object, or the error that ends the call.
async fn ask_client(
    call: &Call,
    server: Option<&ServerId>,
    questions: Vec<InputRequest>,
) -> Result<Bytes, Bytes> {
    let mut pending = Vec::new();
    for InputRequest { key, method, params } in questions {
        if let Some(missing) = call.client.capabilities.missing_for(&method, params.as_ref()) {
            return Err(missing_capability_error(&missing));
        }
        let params = if method == ELICIT { params.map(with_elicitation_id) } else { params };
        let (request, receiver) = ServerRequest::new(method, params);
        let request = match server {
            Some(server) => request.with_server(server),
            None => request,
        };
        let sink = call.update_sink.as_ref().ok_or_else(no_answer_error)?;
        if !sink.deliver_contained(CallUpdate::Request(request)) {
            return Err(no_answer_error());
        }
        pending.push((key, receiver));
    }
    let mut responses = Vec::from(b"{");
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    for (key, receiver) in pending {
        let answer = timeout_at(deadline, receiver).await;
        match answer.ok().and_then(Result::ok).ok_or_else(no_answer_error)? {
            ResponsePayload::Error(error) => return Err(error),
            ResponsePayload::Result(response) => {
                if responses.len() > 1 {
                    responses.push(b',');
                }
                object::write_string(&mut responses, &key);
                responses.push(b':');
                responses.extend_from_slice(&response);
            }
        }
    }
    responses.push(b'}');
    Ok(responses.into())
}

fn no_answer_error() -> Bytes {
    error_object(code::INVALID_REQUEST, "the server asks for input and the client did not answer", None)
}

/// Adds the elicitation id that the session era requires for URL elicitations.
fn with_elicitation_id(params: Bytes) -> Bytes {
    match Object::parse(&params) {
        Ok(mut object)
            if object.get_string("mode").as_deref() == Some("url")
                && object.get("elicitationId").is_none() =>
        {
            let id = encoding::random_hex().unwrap_or_default();
            object.set_unchecked("elicitationId", object::to_json_string(&id));
            object.to_bytes()
        }
        _ => params,
    }
}
