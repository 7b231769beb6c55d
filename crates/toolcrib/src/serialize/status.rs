//! The status of servers, in the form of `toolcrib status --json`: every member is present, and `null` if it has no value.

use std::borrow::Cow;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::serialize_as_text;
use crate::model::error::ErrorKind;
use crate::model::failure_class::FailureClass;
use crate::model::instance_key::InstanceKey;
use crate::model::pin_status::{PinStatus, PinnedKind, ToolPinStatus};
use crate::model::status::{InstanceStatus, LastError, ListingError, ServerState, ServerStatus};
use crate::protocol::versions::{Era, Revision};
use crate::spec::{Pinning, ServerId, Sharing, StartPolicy};
use crate::util::format::format_timestamp;

serialize_as_text! {
    ServerState => |state| state.as_str(),
    FailureClass => |class| class.name(),
    ErrorKind => |kind| kind.facts().name,
    InstanceKey => |key| key.to_string(),
    Revision => |revision| revision.as_str(),
    Era => |era| era.as_str(),
    PinStatus => |status| status.as_str(),
}

/// An item that differs from the approved ones. `kind` is left out for tools.
#[derive(Serialize)]
pub(super) struct UnapprovedForm<'a> {
    tool: &'a str,
    change: PinStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
}

pub(super) fn unapproved_forms(tools: &[ToolPinStatus]) -> Vec<UnapprovedForm<'_>> {
    let kind =
        |found: &'_ ToolPinStatus| Some(found.kind.as_str()).filter(|_| found.kind != PinnedKind::Tool);
    tools
        .iter()
        .map(|found| UnapprovedForm { tool: &found.tool, change: found.status, kind: kind(found) })
        .collect()
}

#[derive(Serialize)]
struct LastErrorForm<'a> {
    code: ErrorKind,
    message: &'a str,
    hint: String,
    at: String,
}

impl Serialize for LastError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let at = format_timestamp(self.at);
        let hint = self.hint.to_string();
        LastErrorForm { code: self.kind, message: &self.message, hint, at }.serialize(serializer)
    }
}

#[derive(Serialize)]
struct ListingErrorForm<'a> {
    list: &'static str,
    code: Option<i64>,
    message: &'a str,
    data: Option<&'a RawValue>,
}

impl Serialize for ListingError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = self.data.as_deref().map(serde_json::from_slice).transpose();
        ListingErrorForm {
            list: self.list.method(),
            code: self.code,
            message: &self.message,
            data: data.map_err(S::Error::custom)?,
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct ServerStatusForm<'a> {
    name: &'a ServerId,
    transport: &'static str,
    state: ServerState,
    pid: Option<u32>,
    uptime: Option<f64>,
    generation: u64,
    leases: usize,
    in_flight: usize,
    restarts: u32,
    restarts_left: u32,
    consecutive_failures: u32,
    breaker: &'static str,
    ejected: bool,
    next_attempt_in: Option<f64>,
    last_error: Option<&'a LastError>,
    class: Option<FailureClass>,
    stderr_tail: &'a [String],
    cache_entries: usize,
    cache_hits: u64,
    cache_misses: u64,
    tools: Option<usize>,
    memory: Option<u64>,
    memory_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
    calls: u64,
    errors: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    start: StartPolicy,
    pin: Pinning,
    unapproved: Vec<UnapprovedForm<'a>>,
    problems: &'a [String],
    listing_errors: &'a [ListingError],
    sharing: Sharing,
    asks: Option<&'static str>,
    /// The number of running instances.
    instances: usize,
    instances_list: &'a [InstanceStatus],
    era: ErasForm<'a>,
    protocol_version: Option<Revision>,
    server_info: Option<Cow<'a, RawValue>>,
    title: Option<String>,
    description: Option<String>,
    card_tags: &'a [String],
}

impl Serialize for ServerStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let server_info = self.server_info.as_deref().map(serde_json::from_slice::<&RawValue>).transpose();
        ServerStatusForm {
            name: &self.server,
            transport: self.transport,
            state: self.state,
            pid: self.pid,
            uptime: self.uptime.map(|uptime| uptime.as_secs_f64()),
            generation: self.generation,
            leases: self.leases,
            in_flight: self.in_flight,
            restarts: self.restarts,
            restarts_left: self.restarts_left,
            consecutive_failures: self.consecutive_failures,
            breaker: self.breaker(),
            ejected: self.state == ServerState::Ejected,
            next_attempt_in: self.next_attempt_in.map(|wait| wait.as_secs_f64()),
            last_error: self.last_error.as_ref(),
            class: self.last_error.as_ref().and_then(|error| error.class),
            stderr_tail: &self.stderr_tail,
            cache_entries: self.cache_entries,
            cache_hits: self.cache_hits,
            cache_misses: self.cache_misses,
            tools: self.tools,
            memory: self.memory,
            memory_bytes: self.memory,
            cpu_seconds: self.cpu_time.map(|time| time.as_secs_f64()),
            calls: self.calls,
            errors: self.errors,
            p50: self.p50.map(|duration| duration.as_secs_f64()),
            p99: self.p99.map(|duration| duration.as_secs_f64()),
            start: self.start,
            pin: self.pin,
            unapproved: unapproved_forms(&self.unapproved),
            problems: &self.problems,
            listing_errors: &self.listing_errors,
            sharing: self.sharing,
            asks: self.asks,
            instances: running_instances(self),
            instances_list: &self.instances,
            era: ErasForm(&self.eras),
            protocol_version: self.protocol,
            server_info: server_info.map_err(S::Error::custom)?.map(Cow::Borrowed),
            title: self.title(),
            description: self.description(),
            card_tags: self.card.as_ref().map_or(&[], |card| &card.tags),
        }
        .serialize(serializer)
    }
}

/// The name of an era; a list of names if there are several.
struct ErasForm<'a>(&'a [Era]);

impl Serialize for ErasForm<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            [] => serializer.serialize_none(),
            [era] => era.serialize(serializer),
            eras => eras.serialize(serializer),
        }
    }
}

fn running_instances(status: &ServerStatus) -> usize {
    let is_running = |status: &ServerStatus| {
        matches!(status.state, ServerState::Ready | ServerState::Tripped | ServerState::Probing)
    };
    match status.instances.is_empty() && status.sharing.is_shared() {
        true => usize::from(is_running(status)),
        false => status.instances.iter().filter(|instance| is_running(&instance.status)).count(),
    }
}

#[derive(Serialize)]
struct InstanceStatusForm<'a> {
    key: &'a InstanceKey,
    state: ServerState,
    pid: Option<u32>,
    uptime: Option<f64>,
    /// Time since it was last used.
    asked: f64,
    generation: u64,
    leases: usize,
    in_flight: usize,
    restarts: u32,
    restarts_left: u32,
    breaker: &'static str,
    next_attempt_in: Option<f64>,
    last_error: Option<&'a LastError>,
    calls: u64,
    errors: u64,
}

impl Serialize for InstanceStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { key, last_used, status } = self;
        InstanceStatusForm {
            key,
            state: status.state,
            pid: status.pid,
            uptime: status.uptime.map(|uptime| uptime.as_secs_f64()),
            asked: last_used.as_secs_f64(),
            generation: status.generation,
            leases: status.leases,
            in_flight: status.in_flight,
            restarts: status.restarts,
            restarts_left: status.restarts_left,
            breaker: status.breaker(),
            next_attempt_in: status.next_attempt_in.map(|wait| wait.as_secs_f64()),
            last_error: status.last_error.as_ref(),
            calls: status.calls,
            errors: status.errors,
        }
        .serialize(serializer)
    }
}
