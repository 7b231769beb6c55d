//! Who shares a server with whom: sessions, pipes and stateless clients in front of real processes.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, PipeClient};
use test_support::gateway::{Gateway, Home};
use test_support::{process, wait_until};

/// A config with one fake server of this era, shared in this way.
fn config(era: &str, sharing: &str, more: &str) -> String {
    let server = test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), "s", &["--era", era]);
    format!("{server}sharing = '{sharing}'\n{more}")
}

fn home(sharing: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &config("session", sharing, ""))
}

fn session(gateway: &Gateway) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", Era::Session)
}

fn status(home: &Home) -> Value {
    serde_json::from_slice(&home.run(&["status", "s", "--json"]).stdout).unwrap()
}

fn pid(client: &mut HttpClient) -> u32 {
    client.text("s__pid", &json!({})).parse().unwrap()
}

/// A pipe to the running gateway, or one that stands alone, from an agent that works in `folder`.
fn pipe(home: &Home, folder: &str) -> PipeClient {
    std::fs::create_dir_all(home.file(folder)).unwrap();
    let mut command = home.command(&["stdio"]);
    command.current_dir(home.file(folder));
    PipeClient::new(command, Era::Session)
}

#[test]
fn clients_of_a_server_per_client_never_see_each_others_state() {
    for era in ["session", "stateless"] {
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config(era, "per-client", ""));
        let gateway = home.serve();
        let (mut first, mut second) = (session(&gateway), session(&gateway));
        let (mut third, mut fourth) = (pipe(&home, "."), pipe(&home, "."));
        for _ in 0..2 {
            first.text("s__keep", &json!({"text": "first"}));
            second.text("s__keep", &json!({"text": "second"}));
            third.text("s__keep", &json!({"text": "third"}));
            fourth.text("s__keep", &json!({"text": "fourth"}));
        }
        let all = json!({"text": "."});
        assert_eq!(first.text("s__keep", &all), "first first .");
        assert_eq!(second.text("s__keep", &all), "second second .");
        assert_eq!(third.text("s__keep", &all), "third third .");
        assert_eq!(fourth.text("s__keep", &all), "fourth fourth .");
        let status = status(&home);
        assert_eq!((&status["sharing"], &status["instances"]), (&json!("per-client"), &json!(4)), "{status}");
        let pids: Vec<u64> = status["instances_list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["pid"].as_u64().unwrap())
            .collect();
        assert!(pids.contains(&u64::from(pid(&mut first))), "{pids:?}");
        assert_eq!(status["pid"], Value::Null, "{status}");
    }
}

#[test]
fn clients_of_a_shared_server_share_one_process() {
    let home = home("shared");
    let gateway = home.serve();
    let (mut first, mut second) = (session(&gateway), session(&gateway));
    let mut third = pipe(&home, ".");
    let mut fourth = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(pid(&mut first), pid(&mut second));
    assert_eq!(pid(&mut fourth).to_string(), third.text("s__pid", &json!({})));
    assert_eq!(pid(&mut first), pid(&mut fourth));
    assert_eq!(status(&home)["instances"], 1);
}

#[test]
fn a_stateless_client_is_its_connection() {
    let home = home("per-client");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let first = pid(&mut client);
    assert_ne!(first, pid(&mut client), "it came on a connection of its own");
    wait_until("nothing is left of the first connection's server", || !process::is_alive(first));
    let mut command = home.command(&["stdio"]);
    command.current_dir(home.path());
    let mut pipe = PipeClient::new(command, Era::Stateless);
    assert_eq!(pipe.text("s__pid", &json!({})), pipe.text("s__pid", &json!({})));
}

