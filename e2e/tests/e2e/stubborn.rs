//! Real children that freeze, cling to life or write what is no text: they are seen out, and cost nobody else anything.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::{PATIENCE, call, crib, eventually, fake, process, quick, server_id, starts, status, text};
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::spec::{BreakerSpec, Endpoint};
use toolcrib::{CommandSpec, Crib, ErrorKind, Lifecycle, Limits, Roster, ServerSpec, StateName};

async fn pid(crib: &Crib, server: &str) -> u32 {
    text(crib, server, "pid", &json!({})).await.parse().unwrap()
}

/// The same server, started by a shell script that finds its program in `$0` and `file` in `$1`.
fn behind_shell(mut spec: ServerSpec, script: &str, file: &Path) -> ServerSpec {
    let Endpoint::Command(command) = &mut spec.endpoint else { panic!("a command") };
    let shell = CommandSpec::new("sh").args(["-c", script]).arg(command.program.written());
    *command = shell.arg(file.to_str().unwrap());
    spec
}

/// Our children that were started with `word` on their command line, and what those started.
fn family(word: &str) -> Vec<u32> {
    let has_word = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(word)
    };
    let leaders: Vec<u32> = process::children(std::process::id()).into_iter().filter(has_word).collect();
    leaders.iter().flat_map(|leader| process::children(*leader).into_iter().chain([*leader])).collect()
}

#[tokio::test]
async fn a_start_that_is_called_off_leaves_no_process_whatever_it_ignores() {
    for way in ["stopped", "removed", "dropped"] {
        let dir = TempDir::new().unwrap();
        let count = dir.path().join("starts");
        let count = count.to_str().unwrap();
        let deaf = ["--ignore-eof", "--ignore-term", "--never-answer-handshake", "--grandchild"];
        let crib = crib([fake!("fake", deaf[0], deaf[1], deaf[2], deaf[3], "--count-file", count)]);
        let mut calls = JoinSet::new();
        for _ in 0..8 {
            let crib = crib.clone();
            calls.spawn(async move { call(&crib, "fake", "echo", &json!({})).await.map(drop) });
        }
        eventually("it starts and has a child", || family(count).len() == 2).await;
        let family = family(count);
        let called_off = async {
            match way {
                "stopped" => crib.stop(&server_id("fake")).await.unwrap(),
                "removed" => drop(crib.apply(Roster::default()).await),
                _ => calls.shutdown().await,
            }
        };
        timeout(PATIENCE, called_off).await.unwrap();
        drop(crib);
        eventually("all of it is gone", || !family.iter().any(|pid| process::is_alive(*pid))).await;
        let told = calls.join_all().await;
        assert!(told.iter().all(Result::is_err), "{way}: {told:?}");
        assert_eq!(starts(Path::new(count)), 1, "{way}");
    }
}

