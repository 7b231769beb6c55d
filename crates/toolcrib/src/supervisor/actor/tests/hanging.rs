//! Servers that live and say nothing: who is asked whether it is still there, and what follows.

use super::*;
use crate::class::FailureClass;

#[tokio::test(start_paused = true)]
async fn a_server_that_stands_still_is_replaced_after_the_limit_of_a_call_and_a_ping() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.fake.freeze();
    let before = Instant::now();
    let first = house.calls(1, "echo");
    sleep(30 * SECOND).await;
    let in_flight = house.calls(3, "echo");
    assert_eq!(kinds(first).await, [Some(ErrorKind::TimedOut)]);
    assert_eq!(before.elapsed().as_secs(), 60);
    let later = house.calls(3, "echo");
    for outcome in in_flight.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::Lost, 70));
        assert!(error.to_string().contains("hung") && error.to_string().contains("may have run"), "{error}");
    }
    assert_eq!(kinds(later).await, [None; 3], "whoever comes meanwhile gets the next one");
    assert!(before.elapsed() < 72 * SECOND, "{:?}", before.elapsed());
    house.echo().await.unwrap();
    let status = house.status();
    assert_eq!((status.restarts, status.generation, house.fake.living()), (1, 2, (1, 1)));
    assert_eq!(status.last_error.unwrap().class, Some(FailureClass::Hung));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stands_still_for_a_moment_is_not_even_asked() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.fake.freeze();
    let calls = house.calls(3, "echo");
    sleep(SECOND * 3 / 10).await;
    house.fake.thaw();
    assert!(kinds(calls).await.iter().all(Option::is_none));
    assert_eq!((house.fake.starts(), house.fake.heard("ping").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_that_answers_the_ping_is_left_in_peace() {
    for (boot, question) in [(Boot::Session, "ping"), (Boot::Stateless, "server/discover")] {
        let house = house(Fake::new().usually(boot));
        let asked = |house: &House| house.fake.heard(question).len();
        house.echo().await.unwrap();
        let greeted = asked(&house);
        assert_eq!(kinds(house.calls(2, "hang")).await, vec![Some(ErrorKind::TimedOut); 2]);
        sleep(60 * SECOND).await;
        assert_eq!(
            (asked(&house) - greeted, house.fake.starts()),
            (1, 1),
            "{boot:?}: one question is enough"
        );
        assert_eq!((house.state(), house.status().restarts), (StateName::Ready, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_it_says_counts_as_a_sign_of_life() {
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}"#;
    let house = house(Fake::new().script("ping", &[progress]));
    assert_eq!(kind(house.call("hang", NOTHING).await), ErrorKind::TimedOut);
    sleep(60 * SECOND).await;
    assert_eq!((house.state(), house.fake.starts()), (StateName::Ready, 1));
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_early_do_not_hide_a_server_that_stands_still() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    assert!(timeout(SECOND, house.call("hang", NOTHING)).await.is_err());
    breath().await;
    assert_eq!(house.fake.heard("ping").len(), 0, "a second is no reason to ask");
    house.fake.freeze();
    assert!(timeout(10 * SECOND, house.echo()).await.is_err());
    house.until(StateName::BackingOff).await;
    assert_eq!(house.status().last_error.unwrap().class, Some(FailureClass::Hung));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_nobody_uses_is_never_asked() {
    let house = house_with(Fake::new(), Lifecycle { keep_alive: KeepAlive::Forever, ..care() });
    house.echo().await.unwrap();
    house.fake.freeze();
    sleep(30 * 24 * 3600 * SECOND).await;
    assert_eq!((house.state(), house.fake.heard("ping").len()), (StateName::Ready, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_sleep_of_the_machine_a_server_is_asked_before_anybody_gets_it() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.doze(600);
    assert!(kinds(house.calls(5, "echo")).await.iter().all(Option::is_none));
    assert_eq!((house.fake.heard("ping").len(), house.fake.starts()), (1, 1));
    house.echo().await.unwrap();
    house.doze(1);
    house.echo().await.unwrap();
    assert_eq!(house.fake.heard("ping").len(), 1, "once for one sleep, and not for a blink");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_did_not_survive_the_sleep_is_replaced_and_the_call_is_served() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.fake.freeze();
    house.doze(600);
    let before = Instant::now();
    assert!(kinds(house.calls(5, "echo")).await.iter().all(Option::is_none));
    assert!(before.elapsed() < 12 * SECOND, "{:?}", before.elapsed());
    assert_eq!((house.fake.starts(), house.status().restarts, house.fake.called().len()), (2, 1, 6));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_stopped_while_it_is_doubted_keeps_nobody_waiting() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.fake.freeze();
    house.doze(600);
    let calls = house.calls(3, "echo");
    breath().await;
    house.supervisor.stop().await.unwrap();
    assert_eq!(kinds(calls).await, vec![Some(ErrorKind::Lost); 3]);
    assert_eq!(house.state(), StateName::Asleep);
}
