//! Lists and finds tools for `tools`, `call` and the admin API.

use std::time::Duration;

use toolcrib::{Caller, Crib, Error, KeepAlive, Selector, ServerSpec, Sharing, Tool};

use crate::report::tools::{FailureReport, ToolReport, ToolsReport, UnapprovedCount};

/// The servers that a list of tools waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolsWait {
    /// Every server, until it has been listed or has failed.
    All,
    /// Those that are listed quickly. The others are reported as pending.
    Brief,
}

/// Asks the running servers for their lists, then lists every server that the caller may see.
pub(crate) async fn refresh_tools(crib: &Crib, caller: &Caller, wait: ToolsWait) -> ToolsReport {
    let not_running = crib.refresh_for(caller).await;
    let report = list_tools(crib, caller, wait).await;
    ToolsReport { not_running: Some(not_running.iter().map(ToString::to_string).collect()), ..report }
}

/// Lists every server that the caller may see.
pub(crate) async fn list_tools(crib: &Crib, caller: &Caller, wait: ToolsWait) -> ToolsReport {
    let mut report = ToolsReport::default();
    let discoveries = match wait {
        ToolsWait::All => crib.discover_for(caller).await,
        ToolsWait::Brief => crib.discover_briefly_for(caller).await,
    };
    for discovery in discoveries {
        match discovery.tools {
            Ok(tools) => {
                report.tools.extend(tools.iter().map(ToolReport::new));
                report.failed.extend(discovery.listing_error.as_ref().map(FailureReport::new));
            }
            Err(_) if discovery.is_pending => report.pending.push(discovery.server.to_string()),
            Err(error) => report.failed.push(FailureReport::new(&error.with_server(&discovery.server))),
        }
    }
    report.unapproved = crib.status().iter().filter_map(UnapprovedCount::new).collect();
    report
}

/// Keeps the tool with this name, or else the tools that match a query, best first. An empty query keeps all tools.
pub(crate) async fn search_tools(
    crib: &Crib,
    caller: &Caller,
    report: ToolsReport,
    query: &str,
) -> ToolsReport {
    if query.trim().is_empty() {
        return report;
    }
    if let Some(tool) = find_exact(&report.tools, query) {
        return ToolsReport { tools: vec![tool.clone()], ..report };
    }
    let hits = crib.search_for(caller, query, usize::MAX).await;
    let mut tools: Vec<ToolReport> = hits.iter().map(ToolReport::from_hit).collect();
    // The sort is stable: tools with exactly this name come first, the others stay in the order of their scores.
    tools.sort_by_key(|tool| tool.tool != query);
    ToolsReport { tools, ..report }
}

/// Finds the tool with this public name, or as `server.tool`.
fn find_exact<'t>(tools: &'t [ToolReport], name: &str) -> Option<&'t ToolReport> {
    let on_server = name.split_once('.');
    let is_exact = |tool: &&ToolReport| {
        tool.name == name || on_server.is_some_and(|(server, own)| tool.server == server && tool.tool == own)
    };
    tools.iter().find(is_exact)
}

/// Finds the tool that a selector means. Servers that were never listed are listed if that can help.
///
/// Fails with the first failed start of such a server. Other errors are left to the call of the tool.
pub(crate) async fn find_tool(
    crib: &Crib,
    caller: &Caller,
    selector: &Selector,
) -> Result<Option<Tool>, Error> {
    let target = match crib.find_at_first_failure(caller, selector).await {
        Ok(target) => target,
        Err(error) if error.class().is_some() => return Err(error),
        Err(_) => return Ok(None),
    };
    let catalog = crib.catalog_for(caller);
    let mut tools = catalog.tools().iter();
    Ok(tools.find(|tool| tool.server == target.server && tool.own_name == target.name).cloned())
}

/// Starts the server of a tool unless it runs. Fails with the first failed start, where a call would wait for restarts. A
/// server that is not shared, or stops as soon as it is not used, is left to the call.
pub(crate) async fn start_server_of(crib: &Crib, tool: &Tool) -> Result<(), Error> {
    let stays_up = |spec: ServerSpec| {
        spec.sharing == Sharing::Shared && spec.lifecycle.keep_alive != KeepAlive::For(Duration::ZERO)
    };
    match crib.spec(&tool.server).is_some_and(stays_up) {
        true => crib.start(&tool.server).await,
        false => Ok(()),
    }
}
