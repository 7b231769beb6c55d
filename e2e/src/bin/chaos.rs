//! Runs the chaos test against the programs next to this one; see `scripts/chaos`.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use e2e::chaos::report::Report;
use e2e::chaos::{self, Plan, cold_start, reloads, soak};

const USAGE: &str = "\
usage: chaos [--calls N] [--servers N] [--callers N] [--seed N] [--rounds N]
       chaos --cold [--calls N] [--servers N]      first calls to servers that are not running
       chaos --soak MINUTES [--rate CALLS-PER-SECOND]
       chaos --reloads N                           N config changes, no other faults
";

#[derive(Debug)]
struct Options {
    plan: Plan,
    cold: bool,
    soak: Option<u64>,
    reloads: Option<u64>,
    rate: u64,
}

fn parse(args: &[String]) -> Option<Options> {
    let current_exe = std::env::current_exe().ok()?;
    let sibling = |name: &str| current_exe.with_file_name(name).to_str().map(str::to_owned);
    let seed = u64::from(std::process::id());
    let gateway = sibling("crib")?;
    let fake = sibling("fake-server")?;
    let cold = args.iter().any(|arg| arg == "--cold");
    let (calls, servers) = if cold { (1000, 100) } else { (1_000_000, 10) };
    let plan = Plan { gateway, fake, calls, servers, callers: 64, seed, rounds: 1 };
    let mut options = Options { plan, cold, soak: None, reloads: None, rate: 10 };
    let mut args = args.iter().filter(|arg| *arg != "--cold");
    while let Some(arg) = args.next() {
        let number: u64 = args.next()?.replace('_', "").parse().ok()?;
        match arg.as_str() {
            "--calls" => options.plan.calls = number,
            "--servers" => options.plan.servers = usize::try_from(number).ok()?,
            "--callers" => options.plan.callers = usize::try_from(number).ok()?,
            "--seed" => options.plan.seed = number,
            "--rounds" => options.plan.rounds = number.max(1),
            "--soak" => {
                options.soak = Some(number);
                options.plan.callers = 8;
            }
            "--reloads" => options.reloads = Some(number),
            "--rate" => options.rate = number.max(1),
            _ => return None,
        }
    }
    Some(options)
}

async fn run(options: &Options) -> Report {
    match (options.soak, options.reloads) {
        _ if options.cold => cold_start::run(&options.plan).await,
        (_, Some(times)) => reloads::run(&options.plan, times).await,
        (Some(minutes), None) => {
            let interval = Duration::from_secs(1) / u32::try_from(options.rate).unwrap_or(10);
            let print = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
            soak::run(&options.plan, Duration::from_secs(60 * minutes), interval, print).await
        }
        (None, None) => chaos::run(&options.plan).await,
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout();
    let Some(options) = parse(&args) else {
        let _ = out.write_all(USAGE.as_bytes());
        return ExitCode::from(64);
    };
    let report = run(&options).await;
    for line in &report.lines {
        let _ = writeln!(out, "{line}");
    }
    for violation in &report.violations {
        let _ = writeln!(out, "VIOLATION: {violation}");
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
