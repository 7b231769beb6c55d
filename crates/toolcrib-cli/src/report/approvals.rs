//! Calls and tools that wait for approval.

use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::{PendingApproval, PinnedKind, Unapproved};

use super::{Members, Report, list_to_json, with_kind};

/// The calls that wait for approval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PendingCallsReport {
    pub(crate) calls: Vec<PendingCallReport>,
}

impl PendingCallsReport {
    /// Returns the call with this id.
    pub(crate) fn find(&self, id: &str) -> Option<&PendingCallReport> {
        self.calls.iter().find(|call| call.id == id)
    }
}

impl Report for PendingCallsReport {
    fn to_json(&self) -> Value {
        json!({"calls": list_to_json(&self.calls)})
    }

    fn from_json(value: &Value) -> Self {
        Self { calls: Members(value).reports("calls") }
    }
}

/// A call that waits for approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingCallReport {
    pub(crate) id: String,
    pub(crate) caller: String,
    pub(crate) server: String,
    /// The server's own name of the item.
    pub(crate) name: String,
    /// The arguments as JSON text, possibly truncated.
    pub(crate) arguments: String,
}

impl PendingCallReport {
    /// Creates the report about a call.
    pub(crate) fn new(call: &PendingApproval) -> Self {
        Self {
            id: call.id.clone(),
            caller: call.caller.as_str().to_owned(),
            server: call.server.to_string(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        }
    }
}

impl Report for PendingCallReport {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "caller": self.caller,
            "server": self.server,
            "name": self.name,
            "arguments": self.arguments,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            id: members.text("id"),
            caller: members.text("caller"),
            server: members.text("server"),
            name: members.text("name"),
            arguments: members.text("arguments"),
        }
    }
}

/// The tools of a server that wait for approval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct UnapprovedToolsReport {
    /// Digest of exactly these definitions, named in the approval.
    pub(crate) seal: String,
    pub(crate) tools: Vec<UnapprovedToolReport>,
}

impl UnapprovedToolsReport {
    /// Creates the report about these tools.
    pub(crate) fn new(unapproved: &Unapproved) -> Self {
        let definition = |raw: &Bytes| serde_json::from_slice::<Value>(raw).unwrap_or_default();
        let tools = unapproved.tools.iter().map(|tool| UnapprovedToolReport {
            tool: tool.tool.clone(),
            kind: Some(tool.kind.as_str().to_owned()).filter(|_| tool.kind != PinnedKind::Tool),
            change: tool.status.as_str().to_owned(),
            before: tool.approved.as_ref().map(definition),
            now: definition(&tool.offered),
        });
        Self { seal: unapproved.digest.clone(), tools: tools.collect() }
    }
}

impl Report for UnapprovedToolsReport {
    fn to_json(&self) -> Value {
        json!({"seal": self.seal, "tools": list_to_json(&self.tools)})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self { seal: members.text("seal"), tools: members.reports("tools") }
    }
}

/// A tool that waits for approval.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UnapprovedToolReport {
    pub(crate) tool: String,
    /// The kind of the item, unless it is a tool.
    pub(crate) kind: Option<String>,
    /// `new` or `changed`.
    pub(crate) change: String,
    /// The approved definition, if it is known.
    pub(crate) before: Option<Value>,
    /// The definition that the server offers.
    pub(crate) now: Value,
}

impl Report for UnapprovedToolReport {
    fn to_json(&self) -> Value {
        let report =
            json!({"tool": self.tool, "change": self.change, "before": self.before, "now": self.now});
        with_kind(report, self.kind.as_deref())
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            tool: members.text("tool"),
            kind: members.optional_text("kind"),
            change: members.text("change"),
            before: Some(members.value("before")).filter(|before| !before.is_null()),
            now: members.value("now"),
        }
    }
}

/// The result of approving tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApprovedToolsReport {
    pub(crate) server: String,
    /// The names of the approved tools.
    pub(crate) approved: Vec<String>,
}

impl Report for ApprovedToolsReport {
    fn to_json(&self) -> Value {
        json!({"server": self.server, "approved": self.approved})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self { server: members.text("server"), approved: members.texts("approved") }
    }
}
