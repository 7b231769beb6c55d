//! The status of the gateway and the usage of limits.

use std::path::Path;

use serde_json::{Value, json};
use toolcrib::limits::LimitStatus;
use toolcrib_serve::ClientListCost;
use toolcrib_valkey::{StoreState, StoreStatus};

use super::clients::ShownServerReport;
use super::server::ServerReport;
use super::{Members, Report, list_to_json};
use crate::command_error::ProblemReport;

/// The object of `status --json`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GatewayReport {
    pub(crate) version: String,
    pub(crate) pid: u64,
    /// In seconds.
    pub(crate) uptime: f64,
    pub(crate) config: ConfigReport,
    pub(crate) servers: Vec<ServerReport>,
    pub(crate) quota: Vec<LimitReport>,
    pub(crate) clients: Vec<ClientCostReport>,
    /// The store that it shares with other gateways.
    pub(crate) store: Option<StoreReport>,
}

impl Report for GatewayReport {
    fn to_json(&self) -> Value {
        json!({
            "version": self.version,
            "pid": self.pid,
            "uptime": self.uptime,
            "config": self.config.to_json(),
            "servers": list_to_json(&self.servers),
            "quota": list_to_json(&self.quota),
            "clients": list_to_json(&self.clients),
            "store": self.store.as_ref().map(StoreReport::to_json),
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            version: members.text("version"),
            pid: members.count("pid"),
            uptime: members.number("uptime"),
            config: ConfigReport::from_json(&value["config"]),
            servers: members.reports("servers"),
            quota: members.reports("quota"),
            clients: members.reports("clients"),
            store: Some(&value["store"]).filter(|store| !store.is_null()).map(StoreReport::from_json),
        }
    }
}

/// The config in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigReport {
    pub(crate) file: String,
    /// Number of the config since the start, from 1.
    pub(crate) generation: u64,
    pub(crate) problems: Vec<ProblemReport>,
}

impl ConfigReport {
    /// Creates the report about a config file.
    pub(crate) fn new(file: &Path, generation: u64, problems: Vec<ProblemReport>) -> Self {
        Self { file: file.display().to_string(), generation, problems }
    }
}

impl Report for ConfigReport {
    fn to_json(&self) -> Value {
        json!({
            "file": self.file,
            "generation": self.generation,
            "problems": list_to_json(&self.problems),
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            file: members.text("file"),
            generation: members.count("generation"),
            problems: members.reports("problems"),
        }
    }
}

impl Report for ProblemReport {
    fn to_json(&self) -> Value {
        Self::to_json(self)
    }

    fn from_json(value: &Value) -> Self {
        Self::from_json(value)
    }
}

/// The store that gateways share.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoreReport {
    /// The servers, without user and password.
    pub(crate) url: String,
    /// `connecting`, `up` or `down`.
    pub(crate) state: String,
    /// The reason why it is down.
    pub(crate) error: Option<String>,
    /// Seconds since the state changed.
    pub(crate) since: f64,
    /// Where the other gateways reach this one, which tells replicas apart.
    pub(crate) address: Option<String>,
}

impl StoreReport {
    /// Creates the report about a store, and the gateway's own address among its replicas.
    pub(crate) fn new(status: &StoreStatus, address: Option<&str>) -> Self {
        let (state, error) = match &status.state {
            StoreState::Up => ("up", None),
            StoreState::Down(reason) => ("down", Some(reason.clone())),
            _ => ("connecting", None),
        };
        Self {
            url: status.url.clone(),
            state: state.to_owned(),
            error,
            since: status.since.as_secs_f64(),
            address: address.map(str::to_owned),
        }
    }
}

impl Report for StoreReport {
    fn to_json(&self) -> Value {
        json!({
            "url": self.url,
            "state": self.state,
            "error": self.error,
            "since": self.since,
            "address": self.address,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            url: members.text("url"),
            state: members.text("state"),
            error: members.optional_text("error"),
            since: members.number("since"),
            address: members.optional_text("address"),
        }
    }
}

/// The usage of one limit by one caller.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LimitReport {
    pub(crate) caller: String,
    /// The config key that sets the limit.
    pub(crate) limit: String,
    pub(crate) calls: u64,
    /// The period in seconds.
    pub(crate) per: f64,
    pub(crate) left: u64,
    /// Seconds until a call can be made, if none can be made now.
    pub(crate) room_in: Option<f64>,
}

impl LimitReport {
    /// Creates the report about a limit.
    pub(crate) fn new(status: &LimitStatus) -> Self {
        Self {
            caller: status.caller.as_str().to_owned(),
            limit: status.limit.clone(),
            calls: status.kind.calls().get().into(),
            per: status.kind.period().as_secs_f64(),
            left: status.remaining.into(),
            room_in: status.available_in.map(|wait| wait.as_secs_f64()),
        }
    }
}

impl Report for LimitReport {
    fn to_json(&self) -> Value {
        json!({
            "caller": self.caller,
            "limit": self.limit,
            "calls": self.calls,
            "per": self.per,
            "left": self.left,
            "room_in": self.room_in,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            caller: members.text("caller"),
            limit: members.text("limit"),
            calls: members.count("calls"),
            per: members.number("per"),
            left: members.count("left"),
            room_in: members.optional_number("room_in"),
        }
    }
}

/// A client that listed tools, and what its list costs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClientCostReport {
    /// The name of the client program.
    pub(crate) name: Option<String>,
    pub(crate) caller: String,
    pub(crate) profile: Option<String>,
    /// `all` or `search`.
    pub(crate) expose: String,
    /// Seconds since it last listed its tools.
    pub(crate) listed_ago: f64,
    pub(crate) tools_shown: u64,
    pub(crate) tokens_shown: u64,
    /// Tokens of the instructions, which are not part of `tokens_shown`.
    pub(crate) instruction_tokens: u64,
    pub(crate) servers: Vec<ShownServerReport>,
}

impl ClientCostReport {
    /// Creates the report about a client.
    pub(crate) fn new(cost: &ClientListCost) -> Self {
        let servers: Vec<ShownServerReport> = cost.servers.iter().map(ShownServerReport::new).collect();
        Self {
            name: cost.client.as_deref().map(str::to_owned),
            caller: cost.caller.clone(),
            profile: cost.profile.clone(),
            expose: if cost.is_search { "search" } else { "all" }.to_owned(),
            listed_ago: cost.listed_ago.as_secs_f64(),
            tools_shown: servers.iter().map(|server| server.tools).sum(),
            tokens_shown: servers.iter().map(|server| server.tokens).sum(),
            instruction_tokens: cost.instruction_tokens as u64,
            servers,
        }
    }
}

impl Report for ClientCostReport {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "caller": self.caller,
            "profile": self.profile,
            "expose": self.expose,
            "listed_ago": self.listed_ago,
            "tools_shown": self.tools_shown,
            "tokens_shown": self.tokens_shown,
            "instruction_tokens": self.instruction_tokens,
            "servers": list_to_json(&self.servers),
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            name: members.optional_text("name"),
            caller: members.text("caller"),
            profile: members.optional_text("profile"),
            expose: members.text("expose"),
            listed_ago: members.number("listed_ago"),
            tools_shown: members.count("tools_shown"),
            tokens_shown: members.count("tokens_shown"),
            instruction_tokens: members.count("instruction_tokens"),
            servers: members.reports("servers"),
        }
    }
}
