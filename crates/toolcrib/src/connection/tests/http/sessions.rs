//! Servers that have sessions, and those that send everything on one stream.

use std::sync::Mutex;

use super::*;
use crate::spec::EraChoice;
use crate::wire::revision::Era;

#[tokio::test]
async fn a_session_is_opened_kept_and_ended() {
    let far = Far::start(|seen| session(seen, "s1")).await;
    let connection = to(&far).await;
    assert_eq!(connection.welcome.revision.as_str(), "2025-11-25");
    assert_eq!(text(echo(&connection).await), "echo");
    connection.stop().await;
    assert!(connection.is_closed());
    let story: Vec<_> = far.story().into_iter().filter(|what| what != "GET").collect();
    assert_eq!(
        story,
        ["server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call", "DELETE"]
    );
    let hello = far.seen("initialize").remove(0);
    assert_eq!((hello.header("mcp-session-id"), hello.header("mcp-protocol-version")), (None, None));
    for what in ["notifications/initialized", "tools/list", "tools/call", "DELETE"] {
        let seen = far.seen(what).remove(0);
        assert_eq!(seen.header("mcp-session-id"), Some("s1"), "{what}");
        assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"), "{what}");
        assert_eq!(seen.header("mcp-method"), None);
    }
}

#[tokio::test]
async fn what_a_server_says_on_its_own_is_heard() {
    let far = Far::start(|seen| match seen.what() {
        "GET" => {
            let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
            Reply::events([event(&changed), Step::Hang])
        }
        _ => session(seen, "s1"),
    });
    let far = far.await;
    let connection = to(&far).await;
    timeout(SECOND * 5, connection.offer_changed()).await.unwrap();
    assert_eq!(far.seen("GET")[0].header("mcp-session-id"), Some("s1"));
    connection.stop().await;
}

#[tokio::test]
async fn a_stream_of_news_that_ends_is_opened_again_however_often() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let far = Far::start(move |seen| match seen.what() {
        "GET" => match count.fetch_add(1, Ordering::SeqCst) {
            // Nothing but when to come back; once it is down.
            3 => Reply::empty(503),
            0..7 => Reply::events([Step::Say("retry: 1\n\n".into())]),
            _ => Reply::events([Step::Hang]),
        },
        _ => session(seen, "s1"),
    });
    let far = far.await;
    let connection = to(&far).await;
    timeout(SECOND * 5, connection.offer_changed()).await.expect("what was missed is asked for");
    far.until(|_| opened.load(Ordering::SeqCst) > 7).await;
    connection.stop().await;
}

#[tokio::test]
async fn the_news_of_a_session_that_was_replaced_are_not_asked_for() {
    let names = Arc::new(AtomicUsize::new(1));
    let now = names.clone();
    let far = Far::start(move |seen| match seen.what() {
        "GET" => Reply::events([Step::Say("retry: 1\n\n".into()), Step::Pause(SECOND / 10)]),
        _ => session(seen, &format!("s{}", now.load(Ordering::SeqCst))),
    });
    let far = far.await;
    let connection = to(&far).await;
    names.store(2, Ordering::SeqCst);
    assert_eq!(text(echo(&connection).await), "echo");
    let of = |far: &Far, id| {
        far.seen("GET").iter().filter(|seen| seen.header("mcp-session-id") == Some(id)).count()
    };
    let before = of(&far, "s1");
    far.until(|far| of(far, "s2") > 2).await;
    assert!(of(&far, "s1") <= before + 1);
    connection.stop().await;
}

#[tokio::test]
async fn the_stream_of_a_session_that_was_replaced_is_left() {
    let names = Arc::new(AtomicUsize::new(1));
    let now = names.clone();
    let far = Far::start(move |seen| match seen.what() {
        "GET" => Reply::events([Step::Hang]),
        _ => session(seen, &format!("s{}", now.load(Ordering::SeqCst))),
    });
    let far = far.await;
    let connection = to(&far).await;
    far.until(|far| far.seen("GET").len() == 1).await;
    names.store(2, Ordering::SeqCst);
    assert_eq!(text(echo(&connection).await), "echo");
    far.until(|far| far.seen("GET").len() == 2 && far.left() == 1).await;
    connection.stop().await;
}

#[tokio::test]
async fn a_forgotten_session_is_replaced_once_for_all() {
    let names = Arc::new(AtomicUsize::new(1));
    let now = names.clone();
    let far = Far::start(move |seen| session(seen, &format!("s{}", now.load(Ordering::SeqCst)))).await;
    let connection = to(&far).await;
    names.store(2, Ordering::SeqCst);
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let connection = connection.clone();
        tasks.spawn(async move { text(echo(&connection).await) });
    }
    while let Some(answer) = tasks.join_next().await {
        assert_eq!(answer.unwrap(), "echo");
    }
    assert_eq!(far.seen("initialize").len(), 2);
    assert_eq!(far.seen("notifications/initialized").len(), 2);
    assert_eq!(far.seen("initialize")[1].header("mcp-session-id"), None);
    let good =
        far.seen("tools/call").iter().filter(|seen| seen.header("mcp-session-id") == Some("s2")).count();
    assert_eq!(good, 10, "each ran once");
}

