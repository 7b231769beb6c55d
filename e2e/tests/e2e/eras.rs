//! The era of a server follows the client that uses it.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

mod remote_server;

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient};
use test_support::gateway::{GatewayProcess, Home, server_config};
use test_support::wait_until;

use remote_server::{RemoteServer, Speaks};

const ASK: &str = "elicitation/create";

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

/// Returns the config of a server `s` that runs as a process and speaks this era.
fn process(era: &str, more: &str) -> String {
    server_config(env!("CARGO_BIN_EXE_fake-server"), "s", &["--era", era]) + more
}

fn client(gateway: &GatewayProcess, era: Era) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", era)
}

fn status(home: &Home) -> Value {
    serde_json::from_slice(&home.run(&["status", "s", "--json"]).stdout).unwrap()
}

/// Returns the era in which the server process `s` got a call.
fn era_of_process(client: &mut HttpClient) -> &'static str {
    let received = client.text("s__received", &json!({}));
    if received.contains("io.modelcontextprotocol/protocolVersion") { "stateless" } else { "session" }
}

/// Asks a client in a session, which answers, and returns the text of the result. The arguments go to the tool `s__ask`.
fn ask_in_session(client: &mut HttpClient, arguments: &Value) -> String {
    let mut stream = client.open("tools/call", &json!({"name": "s__ask", "arguments": arguments}));
    let mut next = || stream.next_event().unwrap();
    let mut message = next();
    if message["method"].is_string() {
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept"}});
        assert_eq!(client.post_raw("", None, &answer.to_string()).status, 202);
        message = next();
    }
    message["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned()
}

fn ask_params(arguments: &Value) -> Value {
    let capabilities = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}});
    json!({"name": "s__ask", "arguments": arguments, "_meta": capabilities})
}

/// Asks a stateless client, which repeats its call with the answer, and returns the text of the result.
fn ask_stateless(client: &mut HttpClient, arguments: &Value) -> String {
    let mut params = ask_params(arguments);
    let first = client.request_with_meta("tools/call", &params).message();
    let result = &first["result"];
    assert_eq!(result["resultType"], "input_required", "{first}");
    let (key, _) = result["inputRequests"].as_object().unwrap().iter().next().unwrap();
    params["inputResponses"] = json!({key: {"action": "accept"}});
    params["requestState"] = result["requestState"].clone();
    let last = client.request_with_meta("tools/call", &params).message();
    last["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{last}")).to_owned()
}

const ACCEPTED: &str = r#"{"action":"accept"}"#;

/// Arguments for a question that the server process can only ask in a session.
fn by_request() -> Value {
    json!({"method": ASK, "message": "sure?", "via": "request"})
}

/// Arguments for a question that the server process can only ask a stateless client.
fn by_result() -> Value {
    json!({"method": ASK, "message": "sure?", "via": "result"})
}

/// Returns a home whose gateway starts no server before a client needs it.
fn idle_home(config: &str) -> Home {
    home(&format!("{config}[limits]\nlisting-wait = '20s'\nfirst-listing-wait = '0s'\n"))
}

#[test]
fn process_is_started_in_the_era_of_the_client() {
    for lists_first in [false, true] {
        let home_of_session = idle_home(&process("both", ""));
        let gateway = home_of_session.serve();
        let mut session = client(&gateway, Era::Session);
        if lists_first {
            session.tools();
        }
        assert_eq!(ask_in_session(&mut session, &by_request()), ACCEPTED);
        assert_eq!(status(&home_of_session)["era"], "legacy");

        let home_of_stateless = idle_home(&process("both", ""));
        let gateway = home_of_stateless.serve();
        let mut stateless = client(&gateway, Era::Stateless);
        if lists_first {
            stateless.tools();
        }
        assert_eq!(ask_stateless(&mut stateless, &by_result()), ACCEPTED);
        assert_eq!(status(&home_of_stateless)["era"], "modern");
    }
}

