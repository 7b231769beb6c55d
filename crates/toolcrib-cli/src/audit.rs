//! `Audit`: a line for every call, on its way into a file.
//!
//! Lines wait in a bounded queue for a thread of their own, which writes and syncs them in batches: no call waits for a
//! disk. Where nothing can be written calls go on and the loss is counted, or they are refused if the config says so.

mod book;
mod line;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use toolcrib::config::AuditSpec;
use toolcrib::event::Called;
use toolcrib::{Error, ErrorKind, Witness};

use self::book::Book;
use self::line::Clock;
use crate::exit::Exit;
use crate::failure::Failure;

/// Bytes of lines that may wait. From the half on no call is begun that must be recorded: those under way need the rest.
const WAITING: usize = 4 << 20;
/// How long lines gather before they are written together.
const PACE: Duration = Duration::from_millis(50);
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Records calls, as long as there is somewhere to.
pub(crate) struct Audit {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// Whether there is a file.
    on: AtomicBool,
    /// Whether no call is made that could not be recorded.
    required: AtomicBool,
    /// Whether arguments are recorded.
    arguments: AtomicBool,
    /// Whether nothing can be written now, or too much waits to be.
    ill: AtomicBool,
    queue: Mutex<Queue>,
    bell: Condvar,
}

#[derive(Default)]
struct Queue {
    spec: Option<AuditSpec>,
    lines: Vec<u8>,
    clock: Clock,
    /// Calls that found no room, and were not told of yet.
    lost: u64,
    /// Why the last batch could not be written.
    trouble: Option<String>,
    /// The writer waits for a line.
    idle: bool,
    closed: bool,
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").field("spec", &self.shared.queue().spec).finish_non_exhaustive()
    }
}

impl Audit {
    /// Records as this says; refused if it must be recorded and the file cannot be opened.
    pub(crate) fn new(spec: Option<&AuditSpec>) -> Result<Self, Failure> {
        let audit = Self { shared: Arc::default(), writer: Mutex::default() };
        audit.change(spec)?;
        Ok(audit)
    }

    /// Records as this says from now on.
    pub(crate) fn change(&self, spec: Option<&AuditSpec>) -> Result<(), Failure> {
        if let Some(spec) = spec {
            self.begin(spec).or_else(|error| {
                let message = format!("cannot write to `audit`, {}: {error}", spec.file.display());
                if spec.required {
                    let failure = Failure::new(Exit::BadConfig, "config_invalid", message);
                    return Err(failure.hint("name another file, or leave `audit-required` out"));
                }
                tracing::warn!("{message}; calls are not recorded");
                Ok(())
            })?;
        }
        let shared = &self.shared;
        shared.queue().spec = spec.cloned();
        shared.required.store(spec.is_some_and(|spec| spec.required), Ordering::Release);
        shared.arguments.store(spec.is_some_and(|spec| spec.arguments), Ordering::Release);
        shared.on.store(spec.is_some(), Ordering::Release);
        Ok(())
    }

    fn begin(&self, spec: &AuditSpec) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_none() {
            let shared = self.shared.clone();
            *writer = Some(thread::Builder::new().name("audit".to_owned()).spawn(move || write(&shared))?);
        }
        Book::new(spec.clone()).open()
    }

    /// What is wrong with it now, as `status` shows it.
    pub(crate) fn problem(&self) -> Option<Value> {
        let queue = self.shared.queue();
        let (trouble, spec) = (queue.trouble.as_ref()?, queue.spec.as_ref()?);
        let what = if spec.required { "calls are refused" } else { "calls are not recorded" };
        Some(json!({
            "file": spec.file.display().to_string(),
            "line": null,
            "column": null,
            "server": null,
            "message": format!("cannot write to `audit`: {trouble}; {what}"),
            "hint": "make room for it, or name another file",
        }))
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.close();
    }
}

impl Witness for Audit {
    fn is_watching(&self) -> bool {
        self.shared.on.load(Ordering::Acquire)
    }

