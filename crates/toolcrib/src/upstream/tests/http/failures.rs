//! HTTP failures as callers see them.

use super::*;
use crate::spec::ServerLimits;

/// Connects to a stateless server that responds to every call like this.
async fn connect_with_calls(
    reply: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
) -> (RemoteServer, Arc<Connection>) {
    let server = RemoteServer::start(move |request| match request.method() {
        "tools/call" => reply(request),
        _ => stateless(request),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    (server, connection)
}

#[tokio::test]
async fn unavailable_server_is_not_taken_for_an_older_era() {
    for (status, message) in
        [(401, "requires authentication"), (403, "denies access"), (500, "HTTP 500"), (503, "HTTP 503")]
    {
        let server =
            RemoteServer::start(move |_| Reply::text(status, "text/plain", "sorry").with("retry-after", "7"))
                .await;
        let error = start_error(&http(&server.url)).await;
        let kind = if status < 500 { ErrorKind::AuthNeeded } else { ErrorKind::CouldNotStart };
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.hint().to_string().contains("headers"), status < 500, "{}", error.hint());
        assert_eq!(server.methods(), ["server/discover"]);
        assert_eq!(error.retry_in(), (status >= 500).then_some(SECOND * 7));
    }
    let server = RemoteServer::start(|request| match request.method() {
        "tools/list" => Reply::empty(404),
        _ => stateless(request),
    });
    let failure = try_connect(&http(&server.await.url), None).await.unwrap_err();
    assert_eq!(failure.error.class(), Some(FailureClass::Unreachable));
    assert!(failure.error.to_string().contains("HTTP 404"), "{failure:?}");
    let closed_url = RemoteServer::start(stateless).await.url;
    let error = start_error(&http(&closed_url)).await;
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn error_status_reports_the_reason_and_retry_delay() {
    for (status, after, wait) in [
        (503, "2", Some(2)),
        (429, "1000000000", Some(60)),
        (500, "garbage", None),
        (502, "Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
    ] {
        let reply = move |_: &RecordedRequest| {
            Reply::text(status, "text/plain", "too busy").with("retry-after", after)
        };
        let (server, connection) = connect_with_calls(reply).await;
        let error = echo(&connection).await.unwrap_err();
        // A server that answers 429 has not run the call.
        assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::BadReply, status == 429));
        assert_eq!(error.retry_in(), wait.map(Duration::from_secs));
        assert!(error.to_string().contains(&format!("HTTP {status}: too busy")), "{error}");
        assert_eq!(server.requests("tools/call").len(), 1, "the call is not repeated");
    }
}

#[tokio::test]
async fn error_text_has_no_control_characters() {
    let (_server, connection) =
        connect_with_calls(|_| Reply::text(500, "text/plain", "\u{1b}[2Jred\u{9b}31m\r\nend\u{7}")).await;
    let error = echo(&connection).await.unwrap_err().to_string();
    assert!(error.contains("HTTP 500:  [2Jred 31m  end"), "{error:?}");
    assert!(!error.contains(char::is_control), "{error:?}");
}

type BadReplyScript = fn(&RecordedRequest) -> Reply;

#[tokio::test]
async fn invalid_response_fails_only_its_call() {
    let cases: [(BadReplyScript, &str); 9] = [
        (|_| Reply::text(200, "text/html", "<html>"), "without JSON or events"),
        (|_| Reply::empty(202), "without JSON or events"),
        (|_| Reply::empty(204), "without JSON or events"),
        (|_| Reply::text(200, "application/json", "hello"), "contains no JSON-RPC response"),
        (|_| Reply::text(200, "application/json", ""), "contains no JSON-RPC response"),
        (
            |_| Reply::json(200, &json!({"jsonrpc": "2.0", "id": 4711, "result": {}})),
            "belongs to another request",
        ),
        (|_| Reply::json(200, &json!({"jsonrpc": "2.0", "id": "3", "result": {}})), "is not one of ours"),
        (
            |request| Reply::json(200, &tool_response(request)).with("content-encoding", "gzip"),
            "without JSON or events",
        ),
        (|_| Reply::text(302, "text/html", "").with("location", "/"), "HTTP 302"),
    ];
    for (reply, reason) in cases {
        let server = RemoteServer::start(move |request| match request.tool() {
            "echo" => reply(request),
            "hold" => Reply::events([Step::Hang]),
            _ => stateless(request),
        });
        let server = server.await;
        let connection = connect_to(&server).await;
        let mut tasks = JoinSet::new();
        spawn_held_call(&connection, &mut tasks);
        server.wait_until(|server| server.requests("tools/call").len() == 1).await;
        let error = echo(&connection).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(connection.in_flight(), 1, "the other call is still in flight");
    }
}

#[tokio::test]
async fn invalid_initialize_response_fails_immediately() {
    for invalid in ["", "{}", "hello", r#"{"jsonrpc":"2.0","method":"notifications/nothing"}"#] {
        let server = RemoteServer::start(move |request| match request.method() {
            "initialize" => Reply::text(200, "application/json", invalid),
            _ => session(request, "s1"),
        });
        let server = server.await;
        let error = timeout(SECOND * 10, start_error(&http(&server.url))).await.expect(invalid);
        assert!(
            error.to_string().contains("bad response: the HTTP response contains no JSON-RPC response"),
            "{invalid}: {error}"
        );
    }
}

#[tokio::test]
async fn oversized_message_fails_the_call() {
    let long = "x".repeat(5000);
    for events in [false, true] {
        let long = long.clone();
        let server = RemoteServer::start(move |request| {
            let body = response(request, &json!({ "text": long }));
            match request.tool() {
                "echo" if events => Reply::events([event(&body)]),
                "echo" => Reply::json(200, &body),
                _ => stateless(request),
            }
        });
        let server = server.await;
        let connection =
            connect(&http(&server.url).limits(ServerLimits { message: 4000, ..ServerLimits::default() }))
                .await;
        let error = echo(&connection).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply);
        let text = error.to_string();
        let size = text.split_once("it has ").and_then(|(_, rest)| rest.split_once(" bytes, and "));
        let (size, limit) = size.expect(&text);
        assert!((5000..5200).contains(&size.parse::<usize>().unwrap()), "{text}");
        assert!(limit.starts_with("`servers.remote.limits.message` is 4000B"), "{text}");
    }
}

