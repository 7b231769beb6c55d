//! The audit file: holds only whole, chained lines, even if a writer is killed, and may be shared by several processes.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use toolcrib::config::AuditSpec;

use super::chain::{self, ChainWriter, Link, LinkHasher};

/// Attempts to open a file that other processes rotate meanwhile.
const MAX_ATTEMPTS: usize = 10;
/// Bytes at the end of a file in which its last link is looked for first.
const TAIL_LEN: u64 = 64 << 10;

/// An audit file that is opened on the first write.
pub(super) struct AuditFile {
    spec: AuditSpec,
    file: Option<File>,
    /// The end of the open file after the last append of this process.
    written: Option<WrittenEnd>,
    /// The last link of the file that was open before.
    continued: Option<Link>,
}

/// The size of a file and its last link.
struct WrittenEnd {
    size: u64,
    link: Link,
}

/// The last link of a file and the hash of what follows it.
struct FileTail {
    link: Option<Link>,
    hasher: LinkHasher,
}

impl AuditFile {
    pub(super) fn new(spec: AuditSpec) -> Self {
        Self { spec, file: None, written: None, continued: None }
    }

    pub(super) fn spec(&self) -> &AuditSpec {
        &self.spec
    }

    /// Opens the file and creates it if needed.
    pub(super) fn open(&mut self) -> io::Result<()> {
        let path = &self.spec.file;
        let open = || File::options().read(true).append(true).create(true).mode(0o600).open(path);
        let file = match (open(), path.parent()) {
            (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                open()?
            }
            (opened, _) => opened?,
        };
        // Other processes may have written to the previous file after this one.
        if let Some(previous) = self.file.replace(file) {
            self.continued = read_tail(&previous)?.link.or(self.continued);
        }
        self.written = None;
        Ok(())
    }

    /// Chains and appends whole lines, and syncs them to disk. A failed append leaves nothing behind.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            if !self.is_current() {
                self.open()?;
            }
            let Some(file) = self.file.take() else { continue };
            file.lock()?;
            // Another process may have rotated the file before this one got the lock.
            let appended = match is_at(&file, &self.spec.file) {
                true => self.append_locked(&file, lines),
                false => Ok(false),
            };
            file.unlock()?;
            self.file = Some(file);
            if appended? {
                return Ok(());
            }
        }
        Err(io::Error::other("other processes keep rotating it"))
    }

    /// Returns whether the open file is still the one at the path.
    fn is_current(&self) -> bool {
        self.file.as_ref().is_some_and(|file| is_at(file, &self.spec.file))
    }

    /// Appends to the locked file. Returns `false` if the file was full and has been rotated instead.
    fn append_locked(&mut self, mut file: &File, lines: &[u8]) -> io::Result<bool> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return file.write_all(lines).map(|()| true);
        }
        let size = metadata.len();
        let mut writer = match size {
            0 => ChainWriter::begin(self.previous_link()?),
            _ => ChainWriter::resume(self.hasher_at(file, size)?),
        };
        if ends_within_a_line(file, size)? {
            writer.write_lines(b"\n");
        }
        writer.write_lines(lines);
        if size > 0 && size + writer.out.len() as u64 > self.spec.size {
            self.rotate()?;
            return Ok(false);
        }
        if let Err(error) = file.write_all(&writer.out).and_then(|()| file.sync_data()) {
            // The next append finds the end of the file again.
            let _ = file.set_len(size);
            return Err(error);
        }
        let size = size + writer.out.len() as u64;
        self.written = writer.last.map(|link| WrittenEnd { size, link });
        Ok(true)
    }

    /// Returns the hash of what follows the last link of a file with this size.
    fn hasher_at(&self, file: &File, size: u64) -> io::Result<LinkHasher> {
        match &self.written {
            Some(written) if written.size == size => Ok(LinkHasher::after(Some(written.link))),
            _ => read_tail(file).map(|tail| tail.hasher),
        }
    }

    /// Returns the last link before an empty file: of the file that was open before, or of the newest rotated file.
    fn previous_link(&self) -> io::Result<Option<Link>> {
        if self.continued.is_some() {
            return Ok(self.continued);
        }
        match File::open(numbered_path(&self.spec.file, 1)) {
            Ok(rotated) => read_tail(&rotated).map(|tail| tail.link),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renames every file to the next number and overwrites the oldest.
    fn rotate(&self) -> io::Result<()> {
        let path = &self.spec.file;
        // More files may have been kept before; the new ones do not continue them.
        for number in self.spec.keep + 1.. {
            match fs::remove_file(numbered_path(path, number)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        if self.spec.keep == 0 {
            return fs::remove_file(path);
        }
        for number in (0..self.spec.keep).rev() {
            match fs::rename(numbered_path(path, number), numbered_path(path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the path of a rotated file; 0 is the current file.
pub(super) fn numbered_path(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name.into()
}

/// Returns whether an open file is the one at the path.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let open = file.metadata().ok();
    let at_path = fs::metadata(path).ok();
    open.zip(at_path)
        .is_some_and(|(open, at_path)| (open.dev(), open.ino()) == (at_path.dev(), at_path.ino()))
}

/// Returns whether a killed writer left the last line incomplete.
fn ends_within_a_line(file: &File, size: u64) -> io::Result<bool> {
    let mut last = [b'\n'];
    if size > 0 {
        file.read_exact_at(&mut last, size - 1)?;
    }
    Ok(last != [b'\n'])
}

/// Finds the last link of a file. Reads more and more of its end; a file without a link is read completely.
fn read_tail(file: &File) -> io::Result<FileTail> {
    let metadata = file.metadata()?;
    let size = if metadata.is_file() { metadata.len() } else { 0 };
    let mut len = size.min(TAIL_LEN);
    loop {
        let mut text = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        file.read_exact_at(&mut text, size - len)?;
        let found = chain::find_last_link(&text);
        if found.is_some() || len == size {
            let link = found.map(|found| found.link);
            let mut hasher = LinkHasher::after(link);
            hasher.update(&text[found.map_or(0, |found| found.end)..]);
            return Ok(FileTail { link, hasher });
        }
        len = size.min(len * 4);
    }
}
