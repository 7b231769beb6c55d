//! Sharing of server instances between sessions, pipes and stateless clients.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient};
use test_support::gateway::{GatewayProcess, Home};
use test_support::{process, wait_until};

/// Returns a config with one fake server of this era and this sharing.
fn config(era: &str, sharing: &str, more: &str) -> String {
    let server =
        test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "s", &["--era", era]);
    format!("{server}sharing = '{sharing}'\n{more}")
}

fn home(sharing: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &config("session", sharing, ""))
}

fn session(gateway: &GatewayProcess) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", Era::Session)
}

fn status(home: &Home) -> Value {
    serde_json::from_slice(&home.run(&["status", "s", "--json"]).stdout).unwrap()
}

fn pid(client: &mut HttpClient) -> u32 {
    client.text("s__pid", &json!({})).parse().unwrap()
}

/// Opens a `toolcrib stdio` whose working directory is `folder`.
fn pipe(home: &Home, folder: &str) -> StdioClient {
    std::fs::create_dir_all(home.file(folder)).unwrap();
    let mut command = home.command(&["stdio"]);
    command.current_dir(home.file(folder));
    StdioClient::new(command, Era::Session)
}

#[test]
fn per_client_instances_do_not_share_state() {
    for era in ["session", "stateless"] {
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config(era, "per-client", ""));
        let gateway = home.serve();
        let mut first = session(&gateway);
        let mut second = session(&gateway);
        let mut third = pipe(&home, ".");
        let mut fourth = pipe(&home, ".");
        for _ in 0..2 {
            first.text("s__remember", &json!({"text": "first"}));
            second.text("s__remember", &json!({"text": "second"}));
            third.text("s__remember", &json!({"text": "third"}));
            fourth.text("s__remember", &json!({"text": "fourth"}));
        }
        let all = json!({"text": "."});
        assert_eq!(first.text("s__remember", &all), "first first .");
        assert_eq!(second.text("s__remember", &all), "second second .");
        assert_eq!(third.text("s__remember", &all), "third third .");
        assert_eq!(fourth.text("s__remember", &all), "fourth fourth .");
        let status = status(&home);
        assert_eq!((&status["sharing"], &status["instances"]), (&json!("per-client"), &json!(4)), "{status}");
        let pids: Vec<u64> = status["instances_list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|instance| instance["pid"].as_u64().unwrap())
            .collect();
        assert!(pids.contains(&u64::from(pid(&mut first))), "{pids:?}");
        assert_eq!(status["pid"], Value::Null, "{status}");
    }
}

#[test]
fn shared_server_has_one_process_for_all_clients() {
    let home = home("shared");
    let gateway = home.serve();
    let mut first = session(&gateway);
    let mut second = session(&gateway);
    let mut third = pipe(&home, ".");
    let mut fourth = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(pid(&mut first), pid(&mut second));
    assert_eq!(pid(&mut fourth).to_string(), third.text("s__pid", &json!({})));
    assert_eq!(pid(&mut first), pid(&mut fourth));
    assert_eq!(status(&home)["instances"], 1);
}

#[test]
fn stateless_client_is_identified_by_its_connection() {
    let home = home("per-client");
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    let first = pid(&mut client);
    assert_ne!(first, pid(&mut client), "every request uses its own connection");
    wait_until("the first connection's instance has exited", || !process::is_alive(first));
    let mut command = home.command(&["stdio"]);
    command.current_dir(home.path());
    let mut pipe = StdioClient::new(command, Era::Stateless);
    assert_eq!(pipe.text("s__pid", &json!({})), pipe.text("s__pid", &json!({})));
}

#[test]
fn per_client_instance_stops_when_its_client_disconnects() {
    let home = Home::new(
        env!("CARGO_BIN_EXE_crib"),
        &config("session", "per-client", "lifecycle = { keep-alive = 'forever' }\n"),
    );
    let gateway = home.serve();
    let mut session = session(&gateway);
    let mut pipe = pipe(&home, ".");
    let session_instance = pid(&mut session);
    let pipe_instance: u32 = pipe.text("s__pid", &json!({})).parse().unwrap();
    assert!(process::is_alive(session_instance) && process::is_alive(pipe_instance));
    pipe.close_input();
    wait_until("the pipe's instance has exited", || !process::is_alive(pipe_instance));
    assert!(process::is_alive(session_instance));
    assert_eq!(session.send_without_body("DELETE").finish().status, 204);
    wait_until("the session's instance has exited", || !process::is_alive(session_instance));
    assert_eq!(status(&home)["instances"], 0);
}

#[test]
fn per_project_instance_is_shared_within_a_folder() {
    let home = home("per-project");
    let path = |folder: &str| home.file(folder).canonicalize().unwrap().display().to_string();
    {
        let gateway = home.serve();
        let mut first = pipe(&home, "a");
        let mut same = pipe(&home, "a");
        let mut other = pipe(&home, "b");
        assert_eq!(first.text("s__cwd", &json!({})), path("a"));
        assert_eq!(other.text("s__cwd", &json!({})), path("b"));
        assert_eq!(first.text("s__pid", &json!({})), same.text("s__pid", &json!({})));
        assert_ne!(first.text("s__pid", &json!({})), other.text("s__pid", &json!({})));
        // A stateless client without roots has its own instance.
        let mut stateless = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
        assert!(![path("a"), path("b")].contains(&stateless.text("s__cwd", &json!({}))));
        let keys = status(&home)["instances_list"].to_string();
        assert!(keys.contains(&format!("project {}", path("a"))), "{keys}");
    }
    let mut without_gateway = pipe(&home, "c");
    assert_eq!(without_gateway.text("s__cwd", &json!({})), path("c"));
}

