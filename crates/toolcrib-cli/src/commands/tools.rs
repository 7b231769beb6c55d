//! `toolcrib tools [ARG]`: lists tools, shows one, or searches.

mod layout;
mod schema_text;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::config::ProblemScope;
use toolcrib::search::MAX_QUERY_CHARS;
use toolcrib::util::encoding;
use toolcrib::{Caller, Crib};

use crate::cli::ToolsArgs;
use crate::client::GatewayClient;
use crate::command_error::{CommandError, ProblemReport};
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::report::tools::{FailureReport, ToolReport, ToolsReport, UnapprovedCount};
use crate::report::{Report as _, list_to_json};
use crate::tool_listing::{self, ToolsQuery, ToolsWait};
use layout::ServerCost;

/// Matches of a query that are shown on the terminal.
const MAX_MATCHES: usize = 20;

/// Lists the tools of the running gateway, as far as they are known. Without one, starts the servers itself and waits for
/// them, because they stop with the command.
pub(crate) async fn run(args: &ToolsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    check_length(args.query.as_deref())?;
    let action = "listing tools";
    let finish = |listing: Option<ToolsReport>, out: &mut Output| match listing {
        Some(listing) => print_listing(&listing, args, out),
        None => Ok(ExitStatus::Interrupted),
    };
    match GatewayClient::find(paths).await? {
        Some(client) => {
            let wait = Wait::new(action, ServerSource::Gateway(&client));
            let listing = super::until_interrupted(wait.run(client.fetch(&listing_path(args)))).await?;
            finish(listing.transpose()?, out)
        }
        None => {
            let mut config = paths.valid_config()?;
            let problems: Vec<ProblemReport> = config.problems.iter().map(ProblemReport::new).collect();
            // They are printed with the list.
            config.problems.retain(|problem| !matches!(problem.scope, ProblemScope::Server(_)));
            let work = async |crib: Crib| {
                let local = Caller::local();
                let text = args.query.as_deref().unwrap_or_default();
                let query = ToolsQuery { text, wait: standalone_wait(args), refreshes: args.refresh };
                let listing = tool_listing::query_tools(&crib, &local, query);
                let mut listing = Wait::new(action, ServerSource::Crib(&crib)).run(listing).await;
                listing.add_disabled_servers(&problems);
                with_standalone_hints(listing, paths)
            };
            super::run_with_config(paths, config, out, work, finish).await?
        }
    }
}

fn standalone_wait(args: &ToolsArgs) -> ToolsWait {
    match (args.wait, args.no_wait) {
        (true, _) => ToolsWait::All,
        (_, true) => ToolsWait::Brief,
        _ => ToolsWait::Patient,
    }
}

/// Refuses a query of which only a part would be searched for.
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

pub(super) fn with_standalone_hints(mut listing: ToolsReport, paths: &Paths) -> ToolsReport {
    for error in &mut listing.failed {
        let server = error.server.as_deref();
        error.hint = error.hint.as_deref().map(|hint| super::standalone_hint(hint, server, paths));
    }
    listing
}

/// Prints a list. With a query, the list has what was found, best first; a tool that was not searched for is the only one
/// and was named exactly.
fn print_listing(listing: &ToolsReport, args: &ToolsArgs, out: &mut Output) -> Result<ExitStatus> {
    let has_query = args.query.as_ref().is_some_and(|query| !query.trim().is_empty());
    let has_query = has_query && listing.server.is_none();
    let tools = &listing.tools[..];
    let exact = tools.first().filter(|tool| has_query && tool.found.is_none());
    if out.json {
        out.print_json(&listing_json(listing, args.cost))?;
    } else if args.cost {
        print_costs(tools, out)?;
    } else if let Some(tool) = exact {
        print_lines(&layout::tool_page(tool, out.width()), out)?;
    } else if has_query {
        print_matches(tools, args.explain, out)?;
    } else if out.is_terminal() {
        print_lines(&layout::grouped(tools, out.width()), out)?;
    } else {
        out.print_table(&["NAME", "DESCRIPTION"], &table_rows(tools))?;
    }
    match &listing.server {
        _ if exact.is_some() => {}
        _ if has_query => print_not_searched(listing, out)?,
        server => {
            print_warnings(listing, out)?;
            let state = server.iter().map(|server| format!("`{}` is {}", server.name, server.state));
            state.into_iter().try_for_each(|state| out.print_note(&state))?;
        }
    }
    let ToolsReport { failed, pending, .. } = listing;
    if tools.is_empty() && failed.is_empty() && pending.is_empty() {
        out.print_note(if has_query { "no tool matches" } else { "no tools found" })?;
    }
    Ok(listing_exit(tools.is_empty(), listing))
}

