//! Concurrent equal calls are sent once.

use serde_json::json;
use tokio::task::JoinSet;
use toolcrib::{Era, EraChoice};

use crate::cache::{cacheable_call, caching_spec, crib_of};
use crate::fake::FakeServer;
use crate::support::{on, roster, settle, spawn, status, with};

#[tokio::test(start_paused = true)]
async fn concurrent_equal_calls_are_merged() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let mut calls = JoinSet::new();
    for _ in 0..1000 {
        spawn(&mut calls, &crib, cacheable_call("hold", 1));
    }
    settle().await;
    fake.set_hold_open(true);
    let answers: Vec<String> =
        calls.join_all().await.into_iter().map(|ended| ended.unwrap().text()).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!((fake.called_tools().len(), fake.starts()), (1, 1), "a stopped server is started once");
}

#[tokio::test(start_paused = true)]
async fn merged_calls_survive_a_dropped_first_call() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let mut calls = JoinSet::new();
    let first = calls.spawn({
        let crib = crib.clone();
        async move { crib.call(cacheable_call("hold", 1)).await }
    });
    settle().await;
    for _ in 0..50 {
        spawn(&mut calls, &crib, cacheable_call("hold", 1));
    }
    settle().await;
    assert_eq!(fake.called_tools().len(), 1);
    first.abort();
    settle().await;
    assert_eq!(fake.received("notifications/cancelled").len(), 1, "the dropped call is cancelled");
    assert_eq!(fake.called_tools().len(), 2, "one of the waiting calls is sent");
    fake.set_hold_open(true);
    let mut answered = 0;
    while let Some(ended) = calls.join_next().await {
        answered += usize::from(ended.is_ok_and(|ended| ended.is_ok()));
    }
    assert_eq!((answered, fake.called_tools().len()), (50, 2));
}

#[tokio::test(start_paused = true)]
async fn uncacheable_results_are_not_shared() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        spawn(&mut calls, &crib, with("git", "hold", &json!({"n": 1})));
    }
    settle().await;
    assert_eq!(fake.called_tools().len(), 1, "the subject is not known to be uncacheable yet");
    fake.set_hold_open(true);
    calls.join_all().await.into_iter().for_each(|ended| drop(ended.unwrap()));
    assert_eq!(fake.called_tools().len(), 5);
    fake.set_hold_open(false);
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        spawn(&mut calls, &crib, with("git", "hold", &json!({"n": 2})));
    }
    settle().await;
    assert_eq!(fake.called_tools().len(), 10, "calls of an uncacheable subject are not merged");
    fake.set_hold_open(true);
    calls.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn failure_is_not_shared() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let mut calls = JoinSet::new();
    crib.call(on("git", "echo")).await.unwrap();
    spawn(&mut calls, &crib, cacheable_call("hold", 1));
    settle().await;
    spawn(&mut calls, &crib, cacheable_call("hold", 1));
    settle().await;
    fake.kill();
    settle().await;
    fake.set_hold_open(true);
    let ends = calls.join_all().await;
    assert_eq!(
        ends.iter().filter(|ended| ended.is_ok()).count(),
        1,
        "the call that was not sent is answered"
    );
}

#[tokio::test(start_paused = true)]
async fn answer_of_replaced_server_is_not_cached() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, cacheable_call("hold", 1));
    settle().await;
    let changed = caching_spec(&fake).era(EraChoice::Era(Era::Session));
    let applied = crib.apply_roster(roster([changed]));
    let opened = async {
        settle().await;
        fake.set_hold_open(true);
    };
    let (applied, ()) = tokio::join!(applied, opened);
    assert_eq!(applied.unwrap().restarted.len(), 1);
    calls.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(status(&crib, "git").cache_entries, 0);
    crib.call(cacheable_call("hold", 1)).await.unwrap();
    assert_eq!(fake.called_tools().len(), 2);
}
