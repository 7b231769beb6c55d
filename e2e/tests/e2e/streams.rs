//! Messages beside the responses: server requests, resumed streams, notifications and subscriptions.

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient, count_tools, message};
use test_support::gateway::{GatewayProcess, Home};
use test_support::http::{self, Stream};

const ASK: &str = "elicitation/create";

fn home() -> Home {
    let server = |name, era| {
        test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, &["--era", era])
    };
    Home::new(env!("CARGO_BIN_EXE_crib"), &(server("old", "session") + &server("new", "stateless")))
}

fn client(gateway: &GatewayProcess, era: Era) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", era)
}

fn ask(server: &str) -> Value {
    json!({"name": format!("{server}__ask"), "arguments": {"method": ASK, "message": "sure?"}})
}

/// Sends a GET in a session, with `Last-Event-ID` if given.
fn get(gateway: &GatewayProcess, client: &HttpClient, after: Option<&str>) -> Stream {
    let mut headers = client.headers("", None);
    headers.extend(after.map(|id| ("Last-Event-ID".to_owned(), id.to_owned())));
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    http::open(gateway.address, "GET", "/mcp", &headers, b"")
}

/// Reads up to the next message with this method.
fn read_until(stream: &mut Stream, method: &str) -> Value {
    loop {
        let message = stream.next_event().unwrap_or_else(|| panic!("no {method} before the end"));
        if message["method"] == method {
            return message;
        }
    }
}

#[test]
fn cancelled_server_request_is_cancelled_at_the_client() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Session);
    let params = json!({"name": "old__ask", "arguments": {"method": ASK, "message": "never mind"}});
    let mut stream = client.open("tools/call", &params);
    let question = read_until(&mut stream, ASK);
    let cancelled = read_until(&mut stream, "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], question["id"], "{cancelled}");
    let result = stream.next_event().unwrap();
    assert_eq!(result["result"]["content"][0]["text"], "never mind", "{result}");
}

#[test]
fn session_client_is_asked_during_its_call() {
    let home = home();
    let gateway = home.serve();
    for server in ["old", "new"] {
        let mut client = client(&gateway, Era::Session);
        let mut stream = client.open("tools/call", &ask(server));
        let question = read_until(&mut stream, ASK);
        assert_eq!(question["params"]["message"], "sure?", "{question}");
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}});
        for _ in 0..2 {
            assert_eq!(
                client.post_raw("", None, &answer.to_string()).status,
                202,
                "the second one is ignored"
            );
        }
        let result = stream.next_event().unwrap();
        assert_eq!(result["result"]["content"][0]["text"], r#"{"action":"accept"}"#, "{result}");
        assert!(stream.next_event().is_none());
    }
}

#[test]
fn stdio_client_is_asked_during_its_call() {
    let home = home();
    for server in ["old", "new"] {
        let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Session);
        let id = pipe.send("tools/call", &ask(server));
        let question = loop {
            let message = pipe.read().unwrap();
            if message["method"] == ASK {
                break message;
            }
        };
        pipe.write(
            &json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}).to_string(),
        );
        let answer = loop {
            let message = pipe.read().unwrap();
            if message["id"] == id {
                break message;
            }
        };
        assert_eq!(answer["result"]["content"][0]["text"], r#"{"action":"decline"}"#, "{answer}");
    }
}

#[test]
fn client_without_event_streams_is_not_asked() {
    let home = home();
    let gateway = home.serve();
    let client = client(&gateway, Era::Session);
    let mut headers = client.headers("tools/call", None);
    headers.retain(|(name, _)| name != "Accept");
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let body = message(Era::Session, &json!(1), "tools/call", &ask("old")).to_string();
    let answer = http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes());
    let text = answer.message()["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert!(text.contains("does not support"), "{}", answer.text());
}

#[test]
fn stateless_client_is_asked_by_an_input_required_result() {
    let home = home();
    let gateway = home.serve();
    for server in ["old", "new"] {
        let mut client = client(&gateway, Era::Stateless);
        let capabilities =
            json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}});
        let mut params = ask(server);
        params["_meta"] = capabilities;
        let first = client.request_with_meta("tools/call", &params).message()["result"].clone();
        assert_eq!(first["resultType"], "input_required", "{first}");
        let (key, question) = first["inputRequests"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(question["params"]["message"], "sure?");
        params["inputResponses"] = json!({key: {"action": "accept"}});
        params["requestState"] = first["requestState"].clone();
        let last = client.request_with_meta("tools/call", &params).message();
        assert_eq!(last["result"]["content"][0]["text"], r#"{"action":"accept"}"#, "{last}");
    }
}

