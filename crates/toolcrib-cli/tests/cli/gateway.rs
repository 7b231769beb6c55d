//! Commands with a gateway: they attach to it, and it goes when it is told to.

use super::*;

use std::io::{BufRead as _, BufReader};

#[test]
fn a_gateway_is_watched_and_steered() {
    let home = Home::with_demo_servers();
    let mut gateway = home.serve(&["-q"]);
    let before = home.run(&["status", "--json"]).expect(0).json();
    assert_eq!(before["config"]["generation"], 1);
    assert!(
        before["servers"].as_array().unwrap().iter().all(|server| server["state"] == "asleep"),
        "{before}"
    );

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
    assert_eq!(home.run(&["call", "counter__add", "n=1"]).expect(0).stdout, "1\n", "the next call wakes it");

    let echo = home.run(&["status", "echo", "--json"]).expect(0).json()["pid"].as_u64().unwrap();
    assert_eq!(gateway.stop().code(), Some(0));
    assert!(!is_alive(echo), "no server outlives its gateway");
    home.run(&["status"]).expect(4);
}

#[test]
fn errors_through_a_gateway_have_the_same_exit_codes() {
    let home =
        Home::new(&format!("{}\n{}\n{}", server("echo", "echo"), server("counter", "counter"), crashing()));
    let _gateway = home.serve(&["-q"]);
    home.run(&["call", "echo__fail", "text=no"]).expect(5);
    home.run(&["call", "nothing"]).expect(5);
    home.run(&["call", "echo", "nothing"]).expect(5);
    home.run(&["call", "nobody", "nothing"]).expect(5);
    home.run(&["call", "counter__ponder", "--timeout", "300ms"]).expect(8);
    let dead = home.run(&["call", "crashing__x"]).expect(4);
    assert!(dead.stderr.contains("\n  crashing on purpose\nhint: "), "{}", dead.stderr);
    let unknown = home.run(&["restart", "ecko"]).expect(1);
    assert!(unknown.stderr.contains("did you mean `echo`?"), "{}", unknown.stderr);
    home.run(&["logs", "nobody"]).expect(1);
    home.run(&["status", "nobody"]).expect(1);
}

#[test]
fn one_config_has_one_gateway() {
    let home = Home::with_demo_servers();
    let mut gateway = home.serve(&[]);
    let second = home.run(&["serve", "--listen", "127.0.0.1:0"]).expect(1);
    assert!(second.stderr.contains(&format!("pid {}", gateway.pid())), "{}", second.stderr);
    let other = Home::new("");
    home.run(&["status", "--config", path_text(&other.config())]).expect(4);
    gateway.signal(Signal::KILL);
    gateway.wait();
    // Its socket is still there, and must not stop the next one.
    assert_eq!(home.serve(&[]).stop().code(), Some(0));
}

#[test]
fn a_config_is_read_again_on_sighup() {
    let home = Home::new(&server("echo", "echo"));
    let gateway = home.serve(&[]);
    home.run(&["call", "echo__say", "text=x"]).expect(0);
    let pid = home.run(&["status", "echo", "--json"]).expect(0).json()["pid"].clone();
    home.write(&format!("{}\n{}", server("echo", "echo"), server("counter", "counter")));
    gateway.signal(Signal::HUP);
    assert_eq!(gateway.line("config read again: "), "1 added, 0 removed, 0 changed");
    assert_eq!(home.run(&["call", "counter__add", "n=1"]).expect(0).stdout, "1\n");
    assert_eq!(
        home.run(&["status", "echo", "--json"]).expect(0).json()["pid"],
        pid,
        "what did not change runs on"
    );

    home.write("[servers.echo\n");
    gateway.signal(Signal::HUP);
    gateway.line("the running config stays");
    let status = home.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["config"]["generation"], 2);
    assert_eq!(status["config"]["problems"][0]["line"], 1);
    assert_eq!(home.run(&["call", "echo__say", "text=still"]).expect(0).stdout, "still\n");
}

#[test]
fn problems_of_one_server_leave_the_others() {
    let home = Home::new(&format!("{}\n[servers.broken]\ncomand = \"x\"\n", server("echo", "echo")));
    let gateway = home.serve(&[]);
    assert_eq!(home.run(&["call", "echo__say", "text=x"]).expect(0).stdout, "x\n");
    let shown = home.run(&["status"]).expect(0);
    assert!(shown.stdout.starts_with("echo\tready\t"), "{}", shown.stdout);
    assert!(shown.stderr.contains("config.toml:"), "{}", shown.stderr);
    drop(gateway);
}

#[test]
fn log_lines_are_followed() {
    let home = Home::with_demo_servers();
    let _gateway = home.serve(&["-q"]);
    home.run(&["restart", "echo"]).expect(0);
    let mut logs = home.command(&["logs", "echo", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = Lines::new(logs.stdout.take().unwrap());
    assert!(lines.next_line().unwrap().contains("`echo` is up"));
    home.run(&["restart", "echo"]).expect(0);
    assert!(lines.next_line().unwrap().contains("`echo` is up"));
    process::send(logs.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut logs).code(), Some(130));
}

#[test]
fn stdio_attaches_to_the_gateway() {
    let home = Home::with_demo_servers();
    let _gateway = home.serve(&["-q"]);
    home.run(&["call", "counter__add", "n=40"]).expect(0);
    let add = alone::request(1, "tools/call", r#""name":"counter__add","arguments":{"n":2},"#);
    let ended = home.feed(&["stdio"], &add).expect(0);
    let reply: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    assert_eq!(reply["result"]["content"][0]["text"], "42");
}

#[test]
fn a_gateway_can_listen_on_a_socket_file() {
    let home = Home::new(&server("echo", "echo"));
    let path = home.0.path().join("own.sock");
    let address = format!("unix:{}", path_text(&path));
    let mut command = home.command(&["serve", "-q", "--listen", &address]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = Lines::new(child.stderr.take().unwrap());
    assert_eq!(lines.next_line().unwrap(), format!("listening on {address}"));
    assert_eq!(home.run(&["call", "say", "text=x"]).expect(0).stdout, "x\n");
    process::send(child.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut child).code(), Some(0));
    assert!(!path.exists(), "its files go with it");
}

#[test]
fn a_second_signal_does_not_wait_for_calls() {
    let home = Home::with_demo_servers();
    let mut gateway = home.serve(&[]);
    let call = home.command(&["call", "counter__ponder"]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the call is in flight", || {
        home.run(&["status", "counter", "--json"]).expect(0).json()["in_flight"] == 1
    });
    gateway.signal(Signal::TERM);
    gateway.line("stopping");
    home.run(&["status"]).expect(4);
    let busy = home.run(&["serve", "--listen", "127.0.0.1:0"]).expect(1);
    assert!(busy.stderr.contains("already"), "{}", busy.stderr);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait().code(), Some(0));
    ended(call).expect(4);
}

#[test]
fn a_gateway_whose_log_nobody_reads_serves_on() {
    let home = Home::new(&format!("{}\n{}", server("echo", "echo"), crashing()));
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // Read here and not on another thread, so that the pipe is closed when it is dropped.
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
    process::send(child.id(), Signal::HUP);
    wait_until("the config is read again", || {
        home.run(&["status", "--json"]).expect(0).json()["config"]["generation"] == 2
    });
    assert_eq!(home.run(&["call", "echo__say", "text=x"]).expect(0).stdout, "x\n");
    assert_eq!(home.run(&["status", "crashing", "--json"]).expect(0).json()["state"], "ejected");
    process::send(child.id(), Signal::TERM);
    assert_eq!(deadline::wait(&mut child).code(), Some(0));
}
