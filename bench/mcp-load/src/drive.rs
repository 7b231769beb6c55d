//! Runs workers over shared work and sums up their reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::{Load, ConnectArgs};
use crate::client::{Channel, Opener};
use crate::work::{Route, Work};
use crate::{modes, rpc};
use stats::Latencies;

/// Failures in a row after which a worker stops: calls to a dead gateway would take CPU from the others.
const FAILURES_IN_A_ROW: u32 = 20;

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) latencies: Latencies,
    pub(crate) errors: u64,
    pub(crate) mismatches: u64,
    /// The first few different error messages, with their counts.
    pub(crate) samples: BTreeMap<String, u64>,
}

impl Report {
    fn merge(&mut self, other: Report) {
        self.latencies.merge(other.latencies);
        self.errors += other.errors;
        self.mismatches += other.mismatches;
        for (message, count) in other.samples {
            *self.samples.entry(message).or_default() += count;
        }
    }

    pub(crate) fn fail(&mut self, message: &str) {
        self.errors += 1;
        self.add_sample(rpc::shorten(message));
    }

    fn add_sample(&mut self, message: String) {
        if self.samples.len() < 5 || self.samples.contains_key(&message) {
            *self.samples.entry(message).or_default() += 1;
        }
    }
}

async fn worker(mut channel: Channel, work: Arc<Work>) -> (Channel, Report) {
    let mut report = Report::default();
    let mut in_a_row = 0;
    while let Some(task) = work.take() {
        let started = Instant::now();
        match channel.call(&task.route.tool, &task.arguments, task.route.template.as_deref()).await {
            Ok(answer) => {
                in_a_row = 0;
                report.latencies.push(answer.at - started);
                if !work.is_correct(&task, &answer.text) {
                    report.mismatches += 1;
                    report.add_sample(format!("wrong text: {}", rpc::shorten(&answer.text)));
                }
            }
            Err(error) => {
                report.fail(&format!("{error:#}"));
                in_a_row += 1;
                if in_a_row >= FAILURES_IN_A_ROW {
                    break;
                }
                // A restarting gateway is not flooded with calls.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    (channel, report)
}

/// Runs one worker per channel until all work is done.
pub(crate) async fn drive(
    channels: Vec<Channel>,
    work: Arc<Work>,
) -> Result<(Vec<Channel>, Report, Duration)> {
    let started = Instant::now();
    let tasks: Vec<_> =
        channels.into_iter().map(|channel| tokio::spawn(worker(channel, work.clone()))).collect();
    let mut channels = Vec::new();
    let mut total = Report::default();
    for task in tasks {
        let (channel, report) = task.await?;
        channels.push(channel);
        total.merge(report);
    }
    Ok((channels, total, started.elapsed()))
}

/// Opens further channels up to the requested concurrency, spread over the requested sessions.
async fn open_channels(opener: &Opener, load: &Load, first: Channel) -> Result<Vec<Channel>> {
    let sessions = load.sessions.max(1);
    let mut channels = vec![first];
    for worker in 1..load.concurrency {
        let channel = match worker < sessions {
            true => opener.open().await?,
            false => opener.share(&channels[worker % sessions])?,
        };
        channels.push(channel);
    }
    Ok(channels)
}

/// Warms up, then measures the calls of `load` over `routes` and the CPU time of the watched processes.
pub(crate) async fn measure(
    opener: &Opener,
    connect: &ConnectArgs,
    load: &Load,
    routes: Vec<Route>,
    first: Channel,
) -> Result<Value> {
    let channels = open_channels(opener, load, first).await?;
    let warm = Arc::new(Work::new(load, routes.clone(), load.warmup));
    let (channels, warm_report, _) = drive(channels, warm).await?;
    let own_before = stats::own_cpu_time();
    let watched_before = stats::cpu_time(&connect.cpu_of);
    let work = Arc::new(Work::new(load, routes, load.calls));
    let (channels, mut report, elapsed) = drive(channels, work).await?;
    let watched = stats::cpu_time(&connect.cpu_of).saturating_sub(watched_before);
    let own = stats::own_cpu_time() - own_before;
    let answered = report.latencies.count();
    let mut value = json!({
        "calls": answered + report.errors,
        "ok": answered - report.mismatches,
        "errors": report.errors,
        "mismatches": report.mismatches,
        "warmup_errors": warm_report.errors + warm_report.mismatches,
        "seconds": elapsed.as_secs_f64(),
        "calls_per_s": (answered as f64 / elapsed.as_secs_f64() * 10.0).round() / 10.0,
        "client_cpu_s": own.as_secs_f64(),
        "watched_cpu_s": watched.as_secs_f64(),
        "concurrency": load.concurrency,
        "size": load.size,
        "protocol": channels[0].session().version,
        "server": channels[0].session().server,
        "sse_answers": channels.iter().map(Channel::sse_answers).sum::<u64>(),
        "reconnects": channels.iter().map(Channel::reconnects).sum::<u64>(),
        "samples": report.samples,
    });
    modes::merge(&mut value, report.latencies.summary());
    Ok(value)
}
