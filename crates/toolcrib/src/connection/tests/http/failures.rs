//! What callers hear when HTTP goes wrong.

use super::*;
use crate::spec::Limits;

/// A stateless server whose calls are all answered like this.
async fn answering(reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> (Far, Arc<Connection>) {
    let far = Far::start(move |seen| match seen.what() {
        "tools/call" => reply(seen),
        _ => stateless(seen),
    });
    let far = far.await;
    let connection = to(&far).await;
    (far, connection)
}

#[tokio::test]
async fn a_server_that_is_down_or_closed_to_us_is_never_taken_for_an_old_one() {
    for (status, words) in
        [(401, "authentication"), (403, "refuses access"), (500, "HTTP 500"), (503, "HTTP 503")]
    {
        let far =
            Far::start(move |_| Reply::text(status, "text/plain", "sorry").with("retry-after", "7")).await;
        let error = refused(&http(&far.url)).await;
        let kind = if status < 500 { ErrorKind::AuthNeeded } else { ErrorKind::CouldNotStart };
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.advice().contains("headers"), status < 500, "{}", error.advice());
        assert_eq!(far.story(), ["server/discover"]);
        assert_eq!(error.wait(), (status >= 500).then_some(SECOND * 7));
    }
    let far = Far::start(|seen| match seen.what() {
        "tools/list" => Reply::empty(404),
        _ => stateless(seen),
    });
    let failure = launched(&http(&far.await.url), None).await.unwrap_err();
    assert_eq!(failure.error.class(), Some(FailureClass::Unreachable));
    assert!(failure.error.to_string().contains("HTTP 404"), "{failure:?}");
    let gone = Far::start(stateless).await.url;
    let error = refused(&http(&gone)).await;
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn a_refused_call_says_why_and_when_to_come_back() {
    for (status, after, wait) in [
        (503, "2", Some(2)),
        (429, "1000000000", Some(60)),
        (500, "garbage", None),
        (502, "Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
    ] {
        let reply = move |_: &Seen| Reply::text(status, "text/plain", "too busy").with("retry-after", after);
        let (far, connection) = answering(reply).await;
        let error = echo(&connection).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::BadReply, false));
        assert_eq!(error.wait(), wait.map(Duration::from_secs));
        assert!(error.to_string().contains(&format!("HTTP {status}: too busy")), "{error}");
        assert_eq!(far.seen("tools/call").len(), 1, "it is not asked again");
    }
}

#[tokio::test]
async fn what_a_server_says_cannot_command_a_terminal() {
    let (_far, connection) =
        answering(|_| Reply::text(500, "text/plain", "\u{1b}[2Jred\u{9b}31m\r\nend\u{7}")).await;
    let error = echo(&connection).await.unwrap_err().to_string();
    assert!(error.contains("HTTP 500:  [2Jred 31m  end"), "{error:?}");
    assert!(!error.contains(char::is_control), "{error:?}");
}

type Bad = fn(&Seen) -> Reply;

#[tokio::test]
async fn an_answer_that_is_none_fails_its_call_alone() {
    let cases: [(Bad, &str); 9] = [
        (|_| Reply::text(200, "text/html", "<html>"), "without JSON or events"),
        (|_| Reply::empty(202), "without JSON or events"),
        (|_| Reply::empty(204), "without JSON or events"),
        (|_| Reply::text(200, "application/json", "hello"), "holds no answer"),
        (|_| Reply::text(200, "application/json", ""), "holds no answer"),
        (|_| Reply::json(200, &json!({"jsonrpc": "2.0", "id": 4711, "result": {}})), "another request's"),
        (|_| Reply::json(200, &json!({"jsonrpc": "2.0", "id": "3", "result": {}})), "is not one of ours"),
        (|seen| Reply::json(200, &said(seen)).with("content-encoding", "gzip"), "without JSON or events"),
        (|_| Reply::text(302, "text/html", "").with("location", "/"), "HTTP 302"),
    ];
    for (reply, why) in cases {
        let far = Far::start(move |seen| match seen.tool() {
            "echo" => reply(seen),
            "hold" => Reply::events([Step::Hang]),
            _ => stateless(seen),
        });
        let far = far.await;
        let connection = to(&far).await;
        let mut tasks = JoinSet::new();
        held(&connection, &mut tasks);
        far.until(|far| far.seen("tools/call").len() == 1).await;
        let error = echo(&connection).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(connection.in_flight(), 1, "the other call goes on");
    }
}

