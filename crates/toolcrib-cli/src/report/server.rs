//! The status of one server. Every member is always present, and `null` if it has no value.

use std::time::Duration;

use serde_json::{Value, json};
use toolcrib::model::status::{InstanceStatus, LastError};
use toolcrib::protocol::versions::{Era, Revision};
use toolcrib::{FailureClass, ServerState, ServerStatus, Sharing, StartPolicy};

use super::{Members, Report, list_to_json};
use crate::hints::hint_text;
use crate::timestamp::timestamp;

/// The status of one server. Durations are in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ServerReport {
    pub(crate) name: String,
    pub(crate) transport: String,
    pub(crate) state: String,
    pub(crate) pid: Option<u64>,
    pub(crate) uptime: Option<f64>,
    pub(crate) generation: u64,
    pub(crate) leases: u64,
    pub(crate) in_flight: u64,
    pub(crate) restarts: u64,
    pub(crate) restarts_left: u64,
    pub(crate) consecutive_failures: u64,
    pub(crate) breaker: String,
    pub(crate) ejected: bool,
    pub(crate) next_attempt_in: Option<f64>,
    pub(crate) last_error: Option<LastErrorReport>,
    /// The failure class of the last error.
    pub(crate) class: Option<String>,
    pub(crate) stderr_tail: Vec<String>,
    pub(crate) cache_entries: u64,
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) tools: Option<u64>,
    /// In bytes.
    pub(crate) memory: Option<u64>,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) start: String,
    pub(crate) pin: String,
    pub(crate) unapproved: Vec<ToolChangeReport>,
    pub(crate) sharing: String,
    /// The number of running instances.
    pub(crate) instances: u64,
    pub(crate) instances_list: Vec<InstanceReport>,
    /// The revision of the catalog.
    pub(crate) revision: u64,
    pub(crate) era: Option<String>,
    pub(crate) protocol_version: Option<String>,
    pub(crate) server_info: Option<Value>,
}

impl ServerReport {
    /// Creates the report about a server; `revision` is the catalog revision.
    pub(crate) fn new(status: &ServerStatus, revision: u64) -> Self {
        let start = match status.start {
            StartPolicy::AtBoot => "at-boot",
            _ => "on-demand",
        };
        let class = status.last_error.as_ref().and_then(|error| error.class);
        Self {
            name: status.server.to_string(),
            transport: status.transport.to_owned(),
            state: status.state.as_str().to_owned(),
            pid: status.pid.map(u64::from),
            uptime: seconds(status.uptime),
            generation: status.generation,
            leases: count(status.leases),
            in_flight: count(status.in_flight),
            restarts: status.restarts.into(),
            restarts_left: status.restarts_left.into(),
            consecutive_failures: status.consecutive_failures.into(),
            breaker: status.breaker().to_owned(),
            ejected: status.state == ServerState::Ejected,
            next_attempt_in: seconds(status.next_attempt_in),
            last_error: status.last_error.as_ref().map(LastErrorReport::new),
            class: class.map(|class| FailureClass::name(class).to_owned()),
            stderr_tail: status.stderr_tail.clone(),
            cache_entries: count(status.cache_entries),
            cache_hits: status.cache_hits,
            cache_misses: status.cache_misses,
            tools: status.tools.map(count),
            memory: status.memory,
            calls: status.calls,
            errors: status.errors,
            p50: seconds(status.p50),
            p99: seconds(status.p99),
            start: start.to_owned(),
            pin: status.pin.as_str().to_owned(),
            unapproved: unapproved_tools(status),
            sharing: status.sharing.as_str().to_owned(),
            instances: count(running_instances(status)),
            instances_list: status.instances.iter().map(InstanceReport::new).collect(),
            revision,
            era: status.protocol.map(|protocol| era_name(protocol).to_owned()),
            protocol_version: status.protocol.map(|protocol| protocol.as_str().to_owned()),
            server_info: status.server_info.as_deref().and_then(|raw| serde_json::from_slice(raw).ok()),
        }
    }
}

fn unapproved_tools(status: &ServerStatus) -> Vec<ToolChangeReport> {
    let tools = status.unapproved.iter();
    tools
        .map(|(tool, pin)| ToolChangeReport { tool: tool.to_string(), change: pin.as_str().to_owned() })
        .collect()
}

fn running_instances(status: &ServerStatus) -> usize {
    let is_running = |status: &ServerStatus| {
        matches!(status.state, ServerState::Ready | ServerState::Tripped | ServerState::Probing)
    };
    match status.sharing {
        Sharing::Shared => usize::from(is_running(status)),
        _ => status.instances.iter().filter(|instance| is_running(&instance.status)).count(),
    }
}

