//! `toolcrib logs SERVER`: prints the log of a server, from its file or from the running gateway.

use anyhow::Result;
use toolcrib::ServerId;
use toolcrib::util::format::format_timestamp;

use super::events::check_since;
use crate::cli::LogsArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::{LogLineReport, Report as _};

/// Prints the end of the log file. With `-f` or `--json`, prints the lines that the gateway holds, if one runs.
pub(crate) async fn run(args: &LogsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let filter = LogFilter::new(args)?;
    let client = match args.follow {
        true => Some(GatewayClient::require(paths).await?),
        false => GatewayClient::find(paths).await?,
    };
    let path = format!("{}/logs", super::server_path(&args.server));
    let held: Option<Vec<LogLineReport>> = match &client {
        Some(client) => Some(super::mark_unknown_server(client.fetch(&path).await)?),
        None => None,
    };
    let file = match args.follow || (out.json && held.is_some()) {
        true => None,
        false => read_file(&args.server, paths)?,
    };
    let mut last = held.as_deref().and_then(last_number).unwrap_or(0);
    let lines = match (file, held) {
        (Some(lines), _) => lines,
        (None, Some(held)) => held,
        (None, None) => return Err(no_log_error(&args.server).into()),
    };
    print_lines(&filter.select(lines), out)?;
    let Some(client) = client.filter(|_| args.follow) else { return Ok(ExitStatus::Success) };
    let follow = async {
        loop {
            let path = format!("{path}?after={last}&wait=1");
            let lines: Vec<LogLineReport> = super::mark_unknown_server(client.fetch(&path).await)?;
            last = last_number(&lines).unwrap_or(last);
            print_lines(&lines, out)?;
        }
    };
    let result: Option<Result<ExitStatus>> = super::until_interrupted(follow).await?;
    result.unwrap_or(Ok(ExitStatus::Interrupted))
}

/// Returns the number of the last line.
fn last_number(lines: &[LogLineReport]) -> Option<u64> {
    lines.last()?.seq
}

/// Returns the lines of the log file, if there is one.
fn read_file(server: &str, paths: &Paths) -> Result<Option<Vec<LogLineReport>>> {
    let Ok(server) = server.parse::<ServerId>() else { return Ok(None) };
    let log = gateway::read_log(&paths.log_dir(), &server)?;
    Ok(log.map(|log| log.lines().map(parse_line).collect()))
}

/// Splits a line of the file into its time and its text.
fn parse_line(line: &str) -> LogLineReport {
    let (at, text) = line.split_once(' ').unwrap_or((line, ""));
    LogLineReport { seq: None, at: at.to_owned(), line: text.to_owned() }
}

fn no_log_error(server: &str) -> CommandError {
    let error = CommandError::no_gateway();
    CommandError { message: format!("{}, and there is no log file of `{server}`", error.message), ..error }
}

/// The lines to print.
struct LogFilter {
    count: usize,
    /// The time of the first line. Timestamps are compared as text.
    since: String,
}

impl LogFilter {
    fn new(args: &LogsArgs) -> Result<Self, CommandError> {
        let since = args.since.as_deref().map(check_since).transpose()?;
        Ok(Self { count: args.lines, since: since.map(format_timestamp).unwrap_or_default() })
    }

    fn select(&self, lines: Vec<LogLineReport>) -> Vec<LogLineReport> {
        let mut lines: Vec<LogLineReport> = lines.into_iter().filter(|line| line.at >= self.since).collect();
        lines.drain(..lines.len().saturating_sub(self.count));
        lines
    }
}

fn print_lines(lines: &[LogLineReport], out: &mut Output) -> Result<()> {
    for line in lines {
        match out.json {
            true => out.print_json(&line.to_json())?,
            false => out.print_line(format!("{} {}", line.at, line.line).trim())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_keeps_the_newest_lines_since_a_time() {
        let log = "2026-05-01T10:00:00.000Z a\n2026-05-01T11:00:00.000Z b c\n2026-05-01T12:00:00.000Z d\n";
        let select = |count, since: &str| -> Vec<String> {
            let filter = LogFilter { count, since: since.to_owned() };
            filter.select(log.lines().map(parse_line).collect()).into_iter().map(|line| line.line).collect()
        };
        assert_eq!(select(2, ""), ["b c", "d"]);
        assert_eq!(select(9, "2026-05-01T11"), ["b c", "d"]);
        assert_eq!(select(9, "2026-05-01T11:00:00.001"), ["d"]);
        assert!(select(0, "").is_empty());
    }
}
