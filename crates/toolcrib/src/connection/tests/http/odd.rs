//! Requests that only an odd client sends, and how they end.

use std::future::Future as _;
use std::task::{Context, Waker};

use super::*;

#[tokio::test]
async fn a_request_is_answered_whatever_its_method_says() {
    for old in [true, false] {
        let far = Far::start(move |seen| match seen.what() {
            _ if seen.body.get("id").is_none() => Reply::empty(202),
            "notifications/initialized" | "notifications/cancelled" | "a\"b" | "\\" | "\t\0" => {
                Reply::error(200, seen, -32601)
            }
            _ if old => session(seen, "s1"),
            _ => stateless(seen),
        });
        let far = far.await;
        let connection = to(&far).await;
        for method in ["notifications/initialized", "notifications/cancelled", "a\"b", "\\", "\t\0"] {
            let asked = timeout(SECOND * 5, connection.request(method, Object::default()));
            let answer = asked.await.unwrap_or_else(|_| panic!("{method:?} stalls")).unwrap();
            assert!(matches!(answer, Answer::Error(_)), "{method:?}");
        }
        assert_eq!(text(echo(&connection).await), "echo");
    }
}

#[tokio::test]
async fn calls_taken_back_at_once_leave_nothing_in_the_queue() {
    let far = Far::start(stateless).await;
    let connection = to(&far).await;
    let large = bytes::Bytes::from(format!("{{\"text\":\"{}\"}}", "x".repeat(14 << 20)));
    for _ in 0..5 {
        let mut taken_back = Call::tool("echo").raw_arguments(large.clone());
        let mut asked = Box::pin(connection.call(&mut taken_back, "echo", Instant::now()));
        assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(asked);
        breath().await;
    }
    assert_eq!(text(echo(&connection).await), "echo");
    assert_eq!(far.seen("tools/call").len(), 1, "those were taken back before they were sent");
}