#[tokio::test]
async fn a_greeting_that_is_none_is_not_waited_for() {
    for nothing in ["", "{}", "hello", r#"{"jsonrpc":"2.0","method":"notifications/nothing"}"#] {
        let far = Far::start(move |seen| match seen.what() {
            "initialize" => Reply::text(200, "application/json", nothing),
            _ => session(seen, "s1"),
        });
        let far = far.await;
        let error = timeout(SECOND * 10, refused(&http(&far.url))).await.expect(nothing);
        assert!(error.to_string().contains("bad answer: its response holds no answer"), "{nothing}: {error}");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused() {
    let long = "x".repeat(5000);
    for events in [false, true] {
        let long = long.clone();
        let far = Far::start(move |seen| {
            let answer = answer(seen, &json!({ "text": long }));
            match seen.tool() {
                "echo" if events => Reply::events([event(&answer)]),
                "echo" => Reply::json(200, &answer),
                _ => stateless(seen),
            }
        });
        let far = far.await;
        let connection =
            connected(&http(&far.url).limits(Limits { message: 4000, ..Limits::default() })).await;
        let error = echo(&connection).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply);
        assert!(error.to_string().contains("limits.message"), "{error}");
    }
}

#[tokio::test]
async fn half_an_answer_is_no_answer() {
    let half = |kind: &'static str| {
        move |seen: &Seen| {
            let text = said(seen).to_string();
            let text = if kind == "text/event-stream" { format!("data: {text}\n\n") } else { text };
            let steps = vec![Step::Say(text[..text.len() - 5].to_owned()), Step::Cut];
            Reply { steps, ..Reply::text(200, kind, "") }
        }
    };
    for kind in ["application/json", "text/event-stream"] {
        let (far, connection) = answering(half(kind)).await;
        let error = echo(&connection).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, false), "{error}");
        assert_eq!(far.seen("tools/call").len(), 1, "it is not asked again");
        assert!(!connection.is_closed());
    }
    let (_far, connection) = answering(|_| Reply::events([Step::Say("data: {}\n".into())])).await;
    assert_eq!(echo(&connection).await.unwrap_err().kind(), ErrorKind::Lost, "a stream without an answer");
}

#[tokio::test]
async fn a_call_that_reached_nobody_says_so() {
    let far = Far::start(stateless).await;
    let connection = to(&far).await;
    drop(far);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let error = echo(&connection).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, true), "{error}");
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_server_only() {
    let far = Far::start(|seen| match &*seen.path {
        "/mcp" => Reply::empty(308).with("location", "/there?x=1"),
        _ => stateless(seen),
    });
    let far = far.await;
    let connection = to(&far).await;
    assert_eq!(text(echo(&connection).await), "echo");
    assert_eq!(far.seen("tools/call").last().unwrap().path, "/there?x=1");

    let thief = Far::start(stateless).await;
    let there = thief.url.clone();
    let far = Far::start(move |_| Reply::empty(307).with("location", there.clone())).await;
    let http = HttpSpec::new(&far.url).header("Authorization", "Bearer t0ken");
    let error = refused(&ServerSpec::http("far".parse().unwrap(), http)).await;
    assert!(error.to_string().contains("redirects to another server"), "{error}");
    assert!(thief.story().is_empty(), "nothing reached the other server");
    assert!(!error.to_string().contains("t0ken"));
}

#[tokio::test]
async fn what_is_missing_is_named_and_what_is_secret_is_not() {
    let spec = |url: &str, value: &str| {
        let folder = std::path::Path::new("/");
        let mut http = HttpSpec::new("");
        http.url = crate::text::Text::parse(url, folder).unwrap();
        http.headers.insert("X-Key".into(), crate::text::Text::parse(value, folder).unwrap());
        ServerSpec::http("far".parse().unwrap(), http)
    };
    let error = refused(&spec("https://${env:TOOLCRIB_TEST_UNSET}/", "x")).await;
    assert!(error.to_string().contains("`TOOLCRIB_TEST_UNSET` is not set"), "{error}");
    let error = refused(&spec("http://127.0.0.1:1/", "s3cret\n${env:HOME}")).await;
    assert!(error.to_string().contains("`X-Key`") && !error.to_string().contains("s3cret"), "{error}");
    let error = refused(&spec("${env:TOOLCRIB_TEST_UNSET:-s3cret}", "x")).await;
    assert!(error.to_string().contains("`url`") && !error.to_string().contains("s3cret"), "{error}");
}
