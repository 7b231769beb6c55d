//! The stream of events: what was recorded, then what happens.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use toolcrib::util::time_id::time_of_id;

use super::HistoryInner;
use super::record::{HistoryRecord, Records};
use super::segments;
use crate::report::Report as _;
use crate::report::events::EventReport;

/// Calls of one second that a stream has; the others are left out.
const MAX_CALLS_PER_SECOND: u32 = 50;
/// The kind of events about calls.
const CALL_KIND: &str = "call";
/// Events that wait for a client that reads slowly.
const MAX_QUEUED_EVENTS: usize = 256;

/// The events that a client wants.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventFilter {
    /// Events after this position are read from the history; `None` for new events only.
    pub(crate) after: Option<u64>,
    /// Empty for all kinds.
    pub(crate) kinds: Vec<String>,
    pub(crate) server: Option<String>,
    /// Only events about calls of this caller.
    pub(crate) caller: Option<String>,
    /// True if the stream goes on after the recorded events.
    pub(crate) follow: bool,
}

impl EventFilter {
    fn wants_calls(&self) -> bool {
        self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == CALL_KIND)
    }

    fn matches(&self, kind: &str, server: &str, caller: &str) -> bool {
        (self.kinds.is_empty() || self.kinds.iter().any(|wanted| wanted == kind))
            && self.server.as_ref().is_none_or(|wanted| wanted == server)
            && self.caller.as_ref().is_none_or(|wanted| wanted == caller)
    }
}

/// Selects the events of one stream and leaves out calls if there are too many.
#[derive(Debug)]
pub(super) struct EventSelector {
    filter: EventFilter,
    /// The position of the last record.
    last: u64,
    /// The second of the last call, and its calls so far.
    second: u64,
    calls: u32,
    /// True if calls were left out since the last one in the stream.
    has_skipped: bool,
}

impl EventSelector {
    pub(super) fn new(filter: EventFilter) -> Self {
        let last = filter.after.unwrap_or(0);
        Self { filter, last, second: 0, calls: 0, has_skipped: false }
    }

    /// Returns the event of a record, if the stream has it.
    fn select(&mut self, record: &HistoryRecord<'_>) -> Option<EventReport> {
        if record.seq() <= self.last {
            return None;
        }
        self.last = record.seq();
        match record {
            HistoryRecord::Event(event) => {
                self.filter.matches(event.kind, event.server, event.caller).then(|| event.event())
            }
            HistoryRecord::Call(call) => {
                let sampled = self.has_skipped;
                let is_wanted =
                    self.filter.matches(CALL_KIND, call.server, call.caller) && self.has_room(call.seq);
                is_wanted.then(|| EventReport { sampled, ..call.event() })
            }
        }
    }

    /// Counts a call, and returns whether the stream has it.
    fn has_room(&mut self, seq: u64) -> bool {
        let second = time_of_id(seq).duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        if second != self.second {
            self.second = second;
            self.calls = 0;
        }
        self.calls += 1;
        self.has_skipped = self.calls > MAX_CALLS_PER_SECOND;
        !self.has_skipped
    }

    fn select_all(&mut self, bytes: &[u8]) -> Vec<EventReport> {
        let records = match self.filter.wants_calls() {
            true => Records::new(bytes),
            false => Records::without_calls(bytes),
        };
        records.filter_map(|record| self.select(&record)).collect()
    }

    /// Returns the recorded events.
    pub(super) fn read(&mut self, folder: &Path) -> io::Result<Vec<EventReport>> {
        let mut events = Vec::new();
        for segment in segments::list_from(folder, self.last)? {
            events.extend(self.select_all(&segment.read()?));
        }
        Ok(events)
    }
}

/// Encodes an event for the stream.
fn encode(event: &EventReport) -> Vec<u8> {
    format!("id: {}\nevent: {}\ndata: {}\n\n", event.id, event.kind, event.to_json()).into_bytes()
}

/// The events that a client gets, from the history and then from the gateway.
pub(super) struct HistoryStream {
    history: Arc<HistoryInner>,
    live: broadcast::Receiver<Bytes>,
    selector: EventSelector,
    events: mpsc::Sender<Vec<u8>>,
}

