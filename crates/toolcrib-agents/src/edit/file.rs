//! Reads a config file and replaces it atomically, unless another process changed it in between. Together with the undo
//! log of exports, this is the only file that reads, writes or lists files.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use toolcrib::util::files::{self, FileMode, ReplaceOptions};

use crate::error::{AgentErrorKind, Error};

/// Size limit. Some agents keep all their state in the file that has their servers.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A file as it was when it was read.
#[derive(Debug)]
pub struct OriginalFile {
    /// Path with all symbolic links resolved.
    path: PathBuf,
    /// Contents; `None` if the file did not exist.
    text: Option<String>,
}

impl OriginalFile {
    /// Reads a file. A missing file has no text; anything but a regular file is an error.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, is not UTF-8 or is larger than 64 MiB.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let text = read_contents(&real).map_err(|error| edit_error("read", &real, &error))?;
        Ok(Self { path: real, text })
    }

    /// Returns the contents, or an empty text if the file did not exist.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Returns whether the file existed when it was read.
    pub fn exists(&self) -> bool {
        self.text.is_some()
    }

    /// Returns the path with all symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the contents and creates missing parent directories. After an error the file is unchanged.
    ///
    /// # Errors
    ///
    /// Fails if another process changed the file since it was read, or if it cannot be written.
    pub fn replace(&self, text: &str) -> Result<(), Error> {
        let dir = self.parent_dir();
        fs::create_dir_all(dir).map_err(|error| edit_error("write", &self.path, &error))?;
        // The directory is locked because the file itself is replaced. The lock leaves nothing behind.
        let lock = File::open(dir).and_then(|dir| dir.lock().map(|()| dir));
        let lock = lock.map_err(|error| edit_error("write", &self.path, &error))?;
        let now = read_contents(&self.path).map_err(|error| edit_error("read", &self.path, &error))?;
        if now != self.text {
            let message = format!("`{}` was changed by another process", self.path.display());
            return Err(
                Error::new(AgentErrorKind::ChangedMeanwhile, message).with_hint("run the command again")
            );
        }
        let options = ReplaceOptions { mode: FileMode::Keep, sync: true };
        let written = files::replace_file(&self.path, text.as_bytes(), options);
        written.map_err(|error| edit_error("write", &self.path, &error))?;
        // If a power failure undoes the rename, the old file is still complete.
        let _ = lock.sync_all();
        Ok(())
    }

    /// Removes the file, if it existed when it was read.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be removed.
    pub fn remove(&self) -> Result<(), Error> {
        if !self.exists() {
            return Ok(());
        }
        fs::remove_file(&self.path).map_err(|error| edit_error("remove", &self.path, &error))
    }

    /// Returns whether the file has no write permission for anyone.
    pub(crate) fn is_read_only(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| metadata.permissions().readonly())
    }

    fn parent_dir(&self) -> &Path {
        self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

/// Returns whether a path is a symbolic link to a missing file.
pub(crate) fn is_broken_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) && !path.exists()
}

/// Returns the closest ancestor that exists, with all symbolic links resolved. A missing file is created below it.
pub(crate) fn resolve_existing_part(path: &Path) -> PathBuf {
    path.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_default()
}

/// Returns a path with all symbolic links resolved, or unchanged if it does not exist.
pub(crate) fn resolve_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Returns whether two paths lead to the same file, or to none.
pub(crate) fn is_same_file(first: &Path, second: &Path) -> bool {
    first.canonicalize().ok() == second.canonicalize().ok()
}

/// Returns the paths in a directory, sorted.
pub(crate) fn list_dir(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn read_contents(path: &Path) -> io::Result<Option<String>> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut contents = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("larger than 64 MiB"));
    }
    let text = String::from_utf8(contents).map_err(|_| io::Error::other("it is not UTF-8 text"))?;
    Ok(Some(text))
}

fn edit_error(action: &str, path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot {action} `{}`: {error}", path.display());
    Error::new(AgentErrorKind::CannotEdit, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn replace_follows_symlink_and_keeps_mode() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real.toml");
        let link = dir.path().join("link.toml");
        fs::write(&real, "a").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        OriginalFile::read(&link).unwrap().replace("b").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "b");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn replace_creates_private_file_and_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x/y/config.toml");
        let original = OriginalFile::read(&path).unwrap();
        assert!(!original.exists() && original.text().is_empty());
        original.replace("a").unwrap();
        assert_eq!(fs::metadata(original.path()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn replace_fails_if_file_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, "a").unwrap();
        let original = OriginalFile::read(&path).unwrap();
        fs::write(&path, "other").unwrap();
        assert_eq!(original.replace("new").unwrap_err().code(), "changed_meanwhile");
        assert_eq!(fs::read_to_string(&path).unwrap(), "other");
        let removed = OriginalFile::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(removed.replace("new").is_err());
        assert!(OriginalFile::read(dir.path()).is_err(), "a directory is not a regular file");
    }

    #[test]
    fn replace_failure_leaves_old_file() {
        let dir = tempfile::tempdir().unwrap();
        // The name is so long that the name of the temporary file is invalid.
        let path = dir.path().join("c".repeat(250));
        fs::write(&path, "a").unwrap();
        let original = OriginalFile::read(&path).unwrap();
        assert!(original.replace("b").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a");
    }
}
