//! Servers where each request stands alone.

use super::*;
use crate::wire::revision::Era;

#[tokio::test]
async fn requests_say_in_headers_what_their_bodies_say() {
    let far = Far::start(stateless).await;
    let mut spec = http(&far.url);
    spec.endpoint =
        crate::spec::Endpoint::Http(HttpSpec::new(&far.url).header("Authorization", "Bearer t0ken"));
    let connection = connected(&spec).await;
    assert_eq!(connection.welcome.revision.era(), Era::Stateless);
    assert_eq!(text(call(&connection, "wörk", json!({})).await), "wörk");
    assert_eq!(far.story(), ["server/discover", "tools/list", "tools/call"]);
    for (what, name) in
        [("server/discover", None), ("tools/list", None), ("tools/call", Some("=?base64?d8O2cms=?="))]
    {
        let seen = far.seen(what).remove(0);
        assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!(seen.header("mcp-method"), Some(what));
        assert_eq!(seen.header("mcp-name"), name);
        assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"));
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert_eq!(seen.header("authorization"), Some("Bearer t0ken"));
        assert_eq!(seen.header("mcp-session-id"), None);
    }
    connection.stop().await;
    assert_eq!(far.story().len(), 3, "there is nothing to say goodbye to");
    assert_eq!(far.connections.load(Ordering::SeqCst), 1, "one connection serves all of it");
}

#[tokio::test]
async fn an_answer_may_come_as_the_last_of_several_events() {
    let far = Far::start(|seen| match seen.what() {
        "tools/call" => {
            let token = &seen.body["params"]["_meta"]["progressToken"];
            let params = json!({"progressToken": token, "progress": 1});
            let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
            Reply::events([Step::Say(": hello\n\n".into()), event(&progress), event(&said(seen))])
        }
        _ => stateless(seen),
    });
    let far = far.await;
    let connection = to(&far).await;
    let (told, mut heard) = tokio::sync::mpsc::channel(8);
    let mut asked = Call::tool("echo").arguments(&json!({}));
    asked.told = Some(Arc::new(told));
    let mut meta = Object::default();
    meta.set("progressToken", "7");
    asked.params.set("_meta", meta.to_bytes());
    assert_eq!(text(connection.call(&mut asked, "echo", Instant::now()).await), "echo");
    assert!(matches!(heard.try_recv(), Ok(crate::told::Told::Progress(_))));
}

#[tokio::test]
async fn a_cancelled_call_is_a_closed_response_and_nothing_else() {
    for reply in [Reply::events([Step::Say(": wait\n\n".into()), Step::Hang]), Reply::events([Step::Hang])] {
        let far = Far::start(move |seen| match seen.tool() {
            "hold" => reply.clone(),
            _ => stateless(seen),
        });
        let far = far.await;
        let connection = to(&far).await;
        let mut tasks = JoinSet::new();
        held(&connection, &mut tasks);
        far.until(|far| far.seen("tools/call").len() == 1).await;
        assert_eq!((far.left(), connection.in_flight()), (0, 1));
        tasks.shutdown().await;
        far.until(|far| far.left() == 1).await;
        assert_eq!(text(echo(&connection).await), "echo");
        assert!(far.seen("notifications/cancelled").is_empty());
    }
}

fn marked(name: &str, header: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": header},
    }}})
}

#[tokio::test]
async fn arguments_go_into_headers_where_the_tool_wants_them() {
    let far = Far::start(|seen| match seen.what() {
        "tools/list" => {
            let tools = json!([marked("echo", "Region"), marked("bad", "not a name"), {"name": "plain"}]);
            Reply::result(seen, &json!({ "tools": tools }))
        }
        _ => stateless(seen),
    });
    let far = far.await;
    let (connection, listing) = launched(&http(&far.url), None).await.unwrap();
    let names: Vec<_> = listing.tools.iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(names, ["echo", "plain"], "a tool that breaks the rules is not there");
    text(call(&connection, "echo", json!({"region": "eu\r\nX-Evil: 1"})).await);
    text(call(&connection, "echo", json!({"region": null})).await);
    let calls = far.seen("tools/call");
    assert_eq!(calls[0].header("mcp-param-region"), Some("=?base64?ZXUNClgtRXZpbDogMQ==?="));
    assert_eq!(calls[0].header("x-evil"), None);
    assert_eq!(calls[1].header("mcp-param-region"), None);
}

