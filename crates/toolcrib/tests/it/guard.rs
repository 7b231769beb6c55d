//! The embedder's guard: asked every time, replaced at run time, and asked before a server is started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};
use toolcrib::{
    Call, Caller, Crib, ErrorKind, GuardVerdict, Lifecycle, Policy, Rules, ServerId, ServerSpec, ServerState,
    StartPolicy,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, id, kind, names, on, roster, settle, spec, status};

/// Denies one server as a whole.
fn deny_server(name: &'static str) -> impl Fn(&Caller, &ServerId, Option<&str>) -> GuardVerdict {
    move |_, server, _| match server.as_str() == name {
        true => GuardVerdict::Deny("no".to_owned()),
        false => GuardVerdict::Allow,
    }
}

#[tokio::test(start_paused = true)]
async fn guard_can_be_set_replaced_and_removed() {
    let a = FakeServer::with_tools(&["one", "two"]);
    let crib = crib(&[("a", &a)]);
    crib.list().await;
    crib.set_guard(|_, _, name| match name {
        Some("two") => GuardVerdict::Deny("not two".to_owned()),
        _ => GuardVerdict::Allow,
    });
    assert_eq!(names(&crib.list().await), ["a__one"]);
    let denied = crib.call(Call::tool("a__two")).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert!(denied.to_string().contains("not two"), "{denied}");
    crib.set_guard(deny_server("a"));
    assert!(crib.list().await.tools().is_empty());
    assert_eq!(kind(crib.call(on("a", "one")).await), ErrorKind::Denied);
    crib.clear_guard();
    assert_eq!(names(&crib.list().await), ["a__one", "a__two"]);
    crib.call(Call::tool("a__two")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn policy_and_guard_are_replaced_independently() {
    let a = FakeServer::with_tools(&["one", "two"]);
    let crib = crib(&[("a", &a)]);
    crib.list().await;
    crib.set_guard(|_, _, name| match name {
        Some("two") => GuardVerdict::Deny("no".to_owned()),
        _ => GuardVerdict::Allow,
    });
    let deny = Rules { deny: vec!["a.one".parse().unwrap()], ..Rules::default() };
    crib.set_policy(Policy::for_everyone(deny));
    assert!(crib.catalog_for(&Caller::local()).tools().is_empty());
    crib.clear_guard();
    assert_eq!(names(&crib.catalog_for(&Caller::local())), ["a__two"]);
}

#[tokio::test(start_paused = true)]
async fn verdict_that_changes_is_not_kept() {
    let a = FakeServer::with_tools(&["one"]);
    let b = FakeServer::with_tools(&["one"]);
    let open = Arc::new(AtomicBool::new(true));
    let is_open = open.clone();
    let builder = Crib::builder().server(spec("a", &a)).server(spec("b", &b));
    let guard = move |_: &Caller, server: &ServerId, _: Option<&str>| match server.as_str() == "b"
        || is_open.load(Ordering::SeqCst)
    {
        true => GuardVerdict::Allow,
        false => GuardVerdict::Deny("closed".to_owned()),
    };
    let crib = builder.guard(guard).build().unwrap();
    for _ in 0..2 {
        assert_eq!(names(&crib.list().await), ["a__one", "b__one"]);
        crib.call(Call::tool("a__one")).await.unwrap();
        crib.call(on("a", "one")).await.unwrap();
        assert_eq!(kind(crib.call(Call::tool("one")).await), ErrorKind::Unknown, "both have it");
        open.store(false, Ordering::SeqCst);
        assert_eq!(names(&crib.list().await), ["b__one"]);
        // Only the local user, who runs the program, is told about a server that is denied.
        assert_eq!(kind(crib.call(Call::tool("a__one")).await), ErrorKind::Denied);
        let guest = Caller::new("guest");
        assert_eq!(kind(crib.call(Call::tool("a__one").caller(guest.clone())).await), ErrorKind::Unknown);
        let unknown = crib.call(on("a", "one").caller(guest)).await.unwrap_err();
        assert_eq!(unknown.to_string(), "no server is called `a`");
        assert!(!unknown.hint().to_string().contains("`a`"), "{}", unknown.hint());
        assert_eq!(crib.call(Call::tool("one")).await.unwrap().server, Some(id("b")), "only `b` is left");
        open.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn unchanged_verdicts_give_the_same_catalog() {
    let a = FakeServer::with_tools(&["one", "two"]);
    let crib = crib(&[("a", &a)]);
    crib.list().await;
    crib.set_guard(|_, _, name| match name {
        Some("two") => GuardVerdict::Deny("no".to_owned()),
        _ => GuardVerdict::Allow,
    });
    settle().await;
    let first = crib.catalog_for(&Caller::local());
    assert!(Arc::ptr_eq(&first, &crib.catalog_for(&Caller::local())));
}

#[tokio::test(start_paused = true)]
async fn guard_is_asked_before_a_server_is_started() {
    let a = FakeServer::with_tools(&["one"]);
    let b = FakeServer::with_tools(&["two"]);
    let is_denied = Arc::new(AtomicBool::new(false));
    let denies = is_denied.clone();
    let deny_a = deny_server("a");
    let guard =
        move |caller: &Caller, server: &ServerId, name: Option<&str>| match denies.load(Ordering::SeqCst) {
            true => deny_a(caller, server, name),
            false => GuardVerdict::Allow,
        };
    let builder = Crib::builder().server(spec("a", &a)).server(spec("b", &b));
    let crib = builder.guard(guard).build().unwrap();
    // The first view is computed while the guard still allows the server.
    assert_eq!(crib.catalog_for(&Caller::local()).undiscovered().count(), 2);
    is_denied.store(true, Ordering::SeqCst);
    crib.list().await;
    crib.discover().await;
    for (call, kind_for_local) in [
        (Call::tool("a__one"), ErrorKind::Denied),
        (Call::tool("one"), ErrorKind::Unknown),
        (on("a", "one").arguments(&json!({})), ErrorKind::Denied),
    ] {
        let guest = call.clone().caller(Caller::new("guest"));
        assert_eq!(kind(crib.call(guest).await), ErrorKind::Unknown);
        assert_eq!(kind(crib.call(call).await), kind_for_local);
    }
    assert!(crib.list_server(&id("a")).await.is_err());
    assert_eq!((a.starts(), b.starts()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn guard_is_asked_before_a_server_is_started_in_the_background() {
    // More servers than start at the same time, so that the last one waits for its turn.
    let hung: Vec<FakeServer> = (0..20).map(|_| FakeServer::new().default_start(FakeStart::Silent)).collect();
    let waiting = FakeServer::with_tools(&["one"]);
    let failing = FakeServer::new().default_start(FakeStart::Silent);
    let mut servers = vec![spec("failing", &failing), spec("waiting", &waiting)];
    servers.extend(hung.iter().enumerate().map(|(n, fake)| spec(&format!("h{n}"), fake)));
    let crib = Crib::builder().roster(roster(servers)).build().unwrap();
    let listed = timeout(Duration::ZERO, crib.list()).await;
    assert!(listed.is_err(), "the servers begin to start");
    settle().await;
    assert_eq!((failing.starts(), waiting.starts()), (1, 0));
    crib.set_guard(|caller, server, _| match (caller.as_str(), server.as_str()) {
        ("local", "failing" | "waiting") => GuardVerdict::Deny("no".to_owned()),
        _ => GuardVerdict::Allow,
    });
    sleep(600 * SECOND).await;
    assert_eq!((failing.starts(), waiting.starts()), (1, 0));
    // Another caller may still see them.
    crib.list_for(&Caller::new("ada")).await;
    sleep(600 * SECOND).await;
    assert_eq!(waiting.starts(), 1);
    assert!(failing.starts() > 1);
    assert!(crib.list().await.tools().is_empty());
}

fn at_boot(name: &str, fake: &FakeServer) -> ServerSpec {
    spec(name, fake).lifecycle(Lifecycle { start: StartPolicy::AtBoot, ..Lifecycle::default() })
}

#[tokio::test(start_paused = true)]
async fn denied_server_does_not_start_at_boot() {
    let a = FakeServer::new();
    let b = FakeServer::new();
    let deny = Rules { deny: vec!["a.*".parse().unwrap()], ..Rules::default() };
    let by_policy = Crib::builder().policy(Policy::for_everyone(deny.clone()));
    let by_guard = Crib::builder().guard(deny_server("a"));
    for builder in [by_policy, by_guard] {
        let crib = builder.server(at_boot("a", &a)).server(at_boot("b", &b)).build().unwrap();
        settle().await;
        assert_eq!((a.starts(), status(&crib, "a").state), (0, ServerState::Asleep));
        assert_eq!(status(&crib, "b").state, ServerState::Ready);
        crib.shutdown(SECOND).await;
    }
    // Rules for one caller do not concern the others.
    let mut policy = Policy::default();
    policy.callers.insert("ada".to_owned(), deny);
    let crib = Crib::builder().policy(policy).server(at_boot("a", &a)).build().unwrap();
    settle().await;
    assert_eq!(status(&crib, "a").state, ServerState::Ready);
}
