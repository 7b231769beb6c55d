//! Dropping the future is the cancel, here and at the server.

use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use toolcrib::{Call, Crib, Limits, StateName, Told};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, crib, on, spawn, spec, status};

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_cancelled_at_the_server_under_its_own_number() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hold"));
    breath().await;
    assert!(timeout(SECOND, crib.call(on("git", "hang"))).await.is_err());
    breath().await;
    let cancelled = fake.heard("notifications/cancelled");
    let hanging = fake.heard("tools/call").into_iter().find(|call| call["params"]["name"] == "hang").unwrap();
    assert_eq!((cancelled.len(), &cancelled[0]["params"]["requestId"]), (1, &hanging["id"]));
    assert_eq!((status(&crib, "git").leases, status(&crib, "git").in_flight), (1, 1));
    fake.open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_cancelled_calls_leave_nothing_behind() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..1000).for_each(|_| spawn(&mut calls, &crib, on("git", "hang")));
    sleep(SECOND).await;
    calls.shutdown().await;
    breath().await;
    let status = status(&crib, "git");
    assert_eq!((status.leases, status.in_flight, status.state), (0, 0, StateName::Ready));
    assert_eq!(fake.heard("notifications/cancelled").len(), fake.heard("tools/call").len());
    crib.call(on("git", "echo")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_turn_is_never_sent_once_dropped() {
    let fake = Fake::new();
    let narrow = Limits { in_flight: 1.try_into().unwrap(), ..Limits::default() };
    let crib = Crib::builder().server(spec("git", &fake).limits(narrow)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hold"));
    breath().await;
    assert!(timeout(SECOND, crib.call(on("git", "echo"))).await.is_err());
    fake.open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    breath().await;
    assert_eq!((fake.called(), status(&crib, "git").leases), (vec!["hold".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_the_start_leaves_the_server_to_its_keep_alive() {
    let fake = Fake::new().usually(Boot::Late(5 * SECOND));
    let crib = crib(&[("git", &fake)]);
    assert!(timeout(SECOND, crib.call(Call::tool("git__echo"))).await.is_err());
    sleep(10 * SECOND).await;
    assert_eq!((status(&crib, "git").state, status(&crib, "git").leases), (StateName::Ready, 0));
    sleep(300 * SECOND).await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (StateName::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_caller_in_order_through_the_whole_crib() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let (sink, mut steps) = mpsc::channel(4);
    let call = on("git", "progress").arguments(&json!({"steps": 50, "every": 10})).tell(sink);
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, call);
    for step in 1..=50 {
        let Some(Told::Progress(progress)) = steps.recv().await else { panic!("no progress") };
        assert_eq!(progress.get("progress").unwrap(), step.to_string().as_str());
    }
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    assert!(steps.recv().await.is_none());
}
