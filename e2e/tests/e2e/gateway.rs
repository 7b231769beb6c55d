//! Clients of both eras in front of servers of both eras, over HTTP and over pipes.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient, count_tools, tool_names};
use test_support::gateway::{GatewayProcess, Home};
use test_support::{process, wait_until};

const ERAS: [Era; 2] = [Era::Session, Era::Stateless];

/// Returns a config with one fake server of each era.
fn both_eras() -> String {
    let server = |era: &str| {
        test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), era, &["--era", era])
    };
    server("session") + &server("stateless")
}

fn home() -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &both_eras())
}

fn client(gateway: &GatewayProcess, era: Era) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", era)
}

/// Returns every combination of client era and server era.
fn combinations() -> impl Iterator<Item = (Era, &'static str)> {
    ERAS.into_iter().flat_map(|era| ["session", "stateless"].map(|server| (era, server)))
}

#[test]
fn every_client_lists_and_calls_every_server() {
    let home = home();
    let mut answers = Vec::new();
    let gateway = home.serve();
    for (era, server) in combinations() {
        let mut client = client(&gateway, era);
        let listed = client.request("tools/list", &json!({})).message();
        let tools = tool_names(&listed);
        assert_eq!(tools.len(), count_tools(gateway.address, ["session", "stateless"]), "{tools:?}");
        assert!(tools.contains(&format!("{server}__echo")), "{tools:?}");
        assert_eq!(listed["result"]["resultType"].is_null(), era == Era::Session, "{listed}");
        let answer = client.call(&format!("{server}__echo"), &json!({"text": "hello"}));
        assert_eq!(answer["result"]["content"][0]["text"], "hello", "{era:?} {server}: {answer}");
        let expected = if era == Era::Stateless { json!("complete") } else { Value::Null };
        assert_eq!(answer["result"]["resultType"], expected, "{era:?} {server}: {answer}");
        answers.push(client.text(&format!("{server}__pid"), &json!({})));
    }
    assert_eq!(answers[0], answers[2], "all clients share one process");
    assert_eq!(gateway.children().len(), 2);
}

