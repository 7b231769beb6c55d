//! A config that is read again while something else goes on: logs that are followed, a stop.

use super::*;

#[test]
fn log_lines_are_followed_across_a_reload() {
    let home = Home::new(&server("echo", "echo"));
    let gateway = home.serve(&[]);
    home.run(&["restart", "echo"]).expect(0);
    let mut logs = home.command(&["logs", "echo", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = Lines::new(logs.stdout.take().unwrap());
    let first = lines.next_line().unwrap();
    home.write(&format!("{}limits = {{ call-timeout = \"59s\" }}\n", server("echo", "echo")));
    gateway.signal(Signal::HUP);
    assert_eq!(gateway.line("config read again: "), "0 added, 0 removed, 1 changed");
    home.run(&["call", "echo__say", "text=x"]).expect(0);
    let second = lines.next_line().expect("a line of the new process");
    assert!(first.contains("`echo` is up") && second.contains("`echo` is up"), "{first} {second}");
    assert_ne!(first, second, "they name their processes");
    process::send(logs.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut logs).code(), Some(130));
}

#[test]
fn a_stop_while_a_server_that_left_finishes_its_call_ends_the_gateway_well() {
    let with = |servers: &str| format!("[limits]\ndrain = \"300ms\"\n{servers}");
    let (echo, counter) = (server("echo", "echo"), server("counter", "counter"));
    let home = Home::new(&with(&format!("{echo}\n{counter}")));
    let mut gateway = home.serve(&[]);
    let call = home.command(&["call", "counter__ponder"]).stderr(Stdio::piped()).spawn().unwrap();
    let told = |path: &str| home.run(&["status", "--json"]).expect(0).json().pointer(path).cloned();
    assert!((0..2000).any(|_| told("/servers/0/in_flight") == Some(1.into())), "the call is under way");
    // The server leaves the roster, and nobody but its call waits.
    home.write(&with(&echo));
    gateway.signal(Signal::HUP);
    assert!((0..2000).any(|_| told("/config/generation") == Some(2.into())), "it has left");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait().code(), Some(0));
    ended(call).expect(4);
}
