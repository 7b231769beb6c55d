//! What many ask at the same time is asked once, and nobody is worse off for it than if it had asked alone.

use serde_json::json;
use tokio::task::JoinSet;
use toolcrib::Limits;

use crate::cache::{crib_of, kept, lasting};
use crate::fake::Fake;
use crate::house::{SECOND, breath, on, roster, spawn, status, with};

#[tokio::test(start_paused = true)]
async fn a_thousand_who_ask_the_same_at_the_same_time_are_one_call() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let mut calls = JoinSet::new();
    for _ in 0..1000 {
        spawn(&mut calls, &crib, lasting("hold", 1));
    }
    breath().await;
    fake.open(true);
    let answers: Vec<String> =
        calls.join_all().await.into_iter().map(|ended| ended.unwrap().text()).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!((fake.called().len(), fake.starts()), (1, 1), "of a server that was asleep, too");
}

#[tokio::test(start_paused = true)]
async fn whoever_asked_first_may_leave_and_the_others_are_answered() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let mut calls = JoinSet::new();
    let first = calls.spawn({
        let crib = crib.clone();
        async move { crib.call(lasting("hold", 1)).await }
    });
    breath().await;
    for _ in 0..50 {
        spawn(&mut calls, &crib, lasting("hold", 1));
    }
    breath().await;
    assert_eq!(fake.called().len(), 1);
    first.abort();
    breath().await;
    assert_eq!(fake.heard("notifications/cancelled").len(), 1, "nobody waits for what it asked");
    assert_eq!(fake.called().len(), 2, "one of the others asks");
    fake.open(true);
    let mut answered = 0;
    while let Some(ended) = calls.join_next().await {
        answered += usize::from(ended.is_ok_and(|ended| ended.is_ok()));
    }
    assert_eq!((answered, fake.called().len()), (50, 2));
}

#[tokio::test(start_paused = true)]
async fn what_is_nothing_for_others_is_asked_by_each_of_them() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        spawn(&mut calls, &crib, with("git", "hold", &json!({"n": 1})));
    }
    breath().await;
    assert_eq!(fake.called().len(), 1, "nobody knows yet that it does not last");
    fake.open(true);
    calls.join_all().await.into_iter().for_each(|ended| drop(ended.unwrap()));
    assert_eq!(fake.called().len(), 5);
    fake.open(false);
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        spawn(&mut calls, &crib, with("git", "hold", &json!({"n": 2})));
    }
    breath().await;
    assert_eq!(fake.called().len(), 10, "and from then on nobody waits for another");
    fake.open(true);
    calls.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_not_shared() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let mut calls = JoinSet::new();
    crib.call(on("git", "echo")).await.unwrap();
    spawn(&mut calls, &crib, lasting("hold", 1));
    breath().await;
    spawn(&mut calls, &crib, lasting("hold", 1));
    breath().await;
    fake.kill();
    breath().await;
    fake.open(true);
    let ends = calls.join_all().await;
    assert_eq!(
        ends.iter().filter(|ended| ended.is_ok()).count(),
        1,
        "the one that was never sent is answered"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_server_says_that_was_replaced_meanwhile_is_not_its_successors_word() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, lasting("hold", 1));
    breath().await;
    let limits = Limits { call_timeout: 7 * SECOND, ..Limits::default() };
    let applied = crib.apply(roster([kept(&fake).limits(limits)]));
    let opened = async {
        breath().await;
        fake.open(true);
    };
    tokio::join!(applied, opened);
    calls.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(status(&crib, "git").cache_entries, 0);
    crib.call(lasting("hold", 1)).await.unwrap();
    assert_eq!(fake.called().len(), 2);
}
