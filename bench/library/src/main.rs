//! `library-load`: measures the toolcrib library alone, compared with a raw pipe and with the official Rust SDK.
//!
//! All sides call the same echo server in turn, round by round, on one thread of one process, so that noise affects all.
//! The raw pipe does the minimum; the difference is the cost of the library. Prints one line of JSON.

mod library;
mod load;
mod raw;
mod sdk;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use serde_json::{Value, json};

use crate::library::Library;
use crate::load::{Concurrent, Load};
use crate::raw::Pipe;
use crate::sdk::Sdk;

#[derive(Parser)]
#[command(about = "Measures the toolcrib library alone, compared with a raw pipe and the official SDK")]
struct Cli {
    /// The echo server to call
    #[arg(long)]
    echo_server: String,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Concurrent callers
    #[arg(long, default_value_t = 32)]
    callers: usize,
    /// Calls of the slow tool per round, all callers together
    #[arg(long, default_value_t = 6400)]
    slow_calls: u64,
    /// Duration of a call of the slow tool, in milliseconds
    #[arg(long, default_value_t = 5)]
    slow_ms: u64,
    /// Calls of `echo` per round: once by all callers, once one after the other
    #[arg(long, default_value_t = 20_000)]
    echo_calls: u64,
    /// Only make the sequential calls, once, to count their instructions
    #[arg(long)]
    only: Option<Counted>,
}

/// Sequential calls whose instructions can be counted.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Counted {
    /// Calls of the crib
    Crib,
    /// Calls on a held lease
    Lease,
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

/// The clients that are compared, each with its own process of the server.
struct Sides {
    library: Library,
    sdk: Sdk,
    pipe: Pipe,
}

/// The names of the sides in the report.
const SIDES: [&str; 3] = ["raw", "library", "sdk"];

impl Sides {
    async fn open(echo_server: &str) -> Result<Self> {
        let sides = Self {
            library: Library::open(echo_server)?,
            sdk: Sdk::open(echo_server).await?,
            pipe: Pipe::open(echo_server).await?,
        };
        Ok(sides)
    }

    async fn sequential(&mut self, side: &str, calls: u64) -> Result<()> {
        match side {
            "library" => self.library.sequential(calls).await,
            "sdk" => self.sdk.sequential(calls).await,
            _ => self.pipe.sequential(calls).await,
        }
    }

    async fn concurrent(&mut self, side: &str, load: Load) -> Result<Concurrent> {
        match side {
            "library" => self.library.concurrent(load).await,
            "sdk" => self.sdk.concurrent(load).await,
            _ => self.pipe.concurrent(load).await,
        }
    }

    async fn close(self) -> Result<()> {
        self.library.close().await;
        self.sdk.close().await
    }
}

async fn run(cli: &Cli) -> Result<Value> {
    match cli.only {
        Some(counted) => count(cli, counted).await,
        None => compare(cli).await,
    }
}

async fn count(cli: &Cli, counted: Counted) -> Result<Value> {
    let library = Library::open(&cli.echo_server)?;
    match counted {
        Counted::Crib => library.sequential(cli.echo_calls).await?,
        Counted::Lease => library.sequential_on_lease(cli.echo_calls).await?,
    }
    library.close().await;
    Ok(json!({"echo_calls": cli.echo_calls}))
}

async fn compare(cli: &Cli) -> Result<Value> {
    let mut sides = Sides::open(&cli.echo_server).await?;
    for side in SIDES {
        sides.sequential(side, 100).await?;
    }
    let mut rounds = Vec::new();
    for number in 0..cli.rounds {
        let mut round = json!({});
        for turn in 0..SIDES.len() {
            // The side that goes first alternates.
            let side = SIDES[(number + turn) % SIDES.len()];
            round[side] = measure(cli, &mut sides, side).await?;
        }
        rounds.push(round);
    }
    sides.close().await?;
    Ok(json!({
        "callers": cli.callers, "slow_ms": cli.slow_ms,
        "slow_calls": cli.slow_calls, "echo_calls": cli.echo_calls, "rounds": rounds,
    }))
}

/// Measures one side in one round: the slow tool and the immediate one with several callers, then sequential calls.
async fn measure(cli: &Cli, sides: &mut Sides, side: &str) -> Result<Value> {
    let slow = Load { callers: cli.callers, calls: cli.slow_calls, sleep_ms: Some(cli.slow_ms) };
    let mut slow = sides.concurrent(side, slow).await?;
    let load = Load { callers: cli.callers, calls: cli.echo_calls, sleep_ms: None };
    let mut immediate = sides.concurrent(side, load).await?;
    let cpu = stats::own_cpu_time();
    let started = Instant::now();
    sides.sequential(side, cli.echo_calls).await?;
    let elapsed = started.elapsed();
    let cpu = stats::own_cpu_time() - cpu;
    let per_call = |time: Duration| time.as_secs_f64() * 1e6 / cli.echo_calls as f64;
    Ok(json!({
        "slow_calls_per_s": slow.calls_per_second(),
        "slow": slow.latencies.summary(),
        "immediate": immediate.summary(),
        "echo_cpu_us": per_call(cpu),
        "echo_us": per_call(elapsed),
    }))
}
