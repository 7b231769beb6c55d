//! Launches a command, owns its whole process group, keeps the tail of its stderr, stops it politely then firmly.

mod unix;

use std::ffi::OsString;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::stderr::{LINGER, StderrTail};
use crate::last_words::{Exit, LastWords};
use crate::spec::CommandSpec;
use unix::Signal;

/// How long a server gets to leave after its input was closed, and again after it was asked to.
const PATIENCE: Duration = Duration::from_secs(2);

/// Variables every child gets if we have them; with `LC_*` and `XDG_*` that is all that is passed on unasked.
const INHERITED: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"];

/// A running child and everything it starts in its process group. Dropping it kills what is left of the group.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    program: String,
    exit: watch::Receiver<Option<Exit>>,
    stderr: Arc<StderrTail>,
    /// The number of the last stderr line before this process.
    before: u64,
    /// Everything that it wrote to stderr has been read.
    drained: CancellationToken,
}

/// Why a command could not be started at all.
#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) why: String,
    /// The machine had no room for it; the next try may go better.
    pub(crate) no_room: bool,
}

impl SpawnError {
    fn of_command(why: impl Into<String>) -> Self {
        Self { why: why.into(), no_room: false }
    }
}

impl Process {
    /// Starts the command in a process group of its own, with an environment that is built, not inherited. It counts
    /// among `lives` until it has been reaped.
    pub(crate) fn spawn(
        spec: &CommandSpec,
        stderr: Arc<StderrTail>,
        tasks: &TaskTracker,
        lives: &TaskTracker,
    ) -> Result<(Self, ChildStdin, ChildStdout), SpawnError> {
        let (mut command, program) = prepare(spec)?;
        let mut child = command.spawn().map_err(|error| SpawnError {
            why: explain(&program, spec, &error),
            no_room: super::program::is_no_room(&error),
        })?;
        let missing = || SpawnError::of_command(format!("`{program}` has no pipes"));
        let pid = child.id().ok_or_else(missing)?;
        let (stdin, stdout) =
            (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let (exit_tx, exit) = watch::channel(None);
        let process =
            Self { pid, program, exit, before: stderr.last(), stderr, drained: CancellationToken::new() };
        if let Some(pipe) = child.stderr.take() {
            let (tail, gone, drained) = (process.stderr.clone(), process.exited(), process.drained.clone());
            tasks.spawn(async move {
                tail.drain(pipe, gone).await;
                drained.cancel();
            });
        }
        tasks.spawn(lives.track_future(async move {
            let status = child.wait().await;
            // Whatever the leader started and left behind in its group ends with it.
            unix::signal_group(pid, Signal::KILL);
            exit_tx.send_replace(Some(status.map_or(Exit::Status(-1), unix::exit)));
        }));
        Ok((process, stdin, stdout))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends when the process has been reaped.
    pub(crate) fn exited(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            // An error means that the reaper itself is gone, and with it the runtime.
            let _ = exit.wait_for(Option::is_some).await;
        }
    }

    /// As `exited`, a moment later: what was written last can still be read.
    pub(crate) fn silent(&self) -> impl Future<Output = ()> + Send + 'static {
        let exited = self.exited();
        async move {
            exited.await;
            tokio::time::sleep(LINGER).await;
        }
    }

    /// How it ended and what it said last, after waiting a moment for both.
    pub(crate) fn farewell(&self) -> impl Future<Output = LastWords> + Send + 'static {
        let (mut exit, stderr) = (self.exit.clone(), self.stderr.clone());
        let (before, program, drained) = (self.before, self.program.clone(), self.drained.clone());
        async move {
            let ended = timeout(LINGER, exit.wait_for(Option::is_some)).await;
            let exit = ended.ok().and_then(Result::ok).and_then(|exit| *exit);
            // What it said last may still be in the pipe, and somebody else may hold that open.
            let _ = timeout(LINGER, drained.cancelled()).await;
            let stderr = stderr.after(before).into_iter().map(|(_, line)| line).collect::<Vec<_>>();
            LastWords { exit, stderr: stderr[stderr.len().saturating_sub(20)..].to_vec(), program }
        }
    }

    /// Its input is closed already: waits, asks the group to end, waits, kills the group.
    pub(crate) async fn stop(&self) {
        for signal in [Signal::TERM, Signal::KILL] {
            if timeout(PATIENCE, self.exited()).await.is_ok() {
                return;
            }
            unix::signal_group(self.pid, signal);
        }
        self.exited().await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit.borrow().is_none() {
            unix::signal_group(self.pid, Signal::KILL);
        }
    }
}

fn prepare(spec: &CommandSpec) -> Result<(Command, String), SpawnError> {
    let expand = |text: &crate::text::Text| {
        text.expand().map_err(|missing| SpawnError::of_command(missing.to_string()))
    };
    let program = expand(&spec.program)?;
    let mut command = std::process::Command::new(&program);
    for arg in &spec.args {
        command.arg(expand(arg)?);
    }
    command.env_clear().envs(inherited(spec));
    for (key, value) in &spec.env {
        command.env(key, expand(value)?);
    }
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    unix::own_group(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok((command.into(), program))
}

fn inherited(spec: &CommandSpec) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(key, _)| {
        let key = key.to_string_lossy();
        let usual = INHERITED.contains(&&*key) || key.starts_with("LC_") || key.starts_with("XDG_");
        usual || spec.inherit_env.iter().any(|asked| *asked == key)
    })
}

fn explain(program: &str, spec: &CommandSpec, error: &std::io::Error) -> String {
    match (error.kind(), &spec.cwd) {
        (_, Some(cwd)) if !cwd.is_dir() => {
            format!("the working directory `{}` does not exist", cwd.display())
        }
        (std::io::ErrorKind::NotFound, _) => format!("the command `{program}` was not found"),
        (std::io::ErrorKind::PermissionDenied, _) => format!("`{program}` is not executable"),
        _ if super::program::is_no_program(error) => {
            format!(
                "`{program}` is no program for this machine, nor a script whose first line says who runs it"
            )
        }
        _ => format!("cannot run `{program}`: {error}"),
    }
}
