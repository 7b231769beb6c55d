//! `mcp-load`: calls an MCP server or gateway, checks every answer, and prints one line of JSON.
//!
//! It runs on a single thread, to compete as little as possible with the measured program.

mod cli;
mod client;
mod drive;
mod events;
mod http;
mod modes;
mod pending;
mod rpc;
mod sse;
mod stdio;
mod work;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use serde_json::{Value, json};

use cli::{Cli, Mode};

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match runtime.block_on(run(Cli::parse().mode)) {
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

async fn run(mode: Mode) -> Result<Value> {
    match mode {
        Mode::Call(options) => modes::call::run(options).await,
        Mode::Fanout(options) => modes::fanout::run(options).await,
        Mode::List(options) => modes::list::run(options).await,
        Mode::Startup(options) => modes::startup::run(options).await,
        Mode::Sessions(options) => modes::sessions::run(options).await,
        Mode::Probe(options) => modes::probe::run(options).await,
    }
}
