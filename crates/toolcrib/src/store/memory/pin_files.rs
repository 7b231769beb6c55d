//! `PinFiles`: a folder with the approved tools of each server. Only its owner can read a file, and it is replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;

use crate::store::{StoreError, StoredValue};
use crate::util::files::{FileMode, ReplaceOptions, replace_file};
use crate::util::locks::IgnorePoison as _;

/// The ending of the files.
const SUFFIX: &str = ".json";

/// Files by the name of the server.
#[derive(Debug)]
pub(super) struct PinFiles {
    folder: PathBuf,
    /// Held while a file is changed.
    changing: Mutex<()>,
}

impl PinFiles {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, changing: Mutex::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{SUFFIX}"))
    }

    pub(super) fn read(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let path = self.path(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::new(format!("cannot read `{}`: {error}", path.display()))),
        }
    }

    pub(super) fn write(&self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        let _guard = self.changing.lock().ignore_poison();
        self.replace(name, value)
    }

    /// Writes a file unless there is one. Returns whether it was written.
    pub(super) fn write_if_absent(&self, name: &str, value: &[u8]) -> Result<bool, StoreError> {
        let _guard = self.changing.lock().ignore_poison();
        if fs::metadata(self.path(name)).is_ok() {
            return Ok(false);
        }
        self.replace(name, value).map(|()| true)
    }

    /// Replaces a file if its content is `expected`. Returns whether it was replaced.
    pub(super) fn write_if_equal(
        &self,
        name: &str,
        expected: &[u8],
        value: &[u8],
    ) -> Result<bool, StoreError> {
        let _guard = self.changing.lock().ignore_poison();
        if self.read(name)?.is_none_or(|current| *current != *expected) {
            return Ok(false);
        }
        self.replace(name, value).map(|()| true)
    }

    /// Removes a file and returns its content.
    pub(super) fn take(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let _guard = self.changing.lock().ignore_poison();
        let value = self.read(name)?;
        if value.is_some() {
            let path = self.path(name);
            fs::remove_file(&path)
                .map_err(|error| StoreError::new(format!("cannot remove `{}`: {error}", path.display())))?;
        }
        Ok(value)
    }

    /// Returns the content of every file whose name starts with `prefix`, ordered by name.
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<StoredValue>, StoreError> {
        let failed = |error: io::Error| {
            StoreError::new(format!("cannot read the folder `{}`: {error}", self.folder.display()))
        };
        let mut names = Vec::new();
        match fs::read_dir(&self.folder) {
            Ok(entries) => {
                for entry in entries {
                    let file = entry.map_err(failed)?.file_name();
                    let name = file.to_str().and_then(|file| file.strip_suffix(SUFFIX));
                    names.extend(name.filter(|name| name.starts_with(prefix)).map(str::to_owned));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        names.sort_unstable();
        let mut listed = Vec::new();
        for name in names {
            if let Some(value) = self.read(&name)? {
                listed.push(StoredValue { name, value });
            }
        }
        Ok(listed)
    }

    fn replace(&self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        let path = self.path(name);
        write_private(&path, value)
            .map_err(|error| StoreError::new(format!("cannot write `{}`: {error}", path.display())))
    }
}

/// Replaces a file in a folder that is created if necessary. Only the owner can read either.
fn write_private(path: &Path, value: &[u8]) -> io::Result<()> {
    let mut folder = fs::DirBuilder::new();
    make_private(&mut folder);
    folder.recursive(true).create(path.parent().unwrap_or(Path::new(".")))?;
    replace_file(path, value, ReplaceOptions { mode: FileMode::Private, sync: true })
}

#[cfg(unix)]
fn make_private(folder: &mut fs::DirBuilder) {
    use std::os::unix::fs::DirBuilderExt as _;
    folder.mode(0o700);
}

#[cfg(not(unix))]
fn make_private(_folder: &mut fs::DirBuilder) {}
