//! The `toolcrib` program: the gateway, its MCP endpoints and admin API, and the commands, built on the `toolcrib` library.
//!
//! `commands` has one file per command, `admin` is the admin API, and `gateway` is the running daemon.
//! The binary only calls [`main`]. On systems other than Unix the package is empty.

#![cfg(unix)]
// The report of a server has more members than `json!` takes by default.
#![recursion_limit = "256"]

mod admin;
mod audit;
mod cli;
mod client;
mod command_error;
mod commands;
mod completion;
mod dashboard;
mod demo_server;
mod environment;
mod exit;
mod explain;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod hints;
mod history;
mod listen;
mod logging;
mod output;
mod paths;
mod policy_test;
mod preflight;
mod progress;
mod progress_line;
mod project;
mod prompt;
mod protection;
mod redirect_listener;
mod report;
mod secrets;
mod sources;
mod telemetry;
mod tool_listing;
mod visible_text;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::error::ErrorKind;
use serde_json::json;
use toolcrib::protocol::versions::Revision;

use crate::cli::{AuditCommand, BackgroundStage, Cli, Command, PolicyCommand, ServeArgs};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

pub use crate::explain::{Explanation, explanations};
pub use crate::hints::hint_text;

/// Returns the description of the command line, from which the man pages are made.
pub fn command() -> clap::Command {
    cli::help::command()
}

/// Parses the command line, runs the command and returns the exit code.
pub fn main() -> ExitCode {
    // Servers are started through this program, so the shim comes before any other work.
    if let Some(code) = toolcrib::run_shim() {
        return code;
    }
    if completion::answer_shell() {
        return ExitCode::SUCCESS;
    }
    let cli = match cli::help::parse() {
        Ok(cli) => cli,
        Err(error) => return report_parse_error(&error).into(),
    };
    progress_line::init(&cli.globals);
    let mut out = Output::standard(&cli.globals);
    let exit = run(&cli, &mut out).unwrap_or_else(|error| report_error(error, &mut out));
    exit.into()
}

fn run(cli: &Cli, out: &mut Output) -> Result<ExitStatus> {
    match &cli.command {
        Command::DemoServer(args) => return Ok(demo_server::run(args.role)?),
        Command::Help(args) => return commands::help::run(&args.verbs, out),
        Command::Explain(args) => return commands::explain::run(args.code.as_deref(), out),
        Command::Completions(args) => {
            out.print_line(completion::script(args.shell)?.trim_end())?;
            return Ok(ExitStatus::Success);
        }
        _ => {}
    }
    logging::init(&cli.globals, &cli.command, out)?;
    if let Command::Serve(ServeArgs { background: Some(BackgroundStage::Launch), .. }) = &cli.command {
        return commands::serve::launch(cli.globals.config.as_deref());
    }
    if let Command::Serve(_) = &cli.command {
        // Before the first thread is started.
        secrets::take_key_from_environment();
        protection::protect_process();
    }
    let runtime = build_runtime()?;
    let exit = runtime.block_on(run_command(cli, out));
    let exit = exit.map_err(|error| commands::with_config_problem(error, cli));
    // A pending read of stdin cannot be cancelled, and the process must not wait for it.
    runtime.shutdown_background();
    exit
}

/// Threads for blocking work. A thousand servers that are listed for the first time would otherwise start 512, each to write
/// a file.
const MAX_BLOCKING_THREADS: usize = 64;

