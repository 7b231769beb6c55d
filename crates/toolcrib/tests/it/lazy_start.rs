//! A server starts when it is needed, and only once.

use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::{Call, Crib, ErrorKind, Lifecycle, ServerState, StartPolicy};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, id, kind, names, settle, spawn, spec, status};

#[tokio::test(start_paused = true)]
async fn server_starts_on_its_first_call() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["now"]);
    let crib = crib(&[("git", &git), ("time", &time)]);
    assert_eq!(crib.status().iter().map(|status| status.state).collect::<Vec<_>>(), [ServerState::Asleep; 2]);
    assert!(crib.catalog().tools().is_empty());
    crib.call(Call::tool("git__log")).await.unwrap();
    assert_eq!((git.starts(), time.starts()), (1, 0));
    crib.call(Call::tool_on(id("git"), "log")).await.unwrap();
    assert_eq!((git.starts(), time.starts()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn concurrent_first_calls_start_each_server_once() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["now"]).default_start(FakeStart::SlowHandshake(SECOND));
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = JoinSet::new();
    (0..64).for_each(|_| spawn(&mut calls, &crib, Call::tool("log")));
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!((git.starts(), time.starts()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn list_starts_only_undiscovered_servers() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["now"]);
    let crib = crib(&[("git", &git), ("time", &time)]);
    assert_eq!(names(&crib.list().await), ["git__log", "time__now"]);
    for server in ["git", "time"] {
        crib.stop(&id(server)).await.unwrap();
    }
    assert_eq!(names(&crib.list().await), ["git__log", "time__now"]);
    assert_eq!((git.starts(), time.starts()), (1, 1));
    assert_eq!(status(&crib, "git").state, ServerState::Asleep);
}

#[tokio::test(start_paused = true)]
async fn list_wait_is_bounded_and_late_tools_are_announced() {
    let quick = FakeServer::with_tools(&["a"]);
    let slow = FakeServer::with_tools(&["b"]).default_start(FakeStart::SlowHandshake(20 * SECOND));
    let crib = crib(&[("quick", &quick), ("slow", &slow)]);
    let before = Instant::now();
    assert_eq!(names(&crib.list().await), ["quick__a"]);
    assert_eq!(before.elapsed().as_secs(), 10);
    let mut catalog = crib.watch_catalog();
    catalog.wait_for(|catalog| catalog.tools().len() == 2).await.unwrap();
    assert_eq!((before.elapsed().as_secs(), slow.starts()), (20, 1));
}

#[tokio::test(start_paused = true)]
async fn undiscovered_servers_start_concurrently() {
    let fakes: Vec<FakeServer> = (0..30)
        .map(|_| FakeServer::with_tools(&["t"]).default_start(FakeStart::SlowHandshake(SECOND)))
        .collect();
    let servers = fakes.iter().enumerate().map(|(n, fake)| spec(&format!("s{n}"), fake));
    let crib = servers.fold(Crib::builder(), toolcrib::CribBuilder::server).build().unwrap();
    let before = Instant::now();
    assert_eq!(crib.list().await.tools().len(), 30);
    assert_eq!(before.elapsed().as_secs(), 30u64.div_ceil(8));
}

#[tokio::test(start_paused = true)]
async fn eager_server_starts_with_the_crib() {
    let fake = FakeServer::with_tools(&["log"]);
    let eager =
        spec("git", &fake).lifecycle(Lifecycle { start: StartPolicy::AtBoot, ..Lifecycle::default() });
    let crib = Crib::builder().server(eager).build().unwrap();
    settle().await;
    assert_eq!((fake.starts(), status(&crib, "git").state), (1, ServerState::Ready));
    assert_eq!(names(&crib.catalog()), ["git__log"]);
}

#[tokio::test(start_paused = true)]
async fn unknown_server_error_suggests_the_closest_name() {
    let fake = FakeServer::with_tools(&["log"]);
    let crib = crib(&[("git", &fake)]);
    let error = crib.call(Call::tool_on(id("gti"), "log")).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unknown, "no server is called `gti`"));
    assert_eq!(error.hint(), "did you mean `git`?");
    let error = crib.call(Call::tool("git__lgo")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.hint().to_string().as_str()),
        (ErrorKind::Unknown, "did you mean `git__log`?")
    );
    assert!(crib.stop(&id("absent")).await.is_err() && crib.restart(&id("absent")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn disabled_server_is_shown_and_never_started() {
    let fake = FakeServer::with_tools(&["log"]);
    let mut off = spec("git", &fake);
    off.enabled = false;
    let crib = Crib::builder().server(off).build().unwrap();
    assert_eq!(status(&crib, "git").state, ServerState::Disabled);
    assert_eq!(kind(crib.call(Call::tool_on(id("git"), "log")).await), ErrorKind::Unknown);
    assert!(crib.list().await.tools().is_empty());
    assert_eq!(fake.starts(), 0);
}

#[tokio::test(start_paused = true)]
async fn unanswered_listing_ends_at_the_timeout() {
    let mute = FakeServer::new().script("tools/list", &[""]);
    let crib = crib(&[("mute", &mute)]);
    let before = Instant::now();
    let error = crib.list_server(&id("mute")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::CouldNotStart, 10));
    assert_eq!(error.to_string(), "server `mute` is still starting");
    assert_eq!((mute.starts(), mute.received("tools/list").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn unanswered_listings_time_out_together() {
    let mutes: Vec<FakeServer> = (0..20).map(|_| FakeServer::new().script("tools/list", &[""])).collect();
    let servers = mutes.iter().enumerate().map(|(n, fake)| spec(&format!("m{n}"), fake));
    let crib = servers.fold(Crib::builder(), toolcrib::CribBuilder::server).build().unwrap();
    let before = Instant::now();
    let discovered = crib.discover().await;
    assert_eq!((before.elapsed().as_secs(), discovered.len()), (10, 20));
    assert!(discovered.iter().all(|discovery| discovery.tools.is_err()));
}

#[tokio::test(start_paused = true)]
async fn list_waits_for_the_discovery_timeout() {
    for (seconds, listed) in [(5, false), (30, true)] {
        let fake = FakeServer::new().default_start(FakeStart::SlowHandshake(12 * SECOND));
        let crib =
            Crib::builder().server(spec("slow", &fake)).discovery_timeout(seconds * SECOND).build().unwrap();
        assert_eq!(!crib.list().await.tools().is_empty(), listed, "{seconds} s");
    }
}
