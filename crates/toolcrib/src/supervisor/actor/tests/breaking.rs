//! The breaker: what trips it, and how one call finds out whether the server is well again.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_breaker_trips_at_exactly_the_threshold_of_timeouts() {
    let house = house(Fake::new());
    for failures in 1..=2 {
        assert_eq!(kind(house.call("hang", NOTHING).await), ErrorKind::TimedOut);
        breath().await;
        assert_eq!((house.state(), house.status().consecutive_failures), (StateName::Ready, failures));
    }
    assert_eq!(kind(house.call("hang", NOTHING).await), ErrorKind::TimedOut);
    house.until(StateName::Tripped).await;
    let before = house.fake.called().len();
    let error = house.echo().await.unwrap_err();
    assert_eq!((error.kind(), error.wait()), (ErrorKind::Tripped, Some(30 * SECOND)));
    assert!(error.to_string().contains("failed 3 times in a row"), "{error}");
    assert_eq!((house.fake.called().len(), house.status().breaker()), (before, "open"));
}

#[tokio::test(start_paused = true)]
async fn bad_replies_trip_it_too_and_a_success_starts_the_count_anew() {
    let house = house(Fake::new());
    let bad = json!({"lines": [r#"{"jsonrpc":"2.0","id":"$ID","result":{}}"#]});
    for _ in 0..2 {
        assert_eq!(kind(house.call("say", bad.clone()).await), ErrorKind::BadReply);
    }
    house.echo().await.unwrap();
    for _ in 0..3 {
        breath().await;
        assert_eq!(house.state(), StateName::Ready);
        assert_eq!(kind(house.call("say", bad.clone()).await), ErrorKind::BadReply);
    }
    house.until(StateName::Tripped).await;
    assert_eq!(house.fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn tool_errors_and_refusals_never_trip_it_and_never_restart_it() {
    let house = house(Fake::new());
    for _ in 0..20 {
        assert!(house.call("fail", NOTHING).await.unwrap().is_error());
        let refused = house.call("refuse", NOTHING).await.unwrap();
        assert_eq!((refused.is_error(), &*refused.text()), (true, "could not connect to the database"));
    }
    breath().await;
    let status = house.status();
    assert_eq!((status.state, status.consecutive_failures, status.restarts), (StateName::Ready, 0, 0));
    assert_eq!((house.fake.starts(), house.fake.called().len()), (1, 40));
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_no_affair_of_the_breaker() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    assert_eq!(kind(house.call("die", NOTHING).await), ErrorKind::Lost);
    house.echo().await.unwrap();
    breath().await;
    assert_eq!(house.status().consecutive_failures, 0);
}

#[tokio::test(start_paused = true)]
async fn exactly_one_of_thirty_probes_and_the_others_fail_at_once() {
    let house = house(Fake::new());
    house.trip().await;
    sleep(30 * SECOND).await;
    let mut calls = house.calls(30, "hold");
    for _ in 0..29 {
        let outcome = calls.join_next().await.unwrap().unwrap();
        assert_eq!(kind(outcome), ErrorKind::Tripped);
    }
    house.called(3 + 1).await;
    breath().await;
    assert_eq!((house.state(), house.status().breaker()), (StateName::Probing, "half_open"));
    assert_eq!(house.fake.called().len(), 3 + 1);
    house.fake.open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    house.until(StateName::Ready).await;
    assert_eq!((house.status().consecutive_failures, house.fake.starts()), (0, 1));
    assert!(kinds(house.calls(30, "echo")).await.iter().all(Option::is_none));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_probe_gives_the_slot_back() {
    let house = house(Fake::new());
    house.trip().await;
    sleep(31 * SECOND).await;
    assert!(timeout(SECOND, house.call("hang", NOTHING)).await.is_err());
    breath().await;
    assert_eq!(house.status().breaker(), "half_open");
    house.echo().await.unwrap();
    house.until(StateName::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_opens_it_again() {
    let house = house(Fake::new());
    house.trip().await;
    sleep(31 * SECOND).await;
    assert_eq!(kind(house.call("hang", NOTHING).await), ErrorKind::TimedOut);
    house.until(StateName::Tripped).await;
    assert_eq!(house.echo().await.unwrap_err().wait(), Some(30 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_tripped_server_that_dies_goes_to_the_restart_budget() {
    let house = house(Fake::new());
    house.trip().await;
    house.crash().await;
    house.echo().await.unwrap();
    let status = house.status();
    assert_eq!((status.state, status.restarts, status.consecutive_failures), (StateName::Ready, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_kills_the_server_goes_to_the_restart_budget() {
    let house = house(Fake::new());
    house.trip().await;
    sleep(31 * SECOND).await;
    assert_eq!(kind(house.call("die", NOTHING).await), ErrorKind::Lost);
    house.echo().await.unwrap();
    assert_eq!((house.state(), house.fake.starts()), (StateName::Ready, 2));
}

#[tokio::test(start_paused = true)]
async fn a_restart_closes_the_breaker() {
    let house = house(Fake::new());
    house.trip().await;
    house.supervisor.restart().await.unwrap();
    house.echo().await.unwrap();
    assert_eq!((house.fake.starts(), house.status().breaker()), (2, "closed"));
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_do_not_trip_it() {
    let house = house(Fake::new());
    for _ in 0..10 {
        assert!(timeout(SECOND, house.call("hang", NOTHING)).await.is_err());
    }
    breath().await;
    assert_eq!((house.state(), house.status().consecutive_failures), (StateName::Ready, 0));
}
