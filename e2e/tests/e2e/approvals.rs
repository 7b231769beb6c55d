//! Calls that need a person's approval, and arguments that do not fit a tool's schema.

#![expect(clippy::expect_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient, message};
use test_support::gateway::{GatewayProcess, Home};
use test_support::http::{self, Response};

/// Returns a home whose policy asks for approval of `record`, and the folder of its records.
fn home(more: &str) -> (Home, tempfile::TempDir) {
    let records = tempfile::tempdir().expect("a folder for records");
    let server = test_support::gateway::server_config(
        env!("CARGO_BIN_EXE_fake-server"),
        "fake",
        &["--record-dir", &records.path().to_string_lossy()],
    );
    let rules = "[policy]\nask = [\"fake.record\", \"fake.note://one\"]\n";
    (Home::new(env!("CARGO_BIN_EXE_crib"), &format!("{server}{more}{rules}")), records)
}

fn count_recorded(records: &tempfile::TempDir) -> usize {
    let files = std::fs::read_dir(records.path()).into_iter().flatten().flatten();
    let lines = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
    lines.map(|text| text.lines().filter(|line| line.contains("recorded")).count()).sum()
}

fn record(number: u64) -> Value {
    json!({"name": "fake__record", "arguments": {"token": format!("recorded {number}")}})
}

/// Sends a stateless request from a client that supports elicitation.
fn ask(gateway: &GatewayProcess, method: &str, params: &Value) -> Response {
    let mut body = message(Era::Stateless, &1.into(), method, params);
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({"elicitation": {"form": {}}});
    let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default();
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", method),
        ("Mcp-Name", name),
    ];
    http::request(gateway.address, "POST", "/mcp", &headers, body.to_string().as_bytes())
}

#[test]
fn approval_stateless_client_answers_with_a_retry() {
    let (home, records) = home("");
    let gateway = home.serve();
    let response = ask(&gateway, "tools/call", &record(1)).message();
    let elicitation = &response["result"]["inputRequests"]["ask-1"];
    assert_eq!(elicitation["method"], "elicitation/create", "{response}");
    let message = elicitation["params"]["message"].as_str().expect("a message");
    assert!(
        message.starts_with("`local` wants to use `fake.record` with {\"token\":\"recorded 1\"}"),
        "{message}"
    );
    let state = response["result"]["requestState"].clone();
    assert_eq!(count_recorded(&records), 0);
    let retry = |mut params: Value, action: &str| {
        params["requestState"] = state.clone();
        params["inputResponses"] = json!({"ask-1": {"action": action, "content": {}}});
        ask(&gateway, "tools/call", &params).message()
    };
    // The approval is for this call only.
    assert_eq!(retry(record(2), "accept")["error"]["code"], -32602);
    assert_eq!(count_recorded(&records), 0);
    assert!(retry(record(1), "accept")["result"]["content"].is_array());
    assert_eq!(count_recorded(&records), 1);
    assert_eq!(retry(record(1), "accept")["error"]["code"], -32602, "a state can be used once");
    // An approval or a refusal of the same call is remembered for a while.
    assert!(ask(&gateway, "tools/call", &record(1)).message()["result"]["content"].is_array());
    assert_eq!(count_recorded(&records), 2);
    let response = ask(&gateway, "tools/call", &record(3)).message();
    let mut params = record(3);
    params["requestState"] = response["result"]["requestState"].clone();
    params["inputResponses"] = json!({"ask-1": {"action": "decline"}});
    assert_eq!(ask(&gateway, "tools/call", &params).message()["error"]["code"], -31010);
    assert_eq!(
        ask(&gateway, "tools/call", &record(3)).message()["error"]["code"],
        -31010,
        "a refusal is remembered"
    );
    assert_eq!(count_recorded(&records), 2);
    // Rules for resources apply to every spelling of a URI.
    for uri in ["note://one", "note://%6Fne"] {
        let response = ask(&gateway, "resources/read", &json!({"uri": uri})).message();
        assert_eq!(response["result"]["resultType"], "input_required", "{uri}: {response}");
    }
    assert!(
        ask(&gateway, "resources/read", &json!({"uri": "note://two"})).text().contains("read note://two")
    );
}