#[test]
fn broken_response_stream_is_resumed() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Session);
    let params =
        json!({"name": "old__progress", "arguments": {"steps": 3, "ms": 100}, "_meta": {"progressToken": 1}});
    let mut stream = client.open("tools/call", &params);
    let id = client.last_id();
    assert_eq!(stream.next_event().unwrap()["params"]["progress"], 1);
    let first = stream.ids.first().cloned().unwrap();
    let seen = stream.ids.last().cloned().unwrap();
    drop(stream);
    let mut rest = get(&gateway, &client, Some(&seen));
    for step in 2..=3 {
        assert_eq!(rest.next_event().unwrap()["params"]["progress"], step);
    }
    assert_eq!(rest.next_event().unwrap()["id"], id);
    assert!(rest.next_event().is_none(), "only that stream is resumed");
    let mut all = get(&gateway, &client, Some(&first));
    assert_eq!(std::iter::from_fn(|| all.next_event()).count(), 4, "the first event was empty");
    for unknown in ["999-0", "nonsense", "1"] {
        assert_eq!(get(&gateway, &client, Some(unknown)).status, 400, "{unknown}");
    }
}

#[test]
fn progress_right_before_the_result_is_not_lost() {
    let home = home();
    let gateway = home.serve();
    // Clients with and without elicitation take different code paths.
    for capabilities in [json!({"elicitation": {}}), json!({})] {
        for server in ["old", "new"] {
            let mut client = client(&gateway, Era::Stateless);
            for round in 0..50 {
                let meta = json!({"progressToken": round, "io.modelcontextprotocol/clientCapabilities": capabilities});
                let arguments = json!({"steps": 2, "ms": 0});
                let params =
                    json!({"name": format!("{server}__progress"), "arguments": arguments, "_meta": meta});
                let messages = client.request_with_meta("tools/call", &params).messages();
                let steps: Vec<&Value> =
                    messages.iter().map(|message| &message["params"]["progress"]).collect();
                assert_eq!(steps, [&json!(1), &json!(2), &Value::Null], "{capabilities} {server} {round}");
            }
        }
    }
}

#[test]
fn second_get_stream_of_a_session_is_refused() {
    let home = home();
    let gateway = home.serve();
    let client = client(&gateway, Era::Session);
    let stream = get(&gateway, &client, None);
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers.iter().find(|(name, _)| name == "x-accel-buffering").unwrap().1, "no");
    assert_eq!(get(&gateway, &client, None).status, 409);
    drop(stream);
    test_support::wait_until("the stream is free again", || get(&gateway, &client, None).status == 200);
}

#[test]
fn session_is_notified_of_subscribed_resources() {
    let home = home();
    let gateway = home.serve();
    for server in ["old", "new"] {
        let mut client = client(&gateway, Era::Session);
        let uri = format!("toolcrib://{server}/note%3A%2F%2Fone");
        let mut stream = get(&gateway, &client, None);
        let subscribed = client.request("resources/subscribe", &json!({"uri": uri})).message();
        assert_eq!(subscribed["result"], json!({}), "{subscribed}");
        assert_eq!(client.text(&format!("{server}__update"), &json!({"uri": "note://one"})), "1");
        let notification = read_until(&mut stream, "notifications/resources/updated");
        assert_eq!(notification["params"], json!({"uri": uri}));
        assert_eq!(
            client.request("resources/unsubscribe", &json!({"uri": uri})).message()["result"],
            json!({})
        );
    }
}

#[test]
fn listen_stream_carries_only_what_was_requested() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Stateless);
    assert_eq!(client.tools().len(), count_tools(gateway.address, ["old", "new"]));
    let requested = json!({"toolsListChanged": true, "resourceSubscriptions": ["toolcrib://new/note%3A%2F%2Fone"], "taskIds": ["x"]});
    let mut stream = client.open("subscriptions/listen", &json!({"notifications": requested}));
    let id = client.last_id();
    let first = stream.next_event().unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    let accepted =
        json!({"toolsListChanged": true, "resourceSubscriptions": ["toolcrib://new/note%3A%2F%2Fone"]});
    assert_eq!(first["params"]["notifications"], accepted);
    assert_eq!(client.text("new__update", &json!({"uri": "note://one"})), "1");
    let updated = stream.next_event().unwrap();
    assert_eq!(updated["method"], "notifications/resources/updated", "{updated}");
    assert_eq!(client.text("old__notify_list_changed", &json!({})), "changed");
    let changed = stream.next_event().unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed", "{changed}");
    for message in [&first, &updated, &changed] {
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id, "{message}");
    }
    let empty = client.request("subscriptions/listen", &json!({"notifications": {}})).messages();
    assert_eq!(empty.len(), 2, "{empty:?}");
    assert_eq!(empty[0]["params"]["notifications"], json!({}));
    assert_eq!(empty[1]["result"]["resultType"], "complete");
    let refused = client.request("subscriptions/listen", &json!({}));
    assert_eq!(refused.code(), Some(-32602), "{}", refused.text());
}

