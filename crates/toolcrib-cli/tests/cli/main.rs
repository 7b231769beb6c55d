//! The program as people and scripts meet it: its real binary, its exit codes, what it prints where.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

mod agents;
mod alone;
mod demo;
mod gateway;
mod pipes;
mod reloads;
mod usage;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use test_support::deadline::{self, Lines};
use test_support::gateway::Gateway;
use test_support::{process, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_toolcrib");

/// A home of its own, with a config in it.
struct Home(test_support::gateway::Home);

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
        Self(test_support::gateway::Home::new(PROGRAM, config))
    }

    /// One with the servers that the program contains.
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

    fn run(&self, args: &[&str]) -> Ended {
        self.0.run(args).into()
    }

    /// Runs with this on stdin.
    fn feed(&self, args: &[&str], input: &str) -> Ended {
        deadline::output_with_input(&mut self.command(args), input).into()
    }

    fn serve(&self, args: &[&str]) -> Gateway {
        self.0.serve_as(|command| {
            command.args(args);
        })
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
    process::is_alive(u32::try_from(pid).unwrap())
}

/// Waits for the end of a child that has pipes.
fn ended(child: Child) -> Ended {
    deadline::output_of(child, "a command of the program").into()
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}