/// Builds the runtime of the main thread. A gateway with several threads has more of them, for its connections.
fn build_runtime() -> Result<tokio::runtime::Runtime> {
    if gateway::thread_count()? == 1 {
        toolcrib::use_two_arenas();
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.max_blocking_threads(MAX_BLOCKING_THREADS).enable_all().build();
    runtime.context("cannot start the runtime")
}

/// Finds the files of a command, and warns about a project file that is not used.
fn find_paths(cli: &Cli, out: &mut Output) -> Result<Paths> {
    let paths = Paths::find(cli.globals.config.as_deref())?;
    out.set_hints(paths.hints());
    let reports_it_itself = matches!(cli.command, Command::Allow(_) | Command::Check | Command::Doctor(_));
    if let Some((file, reason)) = paths.sources().unused_project_file().filter(|_| !reports_it_itself) {
        out.warn(&format!("`{}` {reason}", file.display()), Some("review it, then run `toolcrib allow`"))?;
    }
    Ok(paths)
}

async fn run_command(cli: &Cli, out: &mut Output) -> Result<ExitStatus> {
    if let Command::Demo = cli.command {
        return commands::demo::run(out).await;
    }
    let paths = find_paths(cli, out)?;
    match &cli.command {
        Command::Serve(args) => commands::serve::run(args, &paths, out).await,
        Command::Stdio(args) => commands::stdio::run(args, cli.globals.config.as_deref(), &paths, out).await,
        Command::Service(args) => {
            commands::service::run(&args.command, cli.globals.config.as_deref(), &paths, out).await
        }
        Command::StopGateway => commands::stop_gateway::run(&paths, out).await,
        Command::Call(args) => commands::call::run(args, &paths, out).await,
        Command::Tools(args) => commands::tools::run(args, &paths, out).await,
        Command::Status(args) => commands::status::run(args, &paths, out).await,
        Command::Restart(args) => commands::restart::run(args, &paths, out).await,
        Command::Stop(args) => commands::stop::run(args, &paths, out).await,
        Command::Logs(args) => commands::logs::run(args, &paths, out).await,
        Command::Top => commands::top::run(&paths, out).await,
        Command::Stats(args) => commands::stats::run(args, &paths, out).await,
        Command::Events(args) => commands::events::run(args, &paths, out).await,
        Command::Approve(args) => commands::approve::run(args, &paths, out).await,
        Command::Doctor(args) => commands::doctor::run(args, &paths, out).await,
        Command::Check => commands::check::run(&paths, out),
        Command::Ls => commands::ls::run(&paths, out),
        Command::Show(args) => commands::ls::show(&args.server, &paths, out),
        Command::Why(args) => commands::why::run(args, &paths, out),
        Command::Add(args) => commands::add::run(args, &paths, out).await,
        Command::Rm(args) => commands::remove::run(args, &paths, out).await,
        Command::Enable(args) => commands::enable::enable(args, &paths, out).await,
        Command::Disable(args) => commands::enable::disable(args, &paths, out).await,
        Command::Allow(args) => commands::allow::run(args, &paths, out),
        Command::Policy(args) => match &args.command {
            PolicyCommand::Test(args) => commands::policy::test(args, &paths, out),
        },
        Command::Audit(args) => match &args.command {
            AuditCommand::Verify(args) => commands::audit::verify(args, &paths, out),
        },
        Command::Ui(args) => commands::ui::run(args, cli.globals.config.as_deref(), &paths, out).await,
        Command::Login(args) => commands::login::run(args, &paths, out).await,
        Command::Logout(args) => commands::login::log_out(args, &paths, out).await,
        Command::Secret(args) => commands::secret::run(&args.command, &paths, out).await,
        Command::Init(args) => commands::init::run(args, cli.globals.config.as_deref(), &paths, out).await,
        Command::Import(args) => commands::import::run(args, &paths, out).await,
        Command::Export(args) => {
            commands::export::run(args, cli.globals.config.as_deref(), &paths, out).await
        }
        Command::Run(args) => commands::run::run(args, cli.globals.config.as_deref(), &paths).await,
        Command::Resources(args) => commands::resources::run(args, &paths, out).await,
        Command::Prompts(args) => commands::prompts::run(args, &paths, out).await,
        Command::Complete(args) => commands::complete::run(args, &paths, out).await,
        Command::AddJson(args) => commands::add_json::run(args, &paths, out).await,
        Command::Demo
        | Command::DemoServer(_)
        | Command::Help(_)
        | Command::Explain(_)
        | Command::Completions(_) => Ok(ExitStatus::Success),
    }
}

/// Prints an error and returns its exit status. A broken pipe is not an error.
fn report_error(error: anyhow::Error, out: &mut Output) -> ExitStatus {
    if let Some(exit) = output::broken_pipe_exit(&error) {
        return exit;
    }
    let error = match error.downcast::<CommandError>() {
        Ok(error) => error,
        Err(error) => match error.downcast::<toolcrib_agents::Error>() {
            Ok(error) => error.into(),
            Err(error) => CommandError::new(ExitStatus::Failure, "unexpected", format!("{error:#}")),
        },
    };
    // A closed stderr does not change the exit status.
    let _ = out.print_error(&error);
    error.exit
}

/// Prints what clap returned instead of a command. Help and version succeed; usage errors exit 1.
fn report_parse_error(error: &clap::Error) -> ExitStatus {
    use std::io::Write as _;
    let json = std::env::args().any(|arg| arg == "--json");
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let printed = match error.kind() {
        ErrorKind::DisplayVersion if json => {
            let revisions: Vec<&str> = Revision::ALL.iter().map(|revision| revision.as_str()).collect();
            let version = json!({"version": env!("CARGO_PKG_VERSION"), "protocol_versions": revisions});
            writeln!(std::io::stdout(), "{version}")
        }
        _ if json && !is_help => {
            let text = error.render().to_string();
            let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            writeln!(std::io::stderr(), "{}", CommandError::usage(message).hint("toolcrib --help").to_json())
        }
        _ => error.print(),
    };
    // A closed pipe is not an error here.
    let _ = printed;
    if is_help { ExitStatus::Success } else { ExitStatus::Failure }
}
