//! The end: calls are waited for, then every server and every task is gone.

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::{Changes, ErrorKind, Lifecycle, Start};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, crib, kind, on, roster, spawn, spec, with};

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_calls_under_way_and_takes_no_more() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 3000})));
    breath().await;
    let before = Instant::now();
    let closing = crib.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { closing.shutdown(10 * SECOND).await });
    breath().await;
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::ShuttingDown);
    tasks.join_all().await;
    assert_eq!((before.elapsed().as_secs(), fake.living().0), (3, 0));
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_no_longer_than_its_grace() {
    let (hanging, starting) = (Fake::new(), Fake::new().usually(Boot::Silent));
    let crib = crib(&[("hanging", &hanging), ("starting", &starting)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("hanging", "hang"));
    spawn(&mut calls, &crib, on("starting", "echo"));
    breath().await;
    let before = Instant::now();
    crib.shutdown(5 * SECOND).await;
    assert_eq!((before.elapsed().as_secs(), hanging.living().0, starting.living().0), (5, 0, 0));
    let mut kinds: Vec<&str> =
        calls.join_all().await.into_iter().map(|ended| kind(ended).facts().name).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["lost", "shutting_down"]);
    assert_eq!(kind(crib.call(on("hanging", "echo")).await), ErrorKind::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn a_second_shutdown_is_no_mistake() {
    let crib = crib(&[("git", &Fake::new())]);
    crib.shutdown(SECOND).await;
    crib.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_roster_that_comes_after_the_shutdown_starts_nothing() {
    let late = Fake::new();
    let crib = crib(&[("git", &Fake::new())]);
    crib.shutdown(SECOND).await;
    let eager = Lifecycle { start: Start::AtBoot, ..Lifecycle::default() };
    let changes = crib.apply(roster([spec("late", &late).lifecycle(eager)])).await;
    assert_eq!((changes, late.starts()), (Changes::default(), 0));
}

#[tokio::test(start_paused = true)]
async fn servers_end_with_the_last_handle() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let clone = crib.clone();
    clone.call(on("git", "echo")).await.unwrap();
    drop(crib);
    breath().await;
    assert_eq!(fake.living().0, 1);
    drop(clone);
    breath().await;
    assert_eq!(fake.living().0, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_hurries_servers_that_left_the_roster_and_wait_for_their_calls() {
    let (gone, replaced) = (Fake::new(), Fake::new());
    let crib = crib(&[("gone", &gone), ("replaced", &replaced)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("gone", "hang"));
    spawn(&mut calls, &crib, on("replaced", "hang"));
    breath().await;
    let mut other = spec("replaced", &replaced);
    other.limits.call_timeout = 59 * SECOND;
    let (applying, mut tasks) = (crib.clone(), JoinSet::new());
    tasks.spawn(async move { applying.apply(roster([other])).await });
    breath().await;
    assert_eq!((gone.living().0, replaced.living().0), (1, 1), "their calls may take ten seconds");
    let before = Instant::now();
    crib.shutdown(2 * SECOND).await;
    assert_eq!((before.elapsed().as_secs(), gone.living().0, replaced.living().0), (2, 0, 0));
    assert!(calls.join_all().await.into_iter().all(|ended| kind(ended) == ErrorKind::Lost));
    assert_eq!(tasks.join_all().await.len(), 1, "the reload ends with it");
}
