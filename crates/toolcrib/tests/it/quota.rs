//! Limits in force: never more than they allow, nothing charged for what never happened, and a word on when to come back.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use toolcrib::event::{Decision, Event};
use toolcrib::policy::{Policy, Rules};
use toolcrib::quota::{Limit, Quota};
use toolcrib::{
    Budget, Call, Caller, Client, CommandSpec, Crib, CribBuilder, ErrorKind, Sent, ServerSpec, Toolbox,
};

use crate::cache;
use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, id, kind, on, spawn, spec, with};

const HOUR: Duration = Duration::from_secs(3600);

fn calls(most: u32) -> NonZeroU32 {
    most.try_into().unwrap()
}

/// Each caller may make so many calls in an hour.
fn hourly(most: u32) -> Quota {
    Quota { everyone: vec![Limit::quota(calls(most), HOUR)], ..Quota::default() }
}

fn of(what: &str, limit: Limit) -> Quota {
    Quota { everyone: vec![limit.of(what.parse().unwrap())], ..Quota::default() }
}

/// A server whose tools count how often they really run.
fn counting(ran: &Arc<AtomicUsize>) -> CribBuilder {
    let toolbox = ["read", "write"].into_iter().fold(Toolbox::new(), |toolbox, name| {
        let ran = ran.clone();
        toolbox.tool(name, "", &json!({"type": "object"}), move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            async { Ok("ran".to_owned()) }
        })
    });
    Crib::builder().server(ServerSpec::in_process(id("a"), toolbox))
}

fn left(crib: &Crib) -> Vec<u32> {
    crib.standings().iter().map(|standing| standing.left).collect()
}

