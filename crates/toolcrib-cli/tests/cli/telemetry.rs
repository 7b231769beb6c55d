//! Tests of `/metrics` and of the export to a collector.

use super::*;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use test_support::http;

/// A request that a collector received.
struct Received {
    path: String,
    head: String,
    body: Vec<u8>,
}

/// Starts a collector that accepts everything, one request per connection.
fn start_collector() -> (SocketAddr, mpsc::Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while reader.read_line(&mut head).unwrap() > 2 {}
            let length = head.to_lowercase();
            let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            let mut body = vec![0; length.unwrap().trim().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            reader.get_mut().write_all(answer).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            if sender.send(Received { path, head, body }).is_err() {
                return;
            }
        }
    });
    (address, requests)
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[test]
fn metrics_are_served_to_callers_that_may_read_them() {
    let callers = "[callers.scraper]\ntoken = 'scraper-token-0000'\nmetrics = true\n\
                   [callers.agent]\ntoken = 'agent-token-000000'\n";
    let home = Home::new(&format!("{}{callers}", server("echo", "echo")));
    let gateway = home.serve(&[]);
    home.run(&["call", "echo__say", "text=1"]).expect(0);
    home.run(&["call", "echo__fail", "text=1"]).expect(5);
    let get = |token: &str, accept: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str()), ("Accept", accept)];
        http::request(gateway.address, "GET", "/metrics", &headers, b"")
    };
    let response = get("scraper-token-0000", "text/plain");
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = response.text();
    let call = r#"mcp_method_name="tools/call",gen_ai_tool_name"#;
    for line in [
        format!(r#"toolcrib_calls_total{{{call}="say",server="echo",caller="local",outcome="ok"}} 1"#),
        format!(
            r#"toolcrib_calls_total{{{call}="fail",server="echo",error_type="tool_error",caller="local",outcome="error"}} 1"#
        ),
        format!(r#"mcp_client_operation_duration_seconds_count{{{call}="say",server="echo"}} 1"#),
        r#"toolcrib_server_up{server="echo"} 1"#.to_owned(),
        "toolcrib_config_generation 1".to_owned(),
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    #[cfg(target_os = "linux")]
    for name in ["toolcrib_server_memory_bytes", "toolcrib_server_cpu_seconds_total"] {
        assert!(text.contains(&format!("{name}{{server=\"echo\"}} ")), "{text}");
    }
    let open = get("scraper-token-0000", "application/openmetrics-text");
    assert!(open.text().contains(" # {call_id=\""), "{}", open.text());
    assert_eq!((get("agent-token-000000", "").status, get("none", "").status), (403, 401));
    let status = http::request(
        gateway.address,
        "GET",
        "/api/v1/status",
        &[("Authorization", "Bearer scraper-token-0000")],
        b"",
    );
    assert_eq!(status.status, 403, "a scraper is not an admin");
    home.write(&format!("{}{callers}[metrics]\nenabled = false\n", server("echo", "echo")));
    gateway.signal(Signal::HUP);
    gateway.wait_for_line("config reloaded: ");
    assert_eq!(get("scraper-token-0000", "").status, 404);
}

#[test]
fn spans_and_metrics_are_exported_before_the_gateway_ends() {
    let (collector, requests) = start_collector();
    let home = Home::new(&server("echo", "echo"));
    let mut gateway = home.0.serve_with(|command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"));
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k7").env("OTEL_SERVICE_NAME", "crib-test");
        command.env_remove("http_proxy").env_remove("HTTP_PROXY").env("NO_PROXY", "127.0.0.1");
    });
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo__say","arguments":{"text":"x"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}}}"#;
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "echo__say"),
        ("traceparent", parent.as_str()),
    ];
    let response = http::request(gateway.address, "POST", "/mcp", &headers, call.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(gateway.stop().success());
    let received: Vec<Received> = requests.try_iter().collect();
    let paths: Vec<&str> = received.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/v1/traces", "/v1/metrics"]);
    let spans = &received[0];
    assert!(
        spans.head.contains("application/x-protobuf") && spans.head.contains("api-key: k7"),
        "{}",
        spans.head
    );
    let trace_id: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&trace[2 * at..][..2], 16).unwrap()).collect();
    for part in [&trace_id[..], b"tools/call say", b"crib-test", b"execute_tool", b"toolcrib.call.id"] {
        assert!(contains(&spans.body, part), "{}", String::from_utf8_lossy(part));
    }
    assert!(contains(&received[1].body, b"mcp.server.operation.duration"));
}
