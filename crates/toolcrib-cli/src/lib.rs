//! The `toolcrib` program: daemon, MCP endpoints, admin API and commands around the `toolcrib` library.
//!
//! Commands live in `commands`, one file each; `daemon` is the gateway as a running thing; `frontend` is what clients
//! see of it. The binary calls [`main`] and nothing else.

mod advice;
mod agents;
mod audit;
mod cli;
mod client;
mod commands;
mod daemon;
mod demo_server;
mod edit;
mod exit;
mod export;
mod failure;
mod frontend;
mod import;
mod listen;
mod logging;
mod offer;
mod output;
mod percent;
mod place;
mod project;
mod secrecy;
mod secrets;
mod sources;
mod timestamp;
mod typed;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use clap::error::ErrorKind;
use serde_json::json;
use toolcrib::wire::revision::Revision;

use crate::cli::{Cli, Command, PolicyCommand};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;

/// Reads the command line, does what it says, and tells how that ended.
pub fn main() -> ExitCode {
    // Servers are started through this very program; there are many of them, so nothing else comes first.
    if let Some(ended) = toolcrib::run_shim() {
        return ended;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error).into(),
    };
    let mut out = Output::standard(&cli.globals);
    let exit = run(&cli, &mut out).unwrap_or_else(|error| failed(error, &mut out));
    exit.into()
}

fn run(cli: &Cli, out: &mut Output) -> Result<Exit> {
    if let Command::DemoServer(args) = &cli.command {
        return Ok(demo_server::run(args.role)?);
    }
    logging::start(&cli.globals, &cli.command, out)?;
    let runtime = runtime()?;
    let exit = runtime.block_on(obey(cli, out));
    // A read of stdin that nobody waits for any more cannot be taken back; the process must not wait for it.
    runtime.shutdown_background();
    exit
}

/// One thread, unless `TOOLCRIB_THREADS` asks for more: a call is a few short steps of several tasks, and waking another
/// thread for each costs more than the step. One thread carries tens of thousands of calls a second.
fn runtime() -> Result<tokio::runtime::Runtime> {
    let threads = match std::env::var("TOOLCRIB_THREADS") {
        Ok(text) => text.parse().ok().filter(|threads| (1..=64).contains(threads)).ok_or_else(|| {
            Failure::usage(format!("`TOOLCRIB_THREADS` is `{text}`")).hint("set it to a number from 1 to 64")
        })?,
        Err(_) => 1,
    };
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("cannot start the runtime")
}

async fn obey(cli: &Cli, out: &mut Output) -> Result<Exit> {
    if let Command::Demo = cli.command {
        return commands::demo::run(out).await;
    }
    let place = Place::find(cli.globals.config.as_deref())?;
    out.advise(place.advice());
    let is_about_it = matches!(cli.command, Command::Allow(_) | Command::Check);
    if let Some((file, why)) = place.sources().unused().filter(|_| !is_about_it) {
        out.warn(&format!("`{}` {why}", file.display()), Some("look at it, then type `toolcrib allow`"))?;
    }
    match &cli.command {
        Command::Serve(args) => commands::serve::run(args, &place, out).await,
        Command::Stdio(args) => commands::stdio::run(args, &place, out).await,
        Command::Call(args) => commands::call::run(args, &place, out).await,
        Command::Tools(args) => commands::tools::run(args, &place, out).await,
        Command::Status(args) => commands::status::run(args, &place, out).await,
        Command::Restart(args) => commands::restart::run(args, &place, out).await,
        Command::Stop(args) => commands::stop::run(args, &place, out).await,
        Command::Logs(args) => commands::logs::run(args, &place, out).await,
        Command::Approve(args) => commands::approve::run(args, &place, out).await,
        Command::Check => commands::check::run(&place, out),
        Command::Ls => commands::ls::run(&place, out),
        Command::Show(args) => commands::ls::show(&args.server, &place, out),
        Command::Why(args) => commands::why::run(&args.server, &place, out),
        Command::Add(args) => commands::declare::add(args, &place, out),
        Command::Rm(args) => commands::declare::rm(args, &place, out),
        Command::Enable(args) => commands::declare::switch(args, true, &place, out),
        Command::Disable(args) => commands::declare::switch(args, false, &place, out),
        Command::Allow(args) => commands::allow::run(args, &place, out),
        Command::Policy(args) => match &args.command {
            PolicyCommand::Test(args) => commands::policy::test(args, &place, out),
        },
        Command::Secret(args) => commands::secret::run(&args.command, &place, out),
        Command::Import(args) => commands::import::run(args, &place, out),
        Command::Export(args) => commands::export::run(args, cli.globals.config.as_deref(), &place, out),
        Command::Run(args) => commands::run::run(args, cli.globals.config.as_deref(), &place),
        Command::Demo | Command::DemoServer(_) => Ok(Exit::Fine),
    }
}

fn failed(error: anyhow::Error, out: &mut Output) -> Exit {
    if let Some(exit) = output::ended(&error) {
        return exit;
    }
    let failure = match error.downcast::<Failure>() {
        Ok(failure) => failure,
        Err(error) => Failure::new(Exit::Unexpected, "unexpected", format!("{error:#}")),
    };
    // Nothing is left to be told to somebody who does not listen.
    let _ = out.failure(&failure);
    failure.exit
}

/// Help and version are no mistakes; everything else is, and usage errors exit 1.
fn not_a_command(error: &clap::Error) -> Exit {
    use std::io::Write as _;
    let json = std::env::args().any(|arg| arg == "--json");
    let fine = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let printed = match error.kind() {
        ErrorKind::DisplayVersion if json => {
            let revisions: Vec<&str> = Revision::ALL.iter().map(|revision| revision.as_str()).collect();
            let version = json!({"version": env!("CARGO_PKG_VERSION"), "protocol_versions": revisions});
            writeln!(std::io::stdout(), "{version}")
        }
        _ if json && !fine => {
            let text = error.render().to_string();
            let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            writeln!(std::io::stderr(), "{}", Failure::usage(message).hint("toolcrib --help").to_json())
        }
        _ => error.print(),
    };
    // A reader of the help that went away has seen enough.
    let _ = printed;
    if fine { Exit::Fine } else { Exit::Unexpected }
}
