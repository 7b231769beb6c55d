//! Two gateways on one Valkey or Redis: a session is served by both, and survives the one that has it.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::net::{SocketAddr, TcpListener};

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::gateway::{GatewayProcess, Home, server_config};
use test_support::http::{self, Stream};
use test_support::store_server::StoreServer;
use test_support::{count_starts, wait_until};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// One of several gateways with the same config, except for its address.
struct ReplicaProcess {
    home: Home,
    gateway: GatewayProcess,
}

impl ReplicaProcess {
    fn start(store: &StoreServer) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let config = format!(
            "{}[store]\nurl = 'redis://{}'\nkey = '{KEY}'\naddress = 'http://{address}'\n",
            server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]),
            store.address()
        );
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config);
        let gateway = home.serve_command(home.command(&["serve", "--listen", &address]));
        Self { home, gateway }
    }

    /// Sends a message in a session.
    fn post(&self, session: Option<&str>, body: &Value) -> Stream {
        post(self.gateway.address, session, body)
    }
}

fn post(address: SocketAddr, session: Option<&str>, body: &Value) -> Stream {
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("Connection", "close"),
    ];
    headers.extend(session.map(|session| ("Mcp-Session-Id", session)));
    http::open(address, "POST", "/mcp", &headers, body.to_string().as_bytes())
}

fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
}

#[test]
fn session_outlives_the_killed_gateway_that_has_it() {
    let Some(store) = StoreServer::start(&[]) else { return };
    let mut owner = ReplicaProcess::start(&store);
    let other = ReplicaProcess::start(&store);
    let client = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client});
    // The gateways connect to the store in the background.
    let mut session = None;
    wait_until("a session is opened", || {
        let opened = owner.post(None, &initialize).finish();
        session = opened.header("mcp-session-id").map(str::to_owned);
        opened.status == 200
    });
    let session = session.unwrap();
    let echo = call(2, "fake__echo", &json!({"text": "hello"}));
    let echoed = other.post(Some(&session), &echo).finish();
    assert_eq!(echoed.message()["result"]["content"][0]["text"], "hello", "{}", echoed.text());
    assert!(other.gateway.children().is_empty(), "the server runs where the session is");
    let file = owner.home.file("runs");
    let count = call(3, "fake__count", &json!({"file": file.to_str().unwrap(), "then": "hang"}));
    let mut hanging = other.post(Some(&session), &count);
    wait_until("the call has run", || count_starts(&file) == 1);
    owner.gateway.signal(Signal::KILL);
    owner.gateway.wait();
    let lost = hanging.next_event().expect("a response");
    assert_eq!((&lost["id"], &lost["error"]["data"]["sent"]), (&json!(3), &json!("maybe")), "{lost}");
    let echoed = other.post(Some(&session), &echo).finish();
    assert_eq!(echoed.message()["result"]["content"][0]["text"], "hello", "{}", echoed.text());
    assert_eq!(count_starts(&file), 1, "the call ran once");
}

#[test]
fn check_says_what_forwarding_needs() {
    let store = "[store]\nurl = 'redis://127.0.0.1'\n";
    let program = env!("CARGO_BIN_EXE_crib");
    for (config, code, expected) in [
        (store.to_owned(), 0, "`store.url` without `store.key`"),
        (format!("{store}key = '{KEY}'\n"), 0, "because `store.address` is not set"),
        (format!("{store}address = 'http://a:1'\n"), 6, "`store.address` requires `store.key`"),
        (format!("{store}key = '{KEY}'\naddress = 'a:1'\n"), 6, "must be `http://HOST:PORT`"),
        (format!("{store}key = '{KEY}'\naddress = 'http://a:1'\n"), 0, "no problems"),
    ] {
        let checked = Home::new(program, &config).run(&["check"]);
        let text = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
        assert!(text.contains(expected), "{config}: {text}");
        assert_eq!(checked.status.code(), Some(code), "{config}: {text}");
    }
}
