//! Responses in any order and shape, garbage, and requests of the server.

use super::*;

const RESPONSE: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#;

#[tokio::test(start_paused = true)]
async fn responses_match_calls_in_any_order() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
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
    assert!(before.elapsed() < 5 * SECOND, "calls ran one after another");
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn response_id_may_be_spelled_as_a_float() {
    let connection = connect(&spec(&FakeServer::new())).await;
    call_with_lines(&connection, &[r#"{"jsonrpc":"2.0","id":$ID.0,"result":{}}"#]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn invalid_responses_fail_their_call_immediately() {
    let connection = connect(&spec(&FakeServer::new())).await;
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
        let error = call_with_lines(&connection, &[bad]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{bad}");
    }
    assert!(before.elapsed() < SECOND);
    call_with_lines(&connection, &[RESPONSE]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn error_without_a_message_ends_its_call() {
    let connection = connect(&spec(&FakeServer::new())).await;
    let outcome =
        call_with_lines(&connection, &[r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-7,"data":[1.0]}}"#])
            .await
            .unwrap();
    assert_eq!(outcome.raw(), r#"{"code":-7,"data":[1.0]}"#);
}

#[tokio::test(start_paused = true)]
async fn oversized_response_fails_only_its_call() {
    let fake = FakeServer::new();
    let limited = spec(&fake).limits(ServerLimits { message: 2000, ..ServerLimits::default() });
    let connection = connect(&limited).await;
    let mut calls = JoinSet::new();
    spawn_held_call(&connection, &mut calls);
    let before = Instant::now();
    let large = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"x":"{}"}}}}"#, "x".repeat(100_000));
    let error = call_with_lines(&connection, &[&large]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadReply);
    assert!(error.to_string().contains("limits.message"), "{error}");
    assert!(before.elapsed() < SECOND);
    fake.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

/// Connects with a limit of 2,000 bytes per message.
async fn connect_limited(fake: &FakeServer) -> Arc<Connection> {
    connect(&spec(fake).limits(ServerLimits { message: 2000, ..ServerLimits::default() })).await
}

#[tokio::test(start_paused = true)]
async fn oversized_response_names_size_limit_and_key() {
    let connection = connect_limited(&FakeServer::new()).await;
    let padding = "x".repeat(100_000);
    for large in [
        format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"x":"{padding}"}}}}"#),
        format!(r#"{{"result":{{"x":"{padding}"}},"jsonrpc":"2.0","id":$ID}}"#),
        format!(r#"{{"jsonrpc":"2.0","result":{{"x":"{padding}"}}}}"#),
    ] {
        let error = call_with_lines(&connection, &[&large]).await.unwrap_err();
        assert_eq!((error.kind(), error.hint()), (ErrorKind::BadReply, raise_limit()));
        let size = large.replace("$ID", "10").len();
        let sizes = [size - 1, size].map(|size| {
            format!(
                "`fake` sent a bad response: it has {size} bytes, and `servers.fake.limits.message` is 2000B"
            )
        });
        assert!(sizes.contains(&error.to_string()), "{error}");
    }
    call_with_lines(&connection, &[RESPONSE]).await.unwrap();
}

fn raise_limit() -> Hint {
    Hint::RaiseLimit { key: "servers.fake.limits.message".to_owned() }
}

#[tokio::test(start_paused = true)]
async fn long_output_before_the_response_is_skipped() {
    let fake = FakeServer::new();
    let connection = connect_limited(&fake).await;
    let output = "x".repeat(100_000);
    call_with_lines(&connection, &[&output, RESPONSE]).await.unwrap();
    let mut calls = JoinSet::new();
    spawn_held_call(&connection, &mut calls);
    call_with_lines(&connection, &[&output, RESPONSE]).await.unwrap();
    assert_eq!(connection.garbage_lines(), 2);
    fake.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    assert!(!connection.is_closed());
}

