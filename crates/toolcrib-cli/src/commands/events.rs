//! `toolcrib events`: prints what happened, from the running gateway or from the files of the last one.

use std::io;

use anyhow::Result;
use bytes::Bytes;
use serde_json::Value;
use toolcrib::CallId;
use toolcrib::util::clock::wall_time;
use toolcrib::util::encoding::percent_encode;
use toolcrib::util::time_id::to_time_id;

use crate::cli::EventsArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::history::{self, EventFilter, parse_time};
use crate::output::Output;
use crate::paths::Paths;
use crate::report::Report as _;
use crate::report::events::{EVENT_KINDS, EventReport};

/// Period without `--since`.
const DEFAULT_SINCE: &str = "1h";

/// The members of a call, in the order in which they are printed.
const CALL_MEMBERS: [&str; 21] = [
    "id",
    "time",
    "method",
    "server",
    "tool",
    "caller",
    "client",
    "outcome",
    "error",
    "rule",
    "duration_ms",
    "policy_ms",
    "start_ms",
    "queue_ms",
    "server_ms",
    "cache",
    "attempts",
    "request_bytes",
    "response_bytes",
    "result_tokens",
    "arguments",
];

/// Prints events, and with `-f` new ones as they come.
pub(crate) async fn run(args: &EventsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    if let Some(id) = &args.call {
        return show_call(id, paths, out).await;
    }
    if let Some(unknown) = args.kind.iter().find(|kind| !EVENT_KINDS.contains(&kind.as_str())) {
        let error = CommandError::usage(format!("unknown kind of event: `{unknown}`"));
        return Err(error.hint(format!("use {}", EVENT_KINDS.join(", "))).into());
    }
    args.since.as_deref().map(check_since).transpose()?;
    let client = match args.follow {
        true => Some(GatewayClient::require(paths).await?),
        false => GatewayClient::find(paths).await?,
    };
    let Some(client) = client else { return print_recorded(args, paths, out) };
    let mut written = Ok(());
    let mut print = |data: Bytes| {
        let event: Value = serde_json::from_slice(&data).unwrap_or_default();
        written = print_event(&EventReport::from_json(&event), out);
        written.is_ok()
    };
    let path = stream_path(args);
    let followed = super::until_interrupted(client.follow(&path, &mut print)).await?;
    written?;
    match followed {
        None => Ok(ExitStatus::Interrupted),
        Some(followed) => {
            followed?;
            match args.follow {
                true => Err(CommandError::no_gateway().into()),
                false => Ok(ExitStatus::Success),
            }
        }
    }
}

/// Prints everything that is recorded about one call.
async fn show_call(id: &str, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let unknown = || {
        let error = CommandError::new(ExitStatus::ToolError, "not_found", format!("unknown call `{id}`"));
        error.hint("toolcrib events --kind call")
    };
    let call_id: CallId = id.parse().map_err(|error| CommandError::usage(format!("`{id}`: {error}")))?;
    let call = match GatewayClient::find(paths).await? {
        Some(client) => match client.get(&format!("/api/v1/calls/{call_id}")).await {
            Err(error) if error.code == "not_found" => return Err(unknown().into()),
            fetched => fetched?,
        },
        None => {
            let found = history::read_call(&paths.history_dir(), call_id)?;
            found.ok_or_else(unknown)?.to_json()
        }
    };
    if out.json {
        out.print_json(&call)?;
        return Ok(ExitStatus::Success);
    }
    for name in CALL_MEMBERS {
        match &call[name] {
            Value::Null => {}
            Value::String(text) => out.print_line(&format!("{name:<15} {text}"))?,
            value => out.print_line(&format!("{name:<15} {value}"))?,
        }
    }
    Ok(ExitStatus::Success)
}

/// Returns the path of the stream in the admin API.
fn stream_path(args: &EventsArgs) -> String {
    let mut path = format!("/api/v1/events?follow={}", u8::from(args.follow));
    if let Some(since) = since_text(args) {
        path += &format!("&since={}", percent_encode(since));
    }
    if !args.kind.is_empty() {
        path += &format!("&kind={}", percent_encode(&args.kind.join(",")));
    }
    if let Some(server) = &args.server {
        path += &format!("&server={}", percent_encode(server));
    }
    path
}

fn since_text(args: &EventsArgs) -> Option<&str> {
    args.since.as_deref().or((!args.follow).then_some(DEFAULT_SINCE))
}

/// Returns the time that `--since` names.
pub(super) fn check_since(text: &str) -> Result<std::time::SystemTime, CommandError> {
    parse_time(text, wall_time()).ok_or_else(|| {
        CommandError::usage(format!("`--since {text}` is not a time"))
            .hint("use `10m`, `2h`, `7d`, `2026-05-01` or `2026-05-01T12:30`")
    })
}

/// Prints the events in the files of a gateway that does not run.
fn print_recorded(args: &EventsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let folder = paths.history_dir();
    if !history::exists(&folder) {
        return Err(no_history_error().into());
    }
    let since = check_since(since_text(args).unwrap_or(DEFAULT_SINCE))?;
    let filter = EventFilter {
        after: Some(to_time_id(since).saturating_sub(1)),
        kinds: args.kind.clone(),
        server: args.server.clone(),
        ..EventFilter::default()
    };
    for event in &history::read_events(&folder, filter)? {
        print_event(event, out)?;
    }
    Ok(ExitStatus::Success)
}

/// Returns the error without a gateway and without files of one.
pub(super) fn no_history_error() -> CommandError {
    let error = CommandError::no_gateway();
    CommandError { message: format!("{}, and there is no history of one", error.message), ..error }
}

fn print_event(event: &EventReport, out: &mut Output) -> io::Result<()> {
    if out.json {
        return out.print_json(&event.to_json());
    }
    let EventReport { time, kind, server, message, .. } = event;
    let server = server.as_deref().unwrap_or("-");
    let sampled = if event.sampled { " (calls before it are not shown)" } else { "" };
    out.print_line(&format!("{time} {kind:<14} {server:<12} {}{sampled}", message.replace('\n', " ")))
}
