//! Valid and invalid messages of servers, and what reaches the caller.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::{WAIT_LIMIT, call, crib, eventually, fake, server_id, status, text};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::{Call, CallUpdate, ErrorKind, ServerLimits};

#[tokio::test]
async fn malformed_reply_fails_only_its_own_call() {
    let limits = ServerLimits { message: 64 << 10, ..ServerLimits::default() };
    let crib = crib([fake!("fake").limits(limits)]);
    let other = crib.clone();
    let mut calls = JoinSet::new();
    calls.spawn(async move { text(&other, "fake", "sleep", &json!({"ms": 1000})).await });
    eventually("the other call is in flight", || status(&crib, "fake").in_flight == 1).await;
    let forms = [
        "string_id",
        "both",
        "neither",
        "wrong_type",
        "batch",
        "not_json",
        "cut",
        "oversize",
        "invalid_utf8",
    ];
    for form in forms {
        let arguments = json!({"form": form, "bytes": 100_000});
        let answer = timeout(Duration::from_secs(1), call(&crib, "fake", "reply", &arguments)).await;
        let error = answer.unwrap_or_else(|_| panic!("{form} must not hang")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{form}: {error}");
        // A success in between keeps the breaker closed.
        assert_eq!(text(&crib, "fake", "echo", &json!({"text": form})).await, form);
    }
    assert_eq!(calls.join_next().await.unwrap().unwrap(), "slept");
    let status = status(&crib, "fake");
    assert_eq!((status.generation, status.restarts), (1, 0), "the process was not restarted");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn results_pass_byte_for_byte() {
    let crib = crib([fake!("fake")]);
    for unusual in [
        r#"{ "content":[ ],"n":1.10,"big":1e400,"x":12345678901234567890123,"é":"\u00e9\/" , "z":{"b":1,"a":[]} }"#,
        r#"{"content":[{"type":"never-heard-of","x":null}],"unknown":{"id":7,"method":"no"},"isError":false}"#,
    ] {
        let outcome = call(&crib, "fake", "raw", &json!({"json": unusual})).await.unwrap();
        assert_eq!(outcome.raw(), unusual);
    }
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn arguments_pass_byte_for_byte() {
    let crib = crib([fake!("fake")]);
    let unusual = r#"{ "n": 1.0,"big":1.50E+30,"__proto__":{"a":1},"s":"\u0041\/" ,"id":9}"#;
    let call = Call::tool_on(server_id("fake"), "received").raw_arguments(unusual);
    let received = crib.call(call).await.unwrap().text();
    assert!(received.contains(&format!(r#""arguments":{unusual}"#)), "{received}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn deeply_nested_result_is_passed() {
    let crib = crib([fake!("fake")]);
    let outcome = call(&crib, "fake", "deep", &json!({"levels": 100_000})).await.unwrap();
    assert!(outcome.raw().len() > 200_000);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn tool_errors_do_not_count_as_failures() {
    let crib = crib([fake!("fake")]);
    for _ in 0..10 {
        let outcome =
            call(&crib, "fake", "fail", &json!({"text": "could not connect to the database"})).await.unwrap();
        assert!(outcome.is_error());
        assert_eq!(outcome.text(), "could not connect to the database");
    }
    let outcome = call(&crib, "fake", "no_such_tool", &json!({})).await.unwrap();
    assert_eq!(outcome.to_value()["code"], -32602);
    let status = status(&crib, "fake");
    assert_eq!((status.generation, status.consecutive_failures, status.breaker()), (1, 0, "closed"));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn flood_on_stderr_does_not_block_calls() {
    let crib = crib([fake!("fake", "--stderr-flood", (64 << 20).to_string())]);
    let answer =
        timeout(WAIT_LIMIT, call(&crib, "fake", "echo", &json!({"text": "still here"}))).await.unwrap();
    assert_eq!(answer.unwrap().text(), "still here");
    let tail = status(&crib, "fake").stderr_tail;
    assert!(!tail.is_empty() && tail.len() <= 200, "{} lines", tail.len());
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn garbage_on_stdout_is_skipped_and_counted() {
    let crib = crib([fake!("fake", "--stdout-garbage", "--page-size", "5")]);
    for number in 0..10 {
        assert_eq!(
            text(&crib, "fake", "echo", &json!({"text": number.to_string()})).await,
            number.to_string()
        );
    }
    assert!(status(&crib, "fake").garbage_lines > 50, "{}", status(&crib, "fake").garbage_lines);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn response_after_many_notifications_arrives() {
    let crib = crib([fake!("fake")]);
    let answer = timeout(WAIT_LIMIT, call(&crib, "fake", "flood_notifications", &json!({"n": 100_000})))
        .await
        .unwrap();
    assert_eq!(answer.unwrap().text(), "flooded");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn server_request_with_the_id_of_the_call_is_not_its_response() {
    let crib = crib([fake!("fake")]);
    let responses: Value = serde_json::from_str(&text(&crib, "fake", "ping", &json!({})).await).unwrap();
    assert_eq!(responses[0]["result"], json!({}), "{responses}");
    assert_eq!(responses[1]["error"]["code"], -32601, "{responses}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn dropped_call_is_cancelled_at_the_server() {
    let crib = crib([fake!("fake")]);
    let hang = crib.clone();
    let mut calls = JoinSet::from_iter([async move { call(&hang, "fake", "hang", &json!({})).await }]);
    eventually("the call is in flight", || status(&crib, "fake").in_flight == 1).await;
    let received = text(&crib, "fake", "received", &json!({})).await;
    let id = serde_json::from_str::<Value>(&received).unwrap()["id"].as_u64().unwrap();
    assert_eq!(text(&crib, "fake", "cancelled", &json!({})).await, "[]");
    calls.abort_all();
    eventually("no call is in flight", || status(&crib, "fake").in_flight == 0).await;
    let cancelled = text(&crib, "fake", "cancelled", &json!({})).await;
    assert_eq!(cancelled, format!("[{}]", id - 1));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn timed_out_call_is_cancelled_and_the_server_keeps_running() {
    let limits = ServerLimits { call_timeout: Duration::from_millis(200), ..ServerLimits::default() };
    let crib = crib([fake!("fake").limits(limits)]);
    let error = call(&crib, "fake", "hang", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let cancelled: Value = serde_json::from_str(&text(&crib, "fake", "cancelled", &json!({})).await).unwrap();
    assert_eq!(cancelled.as_array().unwrap().len(), 1, "{cancelled}");
    assert_eq!(status(&crib, "fake").generation, 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn progress_arrives_in_order_and_extends_the_timeout() {
    for era in ["session", "stateless"] {
        let limits = ServerLimits { call_timeout: Duration::from_millis(400), ..ServerLimits::default() };
        let crib = crib([fake!("fake", "--era", era).limits(limits)]);
        let (sink, mut updates) = mpsc::channel(64);
        let arguments = json!({"steps": 6, "ms": 150});
        let progress = Call::tool_on(server_id("fake"), "progress").arguments(&arguments).updates(sink);
        assert_eq!(crib.call(progress).await.unwrap().text(), "6 steps", "{era}");
        let mut steps = Vec::new();
        while let Ok(CallUpdate::Progress(step)) = updates.try_recv() {
            steps.push(serde_json::from_slice::<Value>(step.get("progress").unwrap()).unwrap());
        }
        assert_eq!(steps, (1..=6).map(Value::from).collect::<Vec<_>>(), "{era}");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn message_of_exactly_the_limit_passes() {
    let head = r#"{"jsonrpc":"2.0","id":4,"result":{"x":""}}"#.len();
    for (extra, passes) in [(0, true), (1, false)] {
        let limits = ServerLimits { message: 50_000, ..ServerLimits::default() };
        let crib = crib([fake!("fake").limits(limits)]);
        assert_eq!(text(&crib, "fake", "echo", &json!({"text": "awake"})).await, "awake");
        let received = text(&crib, "fake", "received", &json!({})).await;
        let digits = serde_json::from_str::<Value>(&received).unwrap()["id"].to_string().len();
        assert_eq!(digits, 1, "the length below depends on it");
        let arguments = json!({"form": "oversize", "bytes": 50_000 - head + extra});
        let outcome = call(&crib, "fake", "reply", &arguments).await;
        assert_eq!(outcome.is_ok(), passes, "{extra}: {outcome:?}");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn many_items_pass_and_a_blob_above_the_limit_is_refused() {
    let records = tempfile::tempdir().unwrap();
    let crib = crib([fake!("fake", "--record-dir", records.path().to_string_lossy())]);
    let outcome = call(&crib, "fake", "record", &json!({"token": "1", "fault": "many_items"})).await.unwrap();
    let found = outcome.to_value()["content"].as_array().map(Vec::len);
    assert_eq!(found, Some(100_000));
    let error = call(&crib, "fake", "reply", &json!({"form": "oversize", "bytes": 40 << 20})).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::BadReply);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "hi"})).await, "hi");
    crib.shutdown(Duration::ZERO).await;
}
