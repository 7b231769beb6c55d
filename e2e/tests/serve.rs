//! The gateway as a process: who it refuses, what it answers to nonsense, and how it starts, reloads and ends.

use e2e::client::{Era, HttpClient, PipeClient, message};
use e2e::gateway::{Gateway, Home};
use e2e::http::{self, Response};
use e2e::{process, starts, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const BOTH: (&str, &str) = ("Accept", "application/json, text/event-stream");
const META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

fn server(name: &str, args: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_fake-server");
    format!("[servers.{name}]\ncommand = '{program}'\nargs = {}\n", json!(args))
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

fn post(gateway: &Gateway, headers: &[(&str, &str)], body: &str) -> Response {
    let headers = [&[JSON, BOTH], headers].concat();
    http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes())
}

/// A stateless request with these headers beside the usual ones.
fn stateless(gateway: &Gateway, headers: &[(&str, &str)], method: &str, params: &str) -> Response {
    post(gateway, headers, &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#))
}

#[test]
fn only_its_own_hosts_and_origins_are_served() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let port = gateway.address.port();
    for bad in ["evil.example", "localhost.evil.example", "user@localhost", &format!("evil.example:{port}")] {
        assert_eq!(post(&gateway, &[("Host", bad)], ping).status, 403, "{bad}");
        assert_eq!(
            http::request(gateway.address, "GET", "/api/v1/status", &[("Host", bad)], b"").status,
            403
        );
    }
    for bad in ["https://evil.example", "null", "http://localhost.evil.example", "file://"] {
        assert_eq!(post(&gateway, &[("Origin", bad)], ping).status, 403, "{bad}");
    }
    let own = format!("http://localhost:{port}");
    assert_ne!(post(&gateway, &[("Origin", &own), ("Host", &own[7..])], ping).status, 403);
    assert_eq!(gateway.children(), [0_u32; 0], "nothing was started for any of them");
}

#[test]
fn nonsense_is_answered_and_executes_nothing() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("nonsense", -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"x","params":NaN}"#, -32700),
        ("[]", -32600),
        ("42", -32600),
        (r#"{"id":1,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","Method":"x"}"#, -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]"#, -32600),
        (&deep, -32600),
    ] {
        let response = post(&gateway, &[], body);
        let shown = &body[..body.len().min(80)];
        assert_eq!((response.status, response.code()), (400, Some(code)), "{shown}: {}", response.text());
    }
    let invalid = http::request(gateway.address, "POST", "/mcp", &[JSON, BOTH], b"{\"jsonrpc\":\"\xff\"}");
    assert_eq!(invalid.status, 400);
    let plain =
        http::request(gateway.address, "POST", "/mcp", &[("Content-Type", "text/plain"), BOTH], b"{}");
    assert_eq!(plain.status, 415);
    assert_eq!(gateway.children(), [0_u32; 0]);
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let home = home(&format!("[limits]\nbody = '64KiB'\n{}", server("fake", &[])));
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(client.text("fake__echo", &json!({"text": "x".repeat(60_000)})).len(), 60_000);
    let large = client
        .request("tools/call", &json!({"name": "fake__echo", "arguments": {"text": "x".repeat(100_000)}}));
    assert_eq!(large.status, 413);
    assert_eq!(large.code(), Some(-32600), "{}", large.text());
    let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", 100_000, "x".repeat(100_000));
    let headers = [JSON, BOTH, ("Transfer-Encoding", "chunked")];
    let chunked = http::request(gateway.address, "POST", "/mcp", &headers, chunk.as_bytes());
    assert_eq!(chunked.status, 413);
}

