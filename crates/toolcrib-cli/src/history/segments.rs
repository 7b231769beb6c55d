//! The files of the history: a ring of segments, bounded in size and age.
//!
//! Each file is named after its first record, so that names alone tell which files a query needs and which are too old. A killed
//! gateway may leave a record incomplete at the end of a file; readers stop there, and the next gateway removes it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use toolcrib::config::HistorySpec;
use toolcrib::util::files::create_private_folder;
use toolcrib::util::time_id::{time_of_id, to_time_id};

use super::record::{HistoryRecord, Records};

/// The first bytes of each file.
const MAGIC: &[u8] = b"toolcrib history 1\n";
/// Suffix of the files.
const SUFFIX: &str = ".history";
/// Files that the size and the age are divided into.
const SEGMENTS: u32 = 16;

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    path: PathBuf,
    /// The position of its first record.
    pub(super) first: u64,
    size: u64,
    /// When the last record was written.
    modified: SystemTime,
}

impl Segment {
    /// Reads the records of the file. A file of another version has none, and neither has one that was removed meanwhile.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read?,
        };
        if !bytes.starts_with(MAGIC) {
            return Ok(Vec::new());
        }
        bytes.drain(..MAGIC.len());
        Ok(bytes)
    }
}

/// Returns the files in a folder, the oldest first. A missing folder has none.
pub(super) fn list(folder: &Path) -> io::Result<Vec<Segment>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut segments = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let first = name.to_str().and_then(|name| u64::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok());
        if let (Some(first), Ok(metadata)) = (first, entry.metadata()) {
            let modified = metadata.modified()?;
            segments.push(Segment { path: entry.path(), first, size: metadata.len(), modified });
        }
    }
    segments.sort_by_key(|segment| segment.first);
    Ok(segments)
}

/// Returns the files that can have records from this position on, the oldest first.
pub(super) fn list_from(folder: &Path, position: u64) -> io::Result<Vec<Segment>> {
    let mut segments = list(folder)?;
    let mut needed = segments.iter().rposition(|segment| segment.first <= position).unwrap_or(0);
    // A gateway that was replaced writes its last records to a file of its own, beside that of the next one.
    while needed > 0 && segments[needed - 1].modified >= time_of_id(position) {
        needed -= 1;
    }
    segments.drain(..needed);
    Ok(segments)
}

/// Appends records to the newest file and removes the oldest ones.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    folder: PathBuf,
    spec: HistorySpec,
    open: Option<OpenSegment>,
}

#[derive(Debug)]
struct OpenSegment {
    file: File,
    path: PathBuf,
    first: u64,
    size: u64,
}

/// A writer and the position of the last record before it.
pub(super) struct OpenedWriter {
    pub(super) writer: SegmentWriter,
    pub(super) last: u64,
}

impl SegmentWriter {
    /// Opens the newest file again, without an incomplete record at its end. A file that another process still writes is left to
    /// it: the next record begins another one.
    pub(super) fn open(folder: &Path, spec: HistorySpec) -> io::Result<OpenedWriter> {
        create_private_folder(folder)?;
        let mut writer = Self { folder: folder.to_owned(), spec, open: None };
        let mut last = 0;
        if let Some(newest) = list(folder)?.pop() {
            let bytes = newest.read()?;
            let mut records = Records::new(&bytes);
            last = records.by_ref().map(|record| record.seq()).last().unwrap_or(newest.first);
            let Segment { path, first, .. } = newest;
            let size = (MAGIC.len() + bytes.len() - records.unread_bytes()) as u64;
            let file = File::options().append(true).open(&path)?;
            if !bytes.is_empty() && file.try_lock().is_ok() {
                file.set_len(size)?;
                writer.open = Some(OpenSegment { file, path, first, size });
            }
        }
        Ok(OpenedWriter { writer, last })
    }

    /// Returns the limits.
    pub(super) fn spec(&self) -> &HistorySpec {
        &self.spec
    }

    /// Appends whole records. A failed append leaves nothing behind.
    pub(super) fn append(&mut self, records: &[u8], now: SystemTime) -> io::Result<()> {
        let Some(first) = Records::new(records).next().map(|record: HistoryRecord<'_>| record.seq()) else {
            return Ok(());
        };
        if self.open.as_ref().is_none_or(|open| self.is_full(open, records.len(), first)) {
            self.open = None;
            self.open = Some(self.create(first)?);
            self.remove_old(now)?;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if let Err(error) = open.file.write_all(records) {
            // Readers would stop at an incomplete record, so the file is not used again if it cannot be shortened.
            if open.file.set_len(open.size).is_err() {
                self.open = None;
            }
            return Err(error);
        }
        open.size += records.len() as u64;
        Ok(())
    }

    fn is_full(&self, open: &OpenSegment, added: usize, next: u64) -> bool {
        let age = time_of_id(next).duration_since(time_of_id(open.first)).unwrap_or_default();
        open.size + added as u64 > self.spec.size / u64::from(SEGMENTS)
            || age > self.spec.age / SEGMENTS
            // Removed by hand.
            || !open.path.exists()
    }

    fn create(&self, first: u64) -> io::Result<OpenSegment> {
        create_private_folder(&self.folder)?;
        let path = self.folder.join(format!("{first:016x}{SUFFIX}"));
        let mut file = File::options().append(true).create(true).mode(0o600).open(&path)?;
        // Released when the file is closed. Fails where the file system has no locks.
        let _ = file.try_lock();
        file.write_all(MAGIC)?;
        Ok(OpenSegment { file, path, first, size: MAGIC.len() as u64 })
    }

    /// Removes files that are too old, and the oldest ones while all of them are too large.
    pub(super) fn remove_old(&mut self, now: SystemTime) -> io::Result<()> {
        let segments = list(&self.folder)?;
        let oldest_kept = to_time_id(now.checked_sub(self.spec.age).unwrap_or(SystemTime::UNIX_EPOCH));
        let mut total: u64 = segments.iter().map(|segment| segment.size).sum();
        // Space for what will be added to the newest file.
        total += self.spec.size / u64::from(SEGMENTS);
        for pair in segments.windows(2) {
            let [segment, next] = pair else { break };
            if next.first > oldest_kept && total <= self.spec.size {
                break;
            }
            match fs::remove_file(&segment.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => total = total.saturating_sub(segment.size),
            }
        }
        // The records of one file are at most `age / SEGMENTS` apart.
        let age = self.spec.age + self.spec.age / SEGMENTS;
        let oldest_newest = to_time_id(now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH));
        if let Some(newest) = segments.last().filter(|newest| newest.first < oldest_newest) {
            self.open = None;
            fs::remove_file(&newest.path)?;
        }
        Ok(())
    }

    /// Returns when to look for files that are too old although nothing is written.
    pub(super) fn cleanup_interval(&self) -> Duration {
        (self.spec.age / SEGMENTS).clamp(Duration::from_secs(60), Duration::from_secs(3600))
    }
}