#[tokio::test]
async fn oversized_notification_on_a_stream_is_skipped() {
    let large =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x".repeat(5000)}});
    let server = RemoteServer::start(move |request| match request.tool() {
        "echo" => Reply::events([event(&large), event(&tool_response(request))]),
        _ => stateless(request),
    });
    let server = server.await;
    let limits = ServerLimits { message: 4000, ..ServerLimits::default() };
    let connection = connect(&http(&server.url).limits(limits)).await;
    assert_eq!(text(echo(&connection).await), "echo");
}

#[tokio::test]
async fn truncated_response_loses_the_call() {
    let truncated = |kind: &'static str| {
        move |request: &RecordedRequest| {
            let text = tool_response(request).to_string();
            let text = if kind == "text/event-stream" { format!("data: {text}\n\n") } else { text };
            let steps = vec![Step::Send(text[..text.len() - 5].to_owned()), Step::Disconnect];
            Reply { steps, ..Reply::text(200, kind, "") }
        }
    };
    for kind in ["application/json", "text/event-stream"] {
        let (server, connection) = connect_with_calls(truncated(kind)).await;
        let error = echo(&connection).await.unwrap_err();
        assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, false), "{error}");
        assert_eq!(server.requests("tools/call").len(), 1, "the call is not repeated");
        assert!(!connection.is_closed());
    }
    let (_server, connection) =
        connect_with_calls(|_| Reply::events([Step::Send("data: {}\n".into())])).await;
    assert_eq!(echo(&connection).await.unwrap_err().kind(), ErrorKind::Lost, "a stream without a response");
}

#[tokio::test]
async fn unreachable_server_reports_not_sent() {
    let server = RemoteServer::start(stateless).await;
    let connection = connect_to(&server).await;
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let error = echo(&connection).await.unwrap_err();
    assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, true), "{error}");
}

#[tokio::test]
async fn redirects_are_followed_only_within_the_origin() {
    let server = RemoteServer::start(|request| match &*request.path {
        "/mcp" => Reply::empty(308).with("location", "/there?x=1"),
        _ => stateless(request),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    assert_eq!(text(echo(&connection).await), "echo");
    assert_eq!(server.requests("tools/call").last().unwrap().path, "/there?x=1");

    let other_server = RemoteServer::start(stateless).await;
    let location = other_server.url.clone();
    let server = RemoteServer::start(move |_| Reply::empty(307).with("location", location.clone())).await;
    let http = HttpSpec::new(&server.url).header("Authorization", "Bearer t0ken");
    let error = start_error(&ServerSpec::http("remote".parse().unwrap(), http)).await;
    assert!(error.to_string().contains("redirects to another server"), "{error}");
    assert!(other_server.methods().is_empty(), "no request reached the other server");
    assert!(!error.to_string().contains("t0ken"));
}

#[tokio::test]
async fn errors_name_missing_variables_without_values() {
    let spec = |url: &str, value: &str| {
        let folder = std::path::Path::new("/");
        let mut http = HttpSpec::new("");
        http.url = crate::spec::template::TemplateText::parse(url, folder).unwrap();
        http.headers
            .insert("X-Key".into(), crate::spec::template::TemplateText::parse(value, folder).unwrap());
        ServerSpec::http("remote".parse().unwrap(), http)
    };
    let error = start_error(&spec("https://${env:TOOLCRIB_TEST_UNSET}/", "x")).await;
    assert!(error.to_string().contains("`TOOLCRIB_TEST_UNSET` is not set"), "{error}");
    let error = start_error(&spec("http://127.0.0.1:1/", "s3cret\n${env:HOME}")).await;
    assert!(error.to_string().contains("`X-Key`") && !error.to_string().contains("s3cret"), "{error}");
    let error = start_error(&spec("${env:TOOLCRIB_TEST_UNSET:-s3cret}", "x")).await;
    assert!(error.to_string().contains("`url`") && !error.to_string().contains("s3cret"), "{error}");
}