#[tokio::test]
async fn a_server_that_takes_its_time_to_stop_delays_nobody_else() {
    let crib = crib([fake!("fake", "--ignore-eof", "--ignore-term"), fake!("other")]);
    let clinging = pid(&crib, "fake").await;
    let offered = crib.list().await.tools().len();
    let stopped = crib.clone();
    let mut stops = JoinSet::from_iter([async move { stopped.stop(&server_id("fake")).await }]);
    eventually("it is being stopped", || status(&crib, "fake").state == StateName::Stopping).await;
    for _ in 0..20 {
        assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
        assert_eq!((crib.status().len(), crib.list().await.tools().len()), (2, offered));
    }
    crib.restart(&server_id("other")).await.unwrap();
    assert!(stops.try_join_next().is_none() && process::is_alive(clinging), "it is not gone yet");
    assert!(stops.join_next().await.unwrap().unwrap().is_ok() && !process::is_alive(clinging));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_leaves_at_the_end_of_its_input_is_not_signalled() {
    let dir = TempDir::new().unwrap();
    let diary = dir.path().join("diary");
    let script = r#"trap 'echo asked >>"$1"' TERM; "$0"; echo left >>"$1""#;
    let crib = crib([behind_shell(fake!("fake"), script, &diary)]);
    pid(&crib, "fake").await;
    crib.stop(&server_id("fake")).await.unwrap();
    assert_eq!(std::fs::read_to_string(&diary).unwrap(), "left\n");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_stays_is_asked_to_leave_before_it_is_killed() {
    let dir = TempDir::new().unwrap();
    let diary = dir.path().join("diary");
    // A job in the background would lose its input.
    let script = r#"exec 3<&0; trap 'echo asked >>"$1"; exit 0' TERM; "$0" --ignore-eof <&3 & wait"#;
    let crib = crib([behind_shell(fake!("fake"), script, &diary)]);
    let server = pid(&crib, "fake").await;
    timeout(PATIENCE, crib.stop(&server_id("fake"))).await.unwrap().unwrap();
    assert_eq!(std::fs::read_to_string(&diary).unwrap(), "asked\n");
    eventually("what it started is gone", || !process::is_alive(server)).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_line_on_stderr_that_is_no_text_ends_neither_the_log_nor_the_server() {
    let script = r#"printf 'before\n\377\376\n\303(\n' >&2; exec "$0""#;
    let crib = crib([behind_shell(fake!("fake"), script, Path::new("."))]);
    let first = pid(&crib, "fake").await;
    for number in 1..=3 {
        text(&crib, "fake", "log", &json!({"text": format!("after {number}")})).await;
    }
    eventually("all is read", || status(&crib, "fake").stderr_tail.len() == 6).await;
    let tail = status(&crib, "fake").stderr_tail;
    assert_eq!(tail, ["before", "\u{fffd}\u{fffd}", "\u{fffd}(", "after 1", "after 2", "after 3"]);
    assert_eq!((pid(&crib, "fake").await, status(&crib, "fake").restarts), (first, 0));
    crib.shutdown(Duration::ZERO).await;
}

/// A server that two timeouts trip.
fn impatient(spec: ServerSpec) -> ServerSpec {
    let breaker = BreakerSpec { failures: 2.try_into().unwrap(), cool_off: Duration::from_millis(1500) };
    let limits = Limits { call_timeout: Duration::from_millis(300), ..Limits::default() };
    spec.limits(limits).lifecycle(Lifecycle { breaker, ..quick(5) })
}

#[tokio::test]
async fn a_process_that_freezes_is_left_alone_and_serves_again_when_it_thaws() {
    let crib = crib([impatient(fake!("fake")), fake!("other")]);
    let frozen = pid(&crib, "fake").await;
    process::send(frozen, Signal::STOP);
    let nothing = json!({});
    let (one, other) =
        tokio::join!(call(&crib, "fake", "echo", &nothing), call(&crib, "fake", "echo", &nothing));
    for outcome in [one, other] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tripped);
    assert!(error.wait().is_some_and(|wait| wait <= Duration::from_millis(1500)), "{:?}", error.wait());
    assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
    process::send(frozen, Signal::CONT);
    eventually("it may be asked again", || status(&crib, "fake").breaker() == "half_open").await;
    assert_eq!(pid(&crib, "fake").await, frozen);
    eventually("it is ready", || status(&crib, "fake").state == StateName::Ready).await;
    assert_eq!((status(&crib, "fake").generation, status(&crib, "fake").restarts), (1, 0));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_process_that_froze_is_replaced_by_a_restart() {
    let crib = crib([fake!("fake")]);
    let frozen = pid(&crib, "fake").await;
    process::send(frozen, Signal::STOP);
    timeout(PATIENCE, crib.restart(&server_id("fake"))).await.unwrap().unwrap();
    assert!(!process::is_alive(frozen) && pid(&crib, "fake").await != frozen);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_caller_who_gives_up_while_a_process_does_not_read_leaves_no_half_line() {
    let crib = crib([fake!("fake")]);
    let frozen = pid(&crib, "fake").await;
    for megabytes in 1..=3 {
        process::send(frozen, Signal::STOP);
        let large = json!({"text": "x".repeat(megabytes << 20)});
        let given_up = timeout(Duration::from_millis(100), call(&crib, "fake", "echo", &large)).await;
        assert!(given_up.is_err() && status(&crib, "fake").in_flight == 0);
        process::send(frozen, Signal::CONT);
        let answer = timeout(PATIENCE, pid(&crib, "fake")).await;
        assert_eq!(answer, Ok(frozen), "the line after it is understood");
    }
    let cancelled: Value = serde_json::from_str(&text(&crib, "fake", "cancelled", &json!({})).await).unwrap();
    assert_eq!(cancelled.as_array().unwrap().len(), 3, "{cancelled}");
    crib.shutdown(Duration::ZERO).await;
}
