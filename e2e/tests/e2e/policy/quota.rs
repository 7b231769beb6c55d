//! How much callers and clients may use, with real servers behind the gateway.

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::gateway::Gateway;
use test_support::http::{self, Response};
use test_support::wait_until;

use super::{ask, home, send, stamped};

const STAMP: &str = "fake__stamp";

fn stamp(gateway: &Gateway, token: Option<&str>) -> Response {
    ask(gateway, "/mcp", token, "tools/call", &json!({"name": STAMP, "arguments": {"token": "stamped"}}))
}

fn status(gateway: &Gateway, token: &str) -> Value {
    let shown = format!("Bearer {token}");
    let answer =
        http::request(gateway.address, "GET", "/api/v1/status", &[("Authorization", shown.as_str())], b"");
    serde_json::from_str(&answer.text()).expect("a status")
}

#[test]
fn a_caller_that_has_used_up_its_quota_is_told_which_and_until_when() {
    let callers = "[callers.ci]\ntoken = 'ci-Token'\nquota = { calls = 3, per = '1h' }\n\
        [callers.ci.limits.'fake.stamp']\nquota = { calls = 2, per = '1h' }\n\
        [callers.root]\ntoken = 'root-Token'\nadmin = true\n";
    let (home, books) = home(callers);
    let gateway = home.serve();
    let by_ci = || stamp(&gateway, Some("ci-Token"));
    // What does not exist costs nothing.
    let unknown = ask(&gateway, "/mcp", Some("ci-Token"), "tools/call", &json!({"name": "fake__nothing"}));
    assert_eq!(unknown.code(), Some(-32602), "{}", unknown.text());
    assert!(by_ci().code().is_none() && by_ci().code().is_none());
    let refused = by_ci().message();
    let (error, data) = (&refused["error"], &refused["error"]["data"]);
    assert_eq!(
        (error["code"].as_i64(), &data["kind"], &data["sent"]),
        (Some(-31011), &json!("over_quota"), &json!("never"))
    );
    assert_eq!(data["rule"], "`callers.ci.limits.\"fake.stamp\".quota` is 2 calls per 1h");
    let wait = data["retryAfterMs"].as_u64().expect("a time to wait");
    assert!((3_000_000..=3_600_000).contains(&wait), "{wait}");
    assert_eq!((stamped(books.path()), data.get("file")), (2, None));
    // Others are not concerned, and the admin sees what is left.
    assert_eq!(stamp(&gateway, Some("root-Token")).code(), None);
    let quota = status(&gateway, "root-Token")["quota"].clone();
    let left: Vec<(&Value, &Value)> =
        quota.as_array().expect("limits").iter().map(|limit| (&limit["limit"], &limit["left"])).collect();
    assert_eq!(
        left,
        [
            (&json!("callers.ci.quota"), &json!(1)),
            (&json!("callers.ci.limits.\"fake.stamp\".quota"), &json!(0))
        ]
    );
    // What was used stays used when the config is read again, also by another limit of the same name.
    let config = std::fs::read_to_string(home.file("config.toml")).expect("a config");
    home.write_config(&config.replace("calls = 3", "calls = 4"));
    http::request(gateway.address, "POST", "/api/v1/reload", &[("Authorization", "Bearer root-Token")], b"");
    assert_eq!(
        (by_ci().code(), &status(&gateway, "root-Token")["quota"][0]["left"]),
        (Some(-31011), &json!(2))
    );
    let explained = home.run(&["policy", "test", "--caller", "ci", "--tool", "fake.stamp"]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains("`callers.ci.quota` is 4 calls per 1h"), "{explained}");
}

#[test]
fn sixty_four_connections_never_get_more_calls_than_there_are() {
    let (home, books) = home("[policy.limits.'*.stamp']\nquota = { calls = 50, per = '1h' }\n");
    let gateway = home.serve();
    let refused: usize = std::thread::scope(|scope| {
        let race = || (0..4).filter(|_| stamp(&gateway, None).code() == Some(-31011)).count();
        let racing: Vec<_> = (0..64).map(|_| scope.spawn(race)).collect();
        racing.into_iter().map(|racer| racer.join().expect("a racer")).sum()
    });
    assert_eq!((stamped(books.path()), refused), (50, 256 - 50));
    let call = home.run(&["call", STAMP, "token=stamped"]);
    let told = String::from_utf8_lossy(&call.stderr).into_owned();
    assert_eq!(call.status.code(), Some(7), "{told}");
    assert!(told.contains("there is room again in") && told.contains("config.toml:"), "{told}");
    assert_eq!(stamped(books.path()), 50);
}

#[test]
fn a_model_that_repeats_itself_gets_an_answer_it_can_act_on() {
    let (home, books) = home("[limits]\nidentical-calls = 3\nresults = '4KiB'\n");
    let gateway = home.serve();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
        "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let opened = send(&gateway, "/mcp", &[], &hello);
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let call = |tool: &str, arguments: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
        send(&gateway, "/mcp", &[("Mcp-Session-Id", session.as_str())], &message).message()
    };
    for _ in 0..3 {
        assert_ne!(call(STAMP, json!({"token": "stamped"}))["result"]["isError"], true);
    }
    let refused = call(STAMP, json!({"token": "stamped"}));
    let text = refused["result"]["content"][0]["text"].as_str().expect("a text");
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(text.contains("3 times in a row") && text.contains("change the arguments"), "{text}");
    assert_eq!(refused["result"]["_meta"]["toolcrib/error"]["code"], -31011);
    assert_eq!(stamped(books.path()), 3);
    // Another client, and another call, are another matter.
    assert_eq!(stamp(&gateway, None).code(), None);
    assert_ne!(call("fake__echo", json!({"text": "hi"}))["result"]["isError"], true);
    assert_ne!(call(STAMP, json!({"token": "stamped"}))["result"]["isError"], true);
    assert_eq!(stamped(books.path()), 5);
    // An answer that is more than the client may get is left out, and the next small one is not.
    let large = call("fake__echo", json!({"text": "x".repeat(5000)}));
    let text = large["result"]["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("the answer is left out") && text.len() < 500, "{text}");
    assert_eq!(call("fake__echo", json!({"text": "small"}))["result"]["content"][0]["text"], "small");
}

#[test]
fn a_restart_gives_nobody_a_new_quota() {
    let (home, books) = home("[policy.limits.'*.stamp']\nquota = { calls = 3, per = '1h' }\n");
    let mut gateway = home.serve();
    assert_eq!(stamp(&gateway, None).code(), None);
    gateway.stop();
    let mut gateway = home.serve();
    assert_eq!((stamp(&gateway, None).code(), stamp(&gateway, None).code()), (None, None));
    let kept = || std::fs::read_to_string(home.file("state/quota.json")).unwrap_or_default();
    let counts = || {
        serde_json::from_str::<Value>(&kept())
            .is_ok_and(|file| file["used"][0]["parts"].as_array().is_some_and(|parts| parts.len() == 3))
    };
    wait_until("what was used is kept", counts);
    gateway.signal(Signal::KILL);
    gateway.wait();
    let gateway = home.serve();
    assert_eq!((stamp(&gateway, None).code(), stamped(books.path())), (Some(-31011), 3));
}
