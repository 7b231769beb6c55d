//! Crashes, the restart budget, ejection and restarts after it.

use super::*;

#[tokio::test(start_paused = true)]
async fn one_crash_with_several_calls_spends_one_restart() {
    let fixture = fixture(FakeServer::new());
    let calls = fixture.calls(6, "hold");
    fixture.wait_for_calls(6).await;
    fixture.fake.kill();
    assert_eq!(error_kinds(calls).await, vec![Some(ErrorKind::Lost); 6]);
    let status = fixture.status();
    assert_eq!((status.restarts, status.restarts_left), (1, 1));
    fixture.echo().await.unwrap();
    assert_eq!((fixture.fake.starts(), fixture.fake.called_tools().len()), (2, 7));
}

#[tokio::test(start_paused = true)]
async fn call_in_flight_is_not_repeated() {
    let fixture = fixture(FakeServer::new());
    assert_eq!(error_kind(fixture.call("die", NO_ARGUMENTS).await), ErrorKind::Lost);
    sleep(10 * SECOND).await;
    assert_eq!(fixture.fake.called_tools(), ["die"]);
}

#[tokio::test(start_paused = true)]
async fn crashed_server_is_never_leased() {
    let fixture = fixture(FakeServer::new());
    for _ in 0..2 {
        fixture.echo().await.unwrap();
        fixture.fake.kill();
        yield_often().await;
    }
    fixture.echo().await.unwrap();
    assert_eq!((fixture.fake.starts(), fixture.fake.running_and_peak()), (3, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn server_that_never_starts_is_ejected() {
    let fixture = fixture(FakeServer::new().default_start(FakeStart::Exits));
    let error = fixture.echo().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    // The first exit costs nothing, because the server may only have exited on the era probe.
    assert_eq!(fixture.fake.starts(), 1 + 2 + 1);
    assert_eq!(fixture.state(), ServerState::Ejected);
    assert_eq!(error_kind(fixture.echo().await), ErrorKind::Ejected);
}

#[tokio::test(start_paused = true)]
async fn starts_never_exceed_the_budget() {
    let fixture = fixture(FakeServer::new().default_start(FakeStart::Silent));
    let mut outcomes = Vec::new();
    for _ in 0..2000 {
        outcomes.push(timeout(Duration::from_millis(50), fixture.lease()).await.is_ok());
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((fixture.fake.starts(), fixture.state()), (3, ServerState::Ejected));
    assert!(outcomes.last().unwrap(), "an ejected server fails fast");
}

#[tokio::test(start_paused = true)]
async fn start_timeout_fails_and_leaves_no_process() {
    let fixture = fixture(FakeServer::new().next_starts(&[FakeStart::Silent]));
    let before = Instant::now();
    let error = fixture.echo().await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::CouldNotStart, 30));
    assert!(error.to_string().contains("did not come up within 30s"), "{error}");
    assert!(error.hint().to_string().contains("start-timeout"), "{}", error.hint());
    yield_often().await;
    assert_eq!((fixture.fake.running_and_peak().0, fixture.status().restarts), (0, 1));
    fixture.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_call_is_served_by_a_later_start() {
    let fixture =
        fixture(FakeServer::new().next_starts(&[FakeStart::Exits, FakeStart::Exits, FakeStart::Exits]));
    let calls = fixture.calls(5, "echo");
    assert!(error_kinds(calls).await.iter().all(Option::is_none));
    assert_eq!((fixture.status().restarts, fixture.fake.starts()), (2, 4));
    assert_eq!(fixture.fake.called_tools().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn backoff_grows_with_each_restart() {
    let mut lifecycle = lifecycle();
    lifecycle.restarts.at_most = 8;
    let fixture = fixture_with(FakeServer::new().default_start(FakeStart::Exits), lifecycle);
    fixture.echo().await.unwrap_err();
    let starts = fixture.fake.start_times();
    let mut waits: Vec<u128> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    waits.retain(|wait| *wait > 0);
    assert_eq!(waits.len(), 8);
    for (wait, full) in waits.iter().zip([100, 200, 400, 800, 1600, 3200, 5000, 5000]) {
        assert!((full * 3 / 4..=full + 1).contains(wait), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ejected_server_fails_fast_with_a_hint() {
    let fixture = eject(FakeServer::new()).await;
    let starts = fixture.fake.starts();
    let before = Instant::now();
    for outcome in fixture.calls(30, "echo").join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ejected);
        assert_eq!(error.hint(), "restart `fake`");
        assert!(error.to_string().contains("stdout closed"), "{error}");
        assert!(error.exit_report().is_some());
    }
    assert!(before.elapsed() < SECOND);
    assert_eq!(fixture.fake.starts(), starts);
    assert_eq!(fixture.status().last_error.unwrap().kind, ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn call_during_ejection_is_answered() {
    for yields in 0..60 {
        let fixture = fixture_with(
            FakeServer::new(),
            Lifecycle { restarts: Restarts { at_most: 0, within: SECOND }, ..lifecycle() },
        );
        fixture.echo().await.unwrap();
        fixture.fake.kill();
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        let answered = timeout(60 * SECOND, fixture.lease()).await;
        assert!(answered.is_ok(), "after {yields} yields");
    }
}

#[tokio::test(start_paused = true)]
async fn ejection_does_not_expire() {
    let fixture = eject(FakeServer::new()).await;
    sleep(24 * 3600 * SECOND).await;
    assert_eq!(error_kind(fixture.echo().await), ErrorKind::Ejected);
}

#[tokio::test(start_paused = true)]
async fn restart_of_ejected_server_resets_the_budget() {
    let fixture = eject(FakeServer::new()).await;
    let starts = fixture.fake.starts();
    fixture.supervisor.restart().await.unwrap();
    let status = fixture.status();
    assert_eq!((status.state, status.restarts, status.restarts_left), (ServerState::Ready, 0, 2));
    assert_eq!(fixture.fake.starts(), starts + 1);
    fixture.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn changed_spec_ends_the_ejection() {
    let fixture = eject(FakeServer::new()).await;
    let mut changed = lifecycle();
    changed.restarts.at_most = 1;
    let supervisor = Supervisor::start(
        spec(&fixture.fake, changed),
        Some(fixture.supervisor),
        None,
        fixture.services.clone(),
    );
    let fixture = Fixture { supervisor, ..fixture };
    fixture.echo().await.unwrap();
    assert_eq!(fixture.status().restarts_left, 1);
}

#[tokio::test(start_paused = true)]
async fn restarts_expire_from_the_status() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.crash().await;
    assert_eq!(fixture.status().restarts, 1);
    sleep(299 * SECOND).await;
    assert_eq!(fixture.status().restarts, 1);
    sleep(2 * SECOND).await;
    assert_eq!((fixture.status().restarts, fixture.status().restarts_left), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn crashes_far_apart_do_not_eject() {
    let fixture = fixture(FakeServer::new());
    for _ in 0..10 {
        fixture.echo().await.unwrap();
        fixture.crash().await;
        sleep(151 * SECOND).await;
    }
    assert_eq!(fixture.state(), ServerState::Asleep);
}

#[tokio::test(start_paused = true)]
async fn crash_without_waiting_calls_ends_asleep() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.crash().await;
    assert_eq!(fixture.state(), ServerState::BackingOff);
    assert!(fixture.status().next_attempt_in.is_some());
    sleep(SECOND).await;
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn release_of_an_old_generation_is_ignored() {
    let fixture = fixture(FakeServer::new());
    let late = fixture.lease().await.unwrap();
    fixture.crash().await;
    let held = fixture.lease().await.unwrap();
    drop(late);
    yield_often().await;
    assert_eq!((fixture.status().leases, fixture.status().generation), (1, 2));
    sleep(120 * SECOND).await;
    assert_eq!(fixture.state(), ServerState::Ready);
    drop(held);
    sleep(61 * SECOND).await;
    assert_eq!(fixture.state(), ServerState::Asleep);
}

/// Crashes the server until it is ejected.
async fn eject(fake: FakeServer) -> Fixture {
    let fixture = fixture(fake);
    for _ in 0..3 {
        fixture.echo().await.unwrap();
        fixture.crash().await;
    }
    fixture.wait_for(ServerState::Ejected).await;
    fixture
}
