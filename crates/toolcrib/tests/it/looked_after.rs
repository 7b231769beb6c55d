//! Whatever happened to a server before, it is looked after, and its status tells true numbers.

use tokio::task::JoinSet;
use tokio::time::sleep;
use toolcrib::spec::{BreakerSpec, Restarts};
use toolcrib::{Crib, ErrorKind, KeepAlive, Lifecycle, Start, StateName};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, id, kind, on, roster, spawn, spec, status};

/// A crib whose server is forgiven two crashes and tripped by three timeouts.
fn careful(fake: &Fake) -> Crib {
    let care = Lifecycle {
        restarts: Restarts { at_most: 2, within: 3600 * SECOND },
        breaker: BreakerSpec { failures: 3.try_into().unwrap(), cool_off: 30 * SECOND },
        ..Lifecycle::default()
    };
    Crib::builder().server(spec("git", fake).lifecycle(care)).build().unwrap()
}

/// Timeouts trip it, one call finds out that it is well again, and crashes use up what is `left` of its restarts.
async fn assert_looked_after(crib: &Crib, left: u32) {
    for _ in 0..3 {
        assert_eq!(kind(crib.call(on("git", "hang")).await), ErrorKind::TimedOut);
    }
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Tripped);
    sleep(30 * SECOND).await;
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(status(crib, "git").restarts_left, left);
    for _ in 0..=left {
        assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    }
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_stopped_is_looked_after_as_before() {
    let fake = Fake::new();
    let crib = careful(&fake);
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    crib.call(on("git", "echo")).await.unwrap();
    crib.stop(&id("git")).await.unwrap();
    assert_eq!((status(&crib, "git").state, status(&crib, "git").restarts), (StateName::Asleep, 1));
    assert_looked_after(&crib, 1).await;
    assert_eq!(fake.starts(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_start_failed_is_looked_after_as_before() {
    // The second death is the crash: the first one only answers the question of the era.
    for boots in [&[Boot::Silent][..], &[Boot::Dies, Boot::Dies]] {
        let fake = Fake::new().boots(boots);
        let crib = careful(&fake);
        let first = crib.call(on("git", "echo")).await;
        assert_eq!(first.is_ok(), boots[0] == Boot::Dies, "who waits for a start waits through a crash");
        assert_eq!(status(&crib, "git").restarts, 1);
        assert_looked_after(&crib, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_every_start_is_not_started_by_every_call() {
    let fake = Fake::new().usually(Boot::Silent);
    let crib = careful(&fake);
    for _ in 0..3 {
        assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::CouldNotStart);
    }
    for _ in 0..10 {
        assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
    }
    assert_eq!((fake.starts(), status(&crib, "git").restarts_left), (3, 0));
}

fn held(crib: &Crib) -> (usize, usize) {
    let status = status(crib, "git");
    (status.leases, status.in_flight)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_never_let_go_shows_only_the_leases_there_are() {
    let pinned = Lifecycle { start: Start::AtBoot, keep_alive: KeepAlive::Forever, ..Lifecycle::default() };
    for end in ["answered", "dropped", "killed", "stopped", "restarted", "replaced"] {
        let fake = Fake::new();
        let server = || spec("git", &fake).lifecycle(pinned.clone());
        let crib = Crib::builder().server(server()).build().unwrap();
        breath().await;
        assert_eq!((status(&crib, "git").state, held(&crib)), (StateName::Ready, (0, 0)));
        let mut calls = JoinSet::new();
        (0..3).for_each(|_| spawn(&mut calls, &crib, on("git", "hold")));
        breath().await;
        assert_eq!(held(&crib), (3, 3), "{end}");
        match end {
            "answered" => fake.open(true),
            "dropped" => calls.shutdown().await,
            "killed" => fake.kill(),
            "stopped" => crib.stop(&id("git")).await.unwrap(),
            "restarted" => crib.restart(&id("git")).await.unwrap(),
            _ => {
                crib.apply(roster([server()])).await;
                fake.open(true);
            }
        }
        while calls.join_next().await.is_some() {}
        fake.open(false);
        breath().await;
        assert_eq!(held(&crib), (0, 0), "{end}");
        spawn(&mut calls, &crib, on("git", "hold"));
        sleep(SECOND).await;
        assert_eq!(held(&crib), (1, 1), "{end}");
    }
}
