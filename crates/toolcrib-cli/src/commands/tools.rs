//! `toolcrib tools [ARG]`: lists tools, shows one, or searches.

mod layout;
mod schema_text;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::{Caller, Crib};

use crate::cli::ToolsArgs;
use crate::client::GatewayClient;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::report::list_to_json;
use crate::report::tools::{FailureReport, ToolReport, ToolsReport, UnapprovedCount};
use crate::tool_listing::{self, ToolsWait};
use layout::ServerCost;

/// Lists the tools of the running gateway, as far as they are known. Without one, starts the servers itself and waits for
/// them, because they stop with the command.
pub(crate) async fn run(args: &ToolsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let action = "listing tools";
    let finish = |listing: Option<ToolsReport>, out: &mut Output| match listing {
        Some(listing) => print_listing(&listing, args, out),
        None => Ok(ExitStatus::Interrupted),
    };
    match GatewayClient::find(paths).await? {
        Some(client) => {
            let path = match (args.wait, args.refresh) {
                (false, false) => "/api/v1/tools",
                (true, false) => "/api/v1/tools?wait=1",
                (false, true) => "/api/v1/tools?refresh=1",
                (true, true) => "/api/v1/tools?refresh=1&wait=1",
            };
            let wait = Wait::new(action, ServerSource::Gateway(&client));
            let listing = super::until_interrupted(wait.run(client.fetch(path))).await?;
            finish(listing.transpose()?, out)
        }
        None => {
            let wait = if args.no_wait { ToolsWait::Brief } else { ToolsWait::All };
            let work = async |crib: Crib| {
                let local = Caller::local();
                let listing = async {
                    match args.refresh {
                        true => tool_listing::refresh_tools(&crib, &local, wait).await,
                        false => tool_listing::list_tools(&crib, &local, wait).await,
                    }
                };
                let listing = Wait::new(action, ServerSource::Crib(&crib)).run(listing).await;
                with_standalone_hints(listing, paths)
            };
            super::run_with_config(paths, paths.valid_config()?, out, work, finish).await?
        }
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
    let query = args.query.as_deref();
    let exact = query.and_then(|query| find_exact(&listing.tools, query));
    let matching: Vec<ToolReport> = match (exact, query) {
        (Some(tool), _) => vec![tool.clone()],
        (None, Some(query)) => search(&listing.tools, query),
        (None, None) => listing.tools.clone(),
    };
    if out.json {
        out.print_json(&listing_json(&matching, listing, args.cost))?;
    } else if args.cost {
        print_costs(&matching, out)?;
    } else if let Some(tool) = exact {
        print_lines(&layout::tool_page(tool, out.width()), out)?;
    } else if !out.is_terminal() {
        let rows: Vec<Vec<String>> =
            matching.iter().map(|tool| vec![tool.name.clone(), layout::summary(tool)]).collect();
        out.print_table(&["NAME", "DESCRIPTION"], &rows)?;
    } else if query.is_some() {
        print_lines(&layout::ungrouped(&matching, out.width()), out)?;
    } else {
        print_lines(&layout::grouped(&matching, out.width()), out)?;
    }
    if exact.is_none() {
        print_warnings(listing, out)?;
    }
    let ToolsReport { tools, failed, pending, .. } = listing;
    if matching.is_empty() && failed.is_empty() && pending.is_empty() {
        out.print_note(match query {
            Some(_) => "no tool matches",
            None => "no tools found",
        })?;
    }
    Ok(listing_exit(tools.is_empty(), listing))
}

fn print_lines(lines: &[String], out: &mut Output) -> Result<()> {
    Ok(lines.iter().try_for_each(|line| out.print_line(line))?)
}

/// Prints what the tools of each server cost, and the sum.
fn print_costs(tools: &[ToolReport], out: &mut Output) -> Result<()> {
    let costs = layout::costs(tools);
    let cells = |server: &str, tools: usize, bytes: usize, tokens: usize| {
        vec![server.to_owned(), tools.to_string(), bytes.to_string(), tokens.to_string()]
    };
    let mut rows: Vec<Vec<String>> =
        costs.iter().map(|cost| cells(&cost.server, cost.tools, cost.bytes, cost.tokens())).collect();
    let sum = |of: fn(&ServerCost) -> usize| costs.iter().map(of).sum();
    rows.push(cells("total", tools.len(), sum(|cost| cost.bytes), sum(ServerCost::tokens)));
    Ok(out.print_table(&["SERVER", "TOOLS", "BYTES", "TOKENS"], &rows)?)
}

fn listing_json(matching: &[ToolReport], listing: &ToolsReport, with_cost: bool) -> Value {
    let mut json = missing_json(listing);
    json["tools"] = list_to_json(matching);
    if let Some(not_running) = &listing.not_running {
        json["not_running"] = json!(not_running);
    }
    if with_cost {
        json["cost"] = layout::costs(matching).iter().map(ServerCost::to_json).collect();
    }
    json
}

/// Returns what is missing from a list: the servers that failed or are still starting.
pub(super) fn missing_json(listing: &ToolsReport) -> Value {
    let failed: Vec<Value> = listing.failed.iter().map(FailureReport::to_short_json).collect();
    json!({"failed": failed, "pending": listing.pending})
}

/// Returns the exit status of a list: nothing was found and a server failed, or it succeeded.
pub(super) fn listing_exit(is_empty: bool, listing: &ToolsReport) -> ExitStatus {
    if is_empty && !listing.failed.is_empty() { ExitStatus::Unreachable } else { ExitStatus::Success }
}

/// Prints what is missing from the list, and why.
pub(super) fn print_warnings(listing: &ToolsReport, out: &mut Output) -> Result<()> {
    for error in &listing.failed {
        out.warn_on_one_line(&error.message, error.hint.as_deref())?;
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

fn unapproved_warning(count: &UnapprovedCount) -> String {
    let UnapprovedCount { server, tools, withheld } = count;
    let consequence = if *withheld { " (withheld)" } else { "" };
    match tools {
        1 => format!("1 tool of `{server}` differs from what was approved{consequence}"),
        _ => format!("{tools} tools of `{server}` differ from what was approved{consequence}"),
    }
}

/// Finds the tool with this public name, or as `server.tool`.
fn find_exact<'t>(tools: &'t [ToolReport], name: &str) -> Option<&'t ToolReport> {
    let on_server = name.split_once('.');
    let is_exact = |tool: &&ToolReport| {
        tool.name == name || on_server.is_some_and(|(server, own)| tool.server == server && tool.tool == own)
    };
    tools.iter().find(is_exact)
}

/// Returns the tools that match a query, best match first.
fn search(tools: &[ToolReport], query: &str) -> Vec<ToolReport> {
    let mut matching: Vec<(MatchRank, &ToolReport)> =
        tools.iter().filter_map(|tool| Some((rank(tool, query)?, tool))).collect();
    // The sort is stable: equal matches stay in the order of the list.
    matching.sort_by_key(|(rank, _)| *rank);
    matching.into_iter().map(|(_, tool)| tool.clone()).collect()
}

/// The part of a tool that a query matches, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MatchRank {
    WholeName,
    NamePrefix,
    Name,
    Description,
}

