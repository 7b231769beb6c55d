//! The audit log: one JSON line per call and per administrative action.
//!
//! Lines go through a bounded queue to a writer thread, which writes and syncs them in batches, so no call waits for the
//! disk. If writing fails, calls continue and lost lines are counted, or calls are refused if `audit-required` is set.

mod chain;
mod file;
mod line;
mod verify;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::config::AuditSpec;
use toolcrib::model::event::{CallEnd, CallRecord, Decision};
use toolcrib::util::clock;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::util::time_id::next_time_id;
use toolcrib::{CallClient, CallId, CallTiming, Caller, Era, Error, ErrorKind, Observer, ServerId};

use self::file::AuditFile;
use self::line::TimestampWriter;
pub(crate) use self::line::{redact_arguments, redact_uri};
pub(crate) use self::verify::{BrokenChain, IntactChain, verify};
use crate::command_error::{CommandError, ProblemReport};
use crate::exit::ExitStatus;

/// Queued bytes. From half of it on, calls that must be recorded are refused: calls in flight need the other half.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Time in which lines are collected before they are written as one batch.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// An action of the admin API, as it is recorded.
pub(crate) struct AdminAction<'a> {
    pub(crate) caller: &'a Caller,
    /// The action, such as `admin/restart`, in place of an MCP method.
    pub(crate) method: &'static str,
    pub(crate) server: Option<&'a ServerId>,
    /// The object of the action, such as the id of an approved call.
    pub(crate) name: &'a str,
    pub(crate) end: CallEnd,
    pub(crate) started: Instant,
}

/// The observer that records calls to the audit file.
pub(crate) struct Audit {
    shared: Arc<AuditInner>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct AuditInner {
    /// True if an audit file is configured.
    is_enabled: AtomicBool,
    /// True if calls are refused while they cannot be recorded.
    required: AtomicBool,
    /// True if arguments are recorded.
    arguments: AtomicBool,
    /// True if writing fails or the queue is more than half full.
    is_unhealthy: AtomicBool,
    queue: Mutex<AuditQueue>,
    wake_writer: Condvar,
}

#[derive(Default)]
struct AuditQueue {
    spec: Option<AuditSpec>,
    lines: Vec<u8>,
    clock: TimestampWriter,
    /// Calls that did not fit into the queue and are not reported in the file yet.
    lost: u64,
    /// Reason why the last batch could not be written.
    write_error: Option<String>,
    /// True if the writer waits for a line.
    writer_is_idle: bool,
    closed: bool,
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").field("spec", &self.shared.queue().spec).finish_non_exhaustive()
    }
}

impl Audit {
    /// Opens the audit log.
    ///
    /// # Errors
    /// If the audit is required and its file cannot be opened.
    pub(crate) fn new(spec: Option<&AuditSpec>) -> Result<Self, CommandError> {
        let audit = Self { shared: Arc::default(), writer: Mutex::default() };
        audit.prepare(spec)?;
        audit.apply(spec.cloned());
        Ok(audit)
    }

    /// Checks that calls can be recorded with a changed config, which is not applied yet.
    ///
    /// # Errors
    /// If the audit is required and its file cannot be opened.
    pub(crate) fn prepare(&self, spec: Option<&AuditSpec>) -> Result<(), CommandError> {
        let Some(spec) = spec else { return Ok(()) };
        self.start_writer(spec).or_else(|error| {
            let message = format!("cannot write the audit file {}: {error}", spec.file.display());
            if spec.required {
                let error = CommandError::new(ExitStatus::InvalidConfig, "config_invalid", message);
                return Err(error.hint("set `audit` to another file, or remove `audit-required`"));
            }
            tracing::warn!("{message}; calls are not recorded");
            Ok(())
        })
    }

    /// Applies a config that was prepared.
    pub(crate) fn apply(&self, spec: Option<AuditSpec>) {
        let shared = &self.shared;
        let required = spec.as_ref().is_some_and(|spec| spec.required);
        let arguments = spec.as_ref().is_some_and(|spec| spec.arguments);
        let is_enabled = spec.is_some();
        shared.queue().spec = spec;
        shared.required.store(required, Ordering::Release);
        shared.arguments.store(arguments, Ordering::Release);
        shared.is_enabled.store(is_enabled, Ordering::Release);
    }

    /// Starts the writer thread if it is not running, and checks that the file can be opened.
    fn start_writer(&self, spec: &AuditSpec) -> io::Result<()> {
        let mut writer = self.writer.lock().ignore_poison();
        if writer.is_none() {
            let shared = self.shared.clone();
            *writer =
                Some(thread::Builder::new().name("audit".to_owned()).spawn(move || run_writer(&shared))?);
        }
        AuditFile::new(spec.clone()).open()
    }

    /// Records an administrative action, such as an approval or a restart.
    pub(crate) fn record_action(&self, action: &AdminAction<'_>) {
        if !self.is_enabled() {
            return;
        }
        let AdminAction { caller, method, server, name, end, started } = action;
        let decision = match end {
            CallEnd::Failed(ErrorKind::Denied) => Decision::Denied,
            _ => Decision::Allowed,
        };
        let at = clock::wall_time();
        self.shared.push(&CallRecord {
            id: CallId::from_number(next_time_id(at)),
            at,
            caller: (*caller).clone(),
            client: CallClient { key: 0, name: None, era: Era::Session },
            method: (*method).into(),
            server: server.cloned(),
            name: (*name).into(),
            decision,
            denial: None,
            cache: None,
            request_bytes: 0,
            response_bytes: 0,
            end: *end,
            duration: started.elapsed(),
            timing: CallTiming::default(),
            attempts: 0,
            approval: None,
            spans: None,
            arguments: None,
        });
    }

