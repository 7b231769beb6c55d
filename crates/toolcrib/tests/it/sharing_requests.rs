//! Requests of instances that belong to one client.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use toolcrib::protocol::era::capabilities::ClientCapabilities;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::versions::Era;
use toolcrib::spec::{NamePattern, ToolsSpec};
use toolcrib::{
    Call, CallUpdate, ClientContext, Crib, ErrorKind, Outcome, Pinning, Selector, ServerSpec, Sharing,
};

use crate::asking_server::AskingServer;
use crate::fake::FakeServer;
use crate::sharing::{client, crib};
use crate::support::{SECOND, id, kind, on, roster, settle, spawn, with};

/// A client context with a channel for requests while no call is running.
fn context_with_updates() -> (Arc<ClientContext>, mpsc::Receiver<CallUpdate>) {
    let (sink, updates) = mpsc::channel(8);
    let capabilities = ClientCapabilities::parse(&r#"{"elicitation":{}}"#.into());
    (Arc::new(ClientContext::default().capabilities(capabilities).update_sink(Arc::new(sink))), updates)
}

#[tokio::test(start_paused = true)]
async fn request_without_call_reaches_the_owning_client() {
    let question = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}"#;
    let answer = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#;
    for (sharing, reached) in [(Sharing::PerClient, true), (Sharing::Shared, false)] {
        let fake = FakeServer::new();
        let crib = crib(&fake, sharing);
        let (context, mut updates) = context_with_updates();
        let (other, mut others) = context_with_updates();
        let able = |key| client(key, Era::Session, r#"{"elicitation":{}}"#);
        crib.call(on("s", "echo").client(able(2)).client_context(other)).await.unwrap();
        let late = with("s", "say", &json!({"lines": [answer, question]}));
        crib.call(late.client(able(1)).client_context(context)).await.unwrap();
        settle().await;
        match updates.try_recv() {
            Ok(CallUpdate::Request(ask)) if reached => {
                ask.answer(ResponsePayload::Result(r#"{"action":"accept"}"#.into()));
            }
            Err(_) if !reached => {}
            update => panic!("{sharing:?}: {update:?}"),
        }
        settle().await;
        assert!(others.try_recv().is_err());
        let replies = fake.replies();
        assert_eq!(replies[0].get("result").is_some(), reached, "{replies:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_reach_their_own_clients() {
    let server = AskingServer::in_session();
    let spec = ServerSpec::in_process(id("s"), server).sharing(Sharing::PerClient);
    let crib = Crib::builder().server(spec).build().unwrap();
    let mut calls = JoinSet::new();
    let mut receivers = Vec::new();
    for key in [1, 2] {
        let (sink, updates) = mpsc::channel(8);
        receivers.push(updates);
        let asking = with("s", "ask", &json!({"method": "elicitation/create", "params": {"n": key}}));
        let able = client(key, Era::Session, r#"{"elicitation":{}}"#);
        spawn(&mut calls, &crib, asking.client(able).update_sink(Arc::new(sink)));
    }
    settle().await;
    for (key, mut updates) in [1, 2].into_iter().zip(receivers) {
        let Ok(CallUpdate::Request(ask)) = updates.try_recv() else { panic!("client {key} was not asked") };
        assert_eq!(ask.params.as_deref(), Some(json!({"n": key}).to_string().as_bytes()));
        ask.answer(ResponsePayload::Result("{}".into()));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn suspended_call_resumes_on_its_instance() {
    let server = AskingServer::in_session();
    let spec = ServerSpec::in_process(id("s"), server.clone()).sharing(Sharing::PerClient);
    let crib = Crib::builder().server(spec).build().unwrap();
    let params = json!({"name": "ask", "arguments": {"method": "elicitation/create", "params": {}}});
    let call = |params: &Value, key| {
        let params = Object::parse(&params.to_string().into()).unwrap();
        let able = client(key, Era::Stateless, r#"{"elicitation":{}}"#);
        Call::request("tools/call", Selector::Tool("s__ask".into()), params).client(able)
    };
    let asked = crib.call(call(&params, 1)).await.unwrap().to_value();
    // The client has disconnected, but its suspended call stays.
    crib.client_disconnected(1);
    settle().await;
    let mut again = params;
    again["inputResponses"] = json!({"ask-1": {"action": "accept"}});
    again["requestState"] = asked["requestState"].clone();
    let outcome = crib.call(call(&again, 2)).await.unwrap();
    assert_eq!(outcome.text(), r#"{"action":"accept"}"#);
    assert_eq!(server.received_of("tools/call").len(), 1);
}

/// A server that asks by its result, with an instance per client.
fn asking_spec(name: &str, server: &AskingServer) -> ServerSpec {
    ServerSpec::in_process(id(name), server.clone()).sharing(Sharing::PerClient)
}

/// The parameters of a call that asks `n`.
fn question(n: u64) -> Value {
    json!({"name": "ask", "arguments": {"method": "elicitation/create", "params": {"n": n}}})
}

/// A call of a stateless client on one server.
fn stateless_call(server: &str, params: &Value, key: u64) -> Call {
    let params = Object::parse(&params.to_string().into()).unwrap();
    let able = client(key, Era::Stateless, r#"{"elicitation":{}}"#);
    Call::request("tools/call", Selector::OnServer(id(server), "ask".to_owned()), params).client(able)
}

/// The parameters of a repeated call, with the answer to what was asked.
fn answered(mut params: Value, asked: &Outcome) -> Value {
    params["inputResponses"] = json!({"it": {"action": "accept"}});
    params["requestState"] = asked.to_value()["requestState"].clone();
    params
}

#[tokio::test(start_paused = true)]
async fn kept_instance_serves_only_the_call_that_it_asked_in() {
    let [first, second] = [(); 2].map(|()| AskingServer::stateless());
    let servers = [asking_spec("a", &first), asking_spec("b", &second)];
    let crib = Crib::builder().roster(roster(servers)).build().unwrap();
    let asked = crib.call(stateless_call("a", &question(1), 1)).await.unwrap();
    let on_other_server = stateless_call("b", &answered(question(1), &asked), 1);
    let with_other_arguments = stateless_call("a", &answered(question(2), &asked), 1);
    for other in [on_other_server, with_other_arguments] {
        let outcome = crib.call(other).await.unwrap();
        assert!(outcome.is_error(), "{outcome:?}");
    }
    let calls = |server: &AskingServer| server.received_of("tools/call").len();
    assert_eq!((calls(&first), calls(&second)), (1, 0));
    let outcome = crib.call(stateless_call("a", &answered(question(1), &asked), 2)).await.unwrap();
    assert_eq!((outcome.text().as_str(), calls(&first)), (r#"{"action":"accept"}"#, 2));
}

#[tokio::test(start_paused = true)]
async fn instance_is_kept_for_a_call_by_public_name() {
    let server = AskingServer::stateless();
    let crib = Crib::builder().server(asking_spec("s", &server)).build().unwrap();
    let call = |params: &Value, key| {
        let params = Object::parse(&params.to_string().into()).unwrap();
        let able = client(key, Era::Stateless, r#"{"elicitation":{}}"#);
        Call::request("tools/call", Selector::Tool("s__ask".into()), params).client(able)
    };
    let mut params = question(1);
    params["name"] = "s__ask".into();
    let asked = crib.call(call(&params, 1)).await.unwrap();
    let outcome = crib.call(call(&answered(params, &asked), 2)).await.unwrap();
    assert_eq!(outcome.text(), r#"{"action":"accept"}"#, "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn kept_instance_is_checked_against_its_current_listing() {
    let server = AskingServer::stateless();
    let spec = asking_spec("s", &server).pin(Pinning::Strict);
    let crib = Crib::builder().server(spec).build().unwrap();
    crib.call(stateless_call("s", &question(1), 1)).await.unwrap();
    server.change_definition_in_next_call();
    let asked = crib.call(stateless_call("s", &question(1), 1)).await.unwrap();
    sleep(5 * SECOND).await;
    let repeated = crib.call(stateless_call("s", &answered(question(1), &asked), 1)).await;
    assert_eq!(kind(repeated), ErrorKind::Denied);
    assert_eq!(server.received_of("tools/call").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn instance_that_asks_in_a_retried_call_is_kept() {
    let server = AskingServer::stateless();
    let tools = ToolsSpec { idempotent: vec![NamePattern::any()], ..ToolsSpec::default() };
    let crib = Crib::builder().server(asking_spec("s", &server).tools(tools)).build().unwrap();
    server.end_next_call();
    let asked = crib.call(stateless_call("s", &question(1), 1)).await.unwrap();
    let state = asked.to_value()["requestState"].clone();
    assert!(state.as_str().unwrap().starts_with("toolcrib."), "{state}");
    let repeated = crib.call(stateless_call("s", &answered(question(1), &asked), 2)).await.unwrap();
    assert_eq!(repeated.text(), r#"{"action":"accept"}"#);
    assert_eq!(server.received_of("server/discover").len(), 2, "no instance for the second client");
}
