//! A busy, starting or draining server does not delay anything else.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::{Call, Crib, ServerLimits, ServerState};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, id, names, on, roster, settle, spawn, spec, status};

const SLOW: Duration = Duration::from_secs(29);

/// A quick server, and a known one whose later starts are slow.
async fn slow_and_quick() -> (FakeServer, Crib) {
    let slow =
        FakeServer::new().next_starts(&[FakeStart::Session]).default_start(FakeStart::SlowHandshake(SLOW));
    let limits = ServerLimits { in_flight: 4.try_into().unwrap(), ..ServerLimits::default() };
    let servers = [spec("slow", &slow).limits(limits), spec("quick", &FakeServer::new())];
    let crib = Crib::builder().roster(roster(servers)).build().unwrap();
    crib.list().await;
    (slow, crib)
}

/// Checks that every operation that does not need the slow server is quick.
async fn assert_others_are_quick(crib: &Crib, reason: &str) {
    let before = Instant::now();
    let quick = id("quick");
    assert_eq!(crib.status().len(), 2, "{reason}");
    assert_eq!(crib.catalog().undiscovered().count(), 0, "{reason}");
    assert_eq!(names(&crib.list().await), names(&crib.catalog()), "{reason}");
    assert!(crib.discover().await.iter().all(|found| found.tools.is_ok()), "{reason}");
    crib.call(on("quick", "echo")).await.unwrap();
    crib.restart(&quick).await.unwrap();
    crib.call(Call::tool("quick__echo")).await.unwrap();
    crib.logs(&quick, 0).unwrap();
    crib.stop(&quick).await.unwrap();
    crib.call(on("quick", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND / 10, "{reason}: {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn busy_server_does_not_delay_others() {
    let (slow, crib) = slow_and_quick().await;
    let mut calls = JoinSet::new();
    (0..50).for_each(|_| spawn(&mut calls, &crib, on("slow", "hold")));
    settle().await;
    assert_eq!((status(&crib, "slow").in_flight, status(&crib, "slow").leases), (4, 50));
    assert_others_are_quick(&crib, "calls").await;
    slow.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn starting_server_does_not_delay_others() {
    let (slow, crib) = slow_and_quick().await;
    let mut busy = JoinSet::new();
    let restarted = crib.clone();
    busy.spawn(async move { restarted.restart(&id("slow")).await.unwrap() });
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("slow", "echo"));
    settle().await;
    assert_eq!(status(&crib, "slow").state, ServerState::Starting);
    assert_others_are_quick(&crib, "a start").await;
    assert_eq!((status(&crib, "slow").state, busy.try_join_next().is_none()), (ServerState::Starting, true));
    busy.join_all().await;
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    assert_eq!(slow.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn draining_server_does_not_delay_others() {
    let (slow, crib) = slow_and_quick().await;
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("slow", "hold"));
    settle().await;
    let quick = FakeServer::new();
    let more = FakeServer::new();
    let before = Instant::now();
    crib.apply_roster(roster([spec("quick", &quick), spec("more", &more)])).await.unwrap();
    assert_eq!(crib.status().len(), 2);
    crib.call(on("quick", "echo")).await.unwrap();
    crib.call(Call::tool("more__echo")).await.unwrap();
    assert_eq!(names(&crib.list().await), names(&crib.catalog()));
    crib.apply_roster(roster([spec("quick", &quick)])).await.unwrap();
    crib.call(on("quick", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND / 10, "{:?}", before.elapsed());
    assert_eq!((slow.running_and_peak().0, calls.len()), (1, 1), "its call is still running");
    slow.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}
