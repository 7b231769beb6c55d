//! Servers that stop responding: when they are pinged and what follows.

use super::*;
use crate::model::failure_class::FailureClass;

#[tokio::test(start_paused = true)]
async fn frozen_server_is_replaced_after_call_and_ping_timeout() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.fake.freeze();
    let before = Instant::now();
    let first = fixture.calls(1, "echo");
    sleep(30 * SECOND).await;
    let in_flight = fixture.calls(3, "echo");
    assert_eq!(error_kinds(first).await, [Some(ErrorKind::TimedOut)]);
    assert_eq!(before.elapsed().as_secs(), 60);
    let later = fixture.calls(3, "echo");
    for outcome in in_flight.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::Lost, 70));
        assert!(error.to_string().contains("hung") && error.to_string().contains("may have run"), "{error}");
    }
    assert_eq!(error_kinds(later).await, [None; 3], "later calls get the next process");
    assert!(before.elapsed() < 72 * SECOND, "{:?}", before.elapsed());
    fixture.echo().await.unwrap();
    let status = fixture.status();
    assert_eq!((status.restarts, status.generation, fixture.fake.running_and_peak()), (1, 2, (1, 1)));
    assert_eq!(status.last_error.unwrap().class, Some(FailureClass::Hung));
}

#[tokio::test(start_paused = true)]
async fn short_freeze_causes_no_ping() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.fake.freeze();
    let calls = fixture.calls(3, "echo");
    sleep(SECOND * 3 / 10).await;
    fixture.fake.thaw();
    assert!(error_kinds(calls).await.iter().all(Option::is_none));
    assert_eq!((fixture.fake.starts(), fixture.fake.received("ping").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn server_that_answers_the_ping_is_kept() {
    for (start, ping) in [(FakeStart::Session, "ping"), (FakeStart::Stateless, "server/discover")] {
        let fixture = fixture(FakeServer::new().default_start(start));
        let pings = |fixture: &Fixture| fixture.fake.received(ping).len();
        fixture.echo().await.unwrap();
        let before = pings(&fixture);
        assert_eq!(error_kinds(fixture.calls(2, "hang")).await, vec![Some(ErrorKind::TimedOut); 2]);
        sleep(60 * SECOND).await;
        assert_eq!(
            (pings(&fixture) - before, fixture.fake.starts()),
            (1, 1),
            "{start:?}: one ping is enough"
        );
        assert_eq!((fixture.state(), fixture.status().restarts), (ServerState::Ready, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn any_message_counts_as_ping_answer() {
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}"#;
    let fixture = fixture(FakeServer::new().script("ping", &[progress]));
    assert_eq!(error_kind(fixture.call("hang", NO_ARGUMENTS).await), ErrorKind::TimedOut);
    sleep(60 * SECOND).await;
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Ready, 1));
}

#[tokio::test(start_paused = true)]
async fn cancelled_calls_still_cause_a_ping() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    assert!(timeout(SECOND, fixture.call("hang", NO_ARGUMENTS)).await.is_err());
    yield_often().await;
    assert_eq!(fixture.fake.received("ping").len(), 0, "one second is too short for a ping");
    fixture.fake.freeze();
    assert!(timeout(10 * SECOND, fixture.echo()).await.is_err());
    fixture.wait_for(ServerState::BackingOff).await;
    assert_eq!(fixture.status().last_error.unwrap().class, Some(FailureClass::Hung));
}

#[tokio::test(start_paused = true)]
async fn idle_server_is_never_pinged() {
    let fixture =
        fixture_with(FakeServer::new(), Lifecycle { keep_alive: KeepAlive::Forever, ..lifecycle() });
    fixture.echo().await.unwrap();
    fixture.fake.freeze();
    sleep(30 * 24 * 3600 * SECOND).await;
    assert_eq!((fixture.state(), fixture.fake.received("ping").len()), (ServerState::Ready, 0));
}

#[tokio::test(start_paused = true)]
async fn server_is_pinged_before_use_after_suspend() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.suspend(600);
    assert!(error_kinds(fixture.calls(5, "echo")).await.iter().all(Option::is_none));
    assert_eq!((fixture.fake.received("ping").len(), fixture.fake.starts()), (1, 1));
    fixture.echo().await.unwrap();
    fixture.suspend(1);
    fixture.echo().await.unwrap();
    assert_eq!(fixture.fake.received("ping").len(), 1, "once per suspend, and not for a short one");
}

#[tokio::test(start_paused = true)]
async fn server_lost_in_suspend_is_replaced_before_the_call() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.fake.freeze();
    fixture.suspend(600);
    let before = Instant::now();
    assert!(error_kinds(fixture.calls(5, "echo")).await.iter().all(Option::is_none));
    assert!(before.elapsed() < 12 * SECOND, "{:?}", before.elapsed());
    assert_eq!(
        (fixture.fake.starts(), fixture.status().restarts, fixture.fake.called_tools().len()),
        (2, 1, 6)
    );
}

#[tokio::test(start_paused = true)]
async fn stop_during_ping_fails_waiting_calls() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.fake.freeze();
    fixture.suspend(600);
    let calls = fixture.calls(3, "echo");
    yield_often().await;
    fixture.supervisor.stop().await.unwrap();
    assert_eq!(error_kinds(calls).await, vec![Some(ErrorKind::Lost); 3]);
    assert_eq!(fixture.state(), ServerState::Asleep);
}
