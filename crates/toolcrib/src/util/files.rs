//! Atomic replacement of files.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::BuildHasher as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Options of [`replace_file`].
#[derive(Debug, Clone, Copy)]
pub struct ReplaceOptions {
    /// Permissions of the new file.
    pub mode: FileMode,
    /// Whether the contents are flushed to disk before the old file is replaced.
    pub sync: bool,
}

/// Permissions of a file that [`replace_file`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileMode {
    /// The permissions of any new file, which the umask restricts.
    Umask,
    /// Access for the owner only.
    Private,
    /// The permissions of the replaced file, or access for the owner only if there is none.
    Keep,
}

/// Replaces a file atomically: writes a temporary file next to it and renames that. Readers see the old contents or the
/// new ones, never a part.
///
/// # Errors
/// Fails if the temporary file cannot be written or renamed. The old file is then unchanged, and the temporary file is
/// removed.
pub fn replace_file(path: &Path, contents: &[u8], options: ReplaceOptions) -> io::Result<()> {
    let temporary = temporary_path(path);
    let file = create(&temporary, options.mode)?;
    let replaced = write(file, path, contents, options).and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        // The write error is reported; a failed cleanup is not.
        let _ = fs::remove_file(&temporary);
    }
    replaced
}

/// Removes temporary files that [`replace_file`] left next to a file because its process was killed.
///
/// # Errors
/// Fails if the folder cannot be read or a file in it cannot be removed. A missing folder is not an error.
pub fn remove_temporary_files(path: &Path) -> io::Result<()> {
    let entries = match path.parent().map(fs::read_dir) {
        None => return Ok(()),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Some(entries) => entries?,
    };
    let prefix = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".new"));
        let is_random = |text: &str| text.len() == 16 && text.chars().all(|c| c.is_ascii_hexdigit());
        if random.is_some_and(is_random) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Creates a folder and its parents for the owner only. An existing folder is left as it is.
///
/// # Errors
/// Fails if a folder cannot be created.
pub fn create_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(folder)
}

/// Returns a random hidden name in the same directory.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let random = RandomState::new().hash_one(path);
    path.with_file_name(format!(".{name}.{random:016x}.new"))
}

fn create(temporary: &Path, mode: FileMode) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if mode != FileMode::Umask {
        make_private(&mut options);
    }
    options.open(temporary)
}

fn write(mut file: File, replaced: &Path, contents: &[u8], options: ReplaceOptions) -> io::Result<()> {
    file.write_all(contents)?;
    if options.mode == FileMode::Keep
        && let Ok(metadata) = fs::metadata(replaced)
    {
        file.set_permissions(permission_bits(&metadata.permissions()))?;
    }
    if options.sync { file.sync_all() } else { Ok(()) }
}

#[cfg(unix)]
fn make_private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn make_private(_options: &mut OpenOptions) {}

/// Returns permissions without the bits of the file type.
#[cfg(unix)]
fn permission_bits(permissions: &Permissions) -> Permissions {
    use std::os::unix::fs::PermissionsExt as _;
    Permissions::from_mode(permissions.mode() & 0o7777)
}

#[cfg(not(unix))]
fn permission_bits(permissions: &Permissions) -> Permissions {
    permissions.clone()
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_temporary_files_of_the_file_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let others = [".a.json.new", ".a.json.0123.new", ".b.json.0123456789abcdef.new", "a.json"];
        for name in others {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        fs::write(temporary_path(&path), "x").unwrap();
        remove_temporary_files(&path).unwrap();
        remove_temporary_files(&dir.path().join("missing/a.json")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), others.len());
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names_in(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn every_mode_replaces_the_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for (mode, expected) in [(FileMode::Umask, None), (FileMode::Private, Some(0o600))] {
            for contents in ["first", "second"] {
                replace_file(&path, contents.as_bytes(), ReplaceOptions { mode, sync: false }).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), contents);
                assert_eq!(expected.unwrap_or_else(|| mode_of(&path)), mode_of(&path), "{mode:?}");
            }
        }
        assert_eq!(names_in(folder.path()), ["a.json"], "no temporary file is left");
    }

    #[test]
    fn keep_preserves_the_mode_and_creates_private_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let options = ReplaceOptions { mode: FileMode::Keep, sync: true };
        replace_file(&path, b"1", options).unwrap();
        assert_eq!(mode_of(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        replace_file(&path, b"2", options).unwrap();
        assert_eq!(mode_of(&path), 0o640);
    }

    #[test]
    fn failed_rename_removes_the_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::create_dir(&path).unwrap();
        let options = ReplaceOptions { mode: FileMode::Private, sync: false };
        assert!(replace_file(&path, b"1", options).is_err(), "a directory cannot be replaced");
        assert_eq!(names_in(folder.path()), ["a"]);
        assert!(replace_file(&folder.path().join("missing/a"), b"1", options).is_err());
    }
}
