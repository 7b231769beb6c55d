//! Servers that answer slowly, with too much data or not at all.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use e2e::chaos::execution_log::ExecutionLog;
use e2e::chaos::resource_monitor::ResourceMonitor;
use serde_json::json;
use tempfile::TempDir;
use test_support::{WAIT_LIMIT, call, crib, eventually, fake, quick_lifecycle, status, text};
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::spec::BreakerSpec;
use toolcrib::{Crib, Error, ErrorKind, KeepAlive, Lifecycle, Outcome, ServerLimits, ServerState};

/// Calls the tool `record`.
async fn record(crib: &Crib, token: u64, fault: &str) -> Result<Outcome, Error> {
    let arguments = json!({"token": token.to_string(), "fault": fault});
    timeout(WAIT_LIMIT, call(crib, "fake", "record", &arguments)).await.unwrap()
}

fn executions() -> (TempDir, ExecutionLog) {
    let dir = TempDir::new().unwrap();
    let executions = ExecutionLog::new(dir.path().join("records"));
    (dir, executions)
}

#[tokio::test]
async fn response_byte_by_byte_times_out_and_affects_no_later_call() {
    let (_dir, executions) = executions();
    let limits = ServerLimits { call_timeout: Duration::from_millis(300), ..ServerLimits::default() };
    let breaker = BreakerSpec { failures: NonZeroU32::MAX, cool_off: Duration::from_secs(1) };
    let spec = fake!("fake", "--record-dir", executions.server_folder("fake")).limits(limits);
    let crib = crib([spec.lifecycle(Lifecycle { breaker, ..quick_lifecycle(5) })]);
    assert_eq!(record(&crib, 1, "byte_by_byte").await.unwrap_err().kind(), ErrorKind::TimedOut);
    let _watchdog = test_support::deadline::Watchdog::new(10 * WAIT_LIMIT);
    // The rest of the response is still being written and must not be taken for another one.
    let mut later = record(&crib, 2, "").await;
    while later.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
        later = record(&crib, 2, "").await;
    }
    assert_eq!(later.unwrap().text(), "2");
    assert_eq!(status(&crib, "fake").generation, 1, "a slow server is not restarted");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn endless_line_is_not_buffered() {
    // The memory of the whole process is measured.
    if !test_support::in_own_process!() {
        return;
    }
    let (_dir, executions) = executions();
    let crib = crib([fake!("fake", "--record-dir", executions.server_folder("fake")), fake!("other")]);
    text(&crib, "fake", "echo", &json!({"text": "warm"})).await;
    let monitor = ResourceMonitor::new(std::process::id());
    let before = monitor.memory_kib();
    let mut calls = JoinSet::new();
    let endless = crib.clone();
    calls.spawn(async move { record(&endless, 1, "endless_line").await });
    let mut most = before;
    let answer = loop {
        if let Some(answer) = calls.try_join_next() {
            break answer.unwrap();
        }
        assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
        most = most.max(monitor.memory_kib());
    };
    assert_eq!(answer.unwrap().text(), "1", "the answer follows the line");
    assert!(most < before + (96 << 10), "{before} KiB became {most} KiB");
    assert_eq!(record(&crib, 2, "").await.unwrap().text(), "2");
    let status = status(&crib, "fake");
    assert_eq!((status.generation, status.restarts), (1, 0), "the process was not restarted");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn long_line_costs_only_its_call() {
    let crib = crib([fake!("fake")]);
    let mut neighbours = JoinSet::new();
    let mut failing = async |form: &str, bytes: usize| {
        let neighbour = crib.clone();
        neighbours.spawn(async move { text(&neighbour, "fake", "sleep", &json!({"ms": 3000})).await });
        eventually("the neighbour is in flight", || status(&crib, "fake").in_flight == 1).await;
        let arguments = json!({"form": form, "bytes": bytes});
        let error = timeout(WAIT_LIMIT, call(&crib, "fake", "reply", &arguments)).await.unwrap().unwrap_err();
        assert_eq!(neighbours.join_next().await.unwrap().unwrap(), "slept", "{form}");
        assert_eq!(text(&crib, "fake", "echo", &json!({"text": form})).await, form);
        error
    };
    for (form, bytes) in [("oversize", 34_000_000), ("oversize", 80_000_000)] {
        let error = failing(form, bytes).await;
        assert_eq!(error.kind(), ErrorKind::BadReply);
        assert_eq!(error.hint(), "raise `servers.fake.limits.message`");
        let text = error.to_string();
        let (size, _) = text.split_once(" bytes, and `servers.fake.limits.message` is 32MiB").expect(&text);
        let size: usize = size.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((bytes..bytes + 100).contains(&size), "{text}");
    }
    let arguments = json!({"form": "output", "bytes": 34_000_000});
    let error = timeout(WAIT_LIMIT, call(&crib, "fake", "reply", &arguments)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("after a line of 34000000 bytes that is not a message"), "{error}");
    let status = status(&crib, "fake");
    assert_eq!((status.generation, status.restarts), (1, 0), "the process was not restarted");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn open_breaker_lets_one_probe_through() {
    let (_dir, executions) = executions();
    let breaker = BreakerSpec { failures: NonZeroU32::new(3).unwrap(), cool_off: Duration::from_millis(300) };
    let limits = ServerLimits { call_timeout: Duration::from_millis(500), ..ServerLimits::default() };
    let spec = fake!("fake", "--record-dir", executions.server_folder("fake")).limits(limits);
    let crib = crib([spec.lifecycle(Lifecycle { breaker, ..quick_lifecycle(5) })]);
    text(&crib, "fake", "echo", &json!({"text": "warm"})).await;
    let hang = async |token| record(&crib, token, "hang").await.unwrap_err().kind();
    // A tool error is a success for the breaker, so the failures are not three in a row.
    for token in [0, 1] {
        assert_eq!(hang(token).await, ErrorKind::TimedOut);
    }
    assert!(call(&crib, "fake", "fail", &json!({"text": "no"})).await.unwrap().is_error());
    for token in [2, 3, 4] {
        assert_eq!(status(&crib, "fake").state, ServerState::Ready, "before {token}");
        assert_eq!(hang(token).await, ErrorKind::TimedOut);
    }
    eventually("the breaker opens", || status(&crib, "fake").state == ServerState::Tripped).await;
    let refused = record(&crib, 10, "").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Tripped);
    tokio::time::sleep(refused.retry_in().unwrap()).await;
    let mut calls = JoinSet::new();
    for token in 100..130 {
        let crib = crib.clone();
        calls.spawn(async move { record(&crib, token, "hang").await.map_err(|error| error.kind()) });
    }
    let mut results = calls.join_all().await;
    results.retain(|result| result.as_ref().is_err_and(|kind| *kind != ErrorKind::Tripped));
    assert_eq!(results.len(), 1, "all but the probe were refused: {results:?}");
    assert_eq!(executions.read().tokens.len(), 5 + 1, "no other call was executed");
    eventually("a hanging probe opens the breaker again", || {
        status(&crib, "fake").state == ServerState::Tripped
    })
    .await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn cancelled_probe_lets_the_next_call_probe() {
    let (_dir, executions) = executions();
    let breaker = BreakerSpec { failures: NonZeroU32::new(1).unwrap(), cool_off: Duration::from_millis(100) };
    let limits = ServerLimits { call_timeout: Duration::from_secs(2), ..ServerLimits::default() };
    let spec = fake!("fake", "--record-dir", executions.server_folder("fake")).limits(limits);
    let crib = crib([spec.lifecycle(Lifecycle { breaker, ..quick_lifecycle(5) })]);
    assert_eq!(record(&crib, 0, "hang").await.unwrap_err().kind(), ErrorKind::TimedOut);
    eventually("the breaker is half open", || status(&crib, "fake").breaker() == "half_open").await;
    let mut probe = JoinSet::new();
    let caller = crib.clone();
    probe.spawn(async move { record(&caller, 1, "hang").await });
    eventually("the call probes", || status(&crib, "fake").state == ServerState::Probing).await;
    probe.shutdown().await;
    eventually("the probe has ended", || status(&crib, "fake").state == ServerState::Tripped).await;
    assert_eq!(record(&crib, 2, "").await.unwrap().text(), "2");
    eventually("the server is ready", || status(&crib, "fake").state == ServerState::Ready).await;
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn call_at_the_end_of_keep_alive_is_served() {
    let (_dir, executions) = executions();
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::from_millis(1)), ..quick_lifecycle(5) };
    let crib = crib([fake!("fake", "--record-dir", executions.server_folder("fake")).lifecycle(lifecycle)]);
    for token in 0..40 {
        assert_eq!(record(&crib, token, "").await.unwrap().text(), token.to_string());
        tokio::time::sleep(Duration::from_millis(token % 4)).await;
    }
    let executed = executions.read();
    assert_eq!(executed.tokens.len(), 40);
    assert!(executed.tokens.values().all(|times| *times == 1), "{executed:?}");
    assert_eq!(status(&crib, "fake").restarts, 0, "going to sleep is not a crash");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn cancelled_calls_free_their_slots() {
    let (_dir, executions) = executions();
    let limits = ServerLimits { in_flight: NonZeroUsize::new(4).unwrap(), ..ServerLimits::default() };
    let crib = crib([fake!("fake", "--record-dir", executions.server_folder("fake")).limits(limits)]);
    text(&crib, "fake", "echo", &json!({"text": "warm"})).await;
    for round in 0..10 {
        let mut calls = JoinSet::new();
        for number in 0..8 {
            let crib = crib.clone();
            let fault = if number % 2 == 0 { "hang" } else { "late" };
            calls.spawn(async move { record(&crib, round * 8 + number, fault).await });
        }
        eventually("all slots are used", || status(&crib, "fake").in_flight == 4).await;
        calls.shutdown().await;
        eventually("no call is in flight", || status(&crib, "fake").in_flight == 0).await;
    }
    assert_eq!(record(&crib, 1000, "").await.unwrap().text(), "1000");
    crib.shutdown(Duration::ZERO).await;
}
