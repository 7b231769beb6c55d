//! A command at a pseudo-terminal.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Command, ExitStatus};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::deadline;

/// The end of a command at a terminal.
#[derive(Debug)]
pub struct TerminalRun {
    /// The exit status.
    pub status: ExitStatus,
    /// Everything that the terminal shows, the echo of the input included.
    pub shown: String,
}

/// Runs a command at a terminal of this width, with keys that are typed in advance.
///
/// # Panics
/// If the command has not exited after [`deadline::HANG_TIMEOUT`].
#[track_caller]
pub fn run(mut command: Command, columns: u16, keys: &str) -> TerminalRun {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master.as_fd(), size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    command.stdin(terminal.try_clone().unwrap());
    command.stdout(terminal.try_clone().unwrap());
    command.stderr(terminal);
    let mut child = command.spawn().unwrap();
    // Closes this process's copies of the terminal, so that reading ends with the command.
    drop(command);
    let mut master = File::from(master);
    master.write_all(keys.as_bytes()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut shown = Vec::new();
        let mut buffer = [0; 4096];
        // The end of a terminal is an error.
        while let Ok(count @ 1..) = master.read(&mut buffer) {
            shown.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8_lossy(&shown).replace('\r', "")
    });
    let status = deadline::wait(&mut child);
    TerminalRun { status, shown: reader.join().unwrap() }
}
