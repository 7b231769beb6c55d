//! A call has a deadline of its own, and the server has one for it.

use std::num::NonZeroUsize;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use toolcrib::spec::ToolsSpec;
use toolcrib::{Call, Crib, ErrorKind, Limits, StateName};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, crib, on, spawn, spec, status, with};

#[tokio::test(start_paused = true)]
async fn a_call_ends_when_its_own_time_is_up_and_the_server_hears_of_it() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let before = Instant::now();
    let error = crib.call(on("git", "hang").timeout(3 * SECOND)).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 3));
    breath().await;
    assert_eq!(fake.heard("notifications/cancelled").len(), 1);
    assert_eq!((status(&crib, "git").in_flight, status(&crib, "git").leases), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_callers_own_haste_is_not_held_against_the_server() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    for _ in 0..10 {
        crib.call(on("git", "hang").timeout(SECOND)).await.unwrap_err();
    }
    breath().await;
    assert_eq!(
        (status(&crib, "git").state, status(&crib, "git").consecutive_failures),
        (StateName::Ready, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_in_vain_for_their_turn_are_not_held_against_the_server() {
    let fake = Fake::new();
    let limits = Limits { in_flight: NonZeroUsize::MIN, call_timeout: 10 * SECOND, ..Limits::default() };
    let tools =
        ToolsSpec { call_timeout: vec![("slow".parse().unwrap(), 30 * SECOND)], ..ToolsSpec::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(limits).tools(tools)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 20_000})));
    breath().await;
    for _ in 0..8 {
        spawn(&mut calls, &crib, on("git", "echo"));
    }
    let ended = calls.join_all().await;
    let (good, late): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
    assert_eq!((good.len(), late.len()), (1, 8));
    assert!(late.into_iter().all(|error| error.unwrap_err().is_unsent()));
    assert_eq!(
        (status(&crib, "git").state, status(&crib, "git").consecutive_failures),
        (StateName::Ready, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn the_start_of_the_server_counts_towards_the_callers_time() {
    let fake = Fake::new().usually(Boot::Late(10 * SECOND));
    let crib = crib(&[("git", &fake)]);
    let before = Instant::now();
    let error = crib.call(Call::tool("git__echo").timeout(3 * SECOND)).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 3));
    sleep(10 * SECOND).await;
    crib.call(Call::tool("git__echo").timeout(SECOND)).await.unwrap();
    assert_eq!(fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_servers_own_limit_holds_however_patient_the_caller_is() {
    let fake = Fake::new();
    let limits = Limits { call_timeout: 5 * SECOND, ..Limits::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(limits)).build().unwrap();
    let before = Instant::now();
    let error = crib.call(on("git", "hang").timeout(500 * SECOND)).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 5));
    assert_eq!(error.advice(), "raise `servers.git.limits.call-timeout`");
    let slow = |millis: u64| with("git", "slow", &json!({ "ms": millis }));
    crib.call(slow(4_900)).await.unwrap();
    crib.call(slow(5_100)).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_comes_up_fails_its_callers_at_the_start_limit() {
    let fake = Fake::new().usually(Boot::Silent);
    let crib = crib(&[("git", &fake)]);
    let before = Instant::now();
    let error = crib.call(on("git", "echo")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::CouldNotStart, 30));
    breath().await;
    assert_eq!(fake.living().0, 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_turn_counts_towards_the_time_of_the_call() {
    let fake = Fake::new();
    let limits = Limits { in_flight: NonZeroUsize::MIN, call_timeout: 10 * SECOND, ..Limits::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(limits)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 9000})));
    breath().await;
    let before = Instant::now();
    let error = crib.call(on("git", "hang")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 10));
    assert_eq!(error.data()["sent"], "maybe");
}

#[tokio::test(start_paused = true)]
async fn a_tool_may_have_a_limit_of_its_own_and_the_host_has_the_last_word() {
    let fake = Fake::new();
    let tools =
        ToolsSpec { call_timeout: vec![("ha*".parse().unwrap(), 100 * SECOND)], ..ToolsSpec::default() };
    for (host_max, seconds, advice) in [
        (None, 100, "raise `servers.git.tools.call-timeout.\"ha*\"`"),
        (Some(20 * SECOND), 20, "raise `limits.call-timeout-max`"),
    ] {
        let limits = Limits { host_max, ..Limits::default() };
        let spec = spec("git", &fake).limits(limits).tools(tools.clone());
        let crib = Crib::builder().server(spec).build().unwrap();
        let before = Instant::now();
        let error = crib.call(on("git", "hang")).await.unwrap_err();
        assert_eq!((before.elapsed().as_secs(), &*error.advice()), (seconds, advice));
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_own_limit_says_whether_the_call_can_have_run() {
    let fake = Fake::new().usually(Boot::Late(10 * SECOND));
    let crib = crib(&[("git", &fake)]);
    let never = crib.call(on("git", "hang").timeout(SECOND)).await.unwrap_err();
    assert_eq!(
        (never.data()["sent"].clone(), never.to_string()),
        (json!("never"), "no answer within 1s (it was never sent)".to_owned())
    );
    sleep(10 * SECOND).await;
    let maybe = crib.call(on("git", "hang").timeout(SECOND)).await.unwrap_err();
    assert_eq!(
        (maybe.data()["sent"].clone(), maybe.to_string()),
        (json!("maybe"), "no answer within 1s (it may have run)".to_owned())
    );
}
