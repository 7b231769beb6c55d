//! The first listing of many servers: clients wait for them within limits, and those that are slower are announced when they are
//! up.

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
    Home::new(env!("CARGO_BIN_EXE_crib"), &format!("[limits]\nfirst-listing-wait = '1s'\n{servers}"))
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

/// The time limit of a request in some client libraries.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns a config in which everything has its default, with servers that take a while, fail, hang and work.
fn newcomers_home() -> Home {
    let server = |name: &str, args: &[&str]| {
        test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, args)
    };
    let servers = [
        "[servers.broken]\ncommand = 'false'\n".to_owned(),
        server("hung", &["--never-answer-handshake"]),
        server("quick", &[]),
        server("slow", &["--start-delay-ms", "5000"]),
    ];
    Home::new(env!("CARGO_BIN_EXE_crib"), &servers.concat())
}

/// Runs a request of a client that gives up after five seconds.
fn within_client_timeout<T>(request: impl FnOnce() -> T) -> T {
    let before = Instant::now();
    let answer = request();
    assert!(before.elapsed() < CLIENT_TIMEOUT, "the request took {:?}", before.elapsed());
    answer
}

fn servers_of(tools: &[String]) -> Vec<&str> {
    let mut servers: Vec<&str> = tools.iter().filter_map(|tool| tool.split("__").next()).collect();
    servers.dedup();
    servers
}

#[test]
fn first_list_of_a_session_has_every_server_that_comes_up_in_time() {
    let home = newcomers_home();
    let gateway = home.serve();
    let client = within_client_timeout(|| HttpClient::new(gateway.address, "/mcp", Era::Session));
    let mut client = client;
    assert_eq!(servers_of(&within_client_timeout(|| client.tools())), ["quick", "slow"]);
    let before = Instant::now();
    let mut next = HttpClient::new(gateway.address, "/mcp", Era::Session);
    assert_eq!(next.tools().len(), client.tools().len());
    assert!(before.elapsed() < Duration::from_secs(4), "the next client waited {:?}", before.elapsed());
}

#[test]
fn first_list_of_a_stateless_client_has_every_server_that_comes_up_in_time() {
    let home = newcomers_home();
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let discovered = within_client_timeout(|| client.request("server/discover", &json!({})));
    let instructions = discovered.message()["result"]["instructions"].clone();
    let instructions = instructions.as_str().unwrap_or_default().to_owned();
    assert!(instructions.ends_with("Not available yet: broken, hung, slow."), "{instructions}");
    assert_eq!(servers_of(&within_client_timeout(|| client.tools())), ["quick", "slow"]);
}

#[test]
fn first_list_on_a_pipe_has_every_server_that_comes_up_in_time() {
    let home = newcomers_home();
    let mut client = within_client_timeout(|| StdioClient::new(home.command(&["stdio"]), Era::Session));
    let answer = within_client_timeout(|| client.request("tools/list", &json!({})));
    assert_eq!(servers_of(&tool_names(&answer)), ["quick", "slow"]);
}

#[test]
fn endpoint_of_one_server_has_its_list_or_its_error() {
    let home = newcomers_home();
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut broken = within_client_timeout(|| HttpClient::new(gateway.address, "/mcp/s/broken", era));
        let answer = within_client_timeout(|| broken.request("tools/list", &json!({}))).message();
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("`broken`") && message.contains("exit status"), "{answer}");
        let mut hung = within_client_timeout(|| HttpClient::new(gateway.address, "/mcp/s/hung", era));
        let answer = within_client_timeout(|| hung.request("tools/list", &json!({}))).message();
        assert_eq!(answer["error"]["message"], "server `hung` is still starting");
    }
    let mut slow = HttpClient::new(gateway.address, "/mcp/s/slow", Era::Stateless);
    assert!(!within_client_timeout(|| slow.tools()).is_empty());
}

#[test]
fn denied_tool_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("starts");
    let args = ["--count-file", count.to_str().unwrap()];
    let server = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "a", &args);
    let config = format!("{server}[policy]\ndeny = [\"a.echo\"]\n[limits]\nfirst-listing-wait = \"0s\"\n");
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config);
    let output = home.run(&["call", "a.echo", "text=x"]);
    assert_eq!((output.status.code(), test_support::count_starts(&count)), (Some(7), 0), "{output:?}");
    let output = home.run(&["call", "a__echo", "text=x"]);
    assert_eq!((output.status.code(), test_support::count_starts(&count)), (Some(7), 0), "{output:?}");
    // A session lists in `initialize`; a stateless client may call without a list.
    let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Stateless);
    let call = json!({"name": "a__echo", "arguments": {"text": "x"}});
    assert_eq!(pipe.request("tools/call", &call)["error"]["code"], -31010);
    let gateway = home.serve();
    for (path, tool) in [("/mcp", "a__echo"), ("/mcp/s/a", "echo")] {
        let mut client = HttpClient::new(gateway.address, path, Era::Stateless);
        let answer = client.call(tool, &json!({"text": "x"}));
        assert_eq!(answer["error"]["code"], -31010, "{answer}");
    }
    assert_eq!(test_support::count_starts(&count), 0);
}
