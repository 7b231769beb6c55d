//! One log file per server with its stderr and its events, bounded in size and rate.
//!
//! A separate task writes the lines on blocking threads. If writing fails, the gateway logs one warning and goes on serving.

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
use toolcrib::util::format::format_timestamp;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{LogLine, LogSource, ServerId};

use crate::paths::log_file;
use crate::report::events::describe_event;
use crate::visible_text::escape_invisible;

/// Size in bytes at which a file is rotated.
const MAX_FILE_SIZE: u64 = 1 << 20;
/// Rotated files that are kept.
const MAX_ROTATED: u32 = 2;
/// Bytes per second and server; further lines are dropped and counted.
const MAX_BYTES_PER_SECOND: usize = 256 << 10;
/// Queued stderr lines. Events are always queued, because they are rare.
const MAX_QUEUED: usize = 1024;

/// The log files of all servers. Dropping it ends the writer task after the last line.
#[derive(Debug)]
pub(super) struct LogFiles {
    lines: mpsc::UnboundedSender<LogFileLine>,
    queued: Arc<AtomicUsize>,
}

/// A queued line.
#[derive(Debug)]
struct LogFileLine {
    server: ServerId,
    at: SystemTime,
    /// Number of the stderr line; `None` for an event.
    number: Option<u64>,
    text: String,
}

impl LogFiles {
    /// Starts the writer task on `tasks`; files are created in `folder`.
    pub(super) fn new(folder: PathBuf, tasks: &TaskTracker) -> Self {
        let (lines, receiver) = mpsc::unbounded_channel();
        let queued = Arc::<AtomicUsize>::default();
        let files = OpenLogFiles { folder, files: HashMap::new(), is_failing: false };
        tasks.spawn_boxed(write_lines(files, receiver, queued.clone()));
        Self { lines, queued }
    }

    /// Returns the function that receives log lines. It does nothing once these files are dropped.
    pub(super) fn sink(&self) -> impl Fn(LogLine<'_>) + Send + Sync + 'static {
        let lines = self.lines.downgrade();
        let queued = self.queued.clone();
        move |line| {
            let Some(lines) = lines.upgrade() else { return };
            // A dropped line shows as a gap in the line numbers.
            let has_room = || queued.load(Ordering::Relaxed) < MAX_QUEUED;
            if (matches!(line.source, LogSource::Event(_)) || has_room())
                && let Some(line) = LogFileLine::new(&line)
            {
                queued.fetch_add(1, Ordering::Relaxed);
                // Fails only when the writer task has ended with the gateway.
                let _ = lines.send(line);
            }
        }
    }
}

impl LogFileLine {
    fn new(line: &LogLine<'_>) -> Option<Self> {
        let (number, text) = match line.source {
            LogSource::Stderr(number, text) => (Some(number), escape_invisible(text).into_owned()),
            LogSource::Event(event) => {
                (None, format!("toolcrib: {}", escape_invisible(&describe_event(event)?)))
            }
            _ => return None,
        };
        Some(Self { server: line.server.clone(), at: line.at, number, text })
    }
}

async fn write_lines(
    mut files: OpenLogFiles,
    mut lines: mpsc::UnboundedReceiver<LogFileLine>,
    queued: Arc<AtomicUsize>,
) {
    let mut batch = Vec::new();
    while lines.recv_many(&mut batch, MAX_QUEUED).await > 0 {
        let lines = std::mem::take(&mut batch);
        queued.fetch_sub(lines.len(), Ordering::Relaxed);
        let written = tokio::task::spawn_blocking(move || {
            files.write(lines);
            files
        });
        match written.await {
            Ok(after) => files = after,
            Err(_) => return,
        }
    }
}

/// The state of every server's file.
struct OpenLogFiles {
    folder: PathBuf,
    files: HashMap<ServerId, LogFile>,
    /// True if the last write failed.
    is_failing: bool,
}

/// Line numbers, rate and pending text of one server's file.
#[derive(Default)]
struct LogFile {
    /// Number of the last line that was written or reported as dropped.
    last_written: u64,
    /// Number of the last line that arrived.
    last_seen: u64,
    /// Start of the current one-second window.
    window_start: Option<SystemTime>,
    /// Bytes in the current window.
    window_bytes: usize,
    /// Text to be written next.
    text: String,
}

impl OpenLogFiles {
    fn write(&mut self, lines: Vec<LogFileLine>) {
        for line in lines {
            self.files.entry(line.server.clone()).or_default().push(&line);
        }
        for (server, file) in &mut self.files {
            if file.text.is_empty() {
                continue;
            }
            let path = log_file(&self.folder, server.as_str());
            let written = append(&path, std::mem::take(&mut file.text).as_bytes());
            match written {
                Ok(()) => self.is_failing = false,
                Err(error) if !self.is_failing => {
                    self.is_failing = true;
                    tracing::warn!(%error, file = %path.display(), "cannot write the log file of a server; the gateway continues");
                }
                Err(_) => {}
            }
        }
    }
}

impl LogFile {
    fn push(&mut self, line: &LogFileLine) {
        let is_new_window = self.window_start.is_none_or(|start| {
            line.at.duration_since(start).map_or(true, |passed| passed >= Duration::from_secs(1))
        });
        if is_new_window {
            self.window_start = Some(line.at);
            self.window_bytes = 0;
        }
        self.window_bytes += line.text.len() + 1;
        let previous = line.number.map_or(self.last_seen, |number| number.saturating_sub(1));
        self.last_seen = line.number.unwrap_or(self.last_seen);
        // Events are never dropped.
        if line.number.is_some() && self.window_bytes > MAX_BYTES_PER_SECOND {
            return;
        }
        let at = format_timestamp(line.at);
        let dropped = previous.saturating_sub(self.last_written);
        if dropped > 0 {
            let _ = writeln!(self.text, "{at} toolcrib: {dropped} lines dropped");
        }
        self.last_written = self.last_seen;
        let _ = writeln!(self.text, "{at} {}", line.text);
    }
}

/// Appends to a file and rotates it first if it is full. Opens the file each time, so that it may be moved or removed while
/// the gateway runs.
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
    if size > 0 && size + bytes.len() as u64 > MAX_FILE_SIZE {
        rotate(path)?;
        file = open()?;
    }
    file.write_all(bytes)
}

/// Returns the path of a log file after some rotations.
fn rotated_path(path: &Path, rotations: u32) -> PathBuf {
    match rotations {
        0 => path.to_owned(),
        _ => path.with_extension(format!("log.{rotations}")),
    }
}

/// Reads the log of a server, oldest line first. `None` if there is no file.
pub(crate) fn read_log(folder: &Path, server: &ServerId) -> io::Result<Option<String>> {
    let path = log_file(folder, server.as_str());
    let mut log = None;
    for rotations in (0..=MAX_ROTATED).rev() {
        match fs::read(rotated_path(&path, rotations)) {
            Ok(bytes) => *log.get_or_insert_default() += &*String::from_utf8_lossy(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(log)
}

/// Renames every file to the next number and overwrites the oldest.
fn rotate(path: &Path) -> io::Result<()> {
    let numbered = |number: u32| rotated_path(path, number);
    for number in (0..MAX_ROTATED).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
