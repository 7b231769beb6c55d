//! Short descriptions of tools for people who browse many of them: one line each, without definitions.

use serde_json::{Value, json};
use toolcrib::access::expose::estimate_tokens;
use toolcrib::{Caller, Crib, FirstListingWait, PinStatus, SearchHit, Tool};
use toolcrib_serve::query_value;

use crate::report::Report as _;
use crate::report::tools::FailureReport;

/// Tools that are returned if the request does not say how many.
const DEFAULT_LIMIT: usize = 100;

/// The tools that a request asks for.
struct SummaryQuery {
    /// What the tools should do; all tools if it is empty.
    text: String,
    /// The only server whose tools are returned.
    server: Option<String>,
    limit: usize,
}

impl SummaryQuery {
    fn new(query: Option<&str>) -> Self {
        Self {
            text: query_value(query, "q").unwrap_or_default().trim().to_owned(),
            server: query_value(query, "server").filter(|server| !server.is_empty()),
            limit: query_value(query, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(DEFAULT_LIMIT),
        }
    }

    fn includes(&self, tool: &Tool) -> bool {
        self.server.as_ref().is_none_or(|server| tool.server.as_str() == server)
    }
}

/// Lists tools that a caller sees, at most `limit` of them; with `q`, those that match, best first. The totals are those of all.
pub(super) async fn list(crib: &Crib, caller: &Caller, query: Option<&str>) -> Value {
    let query = SummaryQuery::new(query);
    let mut tools = Vec::new();
    let mut failed = Vec::new();
    let mut pending = Vec::new();
    let wait = FirstListingWait::at_most(crib.listing_wait());
    for discovery in crib.discover_within_for(caller, wait).await {
        match discovery.tools {
            Ok(found) => tools.extend(found.into_iter().filter(|tool| query.includes(tool))),
            Err(_) if discovery.is_pending => pending.push(discovery.server.to_string()),
            Err(error) => failed.push(FailureReport::new(&error.with_server(&discovery.server)).to_json()),
        }
    }
    if query.text.is_empty() {
        let total_tokens: usize = tools.iter().map(token_count).sum();
        let shown: Vec<Value> = tools.iter().take(query.limit).map(summary).collect();
        return json!({"tools": shown, "total": tools.len(), "total_tokens": total_tokens, "failed": failed, "pending": pending});
    }
    let hits = crib.search_for(caller, &query.text, usize::MAX).await;
    let hits: Vec<&SearchHit> = hits.iter().filter(|hit| query.includes(&hit.tool)).collect();
    let shown: Vec<Value> = hits.iter().take(query.limit).map(|hit| scored_summary(hit)).collect();
    json!({"tools": shown, "total": hits.len(), "total_tokens": null, "failed": failed, "pending": pending})
}

fn token_count(tool: &Tool) -> usize {
    estimate_tokens(tool.listed_bytes())
}

fn summary(tool: &Tool) -> Value {
    let description = tool.description().unwrap_or_default();
    json!({
        "name": tool.public_name.to_string(),
        "server": tool.server.as_str(),
        "tool": tool.own_name.to_string(),
        "description": description.lines().map(str::trim).find(|line| !line.is_empty()),
        "change": tool.pin_status.map(PinStatus::as_str),
        "tokens": token_count(tool),
    })
}

fn scored_summary(hit: &SearchHit) -> Value {
    let mut summary = summary(&hit.tool);
    // Scores are shown with three digits; more would suggest a precision that they do not have.
    summary["score"] = json!((f64::from(hit.score) * 1000.0).round() / 1000.0);
    summary
}
