//! Applying a new roster affects only the servers that changed.

use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::{Call, Crib, Era, EraChoice, ErrorKind, Event, ServerSpec, ServerState};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, id, kind, names, on, roster, settle, spawn, spec, status};

/// The same server with a change that needs a new connection.
fn changed(name: &str, fake: &FakeServer) -> ServerSpec {
    spec(name, fake).era(EraChoice::Era(Era::Session))
}

#[tokio::test(start_paused = true)]
async fn reload_restarts_only_changed_servers() {
    let git = FakeServer::new();
    let time = FakeServer::new();
    let web = FakeServer::new();
    let new = FakeServer::new();
    let same = spec("git", &git);
    let before = roster([same.clone(), spec("time", &time), spec("web", &web)]);
    let crib = Crib::builder().roster(before).build().unwrap();
    for server in ["git", "time", "web"] {
        crib.call(on(server, "echo")).await.unwrap();
    }
    let changes = crib.apply_roster(roster([same, changed("time", &time), spec("new", &new)])).await.unwrap();
    assert_eq!(
        (changes.added, changes.changed, changes.removed),
        (vec![id("new")], vec![id("time")], vec![id("web")])
    );
    settle().await;
    for server in ["git", "time", "new"] {
        crib.call(on(server, "echo")).await.unwrap();
    }
    assert_eq!([git.starts(), time.starts(), web.starts(), new.starts()], [1, 2, 1, 1]);
    assert_eq!(
        [git.running_and_peak(), time.running_and_peak(), web.running_and_peak()],
        [(1, 1), (1, 1), (0, 1)]
    );
    assert_eq!(kind(crib.call(on("web", "echo")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn equal_roster_changes_nothing() {
    let fake = FakeServer::new();
    let same = spec("git", &fake);
    let crib = Crib::builder().server(same.clone()).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    assert!(crib.apply_roster(roster([same])).await.unwrap().is_empty());
    assert_eq!((fake.starts(), status(&crib, "git").state), (1, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn replaced_server_finishes_its_calls() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..3).for_each(|_| spawn(&mut calls, &crib, on("git", "hold")));
    settle().await;
    crib.apply_roster(roster([changed("git", &fake)])).await.unwrap();
    // Other calls are served meanwhile.
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((calls.len(), fake.starts(), fake.running_and_peak().0), (3, 2, 2));
    fake.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    settle().await;
    assert_eq!(fake.running_and_peak().0, 1);
}

#[tokio::test(start_paused = true)]
async fn hanging_call_does_not_delay_a_reload() {
    let fakes = [FakeServer::new(), FakeServer::new(), FakeServer::new()];
    let crib = crib(&[("git", &fakes[0])]);
    let mut calls = JoinSet::new();
    let before = Instant::now();
    spawn(&mut calls, &crib, on("git", "hang"));
    settle().await;
    for fake in &fakes[1..] {
        crib.apply_roster(roster([changed("git", fake)])).await.unwrap();
        crib.call(on("git", "echo")).await.unwrap();
        spawn(&mut calls, &crib, on("git", "hang"));
        settle().await;
    }
    crib.apply_roster(roster([])).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 0);
    assert_eq!(fakes.each_ref().map(|fake| fake.running_and_peak().0), [1, 1, 1]);
    for ended in calls.join_all().await {
        assert_eq!(kind(ended), ErrorKind::TimedOut);
    }
    assert_eq!(before.elapsed().as_secs(), 60);
    settle().await;
    assert_eq!(fakes.each_ref().map(|fake| fake.running_and_peak().0), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn unused_server_stops_before_its_replacement_starts() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    for _ in 0..3 {
        crib.call(on("git", "echo")).await.unwrap();
        crib.apply_roster(roster([changed("git", &fake)])).await.unwrap();
        crib.call(on("git", "echo")).await.unwrap();
        crib.apply_roster(roster([spec("git", &fake)])).await.unwrap();
    }
    assert_eq!(fake.running_and_peak().1, 1);
}

#[tokio::test(start_paused = true)]
async fn stop_and_shutdown_include_draining_servers() {
    let fakes = [FakeServer::new(), FakeServer::new()];
    let crib = crib(&[("git", &fakes[0])]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hang"));
    settle().await;
    crib.apply_roster(roster([changed("git", &fakes[1])])).await.unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    crib.stop(&id("git")).await.unwrap();
    assert_eq!(fakes.each_ref().map(|fake| fake.running_and_peak().0), [0, 0]);
    assert_eq!(kind(calls.join_next().await.unwrap().unwrap()), ErrorKind::Lost);
    spawn(&mut calls, &crib, on("git", "hang"));
    settle().await;
    crib.apply_roster(roster([])).await.unwrap();
    let before = Instant::now();
    crib.shutdown(SECOND).await;
    assert_eq!((before.elapsed().as_secs(), fakes[1].running_and_peak().0), (1, 0));
    assert_eq!(kind(calls.join_next().await.unwrap().unwrap()), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn waiting_call_is_served_by_the_replacement() {
    let fake = FakeServer::new().next_starts(&[FakeStart::Silent]);
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..5).for_each(|_| spawn(&mut calls, &crib, on("git", "echo")));
    settle().await;
    crib.apply_roster(roster([changed("git", &fake)])).await.unwrap();
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!((fake.starts(), fake.running_and_peak()), (2, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn call_during_discovery_is_served_by_the_replacement() {
    let fake = FakeServer::new().next_starts(&[FakeStart::Silent]);
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..5).for_each(|_| spawn(&mut calls, &crib, Call::tool("git__echo")));
    settle().await;
    crib.apply_roster(roster([changed("git", &fake)])).await.unwrap();
    let ends = calls.join_all().await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    assert_eq!((fake.starts(), fake.running_and_peak()), (2, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn calls_survive_repeated_replacements() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    for round in 0..100 {
        (0..3).for_each(|_| spawn(&mut calls, &crib, Call::tool("git__echo")));
        let next = if round % 2 == 0 { changed("git", &fake) } else { spec("git", &fake) };
        crib.apply_roster(roster([next])).await.unwrap();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
    }
    let ends = calls.join_all().await;
    assert!(ends.iter().all(Result::is_ok), "{:?}", ends.iter().find(|end| end.is_err()));
}

#[tokio::test(start_paused = true)]
async fn changed_spec_restores_an_ejected_server() {
    let fake = FakeServer::new();
    let mut brittle = spec("git", &fake);
    brittle.lifecycle.restarts.at_most = 0;
    let crib = Crib::builder().server(brittle).build().unwrap();
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
    crib.apply_roster(roster([changed("git", &fake)])).await.unwrap();
    crib.call(on("git", "echo")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn new_server_is_callable_after_apply() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["now"]);
    let crib = crib(&[("git", &git)]);
    crib.list().await;
    crib.apply_roster(roster([spec("time", &time)])).await.unwrap();
    crib.call(Call::tool("now")).await.unwrap();
    crib.apply_roster(roster([spec("web", &git)])).await.unwrap();
    crib.call(on("web", "log")).await.unwrap();
    assert_eq!(kind(crib.call(Call::tool("now")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn catalog_follows_the_roster() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["now"]);
    let crib = crib(&[("git", &git)]);
    let mut catalog = crib.watch_catalog();
    crib.list().await;
    let before = crib.catalog().revision();
    crib.apply_roster(roster([spec("time", &time)])).await.unwrap();
    catalog.wait_for(|catalog| catalog.tools().is_empty() && catalog.revision() > before).await.unwrap();
    assert_eq!(names(&crib.list().await), ["time__now"]);
    assert_eq!(kind(crib.call(Call::tool("git__log")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn consecutive_reloads_end_with_the_last() {
    let fakes = [FakeServer::new(), FakeServer::new(), FakeServer::new()];
    let crib = crib(&[("git", &fakes[0])]);
    crib.call(on("git", "echo")).await.unwrap();
    let mut calls = JoinSet::new();
    for fake in &fakes {
        crib.apply_roster(roster([changed("git", fake)])).await.unwrap();
        spawn(&mut calls, &crib, on("git", "echo"));
    }
    let ended = timeout(60 * SECOND, calls.join_all()).await.unwrap();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(fakes.each_ref().map(|fake| fake.running_and_peak().0), [0, 0, 1]);
}

/// Returns the servers of the `Stopped` events since the last call.
fn stopped(events: &mut broadcast::Receiver<Event>) -> Vec<String> {
    let received = std::iter::from_fn(|| events.try_recv().ok());
    received
        .filter_map(|event| match event {
            Event::Stopped { server } => Some(server.to_string()),
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn removed_server_emits_stopped() {
    let git = FakeServer::new();
    let time = FakeServer::new();
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut events = crib.events();
    crib.call(on("git", "echo")).await.unwrap();
    crib.apply_roster(roster([])).await.unwrap();
    settle().await;
    assert_eq!(stopped(&mut events), ["git"], "the other server never ran");
    assert_eq!(git.running_and_peak(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn replaced_server_emits_stopped() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut events = crib.events();
    crib.call(on("git", "echo")).await.unwrap();
    crib.apply_roster(roster([changed("git", &fake)])).await.unwrap();
    settle().await;
    assert_eq!(stopped(&mut events), ["git"]);
}
