//! The circuit breaker: what trips it and how a probe closes it.

use super::*;

#[tokio::test(start_paused = true)]
async fn timeouts_trip_at_the_threshold() {
    let fixture = fixture(FakeServer::new());
    for failures in 1..=2 {
        assert_eq!(error_kind(fixture.call("hang", NO_ARGUMENTS).await), ErrorKind::TimedOut);
        yield_often().await;
        assert_eq!((fixture.state(), fixture.status().consecutive_failures), (ServerState::Ready, failures));
    }
    assert_eq!(error_kind(fixture.call("hang", NO_ARGUMENTS).await), ErrorKind::TimedOut);
    fixture.wait_for(ServerState::Tripped).await;
    let before = fixture.fake.called_tools().len();
    let error = fixture.echo().await.unwrap_err();
    assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Tripped, Some(30 * SECOND)));
    assert!(error.to_string().contains("failed 3 times in a row"), "{error}");
    assert_eq!((fixture.fake.called_tools().len(), fixture.status().breaker()), (before, "open"));
}

#[tokio::test(start_paused = true)]
async fn bad_replies_trip_and_success_resets_the_count() {
    let fixture = fixture(FakeServer::new());
    let bad = json!({"lines": [r#"{"jsonrpc":"2.0","id":"$ID","result":{}}"#]});
    for _ in 0..2 {
        assert_eq!(error_kind(fixture.call("say", bad.clone()).await), ErrorKind::BadReply);
    }
    fixture.echo().await.unwrap();
    for _ in 0..3 {
        yield_often().await;
        assert_eq!(fixture.state(), ServerState::Ready);
        assert_eq!(error_kind(fixture.call("say", bad.clone()).await), ErrorKind::BadReply);
    }
    fixture.wait_for(ServerState::Tripped).await;
    assert_eq!(fixture.fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn tool_and_protocol_errors_neither_trip_nor_restart() {
    let fixture = fixture(FakeServer::new());
    for _ in 0..20 {
        assert!(fixture.call("fail", NO_ARGUMENTS).await.unwrap().is_error());
        let refused = fixture.call("refuse", NO_ARGUMENTS).await.unwrap();
        assert_eq!((refused.is_error(), &*refused.text()), (true, "could not connect to the database"));
    }
    yield_often().await;
    let status = fixture.status();
    assert_eq!((status.state, status.consecutive_failures, status.restarts), (ServerState::Ready, 0, 0));
    assert_eq!((fixture.fake.starts(), fixture.fake.called_tools().len()), (1, 40));
}

#[tokio::test(start_paused = true)]
async fn breaker_ignores_process_exit() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    assert_eq!(error_kind(fixture.call("die", NO_ARGUMENTS).await), ErrorKind::Lost);
    fixture.echo().await.unwrap();
    yield_often().await;
    assert_eq!(fixture.status().consecutive_failures, 0);
}

#[tokio::test(start_paused = true)]
async fn one_call_probes_and_others_fail_immediately() {
    let fixture = fixture(FakeServer::new());
    fixture.trip().await;
    sleep(30 * SECOND).await;
    let mut calls = fixture.calls(30, "hold");
    for _ in 0..29 {
        let outcome = calls.join_next().await.unwrap().unwrap();
        assert_eq!(error_kind(outcome), ErrorKind::Tripped);
    }
    fixture.wait_for_calls(3 + 1).await;
    yield_often().await;
    assert_eq!((fixture.state(), fixture.status().breaker()), (ServerState::Probing, "half_open"));
    assert_eq!(fixture.fake.called_tools().len(), 3 + 1);
    fixture.fake.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    fixture.wait_for(ServerState::Ready).await;
    assert_eq!((fixture.status().consecutive_failures, fixture.fake.starts()), (0, 1));
    assert!(error_kinds(fixture.calls(30, "echo")).await.iter().all(Option::is_none));
}

#[tokio::test(start_paused = true)]
async fn cancelled_probe_allows_another_probe() {
    let fixture = fixture(FakeServer::new());
    fixture.trip().await;
    sleep(31 * SECOND).await;
    assert!(timeout(SECOND, fixture.call("hang", NO_ARGUMENTS)).await.is_err());
    yield_often().await;
    assert_eq!(fixture.status().breaker(), "half_open");
    fixture.echo().await.unwrap();
    fixture.wait_for(ServerState::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn timed_out_probe_reopens_the_breaker() {
    let fixture = fixture(FakeServer::new());
    fixture.trip().await;
    sleep(31 * SECOND).await;
    assert_eq!(error_kind(fixture.call("hang", NO_ARGUMENTS).await), ErrorKind::TimedOut);
    fixture.wait_for(ServerState::Tripped).await;
    assert_eq!(fixture.echo().await.unwrap_err().retry_in(), Some(30 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn exit_of_tripped_server_spends_a_restart() {
    let fixture = fixture(FakeServer::new());
    fixture.trip().await;
    fixture.crash().await;
    fixture.echo().await.unwrap();
    let status = fixture.status();
    assert_eq!((status.state, status.restarts, status.consecutive_failures), (ServerState::Ready, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn exit_during_probe_spends_a_restart() {
    let fixture = fixture(FakeServer::new());
    fixture.trip().await;
    sleep(31 * SECOND).await;
    assert_eq!(error_kind(fixture.call("die", NO_ARGUMENTS).await), ErrorKind::Lost);
    fixture.echo().await.unwrap();
    assert_eq!((fixture.state(), fixture.fake.starts()), (ServerState::Ready, 2));
}

#[tokio::test(start_paused = true)]
async fn restart_closes_the_breaker() {
    let fixture = fixture(FakeServer::new());
    fixture.trip().await;
    fixture.supervisor.restart().await.unwrap();
    fixture.echo().await.unwrap();
    assert_eq!((fixture.fake.starts(), fixture.status().breaker()), (2, "closed"));
}

#[tokio::test(start_paused = true)]
async fn cancelled_calls_do_not_trip() {
    let fixture = fixture(FakeServer::new());
    for _ in 0..10 {
        assert!(timeout(SECOND, fixture.call("hang", NO_ARGUMENTS)).await.is_err());
    }
    yield_often().await;
    assert_eq!((fixture.state(), fixture.status().consecutive_failures), (ServerState::Ready, 0));
}