#[tokio::test]
async fn headers_that_do_not_suit_are_made_anew_once() {
    let listed = Arc::new(AtomicUsize::new(0));
    let count = listed.clone();
    let far = Far::start(move |seen| match seen.what() {
        "tools/list" if count.fetch_add(1, Ordering::SeqCst) == 0 => stateless(seen),
        "tools/list" => Reply::result(seen, &json!({"tools": [marked("echo", "Region")]})),
        "tools/call" if seen.tool() == "never" || seen.header("mcp-param-region").is_none() => {
            Reply::error(400, seen, -32020)
        }
        _ => stateless(seen),
    });
    let far = far.await;
    let connection = to(&far).await;
    let (mut watcher, watched) = (JoinSet::new(), connection.clone());
    watcher.spawn(async move {
        loop {
            watched.offer_changed().await;
            Listing::fetch(&watched).await.unwrap();
        }
    });
    assert_eq!(text(call(&connection, "echo", json!({"region": "eu"})).await), "echo");
    assert_eq!((far.seen("tools/call").len(), listed.load(Ordering::SeqCst)), (2, 2));
    let error = call(&connection, "never", json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadReply, "{error}");
    assert_eq!(far.seen("tools/call").len(), 4);
}

#[tokio::test]
async fn only_what_a_server_says_it_tells_is_subscribed_to() {
    let far = Far::start(|seen| match seen.what() {
        "subscriptions/listen" => {
            let taken = json!({"resourceSubscriptions": ["a:1"]});
            let meta = json!({"io.modelcontextprotocol/subscriptionId": seen.body["id"]});
            let method = "notifications/subscriptions/acknowledged";
            let params = json!({"notifications": taken, "_meta": meta});
            Reply::events([event(&json!({"jsonrpc": "2.0", "method": method, "params": params})), Step::Hang])
        }
        _ => stateless(seen),
    });
    let (far, deaf) = (far.await, Far::start(stateless).await);
    for (far, taken) in [(&far, true), (&deaf, false)] {
        let connection = to(far).await;
        let (mut listening, listened) = (JoinSet::new(), connection.clone());
        listening.spawn(async move { listened.keep_listening().await });
        let (one, other) = (Arc::from("a:1"), Arc::from("a:2"));
        let (one, other) = tokio::join!(connection.subscribe(&one), connection.subscribe(&other));
        assert_eq!((one.is_ok(), other.is_ok()), (taken, false), "{one:?} {other:?}");
        connection.stop().await;
    }
}

#[tokio::test]
async fn an_error_is_an_answer_whatever_the_status() {
    let far = Far::start(|seen| match seen.tool() {
        "unknown" => Reply::error(400, seen, -32602),
        "nobodys" => Reply::json(404, &json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32601}})),
        _ => stateless(seen),
    });
    let far = far.await;
    let connection = to(&far).await;
    for tool in ["unknown", "nobodys"] {
        let outcome = call(&connection, tool, json!({})).await.unwrap();
        assert!(matches!(outcome.answer, Answer::Error(_)), "{tool}");
    }
}

#[tokio::test]
async fn many_calls_go_at_the_same_time() {
    let far = Far::start(|seen| match seen.what() {
        "tools/call" => Reply::events([Step::Pause(Duration::from_millis(100)), event(&said(seen))]),
        _ => stateless(seen),
    });
    let far = far.await;
    let connection = to(&far).await;
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
    assert!(began.elapsed() < Duration::from_secs(4), "one after the other");
}
