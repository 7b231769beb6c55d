//! Quotas and call limits, with real servers behind the gateway.

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::gateway::GatewayProcess;
use test_support::http::{self, Response};
use test_support::wait_until;

use super::{ask, count_recorded, home, send};

const RECORD: &str = "fake__record";

fn record(gateway: &GatewayProcess, token: Option<&str>) -> Response {
    ask(gateway, "/mcp", token, "tools/call", &json!({"name": RECORD, "arguments": {"token": "recorded"}}))
}

fn status(gateway: &GatewayProcess, token: &str) -> Value {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str())];
    let answer = http::request(gateway.address, "GET", "/api/v1/status", &headers, b"");
    serde_json::from_str(&answer.text()).expect("a status")
}

#[test]
fn exhausted_quota_is_reported_with_its_rule_and_retry_time() {
    let callers = "[callers.ci]\ntoken = 'ci-Token'\nquota = { calls = 3, per = '1h' }\n\
        [callers.ci.limits.'fake.record']\nquota = { calls = 2, per = '1h' }\n\
        [callers.root]\ntoken = 'root-Token'\nadmin = true\n";
    let (home, records) = home(callers);
    let gateway = home.serve();
    let record_as_ci = || record(&gateway, Some("ci-Token"));
    // An unknown tool costs nothing.
    let unknown = ask(&gateway, "/mcp", Some("ci-Token"), "tools/call", &json!({"name": "fake__nothing"}));
    assert_eq!(unknown.code(), Some(-32602), "{}", unknown.text());
    assert!(record_as_ci().code().is_none() && record_as_ci().code().is_none());
    let refused = record_as_ci().message();
    let error = &refused["error"];
    let data = &refused["error"]["data"];
    assert_eq!(
        (error["code"].as_i64(), &data["kind"], &data["sent"]),
        (Some(-31011), &json!("over_quota"), &json!("never"))
    );
    assert_eq!(data["rule"], "`callers.ci.limits.\"fake.record\".quota` is 2 calls per 1h");
    let wait = data["retryAfterMs"].as_u64().expect("a time to wait");
    assert!((3_000_000..=3_600_000).contains(&wait), "{wait}");
    assert_eq!((count_recorded(records.path()), data.get("file")), (2, None));
    // Other callers are not affected, and the admin sees the remaining calls.
    assert_eq!(record(&gateway, Some("root-Token")).code(), None);
    let quota = status(&gateway, "root-Token")["quota"].clone();
    let remaining: Vec<(&Value, &Value)> =
        quota.as_array().expect("limits").iter().map(|limit| (&limit["limit"], &limit["left"])).collect();
    assert_eq!(
        remaining,
        [
            (&json!("callers.ci.quota"), &json!(1)),
            (&json!("callers.ci.limits.\"fake.record\".quota"), &json!(0))
        ]
    );
    // Usage is kept across a reload, also when the limit itself changes.
    let config = std::fs::read_to_string(home.file("config.toml")).expect("a config");
    home.write_config(&config.replace("calls = 3", "calls = 4"));
    http::request(gateway.address, "POST", "/api/v1/reload", &[("Authorization", "Bearer root-Token")], b"");
    assert_eq!(
        (record_as_ci().code(), &status(&gateway, "root-Token")["quota"][0]["left"]),
        (Some(-31011), &json!(2))
    );
    let explained = home.run(&["policy", "test", "--caller", "ci", "--tool", "fake.record"]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains("`callers.ci.quota` is 4 calls per 1h"), "{explained}");
}

#[test]
fn concurrent_calls_never_exceed_a_quota() {
    let (home, records) = home("[policy.limits.'*.record']\nquota = { calls = 50, per = '1h' }\n");
    let gateway = home.serve();
    let refused: usize = std::thread::scope(|scope| {
        let call = || (0..4).filter(|_| record(&gateway, None).code() == Some(-31011)).count();
        let threads: Vec<_> = (0..64).map(|_| scope.spawn(call)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert_eq!((count_recorded(records.path()), refused), (50, 256 - 50));
    let call = home.run(&["call", RECORD, "token=recorded"]);
    let stderr = String::from_utf8_lossy(&call.stderr).into_owned();
    assert_eq!(call.status.code(), Some(7), "{stderr}");
    assert!(stderr.contains("available again in") && stderr.contains("config.toml:"), "{stderr}");
    assert_eq!(count_recorded(records.path()), 50);
}

#[test]
fn identical_calls_in_a_row_are_refused_with_advice() {
    let (home, records) = home("[limits]\nidentical-calls = 3\nresults = '4KiB'\n");
    let gateway = home.serve();
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
        "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let opened = send(&gateway, "/mcp", &[], &initialize);
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let call = |tool: &str, arguments: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
        send(&gateway, "/mcp", &[("Mcp-Session-Id", session.as_str())], &message).message()
    };
    for _ in 0..3 {
        assert_ne!(call(RECORD, json!({"token": "recorded"}))["result"]["isError"], true);
    }
    let refused = call(RECORD, json!({"token": "recorded"}));
    let text = refused["result"]["content"][0]["text"].as_str().expect("a text");
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(text.contains("3 times in a row") && text.contains("change the arguments"), "{text}");
    assert_eq!(refused["result"]["_meta"]["toolcrib/error"]["code"], -31011);
    assert_eq!(count_recorded(records.path()), 3);
    // Other clients and other calls are not affected.
    assert_eq!(record(&gateway, None).code(), None);
    assert_ne!(call("fake__echo", json!({"text": "hi"}))["result"]["isError"], true);
    assert_ne!(call(RECORD, json!({"token": "recorded"}))["result"]["isError"], true);
    assert_eq!(count_recorded(records.path()), 5);
    // A result above the limit is discarded; a smaller one is not.
    let large = call("fake__echo", json!({"text": "x".repeat(5000)}));
    let text = large["result"]["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("the result was discarded") && text.len() < 500, "{text}");
    assert_eq!(call("fake__echo", json!({"text": "small"}))["result"]["content"][0]["text"], "small");
}

#[test]
fn usage_is_kept_across_gateway_restarts() {
    let (home, records) = home("[policy.limits.'*.record']\nquota = { calls = 3, per = '1h' }\n");
    let mut gateway = home.serve();
    assert_eq!(record(&gateway, None).code(), None);
    gateway.stop();
    let mut gateway = home.serve();
    assert_eq!((record(&gateway, None).code(), record(&gateway, None).code()), (None, None));
    let stored = || std::fs::read_to_string(home.file("state/quota.json")).unwrap_or_default();
    let has_three_calls = || {
        serde_json::from_str::<Value>(&stored())
            .is_ok_and(|file| file["used"][0]["parts"].as_array().is_some_and(|parts| parts.len() == 3))
    };
    wait_until("the usage is stored", has_three_calls);
    gateway.signal(Signal::KILL);
    gateway.wait();
    let gateway = home.serve();
    assert_eq!((record(&gateway, None).code(), count_recorded(records.path())), (Some(-31011), 3));
}
