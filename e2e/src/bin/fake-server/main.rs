//! An MCP server on stdin and stdout whose behaviour is set by its command line: see `script.rs` for the flags and
//! `tools.rs` for the tools. Every call runs in its own thread, so answers come in any order.

#![expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "a server that misbehaves on purpose sleeps and exits during calls"
)]

mod answers;
mod extensions;
mod offers;
mod records;
mod script;
mod server;
mod tools;

use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use script::Script;
use server::Server;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let script = match Script::parse(&args) {
        Ok(script) => script,
        Err(error) => return fail(&error),
    };
    if script.linger {
        park_forever();
    }
    if script.ignore_term {
        return fail(&exec_ignoring_term(&args));
    }
    records::append(&script, "start");
    let start = script.count_start();
    if start <= script.exit_at_start {
        let _ = writeln!(std::io::stderr(), "start {start}: exiting at start on purpose");
        return ExitCode::from(3);
    }
    std::thread::sleep(script.start_delay);
    flood_stderr(script.stderr_flood);
    let grandchild = script.grandchild.then(spawn_grandchild).flatten();
    let ignore_eof = script.ignore_eof;
    let exits_at_handshake = start <= script.exit_at_handshake;
    let server = Server::new(script, grandchild);
    for line in std::io::stdin().lock().split(b'\n').map_while(Result::ok) {
        if exits_at_handshake {
            let _ = writeln!(std::io::stderr(), "start {start}: exiting at the handshake on purpose");
            return ExitCode::from(4);
        }
        server.receive(line);
    }
    if ignore_eof {
        park_forever();
    }
    ExitCode::SUCCESS
}

fn fail(error: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "fake-server: {error}");
    ExitCode::from(64)
}

fn park_forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Replaces this process with one that ignores SIGTERM. A signal that is ignored stays ignored across `exec`, and a
/// shell can ignore one. Returns the error if that fails.
fn exec_ignoring_term(args: &[String]) -> String {
    let rest = args.iter().filter(|arg| *arg != "--ignore-term");
    match std::env::current_exe() {
        Ok(current_exe) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", r#"trap "" TERM; exec "$@""#, "sh"]).arg(current_exe).args(rest);
            shell.exec().to_string()
        }
        Err(error) => error.to_string(),
    }
}

/// Writes lines of invalid UTF-8, the last one without a line end.
pub(crate) fn flood_stderr(bytes: usize) {
    let mut line = [b'\xfe'; 1000];
    line[999] = b'\n';
    let mut remaining = bytes;
    while remaining > 0 {
        let now = remaining.min(line.len());
        if std::io::stderr().write_all(&line[..now]).is_err() {
            return;
        }
        remaining -= now;
    }
    if bytes > 0 {
        let _ = std::io::stderr().write_all(b"\xffno end");
    }
}

/// Starts a process in the same group that keeps our output open and does not end by itself.
fn spawn_grandchild() -> Option<u32> {
    let current_exe = std::env::current_exe().ok()?;
    Some(Command::new(current_exe).arg("--linger").stdin(Stdio::null()).spawn().ok()?.id())
}
