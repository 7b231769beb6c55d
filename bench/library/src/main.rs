//! `library-load`: measures the toolcrib library alone, compared with a raw pipe to the same server.
//!
//! Both sides call the same echo server in turn, round by round, on one thread of one process, so that noise affects both.
//! The raw pipe does the minimum; the difference is the cost of the library. Prints one line of JSON.

mod library;
mod raw;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use serde_json::{Value, json};
use stats::Latencies;

#[derive(Parser)]
#[command(about = "Measures the toolcrib library alone, compared with a raw pipe")]
struct Cli {
    /// The echo server to call
    #[arg(long)]
    echo_server: String,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Callers of the slow tool
    #[arg(long, default_value_t = 32)]
    callers: usize,
    /// Calls of the slow tool per round, all callers together
    #[arg(long, default_value_t = 6400)]
    slow_calls: u64,
    /// Duration of a call of the slow tool, in milliseconds
    #[arg(long, default_value_t = 5)]
    slow_ms: u64,
    /// Calls of `echo` per round, one after the other
    #[arg(long, default_value_t = 20_000)]
    echo_calls: u64,
}

/// The result of a run of concurrent calls.
struct Concurrent {
    elapsed: Duration,
    latencies: Latencies,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Calls are made from a task: waking the future of `block_on` itself costs a system call.
    let cli = Cli::parse();
    let running = async { tokio::spawn(async move { run(&cli).await }).await? };
    match runtime.block_on(running) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{}", json!({"failed": format!("{error:#}")}));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: &Cli) -> Result<Value> {
    let library = library::Library::open(&cli.echo_server)?;
    let mut pipe = raw::Pipe::open(&cli.echo_server).await?;
    library.sequential(100).await?;
    pipe.sequential(100).await?;
    let mut rounds = Vec::new();
    for number in 0..cli.rounds {
        let mut round = json!({});
        for turn in 0..2 {
            // The side that goes first alternates.
            match (number + turn) % 2 {
                0 => round["raw"] = raw_round(cli, &mut pipe).await?,
                _ => round["library"] = library_round(cli, &library).await?,
            }
        }
        rounds.push(round);
    }
    library.close().await;
    Ok(json!({
        "callers": cli.callers, "slow_ms": cli.slow_ms,
        "slow_calls": cli.slow_calls, "echo_calls": cli.echo_calls, "rounds": rounds,
    }))
}

async fn raw_round(cli: &Cli, pipe: &mut raw::Pipe) -> Result<Value> {
    let slow = pipe.concurrent(cli.callers, cli.slow_calls, cli.slow_ms).await?;
    let cpu = stats::own_cpu_time();
    let started = Instant::now();
    pipe.sequential(cli.echo_calls).await?;
    Ok(summary(cli, slow, stats::own_cpu_time() - cpu, started.elapsed()))
}

async fn library_round(cli: &Cli, library: &library::Library) -> Result<Value> {
    let slow = library.concurrent(cli.callers, cli.slow_calls, cli.slow_ms).await?;
    let cpu = stats::own_cpu_time();
    let started = Instant::now();
    library.sequential(cli.echo_calls).await?;
    Ok(summary(cli, slow, stats::own_cpu_time() - cpu, started.elapsed()))
}

fn summary(cli: &Cli, mut slow: Concurrent, echo_cpu: Duration, echo_elapsed: Duration) -> Value {
    let per_call = |time: Duration| time.as_secs_f64() * 1e6 / cli.echo_calls as f64;
    json!({
        "slow_calls_per_s": slow.latencies.count() as f64 / slow.elapsed.as_secs_f64(),
        "slow": slow.latencies.summary(),
        "echo_cpu_us": per_call(echo_cpu),
        "echo_us": per_call(echo_elapsed),
    })
}
