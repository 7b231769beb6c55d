//! A server starts when somebody needs it, once, and only that one.

use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::{Call, Crib, ErrorKind, Lifecycle, Start, StateName};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, crib, id, kind, names, spawn, spec, status};

#[tokio::test(start_paused = true)]
async fn nothing_starts_until_it_is_asked_for_and_then_only_that() {
    let (git, time) = (Fake::offering(&["log"]), Fake::offering(&["now"]));
    let crib = crib(&[("git", &git), ("time", &time)]);
    assert_eq!(crib.status().iter().map(|status| status.state).collect::<Vec<_>>(), [StateName::Asleep; 2]);
    assert!(crib.catalog().tools().is_empty());
    crib.call(Call::tool("git__log")).await.unwrap();
    assert_eq!((git.starts(), time.starts()), (1, 0));
    crib.call(Call::on(id("git"), "log")).await.unwrap();
    assert_eq!((git.starts(), time.starts()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn sixty_four_first_calls_by_bare_name_start_each_server_once() {
    let (git, time) = (Fake::offering(&["log"]), Fake::offering(&["now"]).usually(Boot::Late(SECOND)));
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = JoinSet::new();
    (0..64).for_each(|_| spawn(&mut calls, &crib, Call::tool("log")));
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!((git.starts(), time.starts()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_list_starts_only_servers_never_seen_before() {
    let (git, time) = (Fake::offering(&["log"]), Fake::offering(&["now"]));
    let crib = crib(&[("git", &git), ("time", &time)]);
    assert_eq!(names(&crib.list().await), ["git__log", "time__now"]);
    for server in ["git", "time"] {
        crib.stop(&id(server)).await.unwrap();
    }
    assert_eq!(names(&crib.list().await), ["git__log", "time__now"]);
    assert_eq!((git.starts(), time.starts()), (1, 1));
    assert_eq!(status(&crib, "git").state, StateName::Asleep);
}

#[tokio::test(start_paused = true)]
async fn a_list_does_not_wait_for_ever_and_what_comes_later_is_announced() {
    let (quick, slow) = (Fake::offering(&["a"]), Fake::offering(&["b"]).usually(Boot::Late(20 * SECOND)));
    let crib = crib(&[("quick", &quick), ("slow", &slow)]);
    let before = Instant::now();
    assert_eq!(names(&crib.list().await), ["quick__a"]);
    assert_eq!(before.elapsed().as_secs(), 10);
    let mut catalog = crib.watch_catalog();
    catalog.wait_for(|catalog| catalog.tools().len() == 2).await.unwrap();
    assert_eq!((before.elapsed().as_secs(), slow.starts()), (20, 1));
}

#[tokio::test(start_paused = true)]
async fn many_strangers_are_started_side_by_side() {
    let fakes: Vec<Fake> = (0..30).map(|_| Fake::offering(&["t"]).usually(Boot::Late(SECOND))).collect();
    let servers = fakes.iter().enumerate().map(|(n, fake)| spec(&format!("s{n}"), fake));
    let crib = servers.fold(Crib::builder(), toolcrib::CribBuilder::server).build().unwrap();
    let before = Instant::now();
    assert_eq!(crib.list().await.tools().len(), 30);
    assert_eq!(before.elapsed().as_secs(), 30u64.div_ceil(8));
}

#[tokio::test(start_paused = true)]
async fn an_eager_server_is_up_before_anybody_asks() {
    let fake = Fake::offering(&["log"]);
    let eager = spec("git", &fake).lifecycle(Lifecycle { start: Start::AtBoot, ..Lifecycle::default() });
    let crib = Crib::builder().server(eager).build().unwrap();
    breath().await;
    assert_eq!((fake.starts(), status(&crib, "git").state), (1, StateName::Ready));
    assert_eq!(names(&crib.catalog()), ["git__log"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_nobody_knows_is_an_error_that_names_it_and_the_nearest() {
    let fake = Fake::offering(&["log"]);
    let crib = crib(&[("git", &fake)]);
    let error = crib.call(Call::on(id("gti"), "log")).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unknown, "no server is called `gti`"));
    assert_eq!(error.advice(), "did you mean `git`?");
    let error = crib.call(Call::tool("git__lgo")).await.unwrap_err();
    assert_eq!((error.kind(), error.advice().as_str()), (ErrorKind::Unknown, "did you mean `git__log`?"));
    assert!(crib.stop(&id("nobody")).await.is_err() && crib.restart(&id("nobody")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_switched_off_is_shown_and_never_started() {
    let fake = Fake::offering(&["log"]);
    let mut off = spec("git", &fake);
    off.enabled = false;
    let crib = Crib::builder().server(off).build().unwrap();
    assert_eq!(status(&crib, "git").state, StateName::Disabled);
    assert_eq!(kind(crib.call(Call::on(id("git"), "log")).await), ErrorKind::Unknown);
    assert!(crib.list().await.tools().is_empty());
    assert_eq!(fake.starts(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_its_listing_does_not_hold_up_a_list_of_it() {
    let mute = Fake::new().script("tools/list", &[""]);
    let crib = crib(&[("mute", &mute)]);
    let before = Instant::now();
    let error = crib.list_of(&id("mute")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::CouldNotStart, 10));
    assert_eq!(error.to_string(), "`mute` is still starting");
    assert_eq!((mute.starts(), mute.heard("tools/list").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn many_servers_that_never_answer_their_listing_hold_up_a_list_no_longer_than_one() {
    let mutes: Vec<Fake> = (0..20).map(|_| Fake::new().script("tools/list", &[""])).collect();
    let servers = mutes.iter().enumerate().map(|(n, fake)| spec(&format!("m{n}"), fake));
    let crib = servers.fold(Crib::builder(), toolcrib::CribBuilder::server).build().unwrap();
    let before = Instant::now();
    let told = crib.discover().await;
    assert_eq!((before.elapsed().as_secs(), told.len()), (10, 20));
    assert!(told.iter().all(|discovery| discovery.tools.is_err()));
}

#[tokio::test(start_paused = true)]
async fn a_list_waits_for_a_slow_server_as_long_as_its_holder_can() {
    for (patience, listed) in [(5, false), (30, true)] {
        let fake = Fake::new().usually(Boot::Late(12 * SECOND));
        let crib = Crib::builder().server(spec("slow", &fake)).patience(patience * SECOND).build().unwrap();
        assert_eq!(!crib.list().await.tools().is_empty(), listed, "{patience} s");
    }
}
