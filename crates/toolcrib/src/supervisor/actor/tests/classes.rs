//! What is done about each class of failure.

use super::*;
use crate::class::FailureClass;

fn class(house: &House) -> Option<FailureClass> {
    house.status().last_error.unwrap().class
}

#[tokio::test(start_paused = true)]
async fn what_can_never_work_is_given_up_at_once_and_a_restart_revives_it() {
    let house = house(Fake::new().boots(&[Boot::Babbles]));
    let mut events = house.around.events.subscribe();
    let error = house.echo().await.unwrap_err();
    assert_eq!((error.kind(), error.class()), (ErrorKind::CouldNotStart, Some(FailureClass::Misconfigured)));
    assert_eq!(
        (error.data()["class"].clone(), error.data()["sent"].clone()),
        (json!("misconfigured"), json!("never"))
    );
    house.until(StateName::Ejected).await;
    let (before, status) = (Instant::now(), house.status());
    assert_eq!((house.fake.starts(), status.restarts, status.restarts_left), (1, 0, 2));
    let again = house.echo().await.unwrap_err();
    assert_eq!(
        (again.kind(), again.class(), before.elapsed()),
        (ErrorKind::Ejected, class(&house), Duration::ZERO)
    );
    assert!(matches!(events.try_recv(), Ok(Event::Ejected { class: FailureClass::Misconfigured, .. })));
    sleep(3600 * SECOND).await;
    assert_eq!(house.fake.starts(), 1, "time alone does not help");
    house.supervisor.restart().await.unwrap();
    house.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_repeats_what_it_is_told_is_no_server_and_is_called_so() {
    let house = house(Fake::new().usually(Boot::Echoes));
    let error = house.echo().await.unwrap_err();
    assert!(error.to_string().contains("sends back what it is sent"), "{error}");
    house.until(StateName::Ejected).await;
    assert_eq!((class(&house), house.fake.starts()), (Some(FailureClass::Misconfigured), 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_will_not_serve_is_counted_and_its_callers_are_told_at_once() {
    let house = house(Fake::new().usually(Boot::Refuses));
    for restarts in 1..=2 {
        let error = house.echo().await.unwrap_err();
        assert_eq!((error.kind(), error.class()), (ErrorKind::CouldNotStart, Some(FailureClass::Refused)));
        assert!(error.to_string().contains("not today"), "{error}");
        breath().await;
        assert_eq!((house.status().restarts, house.state()), (restarts, StateName::BackingOff));
    }
    house.echo().await.unwrap_err();
    house.until(StateName::Ejected).await;
    assert_eq!(house.fake.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn every_failure_of_a_life_has_its_class() {
    let house = house(Fake::new().boots(&[Boot::Session, Boot::Silent]));
    house.echo().await.unwrap();
    house.crash().await;
    assert_eq!(class(&house), Some(FailureClass::Crashed));
    house.echo().await.unwrap_err();
    assert_eq!(class(&house), Some(FailureClass::SlowToStart));
    assert_eq!(house.status().restarts, 2);
}

#[tokio::test(start_paused = true)]
async fn waits_are_short_again_after_a_time_of_health_and_the_window_still_counts() {
    let mut care = care();
    care.restarts.at_most = 4;
    let house = house_with(Fake::new(), care);
    let mut waits = Vec::new();
    for up in [0, 0, 31, 0] {
        house.echo().await.unwrap();
        let lease = house.lease().await.unwrap();
        sleep(up * SECOND).await;
        drop(lease);
        house.crash().await;
        waits.push(house.status().next_attempt_in.unwrap().as_millis());
    }
    for (wait, full) in waits.iter().zip([100, 200, 100, 200]) {
        assert!((full * 3 / 4..=full).contains(wait), "{waits:?}");
    }
    assert_eq!(house.status().restarts_left, 0);
}
