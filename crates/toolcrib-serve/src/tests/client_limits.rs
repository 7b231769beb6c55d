//! Tests of what clients may use: memory, connections without a token, and time.

use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use toolcrib::protocol::era::client::RequestMetaReader;
use toolcrib::{ServerSpec, Toolbox};

use super::*;
use crate::connection_clients::ConnectionClients;
use crate::gateway::ConnectionContext;
use crate::login::ConnectionLogin;

const CALLERS: &str =
    "[callers.alice]\ntoken = 'alice-token-0123456789'\n[callers.bob]\ntoken = 'bob-token-0123456789ab'\n";
const ALICE: &str = "|Authorization: Bearer alice-token-0123456789";
const BOB: &str = "|Authorization: Bearer bob-token-0123456789ab";

/// Creates a gateway whose clients may use this much memory.
fn gateway(callers_text: &str, body: usize, client_memory: usize) -> TestGateway {
    let schema = serde_json::json!({"type": "object"});
    let tools = Toolbox::new().tool("large", "Returns much", &schema, |_| async { Ok("x".repeat(400_000)) });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    let crib = Crib::builder().server(spec).build().unwrap();
    let limits = GatewayLimits {
        body,
        sessions: 1000,
        client_memory: Some(client_memory),
        ..GatewayLimits::default()
    };
    let callers = Arc::new(ActiveCallers::new(callers(callers_text)));
    let state =
        Arc::new(HttpGateway::new(McpService::new(crib), callers, &limits).with_max_unauthenticated(2));
    TestGateway { state, tasks: TaskTracker::new(), stop: CancellationToken::new() }
}

/// Sends most of a body and then nothing.
async fn send_part(gateway: &TestGateway, headers: &str, size: usize) -> Client {
    gateway.post(size + 1, headers, &" ".repeat(size)).await
}

#[tokio::test(start_paused = true)]
async fn bodies_of_all_clients_share_one_memory_limit() {
    let gateway = gateway("", 400_000, 1_000_000);
    let _first = send_part(&gateway, "", 390_000).await;
    let _second = send_part(&gateway, "", 390_000).await;
    // The clock goes on when all of them have been read.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut third = send_part(&gateway, "", 390_000).await;
    let head = third.read_head().await;
    assert_eq!(status(&head), "503", "{head}");
    assert!(head.contains("retry-after: 1") && head.contains("connection: close"), "{head}");
    assert_eq!(gateway.open_session().await.len(), 32, "small requests go on");
    tokio::time::sleep(Duration::from_secs(31)).await;
    let mut later = send_part(&gateway, "", 390_000).await;
    assert_eq!(status(&later.read_head().await), "408", "the memory was released with the first two");
}

#[tokio::test(start_paused = true)]
async fn one_caller_leaves_memory_for_another() {
    let gateway = gateway(CALLERS, 400_000, 1_600_000);
    let _bodies = [send_part(&gateway, BOB, 390_000).await, send_part(&gateway, BOB, 300_000).await];
    assert_eq!(status(&send_part(&gateway, BOB, 390_000).await.read_head().await), "503");
    let body = format!("{INITIALIZE}{}", " ".repeat(300_000));
    let head = gateway.post(body.len(), ALICE, &body).await.read_head().await;
    assert_eq!(status(&head), "200", "{head}");
}

#[tokio::test(start_paused = true)]
async fn declaration_of_a_session_is_limited() {
    let gateway = gateway("", 400_000, 1_000_000);
    let large = INITIALIZE
        .replace("\"capabilities\":{}", &format!("\"capabilities\":{{\"a\":\"{}\"}}", "x".repeat(70_000)));
    assert_eq!(status(&gateway.post(large.len(), "", &large).await.read_head().await), "400");
    let medium = INITIALIZE
        .replace("\"capabilities\":{}", &format!("\"capabilities\":{{\"a\":\"{}\"}}", "x".repeat(60_000)));
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(status(&gateway.post(medium.len(), "", &medium).await.read_head().await));
    }
    let opened = statuses.iter().filter(|status| *status == "200").count();
    assert!((10..15).contains(&opened) && statuses.last().unwrap() == "503", "{statuses:?}");
}

