//! `toolcrib resources [URI]`: lists resources and templates, or reads a resource.

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::util::encoding;
use toolcrib::{ErrorKind, ListKind, Selector};

use super::content::{ContentText, array_member};
use super::mcp_peer::{self, McpPeer};
use super::tools;
use crate::cli::ResourcesArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::tools::ToolsReport;

/// Lists all resources, or reads one.
pub(crate) async fn run(args: &ResourcesArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    match &args.uri {
        Some(uri) => read(uri, args, paths, out).await,
        None => mcp_peer::run(paths, out, list, |lists, out| lists.print(out)).await,
    }
}

/// The resources and templates that are known.
struct ResourceLists {
    report: ToolsReport,
    resources: Vec<Value>,
    templates: Vec<Value>,
}

async fn list(peer: McpPeer) -> Result<ResourceLists, CommandError> {
    Ok(ResourceLists {
        report: peer.discover().await?,
        resources: peer.list(ListKind::Resources).await?,
        templates: peer.list(ListKind::Templates).await?,
    })
}

impl ResourceLists {
    fn print(&self, out: &mut Output) -> Result<ExitStatus> {
        let Self { report, resources, templates } = self;
        if out.json {
            let mut json = tools::missing_json(report);
            json["resources"] = json!(resources);
            json["templates"] = json!(templates);
            out.print_json(&json)?;
        } else {
            let row = |item: &Value, member: &str| {
                let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
                let description = item["description"].as_str().or(item["title"].as_str());
                let description = description.or(item["name"].as_str()).unwrap_or_default();
                let first_line = description.lines().next().unwrap_or_default().to_owned();
                vec![text(member), text("mimeType"), first_line]
            };
            let mut rows: Vec<Vec<String>> = resources.iter().map(|item| row(item, "uri")).collect();
            rows.extend(templates.iter().map(|item| row(item, "uriTemplate")));
            out.print_fitted_table(&["URI", "TYPE", "DESCRIPTION"], &rows)?;
        }
        tools::print_warnings(report, out)?;
        if resources.is_empty() && templates.is_empty() {
            out.print_note("no resources found")?;
        }
        Ok(tools::listing_exit(resources.is_empty() && templates.is_empty(), report))
    }
}

async fn read(uri: &str, args: &ResourcesArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let prompter = out.prompter();
    let mut params = Object::default();
    params.set_unchecked("uri", object::to_json_string(uri));
    let selector = Selector::Resource(uri.to_owned());
    let work = async |peer: McpPeer| {
        let sent = peer.send(prompter, "resources/read", &selector, params).await;
        sent.map_err(|error| match error.code == ErrorKind::Unknown.facts().name {
            true => error.hint("toolcrib resources"),
            false => error,
        })
    };
    mcp_peer::run(paths, out, work, |result, out| print_contents(&result, args, out)).await
}

fn print_contents(result: &Bytes, args: &ResourcesArgs, out: &mut Output) -> Result<ExitStatus> {
    let save = args.save.save.as_deref();
    let object = Object::parse(result).unwrap_or_default();
    let contents = array_member(&object, "contents");
    if !out.json && !out.is_terminal() && save.is_none() {
        // Into a pipe or a file, the bytes of a single binary resource are its content.
        if let [only] = contents.as_slice()
            && let Some(bytes) = blob(only)
        {
            out.print_bytes(&bytes)?;
            return Ok(ExitStatus::Success);
        }
    }
    let text = ContentText::new(save);
    let texts = match out.json && save.is_none() {
        true => Vec::new(),
        false => contents.iter().map(|item| text.resource_text(item)).collect::<Result<_, _>>()?,
    };
    match out.json {
        true => out.print_raw(result)?,
        false => texts.iter().try_for_each(|text: &String| out.print_raw(text.as_bytes()))?,
    }
    Ok(ExitStatus::Success)
}

fn blob(contents: &Bytes) -> Option<Vec<u8>> {
    encoding::parse_base64(&Object::parse(contents).ok()?.get_string("blob")?)
}
