//! `Book`: the file of an audit. Only whole lines are in it, however often its writer was killed; several processes may
//! write to it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use toolcrib::config::AuditSpec;

/// How often a file is opened that others turn over meanwhile.
const MOST_TRIES: usize = 10;

/// The file, opened when there is something to write.
pub(super) struct Book {
    spec: AuditSpec,
    file: Option<File>,
}

impl Book {
    pub(super) fn new(spec: AuditSpec) -> Self {
        Self { spec, file: None }
    }

    pub(super) fn spec(&self) -> &AuditSpec {
        &self.spec
    }

    /// Makes sure that there is a file.
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

    /// Adds whole lines, and returns when they are on the disk. What fails leaves nothing.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        for _ in 0..MOST_TRIES {
            if !self.is_current() {
                self.open()?;
            }
            let Some(file) = &self.file else { continue };
            file.lock()?;
            // Whoever held the lock may have turned it over.
            let written = match self.is_current() {
                true => self.add(file, lines),
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
        Err(io::Error::other("somebody else moves it away again and again"))
    }

    /// Whether the open file is the one that the path leads to.
    fn is_current(&self) -> bool {
        let ours = self.file.as_ref().and_then(|file| file.metadata().ok());
        let there = fs::metadata(&self.spec.file).ok();
        ours.zip(there).is_some_and(|(ours, there)| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    }

    /// `false` if another file has to be begun first.
    fn add(&self, mut file: &File, lines: &[u8]) -> io::Result<bool> {
        let found = file.metadata()?;
        if !found.is_file() {
            return file.write_all(lines).map(|()| true);
        }
        let size = found.len();
        if size > 0 && size + lines.len() as u64 > self.spec.size {
            self.turn_over()?;
            return Ok(false);
        }
        let mut last = [b'\n'];
        if size > 0 {
            file.read_exact_at(&mut last, size - 1)?;
        }
        // A line that was cut off by the death of its writer ends here.
        let mended = if last == [b'\n'] { Ok(()) } else { file.write_all(b"\n") };
        let written = mended.and_then(|()| file.write_all(lines)).and_then(|()| file.sync_data());
        if written.is_err() {
            let _ = file.set_len(size);
        }
        written.map(|()| true)
    }

    /// Every file gets the next number, and the oldest goes.
    fn turn_over(&self) -> io::Result<()> {
        if self.spec.keep == 0 {
            return fs::remove_file(&self.spec.file);
        }
        for number in (0..self.spec.keep).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.spec.file.clone().into_os_string();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.into()
    }
}
