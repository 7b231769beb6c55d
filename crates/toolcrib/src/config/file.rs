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

/// Reads a file. If all users may write to it, the text comes with a problem.
pub(super) fn read(path: &Path) -> Result<FileText, Problem> {
    // Checked before opening, because opening a named pipe blocks until there is a writer.
    let metadata = fs::metadata(path).map_err(|error| read_problem(path, &error))?;
    if !metadata.is_file() {
        return Err(file_problem(path, "not a regular file", "name a regular file with `--config FILE`"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| read_problem(path, &error))?;
    let is_world_writable = file.metadata().is_ok_and(|metadata| is_world_writable(&metadata));
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
    let problem = is_world_writable.then(|| {
        let hint = format!("run `chmod o-w {}`", path.display());
        file_problem(path, "the file is writable by all users", &hint)
    });
    Ok(FileText { text, problem })
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

#[cfg(unix)]
fn is_world_writable(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o002 != 0
}

#[cfg(not(unix))]
fn is_world_writable(_: &fs::Metadata) -> bool {
    false
}
