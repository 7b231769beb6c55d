//! Tests of the JSON forms.

pub(crate) mod openapi;

use std::time::{Duration, SystemTime};

use toolcrib::{
    Era, ErrorKind, FailureClass, Hint, InstanceKey, InstanceStatus, LastError, ListKind, ListingError,
    PinStatus, Pinning, Revision, ServerState, ServerStatus, Sharing, StartPolicy, ToolPinStatus,
};

use crate::hints::error_data;

use super::approvals::{PendingCallsReport, UnapprovedToolsReport};
use super::server::ServerReport;
use super::status::GatewayReport;
use super::tools::{FailureReport, ToolLookupReport, ToolsReport};
use super::*;

fn ejected_server() -> ServerStatus {
    ServerStatus {
        server: "git".parse().unwrap(),
        transport: "stdio",
        state: ServerState::Ejected,
        pid: None,
        uptime: None,
        generation: 6,
        leases: 0,
        in_flight: 0,
        restarts: 5,
        restarts_left: 0,
        consecutive_failures: 0,
        next_attempt_in: Some(Duration::from_millis(1500)),
        last_error: None,
        stderr_tail: vec!["boom".to_owned()],
        garbage_lines: 0,
        cache_entries: 2,
        cache_hits: 0,
        cache_misses: 0,
        tools: None,
        memory: None,
        cpu_time: None,
        queued: 0,
        calls: 0,
        errors: 0,
        p50: None,
        p99: None,
        start: StartPolicy::OnDemand,
        protocol: None,
        eras: Vec::new(),
        server_info: None,
        card: None,
        pin: Pinning::Strict,
        unapproved: vec![ToolPinStatus::new("log", PinStatus::Changed)],
        problems: vec!["tool `log`: `title` has a wrong type".to_owned()],
        listing_errors: vec![ListingError::new(
            ListKind::Prompts,
            &r#"{"code":-32603,"message":"no","data":{"a":1}}"#.into(),
        )],
        sharing: Sharing::PerClient,
        asks: None,
        instances: Vec::new(),
    }
}