#[tokio::test]
async fn a_new_session_is_told_what_the_old_one_was() {
    let names = Arc::new(AtomicUsize::new(1));
    let now = names.clone();
    let far = Far::start(move |seen| match seen.what() {
        "resources/subscribe" | "resources/unsubscribe" => Reply::result(seen, &json!({})),
        _ => session(seen, &format!("s{}", now.load(Ordering::SeqCst))),
    });
    let far = far.await;
    let connection = to(&far).await;
    for uri in ["a:1", "a:2"] {
        connection.subscribe(&uri.into()).await.unwrap();
    }
    connection.unsubscribe(&"a:1".into()).await;
    names.store(2, Ordering::SeqCst);
    assert_eq!(text(echo(&connection).await), "echo");
    let told: Vec<_> = far.seen("resources/subscribe").into_iter().skip(2).collect();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].header("mcp-session-id"), &told[0].body["params"]["uri"]),
        (Some("s2"), &json!("a:2"))
    );
}

#[tokio::test]
async fn a_server_that_comes_back_in_another_era_is_met_anew() {
    for old_first in [true, false] {
        let old = Arc::new(std::sync::atomic::AtomicBool::new(old_first));
        let now = old.clone();
        let far = Far::start(move |seen| match now.load(Ordering::SeqCst) {
            true if seen.what() == "tools/call" && seen.header("mcp-session-id").is_none() => {
                let error = json!({"code": -32000, "message": "Bad Request: Server not initialized"});
                Reply::json(400, &json!({"jsonrpc": "2.0", "error": error, "id": null}))
            }
            true => session(seen, "s1"),
            false if seen.header("mcp-session-id").is_some() => Reply::empty(404),
            false => stateless(seen),
        });
        let far = far.await;
        let connection = to(&far).await;
        old.store(!old_first, Ordering::SeqCst);
        let error = echo(&connection).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, true), "{error}");
        timeout(SECOND * 5, connection.closed()).await.unwrap();
        let remembered = connection.welcome.revision;
        let (again, _) = launched(&http(&far.url), Some(remembered)).await.unwrap();
        assert_ne!(again.welcome.revision.era(), remembered.era());
    }
}

#[tokio::test]
async fn a_bare_refusal_of_one_method_is_no_change_of_era() {
    for status in [404, 405] {
        let old = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let now = old.clone();
        let far = Far::start(move |seen| match seen.what() {
            "completion/complete" => Reply::empty(status),
            _ if now.load(Ordering::SeqCst) && seen.header("mcp-session-id").is_none() => {
                Reply::empty(status)
            }
            _ => stateless(seen),
        });
        let far = far.await;
        let connection = to(&far).await;
        assert_eq!(text(echo(&connection).await), "echo");
        let error = connection.request("completion/complete", Object::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadReply, "{error}");
        assert!(error.to_string().contains(&format!("HTTP {status}")), "{error}");
        assert_eq!(text(echo(&connection).await), "echo");
        old.store(true, Ordering::SeqCst);
        let error = echo(&connection).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, true), "{error}");
        timeout(SECOND * 5, connection.closed()).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_forgets_every_session_is_not_asked_for_ever() {
    let far = Far::start(|seen| match seen.what() {
        "tools/call" => Reply::empty(404),
        _ => session(seen, "s1"),
    });
    let far = far.await;
    let connection = to(&far).await;
    assert_eq!(echo(&connection).await.unwrap_err().kind(), ErrorKind::BadReply);
    assert_eq!((far.seen("tools/call").len(), far.seen("initialize").len()), (2, 2));
}

#[tokio::test]
async fn a_broken_stream_goes_on_where_it_broke() {
    for end in [vec![], vec![Step::Say("id: e2\ndata: {\"half".into()), Step::Cut]] {
        let asked = Arc::new(Mutex::new(None));
        let far = Far::start(move |seen| match seen.what() {
            "tools/call" => {
                *asked.lock().unwrap() = Some(seen.clone());
                let first = Step::Say("retry: 20\nid: e1\ndata:\n\n".into());
                Reply::events([first].into_iter().chain(end.clone()))
            }
            "GET" if seen.header("last-event-id") == Some("e1") => {
                let call = asked.lock().unwrap().clone().unwrap();
                Reply::events([numbered("e2", &said(&call))])
            }
            _ => session(seen, "s1"),
        });
        let far = far.await;
        let connection = to(&far).await;
        assert_eq!(text(echo(&connection).await), "echo");
        assert_eq!(far.seen("tools/call").len(), 1, "it ran once");
    }
}

