//! Clients that are connected, or were seen recently.

use serde_json::{Value, json};
use toolcrib_serve::ShownTools;

use super::{Members, Report, list_to_json};

/// The clients of a gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ClientsReport {
    pub(crate) clients: Vec<ClientReport>,
}

impl Report for ClientsReport {
    fn to_json(&self) -> Value {
        json!({"clients": list_to_json(&self.clients)})
    }

    fn from_json(value: &Value) -> Self {
        Self { clients: Members(value).reports("clients") }
    }
}

/// One client.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ClientReport {
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) protocol_version: String,
    /// `session` over HTTP, `pipe` over `toolcrib stdio`, or `stateless`.
    pub(crate) kind: String,
    pub(crate) capabilities: Value,
    pub(crate) caller: String,
    pub(crate) profile: Option<String>,
    /// The server, if the client uses the endpoint of one server.
    pub(crate) server: Option<String>,
    /// When it connected, or was first seen if it is stateless, in RFC 3339.
    pub(crate) since: String,
    /// Calls since then, if there is a history.
    pub(crate) calls: Option<u64>,
    /// The tools that it is listed.
    pub(crate) tools_shown: u64,
    /// The tokens of their definitions.
    pub(crate) tokens_shown: u64,
    /// The tools that it is listed, by server, the most expensive first.
    pub(crate) servers: Vec<ShownServerReport>,
}

impl Report for ClientReport {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "version": self.version,
            "protocol_version": self.protocol_version,
            "kind": self.kind,
            "capabilities": self.capabilities,
            "caller": self.caller,
            "profile": self.profile,
            "server": self.server,
            "since": self.since,
            "calls": self.calls,
            "tools_shown": self.tools_shown,
            "tokens_shown": self.tokens_shown,
            "servers": list_to_json(&self.servers),
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            name: members.optional_text("name"),
            version: members.optional_text("version"),
            protocol_version: members.text("protocol_version"),
            kind: members.text("kind"),
            capabilities: members.value("capabilities"),
            caller: members.text("caller"),
            profile: members.optional_text("profile"),
            server: members.optional_text("server"),
            since: members.text("since"),
            calls: members.optional_count("calls"),
            tools_shown: members.count("tools_shown"),
            tokens_shown: members.count("tokens_shown"),
            servers: members.reports("servers"),
        }
    }
}

/// The tools of one server that a client is listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShownServerReport {
    /// `None` for tools of the gateway itself.
    pub(crate) server: Option<String>,
    pub(crate) tools: u64,
    pub(crate) tokens: u64,
}

impl ShownServerReport {
    /// Creates the report about the tools of a server.
    pub(crate) fn new(shown: &ShownTools) -> Self {
        Self {
            server: shown.server.as_ref().map(ToString::to_string),
            tools: shown.tools as u64,
            tokens: shown.tokens() as u64,
        }
    }
}

impl Report for ShownServerReport {
    fn to_json(&self) -> Value {
        json!({"server": self.server, "tools": self.tools, "tokens": self.tokens})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            server: members.optional_text("server"),
            tools: members.count("tools"),
            tokens: members.count("tokens"),
        }
    }
}