    /// Returns the current write error as `status` shows it.
    pub(crate) fn problem(&self) -> Option<ProblemReport> {
        let queue = self.shared.queue();
        let write_error = queue.write_error.as_ref()?;
        let spec = queue.spec.as_ref()?;
        let consequence = if spec.required { "calls are refused" } else { "calls are not recorded" };
        Some(ProblemReport {
            file: spec.file.display().to_string(),
            line: None,
            column: None,
            server: None,
            message: format!("cannot write the audit file: {write_error}; {consequence}"),
            hint: Some("free disk space, or set `audit` to another file".to_owned()),
        })
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.close();
    }
}

impl Observer for Audit {
    fn is_enabled(&self) -> bool {
        self.shared.is_enabled.load(Ordering::Acquire)
    }

    fn check_ready(&self) -> Result<(), Error> {
        let AuditInner { required, is_unhealthy, .. } = &*self.shared;
        if !required.load(Ordering::Acquire) || !is_unhealthy.load(Ordering::Acquire) {
            return Ok(());
        }
        let write_error = self.shared.queue().write_error.clone();
        let reason = write_error.unwrap_or_else(|| "too many lines are waiting to be written".to_owned());
        Err(Error::new(
            ErrorKind::Unrecorded,
            format!("the call cannot be recorded, and `audit-required` is set: {reason}"),
        ))
    }

    fn wants_arguments(&self) -> bool {
        self.shared.arguments.load(Ordering::Acquire)
    }

    fn call_ended(&self, record: &CallRecord) {
        self.shared.push(record);
    }

    /// Ends the writer after one last attempt to write the queue.
    fn close(&self) {
        self.shared.queue().closed = true;
        self.shared.wake_writer.notify_all();
        let writer = self.writer.lock().ignore_poison().take();
        // A panic of the writer has been reported by the panic hook.
        let _ = writer.map(JoinHandle::join);
    }
}

impl AuditInner {
    fn queue(&self) -> MutexGuard<'_, AuditQueue> {
        self.queue.lock().ignore_poison()
    }

    fn push(&self, record: &CallRecord) {
        let mut queue = self.queue();
        let AuditQueue { lines, clock, lost, writer_is_idle, .. } = &mut *queue;
        let previous_len = lines.len();
        line::write_record(lines, record, clock);
        if lines.len() > MAX_QUEUED_BYTES {
            lines.truncate(previous_len);
            *lost += 1;
        }
        if lines.len() > MAX_QUEUED_BYTES / 2 {
            self.is_unhealthy.store(true, Ordering::Release);
        }
        if std::mem::take(writer_is_idle) {
            self.wake_writer.notify_one();
        }
    }

    /// Waits for lines and moves all of them into `batch`, unless it still holds a batch that failed. Returns the current
    /// spec and whether the queue is closed.
    fn next_batch(&self, batch: &mut Vec<u8>) -> (Option<AuditSpec>, bool) {
        let mut queue = self.queue();
        while batch.is_empty() && queue.lines.is_empty() && queue.lost == 0 && !queue.closed {
            queue.writer_is_idle = true;
            queue = self.wake_writer.wait(queue).ignore_poison();
        }
        queue.writer_is_idle = false;
        if batch.is_empty() {
            std::mem::swap(batch, &mut queue.lines);
            let lost = std::mem::take(&mut queue.lost);
            if lost > 0 {
                line::write_lost(batch, lost);
            }
        }
        (queue.spec.clone(), queue.closed)
    }

    /// Records the result of a write and logs it when it changes. Returns whether the write succeeded.
    fn record_write(&self, spec: &AuditSpec, written: io::Result<()>) -> bool {
        let write_error = written.err().map(|error| error.to_string());
        let succeeded = write_error.is_none();
        let file = spec.file.display();
        let mut queue = self.queue();
        match (&queue.write_error, &write_error) {
            (None, Some(reason)) => {
                tracing::error!(%file, "cannot write the audit file: {reason}; retrying every second");
            }
            (Some(_), None) => tracing::warn!(%file, "writing the audit file works again"),
            _ => {}
        }
        queue.write_error = write_error;
        self.is_unhealthy.store(!succeeded || queue.lines.len() > MAX_QUEUED_BYTES / 2, Ordering::Release);
        succeeded
    }

    /// Waits for `duration`, or until the queue is closed.
    fn pause(&self, duration: Duration) {
        let guard = self.wake_writer.wait_timeout_while(self.queue(), duration, |queue| !queue.closed);
        drop(guard);
    }
}

/// The loop of the writer thread.
fn run_writer(shared: &AuditInner) {
    let mut file: Option<AuditFile> = None;
    let mut batch = Vec::new();
    loop {
        let (spec, is_last) = shared.next_batch(&mut batch);
        // Lines queued before the audit was turned off still go to the previous file.
        if let Some(spec) = spec
            && file.as_ref().is_none_or(|file| *file.spec() != spec)
        {
            file = Some(AuditFile::new(spec));
        }
        let succeeded = match &mut file {
            Some(file) if !batch.is_empty() => {
                let written = file.append(&batch);
                shared.record_write(file.spec(), written)
            }
            _ => true,
        };
        if succeeded {
            batch.clear();
        }
        if is_last {
            break;
        }
        shared.pause(if succeeded { BATCH_INTERVAL } else { RETRY_DELAY });
    }
    let lost = batch.iter().filter(|byte| **byte == b'\n').count();
    if lost > 0 {
        tracing::error!(lost, "cannot write the last audit lines; they are lost");
    }
}

#[cfg(test)]
mod tests;
