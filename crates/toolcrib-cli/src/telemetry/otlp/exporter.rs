//! The thread that sends spans and metrics to a collector.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use toolcrib::PostClient;
use toolcrib::util::clock::wall_time;

use super::messages::{encode_metrics, encode_spans};
use super::settings::{OtlpSettings, SignalTarget};
use crate::telemetry::MetricSource;
use crate::telemetry::span_queue::SpanQueue;

/// Attempts to send the same data.
const MAX_ATTEMPTS: u32 = 4;
/// Delay before the second attempt; it doubles with each further one.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit for the last spans and metrics when the gateway stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// A running exporter.
#[derive(Debug)]
pub(crate) struct OtlpExporter {
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

impl OtlpExporter {
    /// Starts the thread. It has a runtime of its own, so that calls and exports do not delay each other, and so that the last
    /// export can be waited for when the gateway's runtime is busy with its end.
    pub(crate) fn start(
        settings: OtlpSettings,
        spans: Arc<SpanQueue>,
        metrics: MetricSource,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let thread = thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            runtime.block_on(async {
                let flushed = async {
                    stopping.cancelled().await;
                    sleep(FLUSH_TIMEOUT).await;
                };
                tokio::select! {
                    () = run(settings, &spans, metrics, &stopping) => {}
                    () = flushed => tracing::warn!("the last spans and metrics could not be sent in time"),
                }
            });
        })?;
        Ok(Self { stop, thread })
    }

    /// Sends what is left, within [`FLUSH_TIMEOUT`], and ends the thread. Blocks.
    pub(crate) fn close(self) {
        self.stop.cancel();
        // A panic of the thread has been reported by the panic hook.
        let _ = self.thread.join();
    }
}

/// Exports until `stop` is cancelled, and then once more.
async fn run(settings: OtlpSettings, spans: &SpanQueue, metrics: MetricSource, stop: &CancellationToken) {
    let started = wall_time();
    let mut traces = settings.traces.as_ref().and_then(|target| Signal::open("spans", target, stop));
    let mut measured = settings.metrics.as_ref().and_then(|target| Signal::open("metrics", target, stop));
    let mut next_spans = Instant::now() + settings.span_delay;
    let mut next_metrics = Instant::now() + settings.metric_interval;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = spans.half_full(), if traces.is_some() => {}
            () = sleep_until(next_spans), if traces.is_some() => {}
            () = sleep_until(next_metrics), if measured.is_some() => {}
        }
        let is_last = stop.is_cancelled();
        let now = Instant::now();
        if let Some(traces) = &mut traces {
            traces.send_spans(&settings, spans).await;
            next_spans = now + settings.span_delay;
        }
        if let Some(measured) = &mut measured
            && (is_last || now >= next_metrics)
        {
            measured.send_metrics(&settings, &metrics, started).await;
            next_metrics = now + settings.metric_interval;
        }
        if is_last {
            return;
        }
    }
}

/// One signal and its collector.
struct Signal<'a> {
    /// The name of what is sent, for messages.
    name: &'static str,
    client: PostClient,
    timeout: Duration,
    stop: &'a CancellationToken,
    /// True if the last export failed, which is logged once.
    is_failing: bool,
}

impl<'a> Signal<'a> {
    /// Prepares the connection. A target that cannot be used is reported and left out.
    fn open(name: &'static str, target: &SignalTarget, stop: &'a CancellationToken) -> Option<Self> {
        match PostClient::new(&target.url, "application/x-protobuf", &target.headers) {
            Ok(client) => Some(Self { name, client, timeout: target.timeout, stop, is_failing: false }),
            Err(reason) => {
                tracing::error!(url = target.url, "cannot export {name}: {reason}");
                None
            }
        }
    }

    async fn send_spans(&mut self, settings: &OtlpSettings, queue: &SpanQueue) {
        loop {
            let calls = queue.take(settings.max_batch);
            if calls.is_empty() {
                return;
            }
            if !self.send(encode_spans(&calls, &settings.resource)).await {
                queue.add_dropped(calls.len());
            }
        }
    }

    async fn send_metrics(&mut self, settings: &OtlpSettings, metrics: &MetricSource, started: SystemTime) {
        let families = metrics();
        self.send(encode_metrics(&families, &settings.resource, started, wall_time())).await;
    }

    /// Sends a message. Returns whether the collector has accepted it.
    async fn send(&mut self, body: Vec<u8>) -> bool {
        let body = bytes::Bytes::from(body);
        let mut delay = RETRY_DELAY;
        let mut attempt = 1;
        let result = loop {
            let result = self.client.post(body.clone(), self.timeout).await;
            match &result {
                Err(failure)
                    if failure.is_temporary && attempt < MAX_ATTEMPTS && !self.stop.is_cancelled() => {}
                _ => break result,
            }
            // Stops waiting when the gateway stops, for one last attempt.
            let _ = self.stop.run_until_cancelled(sleep(delay)).await;
            delay *= 2;
            attempt += 1;
        };
        let name = self.name;
        match &result {
            Err(failure) if !self.is_failing => {
                tracing::warn!("cannot export {name}: {}; what is not accepted is dropped", failure.reason);
            }
            Ok(()) if self.is_failing => tracing::info!("exporting {name} works again"),
            _ => {}
        }
        self.is_failing = result.is_err();
        result.is_ok()
    }
}
