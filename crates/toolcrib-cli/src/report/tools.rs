//! Lists of tools.

use serde_json::{Map, Value, json};
use toolcrib::access::expose::estimate_tokens;
use toolcrib::{Error, PinStatus, PinnedKind, Pinning, SearchHit, ServerStatus, Tool};

use crate::command_error::{CONFIG_INVALID, ProblemReport};
use crate::hints::error_data;

use super::{Members, Report, list_to_json};

/// The tools that a caller may use, and the servers that could not be listed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolsReport {
    /// All tools, ordered by server.
    pub(crate) tools: Vec<ToolReport>,
    /// One error for each server that could not be listed.
    pub(crate) failed: Vec<FailureReport>,
    /// The servers that are still being started for the first time.
    pub(crate) pending: Vec<String>,
    /// The servers with unapproved tools.
    pub(crate) unapproved: Vec<UnapprovedCount>,
    /// The servers that were not asked for their lists because they do not run; `None` if none were to be asked.
    pub(crate) not_running: Option<Vec<String>>,
    /// The server that the list was asked for.
    pub(crate) server: Option<ServerStateReport>,
}

impl ToolsReport {
    /// Adds the servers that problems of their config disable, unless the list was asked for another one.
    pub(crate) fn add_disabled_servers(&mut self, problems: &[ProblemReport]) {
        if self.server.is_none() {
            self.failed.extend(FailureReport::of_disabled_servers(problems));
        }
    }
}

/// A server and its state.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ServerStateReport {
    pub(crate) name: String,
    pub(crate) state: String,
}

impl Report for ServerStateReport {
    fn to_json(&self) -> Value {
        json!({"name": self.name, "state": self.state})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self { name: members.text("name"), state: members.text("state") }
    }
}

impl Report for ToolsReport {
    fn to_json(&self) -> Value {
        let mut report = json!({
            "tools": list_to_json(&self.tools),
            "failed": list_to_json(&self.failed),
            "pending": self.pending,
            "unapproved": list_to_json(&self.unapproved),
        });
        if let Some(not_running) = &self.not_running {
            report["not_running"] = json!(not_running);
        }
        if let Some(server) = &self.server {
            report["server"] = server.to_json();
        }
        report
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            tools: members.reports("tools"),
            server: value.get("server").map(ServerStateReport::from_json),
            failed: members.reports("failed"),
            pending: members.texts("pending"),
            unapproved: members.reports("unapproved"),
            not_running: value.get("not_running").map(|_| members.texts("not_running")),
        }
    }
}

/// The result of looking up one tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolLookupReport {
    pub(crate) tool: Option<ToolReport>,
    /// The reason why the server of the tool could not be started.
    pub(crate) failure: Option<FailureReport>,
    /// A similar name.
    pub(crate) near: Option<String>,
}

impl Report for ToolLookupReport {
    fn to_json(&self) -> Value {
        let tools: Vec<Value> = self.tool.iter().map(Report::to_json).collect();
        let failed: Vec<Value> = self.failure.iter().map(Report::to_json).collect();
        json!({"tools": tools, "failed": failed, "near": self.near})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            tool: members.reports("tools").into_iter().next(),
            failure: members.reports("failed").into_iter().next(),
            near: members.optional_text("near"),
        }
    }
}

/// One tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolReport {
    /// The public name.
    pub(crate) name: String,
    pub(crate) server: String,
    /// The server's own name of the tool.
    pub(crate) tool: String,
    pub(crate) description: Option<String>,
    /// `new` or `changed`, if the tool differs from what was approved.
    pub(crate) change: Option<String>,
    /// The estimated tokens of its definition.
    pub(crate) tokens: u64,
    pub(crate) definition: Value,
    /// How well it matches, if it was found by a query.
    pub(crate) found: Option<SearchReport>,
}

/// The place of a tool among the results of a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SearchReport {
    pub(crate) score: f64,
    /// The parts of the tool that contain words of the query.
    pub(crate) fields: Vec<String>,
}

impl ToolReport {
    /// Creates the report about a tool that was found by a query.
    pub(crate) fn from_hit(hit: &SearchHit) -> Self {
        let fields = hit.fields.iter().map(|field| field.as_str().to_owned()).collect();
        // Scores are shown with three digits; more would suggest a precision that they do not have.
        let score = (f64::from(hit.score) * 1000.0).round() / 1000.0;
        Self { found: Some(SearchReport { score, fields }), ..Self::new(&hit.tool) }
    }

    /// Returns the size of the definition as clients are shown it, under its public name.
    pub(crate) fn definition_bytes(&self) -> usize {
        (self.definition.to_string().len() + self.name.len()).saturating_sub(self.tool.len())
    }