#[test]
fn approval_session_client_is_asked_during_the_call() {
    let (home, records) = home("");
    let mut agent = StdioClient::session(home.command(&["stdio"]), "2025-11-25");
    for (number, action, runs) in [(1, "accept", 1), (2, "decline", 1), (3, "cancel", 1)] {
        let id = agent.send("tools/call", &record(number));
        let elicitation = loop {
            let message = agent.read().expect("an elicitation");
            if message["method"] == "elicitation/create" {
                break message;
            }
        };
        assert!(
            elicitation["params"]["message"].as_str().expect("a message").contains("`fake.record`"),
            "{elicitation}"
        );
        let answer =
            json!({"jsonrpc": "2.0", "id": elicitation["id"], "result": {"action": action, "content": {}}});
        agent.write(&answer.to_string());
        let answer = loop {
            let message = agent.read().expect("an answer");
            if message["id"] == id && message["method"].is_null() {
                break message;
            }
        };
        assert_eq!(answer["error"].is_null(), action == "accept", "{answer}");
        assert_eq!(count_recorded(&records), runs, "{action}");
    }
}

#[test]
fn approval_without_elicitation_needs_the_approve_command() {
    let (home, records) = home("");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let refused = client.request("tools/call", &record(1)).message();
    assert_eq!(refused["error"]["code"], -31010, "{refused}");
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("this client cannot be asked") && message.contains("`policy.ask` has `fake.record`"),
        "{message}"
    );
    let id = refused["error"]["data"]["approval"].as_str().expect("an approval id").to_owned();
    assert_eq!(refused["error"]["data"]["hint"], format!("toolcrib approve --call {id}"));
    // Not over the port that every local program can reach.
    let path = format!("/api/v1/calls/{id}/approve");
    assert_eq!(http::request(gateway.address, "POST", &path, &[], b"").status, 403);
    let shown = home.run(&["approve", "--call", &id]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("with {\"token\":\"recorded 1\"}"), "{shown:?}");
    assert_eq!(client.request("tools/call", &record(1)).message()["error"]["code"], -31010);
    assert_eq!(home.run(&["approve", "--call", &id, "--yes"]).status.code(), Some(0));
    assert_eq!(home.run(&["approve", "--call", &id, "--yes"]).status.code(), Some(5), "already decided");
    assert_eq!(client.request("tools/call", &record(2)).message()["error"]["code"], -31010, "another call");
    assert!(client.request("tools/call", &record(1)).message()["result"].is_object());
    assert_eq!(count_recorded(&records), 1);
    let tested = home.run(&["policy", "test", "--tool", "fake.record"]);
    let output = String::from_utf8_lossy(&tested.stdout).into_owned();
    assert_eq!(tested.status.code(), Some(0));
    assert!(output.starts_with("would ask: `local` needs approval to use `fake.record`"), "{output}");
    let called = home.run(&["call", "fake__record", "token=recorded 9", "--no-input"]);
    assert_eq!(called.status.code(), Some(7), "{called:?}");
}

#[test]
fn arguments_that_violate_the_schema_are_not_sent() {
    let (home, _records) = home("tools.check = true\n");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut call = |arguments: Value| {
        client.request("tools/call", &json!({"name": "fake__progress", "arguments": arguments})).message()
    };
    assert!(call(json!({"steps": 0, "ms": 1}))["result"].is_object());
    let refused = call(json!({"steps": "three", "ms": 1}));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(refused["error"]["data"]["kind"], "bad_arguments");
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.contains("/steps: must be an integer, not a string"), "{message}");
    assert_eq!(call(json!([1]))["error"]["code"], -32602);
    // The command line always checks, with and without a gateway, unless `--unchecked` is given.
    for _ in 0..2 {
        let called = home.run(&["call", "fake", "echo", "--args", "{\"text\": 7}"]);
        assert_eq!(called.status.code(), Some(1), "{called:?}");
        let output = String::from_utf8_lossy(&called.stderr).into_owned();
        assert!(
            output.contains("the arguments do not fit `echo`: /text: must be a string, not a number"),
            "{output}"
        );
        home.write_config(
            &std::fs::read_to_string(home.file("config.toml"))
                .expect("a config")
                .replace("tools.check = true\n", ""),
        );
    }
    drop(gateway);
    let called = home.run(&["call", "fake", "echo", "--args", "{\"text\": 7}"]);
    assert_eq!(called.status.code(), Some(1), "{called:?}");
    let sent = home.run(&["call", "fake", "echo", "--args", "{\"text\": 7}", "--unchecked"]);
    assert_eq!(sent.status.code(), Some(0), "{sent:?}");
}