#[test]
fn what_does_not_exist_is_said_not_to() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp", era);
        let method = client.request("no/such/method", &json!({}));
        let status = if era == Era::Stateless { 404 } else { 200 };
        assert_eq!((method.status, method.code()), (status, Some(-32601)), "{}", method.text());
        for (name, arguments) in [
            (json!("fake__nothing"), json!({})),
            (json!("nothing"), json!({})),
            (json!(7), json!({})),
            (json!(null), json!({})),
            (json!("fake__echo"), json!([])),
            (json!("fake__echo"), json!("text")),
        ] {
            let response = client.request("tools/call", &json!({"name": name, "arguments": arguments}));
            assert_eq!(response.code(), Some(-32602), "{era:?} {name} {arguments}: {}", response.text());
        }
        let near = client.call("fake__eco", &json!({}));
        assert_eq!(near["error"]["data"]["hint"], "did you mean `fake__echo`?", "{near}");
        let cursor = client.request("tools/list", &json!({"cursor": "made up"}));
        assert_eq!(cursor.code(), Some(-32602));
    }
}

#[test]
fn the_headers_of_a_stateless_request_must_agree_with_its_body() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let version = ("MCP-Protocol-Version", "2026-07-28");
    let (method, name) = (("Mcp-Method", "tools/call"), ("Mcp-Name", "fake__pid"));
    let params = format!(r#"{{"name":"fake__pid","arguments":{{}},"_meta":{META}}}"#);
    for (headers, why) in [
        (vec![method, name], "no version"),
        (vec![("MCP-Protocol-Version", "2025-11-25"), method, name], "another version"),
        (vec![version, name], "no method"),
        (vec![version, ("Mcp-Method", "tools/list"), name], "another method"),
        (vec![version, ("Mcp-Method", "Tools/Call"), name], "another case"),
        (vec![version, method], "no name"),
        (vec![version, method, ("Mcp-Name", "fake__echo")], "another name"),
        (vec![version, method, ("Mcp-Name", "=?base64?!!?=")], "no base64"),
        (vec![version, method, name, ("Mcp-Name", "fake__echo")], "two names"),
    ] {
        let response = stateless(&gateway, &headers, "tools/call", &params);
        assert_eq!((response.status, response.code()), (400, Some(-32020)), "{why}: {}", response.text());
    }
    let coded = ("Mcp-Name", "=?base64?ZmFrZV9fcGlk?=");
    assert_eq!(stateless(&gateway, &[version, method, coded], "tools/call", &params).status, 200);
}

#[test]
fn a_stateless_request_carries_what_its_era_needs() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let list = ("Mcp-Method", "tools/list");
    let version = |date| ("MCP-Protocol-Version", date);
    let refused = stateless(&gateway, &[version("2026-07-28"), list], "tools/list", "{}");
    assert_eq!((refused.status, refused.code()), (400, Some(-32602)), "{}", refused.text());
    let no_capabilities = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
    let refused = stateless(&gateway, &[version("2026-07-28"), list], "tools/list", no_capabilities);
    assert_eq!((refused.status, refused.code()), (400, Some(-32602)), "{}", refused.text());
    let future = format!(r#"{{"_meta":{}}}"#, META.replace("2026-07-28", "2099-01-01"));
    let refused = stateless(&gateway, &[version("2099-01-01"), list], "tools/list", &future);
    assert_eq!((refused.status, refused.code()), (400, Some(-32022)), "{}", refused.text());
    assert_eq!(refused.message()["error"]["data"]["requested"], "2099-01-01");
    let good = stateless(
        &gateway,
        &[version("2026-07-28"), ("Mcp-Method", "server/discover")],
        "server/discover",
        &format!(r#"{{"_meta":{META}}}"#),
    );
    assert_eq!(good.message()["result"]["supportedVersions"][0], "2026-07-28", "{}", good.text());
}

#[test]
fn sessions_follow_the_rules_of_their_era() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert_eq!(post(&gateway, &[], list).status, 400, "no session");
    for unknown in ["0123456789abcdef", "x", &"x".repeat(5000)] {
        assert_eq!(post(&gateway, &[("Mcp-Session-Id", unknown)], list).status, 404, "{}", &unknown[..1]);
    }
    for method in ["GET", "DELETE"] {
        assert_eq!(http::request(gateway.address, method, "/mcp", &[BOTH], b"").status, 405, "{method}");
        let unknown = [BOTH, ("Mcp-Session-Id", "nobody")];
        assert_eq!(http::request(gateway.address, method, "/mcp", &unknown, b"").status, 404, "{method}");
    }
    for method in ["PUT", "PATCH", "OPTIONS", "TRACE"] {
        assert_eq!(http::request(gateway.address, method, "/mcp", &[], b"").status, 405, "{method}");
    }
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Session);
    assert_eq!(client.request("ping", &json!({})).message()["result"], json!({}));
    let elsewhere = http::request(
        gateway.address,
        "POST",
        "/mcp/s/fake",
        &[JSON, BOTH, ("Mcp-Session-Id", client.session.as_deref().unwrap())],
        list.as_bytes(),
    );
    assert_eq!(elsewhere.status, 404, "a session is for one view");
    let ended = client.bare("DELETE").finish();
    assert!(matches!(ended.status, 200 | 204), "{}", ended.status);
    assert_eq!(client.request("ping", &json!({})).status, 404, "it is over");
}

