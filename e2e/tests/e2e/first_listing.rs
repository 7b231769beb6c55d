//! The first listing of many servers: slow ones are announced when they are up and delay no list.

use std::time::Duration;

use serde_json::json;
use test_support::client::{Era, HttpClient, StdioClient, tool_names};
use test_support::gateway::Home;
use tokio::time::Instant;

const SLOW: usize = 12;
const FAST: usize = 3;
/// The time that slow servers need to start. It must be long compared to the time that a list waits.
const START_DELAY: Duration = Duration::from_secs(6);
const CHANGED: &str = "notifications/tools/list_changed";

/// Returns a home with slow, hung and fast servers. The names of the slow ones come first.
fn home() -> Home {
    let delay = START_DELAY.as_millis().to_string();
    let server = |name: String, args: &[&str]| {
        test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), &name, args)
    };
    let slow = (0..SLOW).map(|n| server(format!("a{n}"), &["--start-delay-ms", &delay]));
    let hung = (0..2).map(|n| server(format!("b{n}"), &["--never-answer-handshake"]));
    let fast = (0..FAST).map(|n| server(format!("z{n}"), &[]));
    let servers: String = slow.chain(hung).chain(fast).collect();
    Home::new(env!("CARGO_BIN_EXE_crib"), &format!("[limits]\nlisting-wait = '300ms'\n{servers}"))
}

/// Returns how many servers have tools in a list.
fn count_servers(tools: &[String]) -> usize {
    let mut servers: Vec<&str> = tools.iter().filter_map(|tool| tool.split("__").next()).collect();
    servers.dedup();
    servers.len()
}

/// Lists until all servers are listed, and waits for an announcement before each further list.
fn list_all(mut list: impl FnMut() -> Vec<String>, mut wait_for_change: impl FnMut()) {
    let before = Instant::now();
    let mut listed = count_servers(&list());
    assert!(before.elapsed() < START_DELAY, "the first list took {:?}", before.elapsed());
    while listed < SLOW + FAST {
        wait_for_change();
        let now = count_servers(&list());
        assert!(now >= listed, "{now} of {listed}");
        listed = now;
    }
}

#[test]
fn session_clients_hear_of_servers_that_come_up_later() {
    let home = home();
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let mut changes = client.send_without_body("GET");
    let wait_for_change = || while changes.next_event().expect("a notification")["method"] != CHANGED {};
    list_all(|| client.tools(), wait_for_change);
}

#[test]
fn stateless_clients_hear_of_servers_that_come_up_later() {
    let home = home();
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut listener = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let filter = json!({"notifications": {"toolsListChanged": true}});
    let mut changes = listener.open("subscriptions/listen", &filter);
    changes.next_event().expect("the acknowledgement");
    let wait_for_change = || while changes.next_event().expect("a notification")["method"] != CHANGED {};
    list_all(|| client.tools(), wait_for_change);
}

#[test]
fn pipe_clients_without_gateway_hear_of_servers_that_come_up_later() {
    let home = home();
    let client = std::cell::RefCell::new(StdioClient::new(home.command(&["stdio"]), Era::Session));
    let has_changed = std::cell::Cell::new(false);
    let list = || {
        let mut client = client.borrow_mut();
        let id = client.send("tools/list", &json!({}));
        loop {
            let message = client.read().expect("a response");
            if message["id"] == id {
                return tool_names(&message);
            }
            has_changed.set(has_changed.get() || message["method"] == CHANGED);
        }
    };
    let wait_for_change = || {
        while !has_changed.take() {
            let message = client.borrow_mut().read().expect("a notification");
            has_changed.set(message["method"] == CHANGED);
        }
    };
    list_all(list, wait_for_change);
}

#[test]
fn tools_command_reports_pending_servers() {
    let home = home();
    let _gateway = home.serve();
    let tools = |args: &[&str]| -> serde_json::Value {
        let output = home.run(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let listed = tools(&["tools", "--json"]);
    assert!(listed["pending"].as_array().is_some_and(|pending| pending.len() >= 2), "{}", listed["pending"]);
    assert_eq!(listed["failed"], json!([]));
    test_support::wait_until("the slow servers are listed", || {
        tools(&["tools", "--json"])["pending"] == json!(["b0", "b1"])
    });
}
