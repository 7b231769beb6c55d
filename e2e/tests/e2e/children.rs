//! Real children that live: what they are given, how they start, how they leave, and that nothing is left of them.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use test_support::{PATIENCE, call, crib, eventually, fake, process, quick, server_id, starts, status, text};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::{KeepAlive, Lifecycle, StateName};

async fn pid(crib: &toolcrib::Crib) -> u32 {
    text(crib, "fake", "pid", &json!({})).await.parse().unwrap()
}

#[tokio::test]
async fn the_environment_is_built_and_not_inherited() {
    // The tests themselves run under cargo, which sets variables that no server has asked for.
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
async fn no_file_that_was_opened_here_reaches_a_child() {
    let _held = std::fs::File::open("/dev/null").unwrap();
    let crib = crib([fake!("fake"), fake!("other")]);
    text(&crib, "other", "pid", &json!({})).await;
    let child = pid(&crib).await;
    // Not even those that whoever started us passed on without asking.
    assert_eq!(process::files(child), [0, 1, 2]);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn sixty_four_first_callers_share_one_process() {
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
    assert_eq!(starts(&count), 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_dies_on_the_probe_costs_one_respawn_and_no_restart() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--era", "dies-on-probe", "--count-file", count.to_str().unwrap());
    let first = toolcrib::Crib::builder().server(spec.clone()).state_dir(dir.path()).build().unwrap();
    assert_eq!(text(&first, "fake", "echo", &json!({"text": "hi"})).await, "hi");
    assert_eq!((starts(&count), status(&first, "fake").restarts), (2, 0));
    first.shutdown(Duration::ZERO).await;
    let second = toolcrib::Crib::builder().server(spec).state_dir(dir.path()).build().unwrap();
    assert_eq!(text(&second, "fake", "echo", &json!({"text": "hi"})).await, "hi");
    assert_eq!(starts(&count), 3, "the verdict is remembered");
    second.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_is_silent_on_the_probe_is_offered_a_session_on_the_same_pipe() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let crib = crib([fake!("fake", "--era", "silent-on-probe", "--count-file", count.to_str().unwrap())]);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "hi"})).await, "hi");
    assert_eq!(starts(&count), 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn every_era_of_server_is_found_out_and_spoken() {
    for (era, revision) in [("session", "2025-11-25"), ("stateless", "2026-07-28"), ("both", "2026-07-28")] {
        let crib = crib([fake!("fake", "--era", era)]);
        assert_eq!(text(&crib, "fake", "echo", &json!({"text": era})).await, era);
        let status = status(&crib, "fake");
        assert_eq!(status.protocol.map(toolcrib::wire::revision::Revision::as_str), Some(revision), "{era}");
        assert!(status.server_info.is_some(), "{era}");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn sixteen_calls_run_at_the_same_time() {
    let crib = crib([fake!("fake")]);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "awake"})).await, "awake");
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..16 {
        let crib = crib.clone();
        calls.spawn(async move { text(&crib, "fake", "sleep", &json!({"ms": 200})).await });
    }
    calls.join_all().await;
    assert!(began.elapsed() < Duration::from_millis(1600), "{:?}", began.elapsed());
    let peak: usize = text(&crib, "fake", "peak", &json!({})).await.parse().unwrap();
    assert!(peak >= 12, "the server saw {peak} calls at a time");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_slow_server_does_not_delay_another() {
    let slow = fake!("slow", "--start-delay-ms", "3000");
    let crib = crib([slow, fake!("fake")]);
    let waiting = crib.clone();
    let first = JoinSet::from_iter([async move { text(&waiting, "slow", "pid", &json!({})).await }]);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "quick"})).await, "quick");
    assert_eq!(status(&crib, "slow").state, StateName::Starting, "the slow one is still starting");
    drop(first);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn whatever_it_ignores_a_server_is_gone_after_a_stop_and_its_group_with_it() {
    let crib = crib([fake!("fake", "--ignore-eof", "--ignore-term", "--grandchild")]);
    let (child, grandchild) = (pid(&crib).await, text(&crib, "fake", "grandchild", &json!({})).await);
    let grandchild: u32 = grandchild.parse().unwrap();
    assert!(process::is_alive(child) && process::is_alive(grandchild));
    timeout(Duration::from_secs(10), crib.stop(&server_id("fake"))).await.unwrap().unwrap();
    assert!(!process::is_alive(child));
    eventually("the grandchild is gone", || !process::is_alive(grandchild)).await;
    assert_eq!(status(&crib, "fake").state, StateName::Asleep);
    assert_ne!(pid(&crib).await, child, "the next call wakes a new one");
    timeout(PATIENCE, crib.shutdown(Duration::ZERO)).await.unwrap();
}

