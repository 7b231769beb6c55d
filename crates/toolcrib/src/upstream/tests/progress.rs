//! Progress notifications: order, deadlines and slow receivers.

use tokio::sync::mpsc;

use super::*;
use crate::call::updates::CallUpdate;

/// Calls `progress`; returns the outcome and the received steps.
async fn call_with_progress(
    limits: ServerLimits,
    arguments: Value,
    capacity: usize,
) -> (Result<Outcome, Error>, Vec<u64>, FakeServer) {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake).limits(limits)).await;
    let (sink, mut steps) = mpsc::channel(capacity);
    let mut call = Call::tool("progress").arguments(&arguments).updates(sink);
    let outcome = connection.call(&mut call, "progress", Instant::now()).await;
    drop(call);
    let mut received = Vec::new();
    while let Ok(CallUpdate::Progress(progress)) = steps.try_recv() {
        assert!(progress.get("progressToken").is_none());
        received.push(std::str::from_utf8(progress.get("progress").unwrap()).unwrap().parse().unwrap());
    }
    settle().await;
    assert!(steps.try_recv().is_err(), "progress after the response");
    (outcome, received, fake)
}

#[tokio::test(start_paused = true)]
async fn progress_arrives_in_order_before_the_response() {
    for every in [0, 10] {
        let (outcome, received, _) =
            call_with_progress(ServerLimits::default(), json!({"steps": 500, "every": every}), 1000).await;
        outcome.unwrap();
        assert_eq!(received, (1..=500).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn progress_extends_the_deadline_up_to_the_hard_limit() {
    let (outcome, received, _) = call_with_progress(
        ServerLimits::default(),
        json!({"steps": 10, "every": 50_000, "then": 59_000}),
        1000,
    )
    .await;
    outcome.unwrap();
    assert_eq!(received.len(), 10);
    let before = Instant::now();
    // No progress at the hard limit itself.
    let (outcome, received, fake) =
        call_with_progress(ServerLimits::default(), json!({"steps": 100, "every": 45_000}), 1000).await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs(), received.len()), (ErrorKind::TimedOut, 600, 13));
    assert!(error.hint().to_string().contains("call-timeout-max"), "{}", error.hint());
    assert_eq!(fake.received("notifications/cancelled").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn silence_after_progress_times_out() {
    let before = Instant::now();
    let (outcome, received, _) = call_with_progress(
        ServerLimits::default(),
        json!({"steps": 1, "every": 30_000, "then": 90_000}),
        1000,
    )
    .await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!((before.elapsed().as_secs(), received), (90, vec![1]));
}

#[tokio::test(start_paused = true)]
async fn slow_update_sink_does_not_delay_the_response() {
    let before = Instant::now();
    let (outcome, received, _) =
        call_with_progress(ServerLimits::default(), json!({"steps": 20, "every": 100}), 1).await;
    outcome.unwrap();
    assert!(before.elapsed() < 5 * SECOND, "{:?}", before.elapsed());
    assert_eq!(received, [1]);
}

#[tokio::test(start_paused = true)]
async fn dropped_update_sink_does_not_fail_the_call() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    let (sink, steps) = mpsc::channel(1);
    drop(steps);
    let arguments = json!({"steps": 5, "every": 1000});
    let mut call = Call::tool("progress").arguments(&arguments).updates(sink);
    connection.call(&mut call, "progress", Instant::now()).await.unwrap();
}
