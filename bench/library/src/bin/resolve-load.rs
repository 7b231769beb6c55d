//! `resolve-load`: what it costs to read config files, and to decide what they come to, layer over layer.
//!
//! Reads the files it is given, the farthest first, round after round, and prints one line of JSON with the CPU of
//! each half of each round and what it all came to.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use toolcrib::config::{Draft, Facts, Layer, Rank};

#[derive(Parser)]
#[command(about = "CPU of reading and resolving config files")]
struct Cli {
    /// The layers, the farthest first
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let layer = |file: &PathBuf| Layer { must_exist: true, ..Layer::new(Rank::User, file) };
    let layers: Vec<Layer> = cli.files.iter().map(layer).collect();
    let (mut rounds, mut outcome) = (Vec::new(), json!({}));
    for _ in 0..cli.rounds {
        let start = stats::own_cpu();
        let draft = Draft::read(&layers);
        let read = stats::own_cpu();
        // Finding out where we are asks the system and runs programs; it is not what is measured here.
        let facts = Facts::gather(&draft.wanted(), Path::new("."), None, false);
        let found = stats::own_cpu();
        let config = draft.resolve(&facts);
        let resolved = stats::own_cpu();
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
        rounds.push(json!({"read_ms": ms(read - start), "resolve_ms": ms(resolved - found)}));
        outcome = json!({
            "servers": config.declared.len(), "scopes": config.scopes.len(), "problems": config.problems.len(),
            "active": config.declared.iter().filter(|server| server.active).count(),
        });
    }
    println!("{}", json!({"layers": layers.len(), "outcome": outcome, "rounds": rounds}));
    ExitCode::SUCCESS
}
