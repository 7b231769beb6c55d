//! Requests that the gateway refuses: other hosts and origins, invalid messages, contradictions and unknown names.

use serde_json::json;
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home};
use test_support::http::{self, Response};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const BOTH: (&str, &str) = ("Accept", "application/json, text/event-stream");
const META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

/// The end of the config of a gateway that lists no server unasked.
const NOTHING_UNASKED: &str = "[limits]\nfirst-listing-wait = '0s'\n";

fn server(name: &str, args: &[&str]) -> String {
    test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, args)
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

fn post(gateway: &GatewayProcess, headers: &[(&str, &str)], body: &str) -> Response {
    let headers = [&[JSON, BOTH], headers].concat();
    http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes())
}

/// Sends a stateless request with these headers in addition to the usual ones.
fn stateless(gateway: &GatewayProcess, headers: &[(&str, &str)], method: &str, params: &str) -> Response {
    post(gateway, headers, &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#))
}

#[test]
fn other_hosts_and_origins_are_refused() {
    let home = home(&(server("fake", &[]) + NOTHING_UNASKED));
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
    assert_eq!(gateway.children(), [0_u32; 0], "no server was started");
}

#[test]
fn invalid_messages_are_refused_and_execute_nothing() {
    let home = home(&(server("fake", &[]) + NOTHING_UNASKED));
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
        (&deep, -32700),
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
fn body_above_the_limit_is_refused() {
    let home = home(&format!("[limits]\nbody = '64KiB'\n{}", server("fake", &[])));
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(client.text("fake__echo", &json!({"text": "x".repeat(60_000)})).len(), 60_000);
    let large = client
        .request("tools/call", &json!({"name": "fake__echo", "arguments": {"text": "x".repeat(100_000)}}));
    assert_eq!(large.status, 413);
    assert_eq!(large.code(), Some(-32600), "{}", large.text());
    assert!(large.text().contains(" bytes, and `limits.body` is 64KiB"), "{}", large.text());
    // The sender writes all of it before it reads.
    let huge = http::request(gateway.address, "POST", "/mcp", &[JSON, BOTH], &vec![b'x'; 50_000_000]);
    assert_eq!(huge.status, 413);
    assert!(huge.text().contains("the request has 50000000 bytes"), "{}", huge.text());
    let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", 100_000, "x".repeat(100_000));
    let headers = [JSON, BOTH, ("Transfer-Encoding", "chunked")];
    let chunked = http::request(gateway.address, "POST", "/mcp", &headers, chunk.as_bytes());
    assert_eq!(chunked.status, 413);
}

#[test]
fn unknown_methods_tools_and_cursors_are_refused() {
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
        let misspelled = client.call("fake__eco", &json!({}));
        assert_eq!(misspelled["error"]["data"]["hint"], "did you mean `fake__echo`?", "{misspelled}");
        let cursor = client.request("tools/list", &json!({"cursor": "made up"}));
        assert_eq!(cursor.code(), Some(-32602));
    }
}

#[test]
fn headers_of_a_stateless_request_must_match_its_body() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let version = ("MCP-Protocol-Version", "2026-07-28");
    let method = ("Mcp-Method", "tools/call");
    let name = ("Mcp-Name", "fake__pid");
    let params = format!(r#"{{"name":"fake__pid","arguments":{{}},"_meta":{META}}}"#);
    for (headers, case) in [
        (vec![method, name], "no version"),
        (vec![("MCP-Protocol-Version", "2025-11-25"), method, name], "another version"),
        (vec![version, name], "no method"),
        (vec![version, ("Mcp-Method", "tools/list"), name], "another method"),
        (vec![version, ("Mcp-Method", "Tools/Call"), name], "another case"),
        (vec![version, method], "no name"),
        (vec![version, method, ("Mcp-Name", "fake__echo")], "another name"),
        (vec![version, method, ("Mcp-Name", "=?base64?!!?=")], "invalid base64"),
        (vec![version, method, name, ("Mcp-Name", "fake__echo")], "two names"),
    ] {
        let response = stateless(&gateway, &headers, "tools/call", &params);
        assert_eq!((response.status, response.code()), (400, Some(-32020)), "{case}: {}", response.text());
    }
    let encoded = ("Mcp-Name", "=?base64?ZmFrZV9fcGlk?=");
    assert_eq!(stateless(&gateway, &[version, method, encoded], "tools/call", &params).status, 200);
}

#[test]
fn stateless_request_without_required_meta_is_refused() {
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
    let valid = stateless(
        &gateway,
        &[version("2026-07-28"), ("Mcp-Method", "server/discover")],
        "server/discover",
        &format!(r#"{{"_meta":{META}}}"#),
    );
    assert_eq!(valid.message()["result"]["supportedVersions"][0], "2026-07-28", "{}", valid.text());
}

#[test]
fn session_requests_need_a_valid_session() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert_eq!(post(&gateway, &[], list).status, 400, "no session");
    for unknown in ["0123456789abcdef", "x", &"x".repeat(5000)] {
        assert_eq!(post(&gateway, &[("Mcp-Session-Id", unknown)], list).status, 404, "{}", &unknown[..1]);
    }
    for method in ["GET", "DELETE"] {
        assert_eq!(http::request(gateway.address, method, "/mcp", &[BOTH], b"").status, 405, "{method}");
        let unknown = [BOTH, ("Mcp-Session-Id", "absent")];
        assert_eq!(http::request(gateway.address, method, "/mcp", &unknown, b"").status, 404, "{method}");
    }
    for method in ["PUT", "PATCH", "OPTIONS", "TRACE"] {
        assert_eq!(http::request(gateway.address, method, "/mcp", &[], b"").status, 405, "{method}");
    }
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Session);
    assert_eq!(client.request("ping", &json!({})).message()["result"], json!({}));
    let other_endpoint = http::request(
        gateway.address,
        "POST",
        "/mcp/s/fake",
        &[JSON, BOTH, ("Mcp-Session-Id", client.session.as_deref().unwrap())],
        list.as_bytes(),
    );
    assert_eq!(other_endpoint.status, 404, "a session belongs to one endpoint");
    let ended = client.send_without_body("DELETE").finish();
    assert!(matches!(ended.status, 200 | 204), "{}", ended.status);
    assert_eq!(client.request("ping", &json!({})).status, 404, "the session has ended");
}

