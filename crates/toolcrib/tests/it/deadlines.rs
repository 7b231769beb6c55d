//! Timeouts of callers, servers and tools.

use std::num::NonZeroUsize;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use toolcrib::spec::ToolsSpec;
use toolcrib::{Call, Crib, ErrorKind, ServerLimits, ServerState};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, on, settle, spawn, spec, status, with};

#[tokio::test(start_paused = true)]
async fn call_timeout_cancels_at_the_server() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let before = Instant::now();
    let error = crib.call(on("git", "hang").timeout(3 * SECOND)).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 3));
    settle().await;
    assert_eq!(fake.received("notifications/cancelled").len(), 1);
    assert_eq!((status(&crib, "git").in_flight, status(&crib, "git").leases), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn caller_timeout_does_not_count_for_the_breaker() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    for _ in 0..10 {
        crib.call(on("git", "hang").timeout(SECOND)).await.unwrap_err();
    }
    settle().await;
    assert_eq!(
        (status(&crib, "git").state, status(&crib, "git").consecutive_failures),
        (ServerState::Ready, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn queue_timeout_does_not_count_for_the_breaker() {
    let fake = FakeServer::new();
    let limits =
        ServerLimits { in_flight: NonZeroUsize::MIN, call_timeout: 10 * SECOND, ..ServerLimits::default() };
    let tools =
        ToolsSpec { call_timeout: vec![("slow".parse().unwrap(), 30 * SECOND)], ..ToolsSpec::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(limits).tools(tools)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 20_000})));
    settle().await;
    for _ in 0..8 {
        spawn(&mut calls, &crib, on("git", "echo"));
    }
    let ended = calls.join_all().await;
    let (answered, late): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
    assert_eq!((answered.len(), late.len()), (1, 8));
    assert!(late.into_iter().all(|error| error.unwrap_err().is_not_sent()));
    assert_eq!(
        (status(&crib, "git").state, status(&crib, "git").consecutive_failures),
        (ServerState::Ready, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn server_start_counts_towards_the_call_timeout() {
    let fake = FakeServer::new().default_start(FakeStart::SlowHandshake(10 * SECOND));
    let crib = crib(&[("git", &fake)]);
    let before = Instant::now();
    let error = crib.call(Call::tool("git__echo").timeout(3 * SECOND)).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 3));
    sleep(10 * SECOND).await;
    crib.call(Call::tool("git__echo").timeout(SECOND)).await.unwrap();
    assert_eq!(fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn server_timeout_wins_over_a_longer_caller_timeout() {
    let fake = FakeServer::new();
    let limits = ServerLimits { call_timeout: 5 * SECOND, ..ServerLimits::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(limits)).build().unwrap();
    let before = Instant::now();
    let error = crib.call(on("git", "hang").timeout(500 * SECOND)).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 5));
    assert_eq!(error.hint(), "raise `servers.git.limits.call-timeout`");
    let slow = |millis: u64| with("git", "slow", &json!({ "ms": millis }));
    crib.call(slow(4_900)).await.unwrap();
    crib.call(slow(5_100)).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn start_timeout_fails_the_waiting_calls() {
    let fake = FakeServer::new().default_start(FakeStart::Silent);
    let crib = crib(&[("git", &fake)]);
    let before = Instant::now();
    let error = crib.call(on("git", "echo")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::CouldNotStart, 30));
    settle().await;
    assert_eq!(fake.running_and_peak().0, 0);
}

#[tokio::test(start_paused = true)]
async fn queue_wait_counts_towards_the_call_timeout() {
    let fake = FakeServer::new();
    let limits =
        ServerLimits { in_flight: NonZeroUsize::MIN, call_timeout: 10 * SECOND, ..ServerLimits::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(limits)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 9000})));
    settle().await;
    let before = Instant::now();
    let error = crib.call(on("git", "hang")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 10));
    assert_eq!(error.data()["sent"], "maybe");
}

