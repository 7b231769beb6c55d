//! A new roster changes what changed, and nothing else.

use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::{Call, Crib, ErrorKind, Event, Limits, ServerSpec, StateName};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, crib, id, kind, names, on, roster, spawn, spec, status};

/// The same server with another limit.
fn changed(name: &str, fake: &Fake) -> ServerSpec {
    spec(name, fake).limits(Limits { call_timeout: 59 * SECOND, ..Limits::default() })
}

#[tokio::test(start_paused = true)]
async fn only_what_changed_is_restarted() {
    let (git, time, web, new) = (Fake::new(), Fake::new(), Fake::new(), Fake::new());
    let same = spec("git", &git);
    let before = roster([same.clone(), spec("time", &time), spec("web", &web)]);
    let crib = Crib::builder().roster(before).build().unwrap();
    for server in ["git", "time", "web"] {
        crib.call(on(server, "echo")).await.unwrap();
    }
    let changes = crib.apply(roster([same, changed("time", &time), spec("new", &new)])).await;
    assert_eq!(
        (changes.added, changes.changed, changes.removed),
        (vec![id("new")], vec![id("time")], vec![id("web")])
    );
    breath().await;
    for server in ["git", "time", "new"] {
        crib.call(on(server, "echo")).await.unwrap();
    }
    assert_eq!([git.starts(), time.starts(), web.starts(), new.starts()], [1, 2, 1, 1]);
    assert_eq!([git.living(), time.living(), web.living()], [(1, 1), (1, 1), (0, 1)]);
    assert_eq!(kind(crib.call(on("web", "echo")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn an_equal_roster_changes_nothing() {
    let fake = Fake::new();
    let same = spec("git", &fake);
    let crib = Crib::builder().server(same.clone()).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(crib.apply(roster([same])).await, toolcrib::Changes::default());
    assert_eq!((fake.starts(), status(&crib, "git").state), (1, StateName::Ready));
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_on_a_replaced_server_are_finished_by_the_old_one() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..3).for_each(|_| spawn(&mut calls, &crib, on("git", "hold")));
    breath().await;
    crib.apply(roster([changed("git", &fake)])).await;
    // Others are served meanwhile.
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((calls.len(), fake.starts(), fake.living().0), (3, 2, 2));
    fake.open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    breath().await;
    assert_eq!(fake.living().0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_holds_up_no_reload_and_ends_by_its_own_limit() {
    let fakes = [Fake::new(), Fake::new(), Fake::new()];
    let crib = crib(&[("git", &fakes[0])]);
    let (mut calls, before) = (JoinSet::new(), Instant::now());
    spawn(&mut calls, &crib, on("git", "hang"));
    breath().await;
    for fake in &fakes[1..] {
        crib.apply(roster([changed("git", fake)])).await;
        crib.call(on("git", "echo")).await.unwrap();
        spawn(&mut calls, &crib, on("git", "hang"));
        breath().await;
    }
    crib.apply(roster([])).await;
    assert_eq!(before.elapsed().as_secs(), 0);
    assert_eq!(fakes.each_ref().map(|fake| fake.living().0), [1, 1, 1]);
    for ended in calls.join_all().await {
        assert_eq!(kind(ended), ErrorKind::TimedOut);
    }
    assert_eq!(before.elapsed().as_secs(), 60);
    breath().await;
    assert_eq!(fakes.each_ref().map(|fake| fake.living().0), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_nobody_uses_is_gone_before_its_successor_starts() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    for _ in 0..3 {
        crib.call(on("git", "echo")).await.unwrap();
        crib.apply(roster([changed("git", &fake)])).await;
        crib.call(on("git", "echo")).await.unwrap();
        crib.apply(roster([spec("git", &fake)])).await;
    }
    assert_eq!(fake.living().1, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_and_a_shutdown_are_for_those_that_are_on_their_way_out_as_well() {
    let fakes = [Fake::new(), Fake::new()];
    let crib = crib(&[("git", &fakes[0])]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hang"));
    breath().await;
    crib.apply(roster([changed("git", &fakes[1])])).await;
    crib.call(on("git", "echo")).await.unwrap();
    crib.stop(&id("git")).await.unwrap();
    assert_eq!(fakes.each_ref().map(|fake| fake.living().0), [0, 0]);
    assert_eq!(kind(calls.join_next().await.unwrap().unwrap()), ErrorKind::Lost);
    spawn(&mut calls, &crib, on("git", "hang"));
    breath().await;
    crib.apply(roster([])).await;
    let before = Instant::now();
    crib.shutdown(SECOND).await;
    assert_eq!((before.elapsed().as_secs(), fakes[1].living().0), (1, 0));
    assert_eq!(kind(calls.join_next().await.unwrap().unwrap()), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_server_that_is_replaced_is_served_by_its_successor() {
    let fake = Fake::new().boots(&[Boot::Silent]);
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..5).for_each(|_| spawn(&mut calls, &crib, on("git", "echo")));
    breath().await;
    crib.apply(roster([changed("git", &fake)])).await;
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!((fake.starts(), fake.living()), (2, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn whoever_named_a_tool_of_a_server_that_is_replaced_before_it_was_ever_listed_is_served_too() {
    let fake = Fake::new().boots(&[Boot::Silent]);
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..5).for_each(|_| spawn(&mut calls, &crib, Call::tool("git__echo")));
    breath().await;
    crib.apply(roster([changed("git", &fake)])).await;
    let ends = calls.join_all().await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    assert_eq!((fake.starts(), fake.living()), (2, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn whoever_names_a_tool_is_served_however_often_its_server_is_replaced_meanwhile() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    for round in 0..100 {
        (0..3).for_each(|_| spawn(&mut calls, &crib, Call::tool("git__echo")));
        let limits = Limits { call_timeout: (60 + round) * SECOND, ..Limits::default() };
        crib.apply(roster([spec("git", &fake).limits(limits)])).await;
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
    }
    let ends = calls.join_all().await;
    assert!(ends.iter().all(Result::is_ok), "{:?}", ends.iter().find(|end| end.is_err()));
}

#[tokio::test(start_paused = true)]
async fn a_changed_spec_brings_an_ejected_server_back() {
    let fake = Fake::new();
    let mut brittle = spec("git", &fake);
    brittle.lifecycle.restarts.at_most = 0;
    let crib = Crib::builder().server(brittle).build().unwrap();
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
    crib.apply(roster([changed("git", &fake)])).await;
    crib.call(on("git", "echo")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_new_server_can_be_called_by_any_name_as_soon_as_the_roster_is_applied() {
    let (git, time) = (Fake::offering(&["log"]), Fake::offering(&["now"]));
    let crib = crib(&[("git", &git)]);
    crib.list().await;
    crib.apply(roster([spec("time", &time)])).await;
    crib.call(Call::tool("now")).await.unwrap();
    crib.apply(roster([spec("web", &git)])).await;
    crib.call(on("web", "log")).await.unwrap();
    assert_eq!(kind(crib.call(Call::tool("now")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn the_catalog_follows() {
    let (git, time) = (Fake::offering(&["log"]), Fake::offering(&["now"]));
    let crib = crib(&[("git", &git)]);
    let mut catalog = crib.watch_catalog();
    crib.list().await;
    let before = crib.catalog().revision();
    crib.apply(roster([spec("time", &time)])).await;
    catalog.wait_for(|catalog| catalog.tools().is_empty() && catalog.revision() > before).await.unwrap();
    assert_eq!(names(&crib.list().await), ["time__now"]);
    assert_eq!(kind(crib.call(Call::tool("git__log")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn three_reloads_in_one_breath_end_with_the_last() {
    let fakes = [Fake::new(), Fake::new(), Fake::new()];
    let crib = crib(&[("git", &fakes[0])]);
    crib.call(on("git", "echo")).await.unwrap();
    let mut calls = JoinSet::new();
    for fake in &fakes {
        crib.apply(roster([changed("git", fake)])).await;
        spawn(&mut calls, &crib, on("git", "echo"));
    }
    let ended = timeout(60 * SECOND, calls.join_all()).await.unwrap();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(fakes.each_ref().map(|fake| fake.living().0), [0, 0, 1]);
}

/// The servers that were said to be stopped since the last look.
fn stopped(events: &mut broadcast::Receiver<Event>) -> Vec<String> {
    let told = std::iter::from_fn(|| events.try_recv().ok());
    told.filter_map(|event| match event {
        Event::Stopped { server } => Some(server.to_string()),
        _ => None,
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_leaves_the_roster_is_said_to_be_stopped() {
    let (git, time) = (Fake::new(), Fake::new());
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut events = crib.events();
    crib.call(on("git", "echo")).await.unwrap();
    crib.apply(roster([])).await;
    breath().await;
    assert_eq!(stopped(&mut events), ["git"], "the other one never ran");
    assert_eq!(git.living(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_replaced_is_said_to_be_stopped() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut events = crib.events();
    crib.call(on("git", "echo")).await.unwrap();
    crib.apply(roster([changed("git", &fake)])).await;
    breath().await;
    assert_eq!(stopped(&mut events), ["git"]);
}
