//! The error type of commands, printed as text or as JSON.

use std::fmt;

use serde_json::{Value, json};
use toolcrib::config::{Config, Problem};
use toolcrib::{Error, ErrorKind};
use toolcrib_agents::AgentErrorKind;

use crate::exit::ExitStatus;
use crate::hints::{self, hint_text};

/// The number of stderr lines of a server that are shown.
const MAX_STDERR_LINES: usize = 10;

/// The code of an error about the config.
pub(crate) const CONFIG_INVALID: &str = "config_invalid";

/// The start of the part of a message that says when a server is started again.
const NEXT_ATTEMPT: &str = ", next attempt in ";

/// The reason why a command failed.
#[derive(Debug, Clone)]
pub(crate) struct CommandError {
    /// The exit code of the program.
    pub(crate) exit: ExitStatus,
    /// The stable name of the error in `--json` output.
    pub(crate) code: String,
    /// A description for people.
    pub(crate) message: String,
    /// The next step, usually a command.
    pub(crate) hint: Option<String>,
    /// Further members of the `--json` error object.
    pub(crate) data: Value,
}

impl CommandError {
    /// Creates an error without a hint.
    pub(crate) fn new(exit: ExitStatus, code: &str, message: impl Into<String>) -> Self {
        Self { exit, code: code.to_owned(), message: message.into(), hint: None, data: json!({}) }
    }

    /// Creates an error for an unexpected error.
    pub(crate) fn unexpected(error: &impl fmt::Display) -> Self {
        Self::new(ExitStatus::Failure, "unexpected", error.to_string())
    }

    /// Creates an error for a wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitStatus::Failure, "usage", message)
    }

    /// Sets the hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Creates the error for a missing gateway.
    pub(crate) fn no_gateway() -> Self {
        Self::new(ExitStatus::Unreachable, "no_daemon", "no gateway is running for this config")
            .hint("toolcrib serve")
    }

    /// Creates the error for a config that cannot be used, with all its problems.
    pub(crate) fn invalid_config(config: &Config) -> Self {
        let message = format!("the config `{}` is invalid", config.file.display());
        let error = Self::new(ExitStatus::InvalidConfig, CONFIG_INVALID, message).hint("toolcrib check");
        error.with_problems(&config.problems)
    }

    /// Creates the error for a config with this problem.
    pub(crate) fn config_problem(problem: &Problem) -> Self {
        let error = Self::new(ExitStatus::InvalidConfig, CONFIG_INVALID, problem.to_string());
        Self { hint: problem.hint.clone(), ..error.with_problems(std::slice::from_ref(problem)) }
    }

    fn with_problems(self, problems: &[Problem]) -> Self {
        let count = problems.len();
        let problems: Vec<Value> =
            problems.iter().map(|problem| ProblemReport::new(problem).to_json()).collect();
        Self { data: json!({"problems": problems, "count": count}), ..self }
    }

    /// Returns the problems of the config that caused the error.
    pub(crate) fn problems(&self) -> Vec<ProblemReport> {
        self.data["problems"].as_array().into_iter().flatten().map(ProblemReport::from_json).collect()
    }

    /// Converts an error object from a gateway: an error of toolcrib if `data.kind` names one, else the server's own.
    pub(crate) fn from_error_object(object: &Value) -> Self {
        let message = object["message"].as_str().unwrap_or("the server returned an error without a message");
        let data = if object["data"].is_object() { &object["data"] } else { object };
        let kind = data["kind"].as_str().unwrap_or_default();
        // A server may send `data` like ours, but not with our codes. Errors of the admin API have no number.
        let has_own_code = |code: i64| {
            ErrorKind::ALL.iter().any(|own| own.facts().name == kind && i64::from(own.facts().code) == code)
        };
        let exit =
            ExitStatus::from_kind_name(kind).filter(|_| object["code"].as_i64().is_none_or(has_own_code));
        let Some(exit) = exit else {
            return Self::server_error(object);
        };
        let hint = data["hint"].as_str();
        // The message of a missing login has the hint too, for clients that show nothing else.
        let without_hint = hint.and_then(|hint| message.strip_suffix(hint)?.strip_suffix("; hint: "));
        let error = Self::new(exit, kind, without_hint.unwrap_or(message));
        Self { hint: hint.map(str::to_owned), data: data.clone(), ..error }
    }

    /// Converts an error of the admin API. One that is not about a call or a server has its own code.
    pub(crate) fn from_admin_error(object: &Value) -> Self {
        if object["kind"].is_string() {
            return Self::from_error_object(object);
        }
        let text = |name: &str| object[name].as_str();
        let message = text("message").unwrap_or("the gateway returned an error without a message");
        let error = Self::new(ExitStatus::ToolError, text("code").unwrap_or("refused"), message);
        Self { hint: text("hint").map(str::to_owned), ..error }
    }

    /// Converts a server's own JSON-RPC error.
    pub(crate) fn server_error(error: &Value) -> Self {
        let message = match error["message"].as_str() {
            Some(message) => format!("the server refused the call: {message}"),
            None => "the server refused the call".to_owned(),
        };
        Self { data: json!({"rpc": error}), ..Self::new(ExitStatus::ToolError, "server_error", message) }
    }

    /// Returns the object that `--json` prints.
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

    /// Returns the last stderr lines of the server, at most ten.
    pub(crate) fn stderr_tail(&self) -> Vec<&str> {
        let lines: Vec<&str> =
            self.data["stderr"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let first = lines.len().saturating_sub(MAX_STDERR_LINES);
        lines[first..].to_vec()
    }
}

