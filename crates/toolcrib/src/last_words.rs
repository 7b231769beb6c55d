//! How a server ended, in its own words: exit status and the last lines of its stderr.

use std::fmt;

/// What is known of a server that is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastWords {
    /// How its process ended; `None` if it never ran or had not ended yet.
    pub exit: Option<Exit>,
    /// The last lines it wrote to stderr.
    pub stderr: Vec<String>,
    /// The program it was, for advice that depends on it.
    pub program: String,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It was no process of ours, and can be heard no more.
    Disconnected,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the connection ended"),
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

impl LastWords {
    /// How it ended, for people.
    pub fn exit_text(&self) -> String {
        self.exit.map_or_else(|| "its output ended".to_owned(), |exit| exit.to_string())
    }

    /// Launchers need variables that a built environment does not pass on; that is worth saying when one fails.
    pub(crate) fn hint(&self) -> Option<String> {
        let name = self.program.rsplit('/').next()?;
        let launcher = ["npx", "npm", "uvx", "uv", "pip", "pipx", "bunx", "deno"].contains(&name);
        (launcher && self.exit.is_some()).then(|| {
            format!(
                "`{name}` sees only the usual variables: if it needs more (a proxy, a registry, a token), \
                 name them in `inherit-env`"
            )
        })
    }
}

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.exit_text())?;
        match self.stderr.iter().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => write!(f, ": {}", line.trim()),
            None => Ok(()),
        }
    }
}
