//! Exit status and stderr tail of a server that exited.

use std::fmt;

/// Exit status and stderr tail of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExitReport {
    /// The exit of the process; `None` if it never ran or was still running.
    pub exit: Option<ProcessExit>,
    /// The last lines of its stderr.
    pub stderr: Vec<String>,
    /// The program, for hints that depend on it.
    pub program: String,
}

/// The exit of a process: its status or the signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessExit {
    /// With an exit status.
    Status(i32),
    /// By a signal.
    Signal(i32),
    /// Killed because its process tree grew to this many processes.
    TooManyProcesses(u32),
    /// Together with the shim process that supervised it, which was killed.
    ShimKilled,
    /// Not a child process: the connection was lost.
    Disconnected,
}

impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("connection closed"),
            Self::TooManyProcesses(count) => write!(f, "killed for running {count} processes"),
            Self::ShimKilled => f.write_str("its shim process was killed"),
            Self::Status(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "killed by {name}"),
                None => write!(f, "killed by signal {signal}"),
            },
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

impl ExitReport {
    /// Returns the exit as text.
    pub fn exit_text(&self) -> String {
        self.exit.map_or_else(|| "stdout closed".to_owned(), |exit| exit.to_string())
    }

    /// Returns a hint for package launchers, which may need environment variables that are not passed by default.
    pub(crate) fn hint(&self) -> Option<String> {
        let name = self.program.rsplit('/').next()?;
        let launcher = ["npx", "npm", "uvx", "uv", "pip", "pipx", "bunx", "deno"].contains(&name);
        (launcher && self.exit.is_some()).then(|| {
            format!(
                "`{name}` gets only the default environment variables, among them those of proxies and registries; \
                 if it needs others, such as a token, list them in `inherit-env`"
            )
        })
    }
}

impl fmt::Display for ExitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.exit_text())?;
        match self.stderr.iter().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => write!(f, ": {}", line.trim()),
            None => Ok(()),
        }
    }
}