    fn is_ready(&self) -> Result<(), Error> {
        let Shared { required, ill, .. } = &*self.shared;
        if !required.load(Ordering::Acquire) || !ill.load(Ordering::Acquire) {
            return Ok(());
        }
        let trouble = self.shared.queue().trouble.clone();
        let why = trouble.unwrap_or_else(|| "too many lines wait to be written".to_owned());
        Err(Error::new(ErrorKind::Unrecorded, format!("calls must be recorded and cannot be: {why}")))
    }

    fn wants_arguments(&self) -> bool {
        self.shared.arguments.load(Ordering::Acquire)
    }

    fn saw(&self, called: &Called) {
        self.shared.take(called);
    }

    /// Writes what waits, if that can be done at once.
    fn close(&self) {
        self.shared.queue().closed = true;
        self.shared.bell.notify_all();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A writer that panicked has said so.
        let _ = writer.map(JoinHandle::join);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, called: &Called) {
        let mut queue = self.queue();
        let Queue { lines, clock, lost, idle, .. } = &mut *queue;
        let before = lines.len();
        line::write(lines, called, clock);
        if lines.len() > WAITING {
            lines.truncate(before);
            *lost += 1;
        }
        if lines.len() > WAITING / 2 {
            self.ill.store(true, Ordering::Release);
        }
        if std::mem::take(idle) {
            self.bell.notify_one();
        }
    }

    /// Waits for lines and takes all of them, after those that could not be written before. Gives what they are to be
    /// written as, and whether they are the last.
    fn next(&self, batch: &mut Vec<u8>) -> (Option<AuditSpec>, bool) {
        let mut queue = self.queue();
        while batch.is_empty() && queue.lines.is_empty() && queue.lost == 0 && !queue.closed {
            queue.idle = true;
            queue = self.bell.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.idle = false;
        if batch.is_empty() {
            std::mem::swap(batch, &mut queue.lines);
            let lost = std::mem::take(&mut queue.lost);
            if lost > 0 {
                line::write_lost(batch, lost);
            }
        }
        (queue.spec.clone(), queue.closed)
    }

    /// Notes how writing went; says so once when it turns.
    fn went(&self, spec: &AuditSpec, written: io::Result<()>) -> bool {
        let trouble = written.err().map(|error| error.to_string());
        let mut queue = self.queue();
        let (file, well) = (spec.file.display(), trouble.is_none());
        match (&queue.trouble, &trouble) {
            (None, Some(why)) => {
                tracing::error!(%file, "cannot write to `audit`: {why}; trying again every second");
            }
            (Some(_), None) => tracing::warn!(%file, "calls are recorded again"),
            _ => {}
        }
        queue.trouble = trouble;
        self.ill.store(!well || queue.lines.len() > WAITING / 2, Ordering::Release);
        well
    }

    fn rest(&self, time: Duration) {
        let closed = self.bell.wait_timeout_while(self.queue(), time, |queue| !queue.closed);
        drop(closed);
    }
}

fn write(shared: &Shared) {
    let mut book: Option<Book> = None;
    let mut batch = Vec::new();
    loop {
        let (spec, last) = shared.next(&mut batch);
        // What was taken before there was no file any more still belongs to the last one.
        if let Some(spec) = spec
            && book.as_ref().is_none_or(|book| *book.spec() != spec)
        {
            book = Some(Book::new(spec));
        }
        let well = match &mut book {
            Some(book) if !batch.is_empty() => {
                let written = book.append(&batch);
                shared.went(book.spec(), written)
            }
            _ => true,
        };
        if well {
            batch.clear();
        }
        if last {
            break;
        }
        shared.rest(if well { PACE } else { RETRY });
    }
    let lost = batch.iter().filter(|byte| **byte == b'\n').count();
    if lost > 0 {
        tracing::error!(lost, "the last calls could not be recorded");
    }
}

#[cfg(test)]
mod tests;
