//! Session-era servers, and HTTP+SSE servers.

use std::sync::Mutex;

use super::*;
use crate::model::event::ServerNotification;
use crate::protocol::era::capabilities::Client;
use crate::protocol::versions::Era;
use crate::spec::EraChoice;

#[tokio::test]
async fn session_is_opened_used_and_ended() {
    let server = RemoteServer::start(|request| session(request, "s1")).await;
    let connection = connect_to(&server).await;
    assert_eq!(connection.handshake.revision.as_str(), "2025-11-25");
    assert_eq!(text(echo(&connection).await), "echo");
    connection.stop().await;
    assert!(connection.is_closed());
    let methods: Vec<_> = server.methods().into_iter().filter(|method| method != "GET").collect();
    assert_eq!(
        methods,
        ["server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call", "DELETE"]
    );
    let initialize = server.requests("initialize").remove(0);
    assert_eq!(
        (initialize.header("mcp-session-id"), initialize.header("mcp-protocol-version")),
        (None, None)
    );
    for method in ["notifications/initialized", "tools/list", "tools/call", "DELETE"] {
        let request = server.requests(method).remove(0);
        assert_eq!(request.header("mcp-session-id"), Some("s1"), "{method}");
        assert_eq!(request.header("mcp-protocol-version"), Some("2025-11-25"), "{method}");
        assert_eq!(request.header("mcp-method"), None);
    }
}

