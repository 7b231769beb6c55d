//! Parts of everything: what a profile does not have is neither seen nor run, whoever looks through it and by whichever
//! door.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use test_support::client::{Era, PipeClient, names as listed};
use test_support::gateway::Home;

use super::{ask, home, names, said, server, stamped};

const RULES: &str = "[profiles.work]\nservers = ['fake']\ndeny = ['fake.stamp']\n\
    [profiles.none]\nservers = []\n\
    [callers.ci]\ntoken = 'ci-Token-1'\ndeny = ['fake.pid']\n\
    [callers.narrow]\ntoken = 'narrow-Token'\nprofile = 'work'\n";

fn tools(home: &Home, token: &str, path: &str) -> BTreeSet<String> {
    let gateway = home.serve();
    names(&ask(&gateway, path, Some(token), "tools/list", &json!({})), "tools", "name")
}

#[test]
fn a_profile_narrows_whoever_looks_through_it() {
    let (home, books) = home(RULES);
    let all = tools(&home, "ci-Token-1", "/mcp");
    assert!(all.contains("fake__stamp") && all.contains("other__echo") && !all.contains("fake__pid"));
    let work: BTreeSet<String> =
        all.iter().filter(|name| name.starts_with("fake__") && *name != "fake__stamp").cloned().collect();
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/work"), work);
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/none"), BTreeSet::new());
    let narrow = tools(&home, "narrow-Token", "/mcp");
    assert!(
        narrow.contains("fake__pid") && !narrow.contains("fake__stamp") && !narrow.contains("other__echo")
    );
    let gateway = home.serve();
    let stamp = json!({"name": "fake__stamp", "arguments": {"token": "stamped"}});
    for (token, path, params, code, words) in [
        ("ci-Token-1", "/mcp/p/work", &stamp, -31010, "`profiles.work.deny` has `fake.stamp`"),
        ("narrow-Token", "/mcp", &stamp, -31010, "`profiles.work.deny` has `fake.stamp`"),
        ("narrow-Token", "/mcp/p/work", &stamp, -31010, "`profiles.work.deny` has `fake.stamp`"),
        ("narrow-Token", "/mcp/s/fake", &json!({"name": "stamp"}), -31010, "`profiles.work.deny`"),
        ("narrow-Token", "/mcp", &json!({"name": "other__echo"}), -32602, "Unknown tool"),
        ("ci-Token-1", "/mcp/p/work", &json!({"name": "fake__pid"}), -31010, "`callers.ci.deny`"),
        ("ci-Token-1", "/mcp/p/none", &json!({"name": "fake__echo"}), -32602, "Unknown tool"),
    ] {
        let answer = ask(&gateway, path, Some(token), "tools/call", params);
        assert_eq!(answer.code(), Some(code), "{token} {path}: {}", answer.text());
        assert!(said(&answer).contains(words), "{token} {path}: {}", answer.text());
    }
    assert_eq!(stamped(books.path()), 0);
    for (token, path) in [
        ("ci-Token-1", "/mcp/p/nope"),
        ("ci-Token-1", "/mcp/p/"),
        ("ci-Token-1", "/mcp/p/WORK"),
        ("ci-Token-1", "/mcp/p/work/"),
        ("narrow-Token", "/mcp/p/none"),
        ("narrow-Token", "/mcp/s/other"),
    ] {
        let answer = ask(&gateway, path, Some(token), "tools/list", &json!({}));
        assert_eq!(answer.status, 404, "{token} {path}: {}", answer.text());
    }
}

#[test]
fn a_profile_picks_servers_by_their_tags() {
    let rules = "[scopes.here]\nmatch = { host = '*' }\ntags = ['code', 'desk']\n\
        [profiles.coding]\ntags = ['code']\ndeny = ['fake.pid']\n\
        [profiles.both]\ntags = ['code']\nservers = ['other']\n\
        [profiles.desk]\ntags = ['desk']\n\
        [callers.ci]\ntoken = 'ci-Token-1'\n";
    let fake = server("fake", &[]) + "when = { all = ['code'] }\n";
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), &(fake + &server("other", &[]) + rules));
    let all = tools(&home, "ci-Token-1", "/mcp");
    let of = |wanted: &dyn Fn(&String) -> bool| all.iter().filter(|name| wanted(name)).cloned().collect();
    let coding: BTreeSet<String> = of(&|name| name.starts_with("fake__") && name != "fake__pid");
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/coding"), coding);
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/both"), all);
    assert_eq!(tools(&home, "ci-Token-1", "/mcp/p/desk"), BTreeSet::new(), "active, and nobody wants it");
    let gateway = home.serve();
    let call = |path: &str, name: &str| {
        let arguments = json!({"name": name, "arguments": {"text": "hello"}});
        ask(&gateway, path, Some("ci-Token-1"), "tools/call", &arguments).code()
    };
    assert_eq!(call("/mcp/p/coding", "fake__echo"), None);
    assert_eq!(call("/mcp/p/coding", "fake__pid"), Some(-31010));
    assert_eq!(call("/mcp/p/coding", "other__echo"), Some(-32602));
    assert_eq!(call("/mcp/p/both", "other__echo"), None);
    assert_eq!(call("/mcp/p/desk", "fake__echo"), Some(-32602));
    let told = home.run(&["policy", "test", "--profile", "coding", "--tool", "other.echo"]).stdout;
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("nothing in `profiles.coding.tags` lets it through"), "{told}");
    let told = home.run(&["policy", "test", "--profile", "coding", "--tool", "fake.echo"]).stdout;
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("`profiles.coding.tags` has `code`"), "{told}");
}

#[test]
fn an_agents_pipe_looks_through_a_profile_with_a_gateway_and_without() {
    let (home, _books) = home(RULES);
    let seen = |home: &Home| {
        let mut pipe = PipeClient::new(home.command(&["stdio", "--profile", "work"]), Era::Stateless);
        let tools: BTreeSet<String> = listed(&pipe.request("tools/list", &json!({}))).into_iter().collect();
        let refused = pipe.request("tools/call", &json!({"name": "fake__stamp", "arguments": {}}));
        assert_eq!(refused["error"]["code"], -31010, "{refused}");
        tools
    };
    let alone = seen(&home);
    assert!(alone.contains("fake__pid") && !alone.contains("fake__stamp") && !alone.contains("other__echo"));
    let _gateway = home.serve();
    assert_eq!(seen(&home), alone);
    let wrong = home.run(&["stdio", "--profile", "wrok", "--json"]);
    let told: Value = serde_json::from_slice(&wrong.stderr).expect("an object");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(told.to_string().contains("no profile is called `wrok`"), "{told}");
    assert!(told.to_string().contains("did you mean `work`?"), "{told}");
}

#[test]
fn the_command_line_explains_what_a_profile_keeps_back() {
    let (home, _books) = home(RULES);
    let test = |args: &[&str]| {
        let output = home.run(&[&["policy", "test"], args].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, told) = test(&["--profile", "work", "--tool", "fake.stamp"]);
    assert_eq!(code, Some(7));
    assert!(
        told.contains("`profiles.work.deny` has `fake.stamp`") && told.contains("config.toml:"),
        "{told}"
    );
    let (code, told) = test(&["--caller", "narrow", "--tool", "other.echo"]);
    assert_eq!(code, Some(7));
    assert!(told.contains("nothing in `profiles.work.servers` lets it through"), "{told}");
    assert_eq!(test(&["--tool", "fake.stamp"]).0, Some(0));
    assert_eq!(test(&["--profile", "none", "--caller", "narrow", "--tool", "fake.pid"]).0, Some(1));
}
