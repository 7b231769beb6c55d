//! `toolcrib stdio` while its gateway restarts: the agent's connection continues with the next gateway, and no call is
//! executed twice.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on failure")]

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, StdioClient};
use test_support::gateway::Home;
use test_support::{count_starts, wait_until};

fn home() -> Home {
    let fake = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]);
    Home::new(env!("CARGO_BIN_EXE_crib"), &fake)
}

/// Returns how many calls have ended at the running gateway.
fn count_calls(home: &Home) -> u64 {
    let status: Value = serde_json::from_slice(&home.run(&["status", "--json"]).stdout).unwrap_or_default();
    status["servers"][0]["calls"].as_u64().unwrap_or(0)
}

/// Reads until each of these requests is answered; returns all messages in order.
fn read_answers(pipe: &mut StdioClient, ids: &[u64]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    let answered =
        |all: &[Value], id: u64| all.iter().any(|line| line["id"] == id && line["method"].is_null());
    while !ids.iter().all(|id| answered(&all, *id)) {
        all.push(pipe.read().expect("an answer before the end"));
    }
    all
}

fn answer(lines: &[Value], id: u64) -> &Value {
    let mut answers = lines.iter().filter(|line| line["id"] == id && line["method"].is_null());
    let answer = answers.next().unwrap();
    assert!(answers.next().is_none(), "answered once: {lines:?}");
    answer
}

#[test]
fn killed_gateway_fails_only_the_call_that_may_have_run() {
    for era in [Era::Session, Era::Stateless] {
        let home = home();
        let mut gateway = home.serve();
        let mut pipe = StdioClient::new(home.command(&["stdio"]), era);
        pipe.request("tools/list", &json!({}));
        let before = home.file("before");
        let during = home.file("during");
        let count = |file: &std::path::Path, then: &str| json!({"name": "fake__count", "arguments": {"file": file.to_str().unwrap(), "then": then}});
        let in_flight = pipe.send("tools/call", &count(&before, "hang"));
        wait_until("the call has run", || count_starts(&before) == 1);
        gateway.signal(Signal::KILL);
        gateway.wait();
        let sent_meanwhile = pipe.send("tools/call", &count(&during, ""));
        let listed = pipe.send("tools/list", &json!({}));
        let _next = home.serve();
        let lines = read_answers(&mut pipe, &[in_flight, sent_meanwhile, listed]);
        let error = &answer(&lines, in_flight)["error"];
        assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-31015), &json!("lost")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("the call may have run"), "{error}");
        assert_eq!(answer(&lines, sent_meanwhile)["result"]["content"][0]["text"], "1", "{lines:?}");
        assert!(answer(&lines, listed)["result"]["tools"].is_array());
        let changed = lines.iter().any(|line| line["method"] == "notifications/tools/list_changed");
        assert_eq!(changed, era == Era::Session, "{lines:?}");
        assert_eq!((count_starts(&before), count_starts(&during)), (1, 1), "each call ran once");
        assert!(count_calls(&home) >= 1, "it is attached to the next gateway");
    }
}

#[test]
fn replaced_gateway_fails_no_call() {
    let home = home();
    let mut gateway = home.serve();
    let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Session);
    pipe.text("fake__echo", &json!({"text": "up"}));
    let in_flight = pipe.send("tools/call", &json!({"name": "fake__sleep", "arguments": {"ms": 1500}}));
    wait_until("the call is in flight", || {
        let status: Value =
            serde_json::from_slice(&home.run(&["status", "--json"]).stdout).unwrap_or_default();
        status["servers"][0]["in_flight"] == 1
    });
    gateway.signal(Signal::TERM);
    wait_until("it is stopping", || gateway.stderr_lines().iter().any(|line| line.starts_with("stopping")));
    let file = home.file("count");
    let count = json!({"name": "fake__count", "arguments": {"file": file.to_str().unwrap()}});
    let meanwhile = pipe.send("tools/call", &count);
    assert!(gateway.wait().success());
    let _next = home.serve();
    let lines = read_answers(&mut pipe, &[in_flight, meanwhile]);
    assert_eq!(answer(&lines, in_flight)["result"]["content"][0]["text"], "slept", "{lines:?}");
    assert_eq!(answer(&lines, meanwhile)["result"]["content"][0]["text"], "1", "{lines:?}");
    assert_eq!((count_starts(&file), count_calls(&home)), (1, 1));
}

#[test]
fn stdio_serves_itself_when_the_gateway_does_not_come_back() {
    let home = home();
    let mut gateway = home.serve();
    let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Session);
    assert_eq!(pipe.text("fake__echo", &json!({"text": "before"})), "before");
    gateway.signal(Signal::KILL);
    gateway.wait();
    assert_eq!(pipe.text("fake__echo", &json!({"text": "after"})), "after");
    let child: u32 = pipe.text("fake__pid", &json!({})).parse().unwrap();
    pipe.close_input();
    wait_until("it exits", || pipe.has_ended());
    wait_until("its server has exited", || !test_support::process::is_alive(child));
}

#[test]
fn stdio_attaches_again_when_a_gateway_starts() {
    let home = home();
    let mut gateway = home.serve();
    let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Session);
    assert_eq!(pipe.text("fake__echo", &json!({"text": "attached"})), "attached");
    assert!(gateway.stop().success());
    // Answered after the time that stdio waits for the gateway.
    let own_server: u32 = pipe.text("fake__pid", &json!({})).parse().unwrap();
    let _next = home.serve();
    wait_until("its calls go to the gateway", || {
        assert_eq!(pipe.text("fake__echo", &json!({"text": "hi"})), "hi");
        count_calls(&home) > 0
    });
    wait_until("its own server has exited", || !test_support::process::is_alive(own_server));
}

#[test]
fn clients_wait_at_an_activated_socket_between_two_gateways() {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    // Processes that other tests start would inherit the listener.
    if !test_support::in_own_process!() {
        return;
    }
    let home = home();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let serve = || {
        let script = format!(r#"LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&{}"#, listener.as_raw_fd());
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_crib"), "serve"]);
        command.env("TOOLCRIB_HOME", home.path());
        home.serve_command(command)
    };
    let mut first = serve();
    assert_eq!(first.address, listener.local_addr().unwrap());
    assert!(first.stop().success());
    let mut early = std::net::TcpStream::connect(first.address).unwrap();
    early.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let _second = serve();
    early.set_read_timeout(Some(test_support::WAIT_LIMIT)).unwrap();
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
