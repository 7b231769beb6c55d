//! Tests of config reloads during other operations.

use super::*;

#[test]
fn logs_follow_continues_after_reload() {
    let home = Home::new(&server("echo", "echo"));
    let gateway = home.serve(&[]);
    home.run(&["restart", "echo"]).expect(0);
    let mut logs = home.command(&["logs", "echo", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = Lines::new(logs.stdout.take().unwrap());
    let first = lines.next_line().unwrap();
    home.write(&format!("{}env = {{ A = \"1\" }}\n", server("echo", "echo")));
    gateway.signal(Signal::HUP);
    assert_eq!(gateway.wait_for_line("config reloaded: "), "0 added, 0 removed, 1 changed");
    home.run(&["call", "echo__say", "text=x"]).expect(0);
    let second = lines.next_line().expect("a line of the new process");
    assert!(first.contains("`echo` is up") && second.contains("`echo` is up"), "{first} {second}");
    assert_ne!(first, second, "each line has the pid of its process");
    process::send_signal(logs.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut logs).code(), Some(130));
}

#[test]
fn changed_limit_keeps_the_process_and_its_calls() {
    let home = Home::new(&server("counter", "counter"));
    let gateway = home.serve(&[]);
    assert_eq!(home.run(&["call", "counter__add", "n=7"]).expect(0).stdout, "7\n");
    let pid = || home.run(&["status", "--json"]).expect(0).json().pointer("/servers/0/pid").cloned();
    let before = pid();
    home.write(&format!("{}lifecycle = {{ keep-alive = \"1h\" }}\n", server("counter", "counter")));
    gateway.signal(Signal::HUP);
    assert_eq!(gateway.wait_for_line("config reloaded: "), "0 added, 0 removed, 1 changed");
    assert!(before.is_some() && before == pid(), "{before:?}");
    assert_eq!(home.run(&["call", "counter__add", "n=1"]).expect(0).stdout, "8\n", "it still counts");
}

#[test]
fn stop_during_call_of_removed_server_exits_0() {
    let with = |servers: &str| format!("[limits]\ndrain = \"300ms\"\n{servers}");
    let echo = server("echo", "echo");
    let counter = server("counter", "counter");
    let home = Home::new(&with(&format!("{echo}\n{counter}")));
    let mut gateway = home.serve(&[]);
    let call = home.command(&["call", "counter__ponder"]).stderr(Stdio::piped()).spawn().unwrap();
    let status = |path: &str| home.run(&["status", "--json"]).expect(0).json().pointer(path).cloned();
    assert!((0..2000).any(|_| status("/servers/0/in_flight") == Some(1.into())), "the call is in flight");
    // The server is removed from the config while its call is in flight.
    home.write(&with(&echo));
    gateway.signal(Signal::HUP);
    assert!((0..2000).any(|_| status("/config/generation") == Some(2.into())), "the config is reloaded");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait().code(), Some(0));
    wait_for_result(call).expect(4);
}
