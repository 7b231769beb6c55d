//! Stop, restart and retire requests, and what becomes of waiting calls.

use super::*;

#[tokio::test(start_paused = true)]
async fn stop_ends_leases_and_the_next_call_starts_again() {
    let fixture = fixture(FakeServer::new());
    let first = fixture.lease().await.unwrap();
    let _second = fixture.lease().await.unwrap();
    let calls = fixture.calls(3, "hold");
    fixture.wait_for_calls(3).await;
    fixture.supervisor.stop().await.unwrap();
    assert_eq!((fixture.state(), fixture.fake.running_and_peak().0), (ServerState::Asleep, 0));
    assert_eq!(error_kinds(calls).await, vec![Some(ErrorKind::Lost); 3]);
    let status = fixture.status();
    assert_eq!((status.leases, status.in_flight, status.restarts), (0, 0, 0));
    sleep(3600 * SECOND).await;
    assert_eq!(fixture.fake.starts(), 1);
    fixture.echo().await.unwrap();
    drop(first);
    yield_often().await;
    assert_eq!((fixture.fake.starts(), fixture.status().leases), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn stop_of_a_sleeping_server_succeeds() {
    let fixture = fixture(FakeServer::new());
    fixture.supervisor.stop().await.unwrap();
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Asleep, 0));
}

#[tokio::test(start_paused = true)]
async fn stop_during_start_fails_waiting_calls() {
    let fixture = fixture(FakeServer::new().next_starts(&[FakeStart::SlowHandshake(20 * SECOND)]));
    let calls = fixture.calls(4, "echo");
    fixture.wait_for(ServerState::Starting).await;
    fixture.supervisor.stop().await.unwrap();
    assert_eq!(error_kinds(calls).await, vec![Some(ErrorKind::Lost); 4]);
    yield_often().await;
    assert_eq!((fixture.state(), fixture.fake.running_and_peak().0), (ServerState::Asleep, 0));
    fixture.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_while_backing_off_prevents_the_restart() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.crash().await;
    fixture.wait_for(ServerState::BackingOff).await;
    let calls = fixture.calls(4, "echo");
    yield_often().await;
    fixture.supervisor.stop().await.unwrap();
    assert_eq!(error_kinds(calls).await, vec![Some(ErrorKind::Lost); 4]);
    sleep(60 * SECOND).await;
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn stop_during_a_crash_prevents_the_restart() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.fake.kill();
    fixture.supervisor.stop().await.unwrap();
    sleep(60 * SECOND).await;
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn restart_replaces_the_running_server() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    let calls = fixture.calls(2, "hold");
    fixture.wait_for_calls(3).await;
    fixture.supervisor.restart().await.unwrap();
    assert_eq!(error_kinds(calls).await, vec![Some(ErrorKind::Lost); 2]);
    let status = fixture.status();
    assert_eq!((status.state, status.generation, status.restarts), (ServerState::Ready, 2, 0));
    assert_eq!(fixture.fake.running_and_peak(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn restart_starts_a_sleeping_server_and_ends_backoff() {
    let fixture = fixture(FakeServer::new());
    fixture.supervisor.restart().await.unwrap();
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Ready, 1));
    fixture.crash().await;
    fixture.wait_for(ServerState::BackingOff).await;
    fixture.supervisor.restart().await.unwrap();
    assert_eq!((fixture.state(), fixture.status().restarts), (ServerState::Ready, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_restart_returns_the_error() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    let fixture = Fixture { fake: fixture.fake.default_start(FakeStart::Silent), ..fixture };
    let error = fixture.supervisor.restart().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
}

#[tokio::test(start_paused = true)]
async fn retired_server_finishes_calls_and_grants_no_leases() {
    let fixture = fixture(FakeServer::new());
    let calls = fixture.calls(3, "hold");
    fixture.wait_for_calls(3).await;
    let retiring = fixture.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { retiring.supervisor.retire(10 * SECOND).await });
    yield_often().await;
    assert_eq!(error_kind(fixture.echo().await), ErrorKind::ShuttingDown);
    assert_eq!((fixture.state(), fixture.fake.running_and_peak().0), (ServerState::Stopping, 1));
    fixture.fake.set_hold_open(true);
    assert!(error_kinds(calls).await.iter().all(Option::is_none));
    tasks.join_all().await;
    assert_eq!(fixture.fake.running_and_peak().0, 0);
}

#[tokio::test(start_paused = true)]
async fn retire_waits_at_most_the_drain_time() {
    let fixture = fixture(FakeServer::new());
    let calls = fixture.calls(3, "hang");
    fixture.wait_for_calls(3).await;
    let before = Instant::now();
    fixture.supervisor.retire(10 * SECOND).await;
    assert_eq!(before.elapsed().as_secs(), 10);
    assert_eq!(error_kinds(calls).await, vec![Some(ErrorKind::Lost); 3]);
    assert_eq!(fixture.fake.running_and_peak().0, 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_all_handles_stops_the_server() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    let Fixture { fake, supervisor, services } = fixture;
    drop(supervisor);
    services.tasks.close();
    services.tasks.wait().await;
    assert_eq!(fake.running_and_peak().0, 0);
}
