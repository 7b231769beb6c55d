//! Progress: in order, before the answer, and good for more time.

use tokio::sync::mpsc;

use super::*;
use crate::told::Told;

/// A call of `progress` with its steps as they were heard.
async fn heard(limits: Limits, arguments: Value, room: usize) -> (Result<Outcome, Error>, Vec<u64>, Fake) {
    let fake = Fake::new();
    let connection = connected(&spec(&fake).limits(limits)).await;
    let (sink, mut steps) = mpsc::channel(room);
    let mut call = Call::tool("progress").arguments(&arguments).tell(sink);
    let outcome = connection.call(&mut call, "progress", Instant::now()).await;
    drop(call);
    let mut told = Vec::new();
    while let Ok(Told::Progress(progress)) = steps.try_recv() {
        assert!(progress.get("progressToken").is_none());
        told.push(std::str::from_utf8(progress.get("progress").unwrap()).unwrap().parse().unwrap());
    }
    breath().await;
    assert!(steps.try_recv().is_err(), "progress after the answer");
    (outcome, told, fake)
}

#[tokio::test(start_paused = true)]
async fn progress_keeps_its_order_and_comes_before_the_answer() {
    for every in [0, 10] {
        let (outcome, told, _) = heard(Limits::default(), json!({"steps": 500, "every": every}), 1000).await;
        outcome.unwrap();
        assert_eq!(told, (1..=500).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn progress_extends_the_time_limit_up_to_the_maximum() {
    let (outcome, told, _) =
        heard(Limits::default(), json!({"steps": 10, "every": 50_000, "then": 59_000}), 1000).await;
    outcome.unwrap();
    assert_eq!(told.len(), 10);
    let before = Instant::now();
    let (outcome, told, fake) = heard(Limits::default(), json!({"steps": 100, "every": 50_000}), 1000).await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs(), told.len()), (ErrorKind::TimedOut, 600, 11));
    assert!(error.advice().contains("call-timeout-max"), "{}", error.advice());
    assert_eq!(fake.heard("notifications/cancelled").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn silence_after_progress_ends_the_call() {
    let before = Instant::now();
    let (outcome, told, _) =
        heard(Limits::default(), json!({"steps": 1, "every": 30_000, "then": 90_000}), 1000).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!((before.elapsed().as_secs(), told), (90, vec![1]));
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_does_not_listen_does_not_hold_up_the_answer() {
    let before = Instant::now();
    let (outcome, told, _) = heard(Limits::default(), json!({"steps": 20, "every": 100}), 1).await;
    outcome.unwrap();
    assert!(before.elapsed() < 5 * SECOND, "{:?}", before.elapsed());
    assert_eq!(told, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_went_away_costs_nothing() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let (sink, steps) = mpsc::channel(1);
    drop(steps);
    let arguments = json!({"steps": 5, "every": 1000});
    let mut call = Call::tool("progress").arguments(&arguments).tell(sink);
    connection.call(&mut call, "progress", Instant::now()).await.unwrap();
}
