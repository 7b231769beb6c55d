//! Exit status and stderr tail of a server that exited.

use std::fmt;

use crate::model::failure_class::FailureClass;

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

    /// Returns the failure class of a server that ended by itself.
    pub(crate) fn failure_class(&self) -> FailureClass {
        match self.exit {
            Some(ProcessExit::ShimKilled) => FailureClass::ShimKilled,
            Some(ProcessExit::Disconnected) => FailureClass::Unreachable,
            _ => FailureClass::Crashed,
        }
    }

    /// Returns a hint for package launchers that find no such package, or miss environment variables, which are not passed by default.
    pub(crate) fn hint(&self) -> Option<String> {
        let name = self.program.rsplit('/').next()?;
        let launcher = ["npx", "npm", "uvx", "uv", "pip", "pipx", "bunx", "deno"].contains(&name);
        if !launcher || self.exit.is_none() {
            return None;
        }
        if self.stderr.iter().any(|line| is_unknown_package(line)) {
            return Some(format!(
                "`{name}` found no such package: correct its name or version in `args`; for a private package, list the variable with the token of \
                 its registry in `inherit-env`"
            ));
        }
        let is_sign = |line: &String| MISSING_VARIABLE_SIGNS.iter().any(|sign| line.contains(sign));
        self.stderr.iter().any(is_sign).then(|| {
            format!(
                "`{name}` gets only the default environment variables, among them those of proxies and registries; \
                 if it needs others, such as a token, list them in `inherit-env`"
            )
        })
    }

    /// Returns the lines of stderr that have a text, without the notices of npm.
    fn lines(&self) -> impl DoubleEndedIterator<Item = &str> {
        let is_notice = |line: &&str| line.starts_with("npm notice") || line.starts_with("npm warn");
        let lines = self.stderr.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
        lines.filter(move |line| !is_notice(line))
    }

    /// Returns the line of stderr that says most about the exit: what npm and Node.js give as the reason, else the last line that
    /// names an error, else the last line that does not explain how to use the program.
    fn summary_line(&self) -> Option<&str> {
        let lines: Vec<&str> = self.lines().collect();
        let last = *lines.last()?;
        if last.starts_with("npm error") {
            let reason = lines.iter().skip_while(|line| !line.starts_with("npm error code")).nth(1);
            return Some(reason.copied().unwrap_or(last));
        }
        let is_error = |line: &&str| !line.starts_with("npm error") && names_error(line);
        if let Some(error) = lines.iter().rposition(is_error) {
            // A panic in Rust has its message on the next line.
            let is_rust_panic = lines[error].contains(" panicked at ") || lines[error].ends_with(" panicked");
            let message = lines.get(error + 1).filter(|_| is_rust_panic);
            return message.or(lines.get(error)).copied();
        }
        let is_usage = |line: &&&str| line.contains("--help") || line.starts_with("Node.js v");
        lines.iter().rev().find(|line| !is_usage(line)).copied().or(Some(last))
    }
}

/// Words at the start of a line among which the name of an error is looked for: a time, a level and a logger may precede it.
const MAX_FIRST_WORDS: usize = 8;

/// Returns whether a line of stderr names an error, such as `ValueError: no such file` or `[FATAL] no license`. Lines of stack traces
/// do not.
fn names_error(line: &str) -> bool {
    if line.starts_with("at ") || line.starts_with("panic(") {
        return false;
    }
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let words: Vec<&str> = words.take(MAX_FIRST_WORDS).collect();
    let is_error = |word: &str| {
        let levels = ["error", "fatal", "panic", "panicked", "exception"];
        levels.iter().any(|level| level.eq_ignore_ascii_case(word))
            || word.ends_with("Error")
            || word.ends_with("Exception")
    };
    let is_denied = |at: usize| at > 0 && ["no", "without"].contains(&words[at - 1]);
    words.iter().enumerate().any(|(at, word)| is_error(word) && !is_denied(at))
}

/// Texts that npm, Bun, Deno, uv and pip print if a package does not exist, or not in this version.
const UNKNOWN_PACKAGE_SIGNS: [&str; 7] = [
    "npm error code E404",
    "npm error code ETARGET",
    "error: No version matching",
    "Could not find npm package '",
    "was not found in the package registry",
    "Because there is no version of",
    "ERROR: No matching distribution found for",
];

