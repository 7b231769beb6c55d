//! Reads one config file, and rejects files that cannot be a config file or that other users may have written.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::{Problem, ProblemScope, source_map};

/// Largest config file, in bytes.
const MAX_FILE_SIZE: u64 = 4 << 20;

/// Text of a config file.
pub(super) struct FileText {
    pub(super) text: String,
    /// A problem that does not keep the text from being parsed.
    pub(super) problem: Option<Problem>,
}

/// Reads a file. If other users can write or replace it, the text comes with a problem.
pub(super) fn read(path: &Path) -> Result<FileText, Problem> {
    // Checked before opening, because opening a named pipe blocks until there is a writer.
    let metadata = fs::metadata(path).map_err(|error| read_problem(path, &error))?;
    if !metadata.is_file() {
        return Err(file_problem(path, "not a regular file", "name a regular file with `--config FILE`"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| read_problem(path, &error))?;
    let metadata = file.metadata().map_err(|error| read_problem(path, &error))?;
    file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(|error| read_problem(path, &error))?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        let hint = "name a config file with `--config FILE`";
        return Err(file_problem(path, "the file is larger than 4 MiB", hint));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let position = source_map::position(&String::from_utf8_lossy(&error.as_bytes()[..valid]), valid);
        Problem {
            position: Some(position),
            ..file_problem(path, "the file is not UTF-8 text", "save the file as UTF-8")
        }
    })?;
    Ok(FileText { text, problem: permission_problem(path, &metadata) })
}

/// Returns a problem of a file as a whole, without a position.
pub(super) fn file_problem(path: &Path, message: &str, hint: &str) -> Problem {
    Problem {
        file: path.to_owned(),
        position: None,
        scope: ProblemScope::WholeConfig,
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}

fn read_problem(path: &Path, error: &io::Error) -> Problem {
    match error.kind() {
        ErrorKind::NotFound => {
            file_problem(path, "file not found", "create it, or name another with `--config FILE`")
        }
        ErrorKind::PermissionDenied => file_problem(
            path,
            "no permission to read the file",
            &format!("run `chmod u+r {}`", path.display()),
        ),
        _ => {
            let message = format!("cannot read the file: {error}");
            file_problem(path, &message, "name another with `--config FILE`")
        }
    }
}

/// Returns the problem of a file that other users can write or replace.
#[cfg(unix)]
fn permission_problem(path: &Path, metadata: &fs::Metadata) -> Option<Problem> {
    use std::os::unix::fs::MetadataExt as _;
    let own_uid = rustix::process::geteuid().as_raw();
    if !is_trusted_owner(metadata.uid(), own_uid) {
        let message = format!("the file belongs to another user (uid {})", metadata.uid());
        let hint = format!("run `sudo chown {own_uid} {}`, if you trust its contents", path.display());
        return Some(file_problem(path, &message, &hint));
    }
    if metadata.mode() & WRITABLE_BY_ALL != 0 {
        let hint = format!("run `chmod o-w {}`", path.display());
        return Some(file_problem(path, "the file is writable by all users", &hint));
    }
    let real_path = path.canonicalize().ok();
    let folders = [Some(path), real_path.as_deref()].into_iter().flatten().filter_map(Path::parent);
    let open_folder = folders
        .map(folder_or_current)
        .find(|folder| fs::metadata(folder).is_ok_and(|folder| is_open_folder(folder.mode())))?;
    let message =
        format!("all users can replace the file: `{}` is writable by all users", open_folder.display());
    Some(file_problem(path, &message, &format!("run `chmod o-w {}`", open_folder.display())))
}

#[cfg(not(unix))]
fn permission_problem(_: &Path, _: &fs::Metadata) -> Option<Problem> {
    None
}

/// The permission of all users to write.
#[cfg(unix)]
const WRITABLE_BY_ALL: u32 = 0o002;

/// Returns whether a file of this owner is trusted: the own user's and the administrator's are.
#[cfg(unix)]
fn is_trusted_owner(owner: u32, own_uid: u32) -> bool {
    owner == own_uid || owner == 0
}

/// Returns whether all users can replace files in a folder with this mode. With the sticky bit only their owners can.
#[cfg(unix)]
fn is_open_folder(mode: u32) -> bool {
    const STICKY: u32 = 0o1000;
    mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0
}

#[cfg(unix)]
fn folder_or_current(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn owner_is_trusted_if_own_user_or_administrator() {
        for (owner, own_uid, expected) in
            [(1000, 1000, true), (0, 1000, true), (1001, 1000, false), (1000, 0, false)]
        {
            assert_eq!(is_trusted_owner(owner, own_uid), expected, "{owner} {own_uid}");
        }
    }

    #[test]
    fn folder_is_open_if_all_users_write_and_it_is_not_sticky() {
        for (mode, expected) in [(0o40755, false), (0o40777, true), (0o41777, false), (0o40775, false)] {
            assert_eq!(is_open_folder(mode), expected, "{mode:o}");
        }
    }
}
