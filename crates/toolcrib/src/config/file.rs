//! The only file access of the config: reads one file whole, and refuses what cannot be a config file or could have
//! been written by somebody else.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::{Concern, Problem, page};

const LARGEST: u64 = 4 << 20;

/// The text of a file, with a problem when others may write to it.
pub(super) fn read(path: &Path) -> Result<(String, Option<Problem>), Problem> {
    let whole = |message: String, hint: String| Problem {
        file: path.to_owned(),
        at: None,
        concerns: Concern::Whole,
        message,
        hint: Some(hint),
    };
    // Asked before opening: opening a named pipe would wait for a writer.
    let kind = fs::metadata(path).map_err(|error| unreadable(&error, path, whole))?;
    if !kind.is_file() {
        let hint = "name a regular file with `--config FILE`";
        return Err(whole("this is not a regular file".to_owned(), hint.to_owned()));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| unreadable(&error, path, whole))?;
    let open_to_all = file.metadata().is_ok_and(|metadata| others_may_write(&metadata));
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error, path, whole))?;
    if bytes.len() as u64 > LARGEST {
        let hint = "name a config file with `--config FILE`";
        return Err(whole("this file is larger than 4 MiB".to_owned(), hint.to_owned()));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let at = page::position(&String::from_utf8_lossy(&error.as_bytes()[..good]), good);
        Problem {
            at: Some(at),
            ..whole("this is not UTF-8 text".to_owned(), "save the file as UTF-8".to_owned())
        }
    })?;
    let warned = open_to_all.then(|| {
        whole("every user may write to this file".to_owned(), format!("type `chmod o-w {}`", path.display()))
    });
    Ok((text, warned))
}

fn unreadable(error: &io::Error, path: &Path, whole: impl Fn(String, String) -> Problem) -> Problem {
    let (message, hint) = match error.kind() {
        ErrorKind::NotFound => {
            ("there is no such file".to_owned(), "create it, or name another with `--config FILE`".to_owned())
        }
        ErrorKind::PermissionDenied => {
            ("this file may not be read".to_owned(), format!("type `chmod u+r {}`", path.display()))
        }
        _ => (format!("this file cannot be read: {error}"), "name another with `--config FILE`".to_owned()),
    };
    whole(message, hint)
}

#[cfg(unix)]
fn others_may_write(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o002 != 0
}

#[cfg(not(unix))]
fn others_may_write(_: &fs::Metadata) -> bool {
    false
}
