//! Servers that are one client's alone ask that client, whoever else calls.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use toolcrib::wire::dialect::party::Abilities;
use toolcrib::wire::message::Answer;
use toolcrib::wire::revision::Era;
use toolcrib::{Call, Crib, Guest, ServerSpec, Sharing, Told};

use crate::asking::Asking;
use crate::fake::Fake;
use crate::house::{breath, id, on, spawn, with};
use crate::sharing::{client, crib};

/// What a client is asked while none of its calls runs.
fn ear() -> (Arc<Guest>, mpsc::Receiver<Told>) {
    let (sink, told) = mpsc::channel(8);
    let abilities = Abilities::read(&r#"{"elicitation":{}}"#.into());
    (Arc::new(Guest::default().declaring(abilities).hearing(Arc::new(sink))), told)
}

#[tokio::test(start_paused = true)]
async fn a_question_without_a_call_reaches_the_one_client_whose_server_asks() {
    let question = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}"#;
    let answer = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#;
    for (sharing, reached) in [(Sharing::PerClient, true), (Sharing::Shared, false)] {
        let fake = Fake::new();
        let crib = crib(&fake, sharing);
        let (guest, mut told) = ear();
        let (other, mut others) = ear();
        let able = |key| client(key, Era::Session, r#"{"elicitation":{}}"#);
        crib.call(on("s", "echo").of(able(2)).from_guest(other)).await.unwrap();
        let late = with("s", "say", &json!({"lines": [answer, question]}));
        crib.call(late.of(able(1)).from_guest(guest)).await.unwrap();
        breath().await;
        match told.try_recv() {
            Ok(Told::Asked(ask)) if reached => ask.answer(Answer::Result(r#"{"action":"accept"}"#.into())),
            Err(_) if !reached => {}
            heard => panic!("{sharing:?}: {heard:?}"),
        }
        breath().await;
        assert!(others.try_recv().is_err());
        let replies = fake.replies();
        assert_eq!(replies[0].get("result").is_some(), reached, "{replies:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn questions_of_two_clients_at_a_time_reach_each_its_own() {
    let server = Asking::in_session();
    let spec = ServerSpec::in_process(id("s"), server).sharing(Sharing::PerClient);
    let crib = Crib::builder().server(spec).build().unwrap();
    let mut calls = JoinSet::new();
    let mut tolds = Vec::new();
    for key in [1, 2] {
        let (sink, told) = mpsc::channel(8);
        tolds.push(told);
        let asking = with("s", "ask", &json!({"method": "elicitation/create", "params": {"n": key}}));
        let able = client(key, Era::Session, r#"{"elicitation":{}}"#);
        spawn(&mut calls, &crib, asking.of(able).listen(Arc::new(sink)));
    }
    breath().await;
    for (key, mut told) in [1, 2].into_iter().zip(tolds) {
        let Ok(Told::Asked(ask)) = told.try_recv() else { panic!("client {key} was not asked") };
        assert_eq!(ask.params.as_deref(), Some(json!({"n": key}).to_string().as_bytes()));
        ask.answer(Answer::Result("{}".into()));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_client_goes_on_at_the_same_instance() {
    let server = Asking::in_session();
    let spec = ServerSpec::in_process(id("s"), server.clone()).sharing(Sharing::PerClient);
    let crib = Crib::builder().server(spec).build().unwrap();
    let params = json!({"name": "ask", "arguments": {"method": "elicitation/create", "params": {}}});
    let call = |params: &Value, key| {
        let params = toolcrib::wire::object::Object::parse(&params.to_string().into()).unwrap();
        let able = client(key, Era::Stateless, r#"{"elicitation":{}}"#);
        Call::request("tools/call", toolcrib::Wanted::Named("s__ask".into()), params).of(able)
    };
    let asked = crib.call(call(&params, 1)).await.unwrap().to_value();
    // Its connection is gone, and with it everything that was only the client's, but not this.
    crib.part_with(1);
    breath().await;
    let mut again = params;
    again["inputResponses"] = json!({"ask-1": {"action": "accept"}});
    again["requestState"] = asked["requestState"].clone();
    let outcome = crib.call(call(&again, 2)).await.unwrap();
    assert_eq!(outcome.text(), r#"{"action":"accept"}"#);
    assert_eq!(server.heard_of("tools/call").len(), 1);
}
