//! Servers that run but do not answer, do not read, or have closed their output.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use toolcrib::spec::BreakerSpec;
use toolcrib::{Caller, Crib, ErrorKind, Event, InProcess, Lifecycle, ServerLimits, ServerSpec, ServerState};

use crate::fake::FakeServer;
use crate::support::{SECOND, crib, id, kind, on, settle, spawn, spec, status, with};

/// A fake server behind a valve, and every byte that passed it. When the valve closes, the current read still takes its
/// thousand bytes, and nothing more is read.
#[derive(Clone)]
struct Valve {
    fake: FakeServer,
    open: watch::Sender<bool>,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl Valve {
    fn new() -> Self {
        Self { fake: FakeServer::new(), open: watch::Sender::new(true), taken: Arc::default() }
    }

    fn taken(&self) -> Vec<u8> {
        self.taken.lock().unwrap().clone()
    }

    /// Returns every line that passed; each must be a message.
    fn lines(&self) -> Vec<Value> {
        let taken = self.taken();
        assert!(taken.ends_with(b"\n"), "the last line is incomplete");
        let lines = taken.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }
}

impl InProcess for Valve {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let valve = self.clone();
        let mut open = self.open.subscribe();
        let (outside, inside) = tokio::io::duplex(1000);
        let served = self.fake.serve(inside);
        Box::pin(async move {
            let (mut requests, mut answers) = tokio::io::split(pipe);
            let (mut output, mut input) = tokio::io::split(outside);
            let inward = async {
                let mut chunk = vec![0; 1000];
                while open.wait_for(|open| *open).await.is_ok() {
                    let count = requests.read(&mut chunk).await.unwrap_or(0);
                    valve.taken.lock().unwrap().extend_from_slice(&chunk[..count]);
                    if count == 0 || input.write_all(&chunk[..count]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = inward => {}
                _ = tokio::io::copy(&mut output, &mut answers) => {}
            }
        })
    }
}

fn spec_of(valve: &Valve) -> ServerSpec {
    ServerSpec::in_process(id("git"), valve.clone())
}

/// A crib whose server has a call timeout of one second and a breaker that opens after three timeouts.
fn crib_with_breaker(spec: ServerSpec) -> Crib {
    let breaker = BreakerSpec { failures: 3.try_into().unwrap(), cool_off: 30 * SECOND };
    let limits = ServerLimits { call_timeout: SECOND, ..ServerLimits::default() };
    let lifecycle = Lifecycle { breaker, ..Lifecycle::default() };
    Crib::builder().server(spec.limits(limits).lifecycle(lifecycle)).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn timeouts_open_the_breaker_until_cool_off() {
    let fake = FakeServer::new();
    let crib = crib_with_breaker(spec("git", &fake));
    let mut events = crib.events();
    for failures in 1..=3 {
        assert_eq!(kind(crib.call(on("git", "hang")).await), ErrorKind::TimedOut);
        settle().await;
        assert_eq!(status(&crib, "git").consecutive_failures, failures);
    }
    let before = Instant::now();
    let refused = crib.call(on("git", "echo")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_in()), (ErrorKind::Tripped, Some(30 * SECOND)));
    assert_eq!((before.elapsed(), fake.called_tools().len()), (Duration::ZERO, 3), "the call was not sent");
    let tripped = status(&crib, "git");
    assert_eq!((tripped.state, tripped.breaker(), tripped.restarts), (ServerState::Tripped, "open", 0));
    sleep(30 * SECOND).await;
    crib.call(on("git", "echo")).await.unwrap();
    settle().await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (ServerState::Ready, 1));
    let received: Vec<Event> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    let count = |matches: fn(&Event) -> bool| received.iter().filter(|event| matches(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Tripped { .. })), 1);
    assert_eq!(count(|event| matches!(event, Event::Recovered { .. })), 1);
}

#[tokio::test(start_paused = true)]
async fn timeouts_of_one_caller_do_not_refuse_another() {
    let fake = FakeServer::new();
    let crib = crib_with_breaker(spec("git", &fake));
    let call = |caller: &str, tool: &str| crib.call(on("git", tool).caller(Caller::new(caller)));
    call("ann", "echo").await.unwrap();
    for failures in 1..=5 {
        assert_eq!(kind(call("ben", "hang").await), ErrorKind::TimedOut);
        settle().await;
        assert_eq!(status(&crib, "git").consecutive_failures, failures);
    }
    call("ann", "echo").await.unwrap();
    settle().await;
    assert_eq!(status(&crib, "git").consecutive_failures, 0);
    // The failures of two callers are those of the server.
    for caller in ["ann", "ben", "ben"] {
        assert_eq!(kind(call(caller, "hang").await), ErrorKind::TimedOut);
    }
    assert_eq!(kind(call("ann", "echo").await), ErrorKind::Tripped);
    sleep(30 * SECOND).await;
    call("ann", "echo").await.unwrap();
    // A caller that has not used the server for the cool-off does not count.
    sleep(30 * SECOND).await;
    for _ in 0..3 {
        assert_eq!(kind(call("ben", "hang").await), ErrorKind::TimedOut);
    }
    assert_eq!(kind(call("ann", "echo").await), ErrorKind::Tripped);
}

