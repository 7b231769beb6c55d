//! JSON forms and what they are read back as.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::model::call_id::CallId;
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::model::error::ErrorKind;
use crate::model::event::{CacheUse, CallClient, CallEnd, CallRecord, CallTiming, Decision, Event};
use crate::model::failure_class::FailureClass;
use crate::model::pin_status::{PinStatus, ToolPinStatus};
use crate::protocol::versions::{Era, Revision};
use crate::spec::template::TemplateText;
use crate::spec::{
    CommandSpec, EraChoice, HttpSpec, KeepAlive, Lifecycle, Pinning, ServerCard, ServerLimits, ServerSpec,
    Sharing, StartPolicy, ToolsSpec, TransportKind, Trust,
};
use crate::upstream::transport::in_process::Toolbox;

fn full_spec() -> ServerSpec {
    let mut command = CommandSpec::new("uvx").arg("mcp-server-git").arg("${not a reference").cwd("/src");
    let written = "Bearer ${secret:git} ${env:A} ${env:B:-c} ${file:/etc/token}";
    command.env.insert("TOKEN".into(), TemplateText::parse(written, Path::new("/")).unwrap());
    let tools = ToolsSpec {
        idempotent: vec!["get_*".parse().unwrap()],
        call_timeout: vec![("slow".parse().unwrap(), Duration::from_millis(1500))],
        rename: [("a".to_owned(), "b".to_owned())].into(),
        check_arguments: true,
        ..ToolsSpec::default()
    };
    let lifecycle =
        Lifecycle { start: StartPolicy::AtBoot, keep_alive: KeepAlive::Forever, ..Lifecycle::default() };
    let limits =
        ServerLimits { gateway_call_timeout_max: Some(Duration::from_secs(9)), ..ServerLimits::default() };
    ServerSpec::command("git".parse().unwrap(), command)
        .lifecycle(lifecycle)
        .limits(limits)
        .tools(tools)
        .trust(Trust::Trusted)
        .pin(Pinning::Strict)
        .sharing(Sharing::PerProject)
        .era(EraChoice::Revision(Revision::V2025_06_18))
        .card(ServerCard::new().title("Git").tag("code").tool(&json!({"name": "log"})).unwrap())
}

fn read_back(spec: &ServerSpec) -> ServerSpec {
    serde_json::from_value(serde_json::to_value(spec).unwrap()).unwrap()
}

#[test]
fn spec_is_read_back_as_it_was() {
    let http = HttpSpec::new("https://example.test/mcp").header("X-A", "b").transport(TransportKind::Sse);
    let remote = ServerSpec::http("remote".parse().unwrap(), http).era(EraChoice::Era(Era::Session));
    for spec in [full_spec(), remote] {
        assert_eq!(read_back(&spec), spec);
        assert_eq!(read_back(&spec).digest(), spec.digest());
    }
}

#[test]
fn name_and_endpoint_are_enough_for_a_spec() {
    let written = json!({"id": "git", "endpoint": {"command": {"program": "uvx", "args": ["${secret:x}"]}}});
    let spec: ServerSpec = serde_json::from_value(written).unwrap();
    let mut command = CommandSpec::new("uvx");
    command.args.push(TemplateText::parse("${secret:x}", Path::new("/")).unwrap());
    assert_eq!(spec, ServerSpec::command("git".parse().unwrap(), command));
}

#[test]
fn invalid_specs_are_refused_with_the_reason() {
    let command = json!({"command": {"program": "x"}});
    for (written, reason) in [
        (json!({"id": "Not Valid", "endpoint": command}), "a name contains only"),
        (json!({"id": "a", "endpoint": command, "limit": {}}), "unknown field `limit`"),
        (json!({"id": "a", "endpoint": {"command": {"program": "${x"}}}), "not closed"),
        (json!({"id": "a", "endpoint": command, "era": "2020-01-01"}), "not an era"),
        (json!({"id": "a", "endpoint": command, "lifecycle": {"start_timeout": -1.0}}), "negative"),
        (
            json!({"id": "a", "endpoint": command, "lifecycle": {"keep_alive": "5m"}}),
            "not a number of seconds",
        ),
    ] {
        let error = serde_json::from_value::<ServerSpec>(written.clone()).unwrap_err().to_string();
        assert!(error.contains(reason), "{written}: {error}");
    }
}

#[test]
fn server_in_this_process_cannot_be_serialized() {
    let spec = ServerSpec::in_process("house".parse().unwrap(), Toolbox::new());
    assert!(serde_json::to_value(&spec).is_err());
}

fn event_json(event: &Event) -> Value {
    serde_json::to_value(event).unwrap()
}

#[test]
fn events_have_their_kind_and_members() {
    let server = "git".parse().unwrap();
    let paused = Event::Paused {
        server,
        class: FailureClass::RateLimited,
        reason: "slow down".to_owned(),
        retry_in: Duration::from_millis(1500),
    };
    assert_eq!(
        event_json(&paused),
        json!({"event": "paused", "server": "git", "class": "rate_limited", "reason": "slow down", "retry_in": 1.5})
    );
    let tools = vec![ToolPinStatus::new("log", PinStatus::New)];
    let unapproved = Event::Unapproved { server: "git".parse().unwrap(), tools, withheld: true };
    assert_eq!(
        event_json(&unapproved),
        json!({"event": "unapproved", "server": "git", "tools": [{"tool": "log", "change": "new"}], "withheld": true})
    );
}

#[test]
fn ended_call_has_the_members_of_an_audit_line() {
    let record = CallRecord {
        id: CallId::from_number(1),
        at: SystemTime::UNIX_EPOCH,
        caller: Caller::new("ada"),
        client: CallClient { key: 1, name: Some("ide".into()), era: Era::Session },
        method: "tools/call".into(),
        server: Some("git".parse().unwrap()),
        name: "log".into(),
        decision: Decision::Denied,
        denial: Some(Denial { rule: "deny".to_owned(), origin: None }),
        cache: Some(CacheUse::Miss),
        request_bytes: 2,
        response_bytes: 0,
        end: CallEnd::Failed(ErrorKind::Denied),
        duration: Duration::from_millis(3),
        timing: CallTiming::default(),
        attempts: 0,
        approval: None,
        arguments: Some(r#"{"a":1.0}"#.into()),
    };
    let expected = json!({
        "event": "call_ended", "at": "1970-01-01T00:00:00.000Z", "id": "0000000000000001", "caller": "ada", "method": "tools/call",
        "server": "git", "name": "log", "decision": "denied", "rule": "deny", "cache": "miss", "outcome": "denied",
        "ms": 3.0, "asked": 2, "answered": 0, "arguments": {"a": 1.0},
    });
    assert_eq!(event_json(&Event::CallEnded(Arc::new(record))), expected);
}
