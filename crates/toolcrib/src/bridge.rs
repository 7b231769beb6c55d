//! The bridge between the eras: a question that a server has in the middle of a call reaches a client of either era.
//!
//! A client in a session is asked while its call runs, also when the server is of the other era and ends the call to
//! ask. A stateless client gets the questions as its result, while the call that they belong to waits in the `Lot`; it
//! sends the call again with the answers. Where both are of one era the bytes pass as they are.

mod lot;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};

use crate::call::{Call, Outcome};
use crate::error::{Error, ErrorKind};
use crate::pipeline;
use crate::stock::Stock;
use crate::told::{Ask, Told};
use crate::wire::dialect::client::lacks_ability;
use crate::wire::dialect::greeting;
use crate::wire::dialect::input::{self, Needed, Question};
use crate::wire::dialect::party::{Abilities, ELICIT};
use crate::wire::message::{Answer, code, error_object};
use crate::wire::object::{self, Object};
use crate::wire::revision::Era;
pub(crate) use lot::Lot;

/// How often a server may ask for more within one call.
const MOST_ROUNDS: usize = 8;
/// How long a person may take to answer.
const ANSWERING: Duration = Duration::from_secs(600);
/// How long a call rests before it is sent again when a server asks for nothing but that.
const PACE: Duration = Duration::from_millis(250);

/// Takes one call through, and what its server asks to its client.
pub(crate) async fn run(stock: &Arc<Stock>, lot: &Arc<Lot>, call: &mut Call) -> Result<Outcome, Error> {
    if call.client.era == Era::Session {
        return run_in_session(stock, call).await;
    }
    if !input::may_need_input(&call.method) {
        return pipeline::run(stock, call).await;
    }
    let abilities = call.client.abilities.clone();
    let ours = call.params.string(input::STATE).filter(|state| lot.is_ours(state, call)).map(Cow::into_owned);
    let outcome = match ours {
        // In boxes, like everything that is large and rare: a call is moved about, and this would be a part of it.
        Some(state) => Box::pin(lot.resume(&state, call.clone())).await,
        None if abilities.any() => Box::pin(lot.run(stock, call.clone())).await,
        None => pipeline::run(stock, call).await,
    };
    outcome.map(|outcome| with_addresses_asked(outcome, &abilities))
}

/// A session-era error that asks for addresses to be opened becomes the questions it means.
fn with_addresses_asked(outcome: Outcome, abilities: &Abilities) -> Outcome {
    let Answer::Error(error) = &outcome.answer else { return outcome };
    let questions = (outcome.era == Era::Session).then(|| input::addresses_to_open(error)).flatten();
    let Some(questions) = questions else { return outcome };
    let lacking = questions.iter().find_map(|ask| abilities.lacking(&ask.method, ask.params.as_ref()));
    let answer = match lacking {
        Some(lacking) => Answer::Error(lacks_ability(&lacking)),
        None => Answer::Result(input::result_asking(&questions, None)),
    };
    Outcome { answer, era: Era::Stateless, ..outcome }
}

/// Asks the client while its call waits, and sends the call again with what it said.
async fn run_in_session(stock: &Stock, call: &mut Call) -> Result<Outcome, Error> {
    for round in 0..=MOST_ROUNDS {
        let outcome = pipeline::run(stock, call).await?;
        let Answer::Result(result) = &outcome.answer else { return Ok(outcome) };
        let needed = (outcome.era == Era::Stateless).then(|| input::needed(result)).flatten();
        let Some(needed) = needed else { return Ok(outcome) };
        if round == MOST_ROUNDS {
            break;
        }
        let Needed { questions, state } = needed;
        if questions.is_empty() {
            Box::pin(sleep(PACE)).await;
        }
        match Box::pin(ask_all(call, questions)).await {
            Ok(responses) => call.params.set(input::RESPONSES, responses),
            Err(refusal) => return Ok(Outcome { answer: refused(call, refusal), ..outcome }),
        }
        match state {
            Some(state) => call.params.set(input::STATE, state),
            None => drop(call.params.remove(input::STATE)),
        }
    }
    let message = format!("the server asked for more input {MOST_ROUNDS} times in one call");
    Err(Error::new(ErrorKind::BadReply, message))
}

/// What the client of a call gets that ends because of an answer it could not give: a tool that failed, if it was one.
fn refused(call: &Call, refusal: Bytes) -> Answer {
    if call.method != "tools/call" {
        return Answer::Error(refusal);
    }
    let text = format!("the server needs input: {}", greeting::refusal(&refusal));
    let result = serde_json::json!({"resultType": "complete", "isError": true, "content": [{"type": "text", "text": text}]});
    Answer::Result(result.to_string().into())
}

/// Asks everything at the same time; the answers as an object, or the error that ends the call.
async fn ask_all(call: &Call, questions: Vec<Question>) -> Result<Bytes, Bytes> {
    let mut waiting = Vec::new();
    for Question { key, method, params } in questions {
        if let Some(lacking) = call.client.abilities.lacking(&method, params.as_ref()) {
            return Err(lacks_ability(&lacking));
        }
        let params = if method == ELICIT { params.map(with_elicitation_id) } else { params };
        let (ask, answered) = Ask::new(method, params);
        let sink = call.told.as_ref().ok_or_else(nobody_to_ask)?;
        if !sink.hear(Told::Asked(ask)) {
            return Err(nobody_to_ask());
        }
        waiting.push((key, answered));
    }
    let mut responses = Vec::from(b"{");
    let until = Instant::now() + ANSWERING;
    for (key, answered) in waiting {
        let answer = timeout_at(until, answered).await;
        match answer.ok().and_then(Result::ok).ok_or_else(nobody_to_ask)? {
            Answer::Error(error) => return Err(error),
            Answer::Result(response) => {
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

fn nobody_to_ask() -> Bytes {
    error_object(code::INVALID_REQUEST, "the server asks for input and the client did not answer", None)
}

/// Sessions name each conversation with a person that goes through an address.
fn with_elicitation_id(params: Bytes) -> Bytes {
    match Object::parse(&params) {
        Ok(mut object)
            if object.string("mode").as_deref() == Some("url") && object.get("elicitationId").is_none() =>
        {
            object.set("elicitationId", object::string(&lot::random_name().unwrap_or_default()));
            object.to_bytes()
        }
        _ => params,
    }
}