#[test]
fn a_server_leaves_with_the_client_it_was_for() {
    let home = Home::new(
        env!("CARGO_BIN_EXE_crib"),
        &config("session", "per-client", "lifecycle = { keep-alive = 'forever' }\n"),
    );
    let gateway = home.serve();
    let mut session = session(&gateway);
    let mut pipe = pipe(&home, ".");
    let of_session = pid(&mut session);
    let of_pipe: u32 = pipe.text("s__pid", &json!({})).parse().unwrap();
    assert!(process::is_alive(of_session) && process::is_alive(of_pipe));
    pipe.hang_up();
    wait_until("the server of the pipe is gone", || !process::is_alive(of_pipe));
    assert!(process::is_alive(of_session));
    assert_eq!(session.bare("DELETE").finish().status, 204);
    wait_until("the server of the session is gone", || !process::is_alive(of_session));
    assert_eq!(status(&home)["instances"], 0);
}

#[test]
fn everybody_who_works_in_one_place_shares_a_server_that_works_there() {
    let home = home("per-project");
    let place = |folder: &str| home.file(folder).canonicalize().unwrap().display().to_string();
    {
        let gateway = home.serve();
        let (mut one, mut same, mut other) = (pipe(&home, "a"), pipe(&home, "a"), pipe(&home, "b"));
        assert_eq!(one.text("s__cwd", &json!({})), place("a"));
        assert_eq!(other.text("s__cwd", &json!({})), place("b"));
        assert_eq!(one.text("s__pid", &json!({})), same.text("s__pid", &json!({})));
        assert_ne!(one.text("s__pid", &json!({})), other.text("s__pid", &json!({})));
        // A stateless client that says nothing has a server of its own.
        let mut alone = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
        assert!(![place("a"), place("b")].contains(&alone.text("s__cwd", &json!({}))));
        let keys = status(&home)["instances_list"].to_string();
        assert!(keys.contains(&format!("project {}", place("a"))), "{keys}");
    }
    let mut alone = pipe(&home, "c");
    assert_eq!(alone.text("s__cwd", &json!({})), place("c"));
}

/// Answers every question about its roots until the answer to `id` is there.
fn answering(pipe: &mut PipeClient, id: u64, roots: &Value) -> Value {
    loop {
        let message = pipe.read().unwrap();
        match message["method"].as_str() {
            Some("roots/list") => {
                let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": roots}});
                pipe.write(&answer.to_string());
            }
            Some(_) => {}
            None if message["id"] == id => return message,
            None => {}
        }
    }
}

#[test]
fn a_session_over_http_is_asked_for_its_roots() {
    let home = home("per-project");
    let folder = home.file("work");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&folder, home.file("link")).unwrap();
    let gateway = home.serve();
    let mut cwd = Vec::new();
    for root in [&folder, &home.file("link")] {
        let mut client = session(&gateway);
        let mut stream = client.open("tools/call", &json!({"name": "s__cwd", "arguments": {}}));
        let answer = loop {
            let event = stream.next_event().unwrap();
            if event["method"] != "roots/list" {
                break event;
            }
            let roots = json!([{"uri": format!("file://{}", root.display())}]);
            let answer = json!({"jsonrpc": "2.0", "id": event["id"], "result": {"roots": roots}});
            assert_eq!(client.raw("", None, &answer.to_string()).status, 202);
        };
        cwd.push(answer["result"]["content"][0]["text"].clone());
    }
    let folder = json!(folder.canonicalize().unwrap());
    assert_eq!(cwd, [folder.clone(), folder]);
    assert_eq!(status(&home)["instances"], 1);
}

#[test]
fn a_server_is_told_what_its_own_client_can() {
    for (sharing, own) in [("per-client", true), ("shared", false)] {
        let home = home(sharing);
        let gateway = home.serve();
        let declared = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let session = declared(session(&gateway).text("s__declared", &json!({})));
        let mut stateless = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
        let stateless = declared(stateless.text("s__declared", &json!({})));
        assert_eq!(session == json!({"elicitation": {}, "sampling": {}, "roots": {}}), own, "{session}");
        assert_eq!(stateless == json!({}), own, "{stateless}");
    }
}

