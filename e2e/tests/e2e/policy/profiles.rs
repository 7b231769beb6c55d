//! Profiles: subsets of the servers and tools, for every caller and endpoint.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use test_support::client::{Era, StdioClient, tool_names as listed};
use test_support::gateway::Home;

use super::{ask, count_recorded, error_message, home, names, server};

const RULES: &str = "[profiles.work]\nservers = ['fake']\ndeny = ['fake.record']\n\
    [profiles.none]\nservers = []\n\
    [callers.ci]\ntoken = 'ci-Token-1'\ndeny = ['fake.pid']\n\
    [callers.narrow]\ntoken = 'narrow-Token'\nprofile = 'work'\n";

fn tools(home: &Home, token: &str, path: &str) -> BTreeSet<String> {
    let gateway = home.serve();
    names(&ask(&gateway, path, Some(token), "tools/list", &json!({})), "tools", "name")
}

#[test]
fn profile_restricts_every_caller() {
    let (home, records) = home(RULES);
    let all = tools(&home, "ci-Token-1", "/mcp");
    assert!(all.contains("fake__record") && all.contains("other__echo") && !all.contains("fake__pid"));
    let work: BTreeSet<String> =
        all.iter().filter(|name| name.starts_with("fake__") && *name != "fake__record").cloned().collect();
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/work"), work);
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/none"), BTreeSet::new());
    let narrow = tools(&home, "narrow-Token", "/mcp");
    assert!(
        narrow.contains("fake__pid") && !narrow.contains("fake__record") && !narrow.contains("other__echo")
    );
    let gateway = home.serve();
    let record = json!({"name": "fake__record", "arguments": {"token": "recorded"}});
    for (token, path, params, code, reason) in [
        ("ci-Token-1", "/mcp/p/work", &record, -31010, "`profiles.work.deny` has `fake.record`"),
        ("narrow-Token", "/mcp", &record, -31010, "`profiles.work.deny` has `fake.record`"),
        ("narrow-Token", "/mcp/p/work", &record, -31010, "`profiles.work.deny` has `fake.record`"),
        ("narrow-Token", "/mcp/s/fake", &json!({"name": "record"}), -31010, "`profiles.work.deny`"),
        ("narrow-Token", "/mcp", &json!({"name": "other__echo"}), -32602, "Unknown tool"),
        ("ci-Token-1", "/mcp/p/work", &json!({"name": "fake__pid"}), -31010, "`callers.ci.deny`"),
        ("ci-Token-1", "/mcp/p/none", &json!({"name": "fake__echo"}), -32602, "Unknown tool"),
    ] {
        let answer = ask(&gateway, path, Some(token), "tools/call", params);
        assert_eq!(answer.code(), Some(code), "{token} {path}: {}", answer.text());
        assert!(error_message(&answer).contains(reason), "{token} {path}: {}", answer.text());
    }
    assert_eq!(count_recorded(records.path()), 0);
    for (token, path) in [
        ("ci-Token-1", "/mcp/p/nope"),
        ("ci-Token-1", "/mcp/p/"),
        ("ci-Token-1", "/mcp/p/WORK"),
        ("narrow-Token", "/mcp/p/none"),
        ("narrow-Token", "/mcp/s/other"),
    ] {
        let answer = ask(&gateway, path, Some(token), "tools/list", &json!({}));
        assert_eq!(answer.status, 404, "{token} {path}: {}", answer.text());
    }
}

#[test]
fn profile_selects_servers_by_tags() {
    let rules = "[scopes.here]\nmatch = { host = '*' }\ntags = ['code', 'office']\n\
        [profiles.coding]\ntags = ['code']\ndeny = ['fake.pid']\n\
        [profiles.both]\ntags = ['code']\nservers = ['other']\n\
        [profiles.office]\ntags = ['office']\n\
        [callers.ci]\ntoken = 'ci-Token-1'\n";
    let fake = server("fake", &[]) + "when = { all = ['code'] }\n";
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), &(fake + &server("other", &[]) + rules));
    let all = tools(&home, "ci-Token-1", "/mcp");
    let select =
        |matches: &dyn Fn(&String) -> bool| all.iter().filter(|name| matches(name)).cloned().collect();
    let coding: BTreeSet<String> = select(&|name| name.starts_with("fake__") && name != "fake__pid");
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/coding"), coding);
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/both"), all);
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/office"), BTreeSet::new(), "no server has this tag");
    let gateway = home.serve();
    let call = |path: &str, name: &str| {
        let arguments = json!({"name": name, "arguments": {"text": "hello"}});
        ask(&gateway, path, Some("ci-Token-1"), "tools/call", &arguments).code()
    };
    assert_eq!(call("/mcp/p/coding", "fake__echo"), None);
    assert_eq!(call("/mcp/p/coding", "fake__pid"), Some(-31010));
    assert_eq!(call("/mcp/p/coding", "other__echo"), Some(-32602));
    assert_eq!(call("/mcp/p/both", "other__echo"), None);
    assert_eq!(call("/mcp/p/office", "fake__echo"), Some(-32602));
    let output = home.run(&["policy", "test", "--profile", "coding", "--tool", "other.echo"]).stdout;
    let output = String::from_utf8_lossy(&output);
    assert!(output.contains("nothing in `profiles.coding.tags` matches"), "{output}");
    let output = home.run(&["policy", "test", "--profile", "coding", "--tool", "fake.echo"]).stdout;
    let output = String::from_utf8_lossy(&output);
    assert!(output.contains("`profiles.coding.tags` has `code`"), "{output}");
}

#[test]
fn stdio_uses_a_profile_with_and_without_a_gateway() {
    let (home, _records) = home(RULES);
    let list = |home: &Home| {
        let mut pipe = StdioClient::new(home.command(&["stdio", "--profile", "work"]), Era::Stateless);
        let tools: BTreeSet<String> = listed(&pipe.request("tools/list", &json!({}))).into_iter().collect();
        let refused = pipe.request("tools/call", &json!({"name": "fake__record", "arguments": {}}));
        assert_eq!(refused["error"]["code"], -31010, "{refused}");
        tools
    };
    let without_gateway = list(&home);
    assert!(
        without_gateway.contains("fake__pid")
            && !without_gateway.contains("fake__record")
            && !without_gateway.contains("other__echo")
    );
    let _gateway = home.serve();
    assert_eq!(list(&home), without_gateway);
    let misspelled = home.run(&["stdio", "--profile", "wrok", "--json"]);
    let error: Value = serde_json::from_slice(&misspelled.stderr).expect("an object");
    assert_eq!(misspelled.status.code(), Some(1));
    assert!(error.to_string().contains("no profile is called `wrok`"), "{error}");
    assert!(error.to_string().contains("did you mean `work`?"), "{error}");
}

#[test]
fn command_line_explains_what_a_profile_denies() {
    let (home, _records) = home(RULES);
    let test = |args: &[&str]| {
        let output = home.run(&[&["policy", "test"], args].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, output) = test(&["--profile", "work", "--tool", "fake.record"]);
    assert_eq!(code, Some(7));
    assert!(
        output.contains("`profiles.work.deny` has `fake.record`") && output.contains("config.toml:"),
        "{output}"
    );
    let (code, output) = test(&["--caller", "narrow", "--tool", "other.echo"]);
    assert_eq!(code, Some(7));
    assert!(output.contains("nothing in `profiles.work.servers` matches"), "{output}");
    assert_eq!(test(&["--tool", "fake.record"]).0, Some(0));
    assert_eq!(test(&["--profile", "none", "--caller", "narrow", "--tool", "fake.pid"]).0, Some(1));
}
