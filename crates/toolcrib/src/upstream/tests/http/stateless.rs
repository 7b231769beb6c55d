//! Stateless servers.

use super::*;
use crate::protocol::versions::Era;
use crate::upstream::listing::fetch_listing;

#[tokio::test]
async fn request_headers_mirror_the_body() {
    let server = RemoteServer::start(stateless).await;
    let mut spec = http(&server.url);
    spec.endpoint =
        crate::spec::Endpoint::Http(HttpSpec::new(&server.url).header("Authorization", "Bearer t0ken"));
    let connection = connect(&spec).await;
    assert_eq!(connection.handshake.revision.era(), Era::Stateless);
    assert_eq!(text(call(&connection, "wörk", json!({})).await), "wörk");
    assert_eq!(server.methods(), ["server/discover", "tools/list", "tools/call"]);
    for (method, name) in
        [("server/discover", None), ("tools/list", None), ("tools/call", Some("=?base64?d8O2cms=?="))]
    {
        let request = server.requests(method).remove(0);
        assert_eq!(request.header("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!(request.header("mcp-method"), Some(method));
        assert_eq!(request.header("mcp-name"), name);
        assert_eq!(request.header("accept"), Some("application/json, text/event-stream"));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.header("authorization"), Some("Bearer t0ken"));
        assert_eq!(request.header("mcp-session-id"), None);
    }
    connection.stop().await;
    assert_eq!(server.methods().len(), 3, "there is no session to end");
    assert_eq!(server.connections.load(Ordering::SeqCst), 1, "all requests share one connection");
}

#[tokio::test]
async fn response_may_be_the_last_of_several_events() {
    let server = RemoteServer::start(|request| match request.method() {
        "tools/call" => {
            let token = &request.body["params"]["_meta"]["progressToken"];
            let params = json!({"progressToken": token, "progress": 1});
            let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
            Reply::events([
                Step::Send(": hello\n\n".into()),
                event(&progress),
                event(&tool_response(request)),
            ])
        }
        _ => stateless(request),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    let (sink, mut updates) = tokio::sync::mpsc::channel(8);
    let mut progress_call = Call::tool("echo").arguments(&json!({}));
    progress_call.update_sink = Some(Arc::new(sink));
    let mut meta = Object::default();
    meta.set_unchecked("progressToken", "7");
    progress_call.params.set_unchecked("_meta", meta.to_bytes());
    assert_eq!(text(connection.call(&mut progress_call, "echo", Instant::now()).await), "echo");
    assert!(matches!(updates.try_recv(), Ok(crate::call::updates::CallUpdate::Progress(_))));
}

#[tokio::test]
async fn notification_of_a_client_is_posted() {
    let server = RemoteServer::start(stateless).await;
    let connection = connect_to(&server).await;
    let selector = crate::Selector::OnServer("remote".parse().unwrap(), "acme/beat".to_owned());
    let mut params = Object::default();
    params.set_unchecked("seq", "3");
    let mut beat = Call::notification("acme/beat", selector, params);
    connection.call(&mut beat, "acme/beat", Instant::now()).await.unwrap();
    server.wait_until(|server| server.requests("acme/beat").len() == 1).await;
    let posted = server.requests("acme/beat").remove(0);
    assert_eq!(posted.body["params"]["seq"], 3, "{}", posted.body);
    assert_eq!(posted.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(posted.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(posted.header("mcp-method"), Some("acme/beat"));
}

#[tokio::test]
async fn cancelled_call_only_closes_the_response() {
    for reply in [Reply::events([Step::Send(": wait\n\n".into()), Step::Hang]), Reply::events([Step::Hang])] {
        let server = RemoteServer::start(move |request| match request.tool() {
            "hold" => reply.clone(),
            _ => stateless(request),
        });
        let server = server.await;
        let connection = connect_to(&server).await;
        let mut tasks = JoinSet::new();
        spawn_held_call(&connection, &mut tasks);
        server.wait_until(|server| server.requests("tools/call").len() == 1).await;
        assert_eq!((server.aborted_responses(), connection.in_flight()), (0, 1));
        tasks.shutdown().await;
        server.wait_until(|server| server.aborted_responses() == 1).await;
        assert_eq!(text(echo(&connection).await), "echo");
        assert!(server.requests("notifications/cancelled").is_empty());
    }
}

fn marked(name: &str, header: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": header},
    }}})
}

#[tokio::test]
async fn marked_arguments_are_mirrored_in_headers() {
    let server = RemoteServer::start(|request| match request.method() {
        "tools/list" => {
            let tools = json!([marked("echo", "Region"), marked("bad", "not a name"), {"name": "plain"}]);
            Reply::result(request, &json!({ "tools": tools }))
        }
        _ => stateless(request),
    });
    let server = server.await;
    let (connection, listing) = try_connect(&http(&server.url), None).await.unwrap();
    let names: Vec<_> = listing.tools.iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(names, ["echo", "plain"], "the invalid tool is left out");
    text(call(&connection, "echo", json!({"region": "eu\r\nX-Evil: 1"})).await);
    text(call(&connection, "echo", json!({"region": null})).await);
    let calls = server.requests("tools/call");
    assert_eq!(calls[0].header("mcp-param-region"), Some("=?base64?ZXUNClgtRXZpbDogMQ==?="));
    assert_eq!(calls[0].header("x-evil"), None);
    assert_eq!(calls[1].header("mcp-param-region"), None);
}

#[tokio::test]
async fn header_mismatch_relists_and_retries_once() {
    let listed = Arc::new(AtomicUsize::new(0));
    let count = listed.clone();
    let server = RemoteServer::start(move |request| match request.method() {
        "tools/list" if count.fetch_add(1, Ordering::SeqCst) == 0 => stateless(request),
        "tools/list" => Reply::result(request, &json!({"tools": [marked("echo", "Region")]})),
        "tools/call" if request.tool() == "never" || request.header("mcp-param-region").is_none() => {
            Reply::error(400, request, -32020)
        }
        _ => stateless(request),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    let (mut watcher, watched) = (JoinSet::new(), connection.clone());
    watcher.spawn(async move {
        loop {
            let request = wait_for_relist(&watched).await;
            fetch_listing(&watched, &tokio_util::sync::CancellationToken::new()).await.unwrap();
            watched.finish_relist(request.number);
        }
    });
    assert_eq!(text(call(&connection, "echo", json!({"region": "eu"})).await), "echo");
    assert_eq!((server.requests("tools/call").len(), listed.load(Ordering::SeqCst)), (2, 2));
    let error = call(&connection, "never", json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadReply, "{error}");
    assert_eq!(server.requests("tools/call").len(), 4);
}

#[tokio::test]
async fn subscription_needs_an_acknowledgement() {
    let server = RemoteServer::start(|request| match request.method() {
        "subscriptions/listen" => {
            let taken = json!({"resourceSubscriptions": ["a:1"]});
            let meta = json!({"io.modelcontextprotocol/subscriptionId": request.body["id"]});
            let method = "notifications/subscriptions/acknowledged";
            let params = json!({"notifications": taken, "_meta": meta});
            Reply::events([event(&json!({"jsonrpc": "2.0", "method": method, "params": params})), Step::Hang])
        }
        _ => stateless(request),
    });
    let (server, deaf) = (server.await, RemoteServer::start(stateless).await);
    for (server, taken) in [(&server, true), (&deaf, false)] {
        let connection = connect_to(server).await;
        let (mut listening, listened) = (JoinSet::new(), connection.clone());
        listening.spawn(async move { listened.run_listen_stream().await });
        let (one, other) = (Arc::from("a:1"), Arc::from("a:2"));
        let (one, other) = tokio::join!(connection.subscribe(&one), connection.subscribe(&other));
        assert_eq!((one.is_ok(), other.is_ok()), (taken, false), "{one:?} {other:?}");
        connection.stop().await;
    }
}

#[tokio::test]
async fn json_rpc_error_is_a_response_with_any_status() {
    let server = RemoteServer::start(|request| match request.tool() {
        "unknown" => Reply::error(400, request, -32602),
        "without_id" => Reply::json(404, &json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32601}})),
        _ => stateless(request),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    for tool in ["unknown", "without_id"] {
        let outcome = call(&connection, tool, json!({})).await.unwrap();
        assert!(matches!(outcome.answer, ResponsePayload::Error(_)), "{tool}");
    }
}

#[tokio::test]
async fn calls_run_concurrently() {
    let server = RemoteServer::start(|request| match request.method() {
        "tools/call" => {
            Reply::events([Step::Pause(Duration::from_millis(100)), event(&tool_response(request))])
        }
        _ => stateless(request),
    });
    let server = server.await;
    let connection = connect_to(&server).await;
    let mut tasks = JoinSet::new();
    for number in 0..50 {
        let connection = connection.clone();
        tasks.spawn(async move {
            let name = format!("tool-{number}");
            (text(call(&connection, &name, json!({})).await), name)
        });
    }
    let began = Instant::now();
    while let Some(done) = tasks.join_next().await {
        let (answer, name) = done.unwrap();
        assert_eq!(answer, name);
    }
    assert!(began.elapsed() < Duration::from_secs(4), "calls ran one after another");
}
