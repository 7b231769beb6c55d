//! `toolcrib serve --replace`: a new process takes the sockets and the sessions of the running gateway over.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient};
use test_support::gateway::{GatewayProcess, Home};
use test_support::wait_until;

fn home() -> Home {
    let server = |name| test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, &[]);
    Home::new(env!("CARGO_BIN_EXE_crib"), &(server("fake") + &server("asks")))
}

fn replace(home: &Home) -> GatewayProcess {
    home.serve_with(|command| {
        command.arg("--replace");
    })
}

fn gateway_pid(home: &Home) -> u64 {
    let status: Value = serde_json::from_slice(&home.run(&["status", "--json"]).stdout).unwrap_or_default();
    status["pid"].as_u64().unwrap_or(0)
}

/// A keep-alive connection.
struct Connection(TcpStream);

impl Connection {
    fn open(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).unwrap())
    }

    /// Sends a request, and returns the head of its response.
    fn get(&mut self, path: &str) -> String {
        self.0.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        let mut received = Vec::new();
        let mut buffer = [0; 1 << 10];
        loop {
            let count = self.0.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&received).to_lowercase();
            // The bodies are JSON objects without inner braces.
            if count == 0 || text.ends_with('}') {
                return text;
            }
        }
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 1]), Ok(0))
    }
}

/// Calls until `stop` is set. Every call must succeed.
fn keep_calling(mut call: impl FnMut(&str) -> String, calls: &AtomicUsize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let text = format!("call {}", calls.fetch_add(1, Ordering::Relaxed));
        assert_eq!(call(&text), text);
    }
}

#[test]
fn replaced_gateway_loses_no_call_and_no_session() {
    let home = home();
    let mut first = home.serve();
    let address = first.address;
    let mut idle_session = HttpClient::new(address, "/mcp", Era::Session);
    let mut stream = idle_session.send_without_body("GET");
    let mut kept_open = Connection::open(address);
    assert!(kept_open.get("/readyz").starts_with("http/1.1 200"));
    let stop = AtomicBool::new(false);
    let calls = AtomicUsize::new(0);
    let enough = |before: usize| wait_until("clients call", || calls.load(Ordering::Relaxed) > before + 30);
    // It outlives the clients.
    let third = std::thread::scope(|scope| {
        for era in [Era::Session, Era::Stateless] {
            let mut client = HttpClient::new(address, "/mcp", era);
            let mut pipe = StdioClient::new(home.command(&["stdio"]), era);
            let (calls, stop) = (&calls, &stop);
            let echo = |text: &str| json!({"text": text});
            scope.spawn(move || keep_calling(|text| client.text("fake__echo", &echo(text)), calls, stop));
            scope.spawn(move || keep_calling(|text| pipe.text("fake__echo", &echo(text)), calls, stop));
        }
        let mut slow = HttpClient::new(address, "/mcp", Era::Stateless);
        let in_flight = scope.spawn(move || slow.text("fake__sleep", &json!({"ms": 1500})));
        let mut asked = HttpClient::new(address, "/mcp", Era::Session);
        let ask = json!({"method": "elicitation/create", "message": "sure?"});
        let mut answers = asked.open("tools/call", &json!({"name": "asks__ask", "arguments": ask}));
        let question = answers.next_event().unwrap();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        enough(0);
        let mut second = replace(&home);
        // The new gateway passes the answer on to the one that asked.
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}});
        assert_eq!(asked.post_raw("", None, &answer.to_string()).status, 202);
        assert_eq!(answers.next_event().unwrap()["result"]["content"][0]["text"], r#"{"action":"accept"}"#);
        assert_eq!((second.address, gateway_pid(&home)), (address, u64::from(second.pid())));
        let last = kept_open.get("/readyz");
        assert!(last.starts_with("http/1.1 503") && last.contains("connection: close"), "{last}");
        assert!(kept_open.is_closed());
        enough(calls.load(Ordering::Relaxed));
        let third = replace(&home);
        enough(calls.load(Ordering::Relaxed));
        assert_eq!(in_flight.join().unwrap(), "slept");
        assert!(first.wait().success() && second.wait().success());
        assert!(stream.next_event().is_none(), "the stream of the first gateway has ended");
        // Handed over twice, and used by the third gateway for the first time.
        assert_eq!(idle_session.text("fake__echo", &json!({"text": "still here"})), "still here");
        enough(calls.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        third
    });
    assert_eq!(gateway_pid(&home), u64::from(third.pid()));
    assert!(home.run(&["stop-gateway"]).status.success());
    assert_eq!(gateway_pid(&home), 0);
}

#[test]
fn failed_replacement_leaves_the_gateway_running() {
    let home = home();
    let fail = |args: &[&str], status: i32, message: &str| {
        let output = home.run(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.contains(message)), (Some(status), true), "{stderr}");
    };
    // Without a running gateway it starts like any other.
    let mut gateway = replace(&home);
    let mut session = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let here = gateway.address.to_string();
    fail(
        &["serve", "--replace", "--listen", "127.0.0.1:1"],
        1,
        &format!("the running gateway listens on {here}"),
    );
    let config = std::fs::read_to_string(home.file("config.toml")).unwrap();
    // Fails after the listeners were handed over: the folder of the audit file cannot be created.
    home.write_config(&format!("audit = '/dev/null/audit'\naudit-required = true\n{config}"));
    fail(&["serve", "--replace", "--listen", &here], 6, "audit");
    let has_failed = |line: &String| line.contains("replace this one failed");
    wait_until("the gateway goes on", || {
        gateway.stderr_lines().iter().filter(|line| has_failed(line)).count() == 2
    });
    home.write_config("nonsense");
    fail(&["serve", "--replace", "--listen", &here], 6, "is invalid");
    home.write_config(&config);
    assert_eq!(session.text("fake__echo", &json!({"text": "on"})), "on");
    assert!(Connection::open(gateway.address).get("/readyz").starts_with("http/1.1 200"));
    assert_eq!(gateway_pid(&home), u64::from(gateway.pid()));
    assert!(gateway.stop().success());
}
