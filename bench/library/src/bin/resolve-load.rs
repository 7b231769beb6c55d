//! `resolve-load`: measures the CPU time of reading and resolving config files.
//!
//! Reads the given files several times and prints one line of JSON with the CPU time of reading and of resolving in each
//! round, and a summary of the result.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use toolcrib::config::{HostFacts, Layer, LayerKind, LayeredConfig};

#[derive(Parser)]
#[command(about = "CPU of reading and resolving config files")]
struct Cli {
    /// Config files, the lowest layer first
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let layer = |file: &PathBuf| Layer { must_exist: true, ..Layer::new(LayerKind::User, file) };
    let layers: Vec<Layer> = cli.files.iter().map(layer).collect();
    let mut rounds = Vec::new();
    let mut outcome = json!({});
    for _ in 0..cli.rounds {
        let start = stats::own_cpu_time();
        let layered = LayeredConfig::read(&layers);
        let read = stats::own_cpu_time();
        // Collecting facts queries the system and runs programs, so it is not measured.
        let facts = HostFacts::gather(&layered.required_facts(), Path::new("."), None, false);
        let gathered = stats::own_cpu_time();
        let config = layered.resolve(&facts);
        let resolved = stats::own_cpu_time();
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
        rounds.push(json!({"read_ms": ms(read - start), "resolve_ms": ms(resolved - gathered)}));
        outcome = json!({
            "servers": config.declared.len(), "scopes": config.scopes.len(), "problems": config.problems.len(),
            "active": config.declared.iter().filter(|server| server.active).count(),
        });
    }
    println!("{}", json!({"layers": layers.len(), "outcome": outcome, "rounds": rounds}));
    ExitCode::SUCCESS
}
