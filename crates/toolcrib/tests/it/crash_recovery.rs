//! A crash fails the calls in flight and nothing else.

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use toolcrib::spec::Restarts;
use toolcrib::{Call, Crib, ErrorKind, Event, Lifecycle, ServerState};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, id, kind, names, on, settle, spawn, spec, status};

#[tokio::test(start_paused = true)]
async fn crash_fails_calls_in_flight_and_next_call_succeeds() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..20).for_each(|_| spawn(&mut calls, &crib, on("git", "hold")));
    settle().await;
    let before = Instant::now();
    fake.kill();
    for ended in calls.join_all().await {
        let error = ended.unwrap_err();
        assert_eq!((error.kind(), error.server()), (ErrorKind::Lost, Some(&id("git"))));
    }
    assert!(before.elapsed() < SECOND / 4);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.called_tools().len(), status(&crib, "git").restarts), (2, 21, 1));
}

#[tokio::test(start_paused = true)]
async fn call_after_unnoticed_exit_restarts_the_server() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    for _ in 0..4 {
        crib.call(on("git", "echo")).await.unwrap();
        settle().await;
        fake.kill();
        settle().await;
    }
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.called_tools().len()), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn crash_does_not_run_a_call_twice() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(fake.called_tools(), ["echo", "die", "echo"]);
}

#[tokio::test(start_paused = true)]
async fn crash_does_not_affect_other_servers() {
    let git = FakeServer::new();
    let time = FakeServer::new();
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = JoinSet::new();
    (0..10).for_each(|_| spawn(&mut calls, &crib, on("time", "hold")));
    settle().await;
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    time.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!((time.starts(), status(&crib, "time").restarts), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn waiting_call_succeeds_after_failed_starts() {
    let fake = FakeServer::new().next_starts(&[FakeStart::ExitsOnProbe, FakeStart::Exits, FakeStart::Exits]);
    let crib = crib(&[("git", &fake)]);
    crib.call(Call::tool("echo")).await.unwrap();
    assert_eq!(fake.called_tools().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_crashes_eject_until_restart() {
    let fake = FakeServer::new();
    let lifecycle =
        Lifecycle { restarts: Restarts { at_most: 3, within: 300 * SECOND }, ..Lifecycle::default() };
    let crib = Crib::builder().server(spec("git", &fake).lifecycle(lifecycle)).build().unwrap();
    let mut events = crib.events();
    for _ in 0..4 {
        assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    }
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
    assert_eq!((fake.starts(), status(&crib, "git").state), (4, ServerState::Ejected));
    let received = std::iter::from_fn(|| events.try_recv().ok());
    assert_eq!(received.filter(|event| matches!(event, Event::Ejected { .. })).count(), 1);
    crib.restart(&id("git")).await.unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(status(&crib, "git").restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn crashed_server_keeps_its_listing() {
    let fake = FakeServer::with_tools(&["log"]);
    let crib = crib(&[("git", &fake)]);
    crib.call(Call::tool("log")).await.unwrap();
    fake.kill();
    sleep(10 * SECOND).await;
    assert_eq!((names(&crib.catalog()), fake.starts()), (vec!["git__log".to_owned()], 1));
    assert!(status(&crib, "git").last_error.is_some());
}

#[tokio::test(start_paused = true)]
async fn restarted_server_is_listed_again() {
    let page =
        |name: &str| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"tools":[{{"name":"{name}"}}]}}}}"#);
    let fake = FakeServer::new().script("tools/list", &[&page("old"), &page("new")]);
    let crib = crib(&[("git", &fake)]);
    crib.call(Call::tool("old")).await.unwrap();
    fake.kill();
    settle().await;
    crib.call(Call::tool("git__old")).await.unwrap();
    settle().await;
    assert_eq!(names(&crib.catalog()), ["git__new"]);
    assert_eq!(kind(crib.call(Call::tool("old")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn call_not_sent_before_exit_is_retried() {
    let fake = FakeServer::new().next_starts(&[FakeStart::ExitsOnceListed]);
    let crib = crib(&[("git", &fake)]);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.called_tools().len(), status(&crib, "git").restarts), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn call_not_sent_is_retried_only_once() {
    let fake = FakeServer::new().next_starts(&[FakeStart::ExitsOnceListed, FakeStart::ExitsOnceListed]);
    let crib = crib(&[("git", &fake)]);
    let error = crib.call(on("git", "echo")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, true));
    assert_eq!((fake.starts(), fake.called_tools().len()), (2, 0));
}
