//! Events of servers, calls and the gateway.

use serde_json::{Value, json};
use toolcrib::Event;
use toolcrib::util::format::format_duration;

use super::{Members, Report};

/// Tools that the text of an event names.
const MAX_NAMED_TOOLS: usize = 20;

/// The kinds of events, as `event` of the stream and in `?kind=`.
pub(crate) const EVENT_KINDS: [&str; 16] = [
    "started",
    "exited",
    "restarted",
    "ejected",
    "paused",
    "tripped",
    "recovered",
    "reloaded",
    "list_changed",
    "unapproved",
    "approval_asked",
    "approval_given",
    "login_needed",
    "store_down",
    "store_up",
    "call",
];

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EventReport {
    /// The position in the stream, for `Last-Event-ID`.
    pub(crate) id: String,
    /// In RFC 3339.
    pub(crate) time: String,
    /// One of [`EVENT_KINDS`].
    pub(crate) kind: String,
    pub(crate) server: Option<String>,
    pub(crate) caller: Option<String>,
    pub(crate) message: String,
    /// The id of the call.
    pub(crate) call: Option<String>,
    /// True if other calls before this one are not in the stream, because there are too many.
    pub(crate) sampled: bool,
}

impl Report for EventReport {
    fn to_json(&self) -> Value {
        let mut report =
            json!({"id": self.id, "time": self.time, "kind": self.kind, "message": self.message});
        for (name, value) in [("server", &self.server), ("caller", &self.caller), ("call", &self.call)] {
            if let Some(value) = value {
                report[name] = value.as_str().into();
            }
        }
        if self.sampled {
            report["sampled"] = true.into();
        }
        report
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            id: members.text("id"),
            time: members.text("time"),
            kind: members.text("kind"),
            server: members.optional_text("server"),
            caller: members.optional_text("caller"),
            message: members.text("message"),
            call: members.optional_text("call"),
            sampled: members.flag("sampled"),
        }
    }
}

/// Returns the text of an event, or `None` if its kind says everything.
pub(crate) fn describe_event(event: &Event) -> Option<String> {
    Some(match event {
        Event::Started { pid: Some(pid), duration, .. } => {
            format!("started as pid {pid} in {}", format_duration(*duration))
        }
        Event::Started { duration, .. } => format!("started in {}", format_duration(*duration)),
        Event::Crashed { reason, .. } => reason.clone(),
        Event::Stopped { .. } => "stopped".to_owned(),
        Event::Tripped { .. } => "circuit breaker open: too many failures".to_owned(),
        Event::Recovered { .. } => "circuit breaker closed: the server responds again".to_owned(),
        Event::Paused { reason, .. } => reason.clone(),
        Event::Ejected { reason, .. } => format!("ejected: {reason}"),
        Event::Unapproved { tools, withheld, .. } => {
            let more = tools.len().saturating_sub(MAX_NAMED_TOOLS);
            let mut tools: Vec<String> = tools
                .iter()
                .take(MAX_NAMED_TOOLS)
                .map(|found| format!("`{}` ({})", found.to_string().escape_debug(), found.status.as_str()))
                .collect();
            if more > 0 {
                tools.push(format!("and {more} more"));
            }
            let consequence = if *withheld { "withheld until approved" } else { "marked" };
            format!("definitions differ from the approved ones, {consequence}: {}", tools.join(", "))
        }
        _ => return None,
    })
}
