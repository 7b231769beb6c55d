//! The treatment of each failure class.

use super::*;
use crate::model::failure_class::FailureClass;

fn class(fixture: &Fixture) -> Option<FailureClass> {
    fixture.status().last_error.unwrap().class
}

#[tokio::test(start_paused = true)]
async fn misconfigured_server_is_ejected_until_restart() {
    let fixture = fixture(FakeServer::new().next_starts(&[FakeStart::InvalidHandshake]));
    let mut events = fixture.services.observers.subscribe();
    let error = fixture.echo().await.unwrap_err();
    assert_eq!((error.kind(), error.class()), (ErrorKind::CouldNotStart, Some(FailureClass::Misconfigured)));
    assert_eq!(
        (error.data()["class"].clone(), error.data()["sent"].clone()),
        (json!("misconfigured"), json!("never"))
    );
    fixture.wait_for(ServerState::Ejected).await;
    let before = Instant::now();
    let status = fixture.status();
    assert_eq!((fixture.fake.starts(), status.restarts, status.restarts_left), (1, 0, 2));
    let again = fixture.echo().await.unwrap_err();
    assert_eq!(
        (again.kind(), again.class(), before.elapsed()),
        (ErrorKind::Ejected, class(&fixture), Duration::ZERO)
    );
    assert!(matches!(events.try_recv(), Ok(Event::Ejected { class: FailureClass::Misconfigured, .. })));
    sleep(3600 * SECOND).await;
    assert_eq!(fixture.fake.starts(), 1, "an ejection does not expire");
    fixture.supervisor.restart().await.unwrap();
    fixture.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn echoing_program_is_misconfigured() {
    let fixture = fixture(FakeServer::new().default_start(FakeStart::Echoes));
    let error = fixture.echo().await.unwrap_err();
    assert!(error.to_string().contains("echoes its input"), "{error}");
    fixture.wait_for(ServerState::Ejected).await;
    assert_eq!((class(&fixture), fixture.fake.starts()), (Some(FailureClass::Misconfigured), 1));
}

#[tokio::test(start_paused = true)]
async fn refused_handshake_spends_restarts_and_fails_callers() {
    let fixture = fixture(FakeServer::new().default_start(FakeStart::RefusesHandshake));
    for restarts in 1..=2 {
        let error = fixture.echo().await.unwrap_err();
        assert_eq!((error.kind(), error.class()), (ErrorKind::CouldNotStart, Some(FailureClass::Refused)));
        assert!(error.to_string().contains("not today"), "{error}");
        yield_often().await;
        assert_eq!((fixture.status().restarts, fixture.state()), (restarts, ServerState::BackingOff));
    }
    fixture.echo().await.unwrap_err();
    fixture.wait_for(ServerState::Ejected).await;
    assert_eq!(fixture.fake.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn crash_and_slow_start_have_their_class() {
    let fixture = fixture(FakeServer::new().next_starts(&[FakeStart::Session, FakeStart::Silent]));
    fixture.echo().await.unwrap();
    fixture.crash().await;
    assert_eq!(class(&fixture), Some(FailureClass::Crashed));
    fixture.echo().await.unwrap_err();
    assert_eq!(class(&fixture), Some(FailureClass::SlowToStart));
    assert_eq!(fixture.status().restarts, 2);
}

#[tokio::test(start_paused = true)]
async fn stable_uptime_resets_backoff_but_not_budget() {
    let mut lifecycle = lifecycle();
    lifecycle.restarts.at_most = 4;
    let fixture = fixture_with(FakeServer::new(), lifecycle);
    let mut waits = Vec::new();
    for up in [0, 0, 31, 0] {
        fixture.echo().await.unwrap();
        let lease = fixture.lease().await.unwrap();
        sleep(up * SECOND).await;
        drop(lease);
        fixture.crash().await;
        waits.push(fixture.status().next_attempt_in.unwrap().as_millis());
    }
    for (wait, full) in waits.iter().zip([100, 200, 100, 200]) {
        assert!((full * 3 / 4..=full).contains(wait), "{waits:?}");
    }
    assert_eq!(fixture.status().restarts_left, 0);
}
