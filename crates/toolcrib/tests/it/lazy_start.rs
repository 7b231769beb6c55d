//! A server starts when it is needed, and only once.

use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::{Call, Crib, ErrorKind, Lifecycle, ServerCard, ServerState, StartPolicy};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{FIRST_WAIT, SECOND, crib, id, kind, names, on, settle, spawn, spec, status};

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
    assert_eq!(before.elapsed(), FIRST_WAIT);
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
    let builder = Crib::builder().listing_wait(60 * SECOND);
    let crib = servers.fold(builder, toolcrib::CribBuilder::server).build().unwrap();
    let before = Instant::now();
    assert_eq!(crib.list().await.tools().len(), 30);
    assert_eq!(before.elapsed().as_secs(), 30u64.div_ceil(16));
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
async fn unanswered_listing_delays_only_those_who_ask_for_it() {
    let mute = FakeServer::new().script("tools/list", &["", ""]);
    let crib = crib(&[("mute", &mute)]);
    let before = Instant::now();
    let error = crib.list_server(&id("mute")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::CouldNotStart, 31));
    assert_eq!(error.to_string(), "`mute` runs, but has not answered `tools/list` yet");
    let before = Instant::now();
    crib.call(on("mute", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND, "{:?}", before.elapsed());
    let status = status(&crib, "mute");
    assert_eq!((status.state, status.tools), (ServerState::Ready, None));
    assert_eq!((mute.starts(), mute.received("tools/list").len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn card_lists_a_server_that_was_never_started() {
    let git = FakeServer::with_tools(&["log", "diff"]);
    let definition = serde_json::json!({"name": "log", "description": "from the card"});
    let card = ServerCard::new().title("Git").description("Reads history").tool(&definition).unwrap();
    let crib = Crib::builder().server(spec("git", &git).card(card.clone())).build().unwrap();
    assert_eq!(names(&crib.list().await), ["git__log"]);
    let before = status(&crib, "git");
    assert_eq!((git.starts(), before.tools), (0, Some(1)));
    assert_eq!((before.card.as_ref(), before.protocol), (Some(&card), None));
    // The server's own list replaces the tools of the card.
    crib.call(Call::tool("git__log")).await.unwrap();
    let mut catalog = crib.watch_catalog();
    let listed = catalog.wait_for(|catalog| catalog.tools().len() == 2).await.unwrap().clone();
    assert_eq!(names(&listed), ["git__log", "git__diff"]);
    assert_eq!(status(&crib, "git").card, Some(card));
}

#[tokio::test(start_paused = true)]
async fn tool_of_a_card_is_repaired_and_needs_no_discovery() {
    let git = FakeServer::with_tools(&["log"]);
    let other = FakeServer::with_tools(&["read"]);
    let card = ServerCard::new().tool(&serde_json::json!({"name": "log", "title": 5})).unwrap();
    let servers = Crib::builder().server(spec("git", &git).card(card)).server(spec("other", &other));
    let crib = servers.build().unwrap();
    let listed = crib.list().await;
    assert_eq!(names(&listed), ["git__log", "other__read"]);
    assert_eq!((git.starts(), other.starts()), (0, 1));
    assert_eq!(&*listed.tools()[0].definition, br#"{"inputSchema":{"type":"object"},"name":"log"}"#);
    assert_eq!(status(&crib, "git").problems, ["tool `log`: `title` has a wrong type"]);
    assert!(crib.discover().await.iter().all(|discovery| discovery.tools.is_ok()));
    assert_eq!(git.starts(), 0);
}

#[tokio::test(start_paused = true)]
async fn tool_of_a_card_that_the_server_lacks_is_unknown_after_its_start() {
    let git = FakeServer::with_tools(&["log"]);
    let card = ServerCard::new().tool(&serde_json::json!({"name": "gone"})).unwrap();
    let crib = Crib::builder().server(spec("git", &git).card(card)).build().unwrap();
    assert_eq!(names(&crib.list().await), ["git__gone"]);
    crib.call(Call::tool_on(id("git"), "log")).await.unwrap();
    let mut catalog = crib.watch_catalog();
    catalog.wait_for(|catalog| names(catalog) == ["git__log"]).await.unwrap();
    assert_eq!(kind(crib.call(Call::tool("git__gone")).await), ErrorKind::Unknown);
}
