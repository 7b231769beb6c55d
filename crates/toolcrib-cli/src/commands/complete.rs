//! `toolcrib complete`: asks a server for values of an argument of a prompt or of a resource template.

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::Selector;
use toolcrib::protocol::json::object::Object;

use super::mcp_peer::{self, McpPeer};
use crate::cli::CompleteArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

/// Prints the values that the server suggests.
pub(crate) async fn run(args: &CompleteArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let prompter = out.prompter();
    let CompleteArgs { reference, argument } = args;
    let (name, value) = argument.split_once('=').ok_or_else(|| {
        let message = format!("`{argument}` is not an argument of the form key=value");
        CommandError::usage(message).hint("toolcrib help complete")
    })?;
    let work = async |peer: McpPeer| {
        let is_template = reference.contains("://") || reference.contains('{');
        let selector = match is_template {
            true => Selector::Resource(reference.clone()),
            false => peer.select(reference, Selector::Prompt).await,
        };
        let target = match is_template {
            true => json!({"type": "ref/resource", "uri": selector.name()}),
            false => json!({"type": "ref/prompt", "name": selector.name()}),
        };
        let mut params = Object::default();
        params.set_unchecked("ref", target.to_string());
        params.set_unchecked("argument", json!({"name": name, "value": value}).to_string());
        peer.send(prompter, "completion/complete", &selector, params).await
    };
    mcp_peer::run(paths, out, work, |result, out| print_values(&result, out)).await
}

fn print_values(result: &Bytes, out: &mut Output) -> Result<ExitStatus> {
    if out.json {
        out.print_raw(result)?;
        return Ok(ExitStatus::Success);
    }
    let result: Value = serde_json::from_slice(result)?;
    let completion = &result["completion"];
    for value in completion["values"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        out.print_line(value)?;
    }
    if completion["hasMore"] == true {
        out.print_note("there are more values; type more of the value")?;
    }
    Ok(ExitStatus::Success)
}
