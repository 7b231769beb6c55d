//! Server processes that behave: what they inherit, how they start and stop, and that nothing is left of them.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use test_support::{
    WAIT_LIMIT, call, count_starts, crib, eventually, fake, process, quick_lifecycle, server_id, status, text,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::{KeepAlive, Lifecycle, ServerState};

async fn pid(crib: &toolcrib::Crib) -> u32 {
    text(crib, "fake", "pid", &json!({})).await.parse().unwrap()
}

#[tokio::test]
async fn environment_is_not_inherited() {
    // Cargo sets variables that no server asked for.
    let present = ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"];
    assert!(present.iter().all(|name| std::env::var(name).is_ok()), "run this through cargo");
    let mut spec = fake!("fake");
    let toolcrib::spec::Endpoint::Command(command) = &mut spec.endpoint else { panic!("a command") };
    *command = command.clone().env("GIVEN", "yes");
    command.inherit_env.push("CARGO_PKG_NAME".to_owned());
    let crib = crib([spec]);
    let env = async |name: &str| text(&crib, "fake", "env", &json!({"name": name})).await;
    assert_eq!(env("CARGO_MANIFEST_DIR").await, "(unset)");
    assert_eq!(env("CARGO_PKG_NAME").await, "e2e");
    assert_eq!(env("GIVEN").await, "yes");
    assert_eq!(env("PATH").await, std::env::var("PATH").unwrap());
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn open_files_are_not_inherited() {
    let _held = std::fs::File::open("/dev/null").unwrap();
    let crib = crib([fake!("fake"), fake!("other")]);
    text(&crib, "other", "pid", &json!({})).await;
    let child = pid(&crib).await;
    // Neither those that the test program inherited itself.
    assert_eq!(process::open_files(child), [0, 1, 2]);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn concurrent_first_calls_start_one_process() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let crib = crib([fake!("fake", "--start-delay-ms", "200", "--count-file", count.to_str().unwrap())]);
    let mut calls = JoinSet::new();
    for number in 0..64 {
        let crib = crib.clone();
        calls.spawn(async move { text(&crib, "fake", "echo", &json!({"text": number.to_string()})).await });
    }
    let mut answers: Vec<u32> = calls.join_all().await.iter().map(|text| text.parse().unwrap()).collect();
    answers.sort_unstable();
    assert_eq!(answers, (0..64).collect::<Vec<_>>());
    assert_eq!(count_starts(&count), 1);
    crib.shutdown(Duration::ZERO).await;
}

/// Calls `echo` as a stateless client, for which a server is probed first, and returns the text.
async fn echo_stateless(crib: &toolcrib::Crib, text: &str) -> String {
    let mut client = toolcrib::Client::without_capabilities();
    client.era = toolcrib::Era::Stateless;
    let call = toolcrib::Call::tool_on("fake".parse().unwrap(), "echo").arguments(&json!({"text": text}));
    crib.call(call.client(client)).await.unwrap().text()
}

#[tokio::test]
async fn server_that_exits_on_the_probe_is_started_once_more() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--era", "exits-on-probe", "--count-file", count.to_str().unwrap());
    let first = toolcrib::Crib::builder().server(spec.clone()).state_dir(dir.path()).build().unwrap();
    assert_eq!(echo_stateless(&first, "hi").await, "hi");
    assert_eq!((count_starts(&count), status(&first, "fake").restarts), (2, 0));
    first.shutdown(Duration::ZERO).await;
    let second = toolcrib::Crib::builder().server(spec).state_dir(dir.path()).build().unwrap();
    assert_eq!(echo_stateless(&second, "hi").await, "hi");
    assert_eq!(count_starts(&count), 4, "an exit may have been a crash, so the next gateway tries again");
    second.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn server_that_ignores_the_probe_gets_initialize() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let crib = crib([fake!("fake", "--era", "silent-on-probe", "--count-file", count.to_str().unwrap())]);
    assert_eq!(echo_stateless(&crib, "hi").await, "hi");
    assert_eq!(count_starts(&count), 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn era_of_a_server_is_detected() {
    for (era, revision) in [("session", "2025-11-25"), ("stateless", "2026-07-28"), ("both", "2025-11-25")] {
        let crib = crib([fake!("fake", "--era", era)]);
        assert_eq!(text(&crib, "fake", "echo", &json!({"text": era})).await, era);
        let status = status(&crib, "fake");
        assert_eq!(
            status.protocol.map(toolcrib::protocol::versions::Revision::as_str),
            Some(revision),
            "{era}"
        );
        assert!(status.server_info.is_some(), "{era}");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn sixteen_calls_run_at_the_same_time() {
    let crib = crib([fake!("fake")]);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "awake"})).await, "awake");
    let started = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..16 {
        let crib = crib.clone();
        calls.spawn(async move { text(&crib, "fake", "sleep", &json!({"ms": 200})).await });
    }
    calls.join_all().await;
    assert!(started.elapsed() < Duration::from_millis(1600), "{:?}", started.elapsed());
    let peak: usize = text(&crib, "fake", "peak", &json!({})).await.parse().unwrap();
    assert!(peak >= 12, "the server saw {peak} calls at a time");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn slow_start_does_not_delay_other_servers() {
    let slow = fake!("slow", "--start-delay-ms", "3000");
    let crib = crib([slow, fake!("fake")]);
    let waiting = crib.clone();
    let first = JoinSet::from_iter([async move { text(&waiting, "slow", "pid", &json!({})).await }]);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "quick"})).await, "quick");
    assert_eq!(status(&crib, "slow").state, ServerState::Starting, "still starting");
    drop(first);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn stop_kills_a_server_that_ignores_eof_and_sigterm() {
    let crib = crib([fake!("fake", "--ignore-eof", "--ignore-term", "--grandchild")]);
    let child = pid(&crib).await;
    let grandchild = text(&crib, "fake", "grandchild", &json!({})).await;
    let grandchild: u32 = grandchild.parse().unwrap();
    assert!(process::is_alive(child) && process::is_alive(grandchild));
    timeout(Duration::from_secs(10), crib.stop(&server_id("fake"))).await.unwrap().unwrap();
    assert!(!process::is_alive(child));
    eventually("the grandchild has exited", || !process::is_alive(grandchild)).await;
    assert_eq!(status(&crib, "fake").state, ServerState::Asleep);
    assert_ne!(pid(&crib).await, child, "the next call starts a new process");
    timeout(WAIT_LIMIT, crib.shutdown(Duration::ZERO)).await.unwrap();
}

