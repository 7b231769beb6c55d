//! Approvals in every spelling of their path, on every listener.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use test_support::client::{Era, message};
use test_support::gateway::{Home, server_config};
use test_support::{WAIT_LIMIT, wait_until};

const CALLERS: &str =
    "[callers.ci]\ntoken = 'ci-token-1234567'\n[callers.root]\ntoken = 'root-token-123456'\nadmin = true\n";

fn home(more: &str) -> Home {
    let server = server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]);
    let rules = "[policy]\nask = [\"fake.echo\"]\n";
    Home::new(env!("CARGO_BIN_EXE_crib"), &format!("{server}{more}{rules}"))
}

/// Returns a path in spellings that some router could take for the same.
fn spellings(path: &str) -> Vec<String> {
    let (parent, last) = path.rsplit_once('/').unwrap();
    let (first, rest) = last.split_at(1);
    vec![
        format!("/{path}"),
        format!("//{path}"),
        path.replacen("/api", "/%61pi", 1),
        format!("{parent}/%{:02x}{rest}", first.as_bytes()[0]),
        format!("{parent}//{last}"),
        format!("{parent}%2f{last}"),
        format!("{path}/"),
        format!("/.{path}"),
        format!("/x/..{path}"),
        format!("{parent}/{}", last.to_uppercase()),
        format!("{path}%00"),
        format!("{path};x"),
    ]
}

/// Sends one request on a new connection. Returns the status and the JSON body.
fn send<S: Read + Write>(mut stream: S, method: &str, path: &str, token: &str, body: &str) -> (u16, Value) {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n\
         Mcp-Name: fake__echo\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let response = String::from_utf8_lossy(&response).into_owned();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap(), serde_json::from_str(body).unwrap_or_default())
}

/// Checks that no spelling of an approval is accepted from this listener, and that the call stays refused.
fn assert_no_approval<S: Read + Write>(connect: impl Fn() -> S, token: &str) -> String {
    let params = json!({"name": "fake__echo", "arguments": {"text": "x"}});
    let call = message(Era::Stateless, &1.into(), "tools/call", &params).to_string();
    let refused = send(connect(), "POST", "/mcp", token, &call).1;
    let id = refused["error"]["data"]["approval"].as_str().unwrap_or_else(|| panic!("{refused}")).to_owned();
    for route in [format!("/api/v1/calls/{id}/approve"), "/api/v1/servers/fake/approve".to_owned()] {
        let (status, body) = send(connect(), "POST", &route, token, "");
        assert_eq!(status, 403, "{route}: {body}");
        for path in spellings(&route) {
            let (status, body) = send(connect(), "POST", &path, token, "");
            assert!(matches!(status, 403..=405), "{path}: {status} {body}");
        }
    }
    assert_eq!(send(connect(), "POST", "/mcp", token, &call).1["error"]["code"], -31010);
    id
}

#[test]
fn approval_path_in_any_spelling_is_refused_over_tcp() {
    let home = home("");
    let gateway = home.serve();
    let connect = || {
        let stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream
    };
    let id = assert_no_approval(connect, "none");
    assert_eq!(
        home.run(&["approve", "--call", &id, "--yes"]).status.code(),
        Some(0),
        "the own socket approves"
    );
}

#[test]
fn approval_path_needs_an_admin_with_callers() {
    let home = home(CALLERS);
    let gateway = home.serve();
    let connect = || {
        let stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream
    };
    let id = assert_no_approval(connect, "ci-token-1234567");
    for path in spellings(&format!("/api/v1/calls/{id}/approve")) {
        // A spelling may be the path of a record, which cannot be posted to.
        let status = send(connect(), "POST", &path, "root-token-123456", "").0;
        assert!(matches!(status, 404 | 405), "{path}: {status}");
    }
    let path = format!("/api/v1/calls/{id}/approve");
    assert_eq!(send(connect(), "POST", &path, "root-token-123456", "").0, 200, "an admin approves");
}

#[test]
fn unix_listener_approves_for_its_user_in_one_spelling() {
    let home = home("");
    let socket = home.file("public.sock");
    let mut command = home.command(&["serve", "--listen", &format!("unix:{}", socket.display())]);
    let mut gateway = KillOnDrop(command.stderr(Stdio::null()).spawn().unwrap());
    wait_until("the gateway listens", || UnixStream::connect(&socket).is_ok());
    let connect = || {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream
    };
    let params = json!({"name": "fake__echo", "arguments": {"text": "x"}});
    let call = message(Era::Stateless, &1.into(), "tools/call", &params).to_string();
    let refused = send(connect(), "POST", "/mcp", "none", &call).1;
    let route = format!("/api/v1/calls/{}/approve", refused["error"]["data"]["approval"].as_str().unwrap());
    for path in spellings(&route) {
        let status = send(connect(), "POST", &path, "none", "").0;
        assert!(matches!(status, 404 | 405), "{path}: {status}");
    }
    assert_eq!(send(connect(), "POST", "/mcp", "none", &call).1["error"]["code"], -31010);
    assert_eq!(send(connect(), "POST", &route, "none", "").0, 200);
    test_support::process::send_signal(gateway.0.id(), rustix::process::Signal::TERM);
    gateway.0.wait().unwrap();
}

/// A process that ends with the test.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
