//! Restart budget, breaker and status after stops and failed starts.

use tokio::task::JoinSet;
use tokio::time::sleep;
use toolcrib::spec::{BreakerSpec, Restarts};
use toolcrib::{Crib, ErrorKind, KeepAlive, Lifecycle, ServerState, StartPolicy};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, id, kind, on, roster, settle, spawn, spec, status};

/// A crib whose server may restart twice and whose breaker opens after three timeouts.
fn supervised(fake: &FakeServer) -> Crib {
    let lifecycle = Lifecycle {
        restarts: Restarts { at_most: 2, within: 3600 * SECOND },
        breaker: BreakerSpec { failures: 3.try_into().unwrap(), cool_off: 30 * SECOND },
        ..Lifecycle::default()
    };
    Crib::builder().server(spec("git", fake).lifecycle(lifecycle)).build().unwrap()
}

/// Checks that timeouts open the breaker, that one call closes it, and that crashes use up the remaining restarts.
async fn assert_supervised(crib: &Crib, remaining: u32) {
    for _ in 0..3 {
        assert_eq!(kind(crib.call(on("git", "hang")).await), ErrorKind::TimedOut);
    }
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Tripped);
    sleep(30 * SECOND).await;
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(status(crib, "git").restarts_left, remaining);
    for _ in 0..=remaining {
        assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    }
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
}

#[tokio::test(start_paused = true)]
async fn stopped_server_keeps_its_restart_budget() {
    let fake = FakeServer::new();
    let crib = supervised(&fake);
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    crib.call(on("git", "echo")).await.unwrap();
    crib.stop(&id("git")).await.unwrap();
    assert_eq!((status(&crib, "git").state, status(&crib, "git").restarts), (ServerState::Asleep, 1));
    assert_supervised(&crib, 1).await;
    assert_eq!(fake.starts(), 4);
}

#[tokio::test(start_paused = true)]
async fn failed_start_counts_against_the_restart_budget() {
    // The second exit counts as a crash; the first one only tells the era.
    for boots in [&[FakeStart::Silent][..], &[FakeStart::Exits, FakeStart::Exits]] {
        let fake = FakeServer::new().next_starts(boots);
        let crib = supervised(&fake);
        let first = crib.call(on("git", "echo")).await;
        assert_eq!(first.is_ok(), boots[0] == FakeStart::Exits, "a waiting call waits through a crash");
        assert_eq!(status(&crib, "git").restarts, 1);
        assert_supervised(&crib, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn failing_server_is_ejected_not_restarted_per_call() {
    let fake = FakeServer::new().default_start(FakeStart::Silent);
    let crib = supervised(&fake);
    for _ in 0..3 {
        assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::CouldNotStart);
    }
    for _ in 0..10 {
        assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
    }
    assert_eq!((fake.starts(), status(&crib, "git").restarts_left), (3, 0));
}

fn leases_and_in_flight(crib: &Crib) -> (usize, usize) {
    let status = status(crib, "git");
    (status.leases, status.in_flight)
}

#[tokio::test(start_paused = true)]
async fn status_of_pinned_server_shows_current_leases() {
    let pinned =
        Lifecycle { start: StartPolicy::AtBoot, keep_alive: KeepAlive::Forever, ..Lifecycle::default() };
    for end in ["answered", "dropped", "killed", "stopped", "restarted", "replaced"] {
        let fake = FakeServer::new();
        let server = || spec("git", &fake).lifecycle(pinned.clone());
        let crib = Crib::builder().server(server()).build().unwrap();
        settle().await;
        assert_eq!((status(&crib, "git").state, leases_and_in_flight(&crib)), (ServerState::Ready, (0, 0)));
        let mut calls = JoinSet::new();
        (0..3).for_each(|_| spawn(&mut calls, &crib, on("git", "hold")));
        settle().await;
        assert_eq!(leases_and_in_flight(&crib), (3, 3), "{end}");
        match end {
            "answered" => fake.set_hold_open(true),
            "dropped" => calls.shutdown().await,
            "killed" => fake.kill(),
            "stopped" => crib.stop(&id("git")).await.unwrap(),
            "restarted" => crib.restart(&id("git")).await.unwrap(),
            _ => {
                crib.apply_roster(roster([server()])).await.unwrap();
                fake.set_hold_open(true);
            }
        }
        while calls.join_next().await.is_some() {}
        fake.set_hold_open(false);
        settle().await;
        assert_eq!(leases_and_in_flight(&crib), (0, 0), "{end}");
        spawn(&mut calls, &crib, on("git", "hold"));
        sleep(SECOND).await;
        assert_eq!(leases_and_in_flight(&crib), (1, 1), "{end}");
    }
}
