//! A Valkey or Redis server as a process.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::deadline::{self, Lines};
use crate::process::{self, KillOnDrop};

/// A server with an empty database, which ends when this is dropped.
#[derive(Debug)]
pub struct StoreServer {
    process: KillOnDrop,
    folder: TempDir,
    port: u16,
    arguments: Vec<String>,
    _output: Lines,
}

impl StoreServer {
    /// Starts a server on a free port of this machine. Returns `None`, and reports that the calling test is skipped, if neither
    /// Valkey nor Redis is installed.
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let Some((process, output)) = spawn(&folder, port, &arguments) else {
            deadline::skip("neither `valkey-server` nor `redis-server` is installed");
            return None;
        };
        Some(Self { process, folder, port, arguments, _output: output })
    }

    /// Returns `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Freezes the server: connections stay open, and nothing is answered.
    pub fn pause(&self) {
        process::send_signal(self.process.0.id(), Signal::STOP);
    }

    /// Lets a frozen server go on.
    pub fn resume(&self) {
        process::send_signal(self.process.0.id(), Signal::CONT);
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    /// Starts a killed server again on the same port, without its data.
    pub fn restart(&mut self) {
        let (process, output) = spawn(&self.folder, self.port, &self.arguments).expect("it was installed");
        self.process = process;
        self._output = output;
    }
}

/// Returns a port that is free at this moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts a server and waits until it accepts connections.
fn spawn(folder: &TempDir, port: u16, arguments: &[String]) -> Option<(KillOnDrop, Lines)> {
    for program in ["valkey-server", "redis-server"] {
        let mut command = Command::new(program);
        command.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--port",
            &port.to_string(),
        ]);
        command.arg("--dir").arg(folder.path()).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => panic!("cannot start `{program}`: {error}"),
        };
        let output = Lines::new(child.stdout.take().unwrap());
        let process = KillOnDrop(child);
        loop {
            let line = output.next_line().expect("a line that the server accepts connections");
            if line.contains("Ready to accept connections") {
                return Some((process, output));
            }
        }
    }
    None
}
