//! Tests of what is observed, and of the export to a collector.

use std::time::{Duration, SystemTime};

use toolcrib::{
    CallClient, CallEnd, CallId, CallRecord, CallTiming, Caller, Decision, Era, ErrorKind, FailureClass,
};

use super::*;

/// A call of `git.log` that took 3 ms.
pub(super) fn call_record() -> CallRecord {
    CallRecord {
        id: CallId::from_number(0x19a_8c3f),
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        caller: Caller::new("ada"),
        client: CallClient { key: 1, name: None, era: Era::Session },
        method: "tools/call".into(),
        server: Some("git".parse().unwrap()),
        name: "log".into(),
        decision: Decision::Allowed,
        denial: None,
        cache: None,
        request_bytes: 10,
        response_bytes: 20,
        end: CallEnd::Done,
        duration: Duration::from_millis(3),
        timing: CallTiming { server: Duration::from_millis(2), ..CallTiming::default() },
        attempts: 1,
        approval: None,
        spans: None,
        arguments: None,
    }
}

fn text(telemetry: &Telemetry) -> String {
    TextFormat::Prometheus.format(&telemetry.families())
}

#[test]
fn calls_are_counted_by_outcome_and_rule() {
    let telemetry = Telemetry::new(true, None);
    telemetry.call_ended(&call_record());
    let denial = toolcrib::Denial { rule: "policy.deny: git.*".into(), origin: None };
    let denied = CallEnd::Failed(ErrorKind::Denied);
    let decision = Decision::Denied;
    telemetry.call_ended(&CallRecord {
        end: denied,
        decision,
        denial: Some(denial),
        attempts: 0,
        ..call_record()
    });
    telemetry.call_ended(&CallRecord {
        end: CallEnd::Failed(ErrorKind::OverQuota),
        attempts: 0,
        ..call_record()
    });
    let shown = text(&telemetry);
    for line in [
        r#"mcp_server_operation_duration_seconds_count{mcp_method_name="tools/call",gen_ai_tool_name="log",server="git"} 1"#,
        r#"mcp_client_operation_duration_seconds_sum{mcp_method_name="tools/call",gen_ai_tool_name="log",server="git"} 0.002"#,
        r#"toolcrib_queue_wait_seconds_bucket{server="git",le="0.001"} 1"#,
        r#"toolcrib_calls_total{mcp_method_name="tools/call",gen_ai_tool_name="log",server="git",caller="ada",outcome="ok"} 1"#,
        r#"toolcrib_calls_total{mcp_method_name="tools/call",gen_ai_tool_name="log",server="git",error_type="denied",caller="ada",outcome="denied"} 1"#,
        r#"toolcrib_request_bytes_total{mcp_method_name="tools/call",gen_ai_tool_name="log",server="git"} 30"#,
        r#"toolcrib_limit_refusals_total{server="git",caller="ada",error_type="over_quota"} 1"#,
        r#"toolcrib_policy_decisions_total{decision="allowed"} 2"#,
        r#"toolcrib_policy_decisions_total{decision="denied",rule="policy.deny: git.*"} 1"#,
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
    assert!(!shown.contains("dropped"), "spans are not exported");
}

#[test]
fn incidents_and_reloads_are_counted() {
    let telemetry = Telemetry::new(true, None);
    let server: toolcrib::ServerId = "git".parse().unwrap();
    let crashed = Event::Crashed { server: server.clone(), class: FailureClass::Hung, reason: String::new() };
    telemetry.server_event(&crashed);
    telemetry.server_event(&crashed);
    telemetry.server_event(&Event::Tripped { server });
    telemetry.record_reload(true);
    telemetry.record_reload(false);
    let shown = text(&telemetry);
    for line in [
        r#"toolcrib_server_restarts_total{server="git",reason="hung"} 2"#,
        r#"toolcrib_breaker_transitions_total{server="git",state="open"} 1"#,
        r#"toolcrib_config_reloads_total{result="ok"} 1"#,
        r#"toolcrib_config_reloads_total{result="error"} 1"#,
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
}

#[test]
fn switched_off_metrics_count_nothing() {
    let telemetry = Telemetry::new(false, None);
    assert!(!telemetry.is_enabled() && !telemetry.traces_calls());
    assert_eq!(telemetry.start_spans(None), None);
    telemetry.call_ended(&call_record());
    assert!(!text(&telemetry).contains("toolcrib_calls_total"));
}
