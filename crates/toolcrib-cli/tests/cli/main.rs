//! Tests of the real binary: its exit codes and its output.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

mod agents;
mod changes;
mod demo;
mod doctor;
mod gateway;
mod init;
mod reloads;
#[cfg(target_os = "linux")]
mod service;
mod standalone;
mod stdio;
mod tls;
mod usage;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use test_support::deadline::{self, Lines};
use test_support::gateway::GatewayProcess;
use test_support::{process, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_toolcrib");

/// A temporary home with a config.
struct Home(test_support::gateway::Home);

/// The result of a run of the program.
struct RunResult {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for RunResult {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl RunResult {
    /// Asserts the exit code; a failure shows everything that was printed.
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
        Self(test_support::gateway::Home::new(PROGRAM, config))
    }

    /// Creates a home with the built-in demo servers.
    fn with_demo_servers() -> Self {
        Self::new(&format!("{}\n{}", server("echo", "echo"), server("counter", "counter")))
    }

    fn config(&self) -> PathBuf {
        self.0.file("config.toml")
    }

    fn write(&self, config: &str) {
        self.0.write_config(config);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.command(args);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> RunResult {
        self.0.run(args).into()
    }

    /// Runs the program with this input on stdin.
    fn run_with_input(&self, args: &[&str], input: &str) -> RunResult {
        deadline::output_with_input(&mut self.command(args), input).into()
    }

    fn serve(&self, args: &[&str]) -> GatewayProcess {
        self.0.serve_with(|command| {
            command.args(args);
        })
    }
}

/// Returns the declaration of a built-in demo server.
fn server(name: &str, role: &str) -> String {
    format!("[servers.{name}]\ncommand = {PROGRAM:?}\nargs = [\"demo-server\", \"{role}\"]\n")
}

/// Returns the declaration of a server that never starts and is ejected soon.
fn crashing() -> String {
    let lifecycle = r#"lifecycle = { restarts = { at-most = 1, within = "1m" }, backoff = { first = "10ms", most = "20ms" } }"#;
    format!("{}{lifecycle}\n", server("crashing", "crashing"))
}

fn is_alive(pid: u64) -> bool {
    process::is_alive(u32::try_from(pid).unwrap())
}

/// Waits for a child with pipes to exit.
fn wait_for_result(child: Child) -> RunResult {
    deadline::output_of(child, "a toolcrib command").into()
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}