fn rank(tool: &ToolReport, query: &str) -> Option<MatchRank> {
    let query = query.to_lowercase();
    let own_name = tool.tool.to_lowercase();
    let description = tool.description.as_ref().map(|text| text.to_lowercase()).unwrap_or_default();
    if own_name == query {
        Some(MatchRank::WholeName)
    } else if own_name.starts_with(&query) {
        Some(MatchRank::NamePrefix)
    } else if own_name.contains(&query) || tool.name.to_lowercase().contains(&query) {
        Some(MatchRank::Name)
    } else {
        description.contains(&query).then_some(MatchRank::Description)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_matches_name_and_description_ignoring_case() {
        let tool = ToolReport {
            name: "git__git_log".to_owned(),
            tool: "git_log".to_owned(),
            description: Some("\n  Shows Commits.\nMore.".to_owned()),
            ..ToolReport::default()
        };
        assert_eq!(rank(&tool, "GIT_l"), Some(MatchRank::NamePrefix));
        assert_eq!(rank(&tool, "commit"), Some(MatchRank::Description));
        assert_eq!(rank(&tool, "push"), None);
    }

    fn tool(server: &str, own_name: &str, description: &str) -> ToolReport {
        ToolReport {
            name: format!("{server}__{own_name}"),
            server: server.to_owned(),
            tool: own_name.to_owned(),
            description: Some(description.to_owned()),
            ..ToolReport::default()
        }
    }

    #[test]
    fn search_puts_the_best_match_first() {
        let tools = [
            tool("git", "show", "Shows a log."),
            tool("git", "reflog", ""),
            tool("time", "log_time", ""),
            tool("git", "log", ""),
        ];
        let found: Vec<String> = search(&tools, "log").into_iter().map(|tool| tool.tool).collect();
        assert_eq!(found, ["log", "log_time", "reflog", "show"]);
        let name = |query: &str| find_exact(&tools, query).map(|tool| tool.name.clone());
        assert_eq!(name("git.log").as_deref(), Some("git__log"));
        assert_eq!(name("git__reflog").as_deref(), Some("git__reflog"));
        assert_eq!(name("log"), None);
    }
}
