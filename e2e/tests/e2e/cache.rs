//! The response cache of a real gateway, in front of servers that count their calls.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::path::Path;

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, message};
use test_support::gateway::{GatewayProcess, Home};
use test_support::{fake, http, process, wait_until};
use tokio::task::JoinSet;
use toolcrib::spec::ToolsSpec;
use toolcrib::{Call, Crib};

/// Returns a config with a fake server whose results of `count` are cached.
fn config(era: &str, more: &str) -> String {
    let server =
        test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "s", &["--era", era]);
    format!("{server}[servers.s.tools]\ncache = ['count']\n{more}")
}

fn home(era: &str, more: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &config(era, more))
}

fn status(home: &Home) -> Value {
    serde_json::from_slice(&home.run(&["status", "s", "--json"]).stdout).unwrap()
}

/// Returns how often `count` ran.
fn count_runs(file: &Path) -> usize {
    std::fs::read(file).map_or(0, |text| text.len())
}

/// Returns arguments of `count` whose result may be cached for a minute.
fn cacheable(home: &Home) -> Value {
    json!({"file": home.file("count"), "ttlMs": 60_000})
}

/// Returns the response body of one call.
fn body(gateway: &GatewayProcess, token: Option<&str>, tool: &str, arguments: &Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    let authorization = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", tool),
    ];
    headers.extend(authorization.as_deref().map(|value| ("Authorization", value)));
    let body = message(Era::Stateless, &1.into(), "tools/call", &params).to_string();
    http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes()).text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_misses_for_a_sleeping_server_are_one_call() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("count");
    let tools = ToolsSpec { cache: vec!["count".parse().unwrap()], ..ToolsSpec::default() };
    let crib = Crib::builder().server(fake!("s").tools(tools)).build().unwrap();
    let arguments = json!({"file": file, "ms": 200, "ttlMs": 60_000});
    let mut calls = JoinSet::new();
    for _ in 0..1000 {
        let crib = crib.clone();
        let call = Call::tool("s__count").arguments(&arguments);
        calls.spawn(async move { crib.call(call).await.unwrap().text() });
    }
    assert!(calls.join_all().await.iter().all(|text| text == "1"));
    assert_eq!(count_runs(&file), 1);
    crib.shutdown(std::time::Duration::ZERO).await;
}

