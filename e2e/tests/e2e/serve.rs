//! The gateway as a process: start, status, reload and shutdown.

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient, message};
use test_support::gateway::Home;
use test_support::{count_starts, http, process, wait_until};

fn server(name: &str, args: &[&str]) -> String {
    test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, args)
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

#[test]
fn health_endpoints_answer_and_unknown_paths_are_not_found() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http::request(gateway.address, "GET", path, &[], b"").status, 200, "{path}");
    }
    for path in ["/nothing", "/mcp/p/none", "/api/v1/servers/absent", "/api/v1/stdio"] {
        assert_eq!(http::request(gateway.address, "GET", path, &[], b"").status, 404, "{path}");
    }
}

#[test]
fn stored_listings_are_served_without_starting_servers() {
    let home = home("");
    let count = home.file("starts");
    let args = ["--tools", "5", "--count-file", count.to_str().unwrap()];
    home.write_config(&(0..10).map(|number| server(&format!("s{number}"), &args)).collect::<String>());
    let mut first = home.serve();
    assert_eq!(HttpClient::new(first.address, "/mcp", Era::Stateless).tools().len(), 350);
    assert_eq!(count_starts(&count), 10);
    assert!(first.stop().success());
    let second = home.serve();
    for era in [Era::Session, Era::Stateless] {
        assert_eq!(HttpClient::new(second.address, "/mcp", era).tools().len(), 350);
    }
    assert_eq!((count_starts(&count), second.children().len()), (10, 0));
}

#[test]
fn stop_lets_calls_finish_and_leaves_no_process() {
    let home = home(
        &(server("fake", &["--grandchild"]) + &server("unstoppable", &["--ignore-eof", "--ignore-term"])),
    );
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let mut pids: Vec<u32> = Vec::new();
    for tool in ["fake__pid", "fake__grandchild", "unstoppable__pid"] {
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
    wait_until("no process is left", || !pids.iter().any(|pid| process::is_alive(*pid)));
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn second_stop_signal_does_not_wait_for_calls() {
    let home =
        home(&format!("[limits]\ndrain = \"10m\"\nfirst-listing-wait = \"0s\"\n{}", server("fake", &[])));
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
    // Lost with its server, which may still have been starting, or refused because of the shutdown.
    let code = hanging.join().unwrap();
    assert!(code.is_some_and(|code| [-31014, -31015, -31017].contains(&code)), "{code:?}");
}

#[test]
fn streams_end_with_the_gateway_and_do_not_delay_it() {
    let home = home(&server("fake", &[]));
    let mut gateway = home.serve();
    let session = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let get_stream = session.send_without_body("GET");
    let mut stateless = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let params = json!({"notifications": {"toolsListChanged": true}});
    let listening = stateless.open("subscriptions/listen", &params);
    assert_eq!((get_stream.status, listening.status), (200, 200));
    let stopped = gateway.stop();
    assert!(stopped.success() && get_stream.finish().messages().is_empty());
    let last = listening.finish().message();
    assert_eq!(last["result"]["resultType"], "complete", "{last}");
    assert!(!gateway.stderr_lines().iter().any(|line| line.contains("did not read their responses")));
}

#[test]
fn reload_keeps_unchanged_servers_and_ignores_an_invalid_file() {
    let kept = server("kept", &[]);
    let home = home(&(kept.clone() + &server("removed", &[])));
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let pid = client.text("kept__pid", &json!({}));
    let removed: u32 = client.text("removed__pid", &json!({})).parse().unwrap();
    home.write_config(&(kept + &server("added", &[])));
    gateway.signal(Signal::HUP);
    wait_until("the new server is listed", || client.tools().iter().any(|tool| tool == "added__echo"));
    wait_until("the removed server has exited", || !process::is_alive(removed));
    assert!(!client.tools().iter().any(|tool| tool.starts_with("removed__")));
    assert_eq!(client.text("kept__pid", &json!({})), pid, "an unchanged server keeps its process");
    home.write_config("[servers.broken\n");
    let lines = gateway.stderr_lines().len();
    gateway.signal(Signal::HUP);
    wait_until("the invalid file is reported", || gateway.stderr_lines().len() > lines);
    assert_eq!(client.text("kept__pid", &json!({})), pid);
    assert_eq!(client.text("added__echo", &json!({"text": "still here"})), "still here");
}

#[test]
fn second_gateway_for_the_same_config_is_refused() {
    let home = home(&server("fake", &[]));
    let _gateway = home.serve();
    let second = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(!second.status.success());
    assert!(!second.stderr.is_empty());
}

#[test]
fn serve_refuses_open_listeners_and_invalid_configs() {
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
fn crash_is_reported_to_the_client_and_the_next_call_succeeds() {
    let home = home(&server("fake", &[]));
    let gateway = home.serve();
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp", era);
        let error = &client.call("fake__crash", &json!({}))["error"];
        assert_eq!(error["code"], -31015, "{error}");
        assert_eq!(error["data"]["exit"], "exit status 101", "{error}");
        assert_eq!(error["data"]["stderr"][1], "crashing on purpose", "{error}");
        assert_eq!(client.text("fake__echo", &json!({"text": "back"})), "back");
    }
}

#[test]
fn killed_gateway_leaves_no_server() {
    let home = home(&server("fake", &[]));
    let mut gateway = home.serve();
    let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Stateless);
    let child: u32 = pipe.text("fake__pid", &json!({})).parse().unwrap();
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until("its server exits at the end of its input", || !process::is_alive(child));
    pipe.close_input();
    wait_until("stdio exits", || pipe.has_ended());
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
