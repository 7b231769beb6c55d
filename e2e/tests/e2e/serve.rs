//! The gateway as a process: how it starts, what it tells about itself, and how it reloads and ends.

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, PipeClient, message};
use test_support::gateway::Home;
use test_support::{http, process, starts, wait_until};

fn server(name: &str, args: &[&str]) -> String {
    test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), name, args)
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

#[test]
fn health_and_readiness_are_told_and_the_rest_is_not_found() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http::request(gateway.address, "GET", path, &[], b"").status, 200, "{path}");
    }
    for path in ["/nothing", "/mcp/p/none", "/api/v1/servers/nobody", "/api/v1/stdio"] {
        assert_eq!(http::request(gateway.address, "GET", path, &[], b"").status, 404, "{path}");
    }
}

#[test]
fn ten_servers_seen_once_are_listed_by_the_next_gateway_with_none_of_them_started() {
    let home = home("");
    let count = home.file("starts");
    let args = ["--tools", "5", "--count-file", count.to_str().unwrap()];
    home.write_config(&(0..10).map(|number| server(&format!("s{number}"), &args)).collect::<String>());
    let mut first = home.serve();
    assert_eq!(first.children(), [0_u32; 0], "nothing starts before it is asked for");
    assert_eq!(HttpClient::new(first.address, "/mcp", Era::Stateless).tools().len(), 350);
    assert_eq!(starts(&count), 10);
    assert!(first.stop().success());
    let second = home.serve();
    for era in [Era::Session, Era::Stateless] {
        assert_eq!(HttpClient::new(second.address, "/mcp", era).tools().len(), 350);
    }
    assert_eq!((starts(&count), second.children().len()), (10, 0));
}