/// Returns whether a launcher printed that there is no such package. The line may also be one of the server that it started.
fn is_unknown_package(line: &str) -> bool {
    let is_from_bun = line.starts_with("error: GET ") && line.ends_with(" - 404");
    let is_from_deno = line.contains("npm package '") && line.ends_with("' does not exist.");
    is_from_bun || is_from_deno || UNKNOWN_PACKAGE_SIGNS.iter().any(|sign| line.contains(sign))
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
        match self.exit {
            // A process that is killed has no chance to print why.
            Some(ProcessExit::Signal(_) | ProcessExit::ShimKilled) => {
                let last = self.lines().next_back();
                last.map_or(Ok(()), |line| write!(f, ", last stderr line: {line}"))
            }
            _ => self.summary_line().map_or(Ok(()), |line| write!(f, ": {line}")),
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
    fn summary_is_the_line_that_names_an_error() {
        for (stderr, expected) in [
            (
                "Starting\nError: In-memory databases require the --read-write flag.\n\nEither:\n- Use --db-path md: for cloud access\n",
                "Error: In-memory databases require the --read-write flag.",
            ),
            (
                "docker: Cannot connect to the Docker daemon. Is it running?\n\nRun 'docker run --help' for more information\n",
                "docker: Cannot connect to the Docker daemon. Is it running?",
            ),
            (
                "Traceback (most recent call last):\n  File \"x.py\", line 1\nValueError: first\n\nTraceback\nKeyError: 'second'\n",
                "KeyError: 'second'",
            ),
            (
                "error: the following required arguments were not provided:\n  --root <ROOT>\n\nUsage: x --root <ROOT>\n\nFor more information, try '--help'.\n",
                "error: the following required arguments were not provided:",
            ),
            (
                "2026-01-01 10:00:00 [FATAL] no license\nshutting down\n",
                "2026-01-01 10:00:00 [FATAL] no license",
            ),
            (
                "panic: runtime error: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n",
                "panic: runtime error: index out of range",
            ),
            (
                "thread 'main' panicked at src/main.rs:1:5:\nno config\nnote: run with `RUST_BACKTRACE=1`\n",
                "no config",
            ),
            (
                "TypeError: x is undefined\n    at new ServerError (/srv/a.js:1:2)\n    at main (/srv/b.js:3:4)\n",
                "TypeError: x is undefined",
            ),
            ("started without error\nbye\n", "bye"),
            ("listening with 0 errors\nerrors.log was opened\nbye\n", "bye"),
            ("Usage: x --help\n", "Usage: x --help"),
        ] {
            assert_eq!(report("server", stderr).to_string(), format!("exit status 1: {expected}"));
        }
    }

    #[test]
    fn summary_of_a_killed_server_is_not_its_last_line() {
        let killed = ExitReport {
            exit: Some(ProcessExit::Signal(9)),
            ..report("server", "an error from before\nready\n")
        };
        assert_eq!(killed.to_string(), "killed by SIGKILL, last stderr line: ready");
    }

    #[test]
    fn hint_about_variables_needs_launcher_and_sign() {
        let missing = "Error: BRAVE_API_KEY environment variable is required";
        assert!(report("/usr/bin/npx", missing).hint().is_some_and(|hint| hint.contains("inherit-env")));
        assert_eq!(report("server", missing).hint(), None);
        assert_eq!(report("uvx", "ModuleNotFoundError: No module named 'httpx'").hint(), None);
    }

    #[test]
    fn hint_of_unknown_package_names_its_argument() {
        for (program, stderr) in [
            (
                "/usr/bin/npx",
                "npm error code E404\nnpm error 404 Not Found - GET https://r/mcp-server-tiem\nnpm error 404",
            ),
            ("npx", "npm error code ETARGET\nnpm error notarget No matching version found for x@99"),
            ("bunx", "Resolving dependencies\nerror: GET https://r/mcp-server-tiem - 404"),
            ("bunx", "error: No version matching \"99\" found for specifier \"x\" (but package exists)"),
            ("deno", "error: npm package 'mcp-server-tiem' does not exist."),
            ("deno", "error: Could not find npm package 'x' matching '99'."),
            (
                "uvx",
                "cause: Because mcp-server-tiem was not found in the package registry and you require it",
            ),
            ("uvx", "cause: Because there is no version of x==99 and you require x==99"),
            ("pip", "ERROR: No matching distribution found for mcp-server-tiem"),
        ] {
            let hint = report(program, stderr).hint().unwrap_or_default();
            assert!(hint.contains("correct its name or version in `args`"), "{stderr}: {hint}");
        }
        assert_eq!(report("npx", "GET https://api.example/items - 404").hint(), None, "a line of the server");
        assert_eq!(report("python3", "npm error code E404").hint(), None, "not a launcher");
    }
}
