//! Real children that share a limited room, and ones that use more memory than they may.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::time::Duration;

use serde_json::json;
use test_support::{call, eventually, fake, process, quick, status, text};
use tokio::task::JoinSet;
use toolcrib::spec::MemoryLimits;
use toolcrib::{Capacity, Crib, CribBuilder, ErrorKind, Lifecycle, ServerSpec, StateName};

const MIB: u64 = 1 << 20;

fn crib(servers: impl IntoIterator<Item = ServerSpec>, capacity: Capacity) -> Crib {
    servers.into_iter().fold(Crib::builder().capacity(capacity), CribBuilder::server).build().unwrap()
}

fn limited(soft: Option<u64>, hard: Option<u64>) -> ServerSpec {
    fake!("fake").lifecycle(Lifecycle { memory: MemoryLimits { soft, hard }, ..quick(1) })
}

#[tokio::test]
async fn ten_servers_take_turns_in_a_room_for_two() {
    let names: Vec<String> = (0..10).map(|number| format!("s{number}")).collect();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().to_str().unwrap();
    // On a busy machine the last of them waits long for its turn.
    let patient = Lifecycle { start_timeout: Duration::from_secs(300), ..quick(5) };
    let servers = names.iter().map(|name| fake!(name, "--ledger", mark).lifecycle(patient.clone()));
    let crib = crib(servers, Capacity { servers: 2, ..Capacity::default() });
    let mut calls = JoinSet::new();
    for name in names.iter().cycle().take(40) {
        let (crib, name) = (crib.clone(), name.clone());
        // Long enough that all ten would be there at the same time if they could.
        calls.spawn(async move { text(&crib, &name, "sleep", &json!({"ms": 100})).await });
    }
    let mut most = 0;
    let mut look = tokio::time::interval(Duration::from_millis(50));
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !calls.is_empty() {
        tokio::select! {
            slept = calls.join_next() => assert_eq!(slept.unwrap().unwrap(), "slept"),
            _ = look.tick() => most = most.max(process::with_words(mark).len()),
        }
    }
    assert_eq!(most, 2, "at a time");
    assert_eq!(crib.status().iter().map(|status| status.restarts).sum::<u32>(), 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn what_a_server_uses_is_measured_with_its_whole_tree() {
    let crib = crib([fake!("fake", "--grandchild")], Capacity::default());
    text(&crib, "fake", "pid", &json!({})).await;
    let before = status(&crib, "fake").memory.unwrap();
    text(&crib, "fake", "eat", &json!({"bytes": 64 * MIB})).await;
    let after = status(&crib, "fake").memory.unwrap();
    assert!(before > 0 && after >= before + 60 * MIB, "{before} {after}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn one_over_its_soft_limit_is_replaced_when_idle() {
    let crib = crib([limited(Some(48 * MIB), None)], Capacity::default());
    let first = text(&crib, "fake", "pid", &json!({})).await;
    text(&crib, "fake", "eat", &json!({"bytes": 64 * MIB})).await;
    eventually("it went to sleep", || status(&crib, "fake").state == StateName::Asleep).await;
    let second = text(&crib, "fake", "pid", &json!({})).await;
    assert_ne!(first, second);
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn one_over_its_hard_limit_is_stopped_with_the_reason_and_ejected_if_it_goes_on() {
    let crib = crib([limited(None, Some(48 * MIB))], Capacity::default());
    for _ in 0..2 {
        let pid: u32 = text(&crib, "fake", "pid", &json!({})).await.parse().unwrap();
        let error =
            call(&crib, "fake", "eat", &json!({"bytes": 64 * MIB, "then": "hang"})).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("of memory, and may use 48.0 MiB"), "{error}");
        eventually("it is gone", || !process::is_alive(pid)).await;
        assert_eq!(status(&crib, "fake").restarts_left, 0);
    }
    eventually("it is ejected", || status(&crib, "fake").state == StateName::Ejected).await;
    let error = call(&crib, "fake", "pid", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("may use 48.0 MiB"), "{error}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn together_they_keep_to_the_limit_of_the_host() {
    let capacity = Capacity { memory: Some(150 * MIB), ..Capacity::default() };
    let crib = crib([fake!("idle"), fake!("used")], capacity);
    text(&crib, "idle", "eat", &json!({"bytes": 100 * MIB})).await;
    text(&crib, "used", "eat", &json!({"bytes": 100 * MIB})).await;
    eventually("the longest idle went", || status(&crib, "idle").state == StateName::Asleep).await;
    assert_eq!(status(&crib, "used").state, StateName::Ready);
    crib.shutdown(Duration::ZERO).await;
}