#[test]
fn process_of_both_eras_serves_each_client_in_its_own() {
    for first in [Era::Session, Era::Stateless] {
        let home = home(&process("both", ""));
        let gateway = home.serve();
        let mut clients = [first, first.other()].map(|era| client(&gateway, era));
        for _ in 0..2 {
            let [one, other] = clients.each_mut().map(|client| client.text("s__pid", &json!({})));
            assert_ne!(one, other, "{first:?}");
        }
        if first == Era::Stateless {
            clients.reverse();
        }
        let [session, stateless] = &mut clients;
        assert_eq!([era_of_process(session), era_of_process(stateless)], ["session", "stateless"]);
        for method in [ASK, "sampling/createMessage", "roots/list"] {
            assert_ne!(ask_in_session(session, &json!({"method": method, "via": "request"})), "");
        }
        assert_eq!(ask_stateless(stateless, &by_result()), ACCEPTED);
        assert_subscription_works(session);
        let status = status(&home);
        assert_eq!(status["era"], json!(["legacy", "modern"]), "{first:?} {status}");
        assert_eq!((&status["instances"], &status["pid"]), (&json!(2), &Value::Null), "{first:?} {status}");
        let keys =
            status["instances_list"].as_array().unwrap().iter().map(|instance| instance["key"].clone());
        assert_eq!(keys.collect::<Vec<Value>>(), ["shared", "shared (modern)"]);
    }
}

/// Changes a resource that the client has subscribed to, and waits for the notification.
fn assert_subscription_works(client: &mut HttpClient) {
    let uri = "note://watched";
    let mut stream = client.send_without_body("GET");
    let subscribed = client.request("resources/subscribe", &json!({"uri": uri})).message();
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    client.text("s__update", &json!({"uri": uri}));
    loop {
        let event = stream.next_event().unwrap();
        if event["method"] == "notifications/resources/updated" {
            return assert_eq!(event["params"]["uri"], uri);
        }
    }
}

#[test]
fn declared_sharing_keeps_one_process_for_both_eras() {
    for sharing in ["shared", "one"] {
        let config = process("both", &format!("sharing = '{sharing}'\n"));
        let home_of_session = idle_home(&config);
        let gateway = home_of_session.serve();
        let mut session = client(&gateway, Era::Session);
        let mut stateless = client(&gateway, Era::Stateless);
        let pid = session.text("s__pid", &json!({}));
        assert_eq!(stateless.text("s__pid", &json!({})), pid);
        assert_eq!([era_of_process(&mut session), era_of_process(&mut stateless)], ["session"; 2]);
        assert_eq!(ask_stateless(&mut stateless, &by_request()), ACCEPTED);

        let home_of_stateless = idle_home(&config);
        let gateway = home_of_stateless.serve();
        let mut stateless = client(&gateway, Era::Stateless);
        let pid = stateless.text("s__pid", &json!({}));
        // Opening the session would wake the process.
        let mut session = client(&gateway, Era::Session);
        assert_eq!(session.text("s__pid", &json!({})), pid);
        assert_eq!([era_of_process(&mut session), era_of_process(&mut stateless)], ["stateless"; 2]);
        assert_eq!(ask_in_session(&mut session, &by_result()), ACCEPTED);
        let status = status(&home_of_stateless);
        assert_eq!((&status["sharing"], &status["instances"]), (&json!(sharing), &json!(1)), "{status}");
    }
}

#[test]
fn process_of_one_era_is_one_process_for_all_clients() {
    let cases = [
        ("session", "session", [1, 2]),
        ("stateless", "stateless", [2, 1]),
        ("exits-on-probe", "session", [2, 2]),
        ("silent-on-probe", "session", [1, 2]),
    ];
    for (speaks, expected, starts) in cases {
        for (first, starts) in [(Era::Stateless, starts[0]), (Era::Session, starts[1])] {
            let folder = tempfile::tempdir().unwrap();
            let count_file = folder.path().join("starts");
            let args = ["--era", speaks, "--count-file", count_file.to_str().unwrap()];
            let config = server_config(env!("CARGO_BIN_EXE_fake-server"), "s", &args);
            let home = idle_home(&(config + "lifecycle = { restarts = { at-most = 0, within = '1m' } }\n"));
            let gateway = home.serve();
            let mut pids = Vec::new();
            for era in [first, first.other(), first] {
                let mut client = client(&gateway, era);
                assert_eq!(era_of_process(&mut client), expected, "{speaks} {first:?} {era:?}");
                pids.push(client.text("s__pid", &json!({})));
            }
            pids.dedup();
            assert_eq!(pids.len(), 1, "{speaks} {first:?}");
            let status = status(&home);
            assert_eq!((&status["instances"], &status["restarts"]), (&json!(1), &json!(0)), "{status}");
            let counted = std::fs::metadata(&count_file).unwrap().len();
            assert_eq!(counted, starts, "{speaks} {first:?}");
        }
    }
}