/// Converts an error of a server in this process. The next attempt to start the server is not mentioned: the process ends
/// before it.
impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let text = error.to_string();
        let message = match text.rsplit_once(NEXT_ATTEMPT) {
            Some((message, _)) if error.retry_in().is_some() => message.to_owned(),
            _ => text,
        };
        Self {
            exit: ExitStatus::from_kind(kind),
            code: kind.facts().name.to_owned(),
            message,
            hint: Some(hint_text(&error.hint())),
            data: hints::error_data(&error),
        }
    }
}

impl From<toolcrib_agents::Error> for CommandError {
    fn from(error: toolcrib_agents::Error) -> Self {
        let exit = match error.kind() {
            AgentErrorKind::InvalidFile => ExitStatus::InvalidConfig,
            _ => ExitStatus::Failure,
        };
        let hint = error.hint().map(str::to_owned);
        Self { hint, ..Self::new(exit, error.code(), error.message()) }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CommandError {}

/// A problem of the config, as commands print it and the admin API returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProblemReport {
    pub(crate) file: String,
    pub(crate) line: Option<u64>,
    pub(crate) column: Option<u64>,
    /// The server that is disabled because of it.
    pub(crate) server: Option<String>,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl ProblemReport {
    /// Creates the report about a problem.
    pub(crate) fn new(problem: &Problem) -> Self {
        use toolcrib::config::ProblemScope;
        let server = match &problem.scope {
            ProblemScope::Server(name) => Some(name.to_string()),
            _ => None,
        };
        Self {
            file: problem.file.display().to_string(),
            line: problem.position.map(|at| u64::from(at.line)),
            column: problem.position.map(|at| u64::from(at.column)),
            server,
            message: problem.message.clone(),
            hint: problem.hint.clone(),
        }
    }

    /// Returns the JSON form.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "server": self.server,
            "message": self.message,
            "hint": self.hint,
        })
    }

    /// Reads the JSON form.
    pub(crate) fn from_json(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        Self {
            file: text("file").unwrap_or_default(),
            line: value["line"].as_u64(),
            column: value["column"].as_u64(),
            server: text("server"),
            message: text("message").unwrap_or_default(),
            hint: text("hint"),
        }
    }
}

/// Formats a problem as `FILE:LINE:COL: message`.
impl fmt::Display for ProblemReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_object_with_kind_keeps_kind_and_data() {
        let object = json!({"code": -31015, "message": "`x` died", "data": {"kind": "lost", "hint": "toolcrib logs x", "server": "x", "stderr": ["a"]}});
        let error = CommandError::from_error_object(&object);
        assert_eq!((error.exit, error.code.as_str()), (ExitStatus::Unreachable, "lost"));
        assert_eq!(error.stderr_tail(), ["a"]);
        assert_eq!(error.to_json()["error"]["server"], "x");
    }

    #[test]
    fn agent_error_keeps_code_message_and_hint() {
        let unknown = toolcrib_agents::agents::Agent::find("claud").unwrap_err();
        let error = CommandError::from(unknown);
        assert_eq!((error.exit, error.code.as_str()), (ExitStatus::Failure, "usage"));
        assert_eq!(error.message, "unknown agent `claud`");
        assert_eq!(error.hint.as_deref(), Some("did you mean `claude`?"));
    }

    #[test]
    fn error_object_without_known_kind_is_tool_error() {
        let error = CommandError::from_error_object(
            &json!({"code": -32602, "message": "bad date", "data": {"kind": "weird"}}),
        );
        assert_eq!(error.exit, ExitStatus::ToolError);
        assert_eq!(error.to_string(), "the server refused the call: bad date");
        assert_eq!(error.to_json()["error"]["rpc"]["code"], -32602);
    }

    #[test]
    fn hint_in_the_message_is_not_printed_twice() {
        let hint = "toolcrib login ref";
        let data = json!({"kind": "auth_needed", "hint": hint});
        let message = format!("`ref` requires authentication; hint: {hint}");
        let error =
            CommandError::from_error_object(&json!({"code": -31019, "message": message, "data": data}));
        assert_eq!(
            (error.message.as_str(), error.hint.as_deref()),
            ("`ref` requires authentication", Some(hint))
        );
    }

    #[test]
    fn admin_error_keeps_its_code_message_and_hint() {
        let missing = json!({"code": "not_found", "message": "unknown call `x`", "hint": "list them"});
        let error = CommandError::from_admin_error(&missing);
        assert_eq!((error.exit, error.code.as_str()), (ExitStatus::ToolError, "not_found"));
        assert_eq!((error.message.as_str(), error.hint.as_deref()), ("unknown call `x`", Some("list them")));
        let lost = json!({"code": "lost", "kind": "lost", "message": "m"});
        assert_eq!(CommandError::from_admin_error(&lost).exit, CommandError::from_error_object(&lost).exit);
    }

    #[test]
    fn stderr_tail_is_limited_to_ten_lines() {
        let lines: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        let error = json!({"message": "m", "data": {"kind": "lost", "stderr": lines}});
        assert_eq!(CommandError::from_error_object(&error).stderr_tail().first(), Some(&"20"));
    }
}
