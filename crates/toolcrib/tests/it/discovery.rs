//! First listings of servers: in the background, a few at a time, with every server getting its turn.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use toolcrib::{
    Call, Crib, CribBuilder, ErrorKind, FailureClass, FirstListingWait, Lifecycle, Pinning, Selector,
    ServerState, Sharing,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{FIRST_WAIT, SECOND, crib, id, names, roster, settle, spec, status};

/// Servers with one tool each and the same start behaviour.
fn fakes(count: usize, start: FakeStart) -> Vec<FakeServer> {
    (0..count).map(|_| FakeServer::with_tools(&["t"]).default_start(start)).collect()
}

/// Adds servers whose names begin with a prefix.
fn add(builder: CribBuilder, prefix: &str, fakes: &[FakeServer]) -> CribBuilder {
    let servers = fakes.iter().enumerate().map(|(n, fake)| spec(&format!("{prefix}{n}"), fake));
    servers.fold(builder, CribBuilder::server)
}

async fn wait_for_tools(crib: &Crib, count: usize) {
    let mut catalog = crib.watch_catalog();
    let listed = catalog.wait_for(|catalog| catalog.tools().len() == count);
    timeout(600 * SECOND, listed).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_servers_are_listed_without_another_request() {
    let slow = fakes(12, FakeStart::SlowHandshake(12 * SECOND));
    let fast = fakes(3, FakeStart::Session);
    let crib = add(add(Crib::builder(), "a", &slow), "z", &fast).build().unwrap();
    let before = Instant::now();
    assert_eq!(names(&crib.list().await), ["z0__t", "z1__t", "z2__t"]);
    assert_eq!(before.elapsed(), FIRST_WAIT);
    wait_for_tools(&crib, 15).await;
    assert_eq!(before.elapsed().as_secs(), 12);
    assert!(slow.iter().all(|fake| fake.starts() == 1));
}

#[tokio::test(start_paused = true)]
async fn hung_servers_do_not_hide_others() {
    for (hung, waited) in [(8, FIRST_WAIT), (40, 8 * SECOND)] {
        let silent = fakes(hung, FakeStart::Silent);
        let good = fakes(3, FakeStart::Session);
        let crib = add(add(Crib::builder(), "a", &silent), "z", &good).build().unwrap();
        let before = Instant::now();
        assert_eq!(crib.list().await.tools().len(), 3, "{hung} hung");
        assert_eq!(before.elapsed(), waited, "{hung} hung");
        // The last of 40 began after four seconds.
        sleep(4 * SECOND).await;
        let again = Instant::now();
        assert_eq!(crib.list().await.tools().len(), 3);
        assert_eq!(again.elapsed(), Duration::ZERO, "later lists do not wait");
        // Failed and retried servers delay no list either.
        for _ in 0..10 {
            sleep(20 * SECOND).await;
            let again = Instant::now();
            assert_eq!(crib.list().await.tools().len(), 3);
            assert_eq!(again.elapsed(), Duration::ZERO);
        }
        crib.shutdown(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_server_is_tried_again_until_it_is_listed() {
    let flaky = FakeServer::with_tools(&["t"]).next_starts(&[FakeStart::Silent, FakeStart::RefusesHandshake]);
    let crib = crib(&[("flaky", &flaky)]);
    assert!(crib.list().await.tools().is_empty());
    wait_for_tools(&crib, 1).await;
    assert_eq!((flaky.starts(), status(&crib, "flaky").state), (3, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn broken_server_is_ejected_and_not_started_again() {
    let broken = FakeServer::new().default_start(FakeStart::Exits);
    let crib = crib(&[("broken", &broken)]);
    crib.list().await;
    sleep(120 * SECOND).await;
    assert_eq!(status(&crib, "broken").state, ServerState::Ejected);
    let starts = broken.starts();
    let before = Instant::now();
    for _ in 0..10 {
        crib.list().await;
        sleep(60 * SECOND).await;
    }
    assert_eq!((broken.starts(), before.elapsed().as_secs()), (starts, 600));
    let found = crib.discover().await;
    assert_eq!(found[0].tools.as_ref().unwrap_err().kind(), ErrorKind::Ejected);
    assert!(!found[0].is_pending);
}

#[tokio::test(start_paused = true)]
async fn failed_start_is_reported_at_its_first_failure() {
    let broken = FakeServer::new().default_start(FakeStart::Exits);
    let probed = FakeServer::with_tools(&["t"]).default_start(FakeStart::ExitsOnProbe);
    let crib = crib(&[("broken", &broken), ("probed", &probed)]);
    let before = Instant::now();
    let found = crib.discover().await;
    assert!(before.elapsed() < SECOND, "{:?}", before.elapsed());
    assert_eq!(found[0].tools.as_ref().unwrap_err().class(), Some(FailureClass::Crashed));
    assert_eq!(found[1].tools.as_ref().unwrap().len(), 1, "an exit on the probe is not a failure");
}

#[tokio::test(start_paused = true)]
async fn late_exit_is_reported_before_the_next_start() {
    let broken = FakeServer::new().default_start(FakeStart::ExitsAfter(7 * SECOND));
    let crib = crib(&[("broken", &broken)]);
    let caller = toolcrib::Caller::local();
    let before = Instant::now();
    let found = crib.discover().await;
    assert_eq!(found[0].tools.as_ref().unwrap_err().class(), Some(FailureClass::Crashed));
    assert_eq!((before.elapsed().as_secs(), broken.starts()), (7, 1));
    crib.stop(&id("broken")).await.unwrap();
    for selector in [Selector::Tool("broken__x".to_owned()), Selector::OnServer(id("broken"), "x".to_owned())]
    {
        let before = Instant::now();
        let error = crib.find_at_first_failure(&caller, &selector).await.unwrap_err();
        assert_eq!(error.class(), Some(FailureClass::Crashed));
        assert!(before.elapsed() < 9 * SECOND, "{selector:?}: {:?}", before.elapsed());
    }
    let before = Instant::now();
    assert_eq!(crib.restart(&id("broken")).await.unwrap_err().class(), Some(FailureClass::Crashed));
    assert!(before.elapsed() < 8 * SECOND, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn server_that_exits_late_once_comes_up_in_a_session() {
    let fake = FakeServer::with_tools(&["t"]).next_starts(&[FakeStart::ExitsAfter(6 * SECOND)]);
    let crib = crib(&[("git", &fake)]);
    crib.call(Call::tool("git__t")).await.unwrap();
    assert_eq!((fake.starts(), fake.received("server/discover").len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn target_on_unknown_server_starts_nothing() {
    let fake = FakeServer::with_tools(&["t"]);
    let crib = crib(&[("git", &fake)]);
    let caller = toolcrib::Caller::local();
    let unknown = crib.find_at_first_failure(&caller, &Selector::OnServer(id("gti"), "t".to_owned())).await;
    assert_eq!((unknown.unwrap_err().kind(), fake.starts()), (ErrorKind::Unknown, 0));
    let target = crib.find_at_first_failure(&caller, &Selector::Tool("t".to_owned())).await.unwrap();
    assert_eq!((target.server, fake.starts()), (id("git"), 1));
    crib.start(&id("git")).await.unwrap();
    assert_eq!((fake.starts(), status(&crib, "git").state), (1, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn brief_discovery_reports_pending_servers() {
    let slow = FakeServer::with_tools(&["a"]).default_start(FakeStart::SlowHandshake(5 * SECOND));
    let quick = FakeServer::with_tools(&["b"]);
    let crib = crib(&[("slow", &slow), ("quick", &quick)]);
    let caller = toolcrib::Caller::local();
    let found = crib.discover_within_for(&caller, FirstListingWait::at_most(SECOND)).await;
    let pending: Vec<(&str, bool)> =
        found.iter().map(|found| (found.server.as_str(), found.is_pending)).collect();
    assert_eq!(pending, [("quick", false), ("slow", true)]);
    let found = crib.discover_for(&caller).await;
    assert!(found.iter().all(|found| found.tools.is_ok() && !found.is_pending));
    assert_eq!(slow.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_listed_together_are_in_one_new_catalog() {
    let start = |number: u64| FakeStart::SlowHandshake(Duration::from_millis(number));
    let fakes: Vec<FakeServer> =
        (1..=5).map(|number| FakeServer::with_tools(&["t"]).default_start(start(number))).collect();
    let crib = add(Crib::builder(), "s", &fakes).build().unwrap();
    let before = Instant::now();
    let revision = crib.catalog().revision();
    let listed = crib.list().await;
    assert_eq!((listed.tools().len(), listed.revision()), (5, revision + 1));
    assert_eq!(before.elapsed(), Duration::from_millis(5), "as soon as the last of them is listed");
}

#[tokio::test(start_paused = true)]
async fn list_has_a_server_that_was_listed_just_before_its_deadline() {
    let hung = FakeServer::new().default_start(FakeStart::Silent);
    let late = FakeStart::SlowHandshake(8 * SECOND - Duration::from_millis(2));
    let late = FakeServer::with_tools(&["t"]).default_start(late);
    let crib = crib(&[("hung", &hung), ("late", &late)]);
    assert_eq!(names(&crib.list().await), ["late__t"]);
}

#[tokio::test(start_paused = true)]
async fn first_seen_definitions_are_written_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let crib = |name: &str| {
        let server = spec(name, &FakeServer::with_tools(&["t"])).pin(Pinning::Strict);
        Crib::builder().server(server).pins_dir(folder.path()).build().unwrap()
    };
    let is_written = |name: &str| folder.path().join(format!("{name}.json")).exists();
    let [approving, replaced, stopping] = ["approving", "replaced", "stopping"].map(crib);
    for crib in [&approving, &replaced, &stopping] {
        crib.list().await;
    }
    assert!(!["approving", "replaced", "stopping"].into_iter().any(is_written), "they are written later");
    approving.unapproved(&id("approving")).await.unwrap();
    assert!(is_written("approving"), "an approval adds to them");
    replaced.flush_files().await;
    assert!(is_written("replaced"), "another process reads them");
    stopping.shutdown(SECOND).await;
    assert!(is_written("stopping"), "the next crib reads them");
}

#[tokio::test(start_paused = true)]
async fn corrected_spec_is_discovered_without_waiting_for_the_backoff() {
    let hung = FakeServer::new().default_start(FakeStart::Silent);
    let crib = crib(&[("git", &hung)]);
    crib.list().await;
    sleep(95 * SECOND).await;
    let good = FakeServer::with_tools(&["log"]);
    crib.apply_roster(roster([spec("git", &good)])).await.unwrap();
    settle().await;
    assert_eq!(names(&crib.catalog()), ["git__log"]);
}

#[tokio::test(start_paused = true)]
async fn server_that_is_not_shared_is_discovered_once() {
    let fake = FakeServer::with_tools(&["t"]).default_start(FakeStart::SlowHandshake(12 * SECOND));
    let spec = spec("own", &fake).sharing(Sharing::PerClient);
    let crib = Crib::builder().server(spec).build().unwrap();
    for _ in 0..3 {
        assert!(crib.list().await.tools().is_empty());
    }
    wait_for_tools(&crib, 1).await;
    assert_eq!(fake.starts(), 1);
    settle().await;
    assert_eq!(fake.running_and_peak().0, 0, "the temporary instance ends");
}

#[tokio::test(start_paused = true)]
async fn dropped_crib_ends_its_discoveries() {
    let hung = fakes(3, FakeStart::Silent);
    let crib = add(Crib::builder(), "a", &hung).build().unwrap();
    crib.list().await;
    drop(crib);
    settle().await;
    assert!(hung.iter().all(|fake| fake.running_and_peak().0 == 0));
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_discoveries_in_every_state() {
    let hung = FakeServer::new().default_start(FakeStart::Silent);
    let failing = FakeServer::new().default_start(FakeStart::RefusesHandshake);
    let crib = crib(&[("hung", &hung), ("failing", &failing)]);
    crib.list().await;
    let mut waiting = JoinSet::new();
    waiting.spawn({
        let crib = crib.clone();
        async move { crib.discover().await }
    });
    settle().await;
    let before = Instant::now();
    crib.shutdown(SECOND).await;
    assert!(before.elapsed() < 5 * SECOND);
    assert_eq!(waiting.join_all().await[0].len(), 2);
    let starts = failing.starts();
    assert!(crib.list().await.tools().is_empty());
    sleep(60 * SECOND).await;
    assert_eq!(failing.starts(), starts);
}

#[tokio::test(start_paused = true)]
async fn first_call_by_public_name_follows_the_start_timeout() {
    let slow = FakeServer::with_tools(&["log"]).default_start(FakeStart::SlowHandshake(25 * SECOND));
    let others = fakes(40, FakeStart::Silent);
    let crib = add(Crib::builder(), "a", &others).server(spec("git", &slow)).build().unwrap();
    crib.list().await;
    let before = Instant::now();
    crib.call(Call::tool("git__log")).await.unwrap();
    assert!(before.elapsed() <= 25 * SECOND, "{:?}", before.elapsed());
    let lifecycle = Lifecycle { start_timeout: 50 * SECOND, ..Lifecycle::default() };
    let slow = FakeServer::with_tools(&["log"]).default_start(FakeStart::SlowHandshake(45 * SECOND));
    let crib = Crib::builder().server(spec("git", &slow).lifecycle(lifecycle)).build().unwrap();
    crib.call(Call::tool("git__log")).await.unwrap();
    assert!(crib.contains(&id("git")));
}