#[tokio::test]
async fn process_group_ends_with_the_server() {
    let crib = crib([fake!("fake", "--grandchild")]);
    let grandchild: u32 = text(&crib, "fake", "grandchild", &json!({})).await.parse().unwrap();
    assert!(process::is_alive(grandchild));
    let started = Instant::now();
    let error = call(&crib, "fake", "exit", &json!({"code": 7})).await.unwrap_err();
    // The exit is noticed although the grandchild keeps the pipes open.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(error.to_string().contains("exit status 7"), "{error}");
    eventually("the grandchild has exited", || !process::is_alive(grandchild)).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn dropping_a_crib_leaves_no_process() {
    let crib = crib([fake!("fake", "--ignore-eof", "--ignore-term", "--grandchild"), fake!("other")]);
    let mut pids = vec![pid(&crib).await];
    pids.push(text(&crib, "fake", "grandchild", &json!({})).await.parse().unwrap());
    pids.push(text(&crib, "other", "pid", &json!({})).await.parse().unwrap());
    drop(crib);
    eventually("all processes have exited", || !pids.iter().any(|pid| process::is_alive(*pid))).await;
}

#[test]
fn dropping_the_runtime_leaves_no_process() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pids = runtime.block_on(async {
        let crib = crib([fake!("fake", "--ignore-eof", "--ignore-term", "--grandchild")]);
        let pids = [pid(&crib).await, text(&crib, "fake", "grandchild", &json!({})).await.parse().unwrap()];
        std::mem::forget(crib);
        pids
    });
    drop(runtime);
    test_support::wait_until("both processes have exited", || {
        !pids.iter().any(|pid| process::is_alive(*pid))
    });
}

#[tokio::test]
async fn call_cancelled_during_a_start_leaves_nothing_behind() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..quick_lifecycle(5) };
    let spec = fake!("fake", "--start-delay-ms", "300", "--count-file", count.to_str().unwrap());
    let crib = crib([spec.lifecycle(lifecycle)]);
    assert!(timeout(Duration::from_millis(100), call(&crib, "fake", "pid", &json!({}))).await.is_err());
    eventually("the server started once and went to sleep", || {
        status(&crib, "fake").generation == 1 && status(&crib, "fake").state == ServerState::Asleep
    })
    .await;
    assert_eq!(count_starts(&count), 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn keep_alive_counts_from_the_last_call() {
    let lifecycle =
        Lifecycle { keep_alive: KeepAlive::For(Duration::from_millis(100)), ..quick_lifecycle(5) };
    let crib = crib([fake!("fake").lifecycle(lifecycle)]);
    let first = pid(&crib).await;
    assert_eq!(text(&crib, "fake", "sleep", &json!({"ms": 400})).await, "slept");
    assert!(process::is_alive(first));
    eventually("the server sleeps", || status(&crib, "fake").state == ServerState::Asleep).await;
    assert!(!process::is_alive(first));
    assert_ne!(pid(&crib).await, first);
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn shutdown_waits_for_calls_in_flight() {
    let crib = crib([fake!("fake")]);
    let child = pid(&crib).await;
    let calling = crib.clone();
    let mut calls =
        JoinSet::from_iter([async move { text(&calling, "fake", "sleep", &json!({"ms": 300})).await }]);
    eventually("the call is in flight", || status(&crib, "fake").in_flight == 1).await;
    crib.shutdown(WAIT_LIMIT).await;
    assert_eq!(calls.join_next().await.unwrap().unwrap(), "slept");
    assert!(!process::is_alive(child));
    let refused = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(refused.kind(), toolcrib::ErrorKind::ShuttingDown);
}

/// A shell script that starts a process outside of the group, which writes to stderr, and then the server.
const NOISY: &str = r#"setsid sh -c 'i=0; while [ $i -lt 400 ]; do echo noise >&2; sleep 0.02; i=$((i+1)); done' & exec "$0""#;

#[tokio::test]
async fn stderr_of_a_descendant_does_not_delay_shutdown() {
    let mut spec = fake!("fake");
    let toolcrib::spec::Endpoint::Command(command) = &mut spec.endpoint else { panic!("a command") };
    *command = toolcrib::CommandSpec::new("sh").arg("-c").arg(NOISY).arg(command.program.source());
    let crib = crib([spec]);
    text(&crib, "fake", "pid", &json!({})).await;
    // The descendant writes for longer than this.
    timeout(Duration::from_secs(7), crib.shutdown(Duration::ZERO)).await.unwrap();
}