#[test]
fn a_stop_lets_calls_finish_and_leaves_no_process() {
    let home =
        home(&(server("fake", &["--grandchild"]) + &server("stubborn", &["--ignore-eof", "--ignore-term"])));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut pids: Vec<u32> = Vec::new();
    for tool in ["fake__pid", "fake__grandchild", "stubborn__pid"] {
        pids.push(client.text(tool, &json!({})).parse().unwrap());
    }
    assert!(pids.iter().all(|pid| process::is_alive(*pid)));
    let address = gateway.address;
    let calls: Vec<_> = (0..5)
        .map(|_| {
            std::thread::spawn(move || {
                HttpClient::new(address, "/mcp", Era::Stateless).text("fake__sleep", &json!({"ms": 700}))
            })
        })
        .collect();
    wait_until("all are in flight", || {
        let status: Value = serde_json::from_slice(&home.run(&["status", "--json"]).stdout).unwrap();
        status["servers"].as_array().unwrap().iter().any(|server| server["in_flight"] == 5)
    });
    gateway.signal(Signal::TERM);
    for call in calls {
        assert_eq!(call.join().unwrap(), "slept");
    }
    assert!(gateway.wait().success());
    wait_until("nobody is left", || !pids.iter().any(|pid| process::is_alive(*pid)));
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_second_request_to_stop_does_not_wait_for_calls() {
    let home = home(&format!("[limits]\ndrain = \"10m\"\n{}", server("fake", &[])));
    let mut gateway = home.serve();
    let address = gateway.address;
    let hanging = std::thread::spawn(move || {
        let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
        client.request("tools/call", &json!({"name": "fake__hang", "arguments": {}})).code()
    });
    wait_until("the server runs", || gateway.children().len() == 1);
    let child = gateway.children()[0];
    gateway.signal(Signal::TERM);
    gateway.signal(Signal::INT);
    assert!(gateway.wait().success());
    assert!(!process::is_alive(child));
    // Lost with its server, which may not even have been up yet, or refused because the gateway was going down: either
    // way it was told.
    let code = hanging.join().unwrap();
    assert!(code.is_some_and(|code| [-31014, -31015, -31017].contains(&code)), "{code:?}");
}

#[test]
fn streams_end_with_the_gateway_and_do_not_hold_it_up() {
    let home = home(&server("fake", &[]));
    let mut gateway = home.serve();
    let session = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let news = session.bare("GET");
    let mut stateless = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listening = stateless.open("subscriptions/listen", &wanted);
    assert_eq!((news.status, listening.status), (200, 200));
    let stopped = gateway.stop();
    assert!(stopped.success() && news.finish().messages().is_empty());
    let told = listening.finish().message();
    assert_eq!(told["result"]["resultType"], "complete", "{told}");
    assert!(!gateway.said().iter().any(|line| line.contains("did not take their answers")));
}

#[test]
fn a_reload_changes_only_what_changed_and_a_broken_file_changes_nothing() {
    let stays = server("stays", &[]);
    let home = home(&(stays.clone() + &server("goes", &[])));
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let pid = client.text("stays__pid", &json!({}));
    let gone: u32 = client.text("goes__pid", &json!({})).parse().unwrap();
    home.write_config(&(stays + &server("comes", &[])));
    gateway.signal(Signal::HUP);
    wait_until("the new server is there", || client.tools().iter().any(|tool| tool == "comes__echo"));
    wait_until("the old one is gone", || !process::is_alive(gone));
    assert!(!client.tools().iter().any(|tool| tool.starts_with("goes__")));
    assert_eq!(client.text("stays__pid", &json!({})), pid, "what did not change keeps its process");
    home.write_config("[servers.broken\n");
    let said = gateway.said().len();
    gateway.signal(Signal::HUP);
    wait_until("it says so", || gateway.said().len() > said);
    assert_eq!(client.text("stays__pid", &json!({})), pid);
    assert_eq!(client.text("comes__echo", &json!({"text": "still here"})), "still here");
}

#[test]
fn a_second_gateway_for_the_same_config_is_refused() {
    let home = home(&server("fake", &[]));
    let _gateway = home.serve();
    let second = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(!second.status.success());
    assert!(!second.stderr.is_empty());
}

#[test]
fn a_gateway_reachable_by_others_or_without_a_valid_config_does_not_start() {
    let home = home(&server("fake", &[]));
    let open = home.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(1), "{}", String::from_utf8_lossy(&open.stderr));
    home.write_config("[servers.fake]\ncommand = ");
    let broken = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(broken.status.code(), Some(6), "{}", String::from_utf8_lossy(&broken.stderr));
    assert!(
        String::from_utf8_lossy(&broken.stderr).contains("config.toml:2:"),
        "{}",
        String::from_utf8_lossy(&broken.stderr)
    );
}

#[test]
fn a_crash_is_told_to_the_client_with_its_reason_and_the_next_call_succeeds() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp", era);
        let error = &client.call("fake__crash", &json!({}))["error"];
        assert_eq!(error["code"], -31015, "{error}");
        assert_eq!(error["data"]["exit"], "exit status 101", "{error}");
        assert_eq!(error["data"]["stderr"][1], "the disk is on fire", "{error}");
        assert_eq!(client.text("fake__echo", &json!({"text": "back"})), "back");
    }
}

#[test]
fn a_killed_gateway_leaves_no_server_that_listens_to_it_and_a_pipe_that_ends_with_its_agent() {
    let home = home(&server("fake", &[]));
    let mut gateway = home.serve();
    let mut pipe = PipeClient::new(home.command(&["stdio"]), Era::Stateless);
    let child: u32 = pipe.text("fake__pid", &json!({})).parse().unwrap();
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until("its server leaves at the end of its input", || !process::is_alive(child));
    pipe.hang_up();
    wait_until("the pipe ends", || pipe.has_ended());
}

#[test]
fn one_connection_serves_many_requests() {
    use std::io::{Read as _, Write as _};
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    let mut stream = std::net::TcpStream::connect(gateway.address).unwrap();
    for number in 0..3 {
        let body = message(Era::Stateless, &json!(number), "server/discover", &json!({})).to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: server/discover\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(&format!("\"id\":{number}")), "{text}");
    }
}