#[tokio::test]
async fn what_a_server_leaves_in_its_group_ends_with_it() {
    let crib = crib([fake!("fake", "--grandchild")]);
    let grandchild: u32 = text(&crib, "fake", "grandchild", &json!({})).await.parse().unwrap();
    assert!(process::is_alive(grandchild));
    let began = Instant::now();
    let error = call(&crib, "fake", "exit", &json!({"code": 7})).await.unwrap_err();
    // The grandchild holds the pipes open; the death is noticed all the same.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(error.to_string().contains("exit status 7"), "{error}");
    eventually("the grandchild is gone", || !process::is_alive(grandchild)).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn dropping_a_crib_leaves_no_process() {
    let crib = crib([fake!("fake", "--ignore-eof", "--ignore-term", "--grandchild"), fake!("other")]);
    let mut pids = vec![pid(&crib).await];
    pids.push(text(&crib, "fake", "grandchild", &json!({})).await.parse().unwrap());
    pids.push(text(&crib, "other", "pid", &json!({})).await.parse().unwrap());
    drop(crib);
    eventually("all are gone", || !pids.iter().any(|pid| process::is_alive(*pid))).await;
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
    test_support::wait_until("both are gone", || !pids.iter().any(|pid| process::is_alive(*pid)));
}

#[tokio::test]
async fn a_caller_who_gives_up_during_a_start_leaves_nothing_behind() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..quick(5) };
    let spec = fake!("fake", "--start-delay-ms", "300", "--count-file", count.to_str().unwrap());
    let crib = crib([spec.lifecycle(lifecycle)]);
    assert!(timeout(Duration::from_millis(100), call(&crib, "fake", "pid", &json!({}))).await.is_err());
    eventually("it started once and went to sleep again", || {
        status(&crib, "fake").generation == 1 && status(&crib, "fake").state == StateName::Asleep
    })
    .await;
    assert_eq!(starts(&count), 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn an_idle_server_sleeps_after_its_keep_alive_and_a_call_in_flight_keeps_it() {
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::from_millis(100)), ..quick(5) };
    let crib = crib([fake!("fake").lifecycle(lifecycle)]);
    let first = pid(&crib).await;
    assert_eq!(text(&crib, "fake", "sleep", &json!({"ms": 400})).await, "slept");
    assert!(process::is_alive(first));
    eventually("it sleeps", || status(&crib, "fake").state == StateName::Asleep).await;
    assert!(!process::is_alive(first));
    assert_ne!(pid(&crib).await, first);
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_calls_under_way() {
    let crib = crib([fake!("fake")]);
    let child = pid(&crib).await;
    let calling = crib.clone();
    let mut calls =
        JoinSet::from_iter([async move { text(&calling, "fake", "sleep", &json!({"ms": 300})).await }]);
    eventually("it is in flight", || status(&crib, "fake").in_flight == 1).await;
    crib.shutdown(PATIENCE).await;
    assert_eq!(calls.join_next().await.unwrap().unwrap(), "slept");
    assert!(!process::is_alive(child));
    let refused = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(refused.kind(), toolcrib::ErrorKind::ShuttingDown);
}

/// Starts the fake server behind a shell that first leaves a noisy process outside of its group.
const NOISY: &str = r#"setsid sh -c 'i=0; while [ $i -lt 400 ]; do echo noise >&2; sleep 0.02; i=$((i+1)); done' & exec "$0""#;

#[tokio::test]
async fn a_noisy_descendant_outside_the_group_does_not_hold_a_shutdown_up() {
    let mut spec = fake!("fake");
    let toolcrib::spec::Endpoint::Command(command) = &mut spec.endpoint else { panic!("a command") };
    *command = toolcrib::CommandSpec::new("sh").arg("-c").arg(NOISY).arg(command.program.written());
    let crib = crib([spec]);
    text(&crib, "fake", "pid", &json!({})).await;
    // The noise goes on for longer than this.
    timeout(Duration::from_secs(7), crib.shutdown(Duration::ZERO)).await.unwrap();
}
