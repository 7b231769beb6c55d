//! One daemon for one config: whoever holds the lock file.
//!
//! The system gives the lock back when its holder dies, however it dies, so a lock that can be taken proves that the
//! socket beside it is nobody's.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::exit::Exit;
use crate::failure::Failure;

/// Held for as long as the daemon lives. The file stays, or two daemons could hold two files of one name.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says who has it.
    pub(super) fn take(path: &Path) -> Result<Self, Failure> {
        let broken = |error: io::Error| {
            Failure::new(
                Exit::Unexpected,
                "cannot_lock",
                format!("cannot lock `{}`: {error}", path.display()),
            )
        };
        let options =
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).to_owned();
        let mut file = options.open(path).map_err(broken)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(&mut file)),
            Err(TryLockError::Error(error)) => return Err(broken(error)),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(broken)?;
        Ok(Self { _file: file })
    }
}

fn taken(file: &mut File) -> Failure {
    let mut pid = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    let holder = match read {
        Ok(_) if !pid.trim().is_empty() => format!(" (pid {})", pid.trim()),
        _ => String::new(),
    };
    Failure::new(
        Exit::Unexpected,
        "already_running",
        format!("a gateway is running for this config already{holder}"),
    )
    .hint("toolcrib status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_was_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let first = Lock::take(&path).unwrap();
        let refused = Lock::take(&path).unwrap_err();
        assert!(refused.message.contains(&format!("pid {}", std::process::id())), "{refused}");
        drop(first);
        Lock::take(&path).unwrap();
    }
}
