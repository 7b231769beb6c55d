//! The reports that the admin API returns and that commands print. Each has its JSON form in one place.
//!
//! A member that is missing or has another type reads as its default, so that a command understands a gateway of another
//! version.

pub(crate) mod approvals;
pub(crate) mod calls;
pub(crate) mod clients;
pub(crate) mod declared;
pub(crate) mod events;
pub(crate) mod secrets;
pub(crate) mod server;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod tools;

use serde_json::{Value, json};
use toolcrib::{RosterChanges, ServerId};

/// A report with a JSON form.
pub(crate) trait Report: Sized {
    /// Returns the JSON form.
    fn to_json(&self) -> Value;

    /// Reads the JSON form.
    fn from_json(value: &Value) -> Self;
}

/// Returns the JSON form of several reports.
pub(crate) fn list_to_json<R: Report>(reports: &[R]) -> Value {
    reports.iter().map(Report::to_json).collect()
}

/// Typed access to the members of a JSON object.
#[derive(Clone, Copy)]
struct Members<'a>(&'a Value);

impl<'a> Members<'a> {
    fn value(self, name: &str) -> Value {
        self.0[name].clone()
    }

    fn str(self, name: &str) -> Option<&'a str> {
        self.0[name].as_str()
    }

    fn text(self, name: &str) -> String {
        self.str(name).unwrap_or_default().to_owned()
    }

    fn optional_text(self, name: &str) -> Option<String> {
        self.str(name).map(str::to_owned)
    }

    fn count(self, name: &str) -> u64 {
        self.optional_count(name).unwrap_or_default()
    }

    fn optional_count(self, name: &str) -> Option<u64> {
        self.0[name].as_u64()
    }

    fn number(self, name: &str) -> f64 {
        self.optional_number(name).unwrap_or_default()
    }

    fn optional_number(self, name: &str) -> Option<f64> {
        self.0[name].as_f64()
    }

    fn flag(self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or_default()
    }

    fn texts(self, name: &str) -> Vec<String> {
        self.elements(name).filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn reports<R: Report>(self, name: &str) -> Vec<R> {
        self.elements(name).map(R::from_json).collect()
    }

    fn optional_report<R: Report>(self, name: &str) -> Option<R> {
        Some(&self.0[name]).filter(|value| value.is_object()).map(R::from_json)
    }

    fn elements(self, name: &str) -> impl Iterator<Item = &'a Value> {
        self.0[name].as_array().into_iter().flatten()
    }
}

/// Adds the kind of an item to its report. Reports on tools have none.
fn with_kind(mut report: Value, kind: Option<&str>) -> Value {
    if let Some(kind) = kind {
        report["kind"] = kind.into();
    }
    report
}

/// The result of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReloadReport {
    /// Number of the config since the start, from 1.
    pub(crate) generation: u64,
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    pub(crate) changed: Vec<String>,
    /// True if a change needs a restart of the gateway.
    pub(crate) restart_needed: bool,
}

impl ReloadReport {
    /// Creates the report about these changes.
    pub(crate) fn new(generation: u64, changes: &RosterChanges, restart_needed: bool) -> Self {
        let names = |servers: &[ServerId]| servers.iter().map(ToString::to_string).collect();
        Self {
            generation,
            added: names(&changes.added),
            removed: names(&changes.removed),
            changed: names(&changes.changed),
            restart_needed,
        }
    }

    /// Returns the changes in one line.
    pub(crate) fn summary(&self) -> String {
        let changes = [("added", &self.added), ("removed", &self.removed), ("changed", &self.changed)];
        let changes = changes.iter().filter(|(_, servers)| !servers.is_empty());
        let changes: Vec<String> =
            changes.map(|(change, servers)| format!("{change} {}", servers.join(", "))).collect();
        match changes.is_empty() {
            true => format!("config {}: no server changed", self.generation),
            false => format!("config {}: {}", self.generation, changes.join("; ")),
        }
    }
}

impl Report for ReloadReport {
    fn to_json(&self) -> Value {
        json!({
            "generation": self.generation,
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "restart_needed": self.restart_needed,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            generation: members.count("generation"),
            added: members.texts("added"),
            removed: members.texts("removed"),
            changed: members.texts("changed"),
            restart_needed: members.flag("restart_needed"),
        }
    }
}

/// One line of a server's stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLineReport {
    /// The number of the line, unless it was read from a log file.
    pub(crate) seq: Option<u64>,
    /// In RFC 3339; empty if an older gateway does not report it.
    pub(crate) at: String,
    pub(crate) line: String,
}

impl Report for LogLineReport {
    fn to_json(&self) -> Value {
        json!({"seq": self.seq, "at": self.at, "line": self.line})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self { seq: members.optional_count("seq"), at: members.text("at"), line: members.text("line") }
    }
}

/// A JSON array of reports.
impl<R: Report> Report for Vec<R> {
    fn to_json(&self) -> Value {
        list_to_json(self)
    }

    fn from_json(value: &Value) -> Self {
        value.as_array().into_iter().flatten().map(R::from_json).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
