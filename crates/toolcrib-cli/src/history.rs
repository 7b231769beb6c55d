//! The history: calls and events in files, for the dashboard, `stats`, `top` and `events`.
//!
//! An observer encodes each call into a bounded buffer, and a thread appends the buffer to the files and passes it to open event
//! streams, so that no call waits for the disk. Records that cannot be written are counted. SQLite was measured instead of files:
//! 1.09 MB more program, a C compiler for the build, and 5,400 instructions per record, a tenth of a call.

mod call_texts;
mod events;
mod query;
mod record;
mod segments;
mod stats;
mod stream_limit;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::HistorySpec;
use toolcrib::config::units::parse_duration;
use toolcrib::model::event::{CallRecord, Decision};
use toolcrib::util::clock::wall_time;
use toolcrib::util::format::parse_timestamp;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::util::time_id::{start_of_millisecond, to_time_id};
use toolcrib::{CallId, Event, FailureClass, Observer, ServerId};

use self::call_texts::CallTextWriter;
pub(crate) use self::events::EventFilter;
use self::events::{EventSelector, HistoryStream};
pub(crate) use self::query::CallFilter;
pub(crate) use self::record::CallOutcome;
use self::record::{EventEntry, write_call, write_event};
use self::segments::SegmentWriter;
pub(crate) use self::stats::{ClientCalls, StatsQuery};
use self::stream_limit::StreamLimit;
use crate::audit::redact_arguments;
use crate::report::calls::{CallReport, CallsReport};
use crate::report::events::{EventReport, describe_event};
use crate::report::stats::StatsReport;

/// Bytes of records that wait to be written.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Time in which records are collected before they are written as one batch.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Requests that read the files at the same time. Each holds one file in memory.
const MAX_READERS: usize = 4;
/// Batches that wait for a slow event stream before it reads the files instead.
const MAX_LIVE_BATCHES: usize = 16;

/// The observer that records calls and events.
pub(crate) struct CallHistory {
    shared: Arc<HistoryInner>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Open event streams.
    streams: TaskTracker,
    stream_limit: StreamLimit,
    readers: Arc<Semaphore>,
}

struct HistoryInner {
    folder: PathBuf,
    /// True if records are written to files.
    is_recording: AtomicBool,
    /// True if arguments are recorded.
    arguments: AtomicBool,
    /// Open event streams.
    listeners: AtomicUsize,
    /// Records that were lost.
    dropped: AtomicU64,
    queue: Mutex<HistoryQueue>,
    wake_writer: Condvar,
    flushed: Condvar,
    live: broadcast::Sender<Bytes>,
}

#[derive(Default)]
struct HistoryQueue {
    spec: HistorySpec,
    records: Vec<u8>,
    texts: CallTextWriter,
    /// The number of records in `records`.
    count: u64,
    /// The position of the last record.
    last: u64,
    /// Servers whose next start is a restart.
    restarting: HashSet<ServerId>,
    writer_is_running: bool,
    /// True if the writer waits for a record.
    writer_is_idle: bool,
    flushes_wanted: u64,
    flushes_done: u64,
    closed: bool,
}

/// Records that the writer took from the queue, and what to do with them.
struct Batch {
    spec: HistorySpec,
    count: u64,
    flushes: u64,
    /// True if there was nothing to do for a long time.
    is_cleanup: bool,
    is_last: bool,
}

/// An event of the gateway itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GatewayEvent<'a> {
    /// One of [`EVENT_KINDS`](crate::report::events::EVENT_KINDS).
    pub(crate) kind: &'static str,
    pub(crate) server: &'a str,
    pub(crate) caller: &'a str,
    pub(crate) message: &'a str,
}

