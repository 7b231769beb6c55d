//! Clients that do not read, use up all files, or stay idle: they affect only themselves.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, message};
use test_support::gateway::Home;
use test_support::{http, wait_until};

fn home() -> Home {
    let fake = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]);
    Home::new(env!("CARGO_BIN_EXE_crib"), &fake)
}

/// Returns the bytes of a stateless request.
fn request(method: &str, name: Option<&str>, params: &Value) -> String {
    let body = message(Era::Stateless, &json!(1), method, params).to_string();
    let name = name.map_or(String::new(), |name| format!("Mcp-Name: {name}\r\n"));
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, \
         text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn clients_that_do_not_read_large_results_delay_no_other() {
    const LARGE: usize = 4 << 20;
    let home = home();
    let gateway = home.serve();
    let mut reader = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    reader.text("fake__echo", &json!({"text": "up"}));
    let arguments = json!({"name": "fake__raw", "arguments": {"json": format!(r#"{{"content":[],"x":"{}"}}"#, "x".repeat(LARGE))}});
    let request = request("tools/call", Some("fake__raw"), &arguments);
    let not_reading: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    // In steps, because a busy machine takes long for all of them.
    for answers in [6, 11, 16, 21] {
        wait_until("the calls are answered", || {
            let status = http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message();
            status["servers"][0]["calls"].as_u64() >= Some(answers)
        });
    }
    for number in 0..50 {
        let text = number.to_string();
        assert_eq!(reader.text("fake__echo", &json!({"text": text})), text);
    }
    assert!(memory(gateway.pid()) < 600 << 20, "{}", memory(gateway.pid()));
    drop(not_reading);
}

#[test]
fn gateway_without_free_descriptors_answers_status_and_recovers() {
    let home = home();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", r#"ulimit -n 64; exec "$@""#, "sh", env!("CARGO_BIN_EXE_crib")]);
    limited.args(["serve", "--listen", "127.0.0.1:0"]).env("TOOLCRIB_HOME", home.path());
    let gateway = home.serve_command(limited);
    // Listening clients are not disconnected for being idle.
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let request = request("subscriptions/listen", None, &listen);
    let listening: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count();
    wait_until("no more connections are accepted", || open() >= 40);
    let status: Value = serde_json::from_slice(&home.run(&["status", "--json"]).stdout).unwrap();
    assert_eq!(status["servers"][0]["name"], "fake");
    let called = home.run(&["call", "fake__echo", "text=hi"]);
    assert_eq!(String::from_utf8_lossy(&called.stdout).trim(), "hi", "servers can still be started");
    drop(listening);
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(client.text("fake__echo", &json!({"text": "again"})), "again");
}

#[test]
fn idle_sessions_are_cheap_and_evicted_unless_they_listen() {
    // 10,000 when run by hand.
    let requested = std::env::var("TOOLCRIB_SESSIONS").ok().and_then(|count| count.parse().ok());
    let sessions: u64 = requested.unwrap_or(1_000);
    let fake = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]);
    let home =
        Home::new(env!("CARGO_BIN_EXE_crib"), &format!("[limits]\nsessions = {}\n{fake}", sessions + 1));
    let gateway = home.serve();
    let open = || HttpClient::new(gateway.address, "/mcp", Era::Session);
    let mut listener = open();
    let stream = listener.send_without_body("GET");
    assert_eq!(stream.status, 200);
    listener.text("fake__echo", &json!({"text": "up"}));
    let before = memory(gateway.pid());
    let mut oldest = open();
    let open_many = || (0..sessions / 8).for_each(|_| drop(open()));
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(open_many))));
    let each = memory(gateway.pid()).saturating_sub(before) / sessions;
    assert!(each <= 8 << 10, "{each} bytes for each of {sessions} sessions");
    // One more than the limit.
    drop((open(), open()));
    assert_eq!(oldest.request("tools/list", &json!({})).status, 404, "the longest idle session was evicted");
    assert_eq!(listener.text("fake__echo", &json!({"text": "still"})), "still");
}