fn era_name(protocol: Revision) -> &'static str {
    match protocol.era() {
        Era::Session => "legacy",
        _ => "modern",
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

impl Report for ServerReport {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "transport": self.transport,
            "state": self.state,
            "pid": self.pid,
            "uptime": self.uptime,
            "generation": self.generation,
            "leases": self.leases,
            "in_flight": self.in_flight,
            "restarts": self.restarts,
            "restarts_left": self.restarts_left,
            "consecutive_failures": self.consecutive_failures,
            "breaker": self.breaker,
            "ejected": self.ejected,
            "next_attempt_in": self.next_attempt_in,
            "last_error": self.last_error.as_ref().map(Report::to_json),
            "class": self.class,
            "stderr_tail": self.stderr_tail,
            "cache_entries": self.cache_entries,
            "cache_hits": self.cache_hits,
            "cache_misses": self.cache_misses,
            "tools": self.tools,
            "memory": self.memory,
            "calls": self.calls,
            "errors": self.errors,
            "p50": self.p50,
            "p99": self.p99,
            "start": self.start,
            "pin": self.pin,
            "unapproved": list_to_json(&self.unapproved),
            "sharing": self.sharing,
            "instances": self.instances,
            "instances_list": list_to_json(&self.instances_list),
            "revision": self.revision,
            "era": self.era,
            "protocol_version": self.protocol_version,
            "server_info": self.server_info,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            name: members.text("name"),
            transport: members.text("transport"),
            state: members.text("state"),
            pid: members.optional_count("pid"),
            uptime: members.optional_number("uptime"),
            generation: members.count("generation"),
            leases: members.count("leases"),
            in_flight: members.count("in_flight"),
            restarts: members.count("restarts"),
            restarts_left: members.count("restarts_left"),
            consecutive_failures: members.count("consecutive_failures"),
            breaker: members.text("breaker"),
            ejected: members.flag("ejected"),
            next_attempt_in: members.optional_number("next_attempt_in"),
            last_error: members.optional_report("last_error"),
            class: members.optional_text("class"),
            stderr_tail: members.texts("stderr_tail"),
            cache_entries: members.count("cache_entries"),
            cache_hits: members.count("cache_hits"),
            cache_misses: members.count("cache_misses"),
            tools: members.optional_count("tools"),
            memory: members.optional_count("memory"),
            calls: members.count("calls"),
            errors: members.count("errors"),
            p50: members.optional_number("p50"),
            p99: members.optional_number("p99"),
            start: members.text("start"),
            pin: members.text("pin"),
            unapproved: members.reports("unapproved"),
            sharing: members.text("sharing"),
            instances: members.count("instances"),
            instances_list: members.reports("instances_list"),
            revision: members.count("revision"),
            era: members.optional_text("era"),
            protocol_version: members.optional_text("protocol_version"),
            server_info: Some(members.value("server_info")).filter(|info| !info.is_null()),
        }
    }
}

/// The last failure of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LastErrorReport {
    /// The stable name of the error kind.
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// In RFC 3339.
    pub(crate) at: String,
}

impl LastErrorReport {
    fn new(error: &LastError) -> Self {
        Self {
            code: error.kind.facts().name.to_owned(),
            message: error.message.clone(),
            hint: Some(hint_text(&error.hint)),
            at: timestamp(error.at),
        }
    }
}

impl Report for LastErrorReport {
    fn to_json(&self) -> Value {
        json!({"code": self.code, "message": self.message, "hint": self.hint, "at": self.at})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            code: members.text("code"),
            message: members.text("message"),
            hint: members.optional_text("hint"),
            at: members.text("at"),
        }
    }
}

/// A tool that differs from what was approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolChangeReport {
    pub(crate) tool: String,
    /// `new` or `changed`.
    pub(crate) change: String,
}

impl Report for ToolChangeReport {
    fn to_json(&self) -> Value {
        json!({"tool": self.tool, "change": self.change})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self { tool: members.text("tool"), change: members.text("change") }
    }
}

/// The status of one instance of a server that is not shared. Durations are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InstanceReport {
    pub(crate) key: String,
    pub(crate) state: String,
    pub(crate) pid: Option<u64>,
    pub(crate) uptime: Option<f64>,
    /// Time since it was last used.
    pub(crate) asked: f64,
    pub(crate) generation: u64,
    pub(crate) leases: u64,
    pub(crate) in_flight: u64,
    pub(crate) restarts: u64,
    pub(crate) restarts_left: u64,
    pub(crate) breaker: String,
    pub(crate) next_attempt_in: Option<f64>,
    pub(crate) last_error: Option<LastErrorReport>,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
}

impl InstanceReport {
    fn new(instance: &InstanceStatus) -> Self {
        let InstanceStatus { key, last_used, status, .. } = instance;
        Self {
            key: key.to_string(),
            state: status.state.as_str().to_owned(),
            pid: status.pid.map(u64::from),
            uptime: seconds(status.uptime),
            asked: last_used.as_secs_f64(),
            generation: status.generation,
            leases: count(status.leases),
            in_flight: count(status.in_flight),
            restarts: status.restarts.into(),
            restarts_left: status.restarts_left.into(),
            breaker: status.breaker().to_owned(),
            next_attempt_in: seconds(status.next_attempt_in),
            last_error: status.last_error.as_ref().map(LastErrorReport::new),
            calls: status.calls,
            errors: status.errors,
        }
    }
}

impl Report for InstanceReport {
    fn to_json(&self) -> Value {
        json!({
            "key": self.key,
            "state": self.state,
            "pid": self.pid,
            "uptime": self.uptime,
            "asked": self.asked,
            "generation": self.generation,
            "leases": self.leases,
            "in_flight": self.in_flight,
            "restarts": self.restarts,
            "restarts_left": self.restarts_left,
            "breaker": self.breaker,
            "next_attempt_in": self.next_attempt_in,
            "last_error": self.last_error.as_ref().map(Report::to_json),
            "calls": self.calls,
            "errors": self.errors,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            key: members.text("key"),
            state: members.text("state"),
            pid: members.optional_count("pid"),
            uptime: members.optional_number("uptime"),
            asked: members.number("asked"),
            generation: members.count("generation"),
            leases: members.count("leases"),
            in_flight: members.count("in_flight"),
            restarts: members.count("restarts"),
            restarts_left: members.count("restarts_left"),
            breaker: members.text("breaker"),
            next_attempt_in: members.optional_number("next_attempt_in"),
            last_error: members.optional_report("last_error"),
            calls: members.count("calls"),
            errors: members.count("errors"),
        }
    }
}
