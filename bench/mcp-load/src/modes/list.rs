//! `list`: measures a complete `tools/list`, with all pages.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::merge;
use crate::cli::ListOptions;
use crate::client::{Listing, Opener};
use stats::Latencies;

pub(crate) async fn run(options: ListOptions) -> Result<Value> {
    let opener = Opener::new(&options.connect, &options.command).await?;
    let mut channel = opener.open().await?;
    for _ in 0..options.warmup {
        channel.list().await?;
    }
    let begun = Instant::now();
    let watched_before = stats::cpu_time(&options.connect.cpu_of);
    let mut latencies = Latencies::default();
    let mut last = Listing::default();
    let mut tools = 0;
    let mut errors = 0;
    for _ in 0..options.calls {
        if options.max_seconds.is_some_and(|seconds| begun.elapsed().as_secs_f64() > seconds) {
            break;
        }
        let started = Instant::now();
        match channel.list().await {
            Ok(listing) => {
                latencies.push(started.elapsed());
                tools = distinct(&listing.names);
                errors += u64::from(options.expect.is_some_and(|expected| expected != tools));
                last = listing;
            }
            Err(_) => errors += 1,
        }
    }
    let watched = stats::cpu_time(&options.connect.cpu_of).saturating_sub(watched_before);
    let mut value = json!({
        "mode": "list", "calls": latencies.count(), "errors": errors,
        "tools": tools, "pages": last.pages, "bytes": last.bytes,
        "watched_cpu_s": watched.as_secs_f64(),
        "seconds": begun.elapsed().as_secs_f64(),
    });
    merge(&mut value, latencies.summary());
    Ok(value)
}

fn distinct(names: &[String]) -> usize {
    let mut names: Vec<&String> = names.iter().collect();
    names.sort();
    names.dedup();
    names.len()
}