impl fmt::Debug for CallHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallHistory").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl CallHistory {
    /// Creates the history of a gateway in a folder. With `arguments`, the arguments of calls are recorded too.
    pub(crate) fn new(folder: PathBuf, spec: &HistorySpec, arguments: bool) -> Self {
        let history = Self {
            shared: Arc::new(HistoryInner {
                folder,
                is_recording: AtomicBool::new(false),
                arguments: AtomicBool::new(false),
                listeners: AtomicUsize::new(0),
                dropped: AtomicU64::new(0),
                queue: Mutex::default(),
                wake_writer: Condvar::new(),
                flushed: Condvar::new(),
                live: broadcast::channel(MAX_LIVE_BATCHES).0,
            }),
            writer: Mutex::default(),
            streams: TaskTracker::new(),
            stream_limit: StreamLimit::default(),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
        };
        history.apply(spec.clone(), arguments);
        history
    }

    /// Creates a history that records nothing.
    #[cfg(test)]
    pub(crate) fn disabled() -> Self {
        // A reload can enable it, so nothing can be written there.
        Self::new(
            "/dev/null/history".into(),
            &HistorySpec { enabled: false, ..HistorySpec::default() },
            false,
        )
    }

    /// Applies changed settings.
    pub(crate) fn apply(&self, spec: HistorySpec, arguments: bool) {
        let enabled = spec.enabled;
        self.shared.queue().spec = spec;
        if enabled {
            self.start_writer();
        }
        self.shared.arguments.store(arguments, Ordering::Release);
        self.shared.is_recording.store(enabled, Ordering::Release);
    }

    /// Starts the writer thread if it is not running.
    fn start_writer(&self) {
        let mut writer = self.writer.lock().ignore_poison();
        if writer.is_some() {
            return;
        }
        let shared = self.shared.clone();
        let started = thread::Builder::new().name("history".to_owned()).spawn(move || run_writer(&shared));
        match started {
            Ok(handle) => {
                *writer = Some(handle);
                self.shared.queue().writer_is_running = true;
            }
            Err(error) => tracing::warn!("calls and events are not recorded: {error}"),
        }
    }

    /// Returns whether records are written to files.
    pub(crate) fn is_recording(&self) -> bool {
        self.shared.is_recording.load(Ordering::Acquire)
    }

    /// Records an event of the gateway itself.
    pub(crate) fn record(&self, event: GatewayEvent<'_>) {
        if self.shared.is_wanted() {
            let GatewayEvent { kind, server, caller, message } = event;
            self.shared.push_event(EventEntry { kind, server, caller, message, ..EventEntry::default() });
        }
    }

    /// Records the next start of a server as a restart.
    pub(crate) fn expect_restart(&self, server: &ServerId) {
        self.shared.queue().restarting.insert(server.clone());
    }

    /// Returns one page of calls.
    pub(crate) async fn calls(&self, filter: CallFilter) -> io::Result<CallsReport> {
        self.read(move |folder| query::find_calls(folder, &filter)).await
    }

    /// Returns one call, if it is a call of this caller.
    pub(crate) async fn call(&self, id: CallId, caller: Option<String>) -> io::Result<Option<CallReport>> {
        self.read(move |folder| query::find_call(folder, id, caller.as_deref())).await
    }

    /// Returns statistics.
    pub(crate) async fn stats(&self, query: StatsQuery) -> io::Result<StatsReport> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let report = self.read(move |folder| stats::compute(folder, &query)).await?;
        Ok(StatsReport { dropped, ..report })
    }

    /// Returns the calls of clients since a time.
    pub(crate) async fn client_calls(&self, since: SystemTime) -> io::Result<ClientCalls> {
        self.read(move |folder| ClientCalls::read(folder, since)).await
    }

    /// Opens a stream of events for a caller, which ends when the receiver is dropped or `closing` is cancelled. Returns `None` if the
    /// caller has too many.
    pub(crate) fn open_stream(
        &self,
        caller: &str,
        filter: EventFilter,
        closing: CancellationToken,
    ) -> Option<mpsc::Receiver<Vec<u8>>> {
        let permit = self.stream_limit.try_acquire(caller)?;
        self.start_writer();
        let (stream, receiver) = HistoryStream::new(self.shared.clone(), filter);
        self.streams.spawn_boxed(async move {
            stream.run(closing).await;
            drop(permit);
        });
        Some(receiver)
    }

    /// Reads the files on a thread for blocking work, after everything so far was written.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let shared = self.shared.clone();
        // The turn ends with the work, which goes on if the client disconnects.
        let turn = self.readers.clone().acquire_owned().await.map_err(io::Error::other)?;
        let reading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            shared.flush();
            read(&shared.folder)
        });
        reading.await.map_err(io::Error::other)?
    }
}

/// Returns the time that a text names: a timestamp, or a duration before now.
pub(crate) fn parse_time(text: &str, now: SystemTime) -> Option<SystemTime> {
    match parse_duration(text) {
        Some(ago) => now.checked_sub(ago),
        None => parse_timestamp(text),
    }
}

/// Returns the statistics in the files of a gateway that does not run.
pub(crate) fn read_stats(folder: &Path, query: &StatsQuery) -> io::Result<StatsReport> {
    stats::compute(folder, query)
}

/// Returns one call in the files of a gateway that does not run.
pub(crate) fn read_call(folder: &Path, id: CallId) -> io::Result<Option<CallReport>> {
    query::find_call(folder, id, None)
}

/// Returns the events in the files of a gateway that does not run.
pub(crate) fn read_events(folder: &Path, filter: EventFilter) -> io::Result<Vec<EventReport>> {
    EventSelector::new(filter).read(folder)
}

