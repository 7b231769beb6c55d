//! Requests with unusual methods, and requests cancelled before they are sent.

use std::future::Future as _;
use std::task::{Context, Waker};

use super::*;

#[tokio::test]
async fn requests_with_unusual_methods_get_a_response() {
    for is_session_era in [true, false] {
        let server = RemoteServer::start(move |request| match request.method() {
            _ if request.body.get("id").is_none() => Reply::empty(202),
            "notifications/initialized" | "notifications/cancelled" | "a\"b" | "\\" | "\t\0" => {
                Reply::error(200, request, -32601)
            }
            _ if is_session_era => session(request, "s1"),
            _ => stateless(request),
        });
        let server = server.await;
        let connection = connect_to(&server).await;
        for method in ["notifications/initialized", "notifications/cancelled", "a\"b", "\\", "\t\0"] {
            let sent = timeout(SECOND * 5, connection.request(method, Object::default()));
            let response = sent.await.unwrap_or_else(|_| panic!("{method:?} stalls")).unwrap();
            assert!(matches!(response, ResponsePayload::Error(_)), "{method:?}");
        }
        assert_eq!(text(echo(&connection).await), "echo");
    }
}

#[tokio::test]
async fn calls_cancelled_before_sending_free_the_queue() {
    let server = RemoteServer::start(stateless).await;
    let connection = connect_to(&server).await;
    let large = Bytes::from(format!("{{\"text\":\"{}\"}}", "x".repeat(14 << 20)));
    for _ in 0..5 {
        let mut cancelled = Call::tool("echo").raw_arguments(large.clone());
        let mut sent = Box::pin(connection.call(&mut cancelled, "echo", Instant::now()));
        assert!(sent.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(sent);
        settle().await;
    }
    assert_eq!(text(echo(&connection).await), "echo");
    assert_eq!(server.requests("tools/call").len(), 1, "the others were cancelled before they were sent");
}
