//! Tests of the gateway and of commands that attach to it.

use super::*;

use std::io::{BufRead as _, BufReader};

#[test]
fn status_restart_and_stop_act_on_gateway() {
    let home = Home::with_demo_servers();
    let mut gateway = home.serve(&["-q"]);
    let before = home.run(&["status", "--json"]).expect(0).json();
    assert_eq!(before["config"]["generation"], 1);
    wait_until("every server is listed, without a client", || {
        let status = home.run(&["status", "--json"]).expect(0).json();
        status["servers"].as_array().unwrap().iter().all(|server| server["tools"].is_u64())
    });

    assert_eq!(home.run(&["call", "echo", "say", "text=1"]).expect(0).stdout, "1\n");
    assert_eq!(home.run(&["call", "counter__add", "n=2"]).expect(0).stdout, "2\n");
    assert_eq!(
        home.run(&["call", "counter__add", "n=2"]).expect(0).stdout,
        "4\n",
        "the gateway keeps the server"
    );
    assert!(home.run(&["tools"]).expect(0).stdout.contains("echo__say\t"));

    let counter = home.run(&["status", "counter", "--json"]).expect(0).json();
    assert_eq!((&counter["state"], &counter["calls"]), (&"ready".into(), &2.into()));
    assert_eq!((&counter["era"], &counter["protocol_version"]), (&"legacy".into(), &"2025-11-25".into()));
    let old = counter["pid"].as_u64().unwrap();
    home.run(&["restart", "counter"]).expect(0);
    let new = home.run(&["status", "counter", "--json"]).expect(0).json()["pid"].as_u64().unwrap();
    assert!(new != old && !is_alive(old) && is_alive(new));
    let logs = home.run(&["logs", "counter"]).expect(0).stdout;
    assert!(logs.contains(&format!("pid {new}")), "{logs}");

    home.run(&["stop", "counter"]).expect(0);
    assert_eq!(home.run(&["status", "counter", "--json"]).expect(0).json()["state"], "asleep");
    assert!(!is_alive(new));
    assert_eq!(home.run(&["call", "counter__add", "n=1"]).expect(0).stdout, "1\n", "the next call starts it");

    let echo = home.run(&["status", "echo", "--json"]).expect(0).json()["pid"].as_u64().unwrap();
    assert_eq!(gateway.stop().code(), Some(0));
    assert!(!is_alive(echo), "servers stop with the gateway");
    home.run(&["status"]).expect(4);
}

#[test]
fn errors_through_gateway_keep_exit_codes() {
    let home =
        Home::new(&format!("{}\n{}\n{}", server("echo", "echo"), server("counter", "counter"), crashing()));
    let _gateway = home.serve(&["-q"]);
    home.run(&["call", "echo__fail", "text=no"]).expect(5);
    home.run(&["call", "nothing"]).expect(5);
    home.run(&["call", "echo", "nothing"]).expect(5);
    home.run(&["call", "absent", "nothing"]).expect(5);
    home.run(&["call", "counter__ponder", "--timeout", "300ms"]).expect(8);
    let crashed = home.run(&["call", "crashing__x"]).expect(4);
    assert!(crashed.stderr.contains("\n  crashing on purpose\nhint: "), "{}", crashed.stderr);
    let unknown = home.run(&["restart", "ecko"]).expect(1);
    assert!(unknown.stderr.contains("did you mean `echo`?"), "{}", unknown.stderr);
    home.run(&["logs", "absent"]).expect(1);
    home.run(&["status", "absent"]).expect(1);
}

#[test]
fn second_gateway_for_config_is_refused() {
    let home = Home::with_demo_servers();
    let mut gateway = home.serve(&[]);
    let second = home.run(&["serve", "--listen", "127.0.0.1:0"]).expect(1);
    assert!(second.stderr.contains(&format!("pid {}", gateway.pid())), "{}", second.stderr);
    let other = Home::new("");
    home.run(&["status", "--config", path_text(&other.config())]).expect(4);
    gateway.signal(Signal::KILL);
    gateway.wait();
    // The stale socket must not prevent the next start.
    assert_eq!(home.serve(&[]).stop().code(), Some(0));
}

#[test]
fn sighup_reloads_config() {
    let home = Home::new(&server("echo", "echo"));
    let gateway = home.serve(&[]);
    home.run(&["call", "echo__say", "text=x"]).expect(0);
    let pid = home.run(&["status", "echo", "--json"]).expect(0).json()["pid"].clone();
    home.write(&format!("{}\n{}", server("echo", "echo"), server("counter", "counter")));
    gateway.signal(Signal::HUP);
    assert_eq!(gateway.wait_for_line("config reloaded: "), "1 added, 0 removed, 0 changed");
    assert_eq!(home.run(&["call", "counter__add", "n=1"]).expect(0).stdout, "1\n");
    assert_eq!(
        home.run(&["status", "echo", "--json"]).expect(0).json()["pid"],
        pid,
        "an unchanged server keeps running"
    );

    home.write("[servers.echo\n");
    gateway.signal(Signal::HUP);
    gateway.wait_for_line("the previous config stays in use");
    let status = home.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["config"]["generation"], 2);
    assert_eq!(status["config"]["problems"][0]["line"], 1);
    assert_eq!(home.run(&["call", "echo__say", "text=still"]).expect(0).stdout, "still\n");
}

