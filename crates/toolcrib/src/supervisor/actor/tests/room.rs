//! Servers that share a limited room, and servers that use too much memory.

use super::*;
use crate::spec::MemoryLimits;
use crate::supervisor::scales::Verdict;

/// Three servers where only two may run.
fn street() -> [House; 3] {
    let around = surroundings(2);
    [(); 3].map(|()| house_in(&around, Fake::new(), care()))
}

fn states<const N: usize>(houses: &[House; N]) -> [StateName; N] {
    houses.each_ref().map(House::state)
}

/// Weighs it as the scales would find it.
fn weigh(house: &House, used: u64, verdict: Verdict) {
    house.supervisor.weighed(house.status().generation, used, verdict);
}

#[tokio::test(start_paused = true)]
async fn the_longest_idle_makes_room() {
    let houses = street();
    houses[1].echo().await.unwrap();
    houses[0].echo().await.unwrap();
    houses[2].echo().await.unwrap();
    assert_eq!(states(&houses), [StateName::Ready, StateName::Asleep, StateName::Ready]);
    houses[1].echo().await.unwrap();
    assert_eq!(states(&houses), [StateName::Asleep, StateName::Ready, StateName::Ready]);
    assert_eq!(houses.each_ref().map(|house| house.status().restarts), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_in_use_is_never_asked_to_leave() {
    let houses = street();
    let held = houses[0].lease().await.unwrap();
    houses[1].echo().await.unwrap();
    houses[2].echo().await.unwrap();
    houses[1].echo().await.unwrap();
    assert_eq!(states(&houses), [StateName::Ready, StateName::Ready, StateName::Asleep]);
    assert_eq!((houses[0].fake.starts(), houses[1].fake.starts()), (1, 2));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_meant_to_stay_is_asked_last() {
    let around = surroundings(2);
    let kept = house_in(&around, Fake::new(), Lifecycle { keep_alive: KeepAlive::Forever, ..care() });
    kept.echo().await.unwrap();
    let others = [(); 2].map(|()| house_in(&around, Fake::new(), care()));
    for house in &others {
        house.echo().await.unwrap();
    }
    assert_eq!((kept.state(), others[0].state()), (StateName::Ready, StateName::Asleep));
    let _held = others[1].lease().await.unwrap();
    others[0].echo().await.unwrap();
    assert_eq!(kept.state(), StateName::Asleep);
}

#[tokio::test(start_paused = true)]
async fn who_finds_everybody_busy_is_served_as_soon_as_one_is_not() {
    let houses = street();
    let (one, other) = (houses[0].lease().await.unwrap(), houses[1].lease().await.unwrap());
    let mut waiting = houses[2].calls(3, "echo");
    breath().await;
    assert_eq!((houses[2].state(), houses[2].fake.starts()), (StateName::Starting, 0));
    drop(one);
    assert!(waiting.join_next().await.unwrap().unwrap().is_ok());
    assert_eq!(states(&houses), [StateName::Asleep, StateName::Ready, StateName::Ready]);
    assert!(kinds(waiting).await.iter().all(Option::is_none));
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_is_told_and_pays_nothing() {
    let houses = street();
    let _held = (houses[0].lease().await.unwrap(), houses[1].lease().await.unwrap());
    let error = houses[2].echo().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("no room for `fake`: 2 servers are running"), "{error}");
    assert!(error.advice().contains("limits.servers-running"), "{}", error.advice());
    let status = houses[2].status();
    assert_eq!((status.state, status.restarts, houses[2].fake.starts()), (StateName::Asleep, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_served_in_the_order_they_came() {
    let around = surroundings(1);
    let houses = [(); 4].map(|()| house_in(&around, Fake::new(), care()));
    let held = houses[0].lease().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = JoinSet::new();
    for (at, house) in houses.iter().cloned().enumerate().skip(1) {
        let order = order.clone();
        waiting.spawn(async move {
            house.echo().await.unwrap();
            order.lock().unwrap().push(at);
        });
        breath().await;
    }
    drop(held);
    waiting.join_all().await;
    assert_eq!(*order.lock().unwrap(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_smaller_room_empties_as_servers_become_idle_and_a_larger_one_takes_more() {
    let houses = street();
    houses[0].echo().await.unwrap();
    let held = houses[1].lease().await.unwrap();
    houses[0].around.room.resize(1);
    houses[0].until(StateName::Asleep).await;
    assert_eq!(houses[1].state(), StateName::Ready);
    houses[0].around.room.resize(3);
    houses[0].echo().await.unwrap();
    houses[2].echo().await.unwrap();
    assert!(states(&houses).iter().all(|state| *state == StateName::Ready));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_or_ejected_server_takes_no_room() {
    let around = surroundings(1);
    let broken = house_in(&around, Fake::new().usually(Boot::Dies), care());
    assert_eq!(kind(broken.echo().await), ErrorKind::CouldNotStart);
    broken.until(StateName::Ejected).await;
    let other = house_in(&around, Fake::new(), care());
    other.echo().await.unwrap();
    let starts = broken.fake.starts();
    assert_eq!(kind(broken.echo().await), ErrorKind::Ejected);
    assert_eq!((broken.fake.starts(), other.state()), (starts, StateName::Ready));
}

#[tokio::test(start_paused = true)]
async fn one_that_uses_more_than_it_should_goes_when_nobody_uses_it() {
    let house = house(Fake::new());
    let lease = house.lease().await.unwrap();
    weigh(&house, 600, Verdict::Recycle);
    breath().await;
    assert_eq!(house.state(), StateName::Ready);
    drop(lease);
    house.until(StateName::Asleep).await;
    house.echo().await.unwrap();
    let status = house.status();
    assert_eq!((house.fake.starts(), status.restarts, status.state), (2, 0, StateName::Ready));
}

#[tokio::test(start_paused = true)]
async fn one_that_starts_at_boot_comes_back_by_itself_after_that() {
    let house = house_with(Fake::new(), Lifecycle { start: Start::AtBoot, ..care() });
    house.until(StateName::Ready).await;
    weigh(&house, 600, Verdict::Recycle);
    settled(|| house.fake.starts() == 2 && house.state() == StateName::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_uses_more_than_it_may_is_stopped_and_says_why() {
    let house = house(Fake::new());
    let calls = house.calls(2, "hang");
    house.called(2).await;
    weigh(&house, 3 << 30, Verdict::TooHeavy { may: 1 << 30 });
    for outcome in calls.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        let said = "`fake` was stopped: it used 3.0 GiB of memory, and may use 1.0 GiB (it may have run)";
        assert_eq!(error.to_string(), said);
        assert_eq!(error.advice(), "raise `servers.fake.lifecycle.memory.hard`");
    }
    house.until(StateName::Asleep).await;
    let status = house.status();
    assert_eq!(status.restarts, 1);
    assert!(status.last_error.unwrap().message.contains("used 3.0 GiB of memory"));
    house.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_outgrows_its_limit_every_time_is_ejected_with_the_reason() {
    let house = house(Fake::new());
    for _ in 0..3 {
        house.echo().await.unwrap();
        weigh(&house, 2 << 20, Verdict::TooHeavy { may: 1 << 20 });
        settled(|| house.state() != StateName::Ready).await;
    }
    house.until(StateName::Ejected).await;
    let error = house.echo().await.unwrap_err();
    assert!(error.to_string().contains("used 2.0 MiB of memory"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_weight_of_an_earlier_life_changes_nothing() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.supervisor.weighed(house.status().generation - 1, 9, Verdict::TooHeavy { may: 1 });
    breath().await;
    assert_eq!((house.state(), house.status().restarts), (StateName::Ready, 0));
}

#[tokio::test(start_paused = true)]
async fn the_scales_find_who_is_too_heavy() {
    let limits = MemoryLimits { soft: Some(100), hard: Some(200) };
    let house = house_with(Fake::new(), Lifecycle { memory: limits, ..care() });
    house.echo().await.unwrap();
    breath().await;
    house.fake.weighs(150);
    assert_eq!(house.status().memory, Some(150));
    let (generation, weight) = house.supervisor.weight().unwrap();
    assert_eq!((generation, weight.used, weight.soft, weight.hard), (1, 150, Some(100), Some(200)));
    assert!(weight.idle_since.is_some());
}
