//! Whatever one server is busy with, nobody who asks for something else waits for it.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::{Call, Crib, Limits, StateName};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, id, names, on, roster, spawn, spec, status};

const SLOW: Duration = Duration::from_secs(29);

/// A known server that takes long to start ever after, beside a quick one.
async fn house() -> (Fake, Crib) {
    let slow = Fake::new().boots(&[Boot::Session]).usually(Boot::Late(SLOW));
    let limits = Limits { in_flight: 4.try_into().unwrap(), ..Limits::default() };
    let servers = [spec("slow", &slow).limits(limits), spec("quick", &Fake::new())];
    let crib = Crib::builder().roster(roster(servers)).build().unwrap();
    crib.list().await;
    (slow, crib)
}

/// Asks the crib for everything there is, except for the slow server.
async fn assert_nobody_waits(crib: &Crib, why: &str) {
    let before = Instant::now();
    let quick = id("quick");
    assert_eq!(crib.status().len(), 2, "{why}");
    assert_eq!(crib.catalog().strangers().count(), 0, "{why}");
    assert_eq!(names(&crib.list().await), names(&crib.catalog()), "{why}");
    assert!(crib.discover().await.iter().all(|found| found.tools.is_ok()), "{why}");
    crib.call(on("quick", "echo")).await.unwrap();
    crib.restart(&quick).await.unwrap();
    crib.call(Call::tool("quick__echo")).await.unwrap();
    crib.logs(&quick, 0, false).await.unwrap();
    crib.stop(&quick).await.unwrap();
    crib.call(on("quick", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND / 10, "{why}: {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_works_on_all_it_can_take_delays_nobody_else() {
    let (slow, crib) = house().await;
    let mut calls = JoinSet::new();
    (0..50).for_each(|_| spawn(&mut calls, &crib, on("slow", "hold")));
    breath().await;
    assert_eq!((status(&crib, "slow").in_flight, status(&crib, "slow").leases), (4, 50));
    assert_nobody_waits(&crib, "calls").await;
    slow.open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_starts_delays_nobody_else() {
    let (slow, crib) = house().await;
    let mut busy = JoinSet::new();
    let restarted = crib.clone();
    busy.spawn(async move { restarted.restart(&id("slow")).await.unwrap() });
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("slow", "echo"));
    breath().await;
    assert_eq!(status(&crib, "slow").state, StateName::Starting);
    assert_nobody_waits(&crib, "a start").await;
    assert_eq!((status(&crib, "slow").state, busy.try_join_next().is_none()), (StateName::Starting, true));
    busy.join_all().await;
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    assert_eq!(slow.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_seen_out_delays_nobody_else() {
    let (slow, crib) = house().await;
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("slow", "hold"));
    breath().await;
    let (quick, more) = (Fake::new(), Fake::new());
    let before = Instant::now();
    crib.apply(roster([spec("quick", &quick), spec("more", &more)])).await;
    assert_eq!(crib.status().len(), 2);
    crib.call(on("quick", "echo")).await.unwrap();
    crib.call(Call::tool("more__echo")).await.unwrap();
    assert_eq!(names(&crib.list().await), names(&crib.catalog()));
    crib.apply(roster([spec("quick", &quick)])).await;
    crib.call(on("quick", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND / 10, "{:?}", before.elapsed());
    assert_eq!((slow.living().0, calls.len()), (1, 1), "its call is not over yet");
    slow.open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}
