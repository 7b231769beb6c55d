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

    /// Returns a hint for package launchers that miss environment variables, which are not passed by default.
    pub(crate) fn hint(&self) -> Option<String> {
        let name = self.program.rsplit('/').next()?;
        let launcher = ["npx", "npm", "uvx", "uv", "pip", "pipx", "bunx", "deno"].contains(&name);
        let is_sign = |line: &String| MISSING_VARIABLE_SIGNS.iter().any(|sign| line.contains(sign));
        (launcher && self.exit.is_some() && self.stderr.iter().any(is_sign)).then(|| {
            format!(
                "`{name}` gets only the default environment variables, among them those of proxies and registries; \
                 if it needs others, such as a token, list them in `inherit-env`"
            )
        })
    }

    /// Returns the line of stderr that says most about the exit: the last one, except that npm and Node.js print the
    /// reason before other lines.
    fn summary_line(&self) -> Option<&str> {
        let is_notice = |line: &&str| line.starts_with("npm notice") || line.starts_with("npm warn");
        let lines = self.stderr.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
        let lines: Vec<&str> = lines.filter(|line| !is_notice(line)).collect();
        let last = *lines.last()?;
        let reason = if last.starts_with("npm error") {
            lines.iter().skip_while(|line| !line.starts_with("npm error code")).nth(1)
        } else if last.starts_with("Node.js v") {
            let is_reason =
                |line: &&&str| line.split([' ', ':']).next().is_some_and(|name| name.ends_with("Error"));
            lines.iter().rev().find(is_reason)
        } else {
            None
        };
        Some(reason.copied().unwrap_or(last))
    }
}

/// Texts that programs print if a variable is missing, or the network cannot be reached without one.
const MISSING_VARIABLE_SIGNS: [&str; 14] = [
    "environment",
    "_KEY",
    "_TOKEN",
    "_SECRET",
    "_PASSWORD",
    "proxy",
    "certificate",
    "ENOTFOUND",
    "ECONNREFUSED",
    "ETIMEDOUT",
    "EAI_AGAIN",
    "E401",
    "E403",
    "Unauthorized",
];

impl fmt::Display for ExitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.exit_text())?;
        match (self.summary_line(), self.exit) {
            // A process that is killed has no chance to print why.
            (Some(line), Some(ProcessExit::Signal(_) | ProcessExit::ShimKilled)) => {
                write!(f, ", last stderr line: {line}")
            }
            (Some(line), _) => write!(f, ": {line}"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(program: &str, stderr: &str) -> ExitReport {
        let stderr = stderr.lines().map(str::to_owned).collect();
        ExitReport { exit: Some(ProcessExit::Status(1)), stderr, program: program.to_owned() }
    }

    #[test]
    fn summary_is_reason_of_npm_and_node_and_else_last_line() {
        let not_found = "npm error code E404\nnpm error 404 Not Found - GET https://r/x\nnpm error 404\n\
                         npm error A complete log of this run can be found in: /l\n";
        let thrown = "node:internal/modules/cjs/loader:1210\n  throw err;\n  ^\n\nError: Cannot find module 'x'\n    \
                      at require (node:internal)\n  code: 'MODULE_NOT_FOUND'\n}\n\nNode.js v20.20.2\n";
        for (stderr, expected) in [
            ("one\ntwo\n\n", "exit status 1: two"),
            (
                "Error: no folder\nnpm notice\nnpm notice New version\nnpm notice\n",
                "exit status 1: Error: no folder",
            ),
            (not_found, "exit status 1: npm error 404 Not Found - GET https://r/x"),
            (thrown, "exit status 1: Error: Cannot find module 'x'"),
            ("npm notice\n", "exit status 1"),
            ("Node.js v20\n", "exit status 1: Node.js v20"),
        ] {
            assert_eq!(report("npx", stderr).to_string(), expected);
        }
    }

    #[test]
    fn summary_of_a_killed_server_is_not_its_last_line() {
        let killed = ExitReport { exit: Some(ProcessExit::Signal(9)), ..report("server", "ready\n") };
        assert_eq!(killed.to_string(), "killed by SIGKILL, last stderr line: ready");
    }

    #[test]
    fn hint_about_variables_needs_launcher_and_sign() {
        let missing = "Error: BRAVE_API_KEY environment variable is required";
        assert!(report("/usr/bin/npx", missing).hint().is_some_and(|hint| hint.contains("inherit-env")));
        assert_eq!(report("server", missing).hint(), None);
        assert_eq!(report("uvx", "mcp-server-tiem was not found in the package registry").hint(), None);
    }
}