#[tokio::test(start_paused = true)]
async fn tool_timeout_applies_up_to_the_host_maximum() {
    let fake = FakeServer::new();
    let tools =
        ToolsSpec { call_timeout: vec![("ha*".parse().unwrap(), 100 * SECOND)], ..ToolsSpec::default() };
    for (gateway_call_timeout_max, seconds, hint) in [
        (None, 100, "raise `servers.git.tools.call-timeout.\"ha*\"`"),
        (Some(20 * SECOND), 20, "raise `limits.call-timeout-max`"),
    ] {
        let limits = ServerLimits { gateway_call_timeout_max, ..ServerLimits::default() };
        let spec = spec("git", &fake).limits(limits).tools(tools.clone());
        let crib = Crib::builder().server(spec).build().unwrap();
        let before = Instant::now();
        let error = crib.call(on("git", "hang")).await.unwrap_err();
        assert_eq!((before.elapsed().as_secs(), &*error.hint().to_string()), (seconds, hint));
    }
}

#[tokio::test(start_paused = true)]
async fn caller_timeout_reports_whether_the_call_was_sent() {
    let fake = FakeServer::new().default_start(FakeStart::SlowHandshake(10 * SECOND));
    let crib = crib(&[("git", &fake)]);
    let never = crib.call(on("git", "hang").timeout(SECOND)).await.unwrap_err();
    assert_eq!(
        (never.data()["sent"].clone(), never.to_string()),
        (json!("never"), "no answer within 1s; the call was not sent".to_owned())
    );
    sleep(10 * SECOND).await;
    let maybe = crib.call(on("git", "hang").timeout(SECOND)).await.unwrap_err();
    assert_eq!(
        (maybe.data()["sent"].clone(), maybe.to_string()),
        (json!("maybe"), "no answer within 1s; the call may have run".to_owned())
    );
}

/// A spec with a call timeout of 10 s and a start timeout of 30 s.
fn bounded(fake: &FakeServer) -> Crib {
    let limits = ServerLimits { call_timeout: 10 * SECOND, ..ServerLimits::default() };
    Crib::builder().server(spec("git", fake).limits(limits)).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_restart_counts_towards_the_call_timeout() {
    let fake = FakeServer::new();
    let crib = bounded(&fake);
    crib.call(on("git", "echo")).await.unwrap();
    let fake = fake.default_start(FakeStart::Silent);
    fake.kill();
    settle().await;
    for call in [on("git", "echo"), Call::tool("git__echo")] {
        let before = Instant::now();
        let error = crib.call(call).await.unwrap_err();
        assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 10));
        assert_eq!(error.data()["sent"], "never");
        assert_eq!(error.to_string(), "`git` was not ready within 10s; the call was not sent");
        assert_eq!(error.hint(), "raise `servers.git.limits.call-timeout`");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_and_call_share_the_call_timeout_after_a_crash() {
    let fake = FakeServer::new();
    let crib = bounded(&fake);
    crib.call(on("git", "echo")).await.unwrap();
    let fake = fake.default_start(FakeStart::SlowHandshake(6 * SECOND));
    fake.kill();
    settle().await;
    let before = Instant::now();
    let error = crib.call(on("git", "hang")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 10));
    assert_eq!(error.data()["sent"], "maybe");
    settle().await;
    assert_eq!(status(&crib, "git").consecutive_failures, 0, "the server had the call for 4 s only");
}

#[tokio::test(start_paused = true)]
async fn first_start_has_its_own_time_limit() {
    let fake = FakeServer::new().default_start(FakeStart::SlowHandshake(25 * SECOND));
    let crib = bounded(&fake);
    let before = Instant::now();
    let error = crib.call(on("git", "hang")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 35));
    // A first start that fails and is repeated is bounded by both limits together.
    let fake = FakeServer::new().next_starts(&[FakeStart::Exits, FakeStart::SlowHandshake(29 * SECOND)]);
    let crib = bounded(&fake);
    let before = Instant::now();
    crib.call(on("git", "echo")).await.unwrap();
    assert!(before.elapsed() < 40 * SECOND);
}