#[tokio::test(start_paused = true)]
async fn unread_results_count_towards_the_memory_limit() {
    let gateway = gateway("", 100_000, 1_000_000);
    let session = gateway.open_session().await;
    let call = r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"large","arguments":{}}}"#;
    let headers = format!("|Mcp-Session-Id: {session}");
    let claim = |bytes: usize| {
        let access = crate::callers::AuthenticatedCaller::trusted(toolcrib::Caller::local(), true);
        let account = crate::client_memory::MemoryAccount {
            total: gateway.state.memory.clone(),
            caller: access.memory,
        };
        account.claim(bytes)
    };
    let others = claim(600_000);
    assert!(others.is_some());
    let refused = gateway.post(call.len(), &headers, call).await.read_head().await;
    assert_eq!(status(&refused), "503", "{refused}");
    drop(others);
    assert_eq!(status(&gateway.post(call.len(), &headers, call).await.read_head().await), "200");
}

async fn connect_http2(gateway: &TestGateway) -> SendRequest<Full<Bytes>> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    gateway.tasks.spawn(serve_connection(
        theirs,
        gateway.state.clone(),
        Entrypoint::Tcp,
        gateway.stop.clone(),
    ));
    let (client, connection) = handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
    gateway.tasks.spawn(connection);
    client
}