#[tokio::test]
async fn a_stream_that_cannot_go_on_loses_its_call() {
    let far = Far::start(|seen| match seen.what() {
        "tools/call" => Reply::events([Step::Say("retry: 5\nid: e1\ndata:\n\n".into())]),
        "GET" if seen.header("last-event-id").is_some() => Reply::events([]),
        _ => session(seen, "s1"),
    });
    let far = far.await;
    let connection = to(&far).await;
    let error = echo(&connection).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, false));
    let resumed = far.seen("GET").iter().filter(|seen| seen.header("last-event-id").is_some()).count();
    assert_eq!(resumed, 5);
}

#[tokio::test]
async fn a_cancelled_call_is_told_to_a_server_with_sessions() {
    let far = Far::start(|seen| match seen.tool() {
        "hold" => Reply::events([Step::Hang]),
        _ => session(seen, "s1"),
    });
    let far = far.await;
    let connection = to(&far).await;
    let mut tasks = JoinSet::new();
    held(&connection, &mut tasks);
    far.until(|far| far.seen("tools/call").len() == 1).await;
    tasks.shutdown().await;
    far.until(|far| !far.seen("notifications/cancelled").is_empty()).await;
    let (call, cancel) = (far.seen("tools/call").remove(0), far.seen("notifications/cancelled").remove(0));
    assert_eq!(cancel.body["params"]["requestId"], call.body["id"]);
    assert_eq!(cancel.header("mcp-session-id"), Some("s1"));
    far.until(|far| far.left() == 1).await;
}

/// A server of 2024-11-05: messages to `/message`, everything back on the stream of `GET`.
fn one_stream(endpoint: &'static str) -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    let (talk, heard) = tokio::sync::mpsc::unbounded_channel::<Value>();
    let heard = Mutex::new(Some(heard));
    move |seen| match (&*seen.http, &*seen.path) {
        ("GET", "/mcp") => {
            let first = Step::Say(format!("event: endpoint\ndata: {endpoint}\n\n"));
            match heard.lock().unwrap().take() {
                Some(heard) => Reply::events([first]).forwarding(heard),
                None => Reply::events([first]),
            }
        }
        ("POST", "/message?s=1") => {
            let reply = match seen.what() {
                "initialize" => json!({"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}),
                "tools/list" => json!({"tools": [{"name": "echo"}]}),
                "tools/call" if seen.tool() == "die" => Value::Null,
                "tools/call" => said(seen)["result"].clone(),
                _ => return Reply::empty(202),
            };
            let _ = talk.send(if reply.is_null() { reply } else { answer(seen, &reply) });
            Reply::text(202, "text/plain", "Accepted")
        }
        _ => Reply::text(404, "text/html", "<p>Cannot POST</p>"),
    }
}

#[tokio::test]
async fn a_server_with_one_stream_is_known_or_found_out() {
    for transport in [Transport::Events, Transport::Auto] {
        let far = Far::start(one_stream("/message?s=1")).await;
        let spec = ServerSpec::http("far".parse().unwrap(), HttpSpec::new(&far.url).transport(transport));
        let connection = connected(&spec).await;
        assert_eq!(connection.welcome.revision.as_str(), "2024-11-05");
        assert_eq!(text(echo(&connection).await), "echo");
        // The end of its stream is the end of the server.
        let error = call(&connection, "die", json!({})).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, false), "{error}");
        timeout(SECOND * 5, connection.closed()).await.unwrap();
        assert!(connection.obituary().to_string().contains("stream of events ended"));
    }
}

#[tokio::test]
async fn messages_go_to_the_server_that_was_named_and_to_no_other() {
    let other = Far::start(stateless).await;
    let endpoint: &'static str = Box::leak(other.url.clone().into_boxed_str());
    let far = Far::start(one_stream(endpoint)).await;
    let spec = ServerSpec::http("far".parse().unwrap(), HttpSpec::new(&far.url).transport(Transport::Events));
    let error = refused(&spec).await;
    assert!(error.to_string().contains("another server"), "{error}");
    assert!(other.story().is_empty());
}

#[tokio::test]
async fn the_era_that_was_chosen_is_spoken_without_asking() {
    let far = Far::start(|seen| session(seen, "s1")).await;
    connected(&http(&far.url).era(EraChoice::Era(Era::Session))).await;
    assert_eq!(far.story()[0], "initialize");
    let error = refused(&http(&far.url).era(EraChoice::Era(Era::Stateless))).await;
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    let far = Far::start(|seen| match seen.what() {
        "server/discover" => {
            let error = json!({"code": -32022, "message": "no", "data": {"supported": ["2025-11-25"]}});
            Reply::json(400, &json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}))
        }
        _ => session(seen, "s1"),
    });
    assert_eq!(to(&far.await).await.welcome.revision.as_str(), "2025-11-25");
}
