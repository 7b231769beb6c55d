//! What servers have said is said again: by a real gateway, about real processes that count how often they were asked.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::path::Path;

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, message};
use test_support::gateway::{Gateway, Home};
use test_support::{fake, http, process, wait_until};
use tokio::task::JoinSet;
use toolcrib::spec::ToolsSpec;
use toolcrib::{Call, Crib};

/// A config with a fake server whose results of `count` may be kept.
fn config(era: &str, more: &str) -> String {
    let server = test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), "s", &["--era", era]);
    format!("{server}[servers.s.tools]\ncache = ['count']\n{more}")
}

fn home(era: &str, more: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &config(era, more))
}

fn status(home: &Home) -> Value {
    serde_json::from_slice(&home.run(&["status", "s", "--json"]).stdout).unwrap()
}

/// How often `count` ran.
fn counted(file: &Path) -> usize {
    std::fs::read(file).map_or(0, |text| text.len())
}

/// The arguments of a `count` whose result is good for a minute.
fn lasting(home: &Home) -> Value {
    json!({"file": home.file("count"), "ttlMs": 60_000})
}

/// The body of an answer to one call, as it is written.
fn body(gateway: &Gateway, token: Option<&str>, tool: &str, arguments: &Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    let shown = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", tool),
    ];
    headers.extend(shown.as_deref().map(|shown| ("Authorization", shown)));
    let body = message(Era::Stateless, &1.into(), "tools/call", &params).to_string();
    http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes()).text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_misses_at_the_same_time_are_one_call_of_a_server_that_was_asleep() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("count");
    let tools = ToolsSpec { cache: vec!["count".parse().unwrap()], ..ToolsSpec::default() };
    let crib = Crib::builder().server(fake!("s").tools(tools)).build().unwrap();
    let arguments = json!({"file": file, "ms": 200, "ttlMs": 60_000});
    let mut calls = JoinSet::new();
    for _ in 0..1000 {
        let (crib, call) = (crib.clone(), Call::tool("s__count").arguments(&arguments));
        calls.spawn(async move { crib.call(call).await.unwrap().text() });
    }
    assert!(calls.join_all().await.iter().all(|text| text == "1"));
    assert_eq!(counted(&file), 1);
    crib.shutdown(std::time::Duration::ZERO).await;
}