fn client(number: u64) -> Client {
    Client { key: number, ..Client::silent() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_who_race_never_get_more_than_there_is() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = counting(&ran).quota(hourly(50)).build().unwrap();
    let budget = Budget::calls(70);
    for (caller, allowed) in [("one", 50), ("two", 20)] {
        ran.store(0, Ordering::Relaxed);
        let mut racing = JoinSet::new();
        for _ in 0..64 {
            let (crib, budget) = (crib.clone(), budget.clone());
            racing.spawn(async move {
                let mut refused = 0;
                for _ in 0..4 {
                    let call = Call::tool("a__read").by(Caller::named(caller)).within(&budget);
                    match crib.call(call).await {
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::OverQuota => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                refused
            });
        }
        let refused: usize = racing.join_all().await.into_iter().sum();
        assert_eq!((ran.load(Ordering::Relaxed), refused), (allowed, 256 - allowed), "{caller}");
    }
    assert_eq!(
        (budget.left(), left(&crib)),
        (0, vec![0, 30]),
        "what the budget refused was not charged elsewhere"
    );
}

#[tokio::test(start_paused = true)]
async fn the_error_says_which_limit_whose_and_when_there_is_room() {
    let ran = Arc::new(AtomicUsize::new(0));
    let mut quota = of("a.write", Limit::quota(calls(1), 60 * SECOND));
    quota.callers.insert("ci".to_owned(), vec![Limit::quota(calls(3), HOUR)]);
    let crib = counting(&ran).quota(quota).build().unwrap();
    let by_ci = |tool: &str| crib.call(on("a", tool).by(Caller::named("ci")));
    by_ci("write").await.unwrap();
    sleep(20 * SECOND).await;
    let mut events = crib.events();
    let error = by_ci("write").await.unwrap_err();
    let Ok(Event::Called(called)) = events.try_recv() else { panic!("a call is told of") };
    assert_eq!((called.decision, called.ending.name()), (Decision::Denied, "over_quota"));
    assert!(called.denial.as_ref().unwrap().rule.contains("a.write"));
    assert_eq!(
        (error.kind(), error.wait(), error.sent()),
        (ErrorKind::OverQuota, Some(40 * SECOND), Sent::Never)
    );
    assert_eq!(
        error.to_string(),
        "`ci` may not use `a.write` now: `policy.limits.\"a.write\".quota` is 1 call per 1m; there is room again in 40.0 s"
    );
    assert_eq!(error.data()["retryAfterMs"], 40_000);
    assert_eq!(error.data()["rule"], "`policy.limits.\"a.write\".quota` is 1 call per 1m");
    // Another tool, another caller, and the same one later.
    by_ci("read").await.unwrap();
    crib.call(on("a", "write")).await.unwrap();
    sleep(40 * SECOND).await;
    by_ci("write").await.unwrap();
    // Where two refuse, the one that does so longer is told.
    let error = by_ci("write").await.unwrap_err();
    assert!(error.to_string().contains("`callers.ci.quota` is 3 calls per 1h"), "{error}");
    assert_eq!((error.wait(), ran.load(Ordering::Relaxed)), (Some(HOUR - 60 * SECOND), 4));
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_earlier_or_never_sent_costs_nothing() {
    let ran = Arc::new(AtomicUsize::new(0));
    let broken = ServerSpec::command(id("broken"), CommandSpec::new("/nowhere/at-all"));
    let rules = Rules::default().denying(["a.write".parse().unwrap()]);
    let builder = counting(&ran).server(broken).policy(Policy::for_everyone(rules));
    let crib = builder.quota(hourly(1)).build().unwrap();
    let budget = Budget::calls(1);
    for (call, expected) in [
        (Call::tool("nope"), ErrorKind::Unknown),
        (on("nobody", "x"), ErrorKind::Unknown),
        (on("a", "write"), ErrorKind::Denied),
    ] {
        assert_eq!(kind(crib.call(call.within(&budget)).await), expected);
    }
    for _ in 0..3 {
        let error = crib.call(on("broken", "x").within(&budget)).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::CouldNotStart | ErrorKind::Ejected), "{error}");
    }
    assert_eq!((budget.left(), left(&crib)), (1, vec![1]));
    crib.call(on("a", "read").within(&budget)).await.unwrap();
    assert_eq!((budget.left(), left(&crib)), (0, vec![0]));
    assert_eq!(
        kind(crib.call(on("a", "write").within(&budget)).await),
        ErrorKind::Denied,
        "still not over quota"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_costs_what_it_did() {
    let fake = Fake::new().boots(&[Boot::Late(5 * SECOND)]);
    let crib = Crib::builder().server(spec("git", &fake)).quota(hourly(9)).build().unwrap();
    let budget = Budget::calls(9);
    // Before the server is up, nothing was sent; afterwards it was.
    assert!(timeout(SECOND, crib.call(on("git", "echo").within(&budget))).await.is_err());
    assert_eq!((budget.left(), left(&crib)), (9, vec![9]));
    crib.call(on("git", "echo").within(&budget)).await.unwrap();
    assert!(timeout(SECOND, crib.call(on("git", "hang").within(&budget))).await.is_err());
    // A server that dies with the call may have worked on it.
    assert_eq!(kind(crib.call(on("git", "die").within(&budget)).await), ErrorKind::Lost);
    assert_eq!((budget.left(), left(&crib)), (6, vec![6]));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_known_already_costs_as_much() {
    let fake = Fake::new();
    let crib = Crib::builder().server(cache::kept(&fake)).quota(hourly(9)).build().unwrap();
    let budget = Budget::calls(9);
    for _ in 0..3 {
        crib.call(cache::lasting("echo", 1).within(&budget)).await.unwrap();
    }
    assert_eq!((fake.called().len(), budget.left(), left(&crib)), (1, 6, vec![6]));
    // So does an answer that somebody else is about to get.
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        spawn(&mut calls, &crib, cache::lasting("hold", 1).within(&budget));
    }
    breath().await;
    fake.open(true);
    while calls.join_next().await.is_some_and(|ended| ended.unwrap().is_ok()) {}
    assert_eq!((fake.called().len(), budget.left(), left(&crib)), (2, 4, vec![4]));
}

#[tokio::test(start_paused = true)]
async fn there_are_never_more_in_any_span_whenever_it_begins() {
    let ran = Arc::new(AtomicUsize::new(0));
    let limit = Limit::quota(calls(10), 10 * SECOND);
    let crib = counting(&ran).quota(of("a.*", limit)).build().unwrap();
    let mut made = Vec::new();
    for _ in 0..600 {
        sleep(SECOND / 10).await;
        if crib.call(on("a", "read")).await.is_ok() {
            made.push(Instant::now());
        }
    }
    let worst = made
        .iter()
        .map(|first| made.iter().filter(|at| **at >= *first && **at - *first < 10 * SECOND).count());
    assert_eq!((worst.max(), ran.load(Ordering::Relaxed)), (Some(10), made.len()));
    assert!(made.len() >= 55, "{}", made.len());
}

#[tokio::test(start_paused = true)]
async fn a_rate_lets_a_burst_through_and_then_keeps_the_pace() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = counting(&ran).quota(of("*", Limit::rate(calls(5), SECOND))).build().unwrap();
    for _ in 0..5 {
        crib.call(on("a", "read")).await.unwrap();
    }
    let error = crib.call(on("a", "read")).await.unwrap_err();
    assert_eq!((error.kind(), error.wait()), (ErrorKind::OverQuota, Some(SECOND / 5)));
    sleep(SECOND / 5).await;
    crib.call(on("a", "read")).await.unwrap();
    assert!(crib.call(on("a", "read")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn who_may_wait_for_a_turn_gets_it_in_order_and_in_time() {
    let ran = Arc::new(AtomicUsize::new(0));
    let limit = Limit::rate(calls(1), SECOND).waiting(3 * SECOND);
    let crib = counting(&ran).quota(of("*", limit)).build().unwrap();
    crib.call(on("a", "read")).await.unwrap();
    let began = Instant::now();
    let mut waiting = JoinSet::new();
    for _ in 0..3 {
        spawn(&mut waiting, &crib, on("a", "read"));
        breath().await;
    }
    // Three wait already, so a fourth would for too long; and nobody waits who has no time to.
    assert_eq!(crib.call(on("a", "read")).await.unwrap_err().wait(), Some(4 * SECOND));
    while waiting.join_next().await.is_some_and(|ended| ended.unwrap().is_ok()) {}
    assert_eq!((began.elapsed().as_secs(), ran.load(Ordering::Relaxed)), (3, 4));
    let hurried = crib.call(on("a", "read").timeout(SECOND / 2)).await.unwrap_err();
    assert_eq!((hurried.kind(), began.elapsed().as_secs()), (ErrorKind::OverQuota, 3));
    // Whoever leaves the line gives its place back.
    assert!(timeout(SECOND / 2, crib.call(on("a", "read"))).await.is_err());
    sleep(SECOND / 2).await;
    crib.call(on("a", "read")).await.unwrap();
    assert_eq!((began.elapsed().as_secs(), ran.load(Ordering::Relaxed)), (4, 5));
}

#[tokio::test(start_paused = true)]
async fn another_quota_goes_on_from_what_was_used() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = counting(&ran).quota(hourly(3)).build().unwrap();
    for _ in 0..3 {
        crib.call(on("a", "read")).await.unwrap();
    }
    crib.ration(hourly(3));
    assert_eq!(kind(crib.call(on("a", "read")).await), ErrorKind::OverQuota);
    crib.ration(hourly(5));
    assert_eq!(left(&crib), [2]);
    crib.ration(hourly(1));
    assert_eq!(left(&crib), [0]);
    crib.ration(Quota::default());
    crib.call(on("a", "read")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_same_call_over_and_over_is_refused_to_that_client_alone() {
    let fake = Fake::new();
    let quota = Quota { identical_calls: Some(calls(3)), ..hourly(100) };
    let crib = Crib::builder().server(spec("git", &fake)).quota(quota).build().unwrap();
    let by = |number, arguments| crib.call(with("git", "echo", &arguments).of(client(number)));
    for arguments in [json!({"a": 1, "b": [2]}), json!({"b": [2], "a": 1}), json!({"a": 1, "b": [2]})] {
        by(1, arguments).await.unwrap();
    }
    let error = by(1, json!({"a": 1, "b": [2]})).await.unwrap_err();
    assert!(error.is_for_model() && error.kind() == ErrorKind::OverQuota, "{error}");
    assert!(error.to_string().contains("3 times in a row with the same arguments"), "{error}");
    assert!(error.advice().contains("change the arguments"), "{}", error.advice());
    assert_eq!(left(&crib), [97], "what was refused cost nothing");
    by(2, json!({"a": 1, "b": [2]})).await.unwrap();
    by(1, json!({"a": 2})).await.unwrap();
    by(1, json!({"a": 1, "b": [2]})).await.unwrap();
    // A client that has gone is forgotten.
    for _ in 0..2 {
        by(1, json!({"a": 1, "b": [2]})).await.unwrap();
    }
    assert!(by(1, json!({"a": 1, "b": [2]})).await.is_err());
    crib.part_with(1);
    by(1, json!({"a": 1, "b": [2]})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_no_more_bytes_than_it_may() {
    let fake = Fake::new();
    let quota = Quota { results: Some(1000), ..Quota::default() };
    let crib = Crib::builder().server(spec("git", &fake)).quota(quota).build().unwrap();
    let by =
        |number, bytes: usize| crib.call(with("git", "echo", &json!("x".repeat(bytes))).of(client(number)));
    let first = by(1, 500).await.unwrap().raw().len();
    let error = by(1, 600).await.unwrap_err();
    assert!(error.is_for_model() && error.sent() == Sent::Maybe, "{error}");
    assert!(error.to_string().contains(&format!("you get only {} more", 1000 - first)), "{error}");
    // What is smaller still fits, and others have their own.
    let (small, other) = (by(1, 10).await.unwrap(), by(2, 600).await.unwrap());
    assert!(first + small.raw().len() <= 1000 && other.raw().len() > 600);
    let exactly = 1000 - first - small.raw().len() - small.raw().len() + 10;
    by(1, exactly).await.unwrap();
    let before = fake.called().len();
    let error = by(1, 1).await.unwrap_err();
    assert!(error.is_for_model() && error.sent() == Sent::Never, "{error}");
    assert_eq!(fake.called().len(), before, "nothing is asked for somebody who gets nothing any more");
}

#[tokio::test]
async fn what_was_used_counts_on_in_the_next_crib() {
    let (ran, folder) = (Arc::new(AtomicUsize::new(0)), tempfile::tempdir().unwrap());
    let file = folder.path().join("state/quota.json");
    let built = |quota: Quota| counting(&ran).quota(quota).quota_file(&file).build().unwrap();
    let crib = built(hourly(200));
    for _ in 0..100 {
        crib.call(on("a", "read")).await.unwrap();
    }
    crib.shutdown(SECOND).await;
    let crib = built(hourly(200));
    crib.call(on("a", "read")).await.unwrap();
    assert_eq!(left(&crib), [99]);
    // One that ends without a word has remembered it a moment later; what may be missing is counted as used.
    let kept = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("\"closed\":false"));
    while !kept() {
        tokio::task::yield_now().await;
    }
    drop(crib);
    assert_eq!(left(&built(hourly(200))), [99 - 200 / 64]);
    assert_eq!(left(&built(hourly(50))), [0], "of another limit too");
    assert!(built(Quota::default()).standings().is_empty());
    std::fs::write(&file, "rubbish").unwrap();
    let crib = built(hourly(2));
    crib.call(on("a", "read")).await.unwrap();
    assert_eq!(left(&crib), [1]);
}
