//! `Failure`: why a command did not do what was asked, for people and for scripts.

use std::fmt;

use serde_json::{Value, json};
use toolcrib::Error;
use toolcrib::config::{Config, Problem};

use crate::exit::Exit;

/// Stderr lines of a server that are worth showing.
const LINES: usize = 10;

/// Why a command did not do what was asked.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// How the program ends.
    pub(crate) exit: Exit,
    /// The stable name, in `--json`.
    pub(crate) code: String,
    /// What is wrong.
    pub(crate) message: String,
    /// What to type next.
    pub(crate) hint: Option<String>,
    /// What else is known, under the names it has in `--json`.
    pub(crate) data: Value,
}

impl Failure {
    /// A failure without advice.
    pub(crate) fn new(exit: Exit, code: &str, message: impl Into<String>) -> Self {
        Self { exit, code: code.to_owned(), message: message.into(), hint: None, data: json!({}) }
    }

    /// Something broke that has nothing to do with what was asked.
    pub(crate) fn unexpected(error: &impl fmt::Display) -> Self {
        Self::new(Exit::Unexpected, "unexpected", error.to_string())
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Unexpected, "usage", message)
    }

    /// With what to type next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// No daemon answers for this config.
    pub(crate) fn no_daemon() -> Self {
        Self::new(Exit::Unreachable, "no_daemon", "no gateway is running for this config")
            .hint("toolcrib serve")
    }

    /// A config that is not served, with everything there is to repair.
    pub(crate) fn bad_config(config: &Config) -> Self {
        let count = config.problems.len();
        let message = format!("`{}` cannot be used as it is", config.file.display());
        let failure = Self::new(Exit::BadConfig, "config_invalid", message).hint("toolcrib check");
        let problems: Vec<Value> = config.problems.iter().map(problem_json).collect();
        Self { data: json!({"problems": problems, "count": count}), ..failure }
    }

    /// An error object from a daemon: ours if its `data` says which kind, else the server's own.
    pub(crate) fn from_wire(error: &Value) -> Self {
        let message = error["message"].as_str().unwrap_or("the server said error without a message");
        let data = if error["data"].is_object() { &error["data"] } else { error };
        let Some((kind, exit)) = data["kind"].as_str().and_then(|kind| Some((kind, Exit::of_name(kind)?)))
        else {
            return Self::server_error(error);
        };
        let mut failure = Self::new(exit, kind, message);
        failure.hint = data["hint"].as_str().map(str::to_owned);
        failure.data = data.clone();
        failure
    }

    /// A server's own JSON-RPC error.
    pub(crate) fn server_error(error: &Value) -> Self {
        let message = match error["message"].as_str() {
            Some(message) => format!("the server refused the call: {message}"),
            None => "the server refused the call".to_owned(),
        };
        Self { data: json!({"rpc": error}), ..Self::new(Exit::ToolError, "server_error", message) }
    }

    /// The object that `--json` prints.
    pub(crate) fn to_json(&self) -> Value {
        let mut error = match &self.data {
            Value::Object(members) => members.clone(),
            _ => serde_json::Map::new(),
        };
        error.remove("kind");
        error.insert("code".to_owned(), self.code.clone().into());
        error.insert("message".to_owned(), self.message.clone().into());
        error.insert("hint".to_owned(), self.hint.clone().into());
        json!({"error": error})
    }

    /// The last words of the server concerned, at most ten lines.
    pub(crate) fn stderr(&self) -> Vec<&str> {
        let lines: Vec<&str> =
            self.data["stderr"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let first = lines.len().saturating_sub(LINES);
        lines[first..].to_vec()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        Self {
            exit: Exit::of(kind),
            code: kind.facts().name.to_owned(),
            message: error.to_string(),
            hint: Some(error.advice()),
            data: error.data(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// A problem as scripts see it.
pub(crate) fn problem_json(problem: &Problem) -> Value {
    use toolcrib::config::Concern;
    let server = match &problem.concerns {
        Concern::Server(name) => Some(name.as_str()),
        Concern::Whole | Concern::Part | Concern::Note => None,
    };
    json!({
        "file": problem.file.display().to_string(),
        "line": problem.at.map(|at| at.line),
        "column": problem.at.map(|at| at.column),
        "server": server,
        "message": problem.message,
        "hint": problem.hint,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_errors_keep_their_kind_over_the_wire() {
        let error = json!({"code": -31015, "message": "`x` died", "data": {"kind": "lost", "hint": "toolcrib logs x", "server": "x", "stderr": ["a"]}});
        let failure = Failure::from_wire(&error);
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Unreachable, "lost"));
        assert_eq!(failure.stderr(), ["a"]);
        assert_eq!(failure.to_json()["error"]["server"], "x");
    }

    #[test]
    fn a_servers_own_error_is_a_tool_error() {
        let failure =
            Failure::from_wire(&json!({"code": -32602, "message": "bad date", "data": {"kind": "weird"}}));
        assert_eq!(failure.exit, Exit::ToolError);
        assert_eq!(failure.to_string(), "the server refused the call: bad date");
        assert_eq!(failure.to_json()["error"]["rpc"]["code"], -32602);
    }

    #[test]
    fn only_the_last_ten_lines_are_shown() {
        let lines: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        let error = json!({"message": "m", "data": {"kind": "lost", "stderr": lines}});
        assert_eq!(Failure::from_wire(&error).stderr().first(), Some(&"20"));
    }
}