#[test]
fn health_and_readiness_are_told_and_the_rest_is_not_found() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http::request(gateway.address, "GET", path, &[], b"").status, 200, "{path}");
    }
    for path in ["/nothing", "/mcp/p/none", "/api/v1/servers/nobody", "/api/v1/stdio"] {
        assert_eq!(http::request(gateway.address, "GET", path, &[], b"").status, 404, "{path}");
    }
}

#[test]
fn ten_servers_seen_once_are_listed_by_the_next_gateway_with_none_of_them_started() {
    let home = home("");
    let count = home.file("starts");
    let args = ["--tools", "5", "--count-file", count.to_str().unwrap()];
    home.write_config(&(0..10).map(|number| server(&format!("s{number}"), &args)).collect::<String>());
    let mut first = home.serve();
    assert_eq!(first.children(), [0_u32; 0], "nothing starts before it is asked for");
    assert_eq!(HttpClient::new(first.address, "/mcp", Era::Stateless).tools().len(), 260);
    assert_eq!(starts(&count), 10);
    assert!(first.stop().success());
    let second = home.serve();
    for era in [Era::Session, Era::Stateless] {
        assert_eq!(HttpClient::new(second.address, "/mcp", era).tools().len(), 260);
    }
    assert_eq!((starts(&count), second.children().len()), (10, 0));
}

