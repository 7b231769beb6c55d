//! Server processes that freeze, do not stop or write invalid text: they are stopped and affect no other server.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::{
    WAIT_LIMIT, call, count_starts, crib, eventually, fake, process, quick_lifecycle, server_id, status, text,
};
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::spec::{BreakerSpec, Endpoint};
use toolcrib::{CommandSpec, Crib, ErrorKind, Lifecycle, Roster, ServerLimits, ServerSpec, ServerState};

async fn pid(crib: &Crib, server: &str) -> u32 {
    text(crib, server, "pid", &json!({})).await.parse().unwrap()
}

/// Returns the same server, started by a shell script with its program in `$0` and `file` in `$1`.
fn behind_shell(mut spec: ServerSpec, script: &str, file: &Path) -> ServerSpec {
    let Endpoint::Command(command) = &mut spec.endpoint else { panic!("a command") };
    let shell = CommandSpec::new("sh").args(["-c", script]).arg(command.program.source());
    *command = shell.arg(file.to_str().unwrap());
    spec
}

/// Returns our children whose command line contains `text`, and their children.
fn process_tree(text: &str) -> Vec<u32> {
    let has_text = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    };
    let leaders: Vec<u32> = process::children(std::process::id()).into_iter().filter(has_text).collect();
    leaders.iter().flat_map(|leader| process::children(*leader).into_iter().chain([*leader])).collect()
}

#[tokio::test]
async fn aborted_start_leaves_no_process() {
    for action in ["stopped", "removed", "dropped"] {
        let dir = TempDir::new().unwrap();
        let count = dir.path().join("starts");
        let count = count.to_str().unwrap();
        let flags = ["--ignore-eof", "--ignore-term", "--never-answer-handshake", "--grandchild"];
        let crib = crib([fake!("fake", flags[0], flags[1], flags[2], flags[3], "--count-file", count)]);
        let mut calls = JoinSet::new();
        for _ in 0..8 {
            let crib = crib.clone();
            calls.spawn(async move { call(&crib, "fake", "echo", &json!({})).await.map(drop) });
        }
        eventually("it starts and has a child", || process_tree(count).len() == 2).await;
        let tree = process_tree(count);
        let abort = async {
            match action {
                "stopped" => crib.stop(&server_id("fake")).await.unwrap(),
                "removed" => drop(crib.apply_roster(Roster::default()).await),
                _ => calls.shutdown().await,
            }
        };
        timeout(WAIT_LIMIT, abort).await.unwrap();
        drop(crib);
        eventually("the tree has exited", || !tree.iter().any(|pid| process::is_alive(*pid))).await;
        let outcomes = calls.join_all().await;
        assert!(outcomes.iter().all(Result::is_err), "{action}: {outcomes:?}");
        assert_eq!(count_starts(Path::new(count)), 1, "{action}");
    }
}

#[tokio::test]
async fn slow_stop_does_not_delay_other_servers() {
    let crib = crib([fake!("fake", "--ignore-eof", "--ignore-term"), fake!("other")]);
    let stopping = pid(&crib, "fake").await;
    let tools = crib.list().await.tools().len();
    let stopped = crib.clone();
    let mut stops = JoinSet::from_iter([async move { stopped.stop(&server_id("fake")).await }]);
    eventually("it is being stopped", || status(&crib, "fake").state == ServerState::Stopping).await;
    for _ in 0..20 {
        assert_eq!(text(&crib, "other", "echo", &json!({"text": "hi"})).await, "hi");
        assert_eq!((crib.status().len(), crib.list().await.tools().len()), (2, tools));
    }
    crib.restart(&server_id("other")).await.unwrap();
    assert!(stops.try_join_next().is_none() && process::is_alive(stopping), "still stopping");
    assert!(stops.join_next().await.unwrap().unwrap().is_ok() && !process::is_alive(stopping));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn server_that_exits_at_eof_gets_no_signal() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let script = r#"trap 'echo SIGTERM >>"$1"' TERM; "$0"; echo exited >>"$1""#;
    let crib = crib([behind_shell(fake!("fake"), script, &log)]);
    pid(&crib, "fake").await;
    crib.stop(&server_id("fake")).await.unwrap();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "exited\n");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn server_that_ignores_eof_gets_sigterm_before_sigkill() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    // A background job would lose its input.
    let script = r#"exec 3<&0; trap 'echo SIGTERM >>"$1"; exit 0' TERM; "$0" --ignore-eof <&3 & wait"#;
    let crib = crib([behind_shell(fake!("fake"), script, &log)]);
    let server = pid(&crib, "fake").await;
    timeout(WAIT_LIMIT, crib.stop(&server_id("fake"))).await.unwrap().unwrap();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "SIGTERM\n");
    eventually("its child has exited", || !process::is_alive(server)).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn invalid_utf8_on_stderr_affects_neither_log_nor_server() {
    let script = r#"printf 'before\n\377\376\n\303(\n' >&2; exec "$0""#;
    let crib = crib([behind_shell(fake!("fake"), script, Path::new("."))]);
    let first = pid(&crib, "fake").await;
    for number in 1..=3 {
        text(&crib, "fake", "log", &json!({"text": format!("after {number}")})).await;
    }
    eventually("all lines are read", || status(&crib, "fake").stderr_tail.len() == 6).await;
    let tail = status(&crib, "fake").stderr_tail;
    assert_eq!(tail, ["before", "\u{fffd}\u{fffd}", "\u{fffd}(", "after 1", "after 2", "after 3"]);
    assert_eq!((pid(&crib, "fake").await, status(&crib, "fake").restarts), (first, 0));
    crib.shutdown(Duration::ZERO).await;
}

