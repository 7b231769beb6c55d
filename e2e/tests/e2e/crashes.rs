//! Server processes that crash, hang or cannot be started: the errors, the restarts, and the next call.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use test_support::{
    WAIT_LIMIT, call, count_starts, crib, eventually, fake, process, quick_lifecycle, server_id, status, text,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::model::exit_report::ProcessExit;
use toolcrib::{Crib, Delivery, Error, ErrorKind, FailureClass, Lifecycle, Outcome, ServerState};

/// Starts `count` calls that never end, and waits until all of them are in flight.
async fn hang(crib: &Crib, count: usize) -> JoinSet<Result<Outcome, Error>> {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let crib = crib.clone();
        calls.spawn(async move { call(&crib, "fake", "hang", &json!({})).await });
    }
    eventually("all calls are in flight", || status(crib, "fake").in_flight == count).await;
    calls
}

async fn pid(crib: &Crib) -> u32 {
    text(crib, "fake", "pid", &json!({})).await.parse().unwrap()
}

#[tokio::test]
async fn crash_during_a_call_reports_exit_status_and_stderr() {
    let crib = crib([fake!("fake")]);
    let error = call(&crib, "fake", "crash", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!error.is_not_sent());
    let report = error.exit_report().unwrap();
    assert_eq!(report.exit, Some(ProcessExit::Status(101)));
    assert_eq!(report.stderr, ["thread panicked", "crashing on purpose"]);
    assert!(error.to_string().contains("exit status 101"), "{error}");
    assert!(error.to_string().contains("crashing on purpose"), "{error}");
    assert_eq!(error.data()["stderr"][1], "crashing on purpose");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn kill_fails_the_call_and_the_next_call_restarts_the_server() {
    let crib = crib([fake!("fake")]);
    let first = pid(&crib).await;
    let mut calls = hang(&crib, 1).await;
    process::kill(first);
    let error = calls.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("killed by SIGKILL"), "{error}");
    let second = pid(&crib).await;
    assert_ne!(first, second);
    assert_eq!((status(&crib, "fake").restarts, status(&crib, "fake").generation), (1, 2));
    assert!(!process::is_alive(first));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn kill_fails_all_calls_in_flight_immediately() {
    let crib = crib([fake!("fake")]);
    let server = pid(&crib).await;
    let calls = hang(&crib, 20).await;
    let killed = Instant::now();
    process::kill(server);
    let outcomes = timeout(WAIT_LIMIT, calls.join_all()).await.expect("all calls end");
    assert!(
        outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost))
    );
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn crash_with_several_calls_costs_one_restart() {
    let crib = crib([fake!("fake")]);
    let server = pid(&crib).await;
    let calls = hang(&crib, 6).await;
    process::kill(server);
    calls.join_all().await;
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "back"})).await, "back");
    let status = status(&crib, "fake");
    assert_eq!((status.restarts, status.restarts_left, status.state), (1, 4, ServerState::Ready));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn call_in_flight_is_never_run_twice() {
    for _ in 0..10 {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("effects");
        let crib = crib([fake!("fake")]);
        pid(&crib).await;
        // The server runs one call and crashes while a batch larger than its pipe is being written to it.
        let crashing = json!({"file": file.to_str().unwrap(), "then": "crash"});
        let bulk = json!({"text": "x".repeat(200_000)});
        let mut calls = JoinSet::new();
        for number in 0..16 {
            let crib = crib.clone();
            let bulk = bulk.clone();
            let crashing = crashing.clone();
            calls.spawn(async move {
                match number {
                    3 => call(&crib, "fake", "count", &crashing)
                        .await
                        .map_err(|error| (error.kind(), error.is_not_sent())),
                    _ => call(&crib, "fake", "echo", &bulk)
                        .await
                        .map_err(|error| (error.kind(), error.is_not_sent())),
                }
            });
        }
        let outcomes = calls.join_all().await;
        assert!(outcomes.contains(&Err((ErrorKind::Lost, false))), "{outcomes:?}");
        assert_eq!(count_starts(&file), 1, "the call ran once");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn call_that_could_not_be_written_goes_to_the_next_process() {
    let crib = crib([fake!("fake", "--ignore-eof")]);
    let first = pid(&crib).await;
    assert_eq!(text(&crib, "fake", "close_stdin", &json!({})).await, "closed");
    // The read in progress gets one more line; writes fail after that.
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "last line"})).await, "last line");
    assert_ne!(timeout(WAIT_LIMIT, pid(&crib)).await.unwrap(), first);
    assert!(!process::is_alive(first));
    assert_eq!(status(&crib, "fake").restarts, 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn exit_at_start_fails_calls_after_the_restart_budget() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--exit-at-start", "1000", "--count-file", count.to_str().unwrap());
    let crib = crib([spec.lifecycle(quick_lifecycle(2))]);
    let error = timeout(WAIT_LIMIT, call(&crib, "fake", "echo", &json!({}))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    let report = error.exit_report().unwrap();
    assert_eq!(report.exit, Some(ProcessExit::Status(3)));
    assert!(report.stderr.last().unwrap().contains("exiting at start on purpose"), "{report:?}");
    let spawned = count_starts(&count);
    for _ in 0..5 {
        let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ejected);
        assert!(error.to_string().contains("exit status 3"), "{error}");
    }
    assert_eq!(count_starts(&count), spawned, "an ejected server is not started");
    assert_eq!(status(&crib, "fake").state, ServerState::Ejected);
    assert!(spawned <= 1 + 2 + 1, "{spawned} starts: one, the budget, and one to detect the era");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn exit_at_handshake_of_a_known_era_starts_one_plus_budget() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let era = toolcrib::spec::EraChoice::Era(toolcrib::protocol::versions::Era::Session);
    let spec = fake!("fake", "--exit-at-handshake", "1000", "--count-file", count.to_str().unwrap()).era(era);
    let crib = crib([spec.lifecycle(quick_lifecycle(3))]);
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("exit status 4"), "{error}");
    assert_eq!(count_starts(&count), 1 + 3);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn restart_revives_an_ejected_server() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let era = toolcrib::spec::EraChoice::Era(toolcrib::protocol::versions::Era::Session);
    let spec = fake!("fake", "--exit-at-start", "2", "--count-file", count.to_str().unwrap()).era(era);
    let crib = crib([spec.lifecycle(quick_lifecycle(1))]);
    assert!(call(&crib, "fake", "echo", &json!({})).await.is_err());
    assert_eq!(call(&crib, "fake", "echo", &json!({})).await.unwrap_err().kind(), ErrorKind::Ejected);
    crib.restart(&server_id("fake")).await.unwrap();
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "revived"})).await, "revived");
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn call_waits_through_two_exits_at_the_handshake() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let era = toolcrib::spec::EraChoice::Era(toolcrib::protocol::versions::Era::Session);
    let spec = fake!("fake", "--exit-at-handshake", "2", "--count-file", count.to_str().unwrap()).era(era);
    let crib = crib([spec]);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "third start"})).await, "third start");
    assert_eq!(count_starts(&count), 3);
    assert_eq!(status(&crib, "fake").restarts, 2);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn server_that_never_answers_the_handshake_is_removed() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--never-answer-handshake", "--count-file", count.to_str().unwrap());
    let lifecycle = Lifecycle { start_timeout: Duration::from_millis(300), ..quick_lifecycle(5) };
    let crib = crib([spec.lifecycle(lifecycle), fake!("other")]);
    let before = process::children(std::process::id());
    let error = timeout(WAIT_LIMIT, call(&crib, "fake", "echo", &json!({}))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("did not come up within 300ms"), "{error}");
    assert!(error.hint().to_string().contains("start-timeout"), "{}", error.hint());
    assert_eq!(count_starts(&count), 1);
    assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
    let other = status(&crib, "other").pid.unwrap();
    let is_ours =
        |pid: &u32| !before.contains(pid) && *pid != other && cmdline(*pid).contains(count.to_str().unwrap());
    eventually("the process has exited", || !process::children(std::process::id()).iter().any(is_ours)).await;
    crib.shutdown(Duration::ZERO).await;
}

