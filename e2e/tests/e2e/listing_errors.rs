//! Servers that answer requests for lists with errors, behind a gateway.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::client::{Era, HttpClient};
use test_support::gateway::Home;
use test_support::wait_until;

const ERROR: &str = r#"{"code":-32055,"message":"no access token","data":{"login":"https://example.com"}}"#;

/// A home with a server whose lists can be made to fail, and one that works.
struct Setup {
    home: Home,
    errors: TempDir,
}

impl Setup {
    fn new() -> Self {
        let errors = TempDir::new().unwrap();
        let server = |name: &str, args: &[&str]| {
            test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, args)
        };
        let bad = server("bad", &["--list-errors", errors.path().to_str().unwrap()]);
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &(bad + &server("good", &[])));
        Self { home, errors }
    }

    /// Makes a list fail.
    fn fail(&self, list: &str) {
        std::fs::write(self.errors.path().join(list), ERROR).unwrap();
    }

    /// Makes a list work again.
    fn repair(&self, list: &str) {
        std::fs::remove_file(self.errors.path().join(list)).unwrap();
    }
}

fn run_json(home: &Home, args: &[&str]) -> Value {
    let output = home.run(args);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn server_that_cannot_list_tools_is_up_and_shows_its_error() {
    let setup = Setup::new();
    let home = &setup.home;
    setup.fail("tools");
    let gateway = home.serve();
    let error: Value = serde_json::from_str(ERROR).unwrap();
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp/s/bad", era);
        assert_eq!(client.request("tools/list", &json!({})).message()["error"], error, "{era:?}");
        assert_eq!(client.text("echo", &json!({"text": "hi"})), "hi");
        let prompts = client.request("prompts/list", &json!({})).message();
        assert_eq!(prompts["result"]["prompts"][0]["name"], "greet");
        let greeting = json!({"name": "greet", "arguments": {"who": "Ada"}});
        assert!(client.request("prompts/get", &greeting).message()["result"].is_object());
        let mut all = HttpClient::new(gateway.address, "/mcp", era);
        assert!(all.tools().iter().all(|tool| tool.starts_with("good__")), "{:?}", all.tools());
    }
    let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}});
    let mut raw = HttpClient::new(gateway.address, "/mcp/s/bad", Era::Session);
    raw.session = None;
    let capabilities = &raw.request("initialize", &initialize).message()["result"]["capabilities"];
    assert!(capabilities["tools"].is_object() && capabilities["completions"].is_object(), "{capabilities}");
    let status = run_json(home, &["status", "bad", "--json"]);
    // The second start was to find out whether it speaks the era of the stateless client.
    assert_eq!((&status["state"], &status["generation"]), (&json!("ready"), &json!(2)));
    let mut shown = error;
    shown["list"] = "tools/list".into();
    assert_eq!(status["listing_errors"], json!([shown]));
    let text = String::from_utf8(home.run(&["status"]).stderr).unwrap();
    assert!(text.contains("no access token") && text.contains("-32055"), "{text}");
    let tools = run_json(home, &["tools", "--json"]);
    assert_eq!(tools["failed"][0]["server"], "bad", "{}", tools["failed"]);
    let message = tools["failed"][0]["message"].as_str().unwrap();
    assert!(message.contains("no access token"), "{message}");
    let called = home.run(&["call", "bad.echo", "text=hello"]);
    assert_eq!(String::from_utf8(called.stdout).unwrap().trim(), "hello");
    setup.repair("tools");
    let mut client = HttpClient::new(gateway.address, "/mcp/s/bad", Era::Session);
    wait_until("the tools are listed", || {
        client.request("tools/list", &json!({})).message()["result"]["tools"].is_array()
    });
    let status = run_json(home, &["status", "bad", "--json"]);
    assert_eq!((&status["generation"], &status["listing_errors"]), (&json!(2), &json!([])));
}

#[test]
fn last_known_prompts_stay_while_they_cannot_be_listed() {
    let setup = Setup::new();
    let home = &setup.home;
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp/s/bad", Era::Session);
    let mut list = |method: &str| client.request(method, &json!({})).message();
    assert_eq!(list("prompts/list")["result"]["prompts"][0]["name"], "greet");
    for list in ["prompts", "resources", "resourceTemplates"] {
        setup.fail(list);
    }
    // Asks for all lists.
    let refreshed = run_json(home, &["tools", "--refresh", "--json"]);
    assert_eq!(refreshed["not_running"], json!([]));
    assert_eq!(list("prompts/list")["result"]["prompts"][0]["name"], "greet");
    assert_eq!(list("resources/list")["result"]["resources"][0]["uri"], "note://one");
    let failed = |status: &Value| status["listing_errors"].as_array().unwrap().len();
    assert_eq!(failed(&run_json(home, &["status", "bad", "--json"])), 3);
    for list in ["prompts", "resources", "resourceTemplates"] {
        setup.repair(list);
    }
    wait_until("the lists are read again", || failed(&run_json(home, &["status", "bad", "--json"])) == 0);
}

#[test]
fn unknown_prompts_are_an_error_until_they_are_listed() {
    let setup = Setup::new();
    setup.fail("prompts");
    let gateway = setup.home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp/s/bad", Era::Session);
    let error: Value = serde_json::from_str(ERROR).unwrap();
    assert_eq!(client.request("prompts/list", &json!({})).message()["error"], error);
    assert!(!client.tools().is_empty());
    setup.repair("prompts");
    wait_until("the prompts are listed", || {
        client.request("prompts/list", &json!({})).message()["result"]["prompts"][0]["name"] == "greet"
    });
}
