//! Requests of servers during a call reach the right client, of either era, and no other.

use std::num::NonZero;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Duration, advance};
use toolcrib::protocol::era::capabilities::ClientCapabilities;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::versions::Era;
use toolcrib::{
    Call, CallUpdate, Caller, Client, Crib, Outcome, Selector, ServerLimits, ServerSpec, Sharing,
};

use crate::asking_server::AskingServer;
use crate::support::{id, settle};

const ELICIT: &str = "elicitation/create";

fn crib_of(server: &AskingServer) -> Crib {
    Crib::builder().server(ServerSpec::in_process(id("a"), server.clone())).build().unwrap()
}

fn client(key: u64, era: Era, capabilities: &'static str) -> Client {
    Client {
        key,
        era,
        capabilities: ClientCapabilities::parse(&capabilities.as_bytes().into()),
        ..Client::without_capabilities()
    }
}

fn eliciting_client(key: u64, era: Era) -> Client {
    client(key, era, r#"{"elicitation":{}}"#)
}

fn object(value: &Value) -> Object {
    Object::parse(&value.to_string().into()).unwrap()
}

/// The parameters of a call of the asking tool.
fn asking(method: &str, params: &Value) -> Value {
    json!({"name": "ask", "arguments": {"method": method, "params": params}})
}

fn call(params: &Value) -> Call {
    Call::request("tools/call", Selector::Tool("a__ask".into()), object(params))
}

fn code(outcome: &Outcome) -> Value {
    assert!(matches!(outcome.answer, ResponsePayload::Error(_)), "{outcome:?}");
    outcome.to_value()["code"].clone()
}

/// The parameters of the next call of a stateless client that was asked.
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
async fn session_client_is_asked_during_the_call() {
    for server in [AskingServer::in_session(), AskingServer::stateless()] {
        let crib = crib_of(&server);
        let (sink, mut updates) = mpsc::channel(8);
        let call = call(&asking(ELICIT, &json!({"message": "name?"})))
            .client(eliciting_client(1, Era::Session))
            .update_sink(std::sync::Arc::new(sink));
        let (outcome, ()) = tokio::join!(crib.call(call), async {
            let Some(CallUpdate::Request(ask)) = updates.recv().await else { panic!("no request arrived") };
            assert_eq!((&*ask.method, ask.params.as_deref()), (ELICIT, Some(&br#"{"message":"name?"}"#[..])));
            ask.answer(ResponsePayload::Result(r#"{"action":"accept","content":{"n":1.0}}"#.into()));
        });
        assert_eq!(outcome.unwrap().text(), r#"{"action":"accept","content":{"n":1.0}}"#);
    }
}

#[tokio::test(start_paused = true)]
async fn stateless_client_is_asked_through_the_result() {
    for server in [AskingServer::in_session(), AskingServer::stateless()] {
        let crib = crib_of(&server);
        let params = asking(ELICIT, &json!({"message": "name?"}));
        let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
        let requests = asked.to_value()["inputRequests"].as_object().unwrap().clone();
        let (key, request) = requests.iter().next().unwrap();
        assert_eq!(request, &json!({"method": ELICIT, "params": {"message": "name?"}}));
        let again = with_answers(params, &asked, &json!({key: {"action": "decline"}}));
        let outcome = crib.call(call(&again).client(eliciting_client(2, Era::Stateless))).await.unwrap();
        assert_eq!(outcome.text(), r#"{"action":"decline"}"#);
    }
}

#[tokio::test(start_paused = true)]
async fn request_state_is_valid_once_for_its_caller_and_call() {
    let server = AskingServer::in_session();
    let crib = crib_of(&server);
    let params = asking(ELICIT, &json!({"message": "name?"}));
    let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    let valid = with_answers(params.clone(), &asked, &json!({"ask-1": {"action": "accept"}}));
    let stateless = |params: &Value| call(params).client(eliciting_client(1, Era::Stateless));
    let mut forged = valid.clone();
    forged["requestState"] = Value::from(valid["requestState"].as_str().unwrap().replace(['0', '1'], "2"));
    assert_eq!(code(&crib.call(stateless(&forged)).await.unwrap()), -32602);
    let mut foreign = valid.clone();
    foreign["requestState"] = json!("of some other server");
    assert_eq!(code(&crib.call(stateless(&foreign)).await.unwrap()), -32602);
    let mut other = valid.clone();
    other["arguments"]["params"]["message"] = json!("password?");
    assert_eq!(code(&crib.call(stateless(&other)).await.unwrap()), -32602);
    let other_caller = stateless(&valid).caller(Caller::new("other"));
    assert_eq!(code(&crib.call(other_caller).await.unwrap()), -32602);
    // The state is still valid for the right call, once, in any spelling.
    let pretty = Object::parse(&serde_json::to_string_pretty(&valid).unwrap().into()).unwrap();
    let right = Call::request("tools/call", Selector::Tool("a__ask".into()), pretty)
        .client(eliciting_client(9, Era::Stateless));
    assert_eq!(crib.call(right).await.unwrap().text(), r#"{"action":"accept"}"#);
    assert_eq!(code(&crib.call(stateless(&valid)).await.unwrap()), -32602);
    assert_eq!(server.received_of("tools/call").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn missing_answer_is_requested_again() {
    let crib = crib_of(&AskingServer::in_session());
    let params = asking(ELICIT, &json!({}));
    let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    let empty = with_answers(params.clone(), &asked, &json!({}));
    let again = crib.call(call(&empty).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    let answered = with_answers(params, &again, &json!({"ask-1": {"action": "accept"}, "other": 7}));
    let outcome = crib.call(call(&answered).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    assert_eq!(outcome.text(), r#"{"action":"accept"}"#);
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_reach_stateless_client_together() {
    let crib = crib_of(&AskingServer::in_session());
    let mut params = asking(ELICIT, &json!({}));
    params["arguments"]["times"] = json!(3);
    let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    let questions = asked.to_value()["inputRequests"].as_object().unwrap().clone();
    assert_eq!(questions.keys().collect::<Vec<_>>(), ["ask-1", "ask-2", "ask-3"]);
    let answers: Value = questions.keys().map(|key| (key.clone(), json!({"action": "accept"}))).collect();
    let answered = with_answers(params, &asked, &answers);
    let outcome = crib.call(call(&answered).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    assert_eq!(outcome.text(), r#"{"action":"accept"}"#);
}

#[tokio::test(start_paused = true)]
async fn suspended_call_is_cancelled_after_its_timeout() {
    let server = AskingServer::in_session();
    let crib = crib_of(&server);
    let params = asking(ELICIT, &json!({}));
    let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    settle().await;
    advance(Duration::from_secs(601)).await;
    settle().await;
    assert_eq!(server.received_of("notifications/cancelled").len(), 1);
    let late = with_answers(params, &asked, &json!({"ask-1": {"action": "accept"}}));
    assert_eq!(
        code(&crib.call(call(&late).client(eliciting_client(1, Era::Stateless))).await.unwrap()),
        -32602
    );
}

#[tokio::test(start_paused = true)]
async fn suspended_calls_are_bounded() {
    let server = AskingServer::in_session();
    let limits = ServerLimits { in_flight: NonZero::new(1000).unwrap(), ..ServerLimits::default() };
    let spec = ServerSpec::in_process(id("a"), server.clone()).limits(limits);
    let crib = Crib::builder().server(spec).build().unwrap();
    let params = asking(ELICIT, &json!({}));
    for n in 0..200 {
        let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
        assert_eq!(asked.to_value()["resultType"], "input_required", "{n}");
    }
    assert_eq!(
        code(&crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap()),
        -32603
    );
    settle().await;
    assert_eq!(server.received_of("notifications/cancelled").len(), 1);
    let other = call(&params).client(eliciting_client(2, Era::Stateless)).caller(Caller::new("other"));
    assert!(matches!(crib.call(other).await.unwrap().answer, ResponsePayload::Result(_)));
}

#[tokio::test(start_paused = true)]
async fn missing_client_capability_is_a_protocol_error() {
    let server = AskingServer::in_session();
    let crib = crib_of(&server);
    let sampling = asking("sampling/createMessage", &json!({"messages": []}));
    let outcome = crib.call(call(&sampling).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    assert_eq!(code(&outcome), -32021);
    assert_eq!(outcome.to_value()["data"]["requiredCapabilities"], json!({"sampling": {}}));
    settle().await;
    assert_eq!(server.received_of("notifications/cancelled").len(), 1);
    // In a session the server gets the error and answers the call.
    advance(Duration::from_secs(6)).await;
    let (sink, _updates) = mpsc::channel(8);
    let outcome = crib
        .call(
            call(&sampling).client(eliciting_client(2, Era::Session)).update_sink(std::sync::Arc::new(sink)),
        )
        .await
        .unwrap();
    assert!(outcome.text().contains("-32601"), "{}", outcome.text());
}

#[tokio::test(start_paused = true)]
async fn roots_request_without_capability_keeps_the_call() {
    let server = AskingServer::in_session();
    let crib = crib_of(&server);
    for capabilities in ["{}", r#"{"elicitation":{}}"#] {
        let params = asking("roots/list", &json!({}));
        let outcome = crib.call(call(&params).client(client(1, Era::Stateless, capabilities))).await.unwrap();
        assert!(outcome.text().contains("-32601"), "{}", outcome.text());
    }
    assert!(server.received_of("notifications/cancelled").is_empty());
}

#[tokio::test(start_paused = true)]
async fn ambiguous_request_reaches_no_client() {
    let server = AskingServer::in_session();
    let crib = crib_of(&server);
    let (first_sink, mut first_updates) = mpsc::channel(8);
    let (second_sink, mut second_updates) = mpsc::channel(8);
    let quiet = json!({"name": "ask", "arguments": {}});
    let waiting =
        call(&quiet).client(eliciting_client(1, Era::Session)).update_sink(std::sync::Arc::new(first_sink));
    let asking = call(&asking(ELICIT, &json!({})))
        .client(eliciting_client(2, Era::Session))
        .update_sink(std::sync::Arc::new(second_sink));
    let first = crib.call(waiting);
    let mut first = std::pin::pin!(first);
    tokio::select! { biased; _ = &mut first => panic!("the call was answered"), () = settle() => {} }
    let outcome = crib.call(asking).await.unwrap();
    assert!(outcome.text().contains("several clients"), "{}", outcome.text());
    assert!(first_updates.try_recv().is_err() && second_updates.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn stateless_server_gets_capabilities_of_the_client() {
    let server = AskingServer::stateless();
    let crib = crib_of(&server);
    for (era, capabilities) in
        [(Era::Stateless, r#"{"x":1.0}"#), (Era::Session, r#"{"roots":{"listChanged":true}}"#)]
    {
        let params = json!({"name": "ask", "arguments": {"times": 0}});
        crib.call(call(&params).client(client(1, era, capabilities))).await.unwrap();
    }
    let declared: Vec<Value> = server
        .received_of("tools/call")
        .iter()
        .map(|call| call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"].clone())
        .collect();
    assert_eq!(declared, [json!({"x": 1.0}), json!({"roots": {}})]);
}

#[tokio::test(start_paused = true)]
async fn rounds_of_requests_are_limited() {
    let server = AskingServer::stateless();
    let crib = crib_of(&server);
    let (sink, mut updates) = mpsc::channel(8);
    let mut params = asking(ELICIT, &json!({}));
    params["arguments"]["times"] = json!(1000);
    let call = call(&params).client(eliciting_client(1, Era::Session)).update_sink(std::sync::Arc::new(sink));
    let answering = async {
        while let Some(CallUpdate::Request(ask)) = updates.recv().await {
            ask.answer(ResponsePayload::Result("{}".into()));
        }
    };
    let (outcome, ()) = tokio::join!(crib.call(call), answering);
    assert!(outcome.unwrap_err().to_string().contains("8 times"));
}

#[tokio::test(start_paused = true)]
async fn request_near_a_suspended_call_is_ambiguous() {
    let server = AskingServer::in_session();
    let spec = ServerSpec::in_process(id("a"), server.clone()).sharing(Sharing::Shared);
    let crib = Crib::builder().server(spec).build().unwrap();
    let params = asking(ELICIT, &json!({}));
    let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    assert_eq!(asked.to_value()["resultType"], "input_required");
    let other = crib.call(call(&params).client(eliciting_client(2, Era::Stateless))).await.unwrap();
    assert!(other.text().contains("several clients"), "{}", other.text());
    let again = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    assert_eq!(again.to_value()["resultType"], "input_required");
    // After the timeout the call is cancelled, and the server answers a ping after it has noticed that.
    settle().await;
    advance(Duration::from_secs(601)).await;
    settle().await;
    let soon = crib.call(call(&params).client(eliciting_client(2, Era::Stateless))).await.unwrap();
    assert_eq!(soon.to_value()["resultType"], "input_required");
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_of_one_client_does_not_silence_requests_to_another() {
    let server = AskingServer::in_session();
    let crib = crib_of(&server);
    let quiet = json!({"name": "ask", "arguments": {}});
    let client_1 = || call(&quiet).client(client(1, Era::Session, "{}"));
    let ask = async || {
        let (sink, mut updates) = mpsc::channel(8);
        let call = call(&asking(ELICIT, &json!({})))
            .client(eliciting_client(2, Era::Session))
            .update_sink(std::sync::Arc::new(sink));
        let (outcome, ()) = tokio::join!(crib.call(call), async {
            match updates.recv().await {
                Some(CallUpdate::Request(ask)) => ask.answer(ResponsePayload::Result(r#""yes""#.into())),
                other => assert!(other.is_none(), "{other:?}"),
            }
        });
        outcome.unwrap().text()
    };
    for _ in 0..3 {
        tokio::select! { biased; _ = crib.call(client_1()) => panic!("answered"), () = settle() => {} }
        assert_eq!(ask().await, r#""yes""#);
    }
    // Without a cancelled call nothing is pinged.
    let pings = server.received_of("ping").len();
    assert_eq!(pings, 3);
    assert_eq!(ask().await, r#""yes""#);
    assert_eq!(server.received_of("ping").len(), pings);
}

#[tokio::test(start_paused = true)]
async fn request_does_not_go_to_another_capable_client() {
    let server = AskingServer::in_session();
    let crib = crib_of(&server);
    let (sink, mut updates) = mpsc::channel(8);
    let quiet = json!({"name": "ask", "arguments": {}});
    let able = call(&quiet).client(eliciting_client(1, Era::Session)).update_sink(std::sync::Arc::new(sink));
    let mut able = std::pin::pin!(crib.call(able));
    tokio::select! { biased; _ = &mut able => panic!("the call was answered"), () = settle() => {} }
    let unable = call(&asking(ELICIT, &json!({}))).client(client(2, Era::Session, "{}"));
    let outcome = crib.call(unable).await.unwrap();
    assert!(outcome.text().contains("several clients"), "{}", outcome.text());
    assert!(updates.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn suspended_call_frees_its_in_flight_slot() {
    let server = AskingServer::in_session();
    let limits = ServerLimits { in_flight: NonZero::new(2).unwrap(), ..ServerLimits::default() };
    let crib =
        Crib::builder().server(ServerSpec::in_process(id("a"), server).limits(limits)).build().unwrap();
    let params = asking(ELICIT, &json!({}));
    for n in 0..5 {
        let asked = crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
        assert_eq!(asked.to_value()["resultType"], "input_required", "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_request_state_is_passed_to_the_server() {
    let inner = crib_of(&AskingServer::in_session());
    let params = asking(ELICIT, &json!({}));
    let asked = inner.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    let server = AskingServer::stateless();
    let outer = crib_of(&server);
    let again = with_answers(params, &asked, &json!({"ask-1": {}}));
    // The scripted server does not know the state; only its arrival matters.
    let _ = tokio::time::timeout(
        Duration::from_secs(1),
        outer.call(call(&again).client(eliciting_client(1, Era::Stateless))),
    )
    .await;
    let sent = server.received_of("tools/call");
    assert_eq!(sent[0]["params"]["requestState"], again["requestState"]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_suspended_calls() {
    let crib = crib_of(&AskingServer::in_session());
    let params = asking(ELICIT, &json!({}));
    crib.call(call(&params).client(eliciting_client(1, Era::Stateless))).await.unwrap();
    let before = tokio::time::Instant::now();
    crib.shutdown(Duration::from_secs(1)).await;
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn client_error_to_a_request_fails_the_tool() {
    let crib = crib_of(&AskingServer::stateless());
    let (sink, mut updates) = mpsc::channel(8);
    let call = call(&asking(ELICIT, &json!({})))
        .client(eliciting_client(1, Era::Session))
        .update_sink(std::sync::Arc::new(sink));
    let (outcome, ()) = tokio::join!(crib.call(call), async {
        let Some(CallUpdate::Request(ask)) = updates.recv().await else { panic!("no request arrived") };
        ask.answer(ResponsePayload::Error(r#"{"code":-1,"message":"the user declined"}"#.into()));
    });
    let outcome = outcome.unwrap();
    assert!(outcome.is_error() && outcome.text().contains("the user declined"), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn answer_that_is_not_json_is_an_error_for_the_server() {
    for server in [AskingServer::in_session(), AskingServer::stateless()] {
        let crib = crib_of(&server);
        let (sink, mut updates) = mpsc::channel(8);
        let call = call(&asking(ELICIT, &json!({})))
            .client(eliciting_client(1, Era::Session))
            .update_sink(std::sync::Arc::new(sink));
        let (outcome, ()) = tokio::join!(crib.call(call), async {
            let Some(CallUpdate::Request(ask)) = updates.recv().await else { panic!("no request arrived") };
            ask.answer(ResponsePayload::Result(r#"{}},"name":"other","x":{"y":{}"#.into()));
        });
        assert!(outcome.unwrap().text().contains("not valid JSON"));
        let names: Vec<Value> =
            server.received_of("tools/call").iter().map(|call| call["params"]["name"].clone()).collect();
        assert!(names.iter().all(|name| name == "ask"), "{names:?}");
    }
}
