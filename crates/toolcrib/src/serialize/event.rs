//! Events, with their kind in `event`. A call that ended has the members of an audit line.

use std::time::Duration;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::serialize_as_text;
use super::status::{UnapprovedForm, unapproved_forms};
use crate::model::caller::Caller;
use crate::model::event::{CacheUse, CallEnd, CallRecord, Decision, Event};
use crate::model::failure_class::FailureClass;
use crate::spec::{Origin, ServerId};
use crate::util::format::format_timestamp;

serialize_as_text! {
    Caller => |caller| caller.as_str().to_owned(),
    Decision => |decision| decision.name(),
    CacheUse => |cache| cache.name(),
    CallEnd => |end| end.name(),
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum EventForm<'a> {
    Started { server: &'a ServerId, pid: Option<u32>, duration: f64 },
    Crashed { server: &'a ServerId, class: FailureClass, reason: &'a str },
    Stopped { server: &'a ServerId },
    Tripped { server: &'a ServerId },
    Recovered { server: &'a ServerId },
    Paused { server: &'a ServerId, class: FailureClass, reason: &'a str, retry_in: f64 },
    Ejected { server: &'a ServerId, class: FailureClass, reason: &'a str },
    ListingChanged { server: &'a ServerId },
    Unapproved { server: &'a ServerId, tools: Vec<UnapprovedForm<'a>>, withheld: bool },
    CallEnded(&'a CallRecord),
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = match self {
            Self::Started { server, pid, duration } => {
                EventForm::Started { server, pid: *pid, duration: duration.as_secs_f64() }
            }
            Self::Crashed { server, class, reason } => EventForm::Crashed { server, class: *class, reason },
            Self::Stopped { server } => EventForm::Stopped { server },
            Self::Tripped { server } => EventForm::Tripped { server },
            Self::Recovered { server } => EventForm::Recovered { server },
            Self::Paused { server, class, reason, retry_in } => {
                EventForm::Paused { server, class: *class, reason, retry_in: retry_in.as_secs_f64() }
            }
            Self::Ejected { server, class, reason } => EventForm::Ejected { server, class: *class, reason },
            Self::ListingChanged { server } => EventForm::ListingChanged { server },
            Self::Unapproved { server, tools, withheld } => {
                EventForm::Unapproved { server, tools: unapproved_forms(tools), withheld: *withheld }
            }
            Self::CallEnded(record) => EventForm::CallEnded(record),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct CallRecordForm<'a> {
    at: String,
    id: String,
    caller: &'a Caller,
    method: &'a str,
    server: Option<&'a ServerId>,
    name: &'a str,
    decision: Decision,
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    cache: Option<CacheUse>,
    outcome: CallEnd,
    /// The duration in milliseconds.
    ms: f64,
    /// The size of the parameters.
    asked: usize,
    /// The size of the result.
    answered: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a RawValue>,
}

impl Serialize for CallRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let origin: Option<&Origin> = self.denial.as_ref().and_then(|denial| denial.origin.as_ref());
        let arguments = self.arguments.as_deref().map(serde_json::from_slice).transpose();
        CallRecordForm {
            at: format_timestamp(self.at),
            id: self.id.to_string(),
            caller: &self.caller,
            method: &self.method,
            server: self.server.as_ref(),
            name: &self.name,
            decision: self.decision,
            rule: self.denial.as_ref().map(|denial| &*denial.rule),
            file: origin.map(|origin| origin.file.to_string_lossy().into_owned()),
            line: origin.map(|origin| origin.line),
            cache: self.cache,
            outcome: self.end,
            ms: milliseconds(self.duration),
            asked: self.request_bytes,
            answered: self.response_bytes,
            arguments: arguments.map_err(S::Error::custom)?,
        }
        .serialize(serializer)
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
