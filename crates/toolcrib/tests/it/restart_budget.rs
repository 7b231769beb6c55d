//! All instances of a server share one restart budget.

use tokio::task::JoinSet;
use tokio::time::advance;
use toolcrib::protocol::versions::Era;
use toolcrib::spec::{EraChoice, Restarts};
use toolcrib::{Crib, ErrorKind, Lifecycle, ServerState, Sharing};

use crate::fake::{FakeServer, FakeStart};
use crate::sharing::{call_as, shared};
use crate::support::{SECOND, id, settle, spawn, status};

#[tokio::test(start_paused = true)]
async fn crashes_count_per_server_and_keep_live_instances() {
    let fake = FakeServer::new();
    let restarts = Restarts { at_most: 2, within: 300 * SECOND };
    let lifecycle = Lifecycle { restarts, ..Lifecycle::default() };
    let crib =
        Crib::builder().server(shared(&fake, Sharing::PerClient).lifecycle(lifecycle)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, call_as(2, "hold"));
    settle().await;
    let mut kinds = Vec::new();
    for _ in 0..5 {
        kinds.push(crib.call(call_as(1, "die")).await.unwrap_err().kind());
        settle().await;
        advance(10 * SECOND).await;
        settle().await;
    }
    assert_eq!(fake.starts(), 1 + 3, "{kinds:?}");
    assert_eq!(kinds[3..], [ErrorKind::Ejected, ErrorKind::Ejected]);
    // Running instances stay; no new one is started.
    crib.call(call_as(2, "echo")).await.unwrap();
    assert_eq!(crib.call(call_as(3, "echo")).await.unwrap_err().kind(), ErrorKind::Ejected);
    fake.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    let seen = status(&crib, "s");
    assert_eq!((seen.restarts, seen.restarts_left, seen.state), (2, 0, ServerState::Ready));
    crib.restart(&id("s")).await.unwrap();
    assert_eq!(status(&crib, "s").restarts, 0);
    for key in [1, 3] {
        crib.call(call_as(key, "echo")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn instances_share_one_restart_budget() {
    for boot in [FakeStart::Exits, FakeStart::Silent] {
        let fake = FakeServer::new().default_start(boot);
        let restarts = Restarts { at_most: 3, within: 3600 * SECOND };
        let lifecycle = Lifecycle { restarts, ..Lifecycle::default() };
        let mut spec = shared(&fake, Sharing::PerClient).lifecycle(lifecycle);
        spec.era = EraChoice::Era(Era::Session);
        let crib = Crib::builder().server(spec).build().unwrap();
        for _ in 0..4 {
            let mut calls = JoinSet::new();
            (0..15).for_each(|key| spawn(&mut calls, &crib, call_as(key, "echo")));
            for ended in calls.join_all().await {
                let kind = ended.unwrap_err().kind();
                assert!(matches!(kind, ErrorKind::CouldNotStart | ErrorKind::Ejected), "{kind:?}");
            }
            advance(SECOND).await;
        }
        let seen = status(&crib, "s");
        assert_eq!((fake.starts(), seen.restarts_left), (4, 0), "{boot:?}");
        assert_eq!(seen.state, ServerState::Ejected, "{boot:?}");
        (0..15).for_each(|key| crib.client_disconnected(key));
        settle().await;
        let seen = status(&crib, "s");
        assert_eq!(
            (seen.state, seen.instances.len()),
            (ServerState::Ejected, 0),
            "it stays ejected without instances"
        );
        assert!(seen.last_error.is_some());
        let fake = fake.default_start(FakeStart::Session);
        crib.restart(&id("s")).await.unwrap();
        crib.call(call_as(1, "echo")).await.unwrap();
        assert_eq!(fake.starts(), 5);
    }
}
