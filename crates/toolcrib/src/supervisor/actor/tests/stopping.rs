//! Orders: stop, restart, retire, and what becomes of those who wait.

use super::*;

#[tokio::test(start_paused = true)]
async fn stop_means_stopped_whatever_leases_exist_and_the_next_call_wakes() {
    let house = house(Fake::new());
    let (one, _other) = (house.lease().await.unwrap(), house.lease().await.unwrap());
    let calls = house.calls(3, "hold");
    house.called(3).await;
    house.supervisor.stop().await.unwrap();
    assert_eq!((house.state(), house.fake.living().0), (StateName::Asleep, 0));
    assert_eq!(kinds(calls).await, vec![Some(ErrorKind::Lost); 3]);
    let status = house.status();
    assert_eq!((status.leases, status.in_flight, status.restarts), (0, 0, 0));
    sleep(3600 * SECOND).await;
    assert_eq!(house.fake.starts(), 1);
    house.echo().await.unwrap();
    drop(one);
    breath().await;
    assert_eq!((house.fake.starts(), house.status().leases), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn stopping_a_sleeping_server_is_no_mistake() {
    let house = house(Fake::new());
    house.supervisor.stop().await.unwrap();
    assert_eq!((house.state(), house.fake.starts()), (StateName::Asleep, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_the_start_ends_the_start_and_tells_who_waited() {
    let house = house(Fake::new().boots(&[Boot::Late(20 * SECOND)]));
    let calls = house.calls(4, "echo");
    house.until(StateName::Starting).await;
    house.supervisor.stop().await.unwrap();
    assert_eq!(kinds(calls).await, vec![Some(ErrorKind::Lost); 4]);
    breath().await;
    assert_eq!((house.state(), house.fake.living().0), (StateName::Asleep, 0));
    house.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_backing_off_keeps_it_down() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.crash().await;
    house.until(StateName::BackingOff).await;
    let calls = house.calls(4, "echo");
    breath().await;
    house.supervisor.stop().await.unwrap();
    assert_eq!(kinds(calls).await, vec![Some(ErrorKind::Lost); 4]);
    sleep(60 * SECOND).await;
    assert_eq!((house.state(), house.fake.starts()), (StateName::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_the_moment_of_a_crash_keeps_it_down() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.fake.kill();
    house.supervisor.stop().await.unwrap();
    sleep(60 * SECOND).await;
    assert_eq!((house.state(), house.fake.starts()), (StateName::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn a_restart_replaces_the_living_server() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    let calls = house.calls(2, "hold");
    house.called(3).await;
    house.supervisor.restart().await.unwrap();
    assert_eq!(kinds(calls).await, vec![Some(ErrorKind::Lost); 2]);
    let status = house.status();
    assert_eq!((status.state, status.generation, status.restarts), (StateName::Ready, 2, 0));
    assert_eq!(house.fake.living(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_restart_wakes_a_sleeping_server_and_ends_a_wait() {
    let house = house(Fake::new());
    house.supervisor.restart().await.unwrap();
    assert_eq!((house.state(), house.fake.starts()), (StateName::Ready, 1));
    house.crash().await;
    house.until(StateName::BackingOff).await;
    house.supervisor.restart().await.unwrap();
    assert_eq!((house.state(), house.status().restarts), (StateName::Ready, 0));
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_fails_says_why() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    let house = House { fake: house.fake.usually(Boot::Silent), ..house };
    let error = house.supervisor.restart().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
}

#[tokio::test(start_paused = true)]
async fn a_retired_server_finishes_its_calls_and_takes_no_more() {
    let house = house(Fake::new());
    let calls = house.calls(3, "hold");
    house.called(3).await;
    let retiring = house.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { retiring.supervisor.retire(10 * SECOND).await });
    breath().await;
    assert_eq!(kind(house.echo().await), ErrorKind::ShuttingDown);
    assert_eq!((house.state(), house.fake.living().0), (StateName::Stopping, 1));
    house.fake.open(true);
    assert!(kinds(calls).await.iter().all(Option::is_none));
    tasks.join_all().await;
    assert_eq!(house.fake.living().0, 0);
}

#[tokio::test(start_paused = true)]
async fn a_retired_server_waits_no_longer_than_it_was_told() {
    let house = house(Fake::new());
    let calls = house.calls(3, "hang");
    house.called(3).await;
    let before = Instant::now();
    house.supervisor.retire(10 * SECOND).await;
    assert_eq!(before.elapsed().as_secs(), 10);
    assert_eq!(kinds(calls).await, vec![Some(ErrorKind::Lost); 3]);
    assert_eq!(house.fake.living().0, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_handles_are_gone_is_gone() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    let House { fake, supervisor, around } = house;
    drop(supervisor);
    around.tasks.close();
    around.tasks.wait().await;
    assert_eq!(fake.living().0, 0);
}
