//! Real children that die: who is told what, what it costs, and how the next call fares.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use test_support::{PATIENCE, call, crib, eventually, fake, process, quick, server_id, starts, status, text};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::last_words::Exit;
use toolcrib::{Crib, Error, ErrorKind, FailureClass, Lifecycle, Outcome, Sent, StateName};

/// Starts `count` calls that never end, and waits until the server works on all of them.
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
async fn a_crash_in_the_middle_of_a_call_is_told_with_exit_status_and_stderr() {
    let crib = crib([fake!("fake")]);
    let error = call(&crib, "fake", "crash", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!error.is_unsent());
    let words = error.words().unwrap();
    assert_eq!(words.exit, Some(Exit::Status(101)));
    assert_eq!(words.stderr, ["thread panicked", "the disk is on fire"]);
    assert!(error.to_string().contains("exit status 101"), "{error}");
    assert!(error.to_string().contains("the disk is on fire"), "{error}");
    assert_eq!(error.data()["stderr"][1], "the disk is on fire");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn after_kill_9_the_call_has_a_typed_error_and_the_next_one_succeeds_by_itself() {
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
async fn twenty_calls_in_flight_at_a_kill_are_all_told_within_moments() {
    let crib = crib([fake!("fake")]);
    let victim = pid(&crib).await;
    let calls = hang(&crib, 20).await;
    let killed = Instant::now();
    process::kill(victim);
    let told = timeout(PATIENCE, calls.join_all()).await.expect("everybody is told");
    assert!(told.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost)));
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn six_calls_in_flight_at_one_crash_spend_one_restart() {
    let crib = crib([fake!("fake")]);
    let victim = pid(&crib).await;
    let calls = hang(&crib, 6).await;
    process::kill(victim);
    calls.join_all().await;
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "back"})).await, "back");
    let status = status(&crib, "fake");
    assert_eq!((status.restarts, status.restarts_left, status.state), (1, 4, StateName::Ready));
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_call_that_was_in_flight_is_never_run_twice() {
    for _ in 0..10 {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("effects");
        let crib = crib([fake!("fake")]);
        pid(&crib).await;
        // The server does its deed and dies while more than its pipe holds is on the way to it, in one batch with it.
        let deed = json!({"file": file.to_str().unwrap(), "then": "crash"});
        let bulk = json!({"text": "x".repeat(200_000)});
        let mut calls = JoinSet::new();
        for number in 0..16 {
            let (crib, bulk, deed) = (crib.clone(), bulk.clone(), deed.clone());
            calls.spawn(async move {
                match number {
                    3 => call(&crib, "fake", "count", &deed)
                        .await
                        .map_err(|error| (error.kind(), error.is_unsent())),
                    _ => call(&crib, "fake", "echo", &bulk)
                        .await
                        .map_err(|error| (error.kind(), error.is_unsent())),
                }
            });
        }
        let told = calls.join_all().await;
        assert!(told.contains(&Err((ErrorKind::Lost, false))), "{told:?}");
        assert_eq!(starts(&file), 1, "it was run once");
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_call_that_a_deaf_server_never_got_is_answered_by_the_next_one() {
    let crib = crib([fake!("fake", "--ignore-eof")]);
    let deaf = pid(&crib).await;
    assert_eq!(text(&crib, "fake", "deaf", &json!({})).await, "deaf");
    // The read under way gets one more line; what follows cannot be written any more.
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "last words"})).await, "last words");
    assert_ne!(timeout(PATIENCE, pid(&crib)).await.unwrap(), deaf);
    assert!(!process::is_alive(deaf));
    assert_eq!(status(&crib, "fake").restarts, 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_exits_at_start_fails_its_caller_after_the_budget_and_no_sooner() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--exit-at-start", "1000", "--count-file", count.to_str().unwrap());
    let crib = crib([spec.lifecycle(quick(2))]);
    let error = timeout(PATIENCE, call(&crib, "fake", "echo", &json!({}))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    let words = error.words().unwrap();
    assert_eq!(words.exit, Some(Exit::Status(3)));
    assert!(words.stderr.last().unwrap().contains("no license, no service"), "{words:?}");
    let spawned = starts(&count);
    for _ in 0..5 {
        let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ejected);
        assert!(error.to_string().contains("exit status 3"), "{error}");
    }
    assert_eq!(starts(&count), spawned, "an ejected server is left alone");
    assert_eq!(status(&crib, "fake").state, StateName::Ejected);
    assert!(spawned <= 1 + 2 + 1, "{spawned} spawns: one, the budget, and one for the question of the era");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn with_the_era_known_the_spawns_are_exactly_one_and_the_budget() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let era = toolcrib::spec::EraChoice::Era(toolcrib::wire::revision::Era::Session);
    let spec = fake!("fake", "--exit-at-handshake", "1000", "--count-file", count.to_str().unwrap()).era(era);
    let crib = crib([spec.lifecycle(quick(3))]);
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("exit status 4"), "{error}");
    assert_eq!(starts(&count), 1 + 3);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_restart_revives_an_ejected_server() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let era = toolcrib::spec::EraChoice::Era(toolcrib::wire::revision::Era::Session);
    let spec = fake!("fake", "--exit-at-start", "2", "--count-file", count.to_str().unwrap()).era(era);
    let crib = crib([spec.lifecycle(quick(1))]);
    assert!(call(&crib, "fake", "echo", &json!({})).await.is_err());
    assert_eq!(call(&crib, "fake", "echo", &json!({})).await.unwrap_err().kind(), ErrorKind::Ejected);
    crib.restart(&server_id("fake")).await.unwrap();
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "revived"})).await, "revived");
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_caller_waits_through_two_deaths_at_the_handshake() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let era = toolcrib::spec::EraChoice::Era(toolcrib::wire::revision::Era::Session);
    let spec = fake!("fake", "--exit-at-handshake", "2", "--count-file", count.to_str().unwrap()).era(era);
    let crib = crib([spec]);
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "third time lucky"})).await, "third time lucky");
    assert_eq!(starts(&count), 3);
    assert_eq!(status(&crib, "fake").restarts, 2);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_never_answers_the_handshake_is_given_up_and_removed() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--never-answer-handshake", "--count-file", count.to_str().unwrap());
    let lifecycle = Lifecycle { start_timeout: Duration::from_millis(300), ..quick(5) };
    let crib = crib([spec.lifecycle(lifecycle), fake!("other")]);
    let before = process::children(std::process::id());
    let error = timeout(PATIENCE, call(&crib, "fake", "echo", &json!({}))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("did not come up within 300ms"), "{error}");
    assert!(error.advice().contains("start-timeout"), "{}", error.advice());
    assert_eq!(starts(&count), 1);
    assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
    let other = status(&crib, "other").pid.unwrap();
    let ours =
        |pid: &u32| !before.contains(pid) && *pid != other && cmdline(*pid).contains(count.to_str().unwrap());
    eventually("it is gone", || !process::children(std::process::id()).iter().any(ours)).await;
    crib.shutdown(Duration::ZERO).await;
}

