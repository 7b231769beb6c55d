//! Servers that live and do not answer, do not read, or only seem to live.

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
use toolcrib::{Crib, ErrorKind, Event, InProcess, Lifecycle, Limits, ServerSpec, StateName};

use crate::fake::Fake;
use crate::house::{SECOND, breath, crib, id, kind, on, spawn, spec, status, with};

/// A fake behind a door, and everything that came through it. When the door shuts, the read under way still takes its
/// thousand bytes, and nothing more is read.
#[derive(Clone)]
struct Door {
    fake: Fake,
    open: watch::Sender<bool>,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl Door {
    fn new() -> Self {
        Self { fake: Fake::new(), open: watch::Sender::new(true), taken: Arc::default() }
    }

    fn taken(&self) -> Vec<u8> {
        self.taken.lock().unwrap().clone()
    }

    /// Every line that came through, which must be a message.
    fn lines(&self) -> Vec<Value> {
        let taken = self.taken();
        assert!(taken.ends_with(b"\n"), "half a line is left");
        let lines = taken.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }
}

impl InProcess for Door {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (door, mut open) = (self.clone(), self.open.subscribe());
        let (outside, inside) = tokio::io::duplex(1000);
        let served = self.fake.serve(inside);
        Box::pin(async move {
            let (mut requests, mut answers) = tokio::io::split(pipe);
            let (mut said, mut heard) = tokio::io::split(outside);
            let inward = async {
                let mut chunk = vec![0; 1000];
                while open.wait_for(|open| *open).await.is_ok() {
                    let count = requests.read(&mut chunk).await.unwrap_or(0);
                    door.taken.lock().unwrap().extend_from_slice(&chunk[..count]);
                    if count == 0 || heard.write_all(&chunk[..count]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = inward => {}
                _ = tokio::io::copy(&mut said, &mut answers) => {}
            }
        })
    }
}

fn behind(door: &Door) -> ServerSpec {
    ServerSpec::in_process(id("git"), door.clone())
}

/// A server that three timeouts of a second each trip for half a minute.
fn impatient(spec: ServerSpec) -> Crib {
    let breaker = BreakerSpec { failures: 3.try_into().unwrap(), cool_off: 30 * SECOND };
    let limits = Limits { call_timeout: SECOND, ..Limits::default() };
    let care = Lifecycle { breaker, ..Lifecycle::default() };
    Crib::builder().server(spec.limits(limits).lifecycle(care)).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_nothing_is_left_alone_and_asked_again_later() {
    let fake = Fake::new();
    let crib = impatient(spec("git", &fake));
    let mut events = crib.events();
    for failures in 1..=3 {
        assert_eq!(kind(crib.call(on("git", "hang")).await), ErrorKind::TimedOut);
        breath().await;
        assert_eq!(status(&crib, "git").consecutive_failures, failures);
    }
    let before = Instant::now();
    let refused = crib.call(on("git", "echo")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.wait()), (ErrorKind::Tripped, Some(30 * SECOND)));
    assert_eq!((before.elapsed(), fake.called().len()), (Duration::ZERO, 3), "it was not even asked");
    let tripped = status(&crib, "git");
    assert_eq!((tripped.state, tripped.breaker(), tripped.restarts), (StateName::Tripped, "open", 0));
    sleep(30 * SECOND).await;
    crib.call(on("git", "echo")).await.unwrap();
    breath().await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (StateName::Ready, 1));
    let told: Vec<Event> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    let count = |wanted: fn(&Event) -> bool| told.iter().filter(|event| wanted(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Tripped { .. })), 1);
    assert_eq!(count(|event| matches!(event, Event::Recovered { .. })), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_even_read_is_replaced() {
    let door = Door::new();
    let crib = impatient(behind(&door));
    crib.call(on("git", "echo")).await.unwrap();
    door.open.send_replace(false);
    let call = with("git", "echo", &json!({"text": "x".repeat(1000)}));
    assert_eq!(kind(crib.call(call).await), ErrorKind::TimedOut);
    sleep(2 * SECOND).await;
    door.open.send_replace(true);
    crib.call(on("git", "echo")).await.unwrap();
    breath().await;
    let status = status(&crib, "git");
    assert_eq!((status.state, status.restarts, door.fake.starts()), (StateName::Ready, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_restart_replaces_a_server_that_hangs_and_tells_those_who_waited() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    let mut calls = JoinSet::new();
    (0..5).for_each(|_| spawn(&mut calls, &crib, on("git", "hang")));
    breath().await;
    let before = Instant::now();
    crib.restart(&id("git")).await.unwrap();
    let told = calls.join_all().await;
    assert!(told.into_iter().all(|ended| kind(ended) == ErrorKind::Lost));
    crib.call(on("git", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND / 10);
    assert_eq!((fake.starts(), fake.living()), (2, (1, 1)));
}

/// Greets, then closes its output and goes on reading.
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
async fn a_server_that_closes_its_output_and_lives_on_is_not_taken_for_alive() {
    let started = watch::Sender::new(0);
    let crib =
        Crib::builder().server(ServerSpec::in_process(id("git"), Mute(started.clone()))).build().unwrap();
    let before = Instant::now();
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::CouldNotStart);
    assert!(before.elapsed() < 30 * SECOND, "nobody waits for the limit of a start");
    assert_eq!((status(&crib, "git").state, *started.borrow()), (StateName::Ejected, 7));
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_gives_up_in_the_middle_of_a_write_leaves_no_half_line() {
    let door = Door::new();
    let crib = Crib::builder().server(behind(&door)).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    // From less than the pipe holds to many times as much.
    for bytes in [2_000, 60_000, 65_000, 70_000, 1_000_000] {
        let before = door.taken().len();
        door.open.send_replace(false);
        let large = with("git", "echo", &json!({"text": "x".repeat(bytes)}));
        assert!(timeout(SECOND, crib.call(large)).await.is_err());
        assert_eq!((door.taken().len() - before, status(&crib, "git").in_flight), (1000, 0));
        door.open.send_replace(true);
        assert_eq!(
            crib.call(with("git", "echo", &json!({"n": bytes}))).await.unwrap().text(),
            format!("{{\"n\":{bytes}}}")
        );
    }
    let lines = door.lines();
    let of = |method: &str| lines.iter().filter(|line| line["method"] == method).cloned().collect::<Vec<_>>();
    let (called, cancelled) = (of("tools/call"), of("notifications/cancelled"));
    assert_eq!((called.len(), cancelled.len(), door.fake.starts()), (11, 5, 1));
    for (large, cancel) in called[1..].iter().step_by(2).zip(&cancelled) {
        assert_eq!(large["id"], cancel["params"]["requestId"]);
    }
}

#[tokio::test(start_paused = true)]
async fn many_callers_who_give_up_in_the_middle_of_a_write_leave_whole_lines() {
    let door = Door::new();
    let crib = Crib::builder().server(behind(&door)).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    door.open.send_replace(false);
    let mut calls = JoinSet::new();
    (0..40).for_each(|_| spawn(&mut calls, &crib, with("git", "echo", &json!({"text": "x".repeat(10_000)}))));
    breath().await;
    let given_up: Vec<_> =
        (0..20).map(|_| crib.call(with("git", "hang", &json!({"text": "x".repeat(9_000)})))).collect();
    for call in given_up {
        assert!(timeout(SECOND / 10, call).await.is_err());
    }
    door.open.send_replace(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    breath().await;
    let cancelled = door.lines().iter().filter(|line| line["method"] == "notifications/cancelled").count();
    assert_eq!((cancelled, status(&crib, "git").in_flight), (20, 0));
}