#[test]
fn a_stop_lets_calls_finish_and_leaves_no_process() {
    let home =
        home(&(server("fake", &["--grandchild"]) + &server("stubborn", &["--ignore-eof", "--ignore-term"])));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut pids: Vec<u32> = Vec::new();
    for tool in ["fake__pid", "fake__grandchild", "stubborn__pid"] {
        pids.push(client.text(tool, &json!({})).parse().unwrap());
    }
    assert!(pids.iter().all(|pid| process::is_alive(*pid)));
    let address = gateway.address;
    let calls: Vec<_> = (0..5)
        .map(|_| {
            std::thread::spawn(move || {
                HttpClient::new(address, "/mcp", Era::Stateless).text("fake__sleep", &json!({"ms": 700}))
            })
        })
        .collect();
    wait_until("all are in flight", || {
        let status: Value = serde_json::from_slice(&home.run(&["status", "--json"]).stdout).unwrap();
        status["servers"].as_array().unwrap().iter().any(|server| server["in_flight"] == 5)
    });
    gateway.signal(Signal::TERM);
    for call in calls {
        assert_eq!(call.join().unwrap(), "slept");
    }
    assert!(gateway.wait().success());
    wait_until("nobody is left", || !pids.iter().any(|pid| process::is_alive(*pid)));
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_second_request_to_stop_does_not_wait_for_calls() {
    let home = home(&server("fake", &[]));
    let mut gateway = home.serve();
    let address = gateway.address;
    let hanging = std::thread::spawn(move || {
        let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
        client.request("tools/call", &json!({"name": "fake__hang", "arguments": {}})).code()
    });
    wait_until("the server runs", || gateway.children().len() == 1);
    let child = gateway.children()[0];
    gateway.signal(Signal::TERM);
    gateway.signal(Signal::INT);
    assert!(gateway.wait().success());
    assert!(!process::is_alive(child));
    // Lost with its server, or refused because the gateway was going down: either way it was told.
    assert!(hanging.join().unwrap().is_some_and(|code| [-31015, -31017].contains(&code)));
}

#[test]
fn a_reload_changes_only_what_changed_and_a_broken_file_changes_nothing() {
    let stays = server("stays", &[]);
    let home = home(&(stays.clone() + &server("goes", &[])));
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let pid = client.text("stays__pid", &json!({}));
    let gone: u32 = client.text("goes__pid", &json!({})).parse().unwrap();
    home.write_config(&(stays + &server("comes", &[])));
    gateway.signal(Signal::HUP);
    wait_until("the new server is there", || client.tools().iter().any(|tool| tool == "comes__echo"));
    wait_until("the old one is gone", || !process::is_alive(gone));
    assert!(!client.tools().iter().any(|tool| tool.starts_with("goes__")));
    assert_eq!(client.text("stays__pid", &json!({})), pid, "what did not change keeps its process");
    home.write_config("[servers.broken\n");
    let said = gateway.said().len();
    gateway.signal(Signal::HUP);
    wait_until("it says so", || gateway.said().len() > said);
    assert_eq!(client.text("stays__pid", &json!({})), pid);
    assert_eq!(client.text("comes__echo", &json!({"text": "still here"})), "still here");
}

#[test]
fn a_second_gateway_for_the_same_config_is_refused() {
    let home = home(&server("fake", &[]));
    let _gateway = home.serve();
    let second = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(!second.status.success());
    assert!(!second.stderr.is_empty());
}

#[test]
fn a_gateway_reachable_by_others_or_without_a_valid_config_does_not_start() {
    let home = home(&server("fake", &[]));
    let open = home.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(1), "{}", String::from_utf8_lossy(&open.stderr));
    home.write_config("[servers.fake]\ncommand = ");
    let broken = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(broken.status.code(), Some(6), "{}", String::from_utf8_lossy(&broken.stderr));
    assert!(
        String::from_utf8_lossy(&broken.stderr).contains("config.toml:2:"),
        "{}",
        String::from_utf8_lossy(&broken.stderr)
    );
}

#[test]
fn a_crash_is_told_to_the_client_with_its_reason_and_the_next_call_succeeds() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp", era);
        let error = &client.call("fake__crash", &json!({}))["error"];
        assert_eq!(error["code"], -31015, "{error}");
        assert_eq!(error["data"]["exit"], "exit status 101", "{error}");
        assert_eq!(error["data"]["stderr"][1], "the disk is on fire", "{error}");
        assert_eq!(client.text("fake__echo", &json!({"text": "back"})), "back");
    }
}

#[test]
fn a_killed_gateway_leaves_the_pipe_of_its_clients_closed_and_no_server_that_listens_to_it() {
    let home = home(&server("fake", &[]));
    let mut gateway = home.serve();
    let mut pipe = PipeClient::new(home.command(&["stdio"]), Era::Stateless);
    let child: u32 = pipe.text("fake__pid", &json!({})).parse().unwrap();
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until("its server leaves at the end of its input", || !process::is_alive(child));
    wait_until("the client hears of it", || pipe.has_ended());
}

#[test]
fn one_connection_serves_many_requests() {
    use std::io::{Read as _, Write as _};
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let mut stream = std::net::TcpStream::connect(gateway.address).unwrap();
    for number in 0..3 {
        let body = message(Era::Stateless, &json!(number), "server/discover", &json!({})).to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: server/discover\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(&format!("\"id\":{number}")), "{text}");
    }
}
