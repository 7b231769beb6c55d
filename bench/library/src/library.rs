//! The measured side: calls through [`toolcrib::Crib`], as an embedder makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use stats::Latencies;
use tokio::task::JoinSet;
use toolcrib::{Call, CommandSpec, Crib, ServerSpec};

use crate::Concurrent;

pub(crate) struct Library {
    crib: Crib,
}

impl Library {
    pub(crate) fn open(echo_server: &str) -> Result<Self> {
        let command = CommandSpec::new(echo_server).arg("--id").arg("s0");
        let server = ServerSpec::command("echo".parse()?, command);
        Ok(Self { crib: Crib::builder().server(server).build()? })
    }

    /// Makes `calls` calls of `echo`, one after the other.
    pub(crate) async fn sequential(&self, calls: u64) -> Result<()> {
        for number in 0..calls {
            let text = format!("call-{number}");
            checked_call(&self.crib, "echo__echo", format!(r#"{{"text":"{text}"}}"#), &text).await?;
        }
        Ok(())
    }

    /// Makes `calls` calls of `sleep` with `callers` concurrent callers.
    pub(crate) async fn concurrent(&self, callers: usize, calls: u64, sleep_ms: u64) -> Result<Concurrent> {
        let started = Instant::now();
        let next = Arc::new(AtomicU64::new(0));
        let mut workers = JoinSet::new();
        for _ in 0..callers {
            workers.spawn(call_slowly(self.crib.clone(), next.clone(), calls, sleep_ms));
        }
        let mut latencies = Latencies::default();
        while let Some(worker) = workers.join_next().await {
            latencies.merge(worker??);
        }
        Ok(Concurrent { elapsed: started.elapsed(), latencies })
    }

    pub(crate) async fn close(&self) {
        self.crib.shutdown(Duration::from_secs(5)).await;
    }
}

async fn call_slowly(crib: Crib, next: Arc<AtomicU64>, calls: u64, sleep_ms: u64) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= calls {
            return Ok(latencies);
        }
        let text = format!("call-{number}");
        let started = Instant::now();
        let arguments = format!(r#"{{"ms":{sleep_ms},"text":"{text}"}}"#);
        checked_call(&crib, "echo__sleep", arguments, &text).await?;
        latencies.push(started.elapsed());
    }
}

/// Calls a tool and checks the text. Arguments are raw text on both sides, so that building them is not measured.
async fn checked_call(crib: &Crib, tool: &str, arguments: String, expected: &str) -> Result<()> {
    let outcome = crib.call(Call::tool(tool).raw_arguments(arguments)).await?;
    let text = outcome.text();
    if text != expected {
        bail!("{tool} answered {text:?} instead of {expected:?}");
    }
    Ok(())
}
