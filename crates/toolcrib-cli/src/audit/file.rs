//! The audit file: holds only whole lines, even if a writer is killed, and may be shared by several processes.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use toolcrib::config::AuditSpec;

/// Attempts to open a file that other processes rotate meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// An audit file that is opened on the first write.
pub(super) struct AuditFile {
    spec: AuditSpec,
    file: Option<File>,
}

impl AuditFile {
    pub(super) fn new(spec: AuditSpec) -> Self {
        Self { spec, file: None }
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
        self.file = Some(file);
        Ok(())
    }

    /// Appends whole lines and syncs them to disk. A failed append leaves nothing behind.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            if !self.is_current() {
                self.open()?;
            }
            let Some(file) = &self.file else { continue };
            file.lock()?;
            // Another process may have rotated the file before this one got the lock.
            let written = match self.is_current() {
                true => self.append_locked(file, lines),
                false => Ok(false),
            };
            file.unlock()?;
            match written {
                Ok(true) => return Ok(()),
                Ok(false) => self.file = None,
                Err(error) => {
                    self.file = None;
                    return Err(error);
                }
            }
        }
        Err(io::Error::other("other processes keep rotating it"))
    }

    /// Returns whether the open file is still the one at the path.
    fn is_current(&self) -> bool {
        let open = self.file.as_ref().and_then(|file| file.metadata().ok());
        let at_path = fs::metadata(&self.spec.file).ok();
        open.zip(at_path)
            .is_some_and(|(open, at_path)| (open.dev(), open.ino()) == (at_path.dev(), at_path.ino()))
    }

    /// Appends to the locked file. Returns `false` if the file was full and has been rotated instead.
    fn append_locked(&self, mut file: &File, lines: &[u8]) -> io::Result<bool> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return file.write_all(lines).map(|()| true);
        }
        let size = metadata.len();
        if size > 0 && size + lines.len() as u64 > self.spec.size {
            self.rotate()?;
            return Ok(false);
        }
        let mut last = [b'\n'];
        if size > 0 {
            file.read_exact_at(&mut last, size - 1)?;
        }
        // Ends a line that a killed writer left incomplete.
        let repaired = if last == [b'\n'] { Ok(()) } else { file.write_all(b"\n") };
        let written = repaired.and_then(|()| file.write_all(lines)).and_then(|()| file.sync_data());
        if written.is_err() {
            let _ = file.set_len(size);
        }
        written.map(|()| true)
    }

    /// Renames every file to the next number and overwrites the oldest.
    fn rotate(&self) -> io::Result<()> {
        if self.spec.keep == 0 {
            return fs::remove_file(&self.spec.file);
        }
        for number in (0..self.spec.keep).rev() {
            match fs::rename(self.numbered_path(number), self.numbered_path(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn numbered_path(&self, number: u32) -> PathBuf {
        let mut name = self.spec.file.clone().into_os_string();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.into()
    }
}