fn cmdline(pid: u32) -> String {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .map_or_else(|_| String::new(), |raw| String::from_utf8_lossy(&raw).into_owned())
}

#[tokio::test]
async fn a_frozen_server_costs_its_call_the_limit_and_no_other_server_anything() {
    let limits = toolcrib::Limits { call_timeout: Duration::from_millis(300), ..toolcrib::Limits::default() };
    let crib = crib([fake!("fake").limits(limits), fake!("other")]);
    let frozen = pid(&crib).await;
    process::send(frozen, rustix::process::Signal::STOP);
    let error = call(&crib, "fake", "echo", &json!({"text": "?"})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.advice().contains("call-timeout"), "{}", error.advice());
    assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
    process::send(frozen, rustix::process::Signal::CONT);
    assert_eq!(pid(&crib).await, frozen, "a slow server is not a dead one");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_is_frozen_for_good_is_replaced_and_that_costs_one_restart() {
    let limits = toolcrib::Limits { call_timeout: Duration::from_millis(300), ..toolcrib::Limits::default() };
    let crib = crib([fake!("fake").limits(limits)]);
    let frozen = pid(&crib).await;
    process::send(frozen, rustix::process::Signal::STOP);
    let error = call(&crib, "fake", "echo", &json!({"text": "?"})).await.unwrap_err();
    assert_eq!((error.kind(), error.sent()), (ErrorKind::TimedOut, Sent::Maybe));
    let next = timeout(PATIENCE, pid(&crib)).await.unwrap();
    assert_ne!(next, frozen, "whoever comes meanwhile waits for the next one, however long that is");
    assert_eq!(status(&crib, "fake").last_error.unwrap().class, Some(FailureClass::Hung));
    assert!(!process::is_alive(frozen));
    assert_eq!(status(&crib, "fake").restarts, 1);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_closes_its_output_and_lives_on_is_counted_removed_and_told() {
    use toolcrib::{CommandSpec, ServerSpec};
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let script = "echo $$ >> \"$0\"; exec 1>&-; while :; do sleep 1000; done";
    let command = CommandSpec::new("sh").args(["-c", script]).arg(file.to_str().unwrap());
    let crib = crib([ServerSpec::command(server_id("mute"), command).lifecycle(quick(1))]);
    let error = timeout(PATIENCE, call(&crib, "mute", "echo", &json!({}))).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.class()), (ErrorKind::CouldNotStart, Some(FailureClass::Crashed)));
    assert!(error.to_string().contains("its output ended"), "{error}");
    assert_eq!(status(&crib, "mute").state, StateName::Ejected);
    let pids: Vec<u32> =
        std::fs::read_to_string(&file).unwrap().lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 1 + 1 + 1, "one, the budget, and one for the question of the era");
    eventually("nothing is left", || !pids.iter().any(|pid| process::is_alive(*pid))).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_lost_call_is_made_once_more_only_if_the_config_says_that_it_may_be() {
    for (harmless, runs) in [(false, 1), (true, 2)] {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("effects");
        let mut spec = fake!("fake");
        if harmless {
            spec.tools.idempotent.push("cou*".parse().unwrap());
        }
        let crib = crib([spec]);
        let deed = json!({"file": file.to_str().unwrap(), "then": "crash"});
        let error = call(&crib, "fake", "count", &deed).await.unwrap_err();
        assert_eq!((error.kind(), error.data()["sent"].clone()), (ErrorKind::Lost, json!("maybe")));
        assert!(error.to_string().ends_with("(it may have run)"), "{error}");
        assert_eq!(starts(&file), runs);
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_what_and_why_at_once() {
    use toolcrib::{CommandSpec, ServerSpec};
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("plain.txt");
    std::fs::write(&file, "not a program").unwrap();
    let script = dir.path().join("script.py");
    process::write_program(&script, "#!/no/such/python3\n");
    let spec = |name: &str, command| ServerSpec::command(server_id(name), command).lifecycle(quick(5));
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
        ("script", "wants to be run by `/no/such/python3`, which was not found".to_owned()),
        ("gone", "ended at once with exit status 0 and without a word".to_owned()),
        ("parrot", "sends back what it is sent".to_owned()),
        ("chatter", "lines that are no messages, `y` first".to_owned()),
        ("spelled", "`no-such-program-anywhere` was not found on the `PATH`".to_owned()),
    ] {
        let error = timeout(PATIENCE, call(&crib, server, "echo", &json!({}))).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CouldNotStart, "{server}");
        assert!(error.to_string().contains(&expected), "{server}: {error}");
        assert_eq!(error.server(), Some(&server_id(server)));
        assert_eq!(error.class(), Some(FailureClass::Misconfigured), "{server}");
        assert!(error.advice().contains(&format!("toolcrib restart {server}")), "{}", error.advice());
        eventually("it is given up at once", || status(&crib, server).state == StateName::Ejected).await;
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