#[test]
fn a_question_finds_its_client_though_others_call_too() {
    let home = home("per-client");
    let _gateway = home.serve();
    let (mut asked, mut other) = (pipe(&home, "."), pipe(&home, "."));
    let waiting = other.send("tools/call", &json!({"name": "s__sleep", "arguments": {"ms": 500}}));
    let arguments = json!({"method": "roots/list", "message": "?"});
    let call = asked.send("tools/call", &json!({"name": "s__ask", "arguments": arguments}));
    let answer = answering(&mut asked, call, &json!([{"uri": "file:///mine"}]));
    assert!(answer.to_string().contains("file:///mine"), "{answer}");
    let slept = answering(&mut other, waiting, &json!([]));
    assert_eq!(slept["result"]["content"][0]["text"], "slept");
}

#[test]
fn reload_restart_stop_and_the_end_are_for_every_instance() {
    let home = home("per-client");
    let mut gateway = home.serve();
    let (mut first, mut second) = (session(&gateway), session(&gateway));
    let mut before = vec![pid(&mut first), pid(&mut second)];
    assert!(home.run(&["restart", "s"]).status.success());
    assert!(before.drain(..).all(|pid| !process::is_alive(pid)));
    let mut before = vec![pid(&mut first), pid(&mut second)];
    assert!(home.run(&["stop", "s"]).status.success());
    assert!(before.drain(..).all(|pid| !process::is_alive(pid)));
    let before = [pid(&mut first), pid(&mut second)];
    home.write_config(&config("session", "per-client", "env = { A = 'b' }\n"));
    gateway.signal(rustix::process::Signal::HUP);
    wait_until("the old ones are gone", || before.iter().all(|pid| !process::is_alive(*pid)));
    assert_eq!(first.text("s__env", &json!({"name": "A"})), "b");
    let last = [pid(&mut first), pid(&mut second)];
    assert!(gateway.stop().success());
    assert!(last.iter().all(|pid| !process::is_alive(*pid)));
}

#[test]
fn one_client_too_many_is_told_so() {
    let limits = "limits = { instances = 1 }\n";
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config("session", "per-client", limits));
    let gateway = home.serve();
    let mut busy = pipe(&home, ".");
    busy.text("s__pid", &json!({}));
    busy.send("tools/call", &json!({"name": "s__hang", "arguments": {}}));
    wait_until("it is busy", || status(&home)["in_flight"] == 1);
    let refused = session(&gateway).call("s__echo", &json!({"text": "x"}));
    assert_eq!(refused["error"]["code"], -31011, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("1 instances"), "{refused}");
    busy.hang_up();
    wait_until("there is room again", || {
        session(&gateway).call("s__echo", &json!({"text": "x"}))["error"].is_null()
    });
}

#[test]
fn a_server_that_dies_at_once_has_one_budget_for_all_its_clients() {
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), "");
    let starts = home.file("starts");
    let args = ["--era", "session", "--count-file", starts.to_str().unwrap(), "--exit-at-start", "1000"];
    let server = test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), "s", &args);
    let care = "[servers.s.lifecycle]\nrestarts = { at-most = 3, within = '5m' }\n";
    home.write_config(&format!("{server}sharing = 'per-client'\nera = 'legacy'\n{care}"));
    let gateway = home.serve();
    let address = gateway.address;
    let refused = || {
        let mut client = HttpClient::new(address, "/mcp/s/s", Era::Session);
        let answer = client.call("echo", &json!({"text": "x"}));
        assert!(matches!(answer["error"]["code"].as_i64(), Some(-31014 | -31013)), "{answer}");
    };
    std::thread::scope(|scope| (0..15).for_each(|_| drop(scope.spawn(refused))));
    let seen = status(&home);
    assert_eq!((&seen["state"], &seen["restarts_left"]), (&json!("ejected"), &json!(0)), "{seen}");
    assert_eq!(std::fs::metadata(&starts).unwrap().len(), 4);
    // The next one learns of it without a start.
    refused();
    assert_eq!(std::fs::metadata(&starts).unwrap().len(), 4);
}
