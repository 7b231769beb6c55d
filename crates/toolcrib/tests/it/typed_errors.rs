//! Every failure has its own kind, so that callers need not read messages.

use std::collections::HashSet;

use serde_json::json;
use toolcrib::model::error::Retry;
use toolcrib::spec::{BreakerSpec, Restarts};
use toolcrib::{Call, Crib, Error, ErrorKind, Lifecycle, ServerLimits, ServerSpec};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, id, on, spec, with};

/// A server whose breaker opens after one timeout and that is ejected after one crash.
fn fragile(name: &str, fake: &FakeServer) -> ServerSpec {
    let lifecycle = Lifecycle {
        restarts: Restarts { at_most: 0, within: 300 * SECOND },
        breaker: BreakerSpec { failures: 1.try_into().unwrap(), cool_off: 30 * SECOND },
        ..Lifecycle::default()
    };
    spec(name, fake)
        .lifecycle(lifecycle)
        .limits(ServerLimits { call_timeout: SECOND, ..ServerLimits::default() })
}

#[tokio::test(start_paused = true)]
async fn every_failure_has_its_own_kind() {
    let servers = ["slow", "wrong", "mortal"].map(|name| fragile(name, &FakeServer::new()));
    let stillborn = fragile("stillborn", &FakeServer::new().default_start(FakeStart::Exits));
    let crib = servers.into_iter().fold(Crib::builder().server(stillborn), toolcrib::CribBuilder::server);
    let crib = crib.build().unwrap();
    let nonsense = json!({"lines": [r#"{"jsonrpc":"2.0","id":$ID,"result":7}"#]});
    let mut seen = HashSet::new();
    let mut check = |error: Error, kind: ErrorKind, server: Option<&str>, retry: Retry| {
        assert_eq!((error.kind(), error.server()), (kind, server.map(id).as_ref()), "{error}");
        assert_eq!(
            (error.kind().facts().retry, error.data()["kind"].as_str()),
            (retry, Some(kind.facts().name))
        );
        assert_eq!(error.retry_in().is_some(), retry == Retry::After, "{error}");
        assert!(!error.hint().to_string().is_empty() && seen.insert(kind), "{error}");
    };
    for (call, kind, server, retry) in [
        (Call::tool("nothing"), ErrorKind::Unknown, None, Retry::No),
        (on("slow", "hang"), ErrorKind::TimedOut, Some("slow"), Retry::IfIdempotent),
        (on("slow", "echo"), ErrorKind::Tripped, Some("slow"), Retry::After),
        (with("wrong", "say", &nonsense), ErrorKind::BadReply, Some("wrong"), Retry::No),
        (on("mortal", "die"), ErrorKind::Lost, Some("mortal"), Retry::IfIdempotent),
        (on("mortal", "echo"), ErrorKind::Ejected, Some("mortal"), Retry::No),
    ] {
        check(crib.call(call).await.unwrap_err(), kind, server, retry);
    }
    let fresh = Crib::builder()
        .server(fragile("late", &FakeServer::new().default_start(FakeStart::Silent)))
        .build()
        .unwrap();
    let error = fresh.call(on("late", "echo")).await.unwrap_err();
    check(error, ErrorKind::CouldNotStart, Some("late"), Retry::Later);
    fresh.shutdown(SECOND).await;
    check(fresh.call(on("late", "echo")).await.unwrap_err(), ErrorKind::ShuttingDown, None, Retry::Elsewhere);
}

#[tokio::test(start_paused = true)]
async fn tool_errors_are_not_server_failures() {
    let fake = FakeServer::new();
    let crib = Crib::builder().server(fragile("git", &fake)).build().unwrap();
    for tool in ["refuse", "fail"] {
        assert!(crib.call(on("git", tool)).await.unwrap().is_error(), "{tool}");
    }
    for message in ["could not connect", "server closed connection", "timed out", "disconnected"] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{{"code":-31015,"message":"{message}"}}}}"#);
        let outcome = crib.call(with("git", "say", &json!({"lines": [line]}))).await.unwrap();
        assert_eq!((outcome.is_error(), outcome.text().as_str()), (true, message));
    }
    assert_eq!((fake.starts(), fake.called_tools().len()), (1, 6));
}
