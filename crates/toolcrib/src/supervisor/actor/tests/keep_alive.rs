//! Starting on demand, staying up while leased, and going to sleep.

use super::*;
use crate::model::event::ServerNotification;

#[tokio::test(start_paused = true)]
async fn server_starts_on_first_call() {
    let fixture = fixture(FakeServer::new());
    sleep(3600 * SECOND).await;
    assert_eq!((fixture.fake.starts(), fixture.state()), (0, ServerState::Asleep));
    fixture.echo().await.unwrap();
    assert_eq!((fixture.fake.starts(), fixture.state()), (1, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn at_boot_server_starts_by_itself_and_after_a_crash() {
    let fixture = fixture_with(FakeServer::new(), Lifecycle { start: StartPolicy::AtBoot, ..lifecycle() });
    fixture.wait_for(ServerState::Ready).await;
    assert_eq!(fixture.fake.starts(), 1);
    fixture.crash().await;
    fixture.wait_for(ServerState::Ready).await;
    assert_eq!(fixture.fake.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn at_boot_server_kept_forever_stays_without_leases() {
    let fixture = fixture_with(
        FakeServer::new(),
        Lifecycle { start: StartPolicy::AtBoot, keep_alive: KeepAlive::Forever, ..lifecycle() },
    );
    fixture.wait_for(ServerState::Ready).await;
    sleep(30 * 24 * 3600 * SECOND).await;
    assert_eq!((fixture.fake.starts(), fixture.state()), (1, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn concurrent_first_calls_start_one_process() {
    let fixture = fixture(FakeServer::new().default_start(FakeStart::SlowHandshake(SECOND)));
    let calls = fixture.calls(64, "echo");
    assert!(error_kinds(calls).await.iter().all(Option::is_none));
    assert_eq!((fixture.fake.starts(), fixture.fake.called_tools().len()), (1, 64));
}

#[tokio::test(start_paused = true)]
async fn server_stays_while_leased_then_sleeps_after_keep_alive() {
    let fixture = fixture(FakeServer::new());
    let lease = fixture.lease().await.unwrap();
    sleep(3600 * SECOND).await;
    assert_eq!((fixture.state(), fixture.status().leases), (ServerState::Ready, 1));
    drop(lease);
    sleep(59 * SECOND).await;
    assert_eq!((fixture.state(), fixture.status().leases), (ServerState::Ready, 0));
    sleep(2 * SECOND).await;
    assert_eq!((fixture.state(), fixture.fake.running_and_peak().0), (ServerState::Asleep, 0));
}

#[tokio::test(start_paused = true)]
async fn call_longer_than_keep_alive_is_not_interrupted() {
    let fixture =
        fixture_with(FakeServer::new(), Lifecycle { keep_alive: KeepAlive::For(SECOND), ..lifecycle() });
    fixture.call("slow", json!({"ms": 50_000})).await.unwrap();
    assert_eq!(fixture.fake.starts(), 1);
    sleep(2 * SECOND).await;
    assert_eq!(fixture.fake.running_and_peak().0, 0);
}

#[tokio::test(start_paused = true)]
async fn zero_keep_alive_stops_with_the_last_lease() {
    let fixture = fixture_with(
        FakeServer::new(),
        Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..lifecycle() },
    );
    let first = fixture.lease().await.unwrap();
    let second = fixture.lease().await.unwrap();
    drop(first);
    yield_often().await;
    assert_eq!(fixture.state(), ServerState::Ready);
    let before = Instant::now();
    drop(second);
    fixture.wait_for(ServerState::Asleep).await;
    assert!(before.elapsed() < SECOND);
    assert_eq!((fixture.fake.starts(), fixture.fake.running_and_peak().0), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn zero_keep_alive_serves_the_call_that_started_it() {
    let fixture = fixture_with(
        FakeServer::new(),
        Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..lifecycle() },
    );
    for _ in 0..5 {
        fixture.echo().await.unwrap();
    }
    assert_eq!(fixture.fake.called_tools().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn keep_alive_forever_never_stops() {
    let fixture =
        fixture_with(FakeServer::new(), Lifecycle { keep_alive: KeepAlive::Forever, ..lifecycle() });
    fixture.echo().await.unwrap();
    sleep(365 * 24 * 3600 * SECOND).await;
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Ready, 1));
}

#[tokio::test(start_paused = true)]
async fn lease_within_keep_alive_cancels_the_stop() {
    let fixture = fixture(FakeServer::new());
    for _ in 0..10 {
        fixture.echo().await.unwrap();
        sleep(45 * SECOND).await;
    }
    assert_eq!((fixture.fake.starts(), fixture.state()), (1, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn call_at_the_end_of_keep_alive_is_served() {
    let fixture = fixture(FakeServer::new());
    for early in 0..40 {
        fixture.echo().await.unwrap();
        sleep(60 * SECOND - Duration::from_micros(20) + Duration::from_micros(early)).await;
        fixture.echo().await.unwrap();
    }
    assert_eq!(fixture.status().restarts, 0);
    assert_eq!(fixture.fake.running_and_peak().1, 1);
}

#[tokio::test(start_paused = true)]
async fn caller_cancelled_during_start_leaves_no_lease() {
    let fixture = fixture(FakeServer::new().default_start(FakeStart::SlowHandshake(5 * SECOND)));
    let cancelled = timeout(SECOND, fixture.lease()).await;
    assert!(cancelled.is_err());
    fixture.wait_for(ServerState::Ready).await;
    yield_often().await;
    assert_eq!((fixture.status().leases, fixture.fake.starts()), (0, 1));
    sleep(61 * SECOND).await;
    assert_eq!(fixture.state(), ServerState::Asleep);
}

#[tokio::test(start_paused = true)]
async fn status_counts_calls_and_leases() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.call("fail", NO_ARGUMENTS).await.unwrap();
    let calls = fixture.calls(3, "hold");
    fixture.wait_for_calls(5).await;
    let status = fixture.status();
    assert_eq!((status.leases, status.in_flight, status.generation), (3, 3, 1));
    assert_eq!((status.calls, status.errors, status.tools), (2, 1, Some(9)));
    assert!(status.uptime.is_some() && status.p50.is_some() && status.server_info.is_some());
    fixture.fake.set_hold_open(true);
    error_kinds(calls).await;
    yield_often().await;
    let status = fixture.status();
    assert_eq!((status.leases, status.in_flight, status.calls, status.errors), (0, 0, 5, 1));
}

#[tokio::test(start_paused = true)]
async fn events_follow_start_crash_and_stop() {
    let fixture = fixture(FakeServer::new());
    let mut events = fixture.services.observers.subscribe();
    fixture.echo().await.unwrap();
    fixture.crash().await;
    fixture.echo().await.unwrap();
    fixture.supervisor.stop().await.unwrap();
    let events: Vec<String> =
        std::iter::from_fn(|| events.try_recv().ok()).map(|event| format!("{event:?}")).collect();
    let names: Vec<&str> = events.iter().map(|event| event.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["Started", "ListingChanged", "Crashed", "Started", "Stopped"]);
}

#[tokio::test(start_paused = true)]
async fn list_that_cannot_be_read_again_is_kept() {
    let answer = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
    let initialized = answer(r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}}}"#);
    let tools = |name: &str| answer(&format!(r#"{{"tools":[{{"name":"{name}"}}]}}"#));
    let prompts = answer(r#"{"prompts":[{"name":"p"}]}"#);
    let failure = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32603,"message":"not now"}}"#;
    let fixture = fixture(
        FakeServer::new()
            .script("initialize", &[&initialized])
            .script("tools/list", &[&tools("say"), &tools("new")])
            .script("prompts/list", &[&prompts, failure]),
    );
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    fixture.call("say", json!({"lines": [changed, answer("{}")]})).await.unwrap();
    let mut snapshot = fixture.supervisor.0.snapshot.clone();
    let is_new = |listing: &Listing| listing.tools.iter().any(|tool| &*tool.name == "new");
    let seen =
        snapshot.wait_for(|now| now.known_listing.as_ref().is_some_and(|known| is_new(&known.listing)));
    let listing = seen.await.unwrap().known_listing.clone().unwrap().listing;
    assert_eq!(listing.prompts.iter().map(|prompt| &*prompt.name).collect::<Vec<_>>(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn task_and_elicitation_notifications_carry_their_id() {
    let fixture = fixture(FakeServer::new());
    let mut notifications = fixture.services.notifications.subscribe();
    let line = |method: &str, params: serde_json::Value| {
        json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
    };
    let lines = [
        line("notifications/elicitation/complete", json!({"elicitationId": "e"})),
        line("notifications/tasks/status", json!({"taskId": "t", "status": "working"})),
        r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#.to_owned(),
    ];
    fixture.call("say", json!({ "lines": lines })).await.unwrap();
    for expected in ["e", "t"] {
        let ServerNotification::FollowUp { name, .. } = notifications.recv().await.unwrap() else {
            panic!("unexpected notification")
        };
        assert_eq!(&*name, expected);
    }
}