    /// Creates the report about a tool.
    pub(crate) fn new(tool: &Tool) -> Self {
        let mut report = Self {
            name: tool.public_name.to_string(),
            server: tool.server.to_string(),
            tool: tool.own_name.to_string(),
            description: tool.description(),
            change: tool.pin_status.map(|status| PinStatus::as_str(status).to_owned()),
            tokens: 0,
            definition: serde_json::from_slice(&tool.definition).unwrap_or_default(),
            found: None,
        };
        report.tokens = estimate_tokens(report.definition_bytes()) as u64;
        report
    }
}

impl Report for ToolReport {
    fn to_json(&self) -> Value {
        let mut report = json!({
            "name": self.name,
            "server": self.server,
            "tool": self.tool,
            "description": self.description,
            "change": self.change,
            "tokens": self.tokens,
            "definition": self.definition,
        });
        if let Some(found) = &self.found {
            report["score"] = json!(found.score);
            report["fields"] = json!(found.fields);
        }
        report
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            name: members.text("name"),
            server: members.text("server"),
            tool: members.text("tool"),
            description: members.optional_text("description"),
            change: members.optional_text("change"),
            tokens: members.count("tokens"),
            definition: members.value("definition"),
            found: value
                .get("score")
                .and_then(Value::as_f64)
                .map(|score| SearchReport { score, fields: members.texts("fields") }),
        }
    }
}

/// An error of the library in the form of the admin API.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FailureReport {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) server: Option<String>,
    /// The stable name of the error kind.
    pub(crate) code: String,
    /// The other members of the error's data.
    details: Map<String, Value>,
}

impl FailureReport {
    /// Creates the report about an error.
    pub(crate) fn new(error: &Error) -> Self {
        let report = Self::from_json(&error_data(error));
        Self { message: error.to_string(), code: error.kind().facts().name.to_owned(), ..report }
    }

    /// Creates a report for each server that a problem of its config disables.
    fn of_disabled_servers(problems: &[ProblemReport]) -> Vec<Self> {
        let report = |problem: &ProblemReport| {
            let server = problem.server.clone()?;
            Some(Self {
                message: format!("{problem} (server `{server}` is disabled)"),
                hint: problem.hint.clone(),
                server: Some(server),
                code: CONFIG_INVALID.to_owned(),
                details: Map::new(),
            })
        };
        problems.iter().filter_map(report).collect()
    }

    /// Returns whether the config of the server is invalid, so that no start was tried.
    pub(crate) fn is_config_problem(&self) -> bool {
        self.code == CONFIG_INVALID
    }

    /// Returns the JSON form for `tools --json`.
    pub(crate) fn to_short_json(&self) -> Value {
        json!({"server": self.server, "code": self.code, "message": self.message, "hint": self.hint})
    }
}

impl Report for FailureReport {
    fn to_json(&self) -> Value {
        let mut object = self.details.clone();
        object.insert("message".to_owned(), self.message.clone().into());
        object.insert("hint".to_owned(), self.hint.clone().into());
        object.insert("code".to_owned(), self.code.clone().into());
        if let Some(server) = &self.server {
            object.insert("server".to_owned(), server.clone().into());
        }
        object.into()
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        let mut details = value.as_object().cloned().unwrap_or_default();
        for name in ["message", "hint", "server", "code"] {
            details.remove(name);
        }
        Self {
            message: members.text("message"),
            hint: members.optional_text("hint"),
            server: members.optional_text("server"),
            code: members.text("code"),
            details,
        }
    }
}

/// The number of tools of one server that differ from what was approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnapprovedCount {
    pub(crate) server: String,
    pub(crate) tools: u64,
    /// True if these tools are withheld from callers.
    pub(crate) withheld: bool,
}

impl UnapprovedCount {
    /// Counts the unapproved tools of a server; `None` if there are none.
    pub(crate) fn new(status: &ServerStatus) -> Option<Self> {
        let tools = status.unapproved.iter().filter(|found| found.kind == PinnedKind::Tool).count();
        let tools = u64::try_from(tools).unwrap_or(u64::MAX);
        let withheld = status.pin == Pinning::Strict;
        (tools > 0).then(|| Self { server: status.server.to_string(), tools, withheld })
    }
}

impl Report for UnapprovedCount {
    fn to_json(&self) -> Value {
        json!({"server": self.server, "tools": self.tools, "withheld": self.withheld})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            server: members.text("server"),
            tools: members.count("tools"),
            withheld: members.flag("withheld"),
        }
    }
}