fn cmdline(pid: u32) -> String {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .map_or_else(|_| String::new(), |raw| String::from_utf8_lossy(&raw).into_owned())
}

#[tokio::test]
async fn frozen_server_times_out_and_affects_no_other_server() {
    let limits = toolcrib::ServerLimits {
        call_timeout: Duration::from_millis(300),
        ..toolcrib::ServerLimits::default()
    };
    let crib = crib([fake!("fake").limits(limits), fake!("other")]);
    let frozen = pid(&crib).await;
    process::send_signal(frozen, rustix::process::Signal::STOP);
    let error = call(&crib, "fake", "echo", &json!({"text": "?"})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.hint().to_string().contains("call-timeout"), "{}", error.hint());
    assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
    process::send_signal(frozen, rustix::process::Signal::CONT);
    assert_eq!(pid(&crib).await, frozen, "a slow server is not replaced");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn permanently_frozen_server_is_replaced_by_one_restart() {
    let limits = toolcrib::ServerLimits {
        call_timeout: Duration::from_millis(300),
        ..toolcrib::ServerLimits::default()
    };
    let crib = crib([fake!("fake").limits(limits)]);
    let frozen = pid(&crib).await;
    process::send_signal(frozen, rustix::process::Signal::STOP);
    let error = call(&crib, "fake", "echo", &json!({"text": "?"})).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::TimedOut, Delivery::MaybeSent));
    // The wait for the next process counts towards the call timeout, so the first calls may not be sent.
    let next_pid = async {
        loop {
            match call(&crib, "fake", "pid", &json!({})).await {
                Ok(outcome) => return outcome.text().parse::<u32>().unwrap(),
                Err(error) => assert_eq!(error.data()["sent"], "never", "{error}"),
            }
        }
    };
    let next = timeout(WAIT_LIMIT, next_pid).await.unwrap();
    assert_ne!(next, frozen, "no call reaches the frozen process");
    assert_eq!(status(&crib, "fake").last_error.unwrap().class, Some(FailureClass::Hung));
    assert!(!process::is_alive(frozen));
    assert_eq!(status(&crib, "fake").restarts, 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn server_that_closes_stdout_is_removed_and_ejected() {
    use toolcrib::{CommandSpec, ServerSpec};
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let script = "echo $$ >> \"$0\"; exec 1>&-; while :; do sleep 1000; done";
    let command = CommandSpec::new("sh").args(["-c", script]).arg(file.to_str().unwrap());
    let crib = crib([ServerSpec::command(server_id("mute"), command).lifecycle(quick_lifecycle(1))]);
    let error = timeout(WAIT_LIMIT, call(&crib, "mute", "echo", &json!({}))).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.class()), (ErrorKind::CouldNotStart, Some(FailureClass::Crashed)));
    assert!(error.to_string().contains("stdout closed"), "{error}");
    assert_eq!(status(&crib, "mute").state, ServerState::Ejected);
    let pids: Vec<u32> =
        std::fs::read_to_string(&file).unwrap().lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 1 + 1 + 1, "one, the budget, and one to detect the era");
    eventually("all processes have exited", || !pids.iter().any(|pid| process::is_alive(*pid))).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn lost_call_is_retried_only_if_declared_idempotent() {
    for (idempotent, runs) in [(false, 1), (true, 2)] {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("effects");
        let mut spec = fake!("fake");
        if idempotent {
            spec.tools.idempotent.push("cou*".parse().unwrap());
        }
        let crib = crib([spec]);
        let crashing = json!({"file": file.to_str().unwrap(), "then": "crash"});
        let error = call(&crib, "fake", "count", &crashing).await.unwrap_err();
        assert_eq!((error.kind(), error.data()["sent"].clone()), (ErrorKind::Lost, json!("maybe")));
        assert!(error.to_string().ends_with("; the call may have run"), "{error}");
        assert_eq!(count_starts(&file), runs);
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn server_that_cannot_start_is_ejected_with_the_reason() {
    use toolcrib::{CommandSpec, ServerSpec};
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("plain.txt");
    std::fs::write(&file, "not a program").unwrap();
    let script = dir.path().join("script.py");
    process::write_program(&script, "#!/no/such/python3\n");
    let spec =
        |name: &str, command| ServerSpec::command(server_id(name), command).lifecycle(quick_lifecycle(5));
    let crib = crib([
        spec("missing", CommandSpec::new("/no/such/program")),
        spec("plain", CommandSpec::new(file.to_str().unwrap())),
        spec("nowhere", CommandSpec::new("true").cwd("/no/such/folder")),
        spec("script", CommandSpec::new(script.to_str().unwrap())),
        spec("gone", CommandSpec::new("true")),
        spec("parrot", CommandSpec::new("cat")),
        spec("chatter", CommandSpec::new("yes")),
        spec("spelled", CommandSpec::new("no-such-program-anywhere")),
    ]);
    for (server, expected) in [
        ("missing", "the command `/no/such/program` was not found".to_owned()),
        ("plain", format!("`{}` is not executable", file.display())),
        ("nowhere", "the working directory `/no/such/folder` does not exist".to_owned()),
        ("script", "the interpreter `/no/such/python3` of".to_owned()),
        ("gone", "exited immediately with status 0 and no output".to_owned()),
        ("parrot", "echoes its input".to_owned()),
        ("chatter", "lines that are not messages, the first is `y`".to_owned()),
        ("spelled", "`no-such-program-anywhere` was not found on the `PATH`".to_owned()),
    ] {
        let error = timeout(WAIT_LIMIT, call(&crib, server, "echo", &json!({}))).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CouldNotStart, "{server}");
        assert!(error.to_string().contains(&expected), "{server}: {error}");
        assert_eq!(error.server(), Some(&server_id(server)));
        assert_eq!(error.class(), Some(FailureClass::Misconfigured), "{server}");
        assert!(error.hint().to_string().contains(&format!("restart `{server}`")), "{}", error.hint());
        eventually("it is ejected", || status(&crib, server).state == ServerState::Ejected).await;
        let status = status(&crib, server);
        assert_eq!((status.restarts, status.restarts_left, status.generation), (0, 5, 1), "{server}");
        let again = call(&crib, server, "echo", &json!({})).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Ejected);
        assert!(again.to_string().contains(&expected), "{server}: {again}");
    }
    std::fs::write(&script, format!("#!/bin/sh\nexec {}\n", env!("CARGO_BIN_EXE_fake-server"))).unwrap();
    crib.restart(&server_id("script")).await.unwrap();
    assert_eq!(text(&crib, "script", "echo", &json!({"text": "repaired"})).await, "repaired");
    crib.shutdown(Duration::ZERO).await;
}