#[tokio::test(start_paused = true)]
async fn timeout_of_a_call_that_waited_for_its_turn_does_not_count() {
    let fake = FakeServer::new();
    let mut limits = ServerLimits { call_timeout: SECOND, ..ServerLimits::default() };
    limits.in_flight = std::num::NonZeroUsize::MIN;
    let crib = Crib::builder().server(spec("git", &fake).limits(limits)).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hang"));
    sleep(SECOND / 2).await;
    spawn(&mut calls, &crib, on("git", "hang"));
    for outcome in calls.join_all().await {
        assert_eq!(kind(outcome), ErrorKind::TimedOut);
    }
    settle().await;
    assert_eq!((status(&crib, "git").consecutive_failures, fake.called_tools().len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn server_that_stops_reading_is_replaced() {
    let valve = Valve::new();
    let crib = crib_with_breaker(spec_of(&valve));
    crib.call(on("git", "echo")).await.unwrap();
    valve.open.send_replace(false);
    let call = with("git", "echo", &json!({"text": "x".repeat(1000)}));
    assert_eq!(kind(crib.call(call).await), ErrorKind::TimedOut);
    sleep(2 * SECOND).await;
    valve.open.send_replace(true);
    crib.call(on("git", "echo")).await.unwrap();
    settle().await;
    let status = status(&crib, "git");
    assert_eq!((status.state, status.restarts, valve.fake.starts()), (ServerState::Ready, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn restart_replaces_hung_server_and_fails_its_calls() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..5).for_each(|_| spawn(&mut calls, &crib, on("git", "hang")));
    settle().await;
    let before = Instant::now();
    crib.restart(&id("git")).await.unwrap();
    let results = calls.join_all().await;
    assert!(results.into_iter().all(|ended| kind(ended) == ErrorKind::Lost));
    crib.call(on("git", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND / 10);
    assert_eq!((fake.starts(), fake.running_and_peak()), (2, (1, 1)));
}

/// A server that closes its output after the first request and keeps running.
struct Mute(watch::Sender<usize>);

impl InProcess for Mute {
    fn serve(&self, mut pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let living = self.0.clone();
        living.send_modify(|living| *living += 1);
        Box::pin(async move {
            let mut chunk = vec![0; 1000];
            let _ = pipe.read(&mut chunk).await;
            let _ = pipe.shutdown().await;
            std::future::pending::<()>().await;
        })
    }
}

#[tokio::test(start_paused = true)]
async fn closed_output_counts_as_exit() {
    let started = watch::Sender::new(0);
    let crib =
        Crib::builder().server(ServerSpec::in_process(id("git"), Mute(started.clone()))).build().unwrap();
    let before = Instant::now();
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::CouldNotStart);
    assert!(before.elapsed() < 30 * SECOND, "the call does not wait for the start timeout");
    assert_eq!((status(&crib, "git").state, *started.borrow()), (ServerState::Ejected, 7));
}

#[tokio::test(start_paused = true)]
async fn call_dropped_during_write_leaves_whole_lines() {
    let valve = Valve::new();
    let crib = Crib::builder().server(spec_of(&valve)).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    // From less than the pipe buffer to many times its size.
    for bytes in [2_000, 60_000, 65_000, 70_000, 1_000_000] {
        let before = valve.taken().len();
        valve.open.send_replace(false);
        let large = with("git", "echo", &json!({"text": "x".repeat(bytes)}));
        assert!(timeout(SECOND, crib.call(large)).await.is_err());
        assert_eq!((valve.taken().len() - before, status(&crib, "git").in_flight), (1000, 0));
        valve.open.send_replace(true);
        assert_eq!(
            crib.call(with("git", "echo", &json!({"n": bytes}))).await.unwrap().text(),
            format!("{{\"n\":{bytes}}}")
        );
    }
    let lines = valve.lines();
    let of = |method: &str| lines.iter().filter(|line| line["method"] == method).cloned().collect::<Vec<_>>();
    let called = of("tools/call");
    let cancelled = of("notifications/cancelled");
    assert_eq!((called.len(), cancelled.len(), valve.fake.starts()), (11, 5, 1));
    for (large, cancel) in called[1..].iter().step_by(2).zip(&cancelled) {
        assert_eq!(large["id"], cancel["params"]["requestId"]);
    }
}

#[tokio::test(start_paused = true)]
async fn many_calls_dropped_during_write_leave_whole_lines() {
    let valve = Valve::new();
    let crib = Crib::builder().server(spec_of(&valve)).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    valve.open.send_replace(false);
    let mut calls = JoinSet::new();
    (0..40).for_each(|_| spawn(&mut calls, &crib, with("git", "echo", &json!({"text": "x".repeat(10_000)}))));
    settle().await;
    let dropped: Vec<_> =
        (0..20).map(|_| crib.call(with("git", "hang", &json!({"text": "x".repeat(9_000)})))).collect();
    for call in dropped {
        assert!(timeout(SECOND / 10, call).await.is_err());
    }
    valve.open.send_replace(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    settle().await;
    let cancelled = valve.lines().iter().filter(|line| line["method"] == "notifications/cancelled").count();
    assert_eq!((cancelled, status(&crib, "git").in_flight), (20, 0));
}