/// Answers `roots/list` requests until the response to `id` arrives.
fn answer_roots_until(pipe: &mut StdioClient, id: u64, roots: &Value) -> Value {
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
fn http_session_is_asked_for_its_roots() {
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
            assert_eq!(client.post_raw("", None, &answer.to_string()).status, 202);
        };
        cwd.push(answer["result"]["content"][0]["text"].clone());
    }
    // Roots tell projects apart, and choose no folder: any local program can name one.
    assert_eq!(cwd[0], cwd[1]);
    assert_ne!(cwd[0], json!(folder.canonicalize().unwrap()));
    assert_eq!(status(&home)["instances"], 1);
}

#[test]
fn server_gets_the_capabilities_of_its_only_client() {
    for (sharing, own) in [("per-client", true), ("shared", false)] {
        let home = home(sharing);
        let gateway = home.serve();
        let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let session = parse(session(&gateway).text("s__client_capabilities", &json!({})));
        let mut stateless = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
        let stateless = parse(stateless.text("s__client_capabilities", &json!({})));
        assert_eq!(session == json!({"elicitation": {}, "sampling": {}, "roots": {}}), own, "{session}");
        assert_eq!(stateless == json!({}), own, "{stateless}");
    }
}

#[test]
fn server_request_reaches_the_client_of_its_call() {
    let home = home("per-client");
    let _gateway = home.serve();
    let mut asked = pipe(&home, ".");
    let mut other = pipe(&home, ".");
    let waiting = other.send("tools/call", &json!({"name": "s__sleep", "arguments": {"ms": 500}}));
    let arguments = json!({"method": "roots/list", "message": "?"});
    let call = asked.send("tools/call", &json!({"name": "s__ask", "arguments": arguments}));
    let answer = answer_roots_until(&mut asked, call, &json!([{"uri": "file:///mine"}]));
    assert!(answer.to_string().contains("file:///mine"), "{answer}");
    let slept = answer_roots_until(&mut other, waiting, &json!([]));
    assert_eq!(slept["result"]["content"][0]["text"], "slept");
}

#[test]
fn reload_restart_stop_and_shutdown_apply_to_every_instance() {
    let home = home("per-client");
    let mut gateway = home.serve();
    let mut first = session(&gateway);
    let mut second = session(&gateway);
    let mut before = vec![pid(&mut first), pid(&mut second)];
    assert!(home.run(&["restart", "s"]).status.success());
    assert!(before.drain(..).all(|pid| !process::is_alive(pid)));
    let mut before = vec![pid(&mut first), pid(&mut second)];
    assert!(home.run(&["stop", "s"]).status.success());
    assert!(before.drain(..).all(|pid| !process::is_alive(pid)));
    let before = [pid(&mut first), pid(&mut second)];
    home.write_config(&config("session", "per-client", "env = { A = 'b' }\n"));
    gateway.signal(rustix::process::Signal::HUP);
    wait_until("the old instances have exited", || before.iter().all(|pid| !process::is_alive(*pid)));
    assert_eq!(first.text("s__env", &json!({"name": "A"})), "b");
    let last = [pid(&mut first), pid(&mut second)];
    assert!(gateway.stop().success());
    assert!(last.iter().all(|pid| !process::is_alive(*pid)));
}

#[test]
fn client_above_the_instance_limit_is_refused() {
    let limits = "limits = { instances = 1 }\n";
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config("session", "per-client", limits));
    let gateway = home.serve();
    let mut busy = pipe(&home, ".");
    busy.text("s__pid", &json!({}));
    busy.send("tools/call", &json!({"name": "s__hang", "arguments": {}}));
    wait_until("the call is in flight", || status(&home)["in_flight"] == 1);
    let refused = session(&gateway).call("s__echo", &json!({"text": "x"}));
    assert_eq!(refused["error"]["code"], -31011, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("1 instances"), "{refused}");
    busy.close_input();
    wait_until("the instance is free", || {
        session(&gateway).call("s__echo", &json!({"text": "x"}))["error"].is_null()
    });
}

#[test]
fn instances_share_one_restart_budget() {
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), "");
    let starts = home.file("starts");
    let args = ["--era", "session", "--count-file", starts.to_str().unwrap(), "--exit-at-start", "1000"];
    let server = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "s", &args);
    let lifecycle = "[servers.s.lifecycle]\nrestarts = { at-most = 3, within = '5m' }\n";
    home.write_config(&format!("{server}sharing = 'per-client'\nera = 'legacy'\n{lifecycle}"));
    let gateway = home.serve();
    let address = gateway.address;
    let call = || {
        let mut client = HttpClient::new(address, "/mcp/s/s", Era::Session);
        let answer = client.call("echo", &json!({"text": "x"}));
        assert!(matches!(answer["error"]["code"].as_i64(), Some(-31014 | -31013)), "{answer}");
    };
    std::thread::scope(|scope| (0..15).for_each(|_| drop(scope.spawn(call))));
    let status = status(&home);
    assert_eq!((&status["state"], &status["restarts_left"]), (&json!("ejected"), &json!(0)), "{status}");
    assert_eq!(std::fs::metadata(&starts).unwrap().len(), 4);
    // A later call is refused without a start.
    call();
    assert_eq!(std::fs::metadata(&starts).unwrap().len(), 4);
}
