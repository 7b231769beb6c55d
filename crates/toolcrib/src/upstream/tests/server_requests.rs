//! Requests of the server: open while a call is in flight that may own them, or until withdrawn.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::*;
use crate::call::updates::{CallUpdate, ServerRequest};
use crate::protocol::era::capabilities::{Client, ClientCapabilities};

const ROOTS_REQUEST: &str = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;

/// Starts a call of a client that has roots, and returns its updates.
fn start_call(
    connection: &Arc<Connection>,
    calls: &mut JoinSet<Result<Outcome, Error>>,
    tool: &'static str,
    lines: &[&str],
) -> mpsc::Receiver<CallUpdate> {
    let (sink, updates) = mpsc::channel(8);
    let capabilities = ClientCapabilities::parse(&Bytes::from_static(br#"{"roots":{}}"#));
    let client = Client { key: 1, capabilities, ..Client::without_capabilities() };
    let mut call = Call::tool(tool).arguments(&json!({ "lines": lines })).updates(sink).client(client);
    let connection = connection.clone();
    calls.spawn(async move { connection.call(&mut call, tool, Instant::now()).await });
    updates
}

async fn next_request(updates: &mut mpsc::Receiver<CallUpdate>) -> ServerRequest {
    let Some(CallUpdate::Request(request)) = updates.recv().await else { panic!("no request") };
    request
}

#[tokio::test(start_paused = true)]
async fn request_stays_open_while_an_older_call_may_own_it() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    let _older = start_call(&connection, &mut calls, "hold", &[]);
    settle().await;
    let mut newer = start_call(
        &connection,
        &mut calls,
        "say",
        &[ROOTS_REQUEST, r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#],
    );
    let request = next_request(&mut newer).await;
    calls.join_next().await.unwrap().unwrap().unwrap();
    let _newest = start_call(&connection, &mut calls, "hang", &[]);
    settle().await;
    assert!(!request.is_withdrawn(), "the older call may own it");
    fake.set_hold_open(true);
    calls.join_next().await.unwrap().unwrap().unwrap();
    assert!(request.is_withdrawn(), "a later call cannot own it");
    drop(request);
    settle().await;
    assert!(fake.replies()[0]["error"].is_object(), "every request gets a response");
}

#[tokio::test(start_paused = true)]
async fn withdrawn_request_is_closed_without_an_answer() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    let cancelled = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}"#;
    let mut updates = start_call(&connection, &mut calls, "say", &[ROOTS_REQUEST, cancelled]);
    let request = next_request(&mut updates).await;
    assert!(matches!(updates.recv().await, Some(CallUpdate::RequestWithdrawn)));
    assert!(request.is_withdrawn());
    request.answer(ResponsePayload::Result(Bytes::from_static(b"{}")));
    settle().await;
    assert!(fake.replies().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unanswered_question_is_closed_when_another_client_is_to_be_asked() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    let mut asked = start_call(&connection, &mut calls, "say", &[ROOTS_REQUEST]);
    let question = next_request(&mut asked).await;
    let second_request = ROOTS_REQUEST.replace("\"q\"", "\"r\"");
    let ask_again = || {
        let (sink, updates) = mpsc::channel(8);
        let mut call = Call::tool("say").arguments(&json!({ "lines": [second_request] })).updates(sink);
        call = call.client(Client { key: 2, ..Client::without_capabilities() });
        let connection = connection.clone();
        (async move { connection.call(&mut call, "say", Instant::now()).await }, updates)
    };
    let (other, _other_updates) = ask_again();
    calls.spawn(other);
    settle().await;
    assert!(!question.is_withdrawn(), "the client has time to answer");
    assert_eq!(fake.replies().len(), 1, "the question of the other client is refused");
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(!question.is_withdrawn(), "nothing depends on the answer");
    let (other, _other_updates) = ask_again();
    calls.spawn(other);
    settle().await;
    assert!(question.is_withdrawn());
    let refused = fake.replies().into_iter().find(|reply| reply["id"] == "q").unwrap();
    assert!(refused["error"]["message"].as_str().unwrap().contains("did not answer in time"), "{refused}");
    assert!(matches!(asked.recv().await, Some(CallUpdate::RequestWithdrawn)));
    drop(question);
    settle().await;
    assert_eq!(fake.replies().iter().filter(|reply| reply["id"] == "q").count(), 1);
}
