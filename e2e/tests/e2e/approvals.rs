//! Calls that a person must say yes to, and arguments that a tool does not take, with a real server behind the gateway.

#![expect(clippy::expect_used, reason = "tests may stop at the first surprise")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, PipeClient, message};
use test_support::gateway::{Gateway, Home};
use test_support::http::{self, Response};

/// Rules by which a person is asked before `stamp` runs, which keeps books of its runs.
fn home(more: &str) -> (Home, tempfile::TempDir) {
    let books = tempfile::tempdir().expect("a folder for books");
    let server = test_support::gateway::server(
        env!("CARGO_BIN_EXE_fake-server"),
        "fake",
        &["--ledger", &books.path().to_string_lossy()],
    );
    let rules = "[policy]\nask = [\"fake.stamp\", \"fake.note://one\"]\n";
    (Home::new(env!("CARGO_BIN_EXE_crib"), &format!("{server}{more}{rules}")), books)
}

fn stamped(books: &tempfile::TempDir) -> usize {
    let files = std::fs::read_dir(books.path()).into_iter().flatten().flatten();
    let lines = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
    lines.map(|text| text.lines().filter(|line| line.contains("stamped")).count()).sum()
}

fn stamp(number: u64) -> Value {
    json!({"name": "fake__stamp", "arguments": {"token": format!("stamped {number}")}})
}