#[test]
fn ambiguous_http_requests_are_refused() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let rest = "Content-Type: application/json\r\n";
    for (head, case) in [
        ("POST /mcp HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", "two hosts"),
        ("POST http://evil.example/mcp HTTP/1.1\r\nHost: localhost\r\n", "another host in the target"),
        (
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
            "two lengths",
        ),
        (
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n",
            "an unusual transfer coding",
        ),
        ("POST /mcp HTTP/1.1\r\nHost: localhost\r\nX\x0b: 1\r\n", "an invalid header name"),
        ("POST /mcp HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n", "a folded line"),
        ("POST /mcp HTTP/1.1\r\n", "no host"),
    ] {
        let stream = http::send(gateway.address, format!("{head}{rest}\r\n{{}}").as_bytes());
        assert!(matches!(stream.status, 400 | 403 | 421), "{case}: {}", stream.status);
    }
}

#[test]
fn id_in_flight_cannot_be_used_again_in_its_session() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let client = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let body = r#"{"jsonrpc":"2.0","id":"same","method":"tools/call","params":{"name":"fake__sleep","arguments":{"ms":1000}}}"#;
    let answers: Vec<Response> = std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..2).map(|_| scope.spawn(|| client.post_raw("tools/call", None, body))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let refused = answers.iter().filter(|answer| answer.code() == Some(-32600)).count();
    let done = answers.iter().filter(|answer| answer.message()["result"].is_object()).count();
    assert_eq!((refused, done), (1, 1), "{} {}", answers[0].text(), answers[1].text());
}
