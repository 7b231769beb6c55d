//! Tests of slow responses, silent connections and HTTP/2.

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use toolcrib::{ServerSpec, Toolbox};

use super::*;

const SLOW: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow","arguments":{}}}"#;

/// Creates a gateway with a tool that takes 50 seconds.
fn slow_gateway() -> TestGateway {
    let schema = serde_json::json!({"type": "object"});
    let tools = Toolbox::new().tool("slow", "Responds slowly", &schema, |_| async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        Ok("done".to_owned())
    });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    TestGateway::with_crib(Crib::builder().server(spec).build().unwrap(), 10_000, 10)
}

#[tokio::test(start_paused = true)]
async fn slow_response_is_a_stream_with_keep_alive_comments() {
    let gateway = slow_gateway();
    let before = Instant::now();
    let session = gateway.open_session().await;
    let headers = format!("|Mcp-Session-Id: {session}");
    let mut client = gateway.post(SLOW.len(), &headers, SLOW).await;
    let head = client.read_head().await;
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    assert_eq!(before.elapsed().as_secs(), 2);
    let mut text = String::new();
    while !text.contains("\"done\"") {
        let mut piece = [0; 1024];
        let count = timeout(TOO_LONG, client.0.read(&mut piece)).await.expect("more").unwrap();
        assert_ne!(count, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    assert!(text.contains("id: 1-0\nretry: 1000\ndata: \n\n"), "{text}");
    assert!(text.contains("id: 1-1\ndata: {"), "{text}");
    assert_eq!(text.matches(": \n\n").count(), 4, "one empty event and three keep-alive comments: {text}");
}

#[tokio::test(start_paused = true)]
async fn older_client_gets_no_priming_event() {
    let gateway = slow_gateway();
    let initialize = INITIALIZE.replace("2025-11-25", "2025-06-18");
    let head = gateway.post(initialize.len(), "", &initialize).await.read_head().await;
    let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned();
    let mut client = gateway.post(SLOW.len(), &format!("|Mcp-Session-Id: {session}"), SLOW).await;
    client.read_head().await;
    let mut first = [0; 9];
    timeout(TOO_LONG, client.0.read_exact(&mut first)).await.expect("a keep-alive comment").unwrap();
    assert_eq!(&first, b"4\r\n: \n\n\r\n");
}

#[tokio::test(start_paused = true)]
async fn call_survives_its_connection_and_ends_with_its_session() {
    let gateway = slow_gateway();
    let session = gateway.open_session().await;
    let headers = format!("|Mcp-Session-Id: {session}");
    let mut client = gateway.post(SLOW.len(), &headers, SLOW).await;
    client.read_head().await;
    drop(client);
    let resume = format!("GET /mcp HTTP/1.1|Last-Event-ID: 1-0|Mcp-Session-Id: {session}");
    let mut reader = gateway.send(&resume, "").await;
    assert_eq!(status(&reader.read_head().await), "200");
    assert_eq!(status(&gateway.send_bodyless("DELETE", &session).await.read_head().await), "204");
    let mut end = [0; 5];
    timeout(TOO_LONG, reader.0.read_exact(&mut end)).await.expect("an end").unwrap();
    assert_eq!(&end, b"0\r\n\r\n", "the stream ends with its session");
}

#[tokio::test(start_paused = true)]
async fn silent_connection_is_closed() {
    let gateway = TestGateway::new(1000, 10);
    let before = Instant::now();
    let (mut ours, theirs) = tokio::io::duplex(1 << 10);
    gateway.tasks.spawn(serve_connection(
        theirs,
        gateway.state.clone(),
        Entrypoint::Tcp,
        gateway.stop.clone(),
    ));
    let read = timeout(TOO_LONG, ours.read(&mut [0; 10])).await.expect("an end in time").unwrap();
    assert_eq!((read, before.elapsed().as_secs()), (0, 10));
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_is_disconnected() {
    let schema = serde_json::json!({"type": "object"});
    let tools =
        Toolbox::new().tool("large", "Returns much text", &schema, |_| async { Ok("x".repeat(4 << 20)) });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    let gateway = TestGateway::with_crib(Crib::builder().server(spec).build().unwrap(), 10_000, 10);
    let session = gateway.open_session().await;
    let call = SLOW.replace("slow", "large");
    let before = Instant::now();
    let _client = gateway.post(call.len(), &format!("|Mcp-Session-Id: {session}"), &call).await;
    gateway.tasks.close();
    timeout(TOO_LONG, gateway.tasks.wait()).await.expect("the connection ends");
    assert_eq!(before.elapsed().as_secs(), 30);
}

#[tokio::test]
async fn http2_is_served_on_the_same_listener() {
    let gateway = TestGateway::new(1000, 10);
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    gateway.tasks.spawn(serve_connection(
        theirs,
        gateway.state.clone(),
        Entrypoint::Tcp,
        gateway.stop.clone(),
    ));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
    gateway.tasks.spawn(connection);
    let mut send = async |host: &str| {
        let request = Request::post(format!("http://{host}/mcp"))
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream")
            .body(Full::new(bytes::Bytes::from_static(INITIALIZE.as_bytes())))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    };
    let (status, body) = send("localhost:7717").await;
    assert_eq!(status, 200);
    assert!(body.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":"), "{body:?}");
    assert_eq!(send("evil.example").await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn http2_client_with_a_closed_window_is_disconnected() {
    let gateway = TestGateway::new(1000, 10);
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let served = gateway.tasks.spawn(serve_connection(
        theirs,
        gateway.state.clone(),
        Entrypoint::Tcp,
        gateway.stop.clone(),
    ));
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.adaptive_window(false).initial_stream_window_size(1);
    let (mut sender, connection) = builder.handshake(TokioIo::new(ours)).await.unwrap();
    gateway.tasks.spawn(connection);
    let request =
        Request::get("http://localhost/api/v1/status").body(Full::new(bytes::Bytes::new())).unwrap();
    let before = Instant::now();
    let response = sender.send_request(request).await.unwrap();
    // The body is never read, so the window stays closed.
    timeout(TOO_LONG, served).await.expect("the connection ends").unwrap();
    assert!((30..=60).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    drop(response);
}
