//! `toolcrib prompts [NAME] [KEY=VALUE…]`: lists prompts, or gets one.

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::{ListKind, Selector};

use super::content::{ContentText, array_member};
use super::mcp_peer::{self, McpPeer};
use super::tools;
use crate::cli::PromptsArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::tools::ToolsReport;

/// Lists all prompts, or gets one.
pub(crate) async fn run(args: &PromptsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    match &args.name {
        Some(name) => get(name, args, paths, out).await,
        None => mcp_peer::run(paths, out, list, |list, out| list.print(out)).await,
    }
}

/// The prompts that are known.
struct PromptList {
    report: ToolsReport,
    prompts: Vec<Value>,
}

async fn list(peer: McpPeer) -> Result<PromptList, CommandError> {
    Ok(PromptList { report: peer.discover().await?, prompts: peer.list(ListKind::Prompts).await? })
}

impl PromptList {
    fn print(&self, out: &mut Output) -> Result<ExitStatus> {
        let Self { report, prompts } = self;
        if out.json {
            let mut json = tools::missing_json(report);
            json["prompts"] = json!(prompts);
            out.print_json(&json)?;
        } else {
            let rows: Vec<Vec<String>> = prompts.iter().map(table_row).collect();
            out.print_fitted_table(&["NAME", "ARGUMENTS", "DESCRIPTION"], &rows)?;
        }
        tools::print_warnings(report, out)?;
        if prompts.is_empty() {
            out.print_note("no prompts found")?;
        }
        Ok(tools::listing_exit(prompts.is_empty(), report))
    }
}

fn table_row(prompt: &Value) -> Vec<String> {
    let argument = |argument: &Value| {
        let name = argument["name"].as_str().unwrap_or_default();
        let mark = if argument["required"] == true { "" } else { "?" };
        format!("{name}{mark}")
    };
    let arguments: Vec<String> = prompt["arguments"].as_array().into_iter().flatten().map(argument).collect();
    let description = prompt["description"].as_str().or(prompt["title"].as_str()).unwrap_or_default();
    let name = prompt["name"].as_str().unwrap_or_default().to_owned();
    vec![name, arguments.join(" "), description.lines().next().unwrap_or_default().to_owned()]
}

async fn get(name: &str, args: &PromptsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let prompter = out.prompter();
    let arguments = parse_arguments(&args.arguments)?;
    let work = async |peer: McpPeer| {
        let selector = peer.select(name, Selector::Prompt).await;
        let mut params = Object::default();
        params.set_unchecked("name", object::to_json_string(selector.name()));
        params.set_unchecked("arguments", arguments.to_string());
        peer.send(prompter, "prompts/get", &selector, params).await
    };
    mcp_peer::run(paths, out, work, |result, out| print_prompt(&result, args, out)).await
}

/// Parses `KEY=VALUE`; the arguments of prompts are strings.
fn parse_arguments(words: &[String]) -> Result<Value, CommandError> {
    let mut arguments = Map::new();
    for word in words {
        let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            let message = format!("`{word}` is not an argument of the form key=value");
            return Err(CommandError::usage(message).hint("toolcrib help prompts"));
        };
        if arguments.insert(key.to_owned(), json!(value)).is_some() {
            return Err(CommandError::usage(format!("`{key}` is given twice")));
        }
    }
    Ok(arguments.into())
}

/// Prints every message below its role.
fn print_prompt(result: &Bytes, args: &PromptsArgs, out: &mut Output) -> Result<ExitStatus> {
    let content = ContentText::new(args.save.save.as_deref());
    let object = Object::parse(result).unwrap_or_default();
    let mut texts = Vec::new();
    if !out.json || args.save.save.is_some() {
        for message in array_member(&object, "messages") {
            let message = Object::parse(&message).unwrap_or_default();
            let role = message.get_string("role").unwrap_or_default().into_owned();
            let block = message.get("content").cloned().unwrap_or_default();
            texts.push(format!("{role}: {}", content.block_text(&block)?));
        }
    }
    match out.json {
        true => out.print_raw(result)?,
        false => texts.iter().try_for_each(|text| out.print_raw(text.as_bytes()))?,
    }
    Ok(ExitStatus::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_arguments_are_strings() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            parse_arguments(&words).map_err(|error| error.message)
        };
        assert_eq!(parse(&["a=1", "b=x=y"]).unwrap(), json!({"a": "1", "b": "x=y"}));
        for bad in [&["a"][..], &["=1"], &["a=1", "a=2"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn optional_arguments_of_prompts_are_marked() {
        let prompt = json!({"name": "p", "description": "Does.\nMore", "arguments": [{"name": "a", "required": true}, {"name": "b"}]});
        assert_eq!(table_row(&prompt), ["p", "a b?", "Does."]);
    }
}