#[tokio::test(start_paused = true)]
async fn long_output_instead_of_the_response_fails_the_only_call() {
    let connection = connect_limited(&FakeServer::new()).await;
    let before = Instant::now();
    let error = call_with_lines(&connection, &[&"x".repeat(100_000)]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`fake` did not answer within 5s after a line of 100000 bytes that is not a message \
         (`servers.fake.limits.message` is 2000B)"
    );
    assert_eq!((error.kind(), error.hint()), (ErrorKind::BadReply, raise_limit()));
    assert_eq!((before.elapsed().as_secs(), connection.in_flight()), (5, 0));
    call_with_lines(&connection, &[RESPONSE]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn long_output_among_several_calls_fails_none_of_them() {
    let connection = connect_limited(&FakeServer::new()).await;
    for line in ["x".repeat(100_000), format!(r#"{{"result":{{"x":"{}"}}}}"#, "x".repeat(100_000))] {
        let before = Instant::now();
        let mut calls = JoinSet::new();
        for lines in [vec![line], Vec::new()] {
            let connection = connection.clone();
            calls.spawn(async move {
                let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
                call_with_lines(&connection, &lines).await.unwrap_err()
            });
        }
        for error in calls.join_all().await {
            assert_eq!((error.kind(), error.hint()), (ErrorKind::TimedOut, raise_limit()));
            let text = error.to_string();
            assert!(text.contains("did not answer in time, after a ") && text.contains("is 2000B"), "{text}");
        }
        assert_eq!(before.elapsed(), ServerLimits::default().call_timeout);
        let later = call_with_lines(&connection, &[]).await.unwrap_err();
        assert!(later.to_string().contains("within"), "a call after the line: {later}");
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_question_is_refused_and_the_call_goes_on() {
    let fake = FakeServer::new();
    let connection = connect_limited(&fake).await;
    let question = format!(
        r#"{{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{{"x":"{}"}}}}"#,
        "x".repeat(100_000)
    );
    call_with_lines(&connection, &[&question, RESPONSE]).await.unwrap();
    settle().await;
    let answer = fake.replies().into_iter().find(|answer| answer["id"] == "q").unwrap();
    assert!(answer["error"]["message"].as_str().unwrap().contains("limits.message"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn garbage_lines_are_skipped_and_counted() {
    let connection = connect(&spec(&FakeServer::new())).await;
    let garbage =
        ["Listening on 3000", "", "42", "[1,2]", "{half", "\u{1b}[1mbold", r#"{"level":"info"}"#, "null"];
    let mut lines = garbage.to_vec();
    lines.push(RESPONSE);
    call_with_lines(&connection, &lines).await.unwrap();
    assert_eq!(connection.garbage_lines(), garbage.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn unexpected_notifications_are_ignored() {
    let connection = connect(&spec(&FakeServer::new())).await;
    let lines = [
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$ID,"progress":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":999,"progress":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x"}}"#,
        RESPONSE,
    ];
    call_with_lines(&connection, &lines).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn late_response_is_ignored() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    spawn_held_call(&connection, &mut calls);
    settle().await;
    let held_id = fake.received("tools/call")[0]["id"].as_u64().unwrap();
    assert!(timeout(SECOND, call(&connection, "hang", Value::Null)).await.is_err());
    let late = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, held_id + 1);
    call_with_lines(&connection, &[&late, RESPONSE]).await.unwrap();
    assert_eq!(connection.in_flight(), 1);
}

#[tokio::test(start_paused = true)]
async fn late_invalid_response_fails_no_other_call() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    assert!(timeout(SECOND, call(&connection, "hang", Value::Null)).await.is_err());
    settle().await;
    let ended_id = fake.received("tools/call")[0]["id"].as_u64().unwrap();
    let late = format!(r#"{{"jsonrpc":"2.0","id":"{ended_id}","result":{{}}}}"#);
    call_with_lines(&connection, &[&late, RESPONSE]).await.unwrap();
    assert_eq!(connection.garbage_lines(), 1);
}

#[tokio::test(start_paused = true)]
async fn server_requests_without_a_client_are_answered() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let lines = [
        r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}"#,
        RESPONSE,
    ];
    call_with_lines(&connection, &lines).await.unwrap();
    settle().await;
    let replies = fake.replies();
    assert_eq!(replies[0], json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    assert_eq!((&replies[1]["id"], &replies[1]["error"]["code"]), (&json!(77), &json!(-32601)));
}

#[tokio::test(start_paused = true)]
async fn request_with_a_pending_id_is_not_a_response() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let lines = [r#"{"jsonrpc":"2.0","id":$ID,"method":"roots/list","result":{"wrong":1}}"#, RESPONSE];
    let outcome = call_with_lines(&connection, &lines).await.unwrap();
    assert_eq!(outcome.raw(), r#"{"content":[]}"#);
    settle().await;
    assert_eq!(fake.replies()[0]["error"]["code"], -32601);
}

#[tokio::test(start_paused = true)]
async fn multi_line_arguments_are_sent_on_one_line() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let pretty = "{\n  \"text\": \"a\\nb\",\r\n  \"n\": [\n    1\n  ]\n}";
    let outcome =
        connection.call(&mut Call::tool("echo").raw_arguments(pretty), "echo", Instant::now()).await.unwrap();
    assert_eq!(outcome.text(), r#"{"n":[1],"text":"a\nb"}"#);
    assert_eq!(connection.garbage_lines(), 0);
}

#[tokio::test(start_paused = true)]
async fn exit_fails_all_pending_calls_immediately() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    (0..20).for_each(|_| spawn_held_call(&connection, &mut calls));
    settle().await;
    let before = Instant::now();
    fake.kill();
    for outcome in calls.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, false));
    }
    assert!(before.elapsed() < Duration::from_millis(250));
    let after = call(&connection, "echo", Value::Null).await.unwrap_err();
    assert_eq!((after.kind(), after.is_not_sent(), connection.in_flight()), (ErrorKind::Lost, true, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_are_limited() {
    let fake = FakeServer::new();
    let limits = ServerLimits { in_flight: 3.try_into().unwrap(), ..ServerLimits::default() };
    let connection = connect(&spec(&fake).limits(limits)).await;
    let mut calls = JoinSet::new();
    (0..10).for_each(|_| spawn_held_call(&connection, &mut calls));
    settle().await;
    assert_eq!((connection.in_flight(), fake.called_tools().len()), (3, 3));
    fake.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn dropped_call_is_cancelled_at_the_server() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    assert!(timeout(SECOND, call(&connection, "hang", Value::Null)).await.is_err());
    settle().await;
    let cancelled = fake.received("notifications/cancelled");
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0]["params"]["requestId"], fake.received("tools/call")[0]["id"]);
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn timed_out_call_is_cancelled_at_the_server() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let before = Instant::now();
    let error = call(&connection, "hang", Value::Null).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 60));
    assert_eq!(error.hint(), "raise `servers.fake.limits.call-timeout`");
    settle().await;
    assert_eq!(
        fake.received("notifications/cancelled")[0]["params"]["requestId"],
        fake.received("tools/call")[0]["id"]
    );
    call(&connection, "echo", Value::Null).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_time_out_at_their_own_deadlines() {
    let fake = FakeServer::new();
    let mut spec = spec(&fake);
    let connection = Arc::new(connect(&spec).await);
    let began = Instant::now();
    let mut calls = JoinSet::new();
    let spawn_hanging_call = |calls: &mut JoinSet<u64>| {
        let connection = connection.clone();
        calls.spawn(async move {
            let error = call(&connection, "hang", Value::Null).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            began.elapsed().as_secs()
        });
    };
    spawn_hanging_call(&mut calls);
    settle().await;
    spec.limits.call_timeout = 5 * SECOND;
    connection.apply_settings(&spec);
    spawn_hanging_call(&mut calls);
    assert_eq!(calls.join_next().await.unwrap().unwrap(), 5);
    call(&connection, "echo", Value::Null).await.unwrap();
    assert_eq!(calls.join_next().await.unwrap().unwrap(), 60);
    spawn_hanging_call(&mut calls);
    assert_eq!(calls.join_next().await.unwrap().unwrap(), 65, "after all deadlines had passed");
}

#[tokio::test(start_paused = true)]
async fn finished_call_is_not_cancelled() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    call(&connection, "echo", Value::Null).await.unwrap();
    call_with_lines(&connection, &["{\"jsonrpc\":\"2.0\",\"id\":$ID}"]).await.unwrap_err();
    settle().await;
    assert!(fake.received("notifications/cancelled").is_empty());
}
