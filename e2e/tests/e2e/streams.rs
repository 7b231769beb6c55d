//! What clients hear beside their answers: questions, replayed streams, news, and streams that they open for changes.

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, PipeClient, message, tools_of};
use test_support::gateway::{Gateway, Home};
use test_support::http::{self, Stream};

const ASK: &str = "elicitation/create";

fn home() -> Home {
    let server =
        |name, era| test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), name, &["--era", era]);
    Home::new(env!("CARGO_BIN_EXE_crib"), &(server("old", "session") + &server("new", "stateless")))
}

fn client(gateway: &Gateway, era: Era) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", era)
}

fn ask(server: &str) -> Value {
    json!({"name": format!("{server}__ask"), "arguments": {"method": ASK, "message": "sure?"}})
}

/// A GET in a session, after an event if one is named.
fn get(gateway: &Gateway, client: &HttpClient, after: Option<&str>) -> Stream {
    let mut headers = client.headers("", None);
    headers.extend(after.map(|id| ("Last-Event-ID".to_owned(), id.to_owned())));
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    http::open(gateway.address, "GET", "/mcp", &headers, b"")
}

/// The next message whose method is this one.
fn next(stream: &mut Stream, method: &str) -> Value {
    loop {
        let message = stream.next_event().unwrap_or_else(|| panic!("no {method} before the end"));
        if message["method"] == method {
            return message;
        }
    }
}

#[test]
fn a_question_that_its_server_takes_back_is_taken_back_from_its_client() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Session);
    let params = json!({"name": "old__ask", "arguments": {"method": ASK, "message": "never mind"}});
    let mut stream = client.open("tools/call", &params);
    let question = next(&mut stream, ASK);
    let cancelled = next(&mut stream, "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], question["id"], "{cancelled}");
    let result = stream.next_event().unwrap();
    assert_eq!(result["result"]["content"][0]["text"], "never mind", "{result}");
}

#[test]
fn a_session_is_asked_in_the_middle_of_its_call() {
    let home = home();
    let gateway = home.serve();
    for server in ["old", "new"] {
        let mut client = client(&gateway, Era::Session);
        let mut stream = client.open("tools/call", &ask(server));
        let question = next(&mut stream, ASK);
        assert_eq!(question["params"]["message"], "sure?", "{question}");
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}});
        for _ in 0..2 {
            assert_eq!(client.raw("", None, &answer.to_string()).status, 202, "the second is for nobody");
        }
        let result = stream.next_event().unwrap();
        assert_eq!(result["result"]["content"][0]["text"], r#"{"action":"accept"}"#, "{result}");
        assert!(stream.next_event().is_none());
    }
}

#[test]
fn a_pipe_is_asked_in_the_middle_of_its_call() {
    let home = home();
    for server in ["old", "new"] {
        let mut pipe = PipeClient::new(home.command(&["stdio"]), Era::Session);
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
fn a_client_that_takes_no_events_is_not_asked() {
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
    assert!(text.contains("cannot be asked"), "{}", answer.text());
}

#[test]
fn a_stateless_client_is_asked_by_an_answer() {
    let home = home();
    let gateway = home.serve();
    for server in ["old", "new"] {
        let mut client = client(&gateway, Era::Stateless);
        let able = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}});
        let mut params = ask(server);
        params["_meta"] = able;
        let first = client.request_as_written("tools/call", &params).message()["result"].clone();
        assert_eq!(first["resultType"], "input_required", "{first}");
        let (key, question) = first["inputRequests"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(question["params"]["message"], "sure?");
        params["inputResponses"] = json!({key: {"action": "accept"}});
        params["requestState"] = first["requestState"].clone();
        let last = client.request_as_written("tools/call", &params).message();
        assert_eq!(last["result"]["content"][0]["text"], r#"{"action":"accept"}"#, "{last}");
    }
}

#[test]
fn an_answer_whose_connection_broke_is_read_again() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Session);
    let params =
        json!({"name": "old__progress", "arguments": {"steps": 3, "ms": 100}, "_meta": {"progressToken": 1}});
    let mut stream = client.open("tools/call", &params);
    let id = client.last_id();
    assert_eq!(stream.next_event().unwrap()["params"]["progress"], 1);
    let (first, seen) = (stream.ids.first().cloned().unwrap(), stream.ids.last().cloned().unwrap());
    drop(stream);
    let mut rest = get(&gateway, &client, Some(&seen));
    for step in 2..=3 {
        assert_eq!(rest.next_event().unwrap()["params"]["progress"], step);
    }
    assert_eq!(rest.next_event().unwrap()["id"], id);
    assert!(rest.next_event().is_none(), "that stream and nothing else");
    let mut all = get(&gateway, &client, Some(&first));
    assert_eq!(std::iter::from_fn(|| all.next_event()).count(), 4, "the first event was empty");
    for unknown in ["999-0", "nonsense", "1"] {
        assert_eq!(get(&gateway, &client, Some(unknown)).status, 400, "{unknown}");
    }
}

#[test]
fn what_is_told_right_before_the_answer_is_told() {
    let home = home();
    let gateway = home.serve();
    // A client that can be asked and one that cannot take different ways.
    for able in [json!({"elicitation": {}}), json!({})] {
        for server in ["old", "new"] {
            let mut client = client(&gateway, Era::Stateless);
            for round in 0..50 {
                let meta =
                    json!({"progressToken": round, "io.modelcontextprotocol/clientCapabilities": able});
                let arguments = json!({"steps": 2, "ms": 0});
                let params =
                    json!({"name": format!("{server}__progress"), "arguments": arguments, "_meta": meta});
                let messages = client.request_as_written("tools/call", &params).messages();
                let steps: Vec<&Value> =
                    messages.iter().map(|message| &message["params"]["progress"]).collect();
                assert_eq!(steps, [&json!(1), &json!(2), &Value::Null], "{able} {server} {round}");
            }
        }
    }
}

