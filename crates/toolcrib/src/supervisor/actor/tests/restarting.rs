//! Crashes, the restart budget, ejection and revival.

use super::*;

#[tokio::test(start_paused = true)]
async fn six_calls_in_flight_at_one_crash_spend_one_restart() {
    let house = house(Fake::new());
    let calls = house.calls(6, "hold");
    house.called(6).await;
    house.fake.kill();
    assert_eq!(kinds(calls).await, vec![Some(ErrorKind::Lost); 6]);
    let status = house.status();
    assert_eq!((status.restarts, status.restarts_left), (1, 1));
    house.echo().await.unwrap();
    assert_eq!((house.fake.starts(), house.fake.called().len()), (2, 7));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_in_flight_is_not_repeated() {
    let house = house(Fake::new());
    assert_eq!(kind(house.call("die", NOTHING).await), ErrorKind::Lost);
    sleep(10 * SECOND).await;
    assert_eq!(house.fake.called(), ["die"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_nobody_gets_the_dead_server() {
    let house = house(Fake::new());
    for _ in 0..2 {
        house.echo().await.unwrap();
        house.fake.kill();
        breath().await;
    }
    house.echo().await.unwrap();
    assert_eq!((house.fake.starts(), house.fake.living()), (3, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_start_is_counted_and_given_up() {
    let house = house(Fake::new().usually(Boot::Dies));
    let error = house.echo().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    // One spawn costs nothing: it may only have been the probe that it died of.
    assert_eq!(house.fake.starts(), 1 + 2 + 1);
    assert_eq!(house.state(), StateName::Ejected);
    assert_eq!(kind(house.echo().await), ErrorKind::Ejected);
}

#[tokio::test(start_paused = true)]
async fn at_most_one_start_and_the_restarts_allowed_whoever_asks() {
    let house = house(Fake::new().usually(Boot::Silent));
    let mut outcomes = Vec::new();
    for _ in 0..2000 {
        outcomes.push(timeout(Duration::from_millis(50), house.lease()).await.is_ok());
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((house.fake.starts(), house.state()), (3, StateName::Ejected));
    assert!(outcomes.last().unwrap(), "an ejected server fails fast");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long_fails_and_leaves_nothing() {
    let house = house(Fake::new().boots(&[Boot::Silent]));
    let before = Instant::now();
    let error = house.echo().await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::CouldNotStart, 30));
    assert!(error.to_string().contains("did not come up within 30s"), "{error}");
    assert!(error.advice().contains("start-timeout"), "{}", error.advice());
    breath().await;
    assert_eq!((house.fake.living().0, house.status().restarts), (0, 1));
    house.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_is_served_by_a_later_start() {
    let house = house(Fake::new().boots(&[Boot::Dies, Boot::Dies, Boot::Dies]));
    let calls = house.calls(5, "echo");
    assert!(kinds(calls).await.iter().all(Option::is_none));
    assert_eq!((house.status().restarts, house.fake.starts()), (2, 4));
    assert_eq!(house.fake.called().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_waits_before_restarts_grow() {
    let mut care = care();
    care.restarts.at_most = 8;
    let house = house_with(Fake::new().usually(Boot::Dies), care);
    house.echo().await.unwrap_err();
    let starts = house.fake.start_times();
    let mut waits: Vec<u128> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    waits.retain(|wait| *wait > 0);
    assert_eq!(waits.len(), 8);
    for (wait, full) in waits.iter().zip([100, 200, 400, 800, 1600, 3200, 5000, 5000]) {
        assert!((full * 3 / 4..=full + 1).contains(wait), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ejected_server_fails_fast_without_a_start_and_says_what_to_do() {
    let house = eject(Fake::new()).await;
    let (starts, before) = (house.fake.starts(), Instant::now());
    for outcome in house.calls(30, "echo").join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ejected);
        assert_eq!(error.advice(), "toolcrib restart fake");
        assert!(error.to_string().contains("its output ended"), "{error}");
        assert!(error.words().is_some());
    }
    assert!(before.elapsed() < SECOND);
    assert_eq!(house.fake.starts(), starts);
    assert_eq!(house.status().last_error.unwrap().kind, ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_in_the_moment_of_ejection_is_answered() {
    for moment in 0..60 {
        let house = house_with(
            Fake::new(),
            Lifecycle { restarts: Restarts { at_most: 0, within: SECOND }, ..care() },
        );
        house.echo().await.unwrap();
        house.fake.kill();
        for _ in 0..moment {
            tokio::task::yield_now().await;
        }
        let asked = timeout(60 * SECOND, house.lease()).await;
        assert!(asked.is_ok(), "moment {moment}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_alone_does_not_bring_an_ejected_server_back() {
    let house = eject(Fake::new()).await;
    sleep(24 * 3600 * SECOND).await;
    assert_eq!(kind(house.echo().await), ErrorKind::Ejected);
}

#[tokio::test(start_paused = true)]
async fn a_restart_revives_with_a_fresh_budget() {
    let house = eject(Fake::new()).await;
    let starts = house.fake.starts();
    house.supervisor.restart().await.unwrap();
    let status = house.status();
    assert_eq!((status.state, status.restarts, status.restarts_left), (StateName::Ready, 0, 2));
    assert_eq!(house.fake.starts(), starts + 1);
    house.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_changed_spec_revives() {
    let house = eject(Fake::new()).await;
    let mut changed = care();
    changed.restarts.at_most = 1;
    let supervisor =
        Supervisor::start(spec(&house.fake, changed), Some(house.supervisor), None, house.around.clone());
    let house = House { supervisor, ..house };
    house.echo().await.unwrap();
    assert_eq!(house.status().restarts_left, 1);
}

#[tokio::test(start_paused = true)]
async fn restarts_age_out_of_the_status_by_themselves() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.crash().await;
    assert_eq!(house.status().restarts, 1);
    sleep(299 * SECOND).await;
    assert_eq!(house.status().restarts, 1);
    sleep(2 * SECOND).await;
    assert_eq!((house.status().restarts, house.status().restarts_left), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn crashes_far_apart_are_forgiven() {
    let house = house(Fake::new());
    for _ in 0..10 {
        house.echo().await.unwrap();
        house.crash().await;
        sleep(151 * SECOND).await;
    }
    assert_eq!(house.state(), StateName::Asleep);
}

#[tokio::test(start_paused = true)]
async fn a_crash_that_nobody_waits_for_ends_in_sleep() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.crash().await;
    assert_eq!(house.state(), StateName::BackingOff);
    assert!(house.status().next_attempt_in.is_some());
    sleep(SECOND).await;
    assert_eq!((house.state(), house.fake.starts()), (StateName::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn a_late_release_of_a_dead_generation_is_not_counted() {
    let house = house(Fake::new());
    let late = house.lease().await.unwrap();
    house.crash().await;
    let held = house.lease().await.unwrap();
    drop(late);
    breath().await;
    assert_eq!((house.status().leases, house.status().generation), (1, 2));
    sleep(120 * SECOND).await;
    assert_eq!(house.state(), StateName::Ready);
    drop(held);
    sleep(61 * SECOND).await;
    assert_eq!(house.state(), StateName::Asleep);
}

/// Crashes it until it is given up.
async fn eject(fake: Fake) -> House {
    let house = house(fake);
    for _ in 0..3 {
        house.echo().await.unwrap();
        house.crash().await;
    }
    house.until(StateName::Ejected).await;
    house
}