/// A server with a value for most members.
fn ready_server() -> ServerStatus {
    let mut status = ServerStatus {
        state: ServerState::Tripped,
        pid: Some(42),
        uptime: Some(Duration::from_millis(2500)),
        leases: 1,
        tools: Some(3),
        cpu_time: Some(Duration::from_millis(1250)),
        p50: Some(Duration::from_millis(500)),
        start: StartPolicy::AtBoot,
        protocol: Some(Revision::V2025_11_25),
        eras: vec![Era::Session],
        server_info: Some(r#"{"name":"git","version":"1"}"#.into()),
        ..ejected_server()
    };
    let mut last_error = LastError::new(ErrorKind::Lost, "it exited", "look", SystemTime::UNIX_EPOCH);
    last_error.class = Some(FailureClass::Crashed);
    status.last_error = Some(last_error);
    let key = InstanceKey::Client { number: 7, capabilities: "{}".into() };
    status.instances.push(InstanceStatus::new(key, Duration::from_millis(250), ejected_server()));
    status
}

#[test]
fn server_report_has_exactly_the_documented_members() {
    let report = ServerReport::new(&ejected_server(), None, 3).to_json();
    let names = "name transport state pid uptime generation leases in_flight restarts restarts_left \
        consecutive_failures breaker ejected next_attempt_in last_error class stderr_tail cache_entries cache_hits \
        cache_misses tools memory memory_bytes cpu_seconds calls errors p50 p99 start pin unapproved problems listing_errors sharing asks instances instances_list \
        revision era protocol_version server_info title description card_tags login";
    let members = report.as_object().unwrap();
    assert!(names.split_whitespace().all(|name| members.contains_key(name)), "{report}");
    assert_eq!(members.len(), names.split_whitespace().count());
    assert_eq!(report["unapproved"], json!([{"tool": "log", "change": "changed"}]));
    assert_eq!((&report["ejected"], &report["next_attempt_in"]), (&json!(true), &json!(1.5)));
}

#[test]
fn missing_secret_is_not_a_missing_login() {
    let login = |hint: Hint| {
        let mut error = LastError::new(ErrorKind::AuthNeeded, "refused", hint, SystemTime::UNIX_EPOCH);
        error.class = Some(FailureClass::NeedsAuth);
        let status = ServerStatus { last_error: Some(error), ..ejected_server() };
        ServerReport::new(&status, None, 3).login
    };
    assert_eq!(login(Hint::SetSecret { name: "key".to_owned() }), "none");
    assert_eq!(login(Hint::CheckSecrets), "none");
    assert_eq!(login(Hint::Login { server: "git".parse().unwrap() }), "needed");
}

#[test]
fn server_report_has_the_values_of_the_status() {
    let last_error =
        || json!({"code": "lost", "message": "it exited", "hint": "look", "at": "1970-01-01T00:00:00.000Z"});
    let status = ready_server();
    let instance = json!({
        "key": "client 7", "state": "ejected", "pid": null, "uptime": null, "asked": 0.25, "generation": 6, "leases": 0,
        "in_flight": 0, "restarts": 5, "restarts_left": 0, "breaker": "closed", "next_attempt_in": 1.5,
        "last_error": null, "calls": 0, "errors": 0,
    });
    let expected = json!({
        "name": "git", "transport": "stdio", "state": "tripped", "pid": 42, "uptime": 2.5, "generation": 6, "leases": 1,
        "in_flight": 0, "restarts": 5, "restarts_left": 0, "consecutive_failures": 0, "breaker": "open", "ejected": false,
        "next_attempt_in": 1.5, "last_error": last_error(), "class": "crashed", "stderr_tail": ["boom"],
        "cache_entries": 2, "cache_hits": 0, "cache_misses": 0, "tools": 3, "memory": null,
        "memory_bytes": null, "cpu_seconds": 1.25, "calls": 0, "errors": 0,
        "p50": 0.5, "p99": null, "start": "at-boot", "pin": "strict", "unapproved": [{"tool": "log", "change": "changed"}],
        "problems": ["tool `log`: `title` has a wrong type"],
        "listing_errors": [{"list": "prompts/list", "code": -32603, "message": "no", "data": {"a": 1}}],
        "sharing": "per-client", "asks": null, "instances": 0,
        "instances_list": [instance], "revision": 3, "era": "legacy", "protocol_version": "2025-11-25",
        "server_info": {"name": "git", "version": "1"}, "title": null, "description": null, "card_tags": [], "login": "none",
    });
    assert_eq!(ServerReport::new(&status, None, 3).to_json(), expected);
    let both = ServerStatus { eras: vec![Era::Session, Era::Stateless], ..ready_server() };
    assert_eq!(ServerReport::new(&both, None, 3).to_json()["era"], json!(["legacy", "modern"]));
}

/// Asserts that a report keeps every member of its JSON form.
fn assert_round_trip<R: Report>(value: &Value) {
    assert_eq!(R::from_json(value).to_json(), *value);
}

#[test]
fn reports_keep_every_member() {
    let error = json!({"code": "lost", "message": "m", "hint": "h", "at": "2026-01-01T00:00:00.000Z"});
    let instance = json!({
        "key": "client 1", "state": "ready", "pid": 7, "uptime": 1.5, "asked": 0.25, "generation": 1, "leases": 2,
        "in_flight": 3, "restarts": 4, "restarts_left": 5, "breaker": "closed", "next_attempt_in": 2.0,
        "last_error": error, "calls": 6, "errors": 7,
    });
    let mut server = ServerReport::new(&ejected_server(), None, 3).to_json();
    assert_round_trip::<ServerReport>(&server);
    server["last_error"] = error;
    server["instances_list"] = json!([instance]);
    server["server_info"] = json!({"name": "git", "version": "1"});
    for (name, value) in [("pid", json!(9)), ("tools", json!(4)), ("memory", json!(1_u64 << 40))] {
        server[name] = value;
    }
    server["memory_bytes"] = server["memory"].clone();
    for name in ["uptime", "cpu_seconds", "p50", "p99"] {
        server[name] = json!(0.125);
    }
    for name in ["class", "era", "protocol_version"] {
        server[name] = json!("x");
    }
    assert_round_trip::<ServerReport>(&server);
    server["era"] = json!(["legacy", "modern"]);
    let problem = json!({"file": "f", "line": 1, "column": 2, "server": "git", "message": "m", "hint": null});
    let limit = json!({"caller": "a", "limit": "l", "calls": 5, "per": 60.0, "left": 0, "room_in": 1.5});
    let client = json!({
        "name": "codex", "caller": "a", "profile": "p", "expose": "search", "listed_ago": 1.5, "tools_shown": 3, "tokens_shown": 7,
        "instruction_tokens": 2, "servers": [{"server": null, "tools": 3, "tokens": 7}],
    });
    assert_round_trip::<GatewayReport>(&json!({
        "clients": [client],
        "version": "0.1.0", "pid": 1, "uptime": 3.5, "servers": [server], "quota": [limit],
        "config": {"file": "f", "generation": 2, "problems": [problem]},
        "store": {"url": "valkey://h:1", "state": "down", "error": "e", "since": 1.5, "address": "http://h:7717"},
    }));
    assert_round_trip::<ReloadReport>(
        &json!({"generation": 2, "added": ["a"], "removed": [], "changed": ["b"], "restart_needed": true}),
    );
    assert_round_trip::<Vec<LogLineReport>>(&json!([
        {"seq": 1, "at": "2026-05-01T12:00:00.000Z", "line": "x"},
        {"seq": null, "at": "", "line": "y"},
    ]));
}

#[test]
fn tool_reports_keep_every_member() {
    let tool = json!({
        "name": "git__log", "server": "git", "tool": "log", "description": null, "change": "new",
        "tokens": 9,
        "definition": {"name": "log", "x": [1, 2.5]},
    });
    let failed = json!({"kind": "lost", "hint": "h", "sent": "never", "server": "b", "message": "m", "code": "lost", "stderr": ["x"]});
    let unapproved = json!({"server": "git", "tools": 2, "withheld": true});
    assert_round_trip::<ToolsReport>(
        &json!({"tools": [tool], "failed": [failed], "pending": ["c"], "unapproved": [unapproved]}),
    );
    assert_round_trip::<ToolLookupReport>(&json!({"tools": [tool], "failed": [], "near": null}));
    assert_round_trip::<ToolLookupReport>(&json!({"tools": [], "failed": [failed], "near": "git__log"}));
    let call = json!({"id": "1", "caller": "a", "server": "git", "name": "log", "arguments": "{}"});
    assert_round_trip::<PendingCallsReport>(&json!({"calls": [call]}));
    let changed = json!({"tool": "log", "change": "changed", "before": {"a": 1}, "now": {"a": 2}});
    let new = json!({"tool": "log", "change": "new", "before": null, "now": {"a": 2}});
    assert_round_trip::<UnapprovedToolsReport>(&json!({"seal": "s", "tools": [changed, new]}));
}

#[test]
fn failure_report_has_the_data_and_the_message_of_the_error() {
    let error = toolcrib::Error::new(ErrorKind::Unrecorded, "the disk is full");
    let mut expected = error_data(&error);
    expected["message"] = error.to_string().into();
    expected["code"] = "unrecorded".into();
    assert_eq!(FailureReport::new(&error).to_json(), expected);
}

#[test]
fn report_of_another_version_is_readable() {
    let server = ServerReport::from_json(&json!({"name": "git", "state": 5, "added_later": true}));
    assert_eq!(server, ServerReport { name: "git".to_owned(), ..ServerReport::default() });
}
