//! Answers that take their time, connections that say nothing, and the newer HTTP.

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use toolcrib::{ServerSpec, Toolbox};

use super::*;

const SLOW: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow","arguments":{}}}"#;

/// A gateway with a tool that takes its time.
fn slow_house() -> House {
    let schema = serde_json::json!({"type": "object"});
    let tools = Toolbox::new().tool("slow", "Takes its time", &schema, |_| async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        Ok("done".to_owned())
    });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    House::with(Crib::builder().server(spec).build().unwrap(), 10_000, 10)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_long_is_a_stream_that_shows_signs_of_life() {
    let (house, before) = (slow_house(), Instant::now());
    let session = house.session().await;
    let headers = format!("|Mcp-Session-Id: {session}");
    let mut client = house.post(SLOW.len(), &headers, SLOW).await;
    let head = client.head().await;
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
    assert_eq!(text.matches(": \n\n").count(), 4, "one empty event and three signs of life: {text}");
}

#[tokio::test(start_paused = true)]
async fn an_older_client_gets_no_empty_event() {
    let house = slow_house();
    let hello = HELLO.replace("2025-11-25", "2025-06-18");
    let head = house.post(hello.len(), "", &hello).await.head().await;
    let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned();
    let mut client = house.post(SLOW.len(), &format!("|Mcp-Session-Id: {session}"), SLOW).await;
    client.head().await;
    let mut first = [0; 9];
    timeout(TOO_LONG, client.0.read_exact(&mut first)).await.expect("a sign of life").unwrap();
    assert_eq!(&first, b"4\r\n: \n\n\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_on_when_its_connection_ends_and_its_session_ends_it() {
    let house = slow_house();
    let session = house.session().await;
    let headers = format!("|Mcp-Session-Id: {session}");
    let mut client = house.post(SLOW.len(), &headers, SLOW).await;
    client.head().await;
    drop(client);
    let again = format!("GET /mcp HTTP/1.1|Last-Event-ID: 1-0|Mcp-Session-Id: {session}");
    let mut reader = house.send(&again, "").await;
    assert_eq!(status(&reader.head().await), "200");
    assert_eq!(status(&house.bare("DELETE", &session).await.head().await), "204");
    let mut end = [0; 5];
    timeout(TOO_LONG, reader.0.read_exact(&mut end)).await.expect("an end").unwrap();
    assert_eq!(&end, b"0\r\n\r\n", "the stream ends with its session");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_closed() {
    let (house, before) = (House::new(1000, 10), Instant::now());
    let (mut ours, theirs) = tokio::io::duplex(1 << 10);
    house.tasks.spawn(http::serve(theirs, house.desk.clone(), Door::Tcp, house.stop.clone()));
    let read = timeout(TOO_LONG, ours.read(&mut [0; 10])).await.expect("an end in time").unwrap();
    assert_eq!((read, before.elapsed().as_secs()), (0, 10));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_its_answer_is_left() {
    let schema = serde_json::json!({"type": "object"});
    let tools = Toolbox::new().tool("large", "Says much", &schema, |_| async { Ok("x".repeat(4 << 20)) });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    let house = House::with(Crib::builder().server(spec).build().unwrap(), 10_000, 10);
    let session = house.session().await;
    let call = SLOW.replace("slow", "large");
    let before = Instant::now();
    let _client = house.post(call.len(), &format!("|Mcp-Session-Id: {session}"), &call).await;
    house.tasks.close();
    timeout(TOO_LONG, house.tasks.wait()).await.expect("the connection ends");
    assert_eq!(before.elapsed().as_secs(), 30);
}

#[tokio::test]
async fn the_newer_http_is_spoken_on_the_same_door() {
    let house = House::new(1000, 10);
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    house.tasks.spawn(http::serve(theirs, house.desk.clone(), Door::Tcp, house.stop.clone()));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
    house.tasks.spawn(connection);
    let mut ask = async |host: &str| {
        let request = Request::post(format!("http://{host}/mcp"))
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream")
            .body(Full::new(bytes::Bytes::from_static(HELLO.as_bytes())))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    };
    let (status, body) = ask("localhost:7717").await;
    assert_eq!(status, 200);
    assert!(body.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":"), "{body:?}");
    assert_eq!(ask("evil.example").await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_the_newer_http_that_never_opens_its_window_is_left() {
    let house = House::new(1000, 10);
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let served = house.tasks.spawn(http::serve(theirs, house.desk.clone(), Door::Tcp, house.stop.clone()));
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.adaptive_window(false).initial_stream_window_size(1);
    let (mut sender, connection) = builder.handshake(TokioIo::new(ours)).await.unwrap();
    house.tasks.spawn(connection);
    let request =
        Request::get("http://localhost/api/v1/status").body(Full::new(bytes::Bytes::new())).unwrap();
    let (before, response) = (Instant::now(), sender.send_request(request).await.unwrap());
    // Its body is never read, so that its window stays as small as it is.
    timeout(TOO_LONG, served).await.expect("the connection ends").unwrap();
    assert!((30..=60).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    drop(response);
}
