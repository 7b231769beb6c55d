//! What all servers together may take: how many run, and how much memory they use.

use tokio::sync::broadcast::Receiver;
use tokio::task::JoinSet;
use tokio::time::advance;
use toolcrib::spec::MemoryLimits;
use toolcrib::wire::revision::Era;
use toolcrib::{Capacity, Crib, ErrorKind, Event, Lifecycle, Sharing, StateName};

use crate::fake::Fake;
use crate::house::{SECOND, on, roster, spawn, spec, status};
use crate::sharing::client;

/// Waits until this server was stopped.
async fn stopped(events: &mut Receiver<Event>, wanted: &str) {
    loop {
        if let Event::Stopped { server } | Event::Crashed { server, .. } = events.recv().await.unwrap() {
            assert_eq!(server.as_str(), wanted);
            return;
        }
    }
}

fn crib_of(fakes: &[(&'static str, &Fake)], capacity: Capacity) -> Crib {
    let specs = fakes.iter().map(|(name, fake)| spec(name, fake));
    Crib::builder().roster(roster(specs)).capacity(capacity).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_more_run_than_may_however_many_are_asked_for() {
    let fakes: Vec<(String, Fake)> = (0..12).map(|number| (format!("s{number}"), Fake::new())).collect();
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
        let living: usize = fakes.iter().map(|(_, fake)| fake.living().0).sum();
        assert!(living <= 3, "{living} at once");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_servers_make_room_when_all_together_use_too_much() {
    let (old, new) = (Fake::new(), Fake::new());
    let crib =
        crib_of(&[("old", &old), ("new", &new)], Capacity { memory: Some(100), ..Capacity::default() });
    crib.call(on("old", "echo")).await.unwrap();
    crib.call(on("new", "echo")).await.unwrap();
    let mut events = crib.events();
    old.weighs(60);
    new.weighs(60);
    stopped(&mut events, "old").await;
    assert_eq!(status(&crib, "new").state, StateName::Ready);
    assert_eq!(status(&crib, "old").restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn the_heaviest_goes_when_none_is_idle() {
    let (light, heavy) = (Fake::new(), Fake::new());
    let crib = crib_of(
        &[("light", &light), ("heavy", &heavy)],
        Capacity { memory: Some(100), ..Capacity::default() },
    );
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("light", "hold"));
    spawn(&mut calls, &crib, on("heavy", "hold"));
    light.weighs(50);
    heavy.weighs(51);
    let error = calls.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.server().unwrap().as_str()), (ErrorKind::Lost, "heavy"));
    assert!(error.to_string().contains("all servers together used more than"), "{error}");
    light.open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_comes_with_a_reload_is_held() {
    let fake = Fake::new();
    let crib = crib_of(&[("one", &fake)], Capacity::default());
    crib.call(on("one", "echo")).await.unwrap();
    fake.weighs(1000);
    let memory = MemoryLimits { soft: None, hard: Some(999) };
    let limited = spec("one", &fake).lifecycle(Lifecycle { memory, ..Lifecycle::default() });
    crib.apply(roster([limited])).await;
    let mut events = crib.events();
    let (lost, ()) = tokio::join!(crib.call(on("one", "hang")), stopped_for_weight(&mut events));
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(status(&crib, "one").restarts, 1);
}

#[tokio::test(start_paused = true)]
async fn each_instance_is_held_to_the_limit_of_its_server() {
    let fake = Fake::new();
    let memory = MemoryLimits { soft: None, hard: Some(999) };
    let limited = spec("one", &fake).lifecycle(Lifecycle { memory, ..Lifecycle::default() });
    let crib = Crib::builder().server(limited.sharing(Sharing::PerClient)).build().unwrap();
    // The scales find nothing to weigh at first.
    advance(SECOND).await;
    fake.weighs(500);
    let of = |key, tool| on("one", tool).of(client(key, Era::Session, "{}"));
    crib.call(of(1, "echo")).await.unwrap();
    crib.call(of(2, "echo")).await.unwrap();
    assert_eq!(status(&crib, "one").memory, Some(1000));
    fake.weighs(1000);
    let mut events = crib.events();
    let (lost, ()) = tokio::join!(crib.call(of(1, "hang")), stopped_for_weight(&mut events));
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
}

async fn stopped_for_weight(events: &mut Receiver<Event>) {
    loop {
        if let Event::Crashed { why, .. } = events.recv().await.unwrap() {
            assert!(why.contains("may use"), "{why}");
            return;
        }
    }
}
