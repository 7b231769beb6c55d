//! The history of a real gateway: calls and events over HTTP and from commands, after a kill and without a gateway.

#![expect(clippy::expect_used, reason = "tests panic on failure")]

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home, server_config};
use test_support::http::{self, Stream};
use test_support::{process, terminal};

fn home() -> Home {
    let server = server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]);
    Home::new(env!("CARGO_BIN_EXE_crib"), &format!("audit = 'audit.jsonl'\n{server}"))
}

fn get(gateway: &GatewayProcess, path: &str) -> Value {
    http::request(gateway.address, "GET", path, &[], b"").message()
}

fn open_events(gateway: &GatewayProcess, query: &str, headers: &[(&str, &str)]) -> Stream {
    let stream = http::open(gateway.address, "GET", &format!("/api/v1/events{query}"), headers, b"");
    assert_eq!(stream.status, 200);
    stream
}

/// Returns the next event of a kind.
fn next_of_kind(stream: &mut Stream, kind: &str) -> Value {
    loop {
        let event = stream.next_event().expect("the stream goes on");
        if event["kind"] == kind {
            return event;
        }
    }
}

#[track_caller]
fn json_lines(home: &Home, args: &[&str]) -> Vec<Value> {
    let output = home.run(args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn history_survives_a_kill_and_finds_a_failed_call_by_its_id() {
    let home = home();
    let mut gateway = home.serve();
    let mut events = open_events(&gateway, "?kind=started,exited,restarted,reloaded", &[]);
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let pid: u32 = client.text("fake__pid", &json!({})).parse().expect("a pid");
    let started = next_of_kind(&mut events, "started");
    assert_eq!(started["server"], "fake");
    let failed = client.request("tools/call", &json!({"name": "fake__crash", "arguments": {}})).message();
    let id = failed["error"]["data"]["call"].as_str().expect("the id of the call").to_owned();
    let exited = next_of_kind(&mut events, "exited");
    process_is_replaced(&mut client, pid);
    next_of_kind(&mut events, "restarted");

    let call = get(&gateway, &format!("/api/v1/calls/{id}"));
    assert_eq!([&call["tool"], &call["outcome"], &call["error"]], ["crash", "error", "lost"], "{call}");
    let audit = std::fs::read_to_string(home.file("audit.jsonl")).expect("the audit file");
    assert!(audit.lines().any(|line| line.contains(&id) && line.contains("\"lost\"")), "{audit}");
    let clients = get(&gateway, "/api/v1/clients");
    assert_eq!(clients["clients"][0]["kind"], "stateless", "{clients}");
    assert!(clients["clients"][0]["tokens_shown"].as_u64().is_some_and(|tokens| tokens > 0), "{clients}");
    assert_eq!(get(&gateway, "/api/v1/stats")["totals"]["errors"], 1);

    gateway.signal(Signal::KILL);
    gateway.wait();
    // Without a gateway, commands read the files.
    assert_eq!(json_lines(&home, &["stats", "--json"])[0]["totals"]["calls"], 3);
    let gateway = home.serve();
    // A client that lost its connection continues after the last event that it got.
    let last = started["id"].as_str().expect("an id");
    let mut resumed = open_events(&gateway, "", &[("Last-Event-ID", last)]);
    let mut missed = Vec::new();
    while missed.last().is_none_or(|event: &Value| event["kind"] != "restarted") {
        missed.push(resumed.next_event().expect("the recorded events"));
    }
    assert!(missed.contains(&exited) && missed.iter().any(|event| event["call"] == json!(id)), "{missed:?}");
    assert_eq!(get(&gateway, "/api/v1/calls?outcome=error")["calls"][0]["id"], json!(id));
    assert_eq!(json_lines(&home, &["events", "--call", &id, "--json"])[0], call);
}

/// Waits until another process of the server answers.
fn process_is_replaced(client: &mut HttpClient, pid: u32) {
    assert_ne!(client.text("fake__pid", &json!({})), pid.to_string());
    assert!(!process::is_alive(pid));
}

#[test]
fn top_stats_and_events_work_at_a_terminal_and_in_a_pipe() {
    let home = home();
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    client.text("fake__echo", &json!({"text": "hi"}));
    let kinds: Vec<Value> = json_lines(&home, &["events", "--json", "--since", "1h"])
        .iter()
        .map(|event| event["kind"].clone())
        .collect();
    assert!(kinds.contains(&json!("started")) && kinds.contains(&json!("call")), "{kinds:?}");
    let once = home.run(&["top"]);
    assert!(String::from_utf8_lossy(&once.stdout).contains("fake\tready\t"), "{once:?}");
    let shown = terminal::run(home.command(&["top"]), 120, "s/fa\nq");
    assert_eq!(shown.status.code(), Some(0), "{}", shown.shown);
    assert!(
        shown.shown.contains("s sort by errors") && shown.shown.contains("filter: fa"),
        "{}",
        shown.shown
    );
    let cost = home.run(&["stats", "--cost"]);
    assert!(String::from_utf8_lossy(&cost.stdout).contains("fake.echo\t"), "{cost:?}");
    let unknown = home.run(&["events", "--call", "0000000000000001"]);
    assert_eq!(unknown.status.code(), Some(5), "{unknown:?}");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(said.starts_with("error: unknown call `0000000000000001`\nhint: "), "{said}");
    assert_eq!(home.run(&["events", "--kind", "nothing"]).status.code(), Some(1));
    for command in ["events", "stats"] {
        let wrong = home.run(&[command, "--since", "yesterday"]);
        assert!(
            String::from_utf8_lossy(&wrong.stderr).contains("`--since yesterday` is not a time"),
            "{wrong:?}"
        );
    }
}
