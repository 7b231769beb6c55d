//! Limits for all servers together: how many run, and how much memory they use.

use tokio::sync::broadcast::Receiver;
use tokio::task::JoinSet;
use tokio::time::advance;
use toolcrib::protocol::versions::Era;
use toolcrib::spec::MemoryLimits;
use toolcrib::{Capacity, Crib, ErrorKind, Event, Lifecycle, ServerState, Sharing};

use crate::fake::FakeServer;
use crate::sharing::client;
use crate::support::{SECOND, on, roster, settle, spawn, spec, status};

/// Waits until this server has stopped.
async fn wait_for_stop(events: &mut Receiver<Event>, expected: &str) {
    loop {
        if let Event::Stopped { server } | Event::Crashed { server, .. } = events.recv().await.unwrap() {
            assert_eq!(server.as_str(), expected);
            return;
        }
    }
}

fn crib_of(fakes: &[(&'static str, &FakeServer)], capacity: Capacity) -> Crib {
    let specs = fakes.iter().map(|(name, fake)| spec(name, fake));
    Crib::builder().roster(roster(specs)).capacity(capacity).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn running_servers_never_exceed_the_capacity() {
    let fakes: Vec<(String, FakeServer)> =
        (0..12).map(|number| (format!("s{number}"), FakeServer::new())).collect();
    let specs = fakes.iter().map(|(name, fake)| spec(name, fake));
    let capacity = Capacity { servers: 3, ..Capacity::default() };
    let crib = Crib::builder().roster(roster(specs)).capacity(capacity).build().unwrap();
    let mut calls = JoinSet::new();
    for round in 0..5 {
        for (name, _) in &fakes {
            spawn(&mut calls, &crib, on(name, if round == 2 { "slow" } else { "echo" }));
        }
    }
    while let Some(ended) = calls.join_next().await {
        ended.unwrap().unwrap();
        let living: usize = fakes.iter().map(|(_, fake)| fake.running_and_peak().0).sum();
        assert!(living <= 3, "{living} at the same time");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_server_stops_when_total_memory_is_exceeded() {
    let old = FakeServer::new();
    let new = FakeServer::new();
    let crib =
        crib_of(&[("old", &old), ("new", &new)], Capacity { memory: Some(100), ..Capacity::default() });
    crib.call(on("old", "echo")).await.unwrap();
    crib.call(on("new", "echo")).await.unwrap();
    let mut events = crib.events();
    old.set_memory(60);
    new.set_memory(60);
    wait_for_stop(&mut events, "old").await;
    assert_eq!(status(&crib, "new").state, ServerState::Ready);
    assert_eq!(status(&crib, "old").restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn largest_server_stops_when_none_is_idle() {
    let light = FakeServer::new();
    let heavy = FakeServer::new();
    let crib = crib_of(
        &[("light", &light), ("heavy", &heavy)],
        Capacity { memory: Some(100), ..Capacity::default() },
    );
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("light", "hold"));
    spawn(&mut calls, &crib, on("heavy", "hold"));
    light.set_memory(50);
    heavy.set_memory(51);
    let error = calls.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.server().unwrap().as_str()), (ErrorKind::Lost, "heavy"));
    assert!(error.to_string().contains("all servers together used more than"), "{error}");
    light.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn memory_limit_from_reload_is_enforced() {
    let fake = FakeServer::new();
    let crib = crib_of(&[("one", &fake)], Capacity::default());
    crib.call(on("one", "echo")).await.unwrap();
    let memory = MemoryLimits { soft: None, hard: Some(999) };
    let limited = spec("one", &fake).lifecycle(Lifecycle { memory, ..Lifecycle::default() });
    crib.apply_roster(roster([limited])).await.unwrap();
    let mut events = crib.events();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("one", "hang"));
    // A call that is not sent before the memory is sampled would be sent again.
    settle().await;
    fake.set_memory(1000);
    wait_for_memory_kill(&mut events).await;
    let lost = calls.join_next().await.unwrap().unwrap();
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(status(&crib, "one").restarts, 1);
}

#[tokio::test(start_paused = true)]
async fn memory_limit_applies_to_each_instance() {
    let fake = FakeServer::new();
    let memory = MemoryLimits { soft: None, hard: Some(999) };
    let limited = spec("one", &fake).lifecycle(Lifecycle { memory, ..Lifecycle::default() });
    let crib = Crib::builder().server(limited.sharing(Sharing::PerClient)).build().unwrap();
    // The first memory sample finds no process.
    advance(SECOND).await;
    fake.set_memory(500);
    let of = |key, tool| on("one", tool).client(client(key, Era::Session, "{}"));
    crib.call(of(1, "echo")).await.unwrap();
    crib.call(of(2, "echo")).await.unwrap();
    assert_eq!(status(&crib, "one").memory, Some(1000));
    fake.set_memory(1000);
    let mut events = crib.events();
    let (lost, ()) = tokio::join!(crib.call(of(1, "hang")), wait_for_memory_kill(&mut events));
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
}

async fn wait_for_memory_kill(events: &mut Receiver<Event>) {
    loop {
        if let Event::Crashed { reason, .. } = events.recv().await.unwrap() {
            assert!(reason.contains("its limit is"), "{reason}");
            return;
        }
    }
}
