//! `toolcrib tools [ARG]`: lists tools, or shows one.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::Caller;
use toolcrib::util::encoding;

use crate::cli::ToolsArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::list_to_json;
use crate::report::tools::{FailureReport, ToolReport, ToolsReport, UnapprovedCount};
use crate::tool_listing::{self, ToolsWait};

/// Characters of a query.
const MAX_QUERY_CHARS: usize = 1000;
/// Matches of a query that are shown on the terminal.
const MAX_MATCHES: usize = 20;

/// Lists the tools of the running gateway, as far as they are known. Without one, starts the servers itself and waits for
/// them, because they stop with the command.
pub(crate) async fn run(args: &ToolsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    check_length(args.query.as_deref())?;
    let listing = match GatewayClient::find(paths).await? {
        Some(client) => super::until_interrupted(client.fetch(&listing_path(args))).await?.transpose()?,
        None => {
            let wait = if args.no_wait { ToolsWait::Brief } else { ToolsWait::All };
            let caller = Caller::local();
            let listing = super::run_standalone(paths, out, async |crib| {
                let listing = match args.refresh {
                    true => tool_listing::refresh_tools(&crib, &caller, wait).await,
                    false => tool_listing::list_tools(&crib, &caller, wait).await,
                };
                match &args.query {
                    Some(query) => tool_listing::search_tools(&crib, &caller, listing, query).await,
                    None => listing,
                }
            })
            .await?;
            listing.map(|listing| with_standalone_hints(listing, paths))
        }
    };
    match listing {
        Some(listing) => print_listing(&listing, args, out),
        None => Ok(ExitStatus::Interrupted),
    }
}

/// Refuses a query that does not fit into the request to a gateway.
fn check_length(query: Option<&str>) -> Result<(), CommandError> {
    let length = query.map_or(0, |query| query.chars().count());
    if length <= MAX_QUERY_CHARS {
        return Ok(());
    }
    let message = format!("the query has {length} characters, at most {MAX_QUERY_CHARS} are allowed");
    Err(CommandError::usage(message).hint("say in a few words what the tool should do"))
}

/// Returns the path of the request for the list, with the query.
fn listing_path(args: &ToolsArgs) -> String {
    let mut parts = Vec::new();
    if args.refresh {
        parts.push("refresh=1".to_owned());
    }
    if args.wait {
        parts.push("wait=1".to_owned());
    }
    parts.extend(args.query.as_ref().map(|query| format!("q={}", encoding::percent_encode(query))));
    match parts.is_empty() {
        true => "/api/v1/tools".to_owned(),
        false => format!("/api/v1/tools?{}", parts.join("&")),
    }
}

fn with_standalone_hints(mut listing: ToolsReport, paths: &Paths) -> ToolsReport {
    for error in &mut listing.failed {
        let server = error.server.as_deref();
        error.hint = error.hint.as_deref().map(|hint| super::standalone_hint(hint, server, paths));
    }
    listing
}

fn print_listing(listing: &ToolsReport, args: &ToolsArgs, out: &mut Output) -> Result<ExitStatus> {
    let has_query = args.query.as_ref().is_some_and(|query| !query.trim().is_empty());
    let tools = &listing.tools;
    if out.json {
        out.print_json(&listing_json(listing))?;
    } else if let [tool] = &tools[..]
        && has_query
        && tool.found.is_none()
    {
        print_tool(tool, out)?;
    } else if args.explain {
        let rows: Vec<Vec<String>> = tools.iter().take(MAX_MATCHES).map(explained_row).collect();
        out.print_table(&["SCORE", "NAME", "MATCHED", "DESCRIPTION"], &rows)?;
    } else {
        let shown = if has_query { MAX_MATCHES } else { tools.len() };
        let rows: Vec<Vec<String>> = tools.iter().take(shown).map(table_row).collect();
        out.print_table(&["NAME", "DESCRIPTION"], &rows)?;
    }
    if has_query && !out.json && tools.len() > MAX_MATCHES {
        let weaker = tools.len() - MAX_MATCHES;
        out.print_note(&format!("{weaker} weaker matches are not shown; `--json` has all of them"))?;
    }
    print_warnings(listing, out)?;
    let ToolsReport { failed, pending, .. } = listing;
    if tools.is_empty() && failed.is_empty() && pending.is_empty() {
        out.print_note(if has_query { "no tool matches" } else { "no tools found" })?;
    }
    Ok(if tools.is_empty() && !failed.is_empty() { ExitStatus::Unreachable } else { ExitStatus::Success })
}

