//! Shutdown waits for calls, then stops every server and task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, timeout};
use toolcrib::model::event::CallRecord;
use toolcrib::{
    Caller, Crib, Era, EraChoice, ErrorKind, Lifecycle, Observer, Selector, Settings, StartPolicy,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, id, kind, on, roster, settle, spawn, spec, with};

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_calls_and_refuses_new_ones() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 3000})));
    settle().await;
    let before = Instant::now();
    let closing = crib.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { closing.shutdown(10 * SECOND).await });
    settle().await;
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::ShuttingDown);
    tasks.join_all().await;
    assert_eq!((before.elapsed().as_secs(), fake.running_and_peak().0), (3, 0));
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_at_most_its_grace_period() {
    let hanging = FakeServer::new();
    let starting = FakeServer::new().default_start(FakeStart::Silent);
    let crib = crib(&[("hanging", &hanging), ("starting", &starting)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("hanging", "hang"));
    spawn(&mut calls, &crib, on("starting", "echo"));
    settle().await;
    let before = Instant::now();
    crib.shutdown(5 * SECOND).await;
    assert_eq!(
        (before.elapsed().as_secs(), hanging.running_and_peak().0, starting.running_and_peak().0),
        (5, 0, 0)
    );
    let mut kinds: Vec<&str> =
        calls.join_all().await.into_iter().map(|ended| kind(ended).facts().name).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["lost", "shutting_down"]);
    assert_eq!(kind(crib.call(on("hanging", "echo")).await), ErrorKind::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn second_shutdown_has_no_effect() {
    let crib = crib(&[("git", &FakeServer::new())]);
    crib.shutdown(SECOND).await;
    crib.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn target_of_a_call_during_the_shutdown_is_not_unknown() {
    let fake = FakeServer::with_tools(&["log"]);
    let crib = crib(&[("git", &fake)]);
    crib.shutdown(Duration::ZERO).await;
    for name in ["git__log", "log"] {
        let error = crib.find_for(&Caller::local(), &Selector::Tool(name.to_owned())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShuttingDown, "{name}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_servers_after_shutdown_fails() {
    let late = FakeServer::new();
    let crib = crib(&[("git", &FakeServer::new())]);
    crib.shutdown(SECOND).await;
    let eager = Lifecycle { start: StartPolicy::AtBoot, ..Lifecycle::default() };
    let late_spec = spec("late", &late).lifecycle(eager);
    let ends = [
        crib.apply_roster(roster([late_spec.clone()])).await,
        crib.apply(Settings::new(roster([late_spec.clone()]))).await,
        crib.add(late_spec.clone()).await,
        crib.replace(late_spec).await,
        crib.remove(&id("git")).await,
    ];
    for end in ends {
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ShuttingDown);
    }
    settle().await;
    assert_eq!((late.starts(), crib.status().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn servers_stop_with_the_last_handle() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let clone = crib.clone();
    clone.call(on("git", "echo")).await.unwrap();
    drop(crib);
    settle().await;
    assert_eq!(fake.running_and_peak().0, 1);
    drop(clone);
    settle().await;
    assert_eq!(fake.running_and_peak().0, 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_cuts_draining_servers_short() {
    let removed = FakeServer::new();
    let replaced = FakeServer::new();
    let crib = crib(&[("removed", &removed), ("replaced", &replaced)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("removed", "hang"));
    spawn(&mut calls, &crib, on("replaced", "hang"));
    settle().await;
    let other = spec("replaced", &replaced).era(EraChoice::Era(Era::Session));
    let applying = crib.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { applying.apply_roster(roster([other])).await });
    settle().await;
    assert_eq!(
        (removed.running_and_peak().0, replaced.running_and_peak().0),
        (1, 1),
        "they wait for their calls"
    );
    let before = Instant::now();
    crib.shutdown(2 * SECOND).await;
    assert_eq!(
        (before.elapsed().as_secs(), removed.running_and_peak().0, replaced.running_and_peak().0),
        (2, 0, 0)
    );
    assert!(calls.join_all().await.into_iter().all(|ended| kind(ended) == ErrorKind::Lost));
    assert_eq!(tasks.join_all().await.len(), 1, "the reload ends with the shutdown");
}

#[tokio::test(start_paused = true)]
async fn events_and_notifications_end_with_the_shutdown() {
    let crib = crib(&[("git", &FakeServer::new())]);
    let mut events = crib.events();
    let mut notifications = crib.notifications();
    crib.call(on("git", "echo")).await.unwrap();
    crib.shutdown(SECOND).await;
    let mut seen = 0;
    while timeout(SECOND, events.recv()).await.unwrap().is_ok() {
        seen += 1;
    }
    assert!(seen >= 3, "started, called and stopped, then the end: {seen}");
    assert_eq!(timeout(SECOND, notifications.recv()).await.unwrap().unwrap_err(), RecvError::Closed);
    assert_eq!(timeout(SECOND, crib.events().recv()).await.unwrap().unwrap_err(), RecvError::Closed);
}

/// An observer that counts how often it was closed.
#[derive(Default)]
struct ClosedCount(AtomicUsize);

impl Observer for ClosedCount {
    fn call_ended(&self, _: &CallRecord) {}

    fn close(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn second_shutdown_finishes_one_that_was_dropped() {
    for polls in 0..40 {
        let fake = FakeServer::new();
        let observer = Arc::new(ClosedCount::default());
        let builder = Crib::builder().server(spec("git", &fake)).observer(observer.clone());
        let crib = builder.build().unwrap();
        let mut calls = JoinSet::new();
        spawn(&mut calls, &crib, on("git", "hang"));
        settle().await;
        let polled = async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { biased; () = crib.shutdown(Duration::ZERO) => {}, () = polled => {} }
        let finished = timeout(SECOND, crib.shutdown(Duration::ZERO)).await;
        assert!(finished.is_ok(), "dropped after {polls} polls");
        assert_eq!((fake.running_and_peak().0, observer.0.load(SeqCst)), (0, 1), "after {polls} polls");
    }
}
