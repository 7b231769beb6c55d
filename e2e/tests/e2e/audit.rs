//! The audit file of a real gateway: complete and intact after disk errors, reloads and kills.

#![expect(clippy::expect_used, reason = "tests panic on failure")]

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, message};
use test_support::gateway::{GatewayProcess, Home};
use test_support::http::{self, Response};
use test_support::wait_until;

const RULES: &str = "[callers.ci]\ntoken = 'ci-Token'\ndeny = ['fake.pid', 'other.*']\n\
    [callers.root]\ntoken = 'root-Token'\nadmin = true\n";

fn home(audit: &str) -> Home {
    let server = |name| test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, &[]);
    let config = format!("{audit}\n{}{}{RULES}", server("fake"), server("other"));
    Home::new(env!("CARGO_BIN_EXE_crib"), &config)
}

fn call(gateway: &GatewayProcess, token: &str, tool: &str, arguments: &Value) -> Response {
    let params = json!({"name": tool, "arguments": arguments});
    let body = message(Era::Stateless, &1.into(), "tools/call", &params).to_string();
    let authorization = format!("Bearer {token}");
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", tool),
        ("Authorization", &authorization),
    ];
    http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes())
}

/// Reads the lines of a file as JSON objects.
fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

fn summary(line: &Value) -> [&str; 5] {
    ["caller", "server", "name", "decision", "outcome"].map(|key| line[key].as_str().unwrap_or("-"))
}