#[test]
fn stdio_listens_until_the_subscription_is_cancelled() {
    let home = home();
    let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Stateless);
    assert_eq!(pipe.text("old__echo", &json!({"text": "hi"})), "hi");
    let id = pipe.send("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    let first = pipe.read().unwrap();
    assert_eq!(first["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id, "{first}");
    let changing = pipe.send("tools/call", &json!({"name": "old__notify_list_changed", "arguments": {}}));
    let two = [pipe.read().unwrap(), pipe.read().unwrap()];
    assert!(two.iter().any(|message| message["id"] == changing), "{two:?}");
    assert!(two.iter().any(|message| message["method"] == "notifications/tools/list_changed"), "{two:?}");
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    pipe.write(&cancelled.to_string());
    // A second stream is notified of the next change; the first one has ended by then.
    let other = pipe.send("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    pipe.send("tools/call", &json!({"name": "old__notify_list_changed", "arguments": {}}));
    let subscription = |message: &Value| {
        let changed = message["method"] == "notifications/tools/list_changed";
        changed.then(|| message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone())
    };
    let mut notified = Vec::new();
    while !notified.contains(&json!(other)) {
        notified.extend(subscription(&pipe.read().unwrap()));
    }
    let last = pipe.send("tools/call", &json!({"name": "old__echo", "arguments": {"text": "hi"}}));
    loop {
        let message = pipe.read().unwrap();
        notified.extend(subscription(&message));
        assert_ne!(message["id"], id, "a cancelled request gets no response: {message}");
        if message["id"] == last {
            break;
        }
    }
    assert_eq!(notified, [json!(other)], "only the second stream is notified");
}

fn batch() -> Value {
    json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "old__echo", "arguments": {"text": "b"}}},
        {"jsonrpc": "2.0", "id": 3},
    ])
}

#[test]
fn stdio_accepts_batches_only_in_2025_03_26() {
    let home = home();
    let mut old = StdioClient::session(home.command(&["stdio"]), "2025-03-26");
    old.write(&batch().to_string());
    let answers = loop {
        let message = old.read().unwrap();
        if message.is_array() {
            break message;
        }
    };
    assert_eq!(answers.as_array().unwrap().len(), 3, "{answers}");
    assert_eq!(answers[0], json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    assert_eq!(answers[1]["result"]["content"][0]["text"], "b");
    assert_eq!(answers[2]["error"]["code"], -32600);
    old.write(&json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]).to_string());
    assert_eq!(
        old.request("ping", &json!({}))["result"],
        json!({}),
        "a batch of notifications has no response"
    );
    for era in [Era::Session, Era::Stateless] {
        let mut new = StdioClient::new(home.command(&["stdio"]), era);
        new.write(&batch().to_string());
        let refused = new.read().unwrap();
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(null), &json!(-32600)), "{refused}");
    }
}

#[test]
fn http_accepts_batches_only_in_2025_03_26() {
    let home = home();
    let gateway = home.serve();
    let batch = batch();
    let old = HttpClient::session(gateway.address, "/mcp", "2025-03-26");
    let answers = old.post_raw_with_revision("2025-03-26", &batch.to_string());
    let answers: Value = serde_json::from_slice(&answers.body).unwrap();
    assert_eq!(answers.as_array().unwrap().len(), 3, "{answers}");
    assert_eq!(answers[1]["result"]["content"][0]["text"], "b");
    assert_eq!(answers[2]["error"]["code"], -32600);
    let notifications = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    assert_eq!(old.post_raw_with_revision("2025-03-26", &notifications.to_string()).status, 202);
    let new = client(&gateway, Era::Session);
    assert_eq!(new.post_raw("", None, &batch.to_string()).status, 400);
}
