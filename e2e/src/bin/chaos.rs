//! Runs chaos at a size of one's choice against the programs beside this one; see `scripts/chaos`.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use e2e::chaos::report::Report;
use e2e::chaos::{self, Plan, cold, reloads, soak};

const USAGE: &str = "\
usage: chaos [--calls N] [--servers N] [--callers N] [--seed N] [--rounds N]
       chaos --cold [--calls N] [--servers N]      first calls to servers of which none runs
       chaos --soak MINUTES [--rate CALLS-A-SECOND]
       chaos --reloads N                           nothing goes wrong but that the config changes that often
";

#[derive(Debug)]
struct Wish {
    plan: Plan,
    cold: bool,
    soak: Option<u64>,
    reloads: Option<u64>,
    rate: u64,
}

fn wish(words: &[String]) -> Option<Wish> {
    let own = std::env::current_exe().ok()?;
    let beside = |name: &str| own.with_file_name(name).to_str().map(str::to_owned);
    let seed = u64::from(std::process::id());
    let (gateway, fake) = (beside("crib")?, beside("fake-server")?);
    let cold = words.iter().any(|word| word == "--cold");
    let (calls, servers) = if cold { (1000, 100) } else { (1_000_000, 10) };
    let plan = Plan { gateway, fake, calls, servers, callers: 64, seed, rounds: 1 };
    let mut wish = Wish { plan, cold, soak: None, reloads: None, rate: 10 };
    let mut words = words.iter().filter(|word| *word != "--cold");
    while let Some(word) = words.next() {
        let number: u64 = words.next()?.replace('_', "").parse().ok()?;
        match word.as_str() {
            "--calls" => wish.plan.calls = number,
            "--servers" => wish.plan.servers = usize::try_from(number).ok()?,
            "--callers" => wish.plan.callers = usize::try_from(number).ok()?,
            "--seed" => wish.plan.seed = number,
            "--rounds" => wish.plan.rounds = number.max(1),
            "--soak" => (wish.soak, wish.plan.callers) = (Some(number), 8),
            "--reloads" => wish.reloads = Some(number),
            "--rate" => wish.rate = number.max(1),
            _ => return None,
        }
    }
    Some(wish)
}

async fn fulfil(wish: &Wish) -> Report {
    match (wish.soak, wish.reloads) {
        _ if wish.cold => cold::start(&wish.plan).await,
        (_, Some(times)) => reloads::run(&wish.plan, times).await,
        (Some(minutes), None) => {
            let pace = Duration::from_secs(1) / u32::try_from(wish.rate).unwrap_or(10);
            let tell = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
            soak::soak(&wish.plan, Duration::from_secs(60 * minutes), pace, tell).await
        }
        (None, None) => chaos::run(&wish.plan).await,
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout();
    let Some(wish) = wish(&words) else {
        let _ = out.write_all(USAGE.as_bytes());
        return ExitCode::from(64);
    };
    let report = fulfil(&wish).await;
    for line in &report.lines {
        let _ = writeln!(out, "{line}");
    }
    for broken in &report.broken {
        let _ = writeln!(out, "DOES NOT HOLD: {broken}");
    }
    if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