#[test]
fn server_receives_only_members_of_its_own_era() {
    let home = home();
    let gateway = home.serve();
    for (era, server) in combinations() {
        let mut client = client(&gateway, era);
        let params =
            json!({"name": format!("{server}__received"), "arguments": {}, "_meta": {"traceparent": "00-1"}});
        let answer = client.request("tools/call", &params).message();
        let received = answer["result"]["content"][0]["text"].as_str().unwrap();
        let received: Value = serde_json::from_str(received).unwrap();
        let revision = &received["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        assert_eq!(revision.is_null(), server == "session", "{era:?} {received}");
        assert_eq!(received["params"]["_meta"]["traceparent"], "00-1", "{era:?} {received}");
        assert_eq!(received["params"]["name"], "received");
    }
}

#[test]
fn progress_arrives_before_the_response() {
    let home = home();
    let gateway = home.serve();
    for (era, server) in combinations() {
        let mut client = client(&gateway, era);
        let arguments = json!({"steps": 4, "ms": 30});
        let params = json!({"name": format!("{server}__progress"), "arguments": arguments, "_meta": {"progressToken": "mine"}});
        let response = client.request("tools/call", &params);
        let messages = response.messages();
        assert_eq!(response.header("content-type"), Some("text/event-stream"), "{era:?} {server}");
        assert_eq!(messages.len(), 5, "{era:?} {server}: {messages:?}");
        for (step, message) in messages[..4].iter().enumerate() {
            assert_eq!(message["method"], "notifications/progress");
            assert_eq!(message["params"]["progressToken"], "mine");
            assert_eq!(message["params"]["progress"], step + 1);
        }
        assert_eq!(messages[4]["id"], client.last_id());
        assert_eq!(messages[4]["result"]["content"][0]["text"], "4 steps");
    }
}

/// Returns how many calls were cancelled at the server.
fn count_cancelled(client: &mut HttpClient, server: &str) -> usize {
    let text = client.text(&format!("{server}__cancelled"), &json!({}));
    serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().len()
}

fn in_flight(home: &Home, server: &str) -> u64 {
    let output = home.run(&["status", server, "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = status["servers"].as_array().map_or(&status, |servers| &servers[0]);
    found["in_flight"].as_u64().unwrap()
}

/// Sends a call that never ends on its own connection, which ends when the returned stream is dropped.
fn hang(
    gateway: &GatewayProcess,
    client: &HttpClient,
    server: &str,
    id: u64,
    era: Era,
) -> std::net::TcpStream {
    use std::io::Write as _;
    let name = format!("{server}__hang");
    let params = json!({"name": name, "arguments": {}});
    let body = test_support::client::message(era, &id.into(), "tools/call", &params).to_string();
    let mut head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n",
        gateway.address,
        body.len()
    );
    match &client.session {
        Some(session) => head.push_str(&format!("Mcp-Session-Id: {session}\r\n")),
        None => head.push_str(&format!(
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {name}\r\n"
        )),
    }
    let mut stream = std::net::TcpStream::connect(gateway.address).unwrap();
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    stream
}

#[test]
fn disconnect_of_a_stateless_client_cancels_the_call() {
    let home = home();
    let gateway = home.serve();
    for server in ["session", "stateless"] {
        let mut client = client(&gateway, Era::Stateless);
        assert_eq!(count_cancelled(&mut client, server), 0);
        let hanging = hang(&gateway, &client, server, 99, Era::Stateless);
        wait_until("the call is in flight", || in_flight(&home, server) == 1);
        drop(hanging);
        wait_until("the call is cancelled", || count_cancelled(&mut client, server) == 1);
        assert_eq!(in_flight(&home, server), 0);
    }
}

#[test]
fn disconnect_with_pipelined_requests_cancels_the_call() {
    use std::io::Write as _;
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Stateless);
    let mut hanging = hang(&gateway, &client, "session", 99, Era::Stateless);
    wait_until("the call is in flight", || in_flight(&home, "session") == 1);
    hanging.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he").unwrap();
    drop(hanging);
    wait_until("the call is cancelled", || count_cancelled(&mut client, "session") == 1);
    assert_eq!(in_flight(&home, "session"), 0);
}

#[test]
fn session_client_cancels_by_notification_not_by_disconnect() {
    let home = home();
    let gateway = home.serve();
    for server in ["session", "stateless"] {
        let mut client = client(&gateway, Era::Session);
        assert_eq!(count_cancelled(&mut client, server), 0);
        let hanging = hang(&gateway, &client, server, 4711, Era::Session);
        wait_until("the call is in flight", || in_flight(&home, server) == 1);
        drop(hanging);
        // The call is still in flight after another request of the same client.
        assert_eq!(count_cancelled(&mut client, server), 0);
        assert_eq!(in_flight(&home, server), 1);
        let accepted =
            client.notify("notifications/cancelled", &json!({"requestId": 4711, "reason": "enough"}));
        assert_eq!(accepted.status, 202);
        wait_until("the call is cancelled", || count_cancelled(&mut client, server) == 1);
        assert_eq!(in_flight(&home, server), 0);
    }
}

#[test]
fn endpoint_of_one_server_keeps_its_tool_names() {
    let home = home();
    let gateway = home.serve();
    for (era, server) in combinations() {
        let mut client = HttpClient::new(gateway.address, &format!("/mcp/s/{server}"), era);
        let tools = client.tools();
        assert_eq!((tools.len(), tools[0].as_str()), (30, "echo"), "{tools:?}");
        assert_eq!(client.text("echo", &json!({"text": "own"})), "own");
        let unknown = client.request("tools/call", &json!({"name": "session__echo", "arguments": {}}));
        assert_eq!(unknown.code(), Some(-32602), "{}", unknown.text());
    }
    let unknown = test_support::http::request(gateway.address, "POST", "/mcp/s/unknown", &[], b"{}");
    assert_eq!(unknown.status, 404);
}

#[test]
fn results_and_arguments_pass_byte_for_byte_within_an_era() {
    let home = home();
    let gateway = home.serve();
    let unusual = r#"{ "content":[ ],"n":1.10,"big":1e400,"x":12345678901234567890123,"é":"\u00e9\/" , "z":{"b":1,"a":[]} }"#;
    let arguments = format!(r#"{{"json":{} , "n":1.0,"__proto__":{{}}}}"#, json!(unusual));
    let mut session = client(&gateway, Era::Session);
    let answer = session.post_raw("tools/call", Some("session__raw"), &format!(
        r#"{{"jsonrpc":"2.0","id":"a\u0062","method":"tools/call","params":{{"name":"session__raw","arguments":{arguments}}}}}"#
    ));
    assert_eq!(answer.text(), format!(r#"{{"jsonrpc":"2.0","id":"a\u0062","result":{unusual}}}"#));
    let received = session.text("session__received", &json!({"a": 1}));
    assert!(received.contains(r#""arguments":{"a":1}"#), "{received}");
    let stateless = client(&gateway, Era::Stateless);
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let answer = stateless.post_raw("tools/call", Some("stateless__raw"), &format!(
        r#"{{"jsonrpc":"2.0","id":-7,"method":"tools/call","params":{{"name":"stateless__raw","arguments":{arguments},"_meta":{meta}}}}}"#
    ));
    assert_eq!(answer.text(), format!(r#"{{"jsonrpc":"2.0","id":-7,"result":{unusual}}}"#));
}

#[test]
fn stdio_serves_both_eras_with_and_without_a_gateway() {
    for with_gateway in [false, true] {
        let home = home();
        let gateway = with_gateway.then(|| home.serve());
        for era in ERAS {
            let mut pipe = StdioClient::new(home.command(&["stdio"]), era);
            let tools = tool_names(&pipe.request("tools/list", &json!({})));
            let count = |server: &str| tools.iter().filter(|name| name.starts_with(server)).count();
            assert_eq!(
                (count("session__"), count("stateless__")),
                (tools.len() / 2, tools.len() / 2),
                "{tools:?}"
            );
            for server in ["session", "stateless"] {
                assert_eq!(pipe.text(&format!("{server}__echo"), &json!({"text": "piped"})), "piped");
            }
            let children = process::server_children(pipe.pid());
            assert_eq!(children.len(), if with_gateway { 0 } else { 2 }, "with a gateway: {with_gateway}");
            pipe.close_input();
            wait_until("it exits", || pipe.has_ended());
            assert!(!children.iter().any(|child| process::is_alive(*child)));
        }
        if let Some(gateway) = gateway {
            assert_eq!(gateway.children().len(), 2);
        }
    }
}

/// Reads the next message that is not about a changed list. Servers are discovered in the background.
fn read_skipping_list_changes(pipe: &mut StdioClient) -> Value {
    loop {
        let message = pipe.read().unwrap();
        if !message["method"].as_str().is_some_and(|method| method.ends_with("/list_changed")) {
            return message;
        }
    }
}

#[test]
fn stdio_forwards_progress_and_cancellation() {
    let home = home();
    for (era, server) in combinations() {
        let mut pipe = StdioClient::new(home.command(&["stdio"]), era);
        let params = json!({"name": format!("{server}__progress"), "arguments": {"steps": 2, "ms": 20}, "_meta": {"progressToken": 5}});
        let id = pipe.send("tools/call", &params);
        for step in 1..=2 {
            let progress = read_skipping_list_changes(&mut pipe);
            assert_eq!(
                (&progress["params"]["progressToken"], &progress["params"]["progress"]),
                (&json!(5), &json!(step))
            );
        }
        assert_eq!(read_skipping_list_changes(&mut pipe)["id"], id);
        let hanging = pipe.send("tools/call", &json!({"name": format!("{server}__hang"), "arguments": {}}));
        // This response overtakes the one before it.
        assert_eq!(pipe.text(&format!("{server}__cancelled"), &json!({})), "[]");
        pipe.write(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": hanging}})
                .to_string(),
        );
        wait_until("the call is cancelled", || {
            pipe.text(&format!("{server}__cancelled"), &json!({})) != "[]"
        });
    }
}

#[test]
fn session_is_notified_of_changed_tools() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Session);
    assert_eq!(client.tools().len(), count_tools(gateway.address, ["session", "stateless"]));
    let mut stream = client.send_without_body("GET");
    assert_eq!(stream.status, 200);
    assert_eq!(client.text("session__notify_list_changed", &json!({})), "changed");
    let events = std::iter::from_fn(|| stream.next_event());
    let mut methods = events.map(|message| message["method"].as_str().unwrap().to_owned());
    // The other lists were discovered together with the tools, which is a change too.
    assert!(methods.any(|method| method == "notifications/tools/list_changed"));
    assert_eq!(client.tools().len(), 61);
}
