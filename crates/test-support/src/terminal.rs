//! A command at a pseudo-terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Command, ExitStatus};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::deadline;

/// Moves to the start of the line and clears it.
const ERASE: &str = "\r\x1b[2K";

/// The end of a command at a terminal.
#[derive(Debug)]
pub struct TerminalRun {
    /// The exit status.
    pub status: ExitStatus,
    /// Everything that was written, with control characters.
    pub written: String,
    /// The same without carriage returns, the echo of the input included.
    pub shown: String,
}

impl TerminalRun {
    /// Returns what stays on the terminal: everything but the lines that were erased.
    pub fn visible(&self) -> String {
        self.written.split(ERASE).filter(|part| part.contains('\n')).collect()
    }
}

/// Runs a command at a terminal of this width, with keys that are typed in advance.
///
/// # Panics
/// If the command has not exited after [`deadline::HANG_TIMEOUT`].
#[track_caller]
pub fn run(mut command: Command, columns: u16, keys: &str) -> TerminalRun {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let controller = openpt(flags).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(controller.as_fd(), size).unwrap();
    let terminal = File::from(ioctl_tiocgptpeer(&controller, flags).unwrap());
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    command.stdin(terminal.try_clone().unwrap());
    command.stdout(terminal.try_clone().unwrap());
    command.stderr(terminal);
    let mut child = command.spawn().unwrap();
    // Closes this process's copies of the terminal, so that reading ends with the command.
    drop(command);
    let mut controller = File::from(controller);
    controller.write_all(keys.as_bytes()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut written = Vec::new();
        // The end of a terminal is an error.
        let _ = controller.read_to_end(&mut written);
        String::from_utf8_lossy(&written).into_owned()
    });
    let status = deadline::wait(&mut child);
    let written = reader.join().unwrap();
    TerminalRun { status, shown: written.replace('\r', ""), written }
}