#[test]
fn process_without_a_client_is_started_in_a_session() {
    let home = home(&process("both", "sharing = 'one'\nlifecycle = { start = 'at-boot' }\n"));
    let gateway = home.serve();
    wait_until("the server is ready", || status(&home)["state"] == "ready");
    assert_eq!(status(&home)["era"], "legacy");
    assert_eq!(era_of_process(&mut client(&gateway, Era::Stateless)), "session");
}

#[test]
fn stdio_client_decides_the_era_of_the_process() {
    for (era, expected) in [(Era::Session, false), (Era::Stateless, true)] {
        let home = home(&process("both", ""));
        let mut pipe = StdioClient::new(home.command(&["stdio"]), era);
        let received = pipe.text("s__received", &json!({}));
        assert_eq!(received.contains("io.modelcontextprotocol/protocolVersion"), expected, "{received}");
    }
}

#[test]
fn configured_era_is_used_for_every_client() {
    for (era, expected) in [("legacy", "session"), ("modern", "stateless")] {
        let process_home = home(&process("both", &format!("era = '{era}'\n")));
        let gateway = process_home.serve();
        for client_era in [Era::Session, Era::Stateless] {
            assert_eq!(era_of_process(&mut client(&gateway, client_era)), expected);
        }
        let server = RemoteServer::start(Speaks::Both);
        let remote_home = home(&server.config(&format!("era = '{era}'\n")));
        let gateway = remote_home.serve();
        for client_era in [Era::Session, Era::Stateless] {
            assert_eq!(client(&gateway, client_era).text("s__era", &json!({})), expected);
        }
        assert_eq!(status(&remote_home)["era"], era);
        assert_eq!(server.handshakes().iter().filter(|count| **count > 0).count(), 1);
    }
}

#[test]
fn remote_server_has_a_connection_for_each_era() {
    for sharing in ["shared", "per-caller", "per-client"] {
        let server = RemoteServer::start(Speaks::Both);
        let home = home(&server.config(&format!("sharing = '{sharing}'\n")));
        let gateway = home.serve();
        let mut session = client(&gateway, Era::Session);
        let mut stateless = client(&gateway, Era::Stateless);
        let is_shared = sharing == "shared";
        assert_eq!(session.text("s__era", &json!({})), "session");
        assert_eq!(status(&home)["era"], "legacy", "{sharing}");
        assert_eq!(stateless.text("s__era", &json!({})), "stateless");
        if sharing != "per-client" {
            let status = status(&home);
            assert_eq!(status["era"], json!(["legacy", "modern"]), "{sharing} {status}");
            assert!(status["protocol_version"].is_string(), "{sharing} {status}");
        }
        if is_shared {
            let text = home.run(&["status"]).stdout;
            assert!(String::from_utf8_lossy(&text).contains("legacy, modern"));
        }
        let asked_in_session = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask_in_session(&mut session, &json!({})));
            assert_eq!(ask_stateless(&mut stateless, &json!({})), ACCEPTED);
            asked.join().unwrap()
        });
        assert_eq!(asked_in_session, ACCEPTED);
        if is_shared {
            assert_eq!(server.handshakes(), [1, 1]);
        }
    }
}

#[test]
fn errors_of_the_server_keep_their_text_in_both_eras() {
    let server = RemoteServer::start(Speaks::Both);
    let home = home(&server.config(""));
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut client = client(&gateway, era);
        let response = client.request("tools/call", &json!({"name": "s__refuse", "arguments": {}}));
        let expected = r#""error":{"code":7,"data":{"kept":[1.5]},"message":"Unknown prompt: nope"}"#;
        assert!(response.text().contains(expected), "{}", response.text());
    }
}

