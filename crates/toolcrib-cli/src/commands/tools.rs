//! `toolcrib tools [QUERY]`: lists tools.

use anyhow::Result;
use toolcrib::Caller;

use crate::cli::ToolsArgs;
use crate::client::GatewayClient;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::Report as _;
use crate::report::tools::{ToolReport, ToolsReport, UnapprovedCount};
use crate::tool_listing;

/// Lists the tools of the running gateway. Without one, starts the servers itself.
pub(crate) async fn run(args: &ToolsArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let listing = match GatewayClient::find(paths).await? {
        Some(client) => super::until_interrupted(client.fetch("/api/v1/tools")).await?.transpose()?,
        None => {
            let listing = super::run_standalone(paths, out, super::StartWait::All, async |crib| {
                tool_listing::list_tools(&crib, &Caller::local()).await
            })
            .await?;
            listing.map(|listing| with_standalone_hints(listing, paths))
        }
    };
    match listing {
        Some(listing) => print_listing(&listing, args.query.as_deref(), out),
        None => Ok(ExitStatus::Interrupted),
    }
}

fn with_standalone_hints(mut listing: ToolsReport, paths: &Paths) -> ToolsReport {
    for error in &mut listing.failed {
        let server = error.server.as_deref();
        error.hint = error.hint.as_deref().map(|hint| super::standalone_hint(hint, server, paths));
    }
    listing
}

fn print_listing(listing: &ToolsReport, query: Option<&str>, out: &mut Output) -> Result<ExitStatus> {
    let ToolsReport { tools, failed, unapproved } = listing;
    let is_match = |tool: &&ToolReport| query.is_none_or(|query| matches(tool, query));
    let matching: Vec<&ToolReport> = tools.iter().filter(is_match).collect();
    if out.json {
        out.print_json(&matching.iter().map(|tool| tool.to_json()).collect())?;
    } else {
        let rows: Vec<Vec<String>> = matching.iter().map(|tool| table_row(tool)).collect();
        out.print_table(&["NAME", "DESCRIPTION"], &rows)?;
    }
    for error in failed {
        out.warn(&error.message, error.hint.as_deref())?;
    }
    for count in unapproved {
        out.warn(&unapproved_warning(count), Some(&format!("toolcrib approve {}", count.server)))?;
    }
    if matching.is_empty() && failed.is_empty() {
        out.print_note(match query {
            Some(_) => "no tool matches",
            None => "no tools found",
        })?;
    }
    Ok(if tools.is_empty() && !failed.is_empty() { ExitStatus::Unreachable } else { ExitStatus::Success })
}

fn unapproved_warning(count: &UnapprovedCount) -> String {
    let UnapprovedCount { server, tools, withheld } = count;
    let consequence = if *withheld { " (withheld)" } else { "" };
    match tools {
        1 => format!("1 tool of `{server}` differs from what was approved{consequence}"),
        _ => format!("{tools} tools of `{server}` differ from what was approved{consequence}"),
    }
}

fn matches(tool: &ToolReport, query: &str) -> bool {
    let query = query.to_lowercase();
    let mut texts = [&tool.name, &tool.tool].into_iter().chain(&tool.description);
    texts.any(|text| text.to_lowercase().contains(&query))
}

fn table_row(tool: &ToolReport) -> Vec<String> {
    let description = tool.description.as_deref().unwrap_or_default();
    let summary = description.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let change = tool.change.as_ref().map_or_else(String::new, |change| format!("[{change}] "));
    vec![tool.name.clone(), change + &summary.replace('\t', " ")]
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
        assert!(matches(&tool, "GIT_l") && matches(&tool, "commit"));
        assert!(!matches(&tool, "push"));
        assert_eq!(table_row(&tool), ["git__git_log", "Shows Commits."]);
        let changed = ToolReport { change: Some("changed".to_owned()), ..tool };
        assert_eq!(table_row(&changed), ["git__git_log", "[changed] Shows Commits."]);
    }
}