#[tokio::test]
async fn listen_stream_delivers_notifications() {
    let server = RemoteServer::start(|request| match request.method() {
        "GET" => {
            let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
            Reply::events([event(&changed), Step::Hang])
        }
        _ => session(request, "s1"),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    timeout(SECOND * 5, wait_for_relist(&connection)).await.unwrap();
    assert_eq!(server.requests("GET")[0].header("mcp-session-id"), Some("s1"));
    connection.stop().await;
}

#[tokio::test]
async fn late_log_message_is_for_the_client_of_the_last_call() {
    let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
    let messages = Mutex::new(Some(messages));
    let server = RemoteServer::start(move |request| match request.method() {
        "GET" => match messages.lock().unwrap().take() {
            Some(messages) => Reply::events([]).forwarding(messages),
            None => Reply::events([Step::Hang]),
        },
        _ => session(request, "s1"),
    });
    let server = server.await;
    let context = launch_context(None);
    let mut notifications = context.notifications.subscribe();
    let plan = HandshakePlan::Prefer(Era::Session);
    let connection = launch(&http(&server.url), plan, &context, true).await.unwrap().connection;
    server.wait_until(|server| !server.requests("GET").is_empty()).await;
    let log = json!({"level": "debug", "data": "late"});
    for (client, recipient) in [(3, Some(3)), (3, Some(3)), (4, None)] {
        let client = Client { key: client, ..Client::without_capabilities() };
        let mut call = Call::tool("echo").client(client);
        connection.call(&mut call, "echo", Instant::now()).await.unwrap();
        let message = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": log});
        sender.send(message).unwrap();
        let received = timeout(SECOND * 5, notifications.recv()).await.unwrap().unwrap();
        let ServerNotification::Log { client, .. } = received else { panic!("{received:?}") };
        assert_eq!(client, recipient);
    }
    connection.stop().await;
}

#[tokio::test]
async fn listen_stream_is_reopened_whenever_it_ends() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let server = RemoteServer::start(move |request| match request.method() {
        "GET" => match count.fetch_add(1, Ordering::SeqCst) {
            // Only a retry delay; the fourth time an error.
            3 => Reply::empty(503),
            0..7 => Reply::events([Step::Send("retry: 1\n\n".into())]),
            _ => Reply::events([Step::Hang]),
        },
        _ => session(request, "s1"),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    timeout(SECOND * 5, wait_for_relist(&connection)).await.expect("missed changes are requested");
    server.wait_until(|_| opened.load(Ordering::SeqCst) > 7).await;
    connection.stop().await;
}

#[tokio::test]
async fn replaced_session_does_not_reopen_its_listen_stream() {
    let session_number = Arc::new(AtomicUsize::new(1));
    let now = session_number.clone();
    let server = RemoteServer::start(move |request| match request.method() {
        "GET" => Reply::events([Step::Send("retry: 1\n\n".into()), Step::Pause(SECOND / 10)]),
        _ => session(request, &format!("s{}", now.load(Ordering::SeqCst))),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    session_number.store(2, Ordering::SeqCst);
    assert_eq!(text(echo(&connection).await), "echo");
    let count_for = |server: &RemoteServer, id| {
        server.requests("GET").iter().filter(|request| request.header("mcp-session-id") == Some(id)).count()
    };
    let before = count_for(&server, "s1");
    server.wait_until(|server| count_for(server, "s2") > 2).await;
    assert!(count_for(&server, "s1") <= before + 1);
    connection.stop().await;
}

#[tokio::test]
async fn replaced_session_closes_its_listen_stream() {
    let session_number = Arc::new(AtomicUsize::new(1));
    let now = session_number.clone();
    let server = RemoteServer::start(move |request| match request.method() {
        "GET" => Reply::events([Step::Hang]),
        _ => session(request, &format!("s{}", now.load(Ordering::SeqCst))),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    server.wait_until(|server| server.requests("GET").len() == 1).await;
    session_number.store(2, Ordering::SeqCst);
    assert_eq!(text(echo(&connection).await), "echo");
    server.wait_until(|server| server.requests("GET").len() == 2 && server.aborted_responses() == 1).await;
    connection.stop().await;
}

#[tokio::test]
async fn expired_session_is_renewed_once() {
    let session_number = Arc::new(AtomicUsize::new(1));
    let now = session_number.clone();
    let server =
        RemoteServer::start(move |request| session(request, &format!("s{}", now.load(Ordering::SeqCst))))
            .await;
    let connection = connect_to(&server).await;
    session_number.store(2, Ordering::SeqCst);
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let connection = connection.clone();
        tasks.spawn(async move { text(echo(&connection).await) });
    }
    while let Some(answer) = tasks.join_next().await {
        assert_eq!(answer.unwrap(), "echo");
    }
    assert_eq!(server.requests("initialize").len(), 2);
    assert_eq!(server.requests("notifications/initialized").len(), 2);
    assert_eq!(server.requests("initialize")[1].header("mcp-session-id"), None);
    let with_new_session = server
        .requests("tools/call")
        .iter()
        .filter(|request| request.header("mcp-session-id") == Some("s2"))
        .count();
    assert_eq!(with_new_session, 10, "each call ran once");
}

/// The call that notices the end of a session may be dropped, or not be polled for a while.
#[tokio::test]
async fn session_is_renewed_without_the_call_that_noticed_its_end() {
    let session_number = Arc::new(AtomicUsize::new(1));
    let now = session_number.clone();
    let server = RemoteServer::start(move |request| {
        let number = now.load(Ordering::SeqCst);
        let reply = session(request, &format!("s{number}"));
        match (request.method(), number) {
            ("initialize", 2) => reply.delayed(Duration::from_millis(200)),
            _ => reply,
        }
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    session_number.store(2, Ordering::SeqCst);
    let mut call = Call::tool("echo").arguments(&json!({}));
    let mut noticing = Box::pin(connection.call(&mut call, "echo", Instant::now()));
    tokio::select! {
        _ = &mut noticing => panic!("the new session is not open yet"),
        () = server.wait_until(|server| server.requests("initialize").len() == 2) => {}
    }
    let other = timeout(SECOND * 5, echo(&connection)).await;
    assert_eq!(text(other.expect("the session is renewed while the first call is not polled")), "echo");
    assert_eq!(text(noticing.await), "echo");
    assert_eq!(server.requests("initialize").len(), 2);
}

#[tokio::test]
async fn renewed_session_repeats_subscriptions() {
    let session_number = Arc::new(AtomicUsize::new(1));
    let now = session_number.clone();
    let server = RemoteServer::start(move |request| match request.method() {
        "resources/subscribe" | "resources/unsubscribe" => Reply::result(request, &json!({})),
        _ => session(request, &format!("s{}", now.load(Ordering::SeqCst))),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    for uri in ["a:1", "a:2"] {
        connection.subscribe(&uri.into()).await.unwrap();
    }
    connection.unsubscribe(&"a:1".into()).await;
    session_number.store(2, Ordering::SeqCst);
    assert_eq!(text(echo(&connection).await), "echo");
    let repeated: Vec<_> = server.requests("resources/subscribe").into_iter().skip(2).collect();
    assert_eq!(repeated.len(), 1);
    assert_eq!(
        (repeated[0].header("mcp-session-id"), &repeated[0].body["params"]["uri"]),
        (Some("s2"), &json!("a:2"))
    );
}

#[tokio::test]
async fn changed_era_closes_the_connection() {
    for starts_as_session in [true, false] {
        let is_session_era = Arc::new(std::sync::atomic::AtomicBool::new(starts_as_session));
        let now = is_session_era.clone();
        let server = RemoteServer::start(move |request| match now.load(Ordering::SeqCst) {
            true if request.method() == "tools/call" && request.header("mcp-session-id").is_none() => {
                let error = json!({"code": -32000, "message": "Bad Request: Server not initialized"});
                Reply::json(400, &json!({"jsonrpc": "2.0", "error": error, "id": null}))
            }
            true => session(request, "s1"),
            false if request.header("mcp-session-id").is_some() => Reply::empty(404),
            false => stateless(request),
        });
        let server = server.await;
        let connection = connect_to(&server).await;
        is_session_era.store(!starts_as_session, Ordering::SeqCst);
        let error = echo(&connection).await.unwrap_err();
        assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, true), "{error}");
        timeout(SECOND * 5, connection.closed()).await.unwrap();
        let remembered = connection.handshake.revision;
        let (reconnected, _) = try_connect(&http(&server.url), Some(remembered)).await.unwrap();
        assert_ne!(reconnected.handshake.revision.era(), remembered.era());
    }
}

#[tokio::test]
async fn empty_error_for_one_method_is_not_a_changed_era() {
    for status in [404, 405] {
        let is_session_era = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let now = is_session_era.clone();
        let server = RemoteServer::start(move |request| match request.method() {
            "completion/complete" => Reply::empty(status),
            _ if now.load(Ordering::SeqCst) && request.header("mcp-session-id").is_none() => {
                Reply::empty(status)
            }
            _ => stateless(request),
        });
        let server = server.await;
        let connection = connect_to(&server).await;
        assert_eq!(text(echo(&connection).await), "echo");
        let error = connection.request("completion/complete", Object::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{error}");
        assert!(error.to_string().contains(&format!("HTTP {status}")), "{error}");
        assert_eq!(text(echo(&connection).await), "echo");
        is_session_era.store(true, Ordering::SeqCst);
        let error = echo(&connection).await.unwrap_err();
        assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, true), "{error}");
        timeout(SECOND * 5, connection.closed()).await.unwrap();
    }
}

#[tokio::test]
async fn session_is_renewed_only_once_per_request() {
    let server = RemoteServer::start(|request| match request.method() {
        "tools/call" => Reply::empty(404),
        _ => session(request, "s1"),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    assert_eq!(echo(&connection).await.unwrap_err().kind(), ErrorKind::BadReply);
    assert_eq!((server.requests("tools/call").len(), server.requests("initialize").len()), (2, 2));
}

#[tokio::test]
async fn broken_stream_is_resumed() {
    for end in [vec![], vec![Step::Send("id: e2\ndata: {\"half".into()), Step::Disconnect]] {
        let sent = Arc::new(Mutex::new(None));
        let server = RemoteServer::start(move |request| match request.method() {
            "tools/call" => {
                *sent.lock().unwrap() = Some(request.clone());
                let first = Step::Send("retry: 20\nid: e1\ndata:\n\n".into());
                Reply::events([first].into_iter().chain(end.clone()))
            }
            "GET" if request.header("last-event-id") == Some("e1") => {
                let call = sent.lock().unwrap().clone().unwrap();
                Reply::events([numbered_event("e2", &tool_response(&call))])
            }
            _ => session(request, "s1"),
        });
        let server = server.await;
        let connection = connect_to(&server).await;
        assert_eq!(text(echo(&connection).await), "echo");
        assert_eq!(server.requests("tools/call").len(), 1, "the call ran once");
    }
}

#[tokio::test]
async fn stream_that_cannot_be_resumed_loses_its_call() {
    let server = RemoteServer::start(|request| match request.method() {
        "tools/call" => Reply::events([Step::Send("retry: 5\nid: e1\ndata:\n\n".into())]),
        "GET" if request.header("last-event-id").is_some() => Reply::events([]),
        _ => session(request, "s1"),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    let error = echo(&connection).await.unwrap_err();
    assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, false));
    let resumed =
        server.requests("GET").iter().filter(|request| request.header("last-event-id").is_some()).count();
    assert_eq!(resumed, 5);
}

#[tokio::test]
async fn cancelled_call_is_announced_in_a_session() {
    let server = RemoteServer::start(|request| match request.tool() {
        "hold" => Reply::events([Step::Hang]),
        _ => session(request, "s1"),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    let mut tasks = JoinSet::new();
    spawn_held_call(&connection, &mut tasks);
    server.wait_until(|server| server.requests("tools/call").len() == 1).await;
    tasks.shutdown().await;
    server.wait_until(|server| !server.requests("notifications/cancelled").is_empty()).await;
    let (call, cancel) =
        (server.requests("tools/call").remove(0), server.requests("notifications/cancelled").remove(0));
    assert_eq!(cancel.body["params"]["requestId"], call.body["id"]);
    assert_eq!(cancel.header("mcp-session-id"), Some("s1"));
    server.wait_until(|server| server.aborted_responses() == 1).await;
}

/// Responds as an HTTP+SSE server: requests to `/message`, all responses on the stream of `GET`.
fn sse_server(endpoint: &'static str) -> impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static {
    let (sender, messages) = tokio::sync::mpsc::unbounded_channel::<Value>();
    let messages = Mutex::new(Some(messages));
    move |request| match (&*request.http_method, &*request.path) {
        ("GET", "/mcp") => {
            let first = Step::Send(format!("event: endpoint\ndata: {endpoint}\n\n"));
            match messages.lock().unwrap().take() {
                Some(messages) => Reply::events([first]).forwarding(messages),
                None => Reply::events([first]),
            }
        }
        ("POST", "/message?s=1") => {
            let reply = match request.method() {
                "initialize" => json!({"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}),
                "tools/list" => json!({"tools": [{"name": "echo"}]}),
                "tools/call" if request.tool() == "die" => Value::Null,
                "tools/call" if request.tool() == "hold" => return Reply::empty(202),
                "tools/call" if request.tool() == "large" => json!({"text": "x".repeat(5000)}),
                "tools/call" => tool_response(request)["result"].clone(),
                _ => return Reply::empty(202),
            };
            let _ = sender.send(if reply.is_null() { reply } else { response(request, &reply) });
            Reply::text(202, "text/plain", "Accepted")
        }
        _ => Reply::text(404, "text/html", "<p>Cannot POST</p>"),
    }
}

#[tokio::test]
async fn sse_server_is_configured_or_detected() {
    for transport in [TransportKind::Sse, TransportKind::Auto] {
        let server = RemoteServer::start(sse_server("/message?s=1")).await;
        let spec =
            ServerSpec::http("remote".parse().unwrap(), HttpSpec::new(&server.url).transport(transport));
        let connection = connect(&spec).await;
        assert_eq!(connection.handshake.revision.as_str(), "2024-11-05");
        assert_eq!(text(echo(&connection).await), "echo");
        // The end of the event stream is the end of the server.
        let error = call(&connection, "die", json!({})).await.unwrap_err();
        assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, false), "{error}");
        timeout(SECOND * 5, connection.closed()).await.unwrap();
        assert!(connection.exit_error().to_string().contains("event stream ended"));
    }
}

#[tokio::test]
async fn oversized_event_costs_only_its_call() {
    let server = RemoteServer::start(sse_server("/message?s=1")).await;
    let remote = HttpSpec::new(&server.url).transport(TransportKind::Sse);
    let limits = ServerLimits { message: 4000, ..ServerLimits::default() };
    let connection = connect(&ServerSpec::http("remote".parse().unwrap(), remote).limits(limits)).await;
    let mut calls = JoinSet::new();
    spawn_held_call(&connection, &mut calls);
    server.wait_until(|server| server.requests("tools/call").len() == 1).await;
    let error = call(&connection, "large", json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadReply);
    assert!(error.to_string().contains(" bytes, and `servers.remote.limits.message` is 4000B"), "{error}");
    assert_eq!(text(echo(&connection).await), "echo");
    assert_eq!((connection.in_flight(), connection.is_closed()), (1, false));
}

#[tokio::test]
async fn sse_endpoint_on_another_server_is_rejected() {
    let other = RemoteServer::start(stateless).await;
    let endpoint: &'static str = Box::leak(other.url.clone().into_boxed_str());
    let server = RemoteServer::start(sse_server(endpoint)).await;
    let spec =
        ServerSpec::http("remote".parse().unwrap(), HttpSpec::new(&server.url).transport(TransportKind::Sse));
    let error = start_error(&spec).await;
    assert!(error.to_string().contains("another server"), "{error}");
    assert!(other.methods().is_empty());
}

#[tokio::test]
async fn configured_era_is_used_without_a_probe() {
    let server = RemoteServer::start(|request| session(request, "s1")).await;
    connect(&http(&server.url).era(EraChoice::Era(Era::Session))).await;
    assert_eq!(server.methods()[0], "initialize");
    let error = start_error(&http(&server.url).era(EraChoice::Era(Era::Stateless))).await;
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    let server = RemoteServer::start(|request| match request.method() {
        "server/discover" => {
            let error = json!({"code": -32022, "message": "no", "data": {"supported": ["2025-11-25"]}});
            Reply::json(400, &json!({"jsonrpc": "2.0", "id": request.body["id"], "error": error}))
        }
        _ => session(request, "s1"),
    });
    assert_eq!(connect_to(&server.await).await.handshake.revision.as_str(), "2025-11-25");
}

#[tokio::test]
async fn detected_sse_is_shown_and_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let server = RemoteServer::start(sse_server("/message?s=1")).await;
    let supervised = || {
        let services = crate::supervisor::SupervisorServices::default();
        crate::supervisor::Supervisor::start(http(&server.url), None, Some(folder.path()), services)
    };
    let supervisor = supervised();
    assert_eq!(supervisor.status(Instant::now()).transport, "http");
    drop(supervisor.lease(Era::Session).await.unwrap());
    assert_eq!(supervisor.status(Instant::now()).transport, "sse");
    supervisor.stop().await.unwrap();
    assert_eq!(supervisor.status(Instant::now()).transport, "sse");
    let is_saved = || std::fs::read_dir(folder.path()).unwrap().count() == 1;
    server.wait_until(|_| is_saved()).await;
    assert_eq!(supervised().status(Instant::now()).transport, "sse");
}

#[tokio::test]
async fn traffic_of_other_requests_counts_as_answer_to_a_ping() {
    let keep_alive = [Step::Pause(Duration::from_millis(100)), Step::Send(": still here\n\n".to_owned())];
    let server = RemoteServer::start(move |request| match request.method() {
        "tools/call" if request.tool() == "hold" => {
            Reply::events(std::iter::repeat_n(keep_alive.clone(), 50).flatten())
        }
        "ping" => Reply::events([Step::Pause(SECOND * 30)]),
        _ => session(request, "s1"),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    let mut calls = JoinSet::new();
    spawn_held_call(&connection, &mut calls);
    server.wait_until(|server| server.requests("tools/call").len() == 1).await;
    // The response head of the ping is traffic too, so wait until it has arrived.
    let busy = connection.clone();
    let mut earlier = JoinSet::new();
    earlier.spawn(async move { busy.ping(SECOND * 2).await });
    assert!(earlier.join_next().await.unwrap().unwrap(), "the event stream is alive");
}