#[test]
fn remote_server_of_one_era_has_one_connection() {
    let cases = [(Speaks::Session, "session", "legacy"), (Speaks::Stateless, "stateless", "modern")];
    for (speaks, expected, era) in cases {
        for first in [Era::Session, Era::Stateless] {
            let server = RemoteServer::start(speaks);
            let home = home(&server.config(""));
            let mut gateway = home.serve();
            for client_era in [first, first.other(), first] {
                assert_eq!(client(&gateway, client_era).text("s__era", &json!({})), expected);
            }
            let reported = status(&home);
            assert_eq!(reported["era"], era, "{first:?} {reported}");
            assert_eq!(reported["leases"], 0);
            let before = server.handshakes();
            gateway.stop();
            // What the server speaks is remembered.
            let gateway = home.serve();
            for client_era in [first, first.other()] {
                assert_eq!(client(&gateway, client_era).text("s__era", &json!({})), expected);
            }
            let after = server.handshakes();
            let added = [after[0] - before[0], after[1] - before[1]];
            let expected = if speaks == Speaks::Session { [1, 0] } else { [0, 1] };
            assert_eq!(added, expected, "{speaks:?} {first:?}");
        }
    }
}

#[test]
fn era_that_is_not_known_yet_is_tried_after_a_restart_of_the_gateway() {
    let cases =
        [(Speaks::Session, "session", Era::Session), (Speaks::Stateless, "stateless", Era::Stateless)];
    for (speaks, expected, own) in cases {
        let server = RemoteServer::start(speaks);
        let home = home(&server.config(""));
        let mut gateway = home.serve();
        assert_eq!(client(&gateway, own).text("s__era", &json!({})), expected);
        gateway.stop();
        // The first gateway had no reason to try the other era.
        let gateway = home.serve();
        for client_era in [own.other(), own, own.other()] {
            assert_eq!(client(&gateway, client_era).text("s__era", &json!({})), expected, "{client_era:?}");
        }
        assert_eq!(status(&home)["restarts"], 0);
    }
}

#[test]
fn remote_server_that_starts_at_boot_is_up_in_the_era_it_speaks() {
    for (speaks, era) in [(Speaks::Stateless, "modern"), (Speaks::Both, "legacy")] {
        let server = RemoteServer::start(speaks);
        let home = home(&server.config("lifecycle = { start = 'at-boot' }\n"));
        let _gateway = home.serve();
        wait_until("the server is ready", || status(&home)["state"] == "ready");
        assert_eq!(status(&home)["era"], era);
        assert!(home.run(&["restart", "s"]).status.success());
        assert_eq!(status(&home)["era"], era);
    }
}

#[test]
fn repeated_call_reaches_the_instance_that_asked() {
    let home = home(&process("both", "sharing = 'per-client'\n"));
    let gateway = home.serve();
    // Every request has a connection of its own, and each process accepts only its own state.
    let mut stateless = client(&gateway, Era::Stateless);
    for _ in 0..2 {
        assert_eq!(ask_stateless(&mut stateless, &by_result()), ACCEPTED);
    }
    wait_until("the instances have exited", || status(&home)["instances"] == 0);
    // The state is valid once, and only for the same call.
    let mut params = ask_params(&by_result());
    let first = stateless.request_with_meta("tools/call", &params).message();
    params["inputResponses"] = json!({"q": {"action": "accept"}});
    params["requestState"] = first["result"]["requestState"].clone();
    let mut other = params.clone();
    other["name"] = "s__echo".into();
    let refused = stateless.request_with_meta("tools/call", &other).message();
    assert!(refused["result"]["content"][0]["text"].is_string(), "{refused}");
    for expected in [json!(ACCEPTED), Value::Null] {
        let last = stateless.request_with_meta("tools/call", &params).message();
        assert_eq!(last["result"]["content"][0]["text"], expected, "{last}");
    }
}

#[test]
fn process_that_exits_on_the_other_era_is_used_and_remembered() {
    for (speaks, expected) in [("exits-on-probe", "session"), ("exits-on-initialize", "stateless")] {
        for era in [Era::Session, Era::Stateless] {
            let home = home(&process(speaks, "lifecycle = { restarts = { at-most = 0, within = '1m' } }\n"));
            let gateway = home.serve();
            assert_eq!(era_of_process(&mut client(&gateway, era)), expected, "{speaks} {era:?}");
            assert_eq!(status(&home)["restarts"], 0, "{speaks} {era:?}");
        }
    }
}
