//! The program as people and scripts meet it: its real binary, its exit codes, what it prints where.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

mod agents;
mod alone;
mod demo;
mod gateway;
mod pipes;
mod reloads;
mod usage;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

const PROGRAM: &str = env!("CARGO_BIN_EXE_toolcrib");

/// A home of its own, with a config in it.
struct Home(TempDir);

/// How a run of the program ended.
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// The exit code, with everything that was printed if it is another one.
    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    #[track_caller]
    fn error(&self) -> Value {
        let value: Value =
            serde_json::from_str(&self.stderr).unwrap_or_else(|error| panic!("{error}: {}", self.stderr));
        value["error"].clone()
    }
}

impl Home {
    fn new(config: &str) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        home.write(config);
        home
    }

    /// One with the servers that the program contains.
    fn with_demo_servers() -> Self {
        Self::new(&format!("{}\n{}", server("echo", "echo"), server("counter", "counter")))
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("config.toml")
    }

    fn write(&self, config: &str) {
        std::fs::write(self.config(), config).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .env("TOOLCRIB_HOME", self.0.path())
            .env_remove("TOOLCRIB_LOG")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.command(args).output().unwrap().into()
    }

    /// Runs with this on stdin.
    fn feed(&self, args: &[&str], input: &str) -> Ended {
        let mut command = self.command(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    }

    fn serve(&self, args: &[&str]) -> Gateway {
        let all = [&["serve", "--listen", "127.0.0.1:0"], args].concat();
        let mut child = self.command(&all).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (tx, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| tx.send(line)));
        let gateway = Gateway { child, lines };
        gateway.line("listening on ");
        gateway
    }
}

/// A running gateway.
struct Gateway {
    child: Child,
    lines: Receiver<String>,
}

impl Gateway {
    /// The rest of the next stderr line that starts like this.
    #[track_caller]
    fn line(&self, start: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with(start) => return line[start.len()..].to_owned(),
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line `{start}…` ({error}), but: {seen:#?}"),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Asked to stop, and gone.
    fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.child.wait().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // A test that failed half-way leaves no gateway behind; one that stopped it already has nothing to kill.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A server that the program contains, declared under a name.
fn server(name: &str, role: &str) -> String {
    format!("[servers.{name}]\ncommand = {PROGRAM:?}\nargs = [\"demo-server\", \"{role}\"]\n")
}

/// One that never comes up, and is given up soon.
fn crashing() -> String {
    let care = r#"lifecycle = { restarts = { at-most = 1, within = "1m" }, backoff = { first = "10ms", most = "20ms" } }"#;
    format!("{}{care}\n", server("crashing", "crashing"))
}

fn is_alive(pid: u64) -> bool {
    test_kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()).is_ok()
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}
