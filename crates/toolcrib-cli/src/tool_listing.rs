//! Lists and finds tools for `tools`, `call` and the admin API.

use std::time::Duration;

use toolcrib::catalog::public_name::SEPARATOR;
use toolcrib::{
    Caller, Crib, Discovery, Error, FirstListingWait, KeepAlive, Selector, ServerId, ServerSpec, Tool,
};

use crate::report::tools::{FailureReport, ServerStateReport, ToolReport, ToolsReport, UnapprovedCount};

/// The servers that a list of tools waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolsWait {
    /// Every server, until it has been listed or has failed.
    All,
    /// Every server, as long as a person does. Those that are still starting then are reported as pending.
    Patient,
    /// Those that are listed quickly. The others are reported as pending.
    Brief,
}

impl ToolsWait {
    /// Returns the time limits of the wait; `None` if it has none.
    fn limits(self, crib: &Crib) -> Option<FirstListingWait> {
        match self {
            Self::All => None,
            Self::Patient => Some(FirstListingWait::PATIENT),
            Self::Brief => Some(FirstListingWait::at_most(crib.listing_wait())),
        }
    }
}

/// What `tools` is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolsQuery<'a> {
    /// A server, a tool, or words to search for; everything if it is empty.
    pub(crate) text: &'a str,
    pub(crate) wait: ToolsWait,
    /// Whether running servers are asked for their lists.
    pub(crate) refreshes: bool,
}

/// Lists the tools that a query asks for. A server or one of its tools needs only that server.
pub(crate) async fn query_tools(crib: &Crib, caller: &Caller, query: ToolsQuery<'_>) -> ToolsReport {
    let text = query.text.trim();
    let not_running = match query.refreshes {
        true => Some(crib.refresh_for(caller).await.iter().map(ToString::to_string).collect()),
        false => None,
    };
    let named = find_server(crib, text);
    let report = match &named {
        Some(server) => {
            let discovery = crib.discover_server_for(server, caller, query.wait.limits(crib)).await;
            report_discoveries(crib, discovery)
        }
        None => list_tools(crib, caller, query.wait).await,
    };
    let report = match &named {
        Some(server) if server.as_str() == text => ToolsReport { server: state_of(crib, server), ..report },
        _ => search_tools(crib, caller, report, text).await,
    };
    ToolsReport { not_running, ..report }
}

/// Returns the declared server that a query names, alone or before the name of a tool.
fn find_server(crib: &Crib, text: &str) -> Option<ServerId> {
    let prefixes = [".", SEPARATOR].map(|separator| text.split_once(separator).map(|(server, _)| server));
    let names = std::iter::once(Some(text)).chain(prefixes).flatten();
    names.filter_map(|name| name.parse().ok()).find(|server| crib.contains(server))
}

fn state_of(crib: &Crib, server: &ServerId) -> Option<ServerStateReport> {
    let status = crib.status().into_iter().find(|status| status.server == *server)?;
    Some(ServerStateReport { name: server.to_string(), state: status.state.as_str().to_owned() })
}

/// Lists every server that the caller may see.
pub(crate) async fn list_tools(crib: &Crib, caller: &Caller, wait: ToolsWait) -> ToolsReport {
    let discoveries = match wait.limits(crib) {
        None => crib.discover_for(caller).await,
        Some(limits) => crib.discover_within_for(caller, limits).await,
    };
    report_discoveries(crib, discoveries)
}

fn report_discoveries(crib: &Crib, discoveries: impl IntoIterator<Item = Discovery>) -> ToolsReport {
    let mut report = ToolsReport::default();
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
async fn search_tools(crib: &Crib, caller: &Caller, report: ToolsReport, query: &str) -> ToolsReport {
    if query.is_empty() {
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
        spec.sharing.is_shared() && spec.lifecycle.keep_alive != KeepAlive::For(Duration::ZERO)
    };
    match crib.spec(&tool.server).is_some_and(stays_up) {
        true => crib.start(&tool.server).await,
        false => Ok(()),
    }
}
