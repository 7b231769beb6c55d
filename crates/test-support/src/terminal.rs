//! A pseudo-terminal, for output that only a terminal gets.

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::deadline;

/// Moves to the start of the line and clears it.
const ERASE: &str = "\r\x1b[2K";

/// What a command wrote to a terminal.
#[derive(Debug)]
pub struct TerminalOutput {
    /// The exit code.
    pub code: Option<i32>,
    /// Everything that was written, with control characters.
    pub written: String,
}

impl TerminalOutput {
    /// Returns what stays on the terminal: everything but the lines that were erased.
    pub fn visible(&self) -> String {
        self.written.split(ERASE).filter(|part| part.contains('\n')).collect()
    }
}

/// Runs a command whose stdin, stdout and stderr are a terminal, until it exits.
///
/// # Panics
/// If it has not exited after [`deadline::HANG_TIMEOUT`].
#[track_caller]
pub fn run_in_terminal(mut command: Command) -> TerminalOutput {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let controller = openpt(flags).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let terminal = File::from(ioctl_tiocgptpeer(&controller, flags).unwrap());
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    command.stdin(Stdio::from(terminal.try_clone().unwrap()));
    command.stdout(Stdio::from(terminal.try_clone().unwrap())).stderr(Stdio::from(terminal));
    let mut child = command.spawn().unwrap();
    // The output ends when no process has the terminal open.
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut written = Vec::new();
        // Reading fails when the other end is closed.
        let _ = File::from(controller).read_to_end(&mut written);
        written
    });
    let code = deadline::wait(&mut child).code();
    let written = String::from_utf8_lossy(&reader.join().unwrap()).into_owned();
    TerminalOutput { code, written }
}
