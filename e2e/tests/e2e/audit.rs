//! The audit of a real gateway: what callers did is in the file, whatever happens to the disk or to the gateway.

#![expect(clippy::expect_used, reason = "tests may stop at the first surprise")]

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, message};
use test_support::gateway::{Gateway, Home};
use test_support::http::{self, Response};
use test_support::wait_until;

const RULES: &str = "[callers.ci]\ntoken = 'ci-Token'\ndeny = ['fake.pid', 'other.*']\n\
    [callers.root]\ntoken = 'root-Token'\nadmin = true\n";

fn home(audit: &str) -> Home {
    let server = |name| test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), name, &[]);
    let config = format!("{audit}\n{}{}{RULES}", server("fake"), server("other"));
    Home::new(env!("CARGO_BIN_EXE_crib"), &config)
}

fn call(gateway: &Gateway, token: &str, tool: &str, arguments: &Value) -> Response {
    let params = json!({"name": tool, "arguments": arguments});
    let body = message(Era::Stateless, &1.into(), "tools/call", &params).to_string();
    let shown = format!("Bearer {token}");
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", tool),
        ("Authorization", &shown),
    ];
    http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes())
}

/// The whole lines of a file; each is one object.
fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

fn told(line: &Value) -> [&str; 5] {
    ["caller", "server", "name", "decision", "outcome"].map(|key| line[key].as_str().unwrap_or("-"))
}

#[test]
fn what_each_caller_did_and_was_refused_is_in_the_file() {
    let home = home("audit = 'audit.jsonl'");
    let file = home.file("audit.jsonl");
    let mut gateway = home.serve();
    let said = json!({"text": "a secret word", "token": "t"});
    assert!(call(&gateway, "ci-Token", "fake__echo", &said).text().contains("a secret word"));
    assert_eq!(call(&gateway, "ci-Token", "fake__pid", &said).code(), Some(-31010));
    assert_eq!(call(&gateway, "ci-Token", "other__echo", &said).code(), Some(-32602));
    assert!(call(&gateway, "root-Token", "other__echo", &said).text().contains("a secret word"));
    assert_eq!(call(&gateway, "root-Token", "fake__nope", &said).code(), Some(-32602));
    assert!(gateway.stop().success());
    let lines = lines(&file);
    let all: Vec<_> = lines.iter().map(told).collect();
    assert_eq!(
        all,
        [
            ["ci", "fake", "echo", "allowed", "ok"],
            ["ci", "fake", "pid", "denied", "denied"],
            ["ci", "other", "other__echo", "denied", "unknown"],
            ["root", "other", "echo", "allowed", "ok"],
            ["root", "-", "fake__nope", "none", "unknown"],
        ]
    );
    assert_eq!(lines[1]["rule"], "`callers.ci.deny` has `fake.pid`");
    assert!(lines[1]["file"].as_str().is_some_and(|file| file.ends_with("config.toml")));
    let text = std::fs::read_to_string(&file).expect("the audit");
    assert!(!text.contains("secret word") && !text.contains("Token"), "{text}");
}

#[test]
fn a_full_disk_stops_no_call_and_is_said_loudly() {
    let home = home("audit = 'audit.jsonl'");
    let (file, real) = (home.file("audit.jsonl"), home.file("real.jsonl"));
    std::os::unix::fs::symlink("/dev/full", &file).expect("a link");
    let mut gateway = home.serve();
    let fine = |text: &str| {
        assert!(call(&gateway, "ci-Token", "fake__echo", &json!({"text": text})).text().contains(text));
    };
    fine("one");
    wait_until("it is said", || gateway.said().iter().any(|line| line.contains("No space left")));
    fine("two");
    let status = String::from_utf8(home.run(&["status", "--json"]).stdout).expect("text");
    let status: Value = serde_json::from_str(&status).expect("an object");
    let problem = status["config"]["problems"][0]["message"].as_str().unwrap_or_default().to_owned();
    assert!(problem.contains("cannot write to `audit`"), "{status}");
    std::fs::remove_file(&file).expect("the link goes");
    std::os::unix::fs::symlink(&real, &file).expect("another link");
    wait_until("it is written again", || lines(&real).len() == 2);
    assert!(gateway.stop().success());
}

#[test]
fn calls_that_must_be_recorded_are_refused_on_a_full_disk_until_there_is_room() {
    let home = home("audit = 'audit.jsonl'\naudit-required = true");
    let file = home.file("audit.jsonl");
    std::os::unix::fs::symlink("/dev/full", &file).expect("a link");
    let gateway = home.serve();
    let code = || call(&gateway, "ci-Token", "fake__echo", &json!({"text": "x"})).code();
    wait_until("calls are refused", || code() == Some(-31021));
    std::fs::remove_file(&file).expect("the link goes");
    wait_until("calls are made", || code().is_none());
}

#[test]
fn a_gateway_that_is_killed_leaves_whole_lines_and_the_next_goes_on() {
    let home = home("audit = 'audit.jsonl'");
    let file = home.file("audit.jsonl");
    let mut gateway = home.serve();
    for _ in 0..20 {
        call(&gateway, "ci-Token", "fake__echo", &json!({"text": "x"}));
    }
    wait_until("some lines are written", || !lines(&file).is_empty());
    gateway.signal(Signal::KILL);
    gateway.wait();
    let before = lines(&file).len();
    let torn = std::fs::read_to_string(&file).expect("the audit") + "{\"at\":\"2026";
    std::fs::write(&file, torn).expect("a torn line");
    let mut gateway = home.serve();
    call(&gateway, "ci-Token", "fake__echo", &json!({"text": "y"}));
    assert!(gateway.stop().success());
    let text = std::fs::read_to_string(&file).expect("the audit");
    let whole = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    assert_eq!((whole, text.lines().count()), (before + 1, before + 2));
}

#[test]
fn a_reload_names_another_file_and_turns_arguments_on() {
    let home = home("audit = 'one.jsonl'");
    let config = std::fs::read_to_string(home.file("config.toml")).expect("the config");
    let mut gateway = home.serve();
    call(&gateway, "ci-Token", "fake__echo", &json!({"text": "first"}));
    // What is not written yet when the file changes goes to the new one.
    wait_until("the first is written", || !lines(&home.file("one.jsonl")).is_empty());
    home.write_config(&config.replace("audit = 'one.jsonl'", "audit = 'two.jsonl'\naudit-arguments = true"));
    gateway.signal(Signal::HUP);
    wait_until("it is read again", || gateway.said().iter().any(|line| line.contains("config read again")));
    call(&gateway, "ci-Token", "fake__echo", &json!({"text": "second", "api_key": "k"}));
    assert!(gateway.stop().success());
    let one = lines(&home.file("one.jsonl"));
    let two = lines(&home.file("two.jsonl"));
    assert_eq!((one.len(), two.len()), (1, 1));
    assert!(one[0].get("arguments").is_none());
    assert_eq!(two[0]["arguments"], json!({"text": "second", "api_key": "[redacted]"}));
}

#[test]
fn a_command_that_stands_alone_is_recorded_too() {
    let home = home("audit = 'audit.jsonl'");
    assert!(home.run(&["call", "fake__echo", "text=hi"]).status.success());
    assert_eq!(
        lines(&home.file("audit.jsonl")).iter().map(told).collect::<Vec<_>>(),
        [["local", "fake", "echo", "allowed", "ok"]]
    );
}
