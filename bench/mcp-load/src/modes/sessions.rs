//! `sessions`: many MCP sessions held open at the same time, each called when it opens and again after the hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tokio::sync::{Barrier, Semaphore};

use super::merge;
use crate::cli::SessionsOptions;
use crate::client::{Channel, Opener, tool_name};
use crate::drive::Report;

/// State shared by all sessions.
struct Shared {
    opener: Opener,
    tool: String,
    template: Option<String>,
    /// Limits how many sessions send requests at the same time.
    gate: Semaphore,
    /// Passed when every session is open, or has failed to open.
    all_open: Barrier,
    hold: Duration,
}

/// The time that it took to open one session, and its id.
struct Held {
    opened_in: Duration,
    id: Option<String>,
}

pub(crate) async fn run(options: SessionsOptions) -> Result<Value> {
    let load = options.load.on_one_server();
    let opener = Opener::new(&options.connect, &[]).await?;
    let mut channel = opener.open().await?;
    let shared = Arc::new(Shared {
        tool: tool_name(&mut channel, &load, &load.own_tool_name()).await?,
        opener,
        template: load.call_template.clone(),
        gate: Semaphore::new(options.opening.max(1)),
        all_open: Barrier::new(options.count),
        hold: Duration::from_secs_f64(options.hold_s),
    });
    drop(channel);
    let started = Instant::now();
    let tasks: Vec<_> =
        (0..options.count).map(|number| tokio::spawn(hold_session(shared.clone(), number))).collect();
    let mut report = Report::default();
    let mut ids = Vec::new();
    for task in tasks {
        match task.await? {
            Ok(held) => {
                ids.extend(held.id);
                report.latencies.push(held.opened_in);
            }
            Err(error) => report.fail(&format!("{error:#}")),
        }
    }
    let with_id = ids.len();
    ids.sort();
    ids.dedup();
    let mut value = json!({
        "mode": "sessions", "asked": options.count, "ok": report.latencies.count(), "errors": report.errors,
        "with_session_id": with_id, "distinct_ids": ids.len(),
        "seconds": started.elapsed().as_secs_f64(), "samples": report.samples,
    });
    merge(&mut value, report.latencies.summary());
    Ok(value)
}

async fn hold_session(shared: Arc<Shared>, number: usize) -> Result<Held> {
    let text = format!("session-{number}");
    let started = Instant::now();
    let opened = open(&shared, &text).await;
    let opened_in = started.elapsed();
    shared.all_open.wait().await;
    // The hold itself, not a wait for an event.
    tokio::time::sleep(shared.hold).await;
    let mut channel = opened?;
    let _permit = shared.gate.acquire().await?;
    call(&shared, &mut channel, &text).await.map_err(|error| error.context("after the hold"))?;
    Ok(Held { opened_in, id: channel.session().id.clone() })
}

async fn open(shared: &Shared, text: &str) -> Result<Channel> {
    let _permit = shared.gate.acquire().await?;
    let mut channel = shared.opener.open().await?;
    call(shared, &mut channel, text).await?;
    Ok(channel)
}

async fn call(shared: &Shared, channel: &mut Channel, text: &str) -> Result<()> {
    let arguments = json!({"text": text}).to_string();
    let answer = channel.call(&shared.tool, &arguments, shared.template.as_deref()).await?;
    if !answer.text.contains(text) {
        bail!("wrong text");
    }
    Ok(())
}