/// Returns whether a folder has a history.
pub(crate) fn exists(folder: &Path) -> bool {
    segments::list(folder).is_ok_and(|segments| !segments.is_empty())
}

impl Drop for CallHistory {
    fn drop(&mut self) {
        self.close();
    }
}

impl Observer for CallHistory {
    fn is_enabled(&self) -> bool {
        self.shared.is_wanted()
    }

    fn wants_arguments(&self) -> bool {
        self.shared.arguments.load(Ordering::Acquire)
    }

    fn call_ended(&self, record: &CallRecord) {
        self.shared.push_call(record);
        if record.approval.is_some() || record.decision == Decision::Approved {
            self.shared.push_approval(record);
        }
    }

    fn server_event(&self, event: &Event) {
        if self.shared.is_wanted() {
            self.shared.push_server_event(event);
        }
    }

    /// Ends the writer after it has written the queue.
    fn close(&self) {
        self.shared.queue().closed = true;
        self.shared.wake_writer.notify_all();
        let writer = self.writer.lock().ignore_poison().take();
        // A panic of the writer has been reported by the panic hook.
        let _ = writer.map(JoinHandle::join);
    }
}

impl HistoryInner {
    fn queue(&self) -> MutexGuard<'_, HistoryQueue> {
        self.queue.lock().ignore_poison()
    }

    fn is_wanted(&self) -> bool {
        self.is_recording.load(Ordering::Acquire) || self.listeners.load(Ordering::Relaxed) > 0
    }

    /// Returns a receiver of the records from now on.
    fn listen(&self) -> broadcast::Receiver<Bytes> {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        self.live.subscribe()
    }

    fn stop_listening(&self) {
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }

    fn push_call(&self, record: &CallRecord) {
        let arguments = record.arguments.as_ref().map(|raw| redact_arguments(raw)).unwrap_or_default();
        let mut queue = self.queue();
        let seq = queue.next_position(start_of_millisecond(record.id.number()));
        self.add(&mut queue, |queue| {
            write_call(&mut queue.records, &mut queue.texts, seq, record, &arguments);
        });
    }

    fn push_event(&self, event: EventEntry<'_>) {
        let mut queue = self.queue();
        let seq = queue.next_position(to_time_id(wall_time()));
        self.add(&mut queue, |queue| write_event(&mut queue.records, &EventEntry { seq, ..event }));
    }

    /// Adds a record and wakes the writer.
    fn add(&self, queue: &mut HistoryQueue, write: impl FnOnce(&mut HistoryQueue)) {
        let previous = queue.records.len();
        write(queue);
        if queue.records.len() > MAX_QUEUED_BYTES {
            queue.records.truncate(previous);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.count += 1;
        }
        if std::mem::take(&mut queue.writer_is_idle) {
            self.wake_writer.notify_one();
        }
    }

    /// Records that a call waits for approval, or that a person approved it.
    fn push_approval(&self, record: &CallRecord) {
        let server = record.server.as_ref().map_or("", ServerId::as_str);
        let name = &record.name;
        let (kind, message) = match &record.approval {
            Some(id) => {
                let message = format!("`{server}.{name}` waits for approval: toolcrib approve --call {id}");
                ("approval_asked", message)
            }
            None => ("approval_given", format!("a call of `{server}.{name}` was approved")),
        };
        let caller = record.caller.as_str();
        let call = record.id.number();
        self.push_event(EventEntry { seq: 0, call, kind, server, caller, message: &message });
    }

    fn push_server_event(&self, event: &Event) {
        let Some(server) = event.server() else { return };
        let kind = match event {
            Event::Started { .. } => match self.queue().restarting.remove(server) {
                true => "restarted",
                false => "started",
            },
            Event::Crashed { .. } => {
                self.queue().restarting.insert(server.clone());
                "exited"
            }
            Event::Stopped { .. } => "exited",
            Event::Tripped { .. } => "tripped",
            Event::Recovered { .. } => "recovered",
            Event::Paused { class: FailureClass::NeedsAuth, .. }
            | Event::Ejected { class: FailureClass::NeedsAuth, .. } => "login_needed",
            Event::Paused { .. } => "paused",
            Event::Ejected { .. } => "ejected",
            Event::ListingChanged { .. } => "list_changed",
            Event::Unapproved { .. } => "unapproved",
            _ => return,
        };
        // Logs leave out changes of lists.
        let message = describe_event(event).unwrap_or_else(|| "what it offers changed".to_owned());
        self.push_event(EventEntry {
            kind,
            server: server.as_str(),
            message: &message,
            ..EventEntry::default()
        });
    }

    /// Waits until everything that was recorded so far is in the files. Blocks.
    fn flush(&self) {
        let mut queue = self.queue();
        if !queue.writer_is_running {
            return;
        }
        queue.flushes_wanted += 1;
        let wanted = queue.flushes_wanted;
        self.wake_writer.notify_all();
        let is_waiting = |queue: &mut HistoryQueue| queue.flushes_done < wanted && queue.writer_is_running;
        drop(self.flushed.wait_while(queue, is_waiting).ignore_poison());
    }

    /// Waits for records and moves them into `records`; at most for `patience`.
    fn next_batch(&self, records: &mut Vec<u8>, patience: Duration) -> Batch {
        let mut queue = self.queue();
        queue.writer_is_idle = true;
        let is_idle = |queue: &mut HistoryQueue| {
            queue.records.is_empty() && queue.flushes_done == queue.flushes_wanted && !queue.closed
        };
        let (mut queue, waited) =
            self.wake_writer.wait_timeout_while(queue, patience, is_idle).ignore_poison();
        queue.writer_is_idle = false;
        records.clear();
        std::mem::swap(records, &mut queue.records);
        Batch {
            spec: queue.spec.clone(),
            count: std::mem::take(&mut queue.count),
            flushes: queue.flushes_wanted,
            is_cleanup: waited.timed_out(),
            is_last: queue.closed,
        }
    }

    /// Reports that a batch was written, and waits for the next one to fill unless someone waits for it.
    fn finish_batch(&self, flushes: u64) {
        let mut queue = self.queue();
        queue.flushes_done = flushes;
        self.flushed.notify_all();
        let is_filling =
            |queue: &mut HistoryQueue| queue.flushes_done == queue.flushes_wanted && !queue.closed;
        drop(self.wake_writer.wait_timeout_while(queue, BATCH_INTERVAL, is_filling).ignore_poison());
    }

    /// Passes records to the open event streams.
    fn publish(&self, records: &mut Vec<u8>) {
        if !records.is_empty() && self.live.receiver_count() > 0 {
            // Fails if the last stream was closed meanwhile.
            let _ = self.live.send(std::mem::take(records).into());
        }
    }
}

