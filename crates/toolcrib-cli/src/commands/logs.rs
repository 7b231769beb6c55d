//! `toolcrib logs SERVER [-f]`: prints the stderr of a server.

use anyhow::Result;
use toolcrib::ServerId;

use crate::cli::LogsArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::{Paths, log_file};
use crate::report::{LogLineReport, Report as _};

/// Prints the lines that the gateway holds; with `-f`, also new ones.
pub(crate) async fn run(args: &LogsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let client =
        GatewayClient::require(paths).await.map_err(|error| with_log_file_hint(error, args, paths))?;
    let path = format!("{}/logs", super::server_path(&args.server));
    let mut last = print_lines(super::mark_unknown_server(client.fetch(&path).await)?, 0, out)?;
    if !args.follow {
        return Ok(ExitStatus::Success);
    }
    let follow = async {
        loop {
            let lines =
                super::mark_unknown_server(client.fetch(&format!("{path}?after={last}&wait=1")).await)?;
            last = print_lines(lines, last, out)?;
        }
    };
    let result: Option<Result<ExitStatus>> = super::until_interrupted(follow).await?;
    result.unwrap_or(Ok(ExitStatus::Interrupted))
}

/// Adds the log file as the hint, if there is one.
fn with_log_file_hint(error: CommandError, args: &LogsArgs, paths: &Paths) -> CommandError {
    let file = log_file(&paths.log_dir(), &args.server);
    let exists = args.server.parse::<ServerId>().is_ok() && file.is_file();
    if exists { error.hint(format!("cat {}", file.display())) } else { error }
}

/// Prints lines and returns the number of the last one.
fn print_lines(lines: Vec<LogLineReport>, mut last: u64, out: &mut Output) -> Result<u64> {
    for line in lines {
        last = line.seq;
        if out.json {
            out.print_json(&line.to_json())?;
        } else {
            out.print_line(&line.line)?;
        }
    }
    Ok(last)
}
