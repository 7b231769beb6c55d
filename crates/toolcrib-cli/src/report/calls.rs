//! Calls that have ended, from the history.

use serde_json::{Value, json};

use super::{Members, Report, list_to_json};

/// One page of calls, the newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CallsReport {
    pub(crate) calls: Vec<CallReport>,
    /// The value of `before` for the next page; `None` on the last one.
    pub(crate) next: Option<String>,
}

impl Report for CallsReport {
    fn to_json(&self) -> Value {
        let mut report = json!({"calls": list_to_json(&self.calls)});
        if let Some(next) = &self.next {
            report["next"] = next.as_str().into();
        }
        report
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self { calls: members.reports("calls"), next: members.optional_text("next") }
    }
}

/// One call. Durations are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CallReport {
    pub(crate) id: String,
    /// When it ended, in RFC 3339.
    pub(crate) time: String,
    pub(crate) method: String,
    pub(crate) server: Option<String>,
    /// The server's own name of the item; the requested name without a server.
    pub(crate) tool: String,
    pub(crate) caller: String,
    /// The name of the client program, if it is known.
    pub(crate) client: Option<String>,
    /// `ok`, `error` or `denied`.
    pub(crate) outcome: String,
    /// The error kind, or `tool_error` or `cancelled`.
    pub(crate) error: Option<String>,
    /// The rule that denied the call.
    pub(crate) rule: Option<String>,
    pub(crate) duration_ms: f64,
    pub(crate) queue_ms: f64,
    pub(crate) start_ms: f64,
    pub(crate) policy_ms: f64,
    pub(crate) server_ms: f64,
    /// `hit`, `miss` or `joined`, if the call was cacheable.
    pub(crate) cache: Option<String>,
    pub(crate) attempts: u64,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) result_tokens: u64,
    /// The arguments as the audit file has them, if they are recorded and one call is requested.
    pub(crate) arguments: Option<Value>,
}

impl Report for CallReport {
    fn to_json(&self) -> Value {
        let mut report = json!({
            "id": self.id,
            "time": self.time,
            "method": self.method,
            "server": self.server,
            "tool": self.tool,
            "caller": self.caller,
            "client": self.client,
            "outcome": self.outcome,
            "duration_ms": self.duration_ms,
            "queue_ms": self.queue_ms,
            "start_ms": self.start_ms,
            "policy_ms": self.policy_ms,
            "server_ms": self.server_ms,
            "attempts": self.attempts,
            "request_bytes": self.request_bytes,
            "response_bytes": self.response_bytes,
            "result_tokens": self.result_tokens,
        });
        for (name, value) in [("error", &self.error), ("rule", &self.rule), ("cache", &self.cache)] {
            if let Some(value) = value {
                report[name] = value.as_str().into();
            }
        }
        if let Some(arguments) = &self.arguments {
            report["arguments"] = arguments.clone();
        }
        report
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            id: members.text("id"),
            time: members.text("time"),
            method: members.text("method"),
            server: members.optional_text("server"),
            tool: members.text("tool"),
            caller: members.text("caller"),
            client: members.optional_text("client"),
            outcome: members.text("outcome"),
            error: members.optional_text("error"),
            rule: members.optional_text("rule"),
            duration_ms: members.number("duration_ms"),
            queue_ms: members.number("queue_ms"),
            start_ms: members.number("start_ms"),
            policy_ms: members.number("policy_ms"),
            server_ms: members.number("server_ms"),
            cache: members.optional_text("cache"),
            attempts: members.count("attempts"),
            request_bytes: members.count("request_bytes"),
            response_bytes: members.count("response_bytes"),
            result_tokens: members.count("result_tokens"),
            arguments: Some(members.value("arguments")).filter(|arguments| !arguments.is_null()),
        }
    }
}