/// Prints the best matches of a query.
fn print_matches(tools: &[ToolReport], explain: bool, out: &mut Output) -> Result<()> {
    let shown = &tools[..tools.len().min(MAX_MATCHES)];
    if explain {
        let rows: Vec<Vec<String>> = shown.iter().map(explained_row).collect();
        out.print_table(&["SCORE", "NAME", "MATCHED", "DESCRIPTION"], &rows)?;
    } else if out.is_terminal() {
        print_lines(&layout::ungrouped(shown, out.width()), out)?;
    } else {
        out.print_table(&["NAME", "DESCRIPTION"], &table_rows(shown))?;
    }
    let weaker = tools.len() - shown.len();
    if weaker > 0 {
        out.print_note(&format!("{weaker} weaker matches are not shown; `--json` has all of them"))?;
    }
    Ok(())
}

fn table_rows(tools: &[ToolReport]) -> Vec<Vec<String>> {
    tools.iter().map(|tool| vec![tool.name.clone(), layout::summary(tool)]).collect()
}

/// Returns a row with the score and the fields that matched.
fn explained_row(tool: &ToolReport) -> Vec<String> {
    let score = tool.found.as_ref().map_or_else(String::new, |found| format!("{:.3}", found.score));
    let fields = tool.found.as_ref().map_or_else(String::new, |found| found.fields.join(", "));
    vec![score, tool.name.clone(), fields, layout::summary(tool)]
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

fn listing_json(listing: &ToolsReport, with_cost: bool) -> Value {
    let mut json = missing_json(listing);
    json["tools"] = list_to_json(&listing.tools);
    if let Some(not_running) = &listing.not_running {
        json["not_running"] = json!(not_running);
    }
    if let Some(server) = &listing.server {
        json["server"] = server.to_json();
    }
    if with_cost {
        json["cost"] = layout::costs(&listing.tools).iter().map(ServerCost::to_json).collect();
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
    let failed = &listing.failed;
    match is_empty && !failed.is_empty() {
        true if failed.iter().all(FailureReport::is_config_problem) => ExitStatus::InvalidConfig,
        true => ExitStatus::Unreachable,
        false => ExitStatus::Success,
    }
}

/// Prints in one line which servers were not searched.
fn print_not_searched(listing: &ToolsReport, out: &mut Output) -> Result<()> {
    let failed = listing.failed.iter().filter_map(|failure| failure.server.clone());
    let missing: Vec<String> = failed.chain(listing.pending.iter().cloned()).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Ok(out.warn(&format!("not searched: {}", join_names(&missing)), Some("toolcrib tools"))?),
    }
}

/// Prints what is missing from the list, and why.
pub(super) fn print_warnings(listing: &ToolsReport, out: &mut Output) -> Result<()> {
    for error in &listing.failed {
        out.warn_on_one_line(&error.message, error.hint.as_deref())?;
    }
    if !listing.pending.is_empty() {
        let message =
            format!("not available yet, because they are still starting: {}", join_names(&listing.pending));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tools::SearchReport;

    #[test]
    fn row_shows_the_first_line_and_what_matched() {
        let fields = vec!["name".to_owned(), "summary".to_owned()];
        let tool = ToolReport {
            name: "git__git_log".to_owned(),
            description: Some("\n  Shows Commits.\nMore.".to_owned()),
            found: Some(SearchReport { score: 2.5, fields }),
            ..ToolReport::default()
        };
        assert_eq!(explained_row(&tool), ["2.500", "git__git_log", "name, summary", "Shows Commits."]);
    }

    #[test]
    fn query_is_encoded_in_the_path() {
        let args = ToolsArgs {
            query: Some("a & b".to_owned()),
            explain: false,
            cost: false,
            wait: true,
            no_wait: false,
            refresh: true,
        };
        assert_eq!(listing_path(&args), "/api/v1/tools?refresh=1&wait=1&q=a%20%26%20b");
        assert!(
            check_length(args.query.as_deref()).is_ok()
                && check_length(Some(&"é".repeat(MAX_QUERY_CHARS + 1))).is_err()
        );
        let args = ToolsArgs { query: None, wait: false, refresh: false, ..args };
        assert_eq!(listing_path(&args), "/api/v1/tools");
    }
}
