//! Replies in any order and shape, noise, and what a server asks of us.

use super::*;

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#;

#[tokio::test(start_paused = true)]
async fn replies_find_their_calls_in_any_order() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    for n in 0..40u64 {
        let connection = connection.clone();
        calls.spawn(async move {
            let arguments = json!({"ms": (n * 7) % 40 * 100, "n": n});
            let outcome = call(&connection, "slow", arguments.clone()).await.unwrap();
            assert_eq!(outcome.text(), arguments.to_string());
        });
    }
    let before = Instant::now();
    calls.join_all().await;
    assert!(before.elapsed() < 5 * SECOND, "one after another");
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_number_in_two_spellings_is_one_number() {
    let connection = connected(&spec(&Fake::new())).await;
    say(&connection, &[r#"{"jsonrpc":"2.0","id":$ID.0,"result":{}}"#]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replies_that_are_none_fail_their_call_at_once() {
    let connection = connected(&spec(&Fake::new())).await;
    let before = Instant::now();
    for bad in [
        r#"{"jsonrpc":"2.0","id":"$ID","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":$ID}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":7}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":null}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"cut":"#,
        r#"[{"jsonrpc":"2.0","id":$ID,"result":{}}]"#,
        r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
    ] {
        let error = say(&connection, &[bad]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{bad}");
    }
    assert!(before.elapsed() < SECOND);
    say(&connection, &[ANSWER]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_error_without_a_message_still_ends_its_call() {
    let connection = connected(&spec(&Fake::new())).await;
    let outcome =
        say(&connection, &[r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-7,"data":[1.0]}}"#]).await.unwrap();
    assert_eq!(outcome.raw(), r#"{"code":-7,"data":[1.0]}"#);
}

#[tokio::test(start_paused = true)]
async fn a_reply_over_the_limit_fails_its_call_and_the_connection_lives() {
    let fake = Fake::new();
    let limited = spec(&fake).limits(Limits { message: 2000, ..Limits::default() });
    let connection = connected(&limited).await;
    let mut calls = JoinSet::new();
    held(&connection, &mut calls);
    let before = Instant::now();
    let large = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"x":"{}"}}}}"#, "x".repeat(100_000));
    let error = say(&connection, &[&large]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadReply);
    assert!(error.to_string().contains("limits.message"), "{error}");
    assert!(before.elapsed() < SECOND);
    fake.open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn noise_is_skipped_and_counted() {
    let connection = connected(&spec(&Fake::new())).await;
    let noise =
        ["Listening on 3000", "", "42", "[1,2]", "{half", "\u{1b}[1mbold", r#"{"level":"info"}"#, "null"];
    let mut lines = noise.to_vec();
    lines.push(ANSWER);
    say(&connection, &lines).await.unwrap();
    assert_eq!(connection.noise(), noise.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn notifications_nobody_waits_for_are_passed_over() {
    let connection = connected(&spec(&Fake::new())).await;
    let lines = [
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$ID,"progress":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":999,"progress":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x"}}"#,
        ANSWER,
    ];
    say(&connection, &lines).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reply_to_a_call_that_is_over_finds_nobody() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    held(&connection, &mut calls);
    breath().await;
    let mine = fake.heard("tools/call")[0]["id"].as_u64().unwrap();
    assert!(timeout(SECOND, call(&connection, "hang", Value::Null)).await.is_err());
    let late = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, mine + 1);
    say(&connection, &[&late, ANSWER]).await.unwrap();
    assert_eq!(connection.in_flight(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bad_reply_to_a_call_that_is_over_fails_nobody_else() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    assert!(timeout(SECOND, call(&connection, "hang", Value::Null)).await.is_err());
    breath().await;
    let over = fake.heard("tools/call")[0]["id"].as_u64().unwrap();
    let late = format!(r#"{{"jsonrpc":"2.0","id":"{over}","result":{{}}}}"#);
    say(&connection, &[&late, ANSWER]).await.unwrap();
    assert_eq!(connection.noise(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_asks_is_answered_at_once() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let asked = [
        r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}"#,
        ANSWER,
    ];
    say(&connection, &asked).await.unwrap();
    breath().await;
    let replies = fake.replies();
    assert_eq!(replies[0], json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    assert_eq!((&replies[1]["id"], &replies[1]["error"]["code"]), (&json!(77), &json!(-32601)));
}

#[tokio::test(start_paused = true)]
async fn a_request_under_a_number_in_flight_is_not_taken_for_the_answer() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let lines = [r#"{"jsonrpc":"2.0","id":$ID,"method":"roots/list","result":{"wrong":1}}"#, ANSWER];
    let outcome = say(&connection, &lines).await.unwrap();
    assert_eq!(outcome.raw(), r#"{"content":[]}"#);
    breath().await;
    assert_eq!(fake.replies()[0]["error"]["code"], -32601);
}

#[tokio::test(start_paused = true)]
async fn arguments_over_several_lines_arrive_on_one() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let pretty = "{\n  \"text\": \"a\\nb\",\r\n  \"n\": [\n    1\n  ]\n}";
    let outcome =
        connection.call(&mut Call::tool("echo").raw_arguments(pretty), "echo", Instant::now()).await.unwrap();
    assert_eq!(outcome.text(), r#"{"n":[1],"text":"a\nb"}"#);
    assert_eq!(connection.noise(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_death_fails_all_that_wait_at_once() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    (0..20).for_each(|_| held(&connection, &mut calls));
    breath().await;
    let before = Instant::now();
    fake.kill();
    for outcome in calls.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, false));
    }
    assert!(before.elapsed() < Duration::from_millis(250));
    let after = call(&connection, "echo", Value::Null).await.unwrap_err();
    assert_eq!((after.kind(), after.is_unsent(), connection.in_flight()), (ErrorKind::Lost, true, 0));
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_are_in_flight_than_the_server_takes() {
    let fake = Fake::new();
    let limits = Limits { in_flight: 3.try_into().unwrap(), ..Limits::default() };
    let connection = connected(&spec(&fake).limits(limits)).await;
    let mut calls = JoinSet::new();
    (0..10).for_each(|_| held(&connection, &mut calls));
    breath().await;
    assert_eq!((connection.in_flight(), fake.called().len()), (3, 3));
    fake.open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_cancelled_at_the_server_and_frees_its_number() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    assert!(timeout(SECOND, call(&connection, "hang", Value::Null)).await.is_err());
    breath().await;
    let cancelled = fake.heard("notifications/cancelled");
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0]["params"]["requestId"], fake.heard("tools/call")[0]["id"]);
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_too_late_is_cancelled_at_the_server() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let before = Instant::now();
    let error = call(&connection, "hang", Value::Null).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 60));
    assert_eq!(error.advice(), "raise `servers.fake.limits.call-timeout`");
    breath().await;
    assert_eq!(
        fake.heard("notifications/cancelled")[0]["params"]["requestId"],
        fake.heard("tools/call")[0]["id"]
    );
    call(&connection, "echo", Value::Null).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_over_is_not_cancelled() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    call(&connection, "echo", Value::Null).await.unwrap();
    say(&connection, &["{\"jsonrpc\":\"2.0\",\"id\":$ID}"]).await.unwrap_err();
    breath().await;
    assert!(fake.heard("notifications/cancelled").is_empty());
}