#[test]
fn audit_records_allowed_and_denied_calls_of_each_caller() {
    let home = home("audit = 'audit.jsonl'");
    let file = home.file("audit.jsonl");
    let mut gateway = home.serve();
    let arguments = json!({"text": "a secret word", "token": "t"});
    assert!(call(&gateway, "ci-Token", "fake__echo", &arguments).text().contains("a secret word"));
    assert_eq!(call(&gateway, "ci-Token", "fake__pid", &arguments).code(), Some(-31010));
    assert_eq!(call(&gateway, "ci-Token", "other__echo", &arguments).code(), Some(-32602));
    assert!(call(&gateway, "root-Token", "other__echo", &arguments).text().contains("a secret word"));
    assert_eq!(call(&gateway, "root-Token", "fake__nope", &arguments).code(), Some(-32602));
    assert!(gateway.stop().success());
    let lines = lines(&file);
    let all: Vec<_> = lines.iter().map(summary).collect();
    assert_eq!(
        all,
        [
            ["ci", "fake", "echo", "allowed", "ok"],
            ["ci", "fake", "pid", "denied", "denied"],
            ["ci", "other", "echo", "denied", "unknown"],
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
fn audit_records_admin_actions() {
    let home = home("audit = 'audit.jsonl'");
    let file = home.file("audit.jsonl");
    let mut gateway = home.serve();
    let post = |token: &str, path: &str| {
        let headers = [("Authorization", &*format!("Bearer {token}")), ("X-Toolcrib", "1")];
        http::request(gateway.address, "POST", path, &headers, b"").status
    };
    assert_eq!(post("root-Token", "/api/v1/servers/fake/restart"), 200);
    assert_eq!(post("root-Token", "/api/v1/calls/nope/approve"), 404);
    assert_eq!(post("root-Token", "/api/v1/reload"), 200);
    assert!(gateway.stop().success());
    let actions: Vec<_> = lines(&file)
        .iter()
        .map(|line| {
            ["caller", "method", "name", "outcome"].map(|key| line[key].as_str().unwrap_or("-").to_owned())
        })
        .collect();
    assert_eq!(
        actions,
        [
            ["root", "admin/restart", "fake", "ok"],
            ["root", "admin/approve_call", "nope", "unknown"],
            ["root", "admin/reload", "", "ok"],
        ]
    );
}

#[test]
fn audit_records_failed_logins() {
    let home = home("audit = 'audit.jsonl'");
    let file = home.file("audit.jsonl");
    let mut gateway = home.serve();
    for _ in 0..5 {
        let headers = [("Authorization", "Bearer guess")];
        assert_eq!(http::request(gateway.address, "GET", "/api/v1/status", &headers, b"").status, 401);
    }
    assert!(gateway.stop().success());
    let lines = lines(&file);
    assert_eq!(lines.len(), 1, "further ones are counted in the next line: {lines:?}");
    let fields = ["caller", "method", "name", "decision", "outcome"].map(|key| lines[0][key].as_str());
    assert_eq!(fields, ["", "login", "127.0.0.1", "denied", "denied"].map(Some));
}

#[test]
fn audit_verify_names_the_first_wrong_line() {
    let home = home("audit = 'audit.jsonl'");
    let file = home.file("audit.jsonl");
    let mut gateway = home.serve();
    for text in ["one", "two", "three"] {
        call(&gateway, "ci-Token", "fake__echo", &json!({ "text": text }));
    }
    assert!(gateway.stop().success());
    let intact = home.run(&["audit", "verify", "--json"]);
    assert_eq!(intact.status.code(), Some(0), "{intact:?}");
    let report: Value = serde_json::from_slice(&intact.stdout).expect("JSON");
    assert_eq!((&report["intact"], &report["lines"]), (&json!(true), &json!(3)));
    let text = std::fs::read_to_string(&file).expect("the audit");
    std::fs::write(&file, text.replacen("\"caller\":\"ci\"", "\"caller\":\"xx\"", 1)).expect("a change");
    let broken = home.run(&["audit", "verify"]);
    assert_eq!(broken.status.code(), Some(2), "{broken:?}");
    let stderr = String::from_utf8_lossy(&broken.stderr);
    assert!(stderr.contains("audit.jsonl:1: the chain is broken"), "{stderr}");
}

#[test]
fn audit_on_a_full_disk_is_reported_and_fails_no_call() {
    let home = home("audit = 'audit.jsonl'");
    let file = home.file("audit.jsonl");
    let real = home.file("real.jsonl");
    std::os::unix::fs::symlink("/dev/full", &file).expect("a link");
    let mut gateway = home.serve();
    let echo = |text: &str| {
        assert!(call(&gateway, "ci-Token", "fake__echo", &json!({"text": text})).text().contains(text));
    };
    echo("one");
    wait_until("the error is reported", || {
        gateway.stderr_lines().iter().any(|line| line.contains("No space left"))
    });
    echo("two");
    let status = String::from_utf8(home.run(&["status", "--json"]).stdout).expect("text");
    let status: Value = serde_json::from_str(&status).expect("an object");
    let problem = status["config"]["problems"][0]["message"].as_str().unwrap_or_default().to_owned();
    assert!(problem.contains("cannot write the audit file"), "{status}");
    std::fs::remove_file(&file).expect("the link is removed");
    std::os::unix::fs::symlink(&real, &file).expect("another link");
    wait_until("both calls are written", || lines(&real).len() == 2);
    assert!(gateway.stop().success());
}

#[test]
fn audit_required_refuses_calls_while_the_disk_is_full() {
    let home = home("audit = 'audit.jsonl'\naudit-required = true");
    let file = home.file("audit.jsonl");
    std::os::unix::fs::symlink("/dev/full", &file).expect("a link");
    let gateway = home.serve();
    let code = || call(&gateway, "ci-Token", "fake__echo", &json!({"text": "x"})).code();
    wait_until("calls are refused", || code() == Some(-31021));
    std::fs::remove_file(&file).expect("the link is removed");
    wait_until("calls are allowed", || code().is_none());
}

#[test]
fn audit_after_a_kill_has_whole_lines_and_is_continued() {
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
    let valid = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    assert_eq!((valid, text.lines().count()), (before + 1, before + 2));
}

#[test]
fn audit_file_and_arguments_change_on_reload() {
    let home = home("audit = 'one.jsonl'");
    let config = std::fs::read_to_string(home.file("config.toml")).expect("the config");
    let mut gateway = home.serve();
    call(&gateway, "ci-Token", "fake__echo", &json!({"text": "first"}));
    // Records that are not written when the file changes go to the new file.
    wait_until("the first call is written", || !lines(&home.file("one.jsonl")).is_empty());
    home.write_config(&config.replace("audit = 'one.jsonl'", "audit = 'two.jsonl'\naudit-arguments = true"));
    gateway.signal(Signal::HUP);
    wait_until("it is read again", || {
        gateway.stderr_lines().iter().any(|line| line.contains("config reloaded"))
    });
    call(&gateway, "ci-Token", "fake__echo", &json!({"text": "second", "api_key": "k"}));
    assert!(gateway.stop().success());
    let one = lines(&home.file("one.jsonl"));
    let two = lines(&home.file("two.jsonl"));
    assert_eq!((one.len(), two.len()), (1, 1));
    assert!(one[0].get("arguments").is_none());
    assert_eq!(two[0]["arguments"], json!({"text": "second", "api_key": "[redacted]"}));
}

#[test]
fn audit_records_calls_of_the_command_line() {
    let home = home("audit = 'audit.jsonl'");
    assert!(home.run(&["call", "fake__echo", "text=hi"]).status.success());
    assert_eq!(
        lines(&home.file("audit.jsonl")).iter().map(summary).collect::<Vec<_>>(),
        [["local", "fake", "echo", "allowed", "ok"]]
    );
}
