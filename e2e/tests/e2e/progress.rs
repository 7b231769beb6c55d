//! What a person sees while a command waits, and how soon a failed start is reported.

use std::process::Output;

use test_support::gateway::{Home, server_config};
use test_support::terminal;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-server");
const CRIB: &str = env!("CARGO_BIN_EXE_crib");

#[test]
fn progress_of_a_call_is_shown_and_erased() {
    let home = Home::new(CRIB, &server_config(FAKE, "s", &["--start-delay-ms", "600"]));
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve());
        let args = ["call", "s.progress", "steps=3", "ms=500"];
        let shown = terminal::run(home.command(&args), 80, "");
        assert_eq!(shown.status.code(), Some(0), "{shown:?}");
        assert!(shown.written.contains("calling `progress` (0s)"), "{shown:?}");
        assert!(shown.written.contains("`s` is starting"), "{shown:?}");
        assert!(shown.written.contains("[######--------------] 33% on it"), "{shown:?}");
        assert!(!shown.visible().contains("calling"), "{shown:?}");
        for quiet in ["--json", "--quiet"] {
            let shown = terminal::run(home.command(&[&args[..], &[quiet]].concat()), 80, "");
            assert!(!shown.written.contains("calling"), "{quiet}: {shown:?}");
        }
        let piped = home.run(&args);
        assert!(piped.stderr.is_empty(), "{piped:?}");
    }
}

/// Runs a command on a server that runs for a while and exits, and returns its output and the number of starts.
fn run_on_late_exit(args: &[&str], with_gateway: bool) -> (Output, usize) {
    let script = "echo >> \"$0\"; echo loading >&2; sleep 2.5; echo no database >&2; exit 3";
    let home = Home::new(CRIB, "");
    let starts = home.file("starts");
    home.write_config(&server_config("sh", "s", &["-c", script, &starts.display().to_string()]));
    let _gateway = with_gateway.then(|| home.serve());
    let output = home.run(args);
    let starts = std::fs::read_to_string(starts).unwrap_or_default();
    (output, starts.lines().count())
}

#[test]
fn failed_start_is_reported_at_its_first_failure() {
    let commands: [&[&str]; 5] =
        [&["tools", "--wait"], &["call", "s", "x"], &["call", "s__x"], &["call", "x"], &["doctor"]];
    let runs = commands.iter().flat_map(|args| [(*args, false), (*args, true)]);
    let runs = runs.chain([(&["restart", "s"][..], true)]);
    std::thread::scope(|scope| {
        for (args, with_gateway) in runs {
            scope.spawn(move || {
                let (output, starts) = run_on_late_exit(args, with_gateway);
                let code = match args {
                    ["doctor"] => 2,
                    // A server that could not start counts as not having the tool.
                    ["call", "x"] => 5,
                    _ => 4,
                };
                assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
                let shown = [output.stdout, output.stderr].concat();
                assert!(String::from_utf8_lossy(&shown).contains("no database"), "{args:?}: {shown:?}");
                // The server may have been started again while the failure was reported.
                assert!((1..=2).contains(&starts), "{args:?}, with gateway: {with_gateway}: {starts} starts");
            });
        }
    });
}
