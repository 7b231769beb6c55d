//! Dropping the future of a call cancels it, also at the server.

use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use toolcrib::{Call, CallUpdate, Crib, ServerLimits, ServerState};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, on, settle, spawn, spec, status};

#[tokio::test(start_paused = true)]
async fn dropped_call_is_cancelled_by_its_request_id() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hold"));
    settle().await;
    assert!(timeout(SECOND, crib.call(on("git", "hang"))).await.is_err());
    settle().await;
    let cancelled = fake.received("notifications/cancelled");
    let hanging =
        fake.received("tools/call").into_iter().find(|call| call["params"]["name"] == "hang").unwrap();
    assert_eq!((cancelled.len(), &cancelled[0]["params"]["requestId"]), (1, &hanging["id"]));
    assert_eq!((status(&crib, "git").leases, status(&crib, "git").in_flight), (1, 1));
    fake.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn many_cancelled_calls_leave_no_leases() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..1000).for_each(|_| spawn(&mut calls, &crib, on("git", "hang")));
    sleep(SECOND).await;
    calls.shutdown().await;
    settle().await;
    let status = status(&crib, "git");
    assert_eq!((status.leases, status.in_flight, status.state), (0, 0, ServerState::Ready));
    assert_eq!(fake.received("notifications/cancelled").len(), fake.received("tools/call").len());
    crib.call(on("git", "echo")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn queued_call_is_not_sent_after_drop() {
    let fake = FakeServer::new();
    let narrow = ServerLimits { in_flight: 1.try_into().unwrap(), ..ServerLimits::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(narrow)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hold"));
    settle().await;
    assert!(timeout(SECOND, crib.call(on("git", "echo"))).await.is_err());
    fake.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    settle().await;
    assert_eq!((fake.called_tools(), status(&crib, "git").leases), (vec!["hold".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn call_dropped_during_start_keeps_the_server() {
    let fake = FakeServer::new().default_start(FakeStart::SlowHandshake(5 * SECOND));
    let crib = crib(&[("git", &fake)]);
    assert!(timeout(SECOND, crib.call(Call::tool("git__echo"))).await.is_err());
    sleep(10 * SECOND).await;
    assert_eq!((status(&crib, "git").state, status(&crib, "git").leases), (ServerState::Ready, 0));
    sleep(300 * SECOND).await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (ServerState::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_caller_in_order() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let (sink, mut steps) = mpsc::channel(4);
    let call = on("git", "progress").arguments(&json!({"steps": 50, "every": 10})).updates(sink);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, call);
    for step in 1..=50 {
        let Some(CallUpdate::Progress(progress)) = steps.recv().await else { panic!("no progress") };
        assert_eq!(progress.get("progress").unwrap(), step.to_string().as_str());
    }
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    assert!(steps.recv().await.is_none());
}
