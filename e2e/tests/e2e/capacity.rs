//! Limits on running servers and on their memory.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::time::Duration;

use serde_json::json;
use test_support::{call, eventually, fake, process, quick_lifecycle, status, text};
use tokio::task::JoinSet;
use toolcrib::spec::MemoryLimits;
use toolcrib::{Capacity, Crib, CribBuilder, ErrorKind, Lifecycle, ServerSpec, ServerState};

const MIB: u64 = 1 << 20;

fn crib(servers: impl IntoIterator<Item = ServerSpec>, capacity: Capacity) -> Crib {
    servers.into_iter().fold(Crib::builder().capacity(capacity), CribBuilder::server).build().unwrap()
}

fn limited(soft: Option<u64>, hard: Option<u64>) -> ServerSpec {
    fake!("fake").lifecycle(Lifecycle { memory: MemoryLimits { soft, hard }, ..quick_lifecycle(1) })
}

#[tokio::test]
async fn ten_servers_take_turns_in_two_slots() {
    let names: Vec<String> = (0..10).map(|number| format!("s{number}")).collect();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().to_str().unwrap();
    // On a busy machine the last server waits long for a slot.
    let lifecycle = Lifecycle { start_timeout: Duration::from_secs(300), ..quick_lifecycle(5) };
    let servers = names.iter().map(|name| fake!(name, "--record-dir", mark).lifecycle(lifecycle.clone()));
    let crib = crib(servers, Capacity { servers: 2, ..Capacity::default() });
    let mut calls = JoinSet::new();
    for name in names.iter().cycle().take(40) {
        let crib = crib.clone();
        let name = name.clone();
        // Long enough that all ten would run at the same time without the limit.
        calls.spawn(async move { text(&crib, &name, "sleep", &json!({"ms": 100})).await });
    }
    let mut most = 0;
    let mut sample = tokio::time::interval(Duration::from_millis(50));
    sample.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !calls.is_empty() {
        tokio::select! {
            slept = calls.join_next() => assert_eq!(slept.unwrap().unwrap(), "slept"),
            _ = sample.tick() => most = most.max(process::find_by_command_line(mark).len()),
        }
    }
    assert_eq!(most, 2, "at the same time");
    assert_eq!(crib.status().iter().map(|status| status.restarts).sum::<u32>(), 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn memory_includes_the_whole_process_tree() {
    let crib = crib([fake!("fake", "--grandchild")], Capacity::default());
    text(&crib, "fake", "pid", &json!({})).await;
    let before = status(&crib, "fake").memory.unwrap();
    text(&crib, "fake", "allocate", &json!({"bytes": 64 * MIB})).await;
    let after = status(&crib, "fake").memory.unwrap();
    assert!(before > 0 && after >= before + 60 * MIB, "{before} {after}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn soft_limit_replaces_the_server_when_idle() {
    let crib = crib([limited(Some(48 * MIB), None)], Capacity::default());
    let first = text(&crib, "fake", "pid", &json!({})).await;
    text(&crib, "fake", "allocate", &json!({"bytes": 64 * MIB})).await;
    eventually("the server sleeps", || status(&crib, "fake").state == ServerState::Asleep).await;
    let second = text(&crib, "fake", "pid", &json!({})).await;
    assert_ne!(first, second);
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn hard_limit_stops_the_server_and_ejects_it_if_repeated() {
    let crib = crib([limited(None, Some(48 * MIB))], Capacity::default());
    for _ in 0..2 {
        let pid: u32 = text(&crib, "fake", "pid", &json!({})).await.parse().unwrap();
        let error =
            call(&crib, "fake", "allocate", &json!({"bytes": 64 * MIB, "then": "hang"})).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("of memory, its limit is 48.0 MiB"), "{error}");
        eventually("the process has exited", || !process::is_alive(pid)).await;
        assert_eq!(status(&crib, "fake").restarts_left, 0);
    }
    eventually("it is ejected", || status(&crib, "fake").state == ServerState::Ejected).await;
    let error = call(&crib, "fake", "pid", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("its limit is 48.0 MiB"), "{error}");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn host_limit_stops_the_longest_idle_server() {
    let capacity = Capacity { memory: Some(150 * MIB), ..Capacity::default() };
    let crib = crib([fake!("idle"), fake!("used")], capacity);
    text(&crib, "idle", "allocate", &json!({"bytes": 100 * MIB})).await;
    text(&crib, "used", "allocate", &json!({"bytes": 100 * MIB})).await;
    eventually("the longest idle server sleeps", || status(&crib, "idle").state == ServerState::Asleep).await;
    assert_eq!(status(&crib, "used").state, ServerState::Ready);
    crib.shutdown(Duration::ZERO).await;
}
