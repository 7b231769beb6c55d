//! What real servers put on the wire, rightly and wrongly, and what reaches the caller.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::{PATIENCE, call, crib, eventually, fake, server_id, status, text};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::{Call, ErrorKind, Limits, Told};

#[tokio::test]
async fn every_bad_reply_fails_its_own_call_at_once_and_no_other() {
    let limits = Limits { message: 64 << 10, ..Limits::default() };
    let crib = crib([fake!("fake").limits(limits)]);
    let bystander = crib.clone();
    let mut calls = JoinSet::new();
    calls.spawn(async move { text(&bystander, "fake", "sleep", &json!({"ms": 1000})).await });
    eventually("the bystander is in flight", || status(&crib, "fake").in_flight == 1).await;
    let ways = [
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
    for how in ways {
        let arguments = json!({"how": how, "bytes": 100_000});
        let answer = timeout(Duration::from_secs(1), call(&crib, "fake", "reply", &arguments)).await;
        let error = answer.unwrap_or_else(|_| panic!("{how} must not hang")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{how}: {error}");
        // One good answer in between, or the breaker would trip.
        assert_eq!(text(&crib, "fake", "echo", &json!({"text": how})).await, how);
    }
    assert_eq!(calls.join_next().await.unwrap().unwrap(), "slept");
    let status = status(&crib, "fake");
    assert_eq!((status.generation, status.restarts), (1, 0), "it is still the same process");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn results_pass_byte_for_byte() {
    let crib = crib([fake!("fake")]);
    for odd in [
        r#"{ "content":[ ],"n":1.10,"big":1e400,"x":12345678901234567890123,"é":"\u00e9\/" , "z":{"b":1,"a":[]} }"#,
        r#"{"content":[{"type":"never-heard-of","x":null}],"unknown":{"id":7,"method":"no"},"isError":false}"#,
    ] {
        let outcome = call(&crib, "fake", "raw", &json!({"json": odd})).await.unwrap();
        assert_eq!(outcome.raw(), odd);
    }
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn arguments_pass_byte_for_byte() {
    let crib = crib([fake!("fake")]);
    let odd = r#"{ "n": 1.0,"big":1.50E+30,"__proto__":{"a":1},"s":"\u0041\/" ,"id":9}"#;
    let call = Call::on(server_id("fake"), "received").raw_arguments(odd);
    let received = crib.call(call).await.unwrap().text();
    assert!(received.contains(&format!(r#""arguments":{odd}"#)), "{received}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn an_answer_a_hundred_thousand_levels_deep_is_carried() {
    let crib = crib([fake!("fake")]);
    let outcome = call(&crib, "fake", "deep", &json!({"levels": 100_000})).await.unwrap();
    assert!(outcome.raw().len() > 200_000);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_tool_that_says_error_is_an_outcome_and_costs_nothing() {
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
async fn sixty_four_megabytes_on_stderr_block_nobody() {
    let crib = crib([fake!("fake", "--stderr-flood", (64 << 20).to_string())]);
    let answer =
        timeout(PATIENCE, call(&crib, "fake", "echo", &json!({"text": "still here"}))).await.unwrap();
    assert_eq!(answer.unwrap().text(), "still here");
    let tail = status(&crib, "fake").stderr_tail;
    assert!(!tail.is_empty() && tail.len() <= 200, "{} lines", tail.len());
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn noise_on_stdout_is_skipped_and_counted() {
    let crib = crib([fake!("fake", "--stdout-noise", "--page-size", "5")]);
    for number in 0..10 {
        assert_eq!(
            text(&crib, "fake", "echo", &json!({"text": number.to_string()})).await,
            number.to_string()
        );
    }
    assert!(status(&crib, "fake").noise > 50, "{}", status(&crib, "fake").noise);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_hundred_thousand_notifications_hide_no_answer() {
    let crib = crib([fake!("fake")]);
    let answer =
        timeout(PATIENCE, call(&crib, "fake", "flood_notifications", &json!({"n": 100_000}))).await.unwrap();
    assert_eq!(answer.unwrap().text(), "flooded");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_asks_back_under_our_own_id_is_answered_and_not_believed() {
    let crib = crib([fake!("fake")]);
    let replies: Value = serde_json::from_str(&text(&crib, "fake", "ping", &json!({})).await).unwrap();
    assert_eq!(replies[0]["result"], json!({}), "{replies}");
    assert_eq!(replies[1]["error"]["code"], -32601, "{replies}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn dropping_a_call_tells_the_server_which_one() {
    let crib = crib([fake!("fake")]);
    let hang = crib.clone();
    let mut calls = JoinSet::from_iter([async move { call(&hang, "fake", "hang", &json!({})).await }]);
    eventually("it is in flight", || status(&crib, "fake").in_flight == 1).await;
    let received = text(&crib, "fake", "received", &json!({})).await;
    let id = serde_json::from_str::<Value>(&received).unwrap()["id"].as_u64().unwrap();
    assert_eq!(text(&crib, "fake", "cancelled", &json!({})).await, "[]");
    calls.abort_all();
    eventually("its place is free", || status(&crib, "fake").in_flight == 0).await;
    let cancelled = text(&crib, "fake", "cancelled", &json!({})).await;
    assert_eq!(cancelled, format!("[{}]", id - 1));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_call_over_its_time_is_taken_back_and_the_server_keeps_living() {
    let limits = Limits { call_timeout: Duration::from_millis(200), ..Limits::default() };
    let crib = crib([fake!("fake").limits(limits)]);
    let error = call(&crib, "fake", "hang", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let cancelled: Value = serde_json::from_str(&text(&crib, "fake", "cancelled", &json!({})).await).unwrap();
    assert_eq!(cancelled.as_array().unwrap().len(), 1, "{cancelled}");
    assert_eq!(status(&crib, "fake").generation, 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn progress_comes_in_order_before_the_answer_and_extends_the_time() {
    for era in ["session", "stateless"] {
        let limits = Limits { call_timeout: Duration::from_millis(400), ..Limits::default() };
        let crib = crib([fake!("fake", "--era", era).limits(limits)]);
        let (sink, mut heard) = mpsc::channel(64);
        let arguments = json!({"steps": 6, "ms": 150});
        let progress = Call::on(server_id("fake"), "progress").arguments(&arguments).tell(sink);
        assert_eq!(crib.call(progress).await.unwrap().text(), "6 steps", "{era}");
        let mut steps = Vec::new();
        while let Ok(Told::Progress(step)) = heard.try_recv() {
            steps.push(serde_json::from_slice::<Value>(step.get("progress").unwrap()).unwrap());
        }
        assert_eq!(steps, (1..=6).map(Value::from).collect::<Vec<_>>(), "{era}");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_message_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
    let head = r#"{"jsonrpc":"2.0","id":4,"result":{"x":""}}"#.len();
    for (extra, passes) in [(0, true), (1, false)] {
        let limits = Limits { message: 50_000, ..Limits::default() };
        let crib = crib([fake!("fake").limits(limits)]);
        assert_eq!(text(&crib, "fake", "echo", &json!({"text": "awake"})).await, "awake");
        let received = text(&crib, "fake", "received", &json!({})).await;
        let digits = serde_json::from_str::<Value>(&received).unwrap()["id"].to_string().len();
        assert_eq!(digits, 1, "the length below counts on it");
        let arguments = json!({"how": "oversize", "bytes": 50_000 - head + extra});
        let outcome = call(&crib, "fake", "reply", &arguments).await;
        assert_eq!(outcome.is_ok(), passes, "{extra}: {outcome:?}");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_hundred_thousand_items_are_carried_and_a_blob_over_the_limit_is_refused() {
    let ledger = tempfile::tempdir().unwrap();
    let crib = crib([fake!("fake", "--ledger", ledger.path().to_string_lossy())]);
    let outcome = call(&crib, "fake", "stamp", &json!({"token": "1", "how": "many"})).await.unwrap();
    let found = outcome.to_value()["content"].as_array().map(Vec::len);
    assert_eq!(found, Some(100_000));
    let error = call(&crib, "fake", "reply", &json!({"how": "oversize", "bytes": 40 << 20})).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::BadReply);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "well"})).await, "well");
    crib.shutdown(Duration::ZERO).await;
}