#[test]
fn a_hit_is_the_same_bytes_but_for_the_time_that_is_left() {
    for era in ["session", "stateless"] {
        let home = home(era, "");
        let gateway = home.serve();
        let [first, second] = [(); 2].map(|()| body(&gateway, None, "s__count", &lasting(&home)));
        let time = |text: &str| {
            let (_, rest) = text.split_once(r#""ttlMs":"#).unwrap();
            rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().to_owned()
        };
        assert_eq!(time(&first), "60000", "{first}");
        let left: u64 = time(&second).parse().unwrap();
        assert!((1..60_000).contains(&left), "{second}");
        assert_eq!(first.replace("60000", ""), second.replace(&left.to_string(), ""), "{era}");
        let mut session = HttpClient::new(gateway.address, "/mcp/s/s", Era::Session);
        let third = session.call("count", &lasting(&home));
        assert_eq!(third["result"]["content"][0]["text"], "1", "{third}");
        // What a server of that era says beside the protocol is passed on as everything else is.
        assert_eq!(third["result"].get("ttlMs").is_some(), era == "session", "{third}");
        assert_eq!(counted(&home.file("count")), 1);
        let told = status(&home);
        assert_eq!(
            [&told["cache_entries"], &told["cache_hits"], &told["cache_misses"]],
            [&json!(1), &json!(2), &json!(1)]
        );
    }
}

#[test]
fn two_callers_never_see_what_is_private_to_the_other() {
    let home = home("stateless", "[callers.a]\ntoken = 'token-of-a'\n[callers.b]\ntoken = 'token-of-b'\n");
    let gateway = home.serve();
    let scoped = |scope: &str| json!({"file": home.file(scope), "ttlMs": 60_000, "cacheScope": scope});
    for token in ["token-of-a", "token-of-b", "token-of-a"] {
        for scope in ["private", "public"] {
            body(&gateway, Some(token), "s__count", &scoped(scope));
        }
    }
    assert_eq!((counted(&home.file("private")), counted(&home.file("public"))), (2, 1));
}

#[test]
fn a_server_that_sleeps_is_not_woken_and_one_that_was_killed_is_asked_again() {
    let home = home("session", "[servers.s.lifecycle]\nkeep-alive = '0s'\n");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let file = home.file("count");
    client.text("s__count", &lasting(&home));
    wait_until("it sleeps", || status(&home)["state"] == "asleep");
    let generation = status(&home)["generation"].clone();
    assert_eq!(client.text("s__count", &lasting(&home)), "1");
    assert_eq!((&status(&home)["state"], &status(&home)["generation"]), (&json!("asleep"), &generation));
    home.write_config(&config("session", ""));
    gateway.signal(rustix::process::Signal::HUP);
    wait_until("the change is applied", || status(&home)["cache_entries"] == 0);
    client.text("s__count", &lasting(&home));
    client.text("s__count", &lasting(&home));
    assert_eq!(counted(&file), 2, "reloaded");
    let pid = status(&home)["pid"].as_u64().unwrap();
    process::send(u32::try_from(pid).unwrap(), rustix::process::Signal::KILL);
    wait_until("its death is seen", || status(&home)["pid"] != pid);
    assert_eq!(client.text("s__count", &lasting(&home)), "2", "nobody has asked the next one anything");
    client.text("s__pid", &json!({}));
    assert_eq!(client.text("s__count", &lasting(&home)), "3", "the next generation is asked");
}

#[test]
fn a_resource_is_read_once_until_its_server_says_that_it_changed() {
    let home = home("stateless", "");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut session = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let uri = json!({"uri": "note://lasting/1"});
    let text = |answer: &Value| answer["result"]["contents"][0]["text"].clone();
    let first = client.request("resources/read", &uri).message();
    assert_eq!((text(&first), &first["result"]["ttlMs"]), (json!("read 1"), &json!(60_000)), "{first}");
    let second = session.request("resources/read", &uri).message();
    assert_eq!((text(&second), second["result"].get("ttlMs")), (json!("read 1"), None), "{second}");
    let other = client.request("resources/read", &json!({"uri": "note://lasting/2"})).message();
    assert_eq!(text(&other), "read 2", "{other}");
    session.request("resources/subscribe", &uri);
    assert_eq!(session.text("s__update", &uri), "1");
    assert_eq!(text(&client.request("resources/read", &uri).message()), "read 3");
    assert_eq!(
        text(&client.request("resources/read", &json!({"uri": "note://lasting/2"})).message()),
        "read 2"
    );
}

#[test]
fn arguments_that_are_no_object_are_refused_and_what_can_be_read_in_two_ways_is_not_kept() {
    let home = home("session", "");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Session);
    for odd in [json!([1]), json!("x"), json!(1)] {
        let refused = client.call("s__count", &odd);
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let file = home.file("count");
    for _ in 0..2 {
        let twice = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"s__count","arguments":{{"file":{},"ttlMs":60000,"x":1,"x":2}}}}}}"#,
            json!(file)
        );
        assert_eq!(client.raw("tools/call", Some("s__count"), &twice).status, 200);
    }
    assert_eq!(counted(&file), 2);
    for name in ["caf\u{e9}", "cafe\u{301}"] {
        let mut arguments = lasting(&home);
        arguments[name] = 1.into();
        client.text("s__count", &arguments);
    }
    assert_eq!(counted(&file), 4, "two names that only look the same");
}

#[test]
fn a_list_is_passed_on_with_what_is_left_of_its_time_and_never_with_more() {
    let home = home("stateless", "");
    home.write_config(&format!(
        "{}{}",
        config("stateless", ""),
        test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), "old", &["--era", "session"])
    ));
    let gateway = home.serve();
    let said = |path: &str, method: &str| {
        let list =
            HttpClient::new(gateway.address, path, Era::Stateless).request(method, &json!({})).message();
        (list["result"]["ttlMs"].as_u64().unwrap(), list["result"]["cacheScope"].as_str().unwrap().to_owned())
    };
    let (left, scope) = said("/mcp/s/s", "prompts/list");
    assert!((1..=30_000).contains(&left) && scope == "public", "{left} {scope}");
    assert_eq!(said("/mcp/s/s", "tools/list"), (0, "private".to_owned()));
    assert_eq!(said("/mcp", "prompts/list"), (0, "private".to_owned()), "one of them does not say");
}
