//! Requests of instances that belong to one client.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use toolcrib::protocol::era::capabilities::ClientCapabilities;
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::versions::Era;
use toolcrib::{Call, CallUpdate, ClientContext, Crib, ServerSpec, Sharing};

use crate::asking_server::AskingServer;
use crate::fake::FakeServer;
use crate::sharing::{client, crib};
use crate::support::{id, on, settle, spawn, with};

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
        let params = toolcrib::protocol::json::object::Object::parse(&params.to_string().into()).unwrap();
        let able = client(key, Era::Stateless, r#"{"elicitation":{}}"#);
        Call::request("tools/call", toolcrib::Selector::Tool("s__ask".into()), params).client(able)
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
