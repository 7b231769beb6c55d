//! A crash costs the calls in flight and nothing else.

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use toolcrib::spec::Restarts;
use toolcrib::{Call, Crib, ErrorKind, Event, Lifecycle, StateName};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, crib, id, kind, names, on, spawn, spec, status};

#[tokio::test(start_paused = true)]
async fn calls_in_flight_are_told_at_once_and_the_next_call_is_served() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..20).for_each(|_| spawn(&mut calls, &crib, on("git", "hold")));
    breath().await;
    let before = Instant::now();
    fake.kill();
    for ended in calls.join_all().await {
        let error = ended.unwrap_err();
        assert_eq!((error.kind(), error.server()), (ErrorKind::Lost, Some(&id("git"))));
    }
    assert!(before.elapsed() < SECOND / 4);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.called().len(), status(&crib, "git").restarts), (2, 21, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_to_a_server_that_died_unnoticed_goes_to_a_new_one() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    for _ in 0..4 {
        crib.call(on("git", "echo")).await.unwrap();
        breath().await;
        fake.kill();
        breath().await;
    }
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.called().len()), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn no_call_runs_twice_because_its_server_died() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(fake.called(), ["echo", "die", "echo"]);
}

#[tokio::test(start_paused = true)]
async fn another_server_does_not_notice() {
    let (git, time) = (Fake::new(), Fake::new());
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = JoinSet::new();
    (0..10).for_each(|_| spawn(&mut calls, &crib, on("time", "hold")));
    breath().await;
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    time.open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!((time.starts(), status(&crib, "time").restarts), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_waiting_caller_is_served_when_the_third_start_is_good() {
    let fake = Fake::new().boots(&[Boot::DiesOnProbe, Boot::Dies, Boot::Dies]);
    let crib = crib(&[("git", &fake)]);
    crib.call(Call::tool("echo")).await.unwrap();
    assert_eq!(fake.called().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_dying_is_given_up_and_a_restart_brings_it_back() {
    let fake = Fake::new();
    let care = Lifecycle { restarts: Restarts { at_most: 3, within: 300 * SECOND }, ..Lifecycle::default() };
    let crib = Crib::builder().server(spec("git", &fake).lifecycle(care)).build().unwrap();
    let mut events = crib.events();
    for _ in 0..4 {
        assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    }
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
    assert_eq!((fake.starts(), status(&crib, "git").state), (4, StateName::Ejected));
    let told = std::iter::from_fn(|| events.try_recv().ok());
    assert_eq!(told.filter(|event| matches!(event, Event::Ejected { .. })).count(), 1);
    crib.restart(&id("git")).await.unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(status(&crib, "git").restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_server_that_crashed_before_still_shows_its_tools() {
    let fake = Fake::offering(&["log"]);
    let crib = crib(&[("git", &fake)]);
    crib.call(Call::tool("log")).await.unwrap();
    fake.kill();
    sleep(10 * SECOND).await;
    assert_eq!((names(&crib.catalog()), fake.starts()), (vec!["git__log".to_owned()], 1));
    assert!(status(&crib, "git").last_error.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_with_other_tools_is_listed_anew() {
    let page =
        |name: &str| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"tools":[{{"name":"{name}"}}]}}}}"#);
    let fake = Fake::new().script("tools/list", &[&page("old"), &page("new")]);
    let crib = crib(&[("git", &fake)]);
    crib.call(Call::tool("old")).await.unwrap();
    fake.kill();
    breath().await;
    crib.call(Call::tool("git__old")).await.unwrap();
    breath().await;
    assert_eq!(names(&crib.catalog()), ["git__new"]);
    assert_eq!(kind(crib.call(Call::tool("old")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_entered_a_dying_connection_is_sent_once_more() {
    let fake = Fake::new().boots(&[Boot::DiesOnceListed]);
    let crib = crib(&[("git", &fake)]);
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.called().len(), status(&crib, "git").restarts), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_got_through_is_sent_once_more_and_no_more_than_once() {
    let fake = Fake::new().boots(&[Boot::DiesOnceListed, Boot::DiesOnceListed]);
    let crib = crib(&[("git", &fake)]);
    let error = crib.call(on("git", "echo")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, true));
    assert_eq!((fake.starts(), fake.called().len()), (2, 0));
}
