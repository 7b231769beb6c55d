//! Finds calls in the files of the history.

use std::io;
use std::path::Path;

use toolcrib::CallId;
use toolcrib::util::time_id::start_of_millisecond;

use super::record::{CallEntry, CallOutcome, HistoryRecord, Records};
use super::segments::{self, Segment};
use crate::report::calls::{CallReport, CallsReport};

/// The calls that a query returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallFilter {
    /// The position of the first record.
    pub(crate) from: u64,
    /// Only calls that ended before this one.
    pub(crate) before: Option<CallId>,
    pub(crate) server: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) caller: Option<String>,
    pub(crate) outcome: Option<CallOutcome>,
    pub(crate) limit: usize,
}

impl CallFilter {
    fn matches(&self, call: &CallEntry<'_>) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        call.seq >= self.from
            && is(&self.server, call.server)
            && is(&self.tool, call.tool)
            && is(&self.caller, call.caller)
            && self.outcome.is_none_or(|outcome| outcome == call.outcome())
    }
}

/// Returns one page of calls, the newest first.
pub(super) fn find_calls(folder: &Path, filter: &CallFilter) -> io::Result<CallsReport> {
    let segments = segments::list_from(folder, filter.from)?;
    let end = match filter.before {
        Some(id) => match find_position(&segments, id)? {
            Some(position) => position,
            None => return Ok(CallsReport::default()),
        },
        None => u64::MAX,
    };
    let mut calls: Vec<CallReport> = Vec::new();
    for segment in segments.iter().rev().filter(|segment| segment.first < end) {
        let bytes = segment.read()?;
        let found: Vec<CallEntry<'_>> = Records::new(&bytes)
            .filter_map(as_call)
            .filter(|call| call.seq < end && filter.matches(call))
            .collect();
        // One more than the page shows whether there is another one.
        let room = filter.limit + 1 - calls.len();
        calls.extend(found.iter().rev().take(room).map(CallEntry::report));
        if calls.len() > filter.limit {
            calls.truncate(filter.limit);
            let next = calls.last().map(|call| call.id.clone());
            return Ok(CallsReport { calls, next });
        }
    }
    Ok(CallsReport { calls, next: None })
}

/// Returns one call, if it is a call of this caller.
pub(super) fn find_call(folder: &Path, id: CallId, caller: Option<&str>) -> io::Result<Option<CallReport>> {
    for segment in segments::list_from(folder, earliest_position(id))? {
        let bytes = segment.read()?;
        let found = Records::new(&bytes).filter_map(as_call).find(|call| call.id == id.number());
        if let Some(found) = found {
            let is_visible = caller.is_none_or(|caller| caller == found.caller);
            return Ok(is_visible.then(|| found.full_report()));
        }
    }
    Ok(None)
}

/// Returns the earliest position that a call can have. Its id begins with the time at which it ended, or in earlier versions started.
fn earliest_position(id: CallId) -> u64 {
    start_of_millisecond(id.number())
}

/// Returns the position of a call.
fn find_position(segments: &[Segment], id: CallId) -> io::Result<Option<u64>> {
    let earliest = earliest_position(id);
    let first = segments.iter().rposition(|segment| segment.first <= earliest).unwrap_or(0);
    for segment in &segments[first..] {
        let bytes = segment.read()?;
        let found = Records::new(&bytes).filter_map(as_call).find(|call| call.id == id.number());
        if let Some(found) = found {
            return Ok(Some(found.seq));
        }
    }
    Ok(None)
}

/// Returns the call of a record, if it is about one.
pub(super) fn as_call(record: HistoryRecord<'_>) -> Option<CallEntry<'_>> {
    match record {
        HistoryRecord::Call(call) => Some(call),
        HistoryRecord::Event(_) => None,
    }
}
