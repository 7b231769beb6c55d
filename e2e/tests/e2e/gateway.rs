//! Clients of both eras in front of servers of both eras, over HTTP and over pipes, all of them real processes.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, PipeClient, names, tools_of};
use test_support::gateway::{Gateway, Home};
use test_support::{process, wait_until};

const ERAS: [Era; 2] = [Era::Session, Era::Stateless];

/// A config with one fake server of each era.
fn both() -> String {
    let one =
        |era: &str| test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), era, &["--era", era]);
    one("session") + &one("stateless")
}

fn home() -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &both())
}

fn client(gateway: &Gateway, era: Era) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", era)
}

/// Every combination of client and server.
fn combinations() -> impl Iterator<Item = (Era, &'static str)> {
    ERAS.into_iter().flat_map(|era| ["session", "stateless"].map(|server| (era, server)))
}

#[test]
fn every_client_lists_and_calls_every_server() {
    let (home, mut answers) = (home(), Vec::new());
    let gateway = home.serve();
    for (era, server) in combinations() {
        let mut client = client(&gateway, era);
        let listed = client.request("tools/list", &json!({})).message();
        let tools = names(&listed);
        assert_eq!(tools.len(), tools_of(gateway.address, ["session", "stateless"]), "{tools:?}");
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
fn a_server_gets_only_what_its_own_era_has() {
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
fn progress_reaches_every_client_before_the_answer() {
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

/// How many calls the server was told to stop working on.
fn cancelled(client: &mut HttpClient, server: &str) -> usize {
    let text = client.text(&format!("{server}__cancelled"), &json!({}));
    serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().len()
}

fn in_flight(home: &Home, server: &str) -> u64 {
    let output = home.run(&["status", server, "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = status["servers"].as_array().map_or(&status, |servers| &servers[0]);
    found["in_flight"].as_u64().unwrap()
}

/// Sends a call that never ends, on a connection of its own; its end is dropped with what is returned.
fn hang(gateway: &Gateway, client: &HttpClient, server: &str, id: u64, era: Era) -> std::net::TcpStream {
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
fn a_stateless_client_cancels_by_hanging_up() {
    let home = home();
    let gateway = home.serve();
    for server in ["session", "stateless"] {
        let mut client = client(&gateway, Era::Stateless);
        assert_eq!(cancelled(&mut client, server), 0);
        let hanging = hang(&gateway, &client, server, 99, Era::Stateless);
        wait_until("the server works on it", || in_flight(&home, server) == 1);
        drop(hanging);
        wait_until("the server is told", || cancelled(&mut client, server) == 1);
        assert_eq!(in_flight(&home, server), 0);
    }
}

#[test]
fn whoever_hangs_up_with_more_to_say_than_anybody_reads_cancels_as_well() {
    use std::io::Write as _;
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Stateless);
    let mut hanging = hang(&gateway, &client, "session", 99, Era::Stateless);
    wait_until("the server works on it", || in_flight(&home, "session") == 1);
    hanging.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he").unwrap();
    drop(hanging);
    wait_until("the server is told", || cancelled(&mut client, "session") == 1);
    assert_eq!(in_flight(&home, "session"), 0);
}

#[test]
fn a_session_client_cancels_by_saying_so_and_not_by_hanging_up() {
    let home = home();
    let gateway = home.serve();
    for server in ["session", "stateless"] {
        let mut client = client(&gateway, Era::Session);
        assert_eq!(cancelled(&mut client, server), 0);
        let hanging = hang(&gateway, &client, server, 4711, Era::Session);
        wait_until("the server works on it", || in_flight(&home, server) == 1);
        drop(hanging);
        // Something else of the same client gets through meanwhile, and the call is still there.
        assert_eq!(cancelled(&mut client, server), 0);
        assert_eq!(in_flight(&home, server), 1);
        let told = client.notify("notifications/cancelled", &json!({"requestId": 4711, "reason": "enough"}));
        assert_eq!(told.status, 202);
        wait_until("the server is told", || cancelled(&mut client, server) == 1);
        assert_eq!(in_flight(&home, server), 0);
    }
}

#[test]
fn one_server_alone_keeps_its_own_names() {
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
    let nobody = test_support::http::request(gateway.address, "POST", "/mcp/s/nobody", &[], b"{}");
    assert_eq!(nobody.status, 404);
}

#[test]
fn results_and_arguments_pass_byte_for_byte_within_an_era() {
    let home = home();
    let gateway = home.serve();
    let odd = r#"{ "content":[ ],"n":1.10,"big":1e400,"x":12345678901234567890123,"é":"\u00e9\/" , "z":{"b":1,"a":[]} }"#;
    let arguments = format!(r#"{{"json":{} , "n":1.0,"__proto__":{{}}}}"#, json!(odd));
    let mut session = client(&gateway, Era::Session);
    let answer = session.raw("tools/call", Some("session__raw"), &format!(
        r#"{{"jsonrpc":"2.0","id":"a\u0062","method":"tools/call","params":{{"name":"session__raw","arguments":{arguments}}}}}"#
    ));
    assert_eq!(answer.text(), format!(r#"{{"jsonrpc":"2.0","id":"a\u0062","result":{odd}}}"#));
    let received = session.text("session__received", &json!({"a": 1}));
    assert!(received.contains(r#""arguments":{"a":1}"#), "{received}");
    let stateless = client(&gateway, Era::Stateless);
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let answer = stateless.raw("tools/call", Some("stateless__raw"), &format!(
        r#"{{"jsonrpc":"2.0","id":-7,"method":"tools/call","params":{{"name":"stateless__raw","arguments":{arguments},"_meta":{meta}}}}}"#
    ));
    assert_eq!(answer.text(), format!(r#"{{"jsonrpc":"2.0","id":-7,"result":{odd}}}"#));
}

#[test]
fn a_pipe_serves_both_eras_with_a_daemon_and_without() {
    for daemon in [false, true] {
        let home = home();
        let gateway = daemon.then(|| home.serve());
        for era in ERAS {
            let mut pipe = PipeClient::new(home.command(&["stdio"]), era);
            let tools = names(&pipe.request("tools/list", &json!({})));
            let of = |server: &str| tools.iter().filter(|name| name.starts_with(server)).count();
            assert_eq!((of("session__"), of("stateless__")), (tools.len() / 2, tools.len() / 2), "{tools:?}");
            for server in ["session", "stateless"] {
                assert_eq!(pipe.text(&format!("{server}__echo"), &json!({"text": "piped"})), "piped");
            }
            let children = process::children(pipe.pid());
            assert_eq!(children.len(), if daemon { 0 } else { 2 }, "daemon: {daemon}");
            pipe.hang_up();
            wait_until("it leaves", || pipe.has_ended());
            assert!(!children.iter().any(|child| process::is_alive(*child)));
        }
        if let Some(gateway) = gateway {
            assert_eq!(gateway.children().len(), 2);
        }
    }
}

/// The next message that is not about changed lists: servers that were never seen before are found out in between.
fn after_news(pipe: &mut PipeClient) -> Value {
    loop {
        let message = pipe.read().unwrap();
        if !message["method"].as_str().is_some_and(|method| method.ends_with("/list_changed")) {
            return message;
        }
    }
}

#[test]
fn a_pipe_tells_progress_and_takes_requests_back() {
    let home = home();
    for (era, server) in combinations() {
        let mut pipe = PipeClient::new(home.command(&["stdio"]), era);
        let params = json!({"name": format!("{server}__progress"), "arguments": {"steps": 2, "ms": 20}, "_meta": {"progressToken": 5}});
        let id = pipe.send("tools/call", &params);
        for step in 1..=2 {
            let progress = after_news(&mut pipe);
            assert_eq!(
                (&progress["params"]["progressToken"], &progress["params"]["progress"]),
                (&json!(5), &json!(step))
            );
        }
        assert_eq!(after_news(&mut pipe)["id"], id);
        let hanging = pipe.send("tools/call", &json!({"name": format!("{server}__hang"), "arguments": {}}));
        // Answers in order of what the server does, not of what was asked: this one overtakes.
        assert_eq!(pipe.text(&format!("{server}__cancelled"), &json!({})), "[]");
        pipe.write(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": hanging}})
                .to_string(),
        );
        wait_until("the server is told", || pipe.text(&format!("{server}__cancelled"), &json!({})) != "[]");
    }
}

#[test]
fn a_session_hears_of_changed_tools() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, Era::Session);
    assert_eq!(client.tools().len(), tools_of(gateway.address, ["session", "stateless"]));
    let mut news = client.bare("GET");
    assert_eq!(news.status, 200);
    assert_eq!(client.text("session__notify_list_changed", &json!({})), "changed");
    let changed = std::iter::from_fn(|| news.next_event());
    let mut changed = changed.map(|message| message["method"].as_str().unwrap().to_owned());
    // The other lists became known together with the tools, which is a change too.
    assert!(changed.any(|method| method == "notifications/tools/list_changed"));
    assert_eq!(client.tools().len(), 61);
}
