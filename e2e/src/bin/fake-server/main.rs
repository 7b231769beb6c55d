//! A real MCP server on stdin and stdout that follows a small script from its command line.
//!
//! It is as well or as badly behaved as the script says: see `script.rs` for what it can be told and `tools.rs` for
//! what it can be asked. Every call runs in a thread of its own, so answers come in any order.

#![expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "a server that misbehaves on purpose sleeps and exits in the middle of things"
)]

mod answers;
mod ledger;
mod offers;
mod script;
mod server;
mod tools;

use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use script::Script;
use server::Server;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let script = match Script::read(&words) {
        Ok(script) => script,
        Err(why) => return complain(&why),
    };
    if script.linger {
        wait_for_ever();
    }
    if script.ignore_term {
        return complain(&start_again_without_term(&words));
    }
    ledger::note(&script, "start");
    let start = script.count_start();
    if start <= script.exit_at_start {
        let _ = writeln!(std::io::stderr(), "start {start}: no license, no service");
        return ExitCode::from(3);
    }
    std::thread::sleep(script.start_delay);
    flood_stderr(script.stderr_flood);
    let grandchild = script.grandchild.then(spawn_grandchild).flatten();
    let (ignore_eof, dies) = (script.ignore_eof, start <= script.exit_at_handshake);
    let server = Server::new(script, grandchild);
    for line in std::io::stdin().lock().split(b'\n').map_while(Result::ok) {
        if dies {
            let _ = writeln!(std::io::stderr(), "start {start}: lost my temper at the handshake");
            return ExitCode::from(4);
        }
        server.receive(line);
    }
    if ignore_eof {
        wait_for_ever();
    }
    ExitCode::SUCCESS
}

fn complain(why: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "fake-server: {why}");
    ExitCode::from(64)
}

fn wait_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// A signal that is ignored stays ignored across `exec`, and a shell knows how to ignore one.
fn start_again_without_term(words: &[String]) -> String {
    let rest = words.iter().filter(|word| *word != "--ignore-term");
    match std::env::current_exe() {
        Ok(own) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", r#"trap "" TERM; exec "$@""#, "sh"]).arg(own).args(rest);
            shell.exec().to_string()
        }
        Err(error) => error.to_string(),
    }
}

/// Lines that are not text, and a last one without an end.
pub(crate) fn flood_stderr(bytes: usize) {
    let mut line = [b'\xfe'; 1000];
    line[999] = b'\n';
    let mut left = bytes;
    while left > 0 {
        let now = left.min(line.len());
        if std::io::stderr().write_all(&line[..now]).is_err() {
            return;
        }
        left -= now;
    }
    if bytes > 0 {
        let _ = std::io::stderr().write_all(b"\xffno end");
    }
}

/// A process in the same group that holds our output open and never ends by itself.
fn spawn_grandchild() -> Option<u32> {
    let own = std::env::current_exe().ok()?;
    Some(Command::new(own).arg("--linger").stdin(Stdio::null()).spawn().ok()?.id())
}