/// A stateless request of a client that can be asked.
fn ask(gateway: &Gateway, method: &str, params: &Value) -> Response {
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
fn a_stateless_client_is_asked_by_its_result_and_answers_with_the_call() {
    let (home, books) = home("");
    let gateway = home.serve();
    let asked = ask(&gateway, "tools/call", &stamp(1)).message();
    let question = &asked["result"]["inputRequests"]["ask-1"];
    assert_eq!(question["method"], "elicitation/create", "{asked}");
    let words = question["params"]["message"].as_str().expect("a message");
    assert!(words.starts_with("`local` wants to use `fake.stamp` with {\"token\":\"stamped 1\"}"), "{words}");
    let state = asked["result"]["requestState"].clone();
    assert_eq!(stamped(&books), 0);
    let with = |mut params: Value, action: &str| {
        params["requestState"] = state.clone();
        params["inputResponses"] = json!({"ask-1": {"action": action, "content": {}}});
        ask(&gateway, "tools/call", &params).message()
    };
    // The yes is for this call, not for another one.
    assert_eq!(with(stamp(2), "accept")["error"]["code"], -32602);
    assert_eq!(stamped(&books), 0);
    assert!(with(stamp(1), "accept")["result"]["content"].is_array());
    assert_eq!(stamped(&books), 1);
    assert_eq!(with(stamp(1), "accept")["error"]["code"], -32602, "a state is good once");
    // The same call is not asked about again for a while; another is, and a no is a no.
    assert!(ask(&gateway, "tools/call", &stamp(1)).message()["result"]["content"].is_array());
    assert_eq!(stamped(&books), 2);
    let asked = ask(&gateway, "tools/call", &stamp(3)).message();
    let mut params = stamp(3);
    params["requestState"] = asked["result"]["requestState"].clone();
    params["inputResponses"] = json!({"ask-1": {"action": "decline"}});
    assert_eq!(ask(&gateway, "tools/call", &params).message()["error"]["code"], -31010);
    assert_eq!(
        ask(&gateway, "tools/call", &stamp(3)).message()["error"]["code"],
        -31010,
        "nobody is asked twice"
    );
    assert_eq!(stamped(&books), 2);
    // Resources are asked about by their addresses, however they are spelled.
    for uri in ["note://one", "note://%6Fne"] {
        let asked = ask(&gateway, "resources/read", &json!({"uri": uri})).message();
        assert_eq!(asked["result"]["resultType"], "input_required", "{uri}: {asked}");
    }
    assert!(
        ask(&gateway, "resources/read", &json!({"uri": "note://two"})).text().contains("read note://two")
    );
}

#[test]
fn a_client_in_a_session_is_asked_while_its_call_waits() {
    let (home, books) = home("");
    let mut agent = PipeClient::session(home.command(&["stdio"]), "2025-11-25");
    for (number, action, runs) in [(1, "accept", 1), (2, "decline", 1), (3, "cancel", 1)] {
        let id = agent.send("tools/call", &stamp(number));
        let question = loop {
            let message = agent.read().expect("a question");
            if message["method"] == "elicitation/create" {
                break message;
            }
        };
        assert!(
            question["params"]["message"].as_str().expect("words").contains("`fake.stamp`"),
            "{question}"
        );
        let answer =
            json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": action, "content": {}}});
        agent.write(&answer.to_string());
        let answer = loop {
            let message = agent.read().expect("an answer");
            if message["id"] == id && message["method"].is_null() {
                break message;
            }
        };
        assert_eq!(answer["error"].is_null(), action == "accept", "{answer}");
        assert_eq!(stamped(&books), runs, "{action}");
    }
}

#[test]
fn a_client_that_cannot_be_asked_is_refused_and_a_person_can_say_yes() {
    let (home, books) = home("");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let refused = client.request("tools/call", &stamp(1)).message();
    assert_eq!(refused["error"]["code"], -31010, "{refused}");
    let words = refused["error"]["message"].as_str().expect("a message");
    assert!(
        words.contains("this client cannot be asked") && words.contains("`policy.ask` has `fake.stamp`"),
        "{words}"
    );
    let id = refused["error"]["data"]["approval"].as_str().expect("a name").to_owned();
    assert_eq!(refused["error"]["data"]["hint"], format!("toolcrib approve --call {id}"));
    // Not over the address that every program here can reach.
    let yes = format!("/api/v1/calls/{id}/approve");
    assert_eq!(http::request(gateway.address, "POST", &yes, &[], b"").status, 403);
    let shown = home.run(&["approve", "--call", &id]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("with {\"token\":\"stamped 1\"}"), "{shown:?}");
    assert_eq!(client.request("tools/call", &stamp(1)).message()["error"]["code"], -31010);
    assert_eq!(home.run(&["approve", "--call", &id, "--yes"]).status.code(), Some(0));
    assert_eq!(home.run(&["approve", "--call", &id, "--yes"]).status.code(), Some(5), "it is decided");
    assert_eq!(client.request("tools/call", &stamp(2)).message()["error"]["code"], -31010, "another call");
    assert!(client.request("tools/call", &stamp(1)).message()["result"].is_object());
    assert_eq!(stamped(&books), 1);
    let tested = home.run(&["policy", "test", "--tool", "fake.stamp"]);
    let told = String::from_utf8_lossy(&tested.stdout).into_owned();
    assert_eq!(tested.status.code(), Some(0));
    assert!(told.starts_with("would ask: `local` needs a person's yes to use `fake.stamp`"), "{told}");
    let called = home.run(&["call", "fake__stamp", "token=stamped 9", "--no-input"]);
    assert_eq!(called.status.code(), Some(7), "{called:?}");
}

#[test]
fn arguments_that_do_not_fit_never_reach_the_server() {
    let (home, _books) = home("tools.check = true\n");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut call = |arguments: Value| {
        client.request("tools/call", &json!({"name": "fake__progress", "arguments": arguments})).message()
    };
    assert!(call(json!({"steps": 0, "ms": 1}))["result"].is_object());
    let refused = call(json!({"steps": "three", "ms": 1}));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(refused["error"]["data"]["kind"], "bad_arguments");
    let words = refused["error"]["message"].as_str().expect("a message");
    assert!(words.contains("/steps: must be a whole number, not a string"), "{words}");
    assert_eq!(call(json!([1]))["error"]["code"], -32602);
    // On the command line always, with a gateway or not, unless somebody does not want it.
    for _ in 0..2 {
        let called = home.run(&["call", "fake", "echo", "--args", "{\"text\": 7}"]);
        assert_eq!(called.status.code(), Some(1), "{called:?}");
        let told = String::from_utf8_lossy(&called.stderr).into_owned();
        assert!(
            told.contains("the arguments do not fit `echo`: /text: must be a string, not a number"),
            "{told}"
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
