//! Quotas, rates, budgets and client limits in force.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use toolcrib::access::policy::{Policy, Rules};
use toolcrib::limits::{UsageLimit, UsageLimits};
use toolcrib::model::event::{Decision, Event};
use toolcrib::{Budget, Call, Caller, Client, Crib, CribBuilder, Delivery, ErrorKind, ServerSpec, Toolbox};

use crate::cache;
use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, id, kind, on, settle, spawn, spec, with};

const HOUR: Duration = Duration::from_secs(3600);

fn calls(count: u32) -> NonZeroU32 {
    count.try_into().unwrap()
}

/// A quota of calls per hour for each caller.
fn hourly(count: u32) -> UsageLimits {
    UsageLimits { everyone: vec![UsageLimit::quota(calls(count), HOUR)], ..UsageLimits::default() }
}

fn only_limit(pattern: &str, limit: UsageLimit) -> UsageLimits {
    UsageLimits { everyone: vec![limit.matching(pattern.parse().unwrap())], ..UsageLimits::default() }
}

/// A builder with one server whose tools count how often they run.
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

async fn remaining(crib: &Crib) -> Vec<u32> {
    crib.limit_status().await.iter().map(|status| status.remaining).collect()
}

fn client(number: u64) -> Client {
    Client { key: number, ..Client::without_capabilities() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_calls_never_exceed_quota_or_budget() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = counting(&ran).limits(hourly(50)).build().unwrap();
    let budget = Budget::calls(70);
    for (caller, allowed) in [("one", 50), ("two", 20)] {
        ran.store(0, Ordering::Relaxed);
        let mut racing = JoinSet::new();
        for _ in 0..64 {
            let crib = crib.clone();
            let budget = budget.clone();
            racing.spawn(async move {
                let mut refused = 0;
                for _ in 0..4 {
                    let call = Call::tool("a__read").caller(Caller::new(caller)).budget(&budget);
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
        (budget.remaining(), remaining(&crib).await),
        (0, vec![0, 30]),
        "a call refused by the budget is not charged elsewhere"
    );
}

#[tokio::test(start_paused = true)]
async fn limit_error_names_limit_and_retry_time() {
    let ran = Arc::new(AtomicUsize::new(0));
    let mut quota = only_limit("a.write", UsageLimit::quota(calls(1), 60 * SECOND));
    quota.callers.insert("ci".to_owned(), vec![UsageLimit::quota(calls(3), HOUR)]);
    let crib = counting(&ran).limits(quota).build().unwrap();
    let by_ci = |tool: &str| crib.call(on("a", tool).caller(Caller::new("ci")));
    by_ci("write").await.unwrap();
    sleep(20 * SECOND).await;
    let mut events = crib.events();
    let error = by_ci("write").await.unwrap_err();
    let Ok(Event::CallEnded(called)) = events.try_recv() else { panic!("the call is recorded") };
    assert_eq!((called.decision, called.end.name()), (Decision::Denied, "over_quota"));
    assert!(called.denial.as_ref().unwrap().rule.contains("a.write"));
    assert_eq!(
        (error.kind(), error.retry_in(), error.delivery()),
        (ErrorKind::OverQuota, Some(40 * SECOND), Delivery::NotSent)
    );
    assert_eq!(
        error.to_string(),
        "`ci` may not use `a.write` now: `policy.limits.\"a.write\".quota` is 1 call per 1m; available again in 40.0 s"
    );
    assert_eq!(error.data()["retryAfterMs"], 40_000);
    assert_eq!(error.data()["rule"], "`policy.limits.\"a.write\".quota` is 1 call per 1m");
    // Other tools, other callers and later calls are allowed.
    by_ci("read").await.unwrap();
    crib.call(on("a", "write")).await.unwrap();
    sleep(40 * SECOND).await;
    by_ci("write").await.unwrap();
    // Of two exceeded limits the one with the longer wait is reported.
    let error = by_ci("write").await.unwrap_err();
    assert!(error.to_string().contains("`callers.ci.quota` is 3 calls per 1h"), "{error}");
    assert_eq!((error.retry_in(), ran.load(Ordering::Relaxed)), (Some(HOUR - 60 * SECOND), 4));
}

#[tokio::test(start_paused = true)]
async fn refused_or_unsent_call_costs_nothing() {
    let ran = Arc::new(AtomicUsize::new(0));
    let broken = spec("broken", &FakeServer::new().default_start(FakeStart::RefusesHandshake));
    let rules = Rules::default().denying(["a.write".parse().unwrap()]);
    let builder = counting(&ran).server(broken).policy(Policy::for_everyone(rules));
    let crib = builder.limits(hourly(1)).build().unwrap();
    let budget = Budget::calls(1);
    for (call, expected) in [
        (Call::tool("nope"), ErrorKind::Unknown),
        (on("absent", "x"), ErrorKind::Unknown),
        (on("a", "write"), ErrorKind::Denied),
    ] {
        assert_eq!(kind(crib.call(call.budget(&budget)).await), expected);
    }
    for _ in 0..3 {
        let error = crib.call(on("broken", "x").budget(&budget)).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::CouldNotStart | ErrorKind::Ejected), "{error}");
    }
    assert_eq!((budget.remaining(), remaining(&crib).await), (1, vec![1]));
    crib.call(on("a", "read").budget(&budget)).await.unwrap();
    assert_eq!((budget.remaining(), remaining(&crib).await), (0, vec![0]));
    assert_eq!(
        kind(crib.call(on("a", "write").budget(&budget)).await),
        ErrorKind::Denied,
        "denied before limits are checked"
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_call_costs_only_if_sent() {
    let fake = FakeServer::new().next_starts(&[FakeStart::SlowHandshake(5 * SECOND)]);
    let crib = Crib::builder().server(spec("git", &fake)).limits(hourly(9)).build().unwrap();
    let budget = Budget::calls(9);
    // Before the server is up nothing was sent; afterwards the call was.
    assert!(timeout(SECOND, crib.call(on("git", "echo").budget(&budget))).await.is_err());
    assert_eq!((budget.remaining(), remaining(&crib).await), (9, vec![9]));
    crib.call(on("git", "echo").budget(&budget)).await.unwrap();
    assert!(timeout(SECOND, crib.call(on("git", "hang").budget(&budget))).await.is_err());
    // A call that was lost with its server may have run.
    assert_eq!(kind(crib.call(on("git", "die").budget(&budget)).await), ErrorKind::Lost);
    assert_eq!((budget.remaining(), remaining(&crib).await), (6, vec![6]));
}

#[tokio::test(start_paused = true)]
async fn cached_answer_costs_a_call() {
    let fake = FakeServer::new();
    let crib = Crib::builder().server(cache::caching_spec(&fake)).limits(hourly(9)).build().unwrap();
    let budget = Budget::calls(9);
    for _ in 0..3 {
        crib.call(cache::cacheable_call("echo", 1).budget(&budget)).await.unwrap();
    }
    assert_eq!((fake.called_tools().len(), budget.remaining(), remaining(&crib).await), (1, 6, vec![6]));
    // A merged call costs as much.
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        spawn(&mut calls, &crib, cache::cacheable_call("hold", 1).budget(&budget));
    }
    settle().await;
    fake.set_hold_open(true);
    while calls.join_next().await.is_some_and(|ended| ended.unwrap().is_ok()) {}
    assert_eq!((fake.called_tools().len(), budget.remaining(), remaining(&crib).await), (2, 4, vec![4]));
}

#[tokio::test(start_paused = true)]
async fn quota_holds_in_every_period() {
    let ran = Arc::new(AtomicUsize::new(0));
    let limit = UsageLimit::quota(calls(10), 10 * SECOND);
    let crib = counting(&ran).limits(only_limit("a.*", limit)).build().unwrap();
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
async fn rate_allows_a_burst_then_refills() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = counting(&ran).limits(only_limit("*", UsageLimit::rate(calls(5), SECOND))).build().unwrap();
    for _ in 0..5 {
        crib.call(on("a", "read")).await.unwrap();
    }
    let error = crib.call(on("a", "read")).await.unwrap_err();
    assert_eq!((error.kind(), error.retry_in()), (ErrorKind::OverQuota, Some(SECOND / 5)));
    sleep(SECOND / 5).await;
    crib.call(on("a", "read")).await.unwrap();
    assert!(crib.call(on("a", "read")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn calls_over_the_rate_wait_in_order() {
    let ran = Arc::new(AtomicUsize::new(0));
    let limit = UsageLimit::rate(calls(1), SECOND).max_wait(3 * SECOND);
    let crib = counting(&ran).limits(only_limit("*", limit)).build().unwrap();
    crib.call(on("a", "read")).await.unwrap();
    let began = Instant::now();
    let mut waiting = JoinSet::new();
    for _ in 0..3 {
        spawn(&mut waiting, &crib, on("a", "read"));
        settle().await;
    }
    // A fourth call would wait too long, and a call does not wait longer than its timeout.
    assert_eq!(crib.call(on("a", "read")).await.unwrap_err().retry_in(), Some(4 * SECOND));
    while waiting.join_next().await.is_some_and(|ended| ended.unwrap().is_ok()) {}
    assert_eq!((began.elapsed().as_secs(), ran.load(Ordering::Relaxed)), (3, 4));
    let hurried = crib.call(on("a", "read").timeout(SECOND / 2)).await.unwrap_err();
    assert_eq!((hurried.kind(), began.elapsed().as_secs()), (ErrorKind::OverQuota, 3));
    // A call that is dropped while it waits releases its place.
    assert!(timeout(SECOND / 2, crib.call(on("a", "read"))).await.is_err());
    sleep(SECOND / 2).await;
    crib.call(on("a", "read")).await.unwrap();
    assert_eq!((began.elapsed().as_secs(), ran.load(Ordering::Relaxed)), (4, 5));
}

#[tokio::test(start_paused = true)]
async fn status_shows_callers_whose_calls_matched_no_limit() {
    let ran = Arc::new(AtomicUsize::new(0));
    let limits = only_limit("a.write", UsageLimit::quota(calls(5), Duration::from_secs(3600)));
    let crib = counting(&ran).limits(limits).build().unwrap();
    assert_eq!(remaining(&crib).await, [0; 0]);
    crib.call(on("a", "read")).await.unwrap();
    assert_eq!(remaining(&crib).await, [5]);
}

#[tokio::test(start_paused = true)]
async fn new_quota_keeps_usage() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = counting(&ran).limits(hourly(3)).build().unwrap();
    for _ in 0..3 {
        crib.call(on("a", "read")).await.unwrap();
    }
    crib.set_limits(hourly(3));
    assert_eq!(kind(crib.call(on("a", "read")).await), ErrorKind::OverQuota);
    crib.set_limits(hourly(5));
    assert_eq!(remaining(&crib).await, [2]);
    crib.set_limits(hourly(1));
    assert_eq!(remaining(&crib).await, [0]);
    crib.set_limits(UsageLimits::default());
    crib.call(on("a", "read")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn repeated_identical_call_is_refused_per_client() {
    let fake = FakeServer::new();
    let quota = UsageLimits { identical_calls: Some(calls(3)), ..hourly(100) };
    let crib = Crib::builder().server(spec("git", &fake)).limits(quota).build().unwrap();
    let by = |number, arguments| crib.call(with("git", "echo", &arguments).client(client(number)));
    for arguments in [json!({"a": 1, "b": [2]}), json!({"b": [2], "a": 1}), json!({"a": 1, "b": [2]})] {
        by(1, arguments).await.unwrap();
    }
    let error = by(1, json!({"a": 1, "b": [2]})).await.unwrap_err();
    assert!(error.is_for_model() && error.kind() == ErrorKind::OverQuota, "{error}");
    assert!(error.to_string().contains("3 times in a row with the same arguments"), "{error}");
    assert!(error.hint().to_string().contains("change the arguments"), "{}", error.hint());
    assert_eq!(remaining(&crib).await, [97], "a refused call costs nothing");
    by(2, json!({"a": 1, "b": [2]})).await.unwrap();
    by(1, json!({"a": 2})).await.unwrap();
    by(1, json!({"a": 1, "b": [2]})).await.unwrap();
    // A client that disconnected is forgotten.
    for _ in 0..2 {
        by(1, json!({"a": 1, "b": [2]})).await.unwrap();
    }
    assert!(by(1, json!({"a": 1, "b": [2]})).await.is_err());
    crib.client_disconnected(1);
    by(1, json!({"a": 1, "b": [2]})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_result_bytes_are_limited() {
    let fake = FakeServer::new();
    let quota = UsageLimits { result_bytes: Some(1000), ..UsageLimits::default() };
    let crib = Crib::builder().server(spec("git", &fake)).limits(quota).build().unwrap();
    let by = |number, bytes: usize| {
        crib.call(with("git", "echo", &json!("x".repeat(bytes))).client(client(number)))
    };
    let first = by(1, 500).await.unwrap().raw().len();
    let error = by(1, 600).await.unwrap_err();
    assert!(error.is_for_model() && error.delivery() == Delivery::MaybeSent, "{error}");
    assert!(error.to_string().contains(&format!("may get {} more", 1000 - first)), "{error}");
    // Smaller results still fit, and other clients have their own limit.
    let small = by(1, 10).await.unwrap();
    let other = by(2, 600).await.unwrap();
    assert!(first + small.raw().len() <= 1000 && other.raw().len() > 600);
    let exactly = 1000 - first - small.raw().len() - small.raw().len() + 10;
    by(1, exactly).await.unwrap();
    let before = fake.called_tools().len();
    let error = by(1, 1).await.unwrap_err();
    assert!(error.is_for_model() && error.delivery() == Delivery::NotSent, "{error}");
    assert_eq!(
        fake.called_tools().len(),
        before,
        "the server is not called for a client without remaining bytes"
    );
}

#[tokio::test]
async fn usage_is_restored_from_the_file() {
    let ran = Arc::new(AtomicUsize::new(0));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/quota.json");
    let built = |quota: UsageLimits| counting(&ran).limits(quota).usage_file(&file).build().unwrap();
    let crib = built(hourly(200));
    for _ in 0..100 {
        crib.call(on("a", "read")).await.unwrap();
    }
    crib.shutdown(SECOND).await;
    let crib = built(hourly(200));
    crib.call(on("a", "read")).await.unwrap();
    assert_eq!(remaining(&crib).await, [99]);
    // A crib that is dropped has saved its usage shortly before; a margin is added for what may be missing.
    let is_saved = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("\"closed\":false"));
    while !is_saved() {
        tokio::task::yield_now().await;
    }
    drop(crib);
    assert_eq!(remaining(&built(hourly(200))).await, [99 - 200 / 64]);
    assert_eq!(remaining(&built(hourly(50))).await, [0], "a smaller limit is used up");
    assert!(built(UsageLimits::default()).limit_status().await.is_empty());
    std::fs::write(&file, "rubbish").unwrap();
    let crib = built(hourly(2));
    crib.call(on("a", "read")).await.unwrap();
    assert_eq!(remaining(&crib).await, [1]);
}