#[test]
fn only_one_stream_of_news_is_read_at_a_time() {
    let home = home();
    let gateway = home.serve();
    let client = client(&gateway, Era::Session);
    let news = get(&gateway, &client, None);
    assert_eq!(news.status, 200);
    assert_eq!(news.headers.iter().find(|(name, _)| name == "x-accel-buffering").unwrap().1, "no");
    assert_eq!(get(&gateway, &client, None).status, 409);
    drop(news);
    test_support::wait_until("the place is free again", || get(&gateway, &client, None).status == 200);
}

#[test]
fn a_session_hears_of_the_resources_it_subscribed_to() {
    let home = home();
    let gateway = home.serve();
    for server in ["old", "new"] {
        let mut client = client(&gateway, Era::Session);
        let uri = format!("toolcrib://{server}/note%3A%2F%2Fone");
        let mut news = get(&gateway, &client, None);
        let done = client.request("resources/subscribe", &json!({"uri": uri})).message();
        assert_eq!(done["result"], json!({}), "{done}");
        assert_eq!(client.text(&format!("{server}__update"), &json!({"uri": "note://one"})), "1");
        let told = next(&mut news, "notifications/resources/updated");
        assert_eq!(told["params"], json!({"uri": uri}));
        assert_eq!(
            client.request("resources/unsubscribe", &json!({"uri": uri})).message()["result"],
            json!({})
        );
    }
}

#[test]
fn a_stateless_client_hears_what_it_listens_for_and_nothing_else() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Stateless);
    assert_eq!(client.tools().len(), tools_of(gateway.address, ["old", "new"]));
    let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": ["toolcrib://new/note%3A%2F%2Fone"], "taskIds": ["x"]});
    let mut stream = client.open("subscriptions/listen", &json!({"notifications": wanted}));
    let id = client.last_id();
    let first = stream.next_event().unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    let taken =
        json!({"toolsListChanged": true, "resourceSubscriptions": ["toolcrib://new/note%3A%2F%2Fone"]});
    assert_eq!(first["params"]["notifications"], taken);
    assert_eq!(client.text("new__update", &json!({"uri": "note://one"})), "1");
    let updated = stream.next_event().unwrap();
    assert_eq!(updated["method"], "notifications/resources/updated", "{updated}");
    assert_eq!(client.text("old__notify_list_changed", &json!({})), "changed");
    let changed = stream.next_event().unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed", "{changed}");
    for message in [&first, &updated, &changed] {
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id, "{message}");
    }
    let nothing = client.request("subscriptions/listen", &json!({"notifications": {}})).messages();
    assert_eq!(nothing.len(), 2, "{nothing:?}");
    assert_eq!(nothing[0]["params"]["notifications"], json!({}));
    assert_eq!(nothing[1]["result"]["resultType"], "complete");
    let refused = client.request("subscriptions/listen", &json!({}));
    assert_eq!(refused.code(), Some(-32602), "{}", refused.text());
}

#[test]
fn a_pipe_listens_until_it_takes_that_back() {
    let home = home();
    let mut pipe = PipeClient::new(home.command(&["stdio"]), Era::Stateless);
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
    // Another stream tells when the next change is known, which takes a while; the first one is over by then.
    let other = pipe.send("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    pipe.send("tools/call", &json!({"name": "old__notify_list_changed", "arguments": {}}));
    let told = |message: &Value| {
        let changed = message["method"] == "notifications/tools/list_changed";
        changed.then(|| message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone())
    };
    let mut heard = Vec::new();
    while !heard.contains(&json!(other)) {
        heard.extend(told(&pipe.read().unwrap()));
    }
    let last = pipe.send("tools/call", &json!({"name": "old__echo", "arguments": {"text": "hi"}}));
    loop {
        let message = pipe.read().unwrap();
        heard.extend(told(&message));
        assert_ne!(message["id"], id, "what was taken back gets no answer: {message}");
        if message["id"] == last {
            break;
        }
    }
    assert_eq!(heard, [json!(other)], "only who still listens is told");
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
fn a_pipe_takes_batches_in_the_revision_that_had_them() {
    let home = home();
    let mut old = PipeClient::session(home.command(&["stdio"]), "2025-03-26");
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
    assert_eq!(old.request("ping", &json!({}))["result"], json!({}), "nothing is answered with nothing");
    for era in [Era::Session, Era::Stateless] {
        let mut new = PipeClient::new(home.command(&["stdio"]), era);
        new.write(&batch().to_string());
        let refused = new.read().unwrap();
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(null), &json!(-32600)), "{refused}");
    }
}

#[test]
fn batches_are_answered_in_the_revision_that_had_them() {
    let home = home();
    let gateway = home.serve();
    let batch = batch();
    let old = HttpClient::session(gateway.address, "/mcp", "2025-03-26");
    let answers = old.raw_of("2025-03-26", &batch.to_string());
    let answers: Value = serde_json::from_slice(&answers.body).unwrap();
    assert_eq!(answers.as_array().unwrap().len(), 3, "{answers}");
    assert_eq!(answers[1]["result"]["content"][0]["text"], "b");
    assert_eq!(answers[2]["error"]["code"], -32600);
    let told = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    assert_eq!(old.raw_of("2025-03-26", &told.to_string()).status, 202);
    let new = client(&gateway, Era::Session);
    assert_eq!(new.raw("", None, &batch.to_string()).status, 400);
}