#[test]
fn cache_hit_differs_only_in_the_remaining_ttl() {
    for era in ["session", "stateless"] {
        let home = home(era, "");
        let gateway = home.serve();
        let [first, second] = [(); 2].map(|()| body(&gateway, None, "s__count", &cacheable(&home)));
        let ttl = |text: &str| {
            let (_, rest) = text.split_once(r#""ttlMs":"#).unwrap();
            rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().to_owned()
        };
        assert_eq!(ttl(&first), "60000", "{first}");
        let remaining: u64 = ttl(&second).parse().unwrap();
        assert!((1..60_000).contains(&remaining), "{second}");
        assert_eq!(first.replace("60000", ""), second.replace(&remaining.to_string(), ""), "{era}");
        let mut session = HttpClient::new(gateway.address, "/mcp/s/s", Era::Session);
        let third = session.call("count", &cacheable(&home));
        assert_eq!(third["result"]["content"][0]["text"], "1", "{third}");
        // Within an era, members that the protocol does not define are passed through.
        assert_eq!(third["result"].get("ttlMs").is_some(), era == "session", "{third}");
        assert_eq!(count_runs(&home.file("count")), 1);
        let status = status(&home);
        assert_eq!(
            [&status["cache_entries"], &status["cache_hits"], &status["cache_misses"]],
            [&json!(1), &json!(2), &json!(1)]
        );
    }
}

#[test]
fn private_results_are_not_shared_between_callers() {
    let home = home("stateless", "[callers.a]\ntoken = 'token-of-a'\n[callers.b]\ntoken = 'token-of-b'\n");
    let gateway = home.serve();
    let scoped = |scope: &str| json!({"file": home.file(scope), "ttlMs": 60_000, "cacheScope": scope});
    for token in ["token-of-a", "token-of-b", "token-of-a"] {
        for scope in ["private", "public"] {
            body(&gateway, Some(token), "s__count", &scoped(scope));
        }
    }
    assert_eq!((count_runs(&home.file("private")), count_runs(&home.file("public"))), (2, 1));
}

#[test]
fn cache_serves_sleeping_servers_until_reload_or_restart() {
    let home = home("session", "[servers.s.lifecycle]\nkeep-alive = '0s'\n");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let file = home.file("count");
    client.text("s__count", &cacheable(&home));
    wait_until("the server sleeps", || status(&home)["state"] == "asleep");
    let generation = status(&home)["generation"].clone();
    assert_eq!(client.text("s__count", &cacheable(&home)), "1");
    assert_eq!((&status(&home)["state"], &status(&home)["generation"]), (&json!("asleep"), &generation));
    home.write_config(&config("session", ""));
    gateway.signal(rustix::process::Signal::HUP);
    wait_until("the change is applied", || status(&home)["cache_entries"] == 0);
    client.text("s__count", &cacheable(&home));
    client.text("s__count", &cacheable(&home));
    assert_eq!(count_runs(&file), 2, "reloaded");
    let pid = status(&home)["pid"].as_u64().unwrap();
    process::send_signal(u32::try_from(pid).unwrap(), rustix::process::Signal::KILL);
    wait_until("the exit is noticed", || status(&home)["pid"] != pid);
    assert_eq!(client.text("s__count", &cacheable(&home)), "2", "the new process has not been called yet");
    client.text("s__pid", &json!({}));
    assert_eq!(client.text("s__count", &cacheable(&home)), "3", "entries of the old process are dropped");
}

#[test]
fn resource_is_cached_until_the_server_reports_a_change() {
    let home = home("stateless", "");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut session = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let uri = json!({"uri": "note://cacheable/1"});
    let text = |answer: &Value| answer["result"]["contents"][0]["text"].clone();
    let first = client.request("resources/read", &uri).message();
    assert_eq!((text(&first), &first["result"]["ttlMs"]), (json!("read 1"), &json!(60_000)), "{first}");
    let second = session.request("resources/read", &uri).message();
    assert_eq!((text(&second), second["result"].get("ttlMs")), (json!("read 1"), None), "{second}");
    let other = client.request("resources/read", &json!({"uri": "note://cacheable/2"})).message();
    assert_eq!(text(&other), "read 2", "{other}");
    session.request("resources/subscribe", &uri);
    assert_eq!(session.text("s__update", &uri), "1");
    assert_eq!(text(&client.request("resources/read", &uri).message()), "read 3");
    assert_eq!(
        text(&client.request("resources/read", &json!({"uri": "note://cacheable/2"})).message()),
        "read 2"
    );
}

#[test]
fn ambiguous_arguments_are_not_cached() {
    let home = home("session", "");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Session);
    for arguments in [json!([1]), json!("x"), json!(1)] {
        let refused = client.call("s__count", &arguments);
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let file = home.file("count");
    for _ in 0..2 {
        let duplicate_member = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"s__count","arguments":{{"file":{},"ttlMs":60000,"x":1,"x":2}}}}}}"#,
            json!(file)
        );
        assert_eq!(client.post_raw("tools/call", Some("s__count"), &duplicate_member).status, 200);
    }
    assert_eq!(count_runs(&file), 2);
    for name in ["caf\u{e9}", "cafe\u{301}"] {
        let mut arguments = cacheable(&home);
        arguments[name] = 1.into();
        client.text("s__count", &arguments);
    }
    assert_eq!(count_runs(&file), 4, "the two names only look the same");
}

#[test]
fn list_ttl_never_exceeds_the_remaining_ttl() {
    let home = home("stateless", "");
    home.write_config(&format!(
        "{}{}",
        config("stateless", ""),
        test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "old", &["--era", "session"])
    ));
    let gateway = home.serve();
    let ttl_and_scope = |path: &str, method: &str| {
        let list =
            HttpClient::new(gateway.address, path, Era::Stateless).request(method, &json!({})).message();
        (list["result"]["ttlMs"].as_u64().unwrap(), list["result"]["cacheScope"].as_str().unwrap().to_owned())
    };
    let (remaining, scope) = ttl_and_scope("/mcp/s/s", "prompts/list");
    assert!((1..=30_000).contains(&remaining) && scope == "public", "{remaining} {scope}");
    assert_eq!(ttl_and_scope("/mcp/s/s", "tools/list"), (0, "private".to_owned()));
    assert_eq!(ttl_and_scope("/mcp", "prompts/list"), (0, "private".to_owned()), "one server has no TTL");
}