impl HistoryQueue {
    /// Returns the position of a record with this time. Positions grow even if the clock is set back.
    fn next_position(&mut self, time: u64) -> u64 {
        self.last = time.max(self.last + 1);
        self.last
    }
}

/// Writes batches to the files, and opens them when they are needed.
#[derive(Default)]
struct BatchWriter {
    segments: Option<SegmentWriter>,
    is_failing: bool,
}

impl BatchWriter {
    /// Writes records, and counts them as lost if that fails.
    fn write(&mut self, shared: &HistoryInner, batch: &Batch, records: &[u8]) {
        if !batch.spec.enabled {
            self.segments = None;
            return;
        }
        let written = self.try_write(shared, batch, records);
        if let Err(error) = &written {
            shared.dropped.fetch_add(batch.count, Ordering::Relaxed);
            if !self.is_failing {
                tracing::warn!("cannot write the history in {}: {error}", shared.folder.display());
            }
        }
        self.is_failing = written.is_err();
    }

    fn try_write(&mut self, shared: &HistoryInner, batch: &Batch, records: &[u8]) -> io::Result<()> {
        if self.segments.as_ref().is_none_or(|segments| *segments.spec() != batch.spec) {
            let opened = SegmentWriter::open(&shared.folder, batch.spec.clone())?;
            let mut queue = shared.queue();
            queue.last = queue.last.max(opened.last);
            drop(queue);
            self.segments = Some(opened.writer);
        }
        let Some(segments) = &mut self.segments else { return Ok(()) };
        match batch.is_cleanup {
            true => segments.remove_old(wall_time()),
            false => segments.append(records, wall_time()),
        }
    }

    /// Returns how long to wait for records.
    fn patience(&self) -> Duration {
        self.segments.as_ref().map_or(Duration::MAX, SegmentWriter::cleanup_interval)
    }
}

/// The loop of the writer thread.
fn run_writer(shared: &HistoryInner) {
    let mut writer = BatchWriter::default();
    let mut records = Vec::new();
    // Opens the files, so that positions continue and old files are removed.
    let spec = shared.queue().spec.clone();
    writer.write(shared, &Batch { spec, count: 0, flushes: 0, is_cleanup: true, is_last: false }, &[]);
    loop {
        let batch = shared.next_batch(&mut records, writer.patience());
        writer.write(shared, &batch, &records);
        shared.publish(&mut records);
        if batch.is_last {
            break;
        }
        shared.finish_batch(batch.flushes);
    }
    shared.queue().writer_is_running = false;
    shared.flushed.notify_all();
}

#[cfg(test)]
pub(crate) mod tests;
