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

/// Runs one call and passes the server's requests to the client.
///
/// Boxed, because the code of an async function is compiled again in every crate whose futures contain it: the whole pipeline
/// would be in the program three times.
pub(crate) fn run<'a>(
    router: &'a Arc<CallRouter>,
    suspended: &'a Arc<SuspendedCalls>,
    call: &'a mut Call,
) -> CallFuture<'a> {
    Box::pin(run_bridged(router, suspended, call))
}

/// The future of a call.
type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send + 'a>>;

async fn run_bridged(
    router: &Arc<CallRouter>,
    suspended: &Arc<SuspendedCalls>,
    call: &mut Call,
) -> Result<Outcome, Error> {
    if call.client.era == Era::Session || call.handlers.is_some() {
        return run_in_session(router, call).await;
    }
    if !input::can_require_input(&call.method) {
        return pipeline::run(router, call).await;
    }
    let capabilities = call.client.capabilities.clone();
    let own_state = call
        .params
        .get_string(input::REQUEST_STATE)
        .filter(|state| suspended.has_signed(state, call))
        .map(Cow::into_owned);
    let outcome = match own_state {
        // Boxed to keep the future of an ordinary call small.
        Some(state) => Box::pin(suspended.resume(router, &state, call.clone())).await,
        None if capabilities.has_any() => Box::pin(suspended.run(router, call.clone())).await,
        None => pipeline::run(router, call).await,
    };
    outcome.map(|outcome| url_error_to_input_request(outcome, &capabilities))
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

/// Asks the client while its call waits, and repeats the call with the answers.
async fn run_in_session(router: &CallRouter, call: &mut Call) -> Result<Outcome, Error> {
    for round in 0..=MAX_ROUNDS {
        let outcome = match pipeline::run(router, call).await {
            Ok(outcome) => outcome,
            Err(error) => {
                Box::pin(pipeline::run_after_login(router, call, &mut KeptLease::default(), error)).await?
            }
        };
        let ResponsePayload::Result(result) = &outcome.answer else { return Ok(outcome) };
        if outcome.era != Era::Stateless {
            return Ok(outcome);
        }
        let needed = input::parse_required_input(result)
            .map_err(|lookalike| Error::new(ErrorKind::BadReply, lookalike.to_string()))?;
        let Some(needed) = needed else { return Ok(outcome) };
        if round == MAX_ROUNDS {
            break;
        }
        let RequiredInput { requests: questions, state } = needed;
        if questions.is_empty() {
            Box::pin(sleep(REPEAT_DELAY)).await;
        }
        match Box::pin(ask_client(call, outcome.server.as_ref(), questions)).await {
            Ok(responses) => call.params.set_unchecked(input::INPUT_RESPONSES, responses),
            Err(refusal) => return Ok(Outcome { answer: refusal_payload(call, refusal), ..outcome }),
        }
        match state {
            Some(state) => call.params.set_unchecked(input::REQUEST_STATE, state),
            None => drop(call.params.remove(input::REQUEST_STATE)),
        }
    }
    let message = format!("the server asked for input more than {MAX_ROUNDS} times in one call");
    Err(Error::new(ErrorKind::BadReply, message))
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
