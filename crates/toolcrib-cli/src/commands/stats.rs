//! `toolcrib stats`: prints statistics of calls, from the running gateway or from the files of the last one.

use std::io;

use anyhow::Result;
use toolcrib::util::clock::wall_time;
use toolcrib::util::encoding::percent_encode;

use super::events::{check_since, no_history_error};
use crate::cli::StatsArgs;
use crate::client::GatewayClient;
use crate::exit::ExitStatus;
use crate::history::{self, StatsQuery};
use crate::output::Output;
use crate::paths::Paths;
use crate::report::Report as _;
use crate::report::stats::{CallStats, CostReport, StatsReport, StatsRow};

/// Rows of each table.
const MAX_ROWS: usize = 20;

/// Prints the statistics since a time.
pub(crate) async fn run(args: &StatsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let since = check_since(&args.since)?;
    let stats: StatsReport = match GatewayClient::find(paths).await? {
        Some(client) => {
            let since = percent_encode(&args.since);
            client.fetch(&format!("/api/v1/stats?since={since}&cost={}", u8::from(args.cost))).await?
        }
        None => {
            let folder = paths.history_dir();
            if !history::exists(&folder) {
                return Err(no_history_error().into());
            }
            let until = wall_time();
            let query = StatsQuery { since, until, step: None, caller: None, with_cost: args.cost };
            history::read_stats(&folder, &query)?
        }
    };
    match (out.json, &stats.cost) {
        (true, _) => out.print_json(&stats.to_json())?,
        (false, Some(cost)) => print_cost(cost, out)?,
        (false, None) => print_stats(&stats, out)?,
    }
    Ok(ExitStatus::Success)
}

fn print_stats(stats: &StatsReport, out: &mut Output) -> io::Result<()> {
    let rows =
        |rows: &[StatsRow]| -> Vec<Vec<String>> { rows.iter().take(MAX_ROWS).map(stats_row).collect() };
    let with_heading = |heading: &'static str| {
        [heading, "CALLS", "ERRORS", "DENIED", "P50", "P95", "P99", "RESULT BYTES", "RESULT TOKENS"]
    };
    let mut servers = rows(&stats.servers);
    servers.push(stats_cells("total".to_owned(), &stats.totals));
    out.print_table(&with_heading("SERVER"), &servers)?;
    let tables = [("TOOL", &stats.tools), ("CALLER", &stats.callers), ("CLIENT", &stats.clients)];
    for (heading, table) in tables.into_iter().filter(|(_, table)| !table.is_empty()) {
        out.print_line("")?;
        out.print_table(&with_heading(heading), &rows(table))?;
    }
    out.print_note(&format!("calls from {} to {}", stats.since, stats.until))?;
    if stats.dropped > 0 {
        out.warn(&format!("{} calls and events could not be recorded", stats.dropped), None)?;
    }
    Ok(())
}

fn stats_row(row: &StatsRow) -> Vec<String> {
    let name = row.name.as_deref().unwrap_or("-");
    let name = match &row.server {
        Some(server) => format!("{server}.{name}"),
        None => name.to_owned(),
    };
    stats_cells(name, &row.stats)
}

fn stats_cells(name: String, stats: &CallStats) -> Vec<String> {
    let latencies = [stats.p50_ms, stats.p95_ms, stats.p99_ms].map(format_millis);
    let counts = [stats.calls, stats.errors, stats.denied].map(|count| count.to_string());
    let sizes = [stats.response_bytes, stats.result_tokens].map(|size| size.to_string());
    [name].into_iter().chain(counts).chain(latencies).chain(sizes).collect()
}

/// Formats a latency.
pub(super) fn format_millis(millis: Option<f64>) -> String {
    match millis {
        None => "-".to_owned(),
        Some(millis) if millis < 10.0 => format!("{millis:.1} ms"),
        Some(millis) if millis < 10_000.0 => format!("{millis:.0} ms"),
        Some(millis) => format!("{:.0} s", millis / 1000.0),
    }
}

/// Prints what definitions and results cost.
fn print_cost(cost: &CostReport, out: &mut Output) -> io::Result<()> {
    let known = |tokens: Option<u64>| tokens.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
    let days: Vec<Vec<String>> = cost
        .days
        .iter()
        .map(|day| {
            let client = day.client.clone().unwrap_or_else(|| "-".to_owned());
            let calls = day.calls.to_string();
            let results = day.result_tokens.to_string();
            vec![day.day.clone(), client, day.caller.clone(), calls, results, known(day.definition_tokens)]
        })
        .collect();
    out.print_table(&["DAY", "CLIENT", "CALLER", "CALLS", "RESULT TOKENS", "DEFINITION TOKENS"], &days)?;
    let tools: Vec<Vec<String>> = cost
        .definitions
        .iter()
        .take(MAX_ROWS)
        .map(|tool| {
            let name = format!("{}.{}", tool.server, tool.tool);
            vec![name, known(tool.definition_tokens), tool.calls.to_string(), tool.result_tokens.to_string()]
        })
        .collect();
    out.print_line("")?;
    out.print_table(&["TOOL", "DEFINITION TOKENS", "CALLS", "RESULT TOKENS"], &tools)?;
    out.print_note("definition tokens are part of every conversation of a client; a token is 4 bytes")
}