fn listing_json(listing: &ToolsReport) -> Value {
    let failed: Vec<Value> = listing.failed.iter().map(FailureReport::to_short_json).collect();
    let mut json =
        json!({"tools": list_to_json(&listing.tools), "failed": failed, "pending": listing.pending});
    if let Some(not_running) = &listing.not_running {
        json["not_running"] = json!(not_running);
    }
    json
}

/// Prints what is missing from the list, and why.
fn print_warnings(listing: &ToolsReport, out: &mut Output) -> Result<()> {
    for error in &listing.failed {
        out.warn(&error.message, error.hint.as_deref())?;
    }
    if !listing.pending.is_empty() {
        let message =
            format!("not listed yet, because they are still starting: {}", join_names(&listing.pending));
        out.warn(&message, Some("toolcrib tools --wait"))?;
    }
    if let Some(not_running) = listing.not_running.as_ref().filter(|servers| !servers.is_empty()) {
        out.print_note(&format!("not asked again, because they do not run: {}", join_names(not_running)))?;
    }
    for count in &listing.unapproved {
        out.warn(&unapproved_warning(count), Some(&format!("toolcrib approve {}", count.server)))?;
    }
    Ok(())
}

fn join_names(servers: &[String]) -> String {
    let names: Vec<String> = servers.iter().map(|server| format!("`{server}`")).collect();
    names.join(", ")
}

fn print_tool(tool: &ToolReport, out: &mut Output) -> Result<()> {
    let change = tool.change.as_ref().map_or_else(String::new, |change| format!(" [{change}]"));
    out.print_line(&format!("{}{change}", tool.name))?;
    for line in tool.description.iter().flat_map(|text| text.trim().lines()) {
        out.print_line(format!("  {line}").trim_end())?;
    }
    let schema = serde_json::to_string_pretty(&tool.definition["inputSchema"])?;
    for line in schema.lines() {
        out.print_line(&format!("  {line}"))?;
    }
    Ok(())
}

fn unapproved_warning(count: &UnapprovedCount) -> String {
    let UnapprovedCount { server, tools, withheld } = count;
    let consequence = if *withheld { " (withheld)" } else { "" };
    match tools {
        1 => format!("1 tool of `{server}` differs from what was approved{consequence}"),
        _ => format!("{tools} tools of `{server}` differ from what was approved{consequence}"),
    }
}

fn table_row(tool: &ToolReport) -> Vec<String> {
    let description = tool.description.as_deref().unwrap_or_default();
    let summary = description.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let change = tool.change.as_ref().map_or_else(String::new, |change| format!("[{change}] "));
    vec![tool.name.clone(), change + &summary.replace('\t', " ")]
}

/// A row with the score and the fields that matched; both are empty for a tool that was not searched for.
fn explained_row(tool: &ToolReport) -> Vec<String> {
    let score = tool.found.as_ref().map_or_else(String::new, |found| format!("{:.3}", found.score));
    let fields = tool.found.as_ref().map_or_else(String::new, |found| found.fields.join(", "));
    let mut row = vec![score, tool.name.clone(), fields];
    row.extend(table_row(tool).into_iter().skip(1));
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tools::SearchReport;

    #[test]
    fn row_shows_the_first_line_and_what_matched() {
        let tool = ToolReport {
            name: "git__git_log".to_owned(),
            description: Some("\n  Shows Commits.\nMore.".to_owned()),
            ..ToolReport::default()
        };
        assert_eq!(table_row(&tool), ["git__git_log", "Shows Commits."]);
        let changed = ToolReport { change: Some("changed".to_owned()), ..tool.clone() };
        assert_eq!(table_row(&changed), ["git__git_log", "[changed] Shows Commits."]);
        let fields = vec!["name".to_owned(), "summary".to_owned()];
        let found = ToolReport { found: Some(SearchReport { score: 2.5, fields }), ..tool };
        assert_eq!(explained_row(&found), ["2.500", "git__git_log", "name, summary", "Shows Commits."]);
    }

    #[test]
    fn query_is_encoded_in_the_path() {
        let args = ToolsArgs {
            query: Some("a & b".to_owned()),
            explain: false,
            wait: true,
            no_wait: false,
            refresh: true,
        };
        assert_eq!(listing_path(&args), "/api/v1/tools?refresh=1&wait=1&q=a%20%26%20b");
        assert!(
            check_length(args.query.as_deref()).is_ok() && check_length(Some(&"é".repeat(1001))).is_err()
        );
        let args = ToolsArgs { query: None, wait: false, refresh: false, ..args };
        assert_eq!(listing_path(&args), "/api/v1/tools");
    }
}
