//! The status of one server. Every member is always present, and `null` if it has no value.

use serde_json::{Value, json};
use toolcrib::oauth::LoginState;
use toolcrib::{FailureClass, Hint, LastError, PinnedKind, ServerState, ServerStatus, ToolPinStatus};

use super::{Members, Report, list_to_json, with_kind};
use crate::hints::hint_text;

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
    /// In bytes; in JSON `memory_bytes`, and `memory` as in earlier versions.
    pub(crate) memory: Option<u64>,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) start: String,
    pub(crate) pin: String,
    pub(crate) unapproved: Vec<ToolChangeReport>,
    /// Mistakes in the server's definitions.
    pub(crate) problems: Vec<String>,
    /// Lists that could not be read.
    pub(crate) listing_errors: Vec<ListingErrorReport>,
    pub(crate) sharing: String,
    /// The first request that the server sent to a client during a call, if clients get their own instances for that.
    pub(crate) asks: Option<String>,
    /// The number of running instances.
    pub(crate) instances: u64,
    pub(crate) instances_list: Vec<InstanceReport>,
    /// The revision of the catalog.
    pub(crate) revision: u64,
    /// The protocol era; several if processes or connections of several are up.
    pub(crate) eras: Vec<String>,
    pub(crate) protocol_version: Option<String>,
    pub(crate) server_info: Option<Value>,
    pub(crate) title: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) card_tags: Vec<String>,
    /// State of the login: `none`, `needed`, `ok` or `expired`.
    pub(crate) login: String,
}

impl ServerReport {
    /// Creates the report about a server; `revision` is the catalog revision, `login` the state of the login
    /// if there is one. All other members are those of the library's
    /// JSON form of a status, with hints in the words of this program.
    pub(crate) fn new(status: &ServerStatus, login: Option<LoginState>, revision: u64) -> Self {
        let members = serde_json::to_value(status).unwrap_or_default();
        let mut report = Self { revision, ..Self::from_json(&members) };
        report.login = login_name(status, login).unwrap_or("none").to_owned();
        set_hint(&mut report.last_error, status);
        for (instance, report) in status.instances.iter().zip(&mut report.instances_list) {
            set_hint(&mut report.last_error, &instance.status);
        }
        report
    }
}

/// Returns the status of a server without members that are null, false, zero or empty. With many servers it is much smaller than a
/// [`ServerReport`], and takes less time.
pub(crate) fn to_short_json(status: &ServerStatus, login: Option<LoginState>) -> Value {
    let mut report = serde_json::to_value(status).unwrap_or_default();
    if let (Some(error), Value::Object(last_error)) = (&status.last_error, &mut report["last_error"]) {
        last_error.insert("hint".to_owned(), hint_text(&error.hint).into());
    }
    if let Value::Object(members) = &mut report {
        members.retain(|_, value| !is_empty(value));
        members.extend(login_name(status, login).map(|login| ("login".to_owned(), login.into())));
    }
    report
}

/// Returns whether a member is left out of a short report.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// Returns the state of the login to a server, if it has or needs one.
fn login_name(status: &ServerStatus, login: Option<LoginState>) -> Option<&'static str> {
    let needed = is_login_needed(status).then_some(LoginState::Needed);
    login.or(needed).map(LoginState::as_str)
}

/// Returns whether a login would help. A server whose secret is missing or locked needs that secret instead.
fn is_login_needed(status: &ServerStatus) -> bool {
    let needs_login = |error: &LastError| {
        let is_about_secret = matches!(error.hint, Hint::SetSecret { .. } | Hint::CheckSecrets);
        error.class == Some(FailureClass::NeedsAuth) && !is_about_secret
    };
    status.state != ServerState::Ready && status.last_error.as_ref().is_some_and(needs_login)
}

