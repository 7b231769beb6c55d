//! Compares the reports with `docs/openapi.json`.

use std::fs;

use super::super::approvals::{
    ApprovedToolsReport, PendingCallReport, PendingCallsReport, UnapprovedToolsReport,
};
use super::super::calls::{CallReport, CallsReport};
use super::super::clients::ClientsReport;
use super::super::events::{EVENT_KINDS, EventReport};
use super::super::secrets::SecretsReport;
use super::super::stats::{HISTOGRAM_BOUNDS, StatsReport};
use super::*;

/// Reads the document.
pub(crate) fn document() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns a value with every member that a schema has.
fn example(document: &Value, schema: &Value) -> Value {
    if let Some(name) = schema["$ref"].as_str() {
        return example(document, document.pointer(name.trim_start_matches('#')).unwrap());
    }
    if let Some(first) = schema["anyOf"].get(0) {
        return example(document, first);
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind {
        Some("string") => json!("x"),
        Some("integer") => json!(7),
        Some("number") => json!(1.5),
        Some("boolean") => json!(true),
        Some("array") => json!([example(document, &schema["items"])]),
        Some("object") => {
            let members = schema["properties"].as_object().into_iter().flatten();
            members.map(|(name, schema)| (name.clone(), example(document, schema))).collect()
        }
        Some(kind) => panic!("unknown type {kind}"),
        None => json!({"any": ["thing"]}),
    }
}

/// Asserts that a report has exactly the members of its schema.
fn assert_documented<R: Report>(document: &Value, schema: &str) {
    let schema = &document["components"]["schemas"][schema];
    assert!(schema.is_object());
    let mut expected = example(document, schema);
    // Not read back, because it is constant.
    if !expected["histogram_bounds_ms"].is_null() {
        expected["histogram_bounds_ms"] = json!(HISTOGRAM_BOUNDS);
    }
    assert_eq!(R::from_json(&expected).to_json(), expected);
}

#[test]
fn every_member_is_documented_and_every_documented_member_exists() {
    let document = document();
    assert_documented::<GatewayReport>(&document, "Status");
    assert_documented::<ServerReport>(&document, "Server");
    assert_documented::<ToolsReport>(&document, "Tools");
    assert_documented::<ToolLookupReport>(&document, "ToolLookup");
    assert_documented::<LogLineReport>(&document, "LogLine");
    assert_documented::<ReloadReport>(&document, "Reload");
    assert_documented::<UnapprovedToolsReport>(&document, "UnapprovedTools");
    assert_documented::<ApprovedToolsReport>(&document, "ApprovedTools");
    assert_documented::<PendingCallsReport>(&document, "PendingCalls");
    assert_documented::<PendingCallReport>(&document, "PendingCall");
    assert_documented::<CallsReport>(&document, "Calls");
    assert_documented::<CallReport>(&document, "Call");
    assert_documented::<EventReport>(&document, "Event");
    assert_documented::<StatsReport>(&document, "Stats");
    assert_documented::<ClientsReport>(&document, "Clients");
    assert_documented::<SecretsReport>(&document, "Secrets");
    let kinds = &document["components"]["schemas"]["Event"]["properties"]["kind"]["enum"];
    assert_eq!(*kinds, json!(EVENT_KINDS));
}
