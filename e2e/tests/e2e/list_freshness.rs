//! Lists that change, as clients of a gateway see them.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::Home;

const CHANGED: &str = "notifications/tools/list_changed";

fn home(args: &[&str]) -> Home {
    let server = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", args);
    let asleep = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "other", &[]);
    Home::new(env!("CARGO_BIN_EXE_crib"), &(server + &asleep))
}

/// Returns the description of `echo` in a list of tools.
fn description(tools: &Value) -> String {
    let echo = tools.as_array().unwrap().iter().find(|tool| {
        let name = tool["tool"].as_str().or(tool["name"].as_str()).unwrap();
        name == "echo" && tool["server"].as_str().is_none_or(|server| server == "fake")
    });
    echo.unwrap()["description"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn list_with_ttl_zero_is_current_for_clients_of_both_eras() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let home = home(&["--era", "stateless", "--description-file", path]);
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp/s/fake", era);
        for text in ["one", "two", "three"] {
            std::fs::write(file.path(), text).unwrap();
            let listed = client.request("tools/list", &json!({})).message();
            assert_eq!(description(&listed["result"]["tools"]), text, "{era:?}");
        }
    }
}

#[test]
fn announced_change_is_in_the_next_list_of_every_client() {
    let home = home(&[]);
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp", era);
        let mut other = HttpClient::new(gateway.address, "/mcp/s/fake", era);
        let before = other.tools().len();
        for added in 1..=3 {
            client.text("fake__notify_list_changed", &json!({}));
            assert_eq!(other.tools().len(), before + added, "{era:?}");
        }
    }
}

#[test]
fn announcement_without_a_change_reaches_clients_that_see_the_server() {
    let home = home(&[]);
    let gateway = home.serve();
    let mut caller = HttpClient::new(gateway.address, "/mcp", Era::Session);
    caller.tools();
    let session = HttpClient::new(gateway.address, "/mcp/s/fake", Era::Session);
    let mut session_stream = session.send_without_body("GET");
    let mut listener = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let filter = json!({"notifications": {"toolsListChanged": true}});
    let mut listen_stream = listener.open("subscriptions/listen", &filter);
    listen_stream.next_event().expect("the acknowledgement");
    let unrelated = HttpClient::new(gateway.address, "/mcp/s/other", Era::Session);
    let mut unrelated_stream = unrelated.send_without_body("GET");
    caller.text("fake__notify_list_changed", &json!({"unchanged": true}));
    assert_eq!(session_stream.next_event().expect("a notification")["method"], CHANGED);
    assert_eq!(listen_stream.next_event().expect("a notification")["method"], CHANGED);
    // The first notification there is about its own server.
    caller.text("other__notify_list_changed", &json!({}));
    assert_eq!(unrelated_stream.next_event().expect("a notification")["method"], CHANGED);
    let again = listen_stream.next_event().expect("a notification of the other server");
    assert_eq!(again["method"], CHANGED);
}

#[test]
fn tools_refresh_asks_running_servers_and_names_the_others() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "one").unwrap();
    let home = home(&["--description-file", file.path().to_str().unwrap()]);
    let _gateway = home.serve();
    let run = |args: &[&str]| -> Value {
        let output = home.run(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    assert_eq!(description(&run(&["tools", "--wait", "--json"])["tools"]), "one");
    assert!(home.run(&["stop", "other"]).status.success());
    std::fs::write(file.path(), "two").unwrap();
    let listed = run(&["tools", "--json"]);
    assert_eq!((description(&listed["tools"]), listed.get("not_running")), ("one".to_owned(), None));
    let refreshed = run(&["tools", "--refresh", "--json"]);
    assert_eq!(description(&refreshed["tools"]), "two");
    assert_eq!(refreshed["not_running"], json!(["other"]));
    let text = String::from_utf8(home.run(&["tools", "--refresh"]).stderr).unwrap();
    assert!(text.contains("not asked again, because they do not run: `other`"), "{text}");
    let status = run(&["status", "other", "--json"]);
    assert_eq!(status["state"], "asleep");
}