/// Replaces the hint of the library in the last error.
fn set_hint(report: &mut Option<LastErrorReport>, status: &ServerStatus) {
    if let (Some(report), Some(error)) = (report, &status.last_error) {
        report.hint = Some(hint_text(&error.hint));
    }
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
            "memory_bytes": self.memory,
            "cpu_seconds": self.cpu_seconds,
            "calls": self.calls,
            "errors": self.errors,
            "p50": self.p50,
            "p99": self.p99,
            "start": self.start,
            "pin": self.pin,
            "unapproved": list_to_json(&self.unapproved),
            "problems": self.problems,
            "listing_errors": list_to_json(&self.listing_errors),
            "sharing": self.sharing,
            "asks": self.asks,
            "instances": self.instances,
            "instances_list": list_to_json(&self.instances_list),
            "revision": self.revision,
            "era": eras_to_json(&self.eras),
            "protocol_version": self.protocol_version,
            "server_info": self.server_info,
            "title": self.title,
            "description": self.description,
            "card_tags": self.card_tags,
            "login": self.login,
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
            cpu_seconds: members.optional_number("cpu_seconds"),
            calls: members.count("calls"),
            errors: members.count("errors"),
            p50: members.optional_number("p50"),
            p99: members.optional_number("p99"),
            start: members.text("start"),
            pin: members.text("pin"),
            unapproved: members.reports("unapproved"),
            problems: members.texts("problems"),
            listing_errors: members.reports("listing_errors"),
            sharing: members.text("sharing"),
            asks: members.optional_text("asks"),
            instances: members.count("instances"),
            instances_list: members.reports("instances_list"),
            revision: members.count("revision"),
            eras: members.optional_text("era").map_or_else(|| members.texts("era"), |era| vec![era]),
            protocol_version: members.optional_text("protocol_version"),
            server_info: Some(members.value("server_info")).filter(|info| !info.is_null()),
            title: members.optional_text("title"),
            description: members.optional_text("description"),
            card_tags: members.texts("card_tags"),
            login: members.text("login"),
        }
    }
}

/// Returns the name of an era, or a list of names if there are several.
fn eras_to_json(eras: &[String]) -> Value {
    match eras {
        [] => Value::Null,
        [era] => json!(era),
        eras => json!(eras),
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

/// A list that could not be read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListingErrorReport {
    /// The method that lists it.
    pub(crate) list: String,
    pub(crate) code: Option<i64>,
    pub(crate) message: String,
    pub(crate) data: Value,
}

impl Report for ListingErrorReport {
    fn to_json(&self) -> Value {
        json!({"list": self.list, "code": self.code, "message": self.message, "data": self.data})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            list: members.text("list"),
            code: value["code"].as_i64(),
            message: members.text("message"),
            data: members.value("data"),
        }
    }
}

/// A tool that differs from what was approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolChangeReport {
    pub(crate) tool: String,
    /// `new` or `changed`.
    pub(crate) change: String,
    /// The kind of the item, unless it is a tool.
    pub(crate) kind: Option<String>,
}

impl ToolChangeReport {
    /// Creates the report about a tool or another item.
    pub(crate) fn new(found: &ToolPinStatus) -> Self {
        Self {
            tool: found.tool.to_string(),
            change: found.status.as_str().to_owned(),
            kind: Some(found.kind.as_str().to_owned()).filter(|_| found.kind != PinnedKind::Tool),
        }
    }

    /// Returns the kind, unless it is a tool, and the name.
    pub(crate) fn label(&self) -> String {
        match self.kind.as_deref() {
            None => format!("`{}`", self.tool.escape_debug()),
            Some("instructions") => "instructions".to_owned(),
            Some(kind) => format!("{kind} `{}`", self.tool.escape_debug()),
        }
    }
}

impl Report for ToolChangeReport {
    fn to_json(&self) -> Value {
        with_kind(json!({"tool": self.tool, "change": self.change}), self.kind.as_deref())
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            tool: members.text("tool"),
            change: members.text("change"),
            kind: members.optional_text("kind"),
        }
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
