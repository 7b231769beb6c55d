//! A server that is not shared has one restart budget, however many instances there are.

use tokio::task::JoinSet;
use tokio::time::advance;
use toolcrib::spec::{EraChoice, Restarts};
use toolcrib::wire::revision::Era;
use toolcrib::{Crib, ErrorKind, Lifecycle, Sharing, StateName};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, id, spawn, status};
use crate::sharing::{of, shared};

#[tokio::test(start_paused = true)]
async fn crashes_are_held_against_the_server_and_no_instance_that_lives() {
    let fake = Fake::new();
    let restarts = Restarts { at_most: 2, within: 300 * SECOND };
    let lifecycle = Lifecycle { restarts, ..Lifecycle::default() };
    let crib =
        Crib::builder().server(shared(&fake, Sharing::PerClient).lifecycle(lifecycle)).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, of(2, "hold"));
    breath().await;
    let mut kinds = Vec::new();
    for _ in 0..5 {
        kinds.push(crib.call(of(1, "die")).await.unwrap_err().kind());
        breath().await;
        advance(10 * SECOND).await;
        breath().await;
    }
    assert_eq!(fake.starts(), 1 + 3, "{kinds:?}");
    assert_eq!(kinds[3..], [ErrorKind::Ejected, ErrorKind::Ejected]);
    // Whoever has an instance keeps it; nobody gets another.
    crib.call(of(2, "echo")).await.unwrap();
    assert_eq!(crib.call(of(3, "echo")).await.unwrap_err().kind(), ErrorKind::Ejected);
    fake.open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    let seen = status(&crib, "s");
    assert_eq!((seen.restarts, seen.restarts_left, seen.state), (2, 0, StateName::Ready));
    crib.restart(&id("s")).await.unwrap();
    assert_eq!(status(&crib, "s").restarts, 0);
    for key in [1, 3] {
        crib.call(of(key, "echo")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_clients_there_are_a_server_that_dies_at_once_has_one_budget() {
    for boot in [Boot::Dies, Boot::Silent] {
        let fake = Fake::new().usually(boot);
        let restarts = Restarts { at_most: 3, within: 3600 * SECOND };
        let lifecycle = Lifecycle { restarts, ..Lifecycle::default() };
        let mut spec = shared(&fake, Sharing::PerClient).lifecycle(lifecycle);
        spec.era = EraChoice::Era(Era::Session);
        let crib = Crib::builder().server(spec).build().unwrap();
        for _ in 0..4 {
            let mut calls = JoinSet::new();
            (0..15).for_each(|key| spawn(&mut calls, &crib, of(key, "echo")));
            for ended in calls.join_all().await {
                let kind = ended.unwrap_err().kind();
                assert!(matches!(kind, ErrorKind::CouldNotStart | ErrorKind::Ejected), "{kind:?}");
            }
            advance(SECOND).await;
        }
        let seen = status(&crib, "s");
        assert_eq!((fake.starts(), seen.restarts_left), (4, 0), "{boot:?}");
        assert_eq!(seen.state, StateName::Ejected, "{boot:?}");
        (0..15).for_each(|key| crib.part_with(key));
        breath().await;
        let seen = status(&crib, "s");
        assert_eq!((seen.state, seen.instances.len()), (StateName::Ejected, 0), "it stays so without any");
        assert!(seen.last_error.is_some());
        let fake = fake.usually(Boot::Session);
        crib.restart(&id("s")).await.unwrap();
        crib.call(of(1, "echo")).await.unwrap();
        assert_eq!(fake.starts(), 5);
    }
}
