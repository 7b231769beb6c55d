//! A server that asks in the middle of a call: its question reaches the right client, of either era, and nobody else.

use std::num::NonZero;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Duration, advance};
use toolcrib::wire::dialect::party::Abilities;
use toolcrib::wire::message::Answer;
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;
use toolcrib::{Call, Caller, Client, Crib, Limits, Outcome, ServerSpec, Told, Wanted};

use crate::asking::Asking;
use crate::house::{breath, id};

const ELICIT: &str = "elicitation/create";

fn crib_of(server: &Asking) -> Crib {
    Crib::builder().server(ServerSpec::in_process(id("a"), server.clone())).build().unwrap()
}

fn client(key: u64, era: Era, abilities: &'static str) -> Client {
    Client { key, era, abilities: Abilities::read(&abilities.as_bytes().into()), log: None }
}

fn person(key: u64, era: Era) -> Client {
    client(key, era, r#"{"elicitation":{}}"#)
}

fn object(value: &Value) -> Object {
    Object::parse(&value.to_string().into()).unwrap()
}

/// A call of the tool that asks, as a client writes it.
fn asking(method: &str, params: &Value) -> Value {
    json!({"name": "ask", "arguments": {"method": method, "params": params}})
}

fn call(params: &Value) -> Call {
    Call::request("tools/call", Wanted::Named("a__ask".into()), object(params))
}

fn code(outcome: &Outcome) -> Value {
    assert!(matches!(outcome.answer, Answer::Error(_)), "{outcome:?}");
    outcome.to_value()["code"].clone()
}

/// What a stateless client sends when it was asked.
fn with_answers(mut params: Value, asked: &Outcome, answers: &Value) -> Value {
    let asked = asked.to_value();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    params["inputResponses"] = answers.clone();
    if let Some(state) = asked.get("requestState") {
        params["requestState"] = state.clone();
    }
    params
}

#[tokio::test(start_paused = true)]
async fn a_client_in_a_session_is_asked_while_its_call_runs() {
    for server in [Asking::in_session(), Asking::stateless()] {
        let crib = crib_of(&server);
        let (sink, mut told) = mpsc::channel(8);
        let call = call(&asking(ELICIT, &json!({"message": "name?"})))
            .of(person(1, Era::Session))
            .listen(std::sync::Arc::new(sink));
        let (outcome, ()) = tokio::join!(crib.call(call), async {
            let Some(Told::Asked(ask)) = told.recv().await else { panic!("nothing was asked") };
            assert_eq!((&*ask.method, ask.params.as_deref()), (ELICIT, Some(&br#"{"message":"name?"}"#[..])));
            ask.answer(Answer::Result(r#"{"action":"accept","content":{"n":1.0}}"#.into()));
        });
        assert_eq!(outcome.unwrap().text(), r#"{"action":"accept","content":{"n":1.0}}"#);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stateless_client_is_asked_by_the_result_and_answers_with_the_next_call() {
    for server in [Asking::in_session(), Asking::stateless()] {
        let crib = crib_of(&server);
        let params = asking(ELICIT, &json!({"message": "name?"}));
        let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
        let requests = asked.to_value()["inputRequests"].as_object().unwrap().clone();
        let (key, request) = requests.iter().next().unwrap();
        assert_eq!(request, &json!({"method": ELICIT, "params": {"message": "name?"}}));
        let again = with_answers(params, &asked, &json!({key: {"action": "decline"}}));
        let outcome = crib.call(call(&again).of(person(2, Era::Stateless))).await.unwrap();
        assert_eq!(outcome.text(), r#"{"action":"decline"}"#);
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_is_good_once_for_its_caller_and_its_call_only() {
    let server = Asking::in_session();
    let crib = crib_of(&server);
    let params = asking(ELICIT, &json!({"message": "name?"}));
    let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    let good = with_answers(params.clone(), &asked, &json!({"ask-1": {"action": "accept"}}));
    let stateless = |params: &Value| call(params).of(person(1, Era::Stateless));
    let mut forged = good.clone();
    forged["requestState"] = Value::from(good["requestState"].as_str().unwrap().replace(['0', '1'], "2"));
    assert_eq!(code(&crib.call(stateless(&forged)).await.unwrap()), -32602);
    let mut foreign = good.clone();
    foreign["requestState"] = json!("of some other server");
    assert_eq!(code(&crib.call(stateless(&foreign)).await.unwrap()), -32602);
    let mut other = good.clone();
    other["arguments"]["params"]["message"] = json!("password?");
    assert_eq!(code(&crib.call(stateless(&other)).await.unwrap()), -32602);
    let stranger = stateless(&good).by(Caller::named("stranger"));
    assert_eq!(code(&crib.call(stranger).await.unwrap()), -32602);
    // None of them took it away, and the right one is served once, however it spells the same call.
    let pretty = Object::parse(&serde_json::to_string_pretty(&good).unwrap().into()).unwrap();
    let right =
        Call::request("tools/call", Wanted::Named("a__ask".into()), pretty).of(person(9, Era::Stateless));
    assert_eq!(crib.call(right).await.unwrap().text(), r#"{"action":"accept"}"#);
    assert_eq!(code(&crib.call(stateless(&good)).await.unwrap()), -32602);
    assert_eq!(server.heard_of("tools/call").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_missing_is_asked_for_again() {
    let crib = crib_of(&Asking::in_session());
    let params = asking(ELICIT, &json!({}));
    let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    let empty = with_answers(params.clone(), &asked, &json!({}));
    let again = crib.call(call(&empty).of(person(1, Era::Stateless))).await.unwrap();
    let answered = with_answers(params, &again, &json!({"ask-1": {"action": "accept"}, "other": 7}));
    let outcome = crib.call(call(&answered).of(person(1, Era::Stateless))).await.unwrap();
    assert_eq!(outcome.text(), r#"{"action":"accept"}"#);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_asks_side_by_side_a_stateless_client_is_asked_at_once() {
    let crib = crib_of(&Asking::in_session());
    let mut params = asking(ELICIT, &json!({}));
    params["arguments"]["times"] = json!(3);
    let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    let questions = asked.to_value()["inputRequests"].as_object().unwrap().clone();
    assert_eq!(questions.keys().collect::<Vec<_>>(), ["ask-1", "ask-2", "ask-3"]);
    let answers: Value = questions.keys().map(|key| (key.clone(), json!({"action": "accept"}))).collect();
    let answered = with_answers(params, &asked, &answers);
    let outcome = crib.call(call(&answered).of(person(1, Era::Stateless))).await.unwrap();
    assert_eq!(outcome.text(), r#"{"action":"accept"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_client_never_comes_back_is_cancelled() {
    let server = Asking::in_session();
    let crib = crib_of(&server);
    let params = asking(ELICIT, &json!({}));
    let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    breath().await;
    advance(Duration::from_secs(601)).await;
    breath().await;
    assert_eq!(server.heard_of("notifications/cancelled").len(), 1);
    let late = with_answers(params, &asked, &json!({"ask-1": {"action": "accept"}}));
    assert_eq!(code(&crib.call(call(&late).of(person(1, Era::Stateless))).await.unwrap()), -32602);
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_are_bounded_and_the_one_too_many_is_cancelled() {
    let server = Asking::in_session();
    let limits = Limits { in_flight: NonZero::new(1000).unwrap(), ..Limits::default() };
    let spec = ServerSpec::in_process(id("a"), server.clone()).limits(limits);
    let crib = Crib::builder().server(spec).build().unwrap();
    let params = asking(ELICIT, &json!({}));
    for n in 0..200 {
        let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
        assert_eq!(asked.to_value()["resultType"], "input_required", "{n}");
    }
    assert_eq!(code(&crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap()), -32603);
    breath().await;
    assert_eq!(server.heard_of("notifications/cancelled").len(), 1);
    let other = call(&params).of(person(2, Era::Stateless)).by(Caller::named("other"));
    assert!(matches!(crib.call(other).await.unwrap().answer, Answer::Result(_)));
}

#[tokio::test(start_paused = true)]
async fn what_a_client_cannot_be_asked_is_the_protocols_own_error() {
    let server = Asking::in_session();
    let crib = crib_of(&server);
    let sampling = asking("sampling/createMessage", &json!({"messages": []}));
    let outcome = crib.call(call(&sampling).of(person(1, Era::Stateless))).await.unwrap();
    assert_eq!(code(&outcome), -32021);
    assert_eq!(outcome.to_value()["data"]["requiredCapabilities"], json!({"sampling": {}}));
    breath().await;
    assert_eq!(server.heard_of("notifications/cancelled").len(), 1);
    // In a session the server hears of it, and says what it makes of that.
    advance(Duration::from_secs(6)).await;
    let (sink, _told) = mpsc::channel(8);
    let outcome = crib
        .call(call(&sampling).of(person(2, Era::Session)).listen(std::sync::Arc::new(sink)))
        .await
        .unwrap();
    assert!(outcome.text().contains("-32601"), "{}", outcome.text());
}

#[tokio::test(start_paused = true)]
async fn a_client_without_roots_is_not_the_end_of_a_call_whose_server_asks_for_them() {
    let server = Asking::in_session();
    let crib = crib_of(&server);
    for abilities in ["{}", r#"{"elicitation":{}}"#] {
        let params = asking("roots/list", &json!({}));
        let outcome = crib.call(call(&params).of(client(1, Era::Stateless, abilities))).await.unwrap();
        assert!(outcome.text().contains("-32601"), "{}", outcome.text());
    }
    assert!(server.heard_of("notifications/cancelled").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_question_that_could_be_two_clients_is_put_to_neither() {
    let server = Asking::in_session();
    let crib = crib_of(&server);
    let (first_sink, mut first_told) = mpsc::channel(8);
    let (second_sink, mut second_told) = mpsc::channel(8);
    let quiet = json!({"name": "ask", "arguments": {}});
    let waiting = call(&quiet).of(person(1, Era::Session)).listen(std::sync::Arc::new(first_sink));
    let asking = call(&asking(ELICIT, &json!({})))
        .of(person(2, Era::Session))
        .listen(std::sync::Arc::new(second_sink));
    let first = crib.call(waiting);
    let mut first = std::pin::pin!(first);
    tokio::select! { biased; _ = &mut first => panic!("it is not answered yet"), () = breath() => {} }
    let outcome = crib.call(asking).await.unwrap();
    assert!(outcome.text().contains("several clients"), "{}", outcome.text());
    assert!(first_told.try_recv().is_err() && second_told.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stateless_server_is_told_what_the_calling_client_can_and_no_more() {
    let server = Asking::stateless();
    let crib = crib_of(&server);
    for (era, abilities) in
        [(Era::Stateless, r#"{"x":1.0}"#), (Era::Session, r#"{"roots":{"listChanged":true}}"#)]
    {
        let params = json!({"name": "ask", "arguments": {"times": 0}});
        crib.call(call(&params).of(client(1, era, abilities))).await.unwrap();
    }
    let declared: Vec<Value> = server
        .heard_of("tools/call")
        .iter()
        .map(|call| call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"].clone())
        .collect();
    assert_eq!(declared, [json!({"x": 1.0}), json!({"roots": {}})]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_stops_asking_is_given_up() {
    let server = Asking::stateless();
    let crib = crib_of(&server);
    let (sink, mut told) = mpsc::channel(8);
    let mut params = asking(ELICIT, &json!({}));
    params["arguments"]["times"] = json!(1000);
    let call = call(&params).of(person(1, Era::Session)).listen(std::sync::Arc::new(sink));
    let answering = async {
        while let Some(Told::Asked(ask)) = told.recv().await {
            ask.answer(Answer::Result("{}".into()));
        }
    };
    let (outcome, ()) = tokio::join!(crib.call(call), answering);
    assert!(outcome.unwrap_err().to_string().contains("8 times"));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_could_be_of_a_call_that_waits_or_was_taken_back_is_put_to_nobody_else() {
    let server = Asking::in_session();
    let crib = crib_of(&server);
    let params = asking(ELICIT, &json!({}));
    let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    assert_eq!(asked.to_value()["resultType"], "input_required");
    let other = crib.call(call(&params).of(person(2, Era::Stateless))).await.unwrap();
    assert!(other.text().contains("several clients"), "{}", other.text());
    let again = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    assert_eq!(again.to_value()["resultType"], "input_required");
    // Their time is up; for a moment more the server may not have noticed.
    breath().await;
    advance(Duration::from_secs(601)).await;
    breath().await;
    let soon = crib.call(call(&params).of(person(2, Era::Stateless))).await.unwrap();
    assert!(soon.text().contains("several clients"), "{}", soon.text());
    advance(Duration::from_secs(6)).await;
    let later = crib.call(call(&params).of(person(2, Era::Stateless))).await.unwrap();
    assert_eq!(later.to_value()["resultType"], "input_required");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_can_be_asked_is_not_asked_for_one_that_cannot() {
    let server = Asking::in_session();
    let crib = crib_of(&server);
    let (sink, mut told) = mpsc::channel(8);
    let quiet = json!({"name": "ask", "arguments": {}});
    let able = call(&quiet).of(person(1, Era::Session)).listen(std::sync::Arc::new(sink));
    let mut able = std::pin::pin!(crib.call(able));
    tokio::select! { biased; _ = &mut able => panic!("it is not answered yet"), () = breath() => {} }
    let unable = call(&asking(ELICIT, &json!({}))).of(client(2, Era::Session, "{}"));
    let outcome = crib.call(unable).await.unwrap();
    assert!(outcome.text().contains("several clients"), "{}", outcome.text());
    assert!(told.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_client_leaves_its_place_to_others() {
    let server = Asking::in_session();
    let limits = Limits { in_flight: NonZero::new(2).unwrap(), ..Limits::default() };
    let crib =
        Crib::builder().server(ServerSpec::in_process(id("a"), server).limits(limits)).build().unwrap();
    let params = asking(ELICIT, &json!({}));
    for n in 0..5 {
        let asked = crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
        assert_eq!(asked.to_value()["resultType"], "input_required", "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_state_of_another_crib_behind_this_one_is_its_own() {
    let inner = crib_of(&Asking::in_session());
    let params = asking(ELICIT, &json!({}));
    let asked = inner.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    let server = Asking::stateless();
    let outer = crib_of(&server);
    let again = with_answers(params, &asked, &json!({"ask-1": {}}));
    // The scripted server does not know the state and says so by its own means: it got it.
    let _ =
        tokio::time::timeout(Duration::from_secs(1), outer.call(call(&again).of(person(1, Era::Stateless))))
            .await;
    let sent = server.heard_of("tools/call");
    assert_eq!(sent[0]["params"]["requestState"], again["requestState"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_in_a_crib_that_was_shut_down() {
    let crib = crib_of(&Asking::in_session());
    let params = asking(ELICIT, &json!({}));
    crib.call(call(&params).of(person(1, Era::Stateless))).await.unwrap();
    let before = tokio::time::Instant::now();
    crib.shutdown(Duration::from_secs(1)).await;
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_tool_whose_client_refuses_to_answer_has_failed() {
    let crib = crib_of(&Asking::stateless());
    let (sink, mut told) = mpsc::channel(8);
    let call =
        call(&asking(ELICIT, &json!({}))).of(person(1, Era::Session)).listen(std::sync::Arc::new(sink));
    let (outcome, ()) = tokio::join!(crib.call(call), async {
        let Some(Told::Asked(ask)) = told.recv().await else { panic!("nothing was asked") };
        ask.answer(Answer::Error(r#"{"code":-1,"message":"the person said no"}"#.into()));
    });
    let outcome = outcome.unwrap();
    assert!(outcome.is_error() && outcome.text().contains("the person said no"), "{outcome:?}");
}