/// Returns the spec with a breaker that opens after two timeouts.
fn with_short_limits(spec: ServerSpec) -> ServerSpec {
    let breaker = BreakerSpec { failures: 2.try_into().unwrap(), cool_off: Duration::from_millis(1500) };
    let limits = ServerLimits { call_timeout: Duration::from_millis(300), ..ServerLimits::default() };
    spec.limits(limits).lifecycle(Lifecycle { breaker, ..quick_lifecycle(5) })
}

#[tokio::test]
async fn briefly_frozen_server_serves_again_when_resumed() {
    let crib = crib([with_short_limits(fake!("fake")), fake!("other")]);
    let frozen = pid(&crib, "fake").await;
    process::send_signal(frozen, Signal::STOP);
    let arguments = json!({});
    let (first, second) =
        tokio::join!(call(&crib, "fake", "echo", &arguments), call(&crib, "fake", "echo", &arguments));
    for outcome in [first, second] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tripped);
    assert!(
        error.retry_in().is_some_and(|wait| wait <= Duration::from_millis(1500)),
        "{:?}",
        error.retry_in()
    );
    assert_eq!(text(&crib, "other", "echo", &json!({"text": "hi"})).await, "hi");
    process::send_signal(frozen, Signal::CONT);
    eventually("the breaker is half open", || status(&crib, "fake").breaker() == "half_open").await;
    assert_eq!(pid(&crib, "fake").await, frozen);
    eventually("it is ready", || status(&crib, "fake").state == ServerState::Ready).await;
    assert_eq!((status(&crib, "fake").generation, status(&crib, "fake").restarts), (1, 0));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn restart_replaces_a_frozen_process() {
    let crib = crib([fake!("fake")]);
    let frozen = pid(&crib, "fake").await;
    process::send_signal(frozen, Signal::STOP);
    timeout(WAIT_LIMIT, crib.restart(&server_id("fake"))).await.unwrap().unwrap();
    assert!(!process::is_alive(frozen) && pid(&crib, "fake").await != frozen);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn cancelled_call_to_a_frozen_process_leaves_no_partial_line() {
    let crib = crib([fake!("fake")]);
    let frozen = pid(&crib, "fake").await;
    for megabytes in 1..=3 {
        process::send_signal(frozen, Signal::STOP);
        let large = json!({"text": "x".repeat(megabytes << 20)});
        let cancelled = timeout(Duration::from_millis(100), call(&crib, "fake", "echo", &large)).await;
        assert!(cancelled.is_err() && status(&crib, "fake").in_flight == 0);
        process::send_signal(frozen, Signal::CONT);
        let answer = timeout(WAIT_LIMIT, pid(&crib, "fake")).await;
        assert_eq!(answer, Ok(frozen), "the next line is intact");
    }
    let cancelled: Value = serde_json::from_str(&text(&crib, "fake", "cancelled", &json!({})).await).unwrap();
    assert_eq!(cancelled.as_array().unwrap().len(), 3, "{cancelled}");
    crib.shutdown(Duration::ZERO).await;
}
