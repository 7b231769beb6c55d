//! `Load`: the calls that every side makes with several callers, and their result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use stats::Latencies;
use tokio::task::JoinSet;

/// Calls of one tool by concurrent callers.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) callers: usize,
    /// Calls of all callers together.
    pub(crate) calls: u64,
    /// The server answers after this time; immediately if it is `None`.
    pub(crate) sleep_ms: Option<u64>,
}

impl Load {
    pub(crate) fn tool(&self) -> &'static str {
        if self.sleep_ms.is_some() { "sleep" } else { "echo" }
    }

    /// Returns the arguments of a call, as JSON.
    pub(crate) fn arguments(&self, text: &str) -> String {
        match self.sleep_ms {
            Some(sleep_ms) => format!(r#"{{"ms":{sleep_ms},"text":"{text}"}}"#),
            None => format!(r#"{{"text":"{text}"}}"#),
        }
    }
}

/// The text of a call, which the answer has to repeat.
pub(crate) fn text(number: u64) -> String {
    format!("call-{number}")
}

/// The result of a [`Load`].
pub(crate) struct Concurrent {
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Latencies,
}

impl Concurrent {
    pub(crate) fn calls_per_second(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn summary(&mut self) -> Value {
        json!({"calls_per_s": self.calls_per_second(), "latency": self.latencies.summary()})
    }
}

/// Makes the calls of a load, with one task per caller. `call` makes one of them and checks its answer.
pub(crate) async fn run<F>(load: Load, call: impl Fn(u64) -> F + Clone + Send + 'static) -> Result<Concurrent>
where
    F: Future<Output = Result<()>> + Send,
{
    let started = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..load.callers {
        let next = Arc::clone(&next);
        let call = call.clone();
        callers.spawn(async move {
            let mut latencies = Latencies::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= load.calls {
                    return Ok::<_, anyhow::Error>(latencies);
                }
                let started = Instant::now();
                call(number).await?;
                latencies.push(started.elapsed());
            }
        });
    }
    let mut latencies = Latencies::default();
    while let Some(caller) = callers.join_next().await {
        latencies.merge(caller??);
    }
    Ok(Concurrent { elapsed: started.elapsed(), latencies })
}