fn http2_request(token: Option<&str>) -> Request<Full<Bytes>> {
    let request = Request::post("http://localhost/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    request.body(Full::from(INITIALIZE)).unwrap()
}

/// Returns the seconds until the gateway closes a connection.
async fn seconds_until_closed(client: &mut SendRequest<Full<Bytes>>) -> u64 {
    let start = Instant::now();
    while client.ready().await.is_ok() {
        assert!(start.elapsed() < TOO_LONG, "still open");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    start.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn http2_connection_without_a_request_is_closed() {
    let gateway = gateway(CALLERS, 100_000, 1_000_000);
    let mut client = connect_http2(&gateway).await;
    let seconds = seconds_until_closed(&mut client).await;
    assert!((10..=11).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn idle_http2_connection_with_a_token_is_closed_after_five_minutes() {
    let gateway = gateway(CALLERS, 100_000, 1_000_000);
    let mut client = connect_http2(&gateway).await;
    let response = client.send_request(http2_request(Some("alice-token-0123456789"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.into_body().collect().await.unwrap();
    let seconds = seconds_until_closed(&mut client).await;
    assert!((300..=301).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn http2_connection_is_closed_after_two_failed_logins() {
    let gateway = gateway(CALLERS, 100_000, 1_000_000);
    let mut client = connect_http2(&gateway).await;
    for token in [None, Some("wrong")] {
        let start = Instant::now();
        let response = client.send_request(http2_request(token)).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert!(start.elapsed() >= Duration::from_millis(100));
    }
    assert!(seconds_until_closed(&mut client).await <= 2);
}

#[tokio::test(start_paused = true)]
async fn http1_connection_is_closed_after_two_failed_logins() {
    let gateway = gateway(CALLERS, 100_000, 1_000_000);
    let start = Instant::now();
    let mut client = gateway.send("GET /mcp HTTP/1.1", "").await;
    let first = client.read_head().await;
    assert!(status(&first) == "401" && !first.contains("connection: close"), "{first}");
    assert!(start.elapsed() >= Duration::from_millis(100));
    let again = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n";
    client.0.write_all(again).await.unwrap();
    let mut rest = Vec::new();
    timeout(TOO_LONG, client.0.read_to_end(&mut rest)).await.expect("closed").unwrap();
    let second = String::from_utf8(rest).unwrap();
    assert!(second.contains("HTTP/1.1 401") && second.contains("connection: close"), "{second}");
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn failed_logins_at_the_end_of_a_burst_are_reported() {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let gateway = || {
        let sink = reports.clone();
        let crib = Crib::builder().build().unwrap();
        let mut gateway = TestGateway::with_callers(crib, callers(CALLERS), 1000, 10);
        let state = Arc::into_inner(gateway.state).unwrap();
        let state = state.with_failed_logins(move |failed| sink.lock().unwrap().push(failed.count));
        gateway.state = Arc::new(state);
        gateway
    };
    let waiting = gateway();
    for _ in 0..3 {
        assert_eq!(status(&waiting.post(PING.len(), "", PING).await.read_head().await), "401");
    }
    assert_eq!(*reports.lock().unwrap(), [1]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(*reports.lock().unwrap(), [1, 2], "after the interval");
    let stopping = gateway();
    for _ in 0..4 {
        assert_eq!(status(&stopping.post(PING.len(), "", PING).await.read_head().await), "401");
    }
    let stopped_at = Instant::now();
    stopping.stop.cancel();
    stopping.state.finish().await;
    assert_eq!(*reports.lock().unwrap(), [1, 2, 1, 3], "at the end");
    assert!(stopped_at.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn idle_connection_without_a_token_is_closed_soon() {
    let gateway = gateway(CALLERS, 100_000, 1_000_000);
    let mut client = gateway.send("GET /mcp HTTP/1.1", "").await;
    client.read_head().await;
    let start = Instant::now();
    timeout(TOO_LONG, client.0.read_to_end(&mut Vec::new())).await.expect("closed").unwrap();
    assert!((9..=11).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn connection_stays_open_after_a_body_in_two_parts() {
    let gateway = gateway("", 100_000, 1_000_000);
    let (start, rest) = INITIALIZE.split_at(20);
    let mut client = gateway.post(INITIALIZE.len(), "", start).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.0.write_all(rest.as_bytes()).await.unwrap();
    assert_eq!(status(&client.read_head().await), "200");
    let mut piece = [0; 4096];
    while timeout(Duration::from_secs(60), client.0.read(&mut piece))
        .await
        .is_ok_and(|read| read.unwrap() > 0)
    {}
    client.0.write_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(status(&client.read_head().await), "405");
}

#[tokio::test(start_paused = true)]
async fn partial_head_is_parsed_once() {
    let gateway = gateway(CALLERS, 100_000, 1_000_000);
    let (mut ours, theirs) = tokio::io::duplex(1 << 20);
    ours.write_all(b"GET /mcp HTTP/1.1\r\nHost: loc").await.unwrap();
    let (io, _) = crate::peek_io::PeekIo::detect_version(theirs).await.unwrap();
    let conn = Arc::new(ConnectionContext {
        clients: ConnectionClients::default(),
        gateway: gateway.state.clone(),
        peer: Entrypoint::Tcp.into(),
        meta_reader: RequestMetaReader::default(),
        stop: gateway.stop.clone(),
        login: ConnectionLogin::new(None),
    });
    let due = Instant::now() + Duration::from_secs(10);
    let serving = crate::http1::serve(&io, &conn, due);
    let mut serving = std::pin::pin!(serving);
    assert!(timeout(Duration::from_secs(9), &mut serving).await.is_err(), "hyper keeps the part that it has");
    assert_eq!(io.bytes_read(), 28);
    let end = timeout(Duration::from_secs(2), &mut serving).await.expect("the time for headers is up");
    assert!(matches!(end, crate::http1::ConnectionPhaseEnd::Closed));
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_connections_displace_no_client_with_a_token() {
    let gateway = gateway(CALLERS, 100_000, 1_000_000);
    let mut client = connect_http2(&gateway).await;
    let response = client.send_request(http2_request(Some("alice-token-0123456789"))).await.unwrap();
    response.into_body().collect().await.unwrap();
    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(connect_http2(&gateway).await);
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    let mut open = Vec::new();
    for connection in &mut others {
        open.push(connection.ready().await.is_ok());
    }
    assert_eq!(open, [false, false, false, true, true], "the oldest are closed");
    let again = client.send_request(http2_request(Some("alice-token-0123456789"))).await.unwrap();
    assert_eq!(again.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn request_of_another_user_is_forbidden_without_callers() {
    for (text, token, expected) in
        [("", "", "403"), ("", ALICE, "403"), (CALLERS, "", "401"), (CALLERS, ALICE, "200")]
    {
        let gateway = gateway(text, 100_000, 1_000_000);
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        gateway.tasks.spawn(serve_connection(
            theirs,
            gateway.state.clone(),
            Entrypoint::OtherUser,
            gateway.stop.clone(),
        ));
        let length = INITIALIZE.len();
        let head = format!(
            "POST /mcp HTTP/1.1|Host: localhost|Content-Type: application/json|Accept: application/json, text/event-stream|Content-Length: {length}{token}||"
        );
        ours.write_all(format!("{}{INITIALIZE}", head.replace('|', "\r\n")).as_bytes()).await.unwrap();
        let mut client = Client(ours);
        assert_eq!(status(&client.read_head().await), expected, "{text:?} {token:?}");
    }
}
