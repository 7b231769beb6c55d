//! A log file for each server: what it wrote to stderr and what happened to it, bounded in size and in speed.
//!
//! Lines are written by a task of their own, away from the runtime's threads. Where nothing can be written the gateway
//! serves on; it says so once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use toolcrib::{Event, LogLine, LogWhat, ServerId};

use crate::place::log_file;
use crate::timestamp::timestamp;

/// Bytes of one file; it is then kept under the next number.
const LARGEST: u64 = 1 << 20;
/// Files that are kept besides the one being written.
const OLDER: u32 = 2;
/// Bytes that one server may write within a second; the rest is left out and counted.
const PER_SECOND: usize = 256 << 10;
/// Lines of servers that may wait to be written. What happens to servers always may: it is rare.
const WAITING: usize = 1024;

/// Keeps the log files while it lives.
#[derive(Debug)]
pub(super) struct LogFiles {
    lines: mpsc::UnboundedSender<Entry>,
    waiting: Arc<AtomicUsize>,
}

/// A line on its way into a file.
#[derive(Debug)]
struct Entry {
    server: ServerId,
    at: SystemTime,
    /// Its number, if the server wrote it.
    number: Option<u64>,
    text: String,
}

impl LogFiles {
    /// Files in this folder, one for each server; written by a task among `tasks` that ends with this.
    pub(super) fn new(folder: PathBuf, tasks: &TaskTracker) -> Self {
        let (lines, coming) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let books = Books { folder, books: HashMap::new(), broken: false };
        tasks.spawn(keep(books, coming, waiting.clone()));
        Self { lines, waiting }
    }

    /// Where lines go, for as long as these files are kept.
    pub(super) fn sink(&self) -> impl Fn(LogLine<'_>) + Send + Sync + 'static {
        let (lines, waiting) = (self.lines.downgrade(), self.waiting.clone());
        move |line| {
            let Some(lines) = lines.upgrade() else { return };
            // What does not fit is missed by its number.
            let fits = || waiting.load(Ordering::Relaxed) < WAITING;
            if (matches!(line.what, LogWhat::Happened(_)) || fits())
                && let Some(entry) = Entry::new(&line)
            {
                waiting.fetch_add(1, Ordering::Relaxed);
                // Nobody writes any more when everything ends.
                let _ = lines.send(entry);
            }
        }
    }
}

impl Entry {
    fn new(line: &LogLine<'_>) -> Option<Self> {
        let (number, text) = match line.what {
            LogWhat::Stderr(number, text) => (Some(number), text.to_owned()),
            LogWhat::Happened(event) => (None, format!("toolcrib: {}", told(event)?)),
        };
        Some(Self { server: line.server.clone(), at: line.at, number, text })
    }
}

/// What is worth a line in the log of a server.
fn told(event: &Event) -> Option<String> {
    Some(match event {
        Event::Started { pid: Some(pid), took, .. } => format!("started as pid {pid} in {took:.0?}"),
        Event::Started { took, .. } => format!("started in {took:.0?}"),
        Event::Crashed { why, .. } => why.clone(),
        Event::Stopped { .. } => "stopped".to_owned(),
        Event::Tripped { .. } => "fails too often, left alone for a while".to_owned(),
        Event::Recovered { .. } => "answers again".to_owned(),
        Event::Paused { why, .. } => why.clone(),
        Event::Ejected { why, .. } => format!("given up: {why}"),
        Event::Unapproved { tools, withheld, .. } => {
            let tools: Vec<String> = tools
                .iter()
                .map(|(tool, mark)| format!("`{}` ({})", tool.escape_debug(), mark.as_str()))
                .collect();
            let then = if *withheld { "withheld until somebody approves" } else { "marked" };
            format!("tools that are not what was approved, {then}: {}", tools.join(", "))
        }
        _ => return None,
    })
}

async fn keep(mut books: Books, mut lines: mpsc::UnboundedReceiver<Entry>, waiting: Arc<AtomicUsize>) {
    let mut batch = Vec::new();
    while lines.recv_many(&mut batch, WAITING).await > 0 {
        let entries = std::mem::take(&mut batch);
        waiting.fetch_sub(entries.len(), Ordering::Relaxed);
        let written = tokio::task::spawn_blocking(move || {
            books.write(entries);
            books
        });
        match written.await {
            Ok(after) => books = after,
            Err(_) => return,
        }
    }
}

/// Every server's file.
struct Books {
    folder: PathBuf,
    books: HashMap<ServerId, Book>,
    /// Whether the last attempt failed.
    broken: bool,
}

/// How far one server's file is.
#[derive(Default)]
struct Book {
    /// The number of the last line that was written or is said to be missing.
    last: u64,
    /// The number of the last line that came, written or not.
    seen: u64,
    /// The second that is counted, and the bytes in it.
    second: Option<SystemTime>,
    bytes: usize,
    /// What is to be written.
    text: String,
}

impl Books {
    fn write(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            self.books.entry(entry.server.clone()).or_default().take(&entry);
        }
        for (server, book) in &mut self.books {
            if book.text.is_empty() {
                continue;
            }
            let path = log_file(&self.folder, server.as_str());
            let written = append(&path, std::mem::take(&mut book.text).as_bytes());
            match written {
                Ok(()) => self.broken = false,
                Err(error) if !self.broken => {
                    self.broken = true;
                    tracing::warn!(%error, file = %path.display(), "cannot write the log of a server; serving goes on");
                }
                Err(_) => {}
            }
        }
    }
}

impl Book {
    fn take(&mut self, entry: &Entry) {
        if self.second.is_none_or(|second| {
            entry.at.duration_since(second).map_or(true, |passed| passed >= Duration::from_secs(1))
        }) {
            (self.second, self.bytes) = (Some(entry.at), 0);
        }
        self.bytes += entry.text.len() + 1;
        let before = entry.number.map_or(self.seen, |number| number.saturating_sub(1));
        self.seen = entry.number.unwrap_or(self.seen);
        // What happens is rare, and the reason that people look.
        if entry.number.is_some() && self.bytes > PER_SECOND {
            return;
        }
        let at = timestamp(entry.at);
        let missed = before.saturating_sub(self.last);
        if missed > 0 {
            let _ = writeln!(self.text, "{at} toolcrib: {missed} lines left out");
        }
        self.last = self.seen;
        let _ = writeln!(self.text, "{at} {}", entry.text);
    }
}

/// Appends to a file, in place of an older one if it is full. It is opened each time: whoever moves or removes it, or its
/// folder, has no more to say about it.
fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let open = || File::options().append(true).create(true).mode(0o600).open(path);
    let mut file = match (open(), path.parent()) {
        (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            open()?
        }
        (opened, _) => opened?,
    };
    let size = file.metadata()?.len();
    if size > 0 && size + bytes.len() as u64 > LARGEST {
        turn_over(path)?;
        file = open()?;
    }
    file.write_all(bytes)
}

/// Every file gets the next number, and the oldest goes.
fn turn_over(path: &Path) -> io::Result<()> {
    let numbered = |number: u32| match number {
        0 => path.to_owned(),
        _ => path.with_extension(format!("log.{number}")),
    };
    for number in (0..OLDER).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