#[test]
fn problem_of_one_server_does_not_affect_others() {
    let home = Home::new(&format!("{}\n[servers.broken]\ncomand = \"x\"\n", server("echo", "echo")));
    let gateway = home.serve(&[]);
    assert_eq!(home.run(&["call", "echo__say", "text=x"]).expect(0).stdout, "x\n");
    let shown = home.run(&["status"]).expect(0);
    assert!(shown.stdout.contains("\necho\tready\t"), "{}", shown.stdout);
    assert!(shown.stderr.contains("config.toml:"), "{}", shown.stderr);
    drop(gateway);
}

#[test]
fn logs_follow_prints_new_lines() {
    let home = Home::with_demo_servers();
    let _gateway = home.serve(&["-q"]);
    home.run(&["restart", "echo"]).expect(0);
    let mut logs = home.command(&["logs", "echo", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = Lines::new(logs.stdout.take().unwrap());
    assert!(lines.next_line().unwrap().contains("`echo` is up"));
    home.run(&["restart", "echo"]).expect(0);
    assert!(lines.next_line().unwrap().contains("`echo` is up"));
    process::send_signal(logs.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut logs).code(), Some(130));
}

#[test]
fn stdio_attaches_to_gateway() {
    let home = Home::with_demo_servers();
    let _gateway = home.serve(&["-q"]);
    home.run(&["call", "counter__add", "n=40"]).expect(0);
    let add = standalone::request(1, "tools/call", r#""name":"counter__add","arguments":{"n":2},"#);
    let result = home.run_with_input(&["stdio"], &add).expect(0);
    let reply: Value = serde_json::from_str(result.stdout.trim()).unwrap();
    assert_eq!(reply["result"]["content"][0]["text"], "42");
}

#[test]
fn gateway_listens_on_unix_socket() {
    let home = Home::new(&server("echo", "echo"));
    let path = home.0.path().join("own.sock");
    let address = format!("unix:{}", path_text(&path));
    let mut command = home.command(&["serve", "-q", "--listen", &address]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = Lines::new(child.stderr.take().unwrap());
    assert_eq!(lines.next_line().unwrap(), format!("listening on {address}"));
    assert_eq!(home.run(&["call", "say", "text=x"]).expect(0).stdout, "x\n");
    process::send_signal(child.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut child).code(), Some(0));
    assert!(!path.exists(), "the socket file is removed");
}

#[test]
fn second_signal_stops_without_waiting() {
    let home = Home::with_demo_servers();
    let mut gateway = home.serve(&[]);
    let call = home.command(&["call", "counter__ponder"]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the call is in flight", || {
        home.run(&["status", "counter", "--json"]).expect(0).json()["in_flight"] == 1
    });
    gateway.signal(Signal::TERM);
    gateway.wait_for_line("stopping");
    home.run(&["status"]).expect(4);
    let busy = home.run(&["serve", "--listen", "127.0.0.1:0"]).expect(1);
    assert!(busy.stderr.contains("already"), "{}", busy.stderr);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait().code(), Some(0));
    wait_for_result(call).expect(4);
}

#[test]
fn gateway_with_closed_stderr_keeps_serving() {
    let home = Home::new(&format!("{}\n{}", server("echo", "echo"), crashing()));
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // Read in this thread, so that dropping the reader closes the pipe.
    let watchdog = deadline::Watchdog::new(deadline::HANG_TIMEOUT);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("listening on ") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0);
    }
    drop(stderr);
    drop(watchdog);
    home.run(&["call", "crashing__x"]).expect(4);
    process::send_signal(child.id(), Signal::HUP);
    wait_until("the config is reloaded", || {
        home.run(&["status", "--json"]).expect(0).json()["config"]["generation"] == 2
    });
    assert_eq!(home.run(&["call", "echo__say", "text=x"]).expect(0).stdout, "x\n");
    assert_eq!(home.run(&["status", "crashing", "--json"]).expect(0).json()["state"], "ejected");
    process::send_signal(child.id(), Signal::TERM);
    assert_eq!(deadline::wait(&mut child).code(), Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn process_of_a_user_is_the_caller_that_is_declared_for_it() {
    use std::io::{Read as _, Write as _};
    let uid = rustix::process::geteuid().as_raw();
    let home = Home::new(&format!("[callers.me]\nuid = {uid}\n"));
    let gateway = home.serve(&[]);
    let response = test_support::http::request(gateway.address, "GET", "/api/v1/status", &[], b"");
    assert!(String::from_utf8(response.body).unwrap().contains("caller `me` is not an admin"));
    home.run(&["status"]).expect(0);
    drop(gateway);

    let socket = home.0.file("public.sock");
    let listen = format!("unix:{}", socket.display());
    let mut serving = home.command(&["serve", "--listen", &listen]).spawn().unwrap();
    wait_until("the gateway listens", || socket.exists());
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(test_support::WAIT_LIMIT)).unwrap();
    stream.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("caller `me` is not an admin"), "{answer}");
    process::send_signal(serving.id(), Signal::TERM);
    deadline::wait(&mut serving);
}