impl HistoryStream {
    /// Creates a stream and its receiving end. Records from now on are not missed.
    pub(super) fn new(history: Arc<HistoryInner>, filter: EventFilter) -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (events, receiver) = mpsc::channel(MAX_QUEUED_EVENTS);
        let live = history.listen();
        let selector = EventSelector::new(filter);
        (Self { history, live, selector, events }, receiver)
    }

    /// Sends events until the client disconnects or the gateway stops.
    pub(super) async fn run(mut self, closing: CancellationToken) {
        let client = self.events.clone();
        tokio::select! {
            () = closing.cancelled() => {}
            () = client.closed() => {}
            () = self.send_all() => {}
        }
    }

    async fn send_all(&mut self) {
        if self.selector.filter.after.is_some() && !self.catch_up().await {
            return;
        }
        while self.selector.filter.follow {
            let is_sent = match self.live.recv().await {
                Ok(batch) => {
                    let events = self.selector.select_all(&batch);
                    self.send(events).await
                }
                // The client was slow; what it missed is in the files.
                Err(RecvError::Lagged(_)) => self.catch_up().await,
                Err(RecvError::Closed) => false,
            };
            if !is_sent {
                return;
            }
        }
    }

    /// Sends what is in the files. Returns whether the client still reads.
    async fn catch_up(&mut self) -> bool {
        let history = self.history.clone();
        let from = self.selector.last;
        let list = move || {
            history.flush();
            segments::list_from(&history.folder, from)
        };
        let mut segments: VecDeque<_> = match tokio::task::spawn_blocking(list).await {
            Ok(Ok(segments)) => segments.into(),
            Ok(Err(error)) => {
                tracing::warn!("cannot read the history: {error}");
                return true;
            }
            Err(_) => return false,
        };
        while let Some(segment) = segments.pop_front() {
            let bytes = match tokio::task::spawn_blocking(move || segment.read()).await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(error)) => {
                    tracing::warn!("cannot read the history: {error}");
                    continue;
                }
                Err(_) => return false,
            };
            let events = self.selector.select_all(&bytes);
            if !self.send(events).await {
                return false;
            }
        }
        true
    }

    async fn send(&self, events: Vec<EventReport>) -> bool {
        for event in &events {
            if self.events.send(encode(event)).await.is_err() {
                return false;
            }
        }
        true
    }
}

impl Drop for HistoryStream {
    fn drop(&mut self) {
        self.history.stop_listening();
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_texts::CallTextWriter;
    use super::super::record::{EventEntry, write_call, write_event};
    use super::*;
    use crate::history::tests::call_record;

    #[test]
    fn calls_are_sampled_and_servers_events_are_not() {
        let mut bytes = Vec::new();
        for seq in 1..=80 {
            write_call(&mut bytes, &mut CallTextWriter::default(), seq, &call_record("log"), "");
        }
        write_event(
            &mut bytes,
            &EventEntry { seq: 90, kind: "exited", server: "git", ..EventEntry::default() },
        );
        // 2 s later.
        write_call(&mut bytes, &mut CallTextWriter::default(), 2000 << 20, &call_record("log"), "");
        let mut selector = EventSelector::new(EventFilter { after: Some(10), ..EventFilter::default() });
        let events = selector.select_all(&bytes);
        assert_eq!(events.len(), 52, "50 of 70 calls, the event and the last call");
        assert!(events[..50].iter().all(|event| event.kind == "call" && !event.sampled));
        assert_eq!(events[50].kind, "exited");
        assert!(events[51].sampled);
        assert!(selector.select_all(&bytes).is_empty(), "each event is in the stream once");
        let filter = EventFilter { kinds: vec!["exited".to_owned()], ..EventFilter::default() };
        assert_eq!(EventSelector::new(filter).select_all(&bytes).len(), 1);
        let filter = EventFilter { caller: Some("other".to_owned()), ..EventFilter::default() };
        assert!(EventSelector::new(filter).select_all(&bytes).is_empty());
    }
}
