//! `Original`: a file as it was when somebody began to change it. It is replaced whole or not at all, and only if nobody
//! else changed it meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::exit::Exit;
use crate::failure::Failure;

/// No file of settings is larger; some agents keep all they know in the one that has their servers.
const LARGEST: u64 = 64 << 20;

/// A file as it was when it was read.
#[derive(Debug)]
pub(crate) struct Original {
    /// The file itself, behind every link.
    path: PathBuf,
    /// What was in it; absent if there was none.
    text: Option<String>,
}

impl Original {
    /// Reads a file; one that is not there has no text. What is no regular file is not opened.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let text = contents(&real).map_err(|error| cannot("read", &real, &error))?;
        Ok(Self { path: real, text })
    }

    /// What was in it; nothing if it was not there.
    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Whether it was there.
    pub(crate) fn exists(&self) -> bool {
        self.text.is_some()
    }

    /// Where it is, behind every link.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts another text in its place. Folders on the way are made; whatever goes wrong, the file is one or the other.
    pub(crate) fn replace(&self, text: &str) -> Result<(), Failure> {
        let folder = self.folder();
        fs::create_dir_all(folder).map_err(|error| cannot("write", &self.path, &error))?;
        // The folder is what both sides have in common, and a lock on it leaves nothing behind.
        let lock = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
        let lock = lock.map_err(|error| cannot("write", &self.path, &error))?;
        let now = contents(&self.path).map_err(|error| cannot("read", &self.path, &error))?;
        if now != self.text {
            let message = format!("`{}` was changed by somebody else meanwhile", self.path.display());
            return Err(Failure::new(Exit::Unexpected, "changed_meanwhile", message).hint("do it again"));
        }
        let temporary = self.temporary();
        let written = self.write(&temporary, text).and_then(|()| fs::rename(&temporary, &self.path));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(cannot("write", &self.path, &error));
        }
        // A rename that is lost in a power cut leaves the old file, which is whole as well.
        let _ = lock.sync_all();
        Ok(())
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn temporary(&self) -> PathBuf {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.folder().join(format!(".{name}.{}.new", std::process::id()))
    }

    fn write(&self, temporary: &Path, text: &str) -> io::Result<()> {
        let mode = fs::metadata(&self.path).map_or(0o600, |found| found.permissions().mode() & 0o7777);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()
    }
}

fn contents(path: &Path) -> io::Result<Option<String>> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(LARGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST {
        return Err(io::Error::other("it is larger than 64 MiB"));
    }
    Ok(Some(text))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot {what} `{}`: {error}", path.display());
    Failure::new(Exit::Unexpected, "cannot_edit", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_behind_its_link_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real.toml"), dir.path().join("link.toml"));
        fs::write(&real, "a").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        Original::read(&link).unwrap().replace("b").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "b");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn a_new_file_is_private_and_its_folders_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x/y/config.toml");
        let original = Original::read(&path).unwrap();
        assert!(!original.exists() && original.text().is_empty());
        original.replace("a").unwrap();
        assert_eq!(fs::metadata(original.path()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_change_by_somebody_else_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, "a").unwrap();
        let original = Original::read(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        assert_eq!(original.replace("mine").unwrap_err().code, "changed_meanwhile");
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        let gone = Original::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(gone.replace("mine").is_err());
        assert!(Original::read(dir.path()).is_err(), "a folder is not a file");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, "a").unwrap();
        let original = Original::read(&path).unwrap();
        fs::create_dir(original.temporary()).unwrap();
        assert!(original.replace("b").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a");
    }
}
