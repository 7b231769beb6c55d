//! The lock file that allows one gateway per config.
//!
//! The operating system releases the lock when its holder dies, so holding it proves that a leftover socket file is stale.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::command_error::CommandError;
use crate::exit::ExitStatus;

/// A lock held for the life of the gateway. The file is never removed, or two gateways could lock two files of one name.
#[derive(Debug)]
pub(super) struct GatewayLock {
    _file: File,
}

impl GatewayLock {
    /// Takes the lock; the error names the process that holds it.
    pub(super) fn acquire(path: &Path) -> Result<Self, CommandError> {
        let cannot_lock = |error: io::Error| {
            CommandError::new(
                ExitStatus::Failure,
                "cannot_lock",
                format!("cannot lock `{}`: {error}", path.display()),
            )
        };
        let options =
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).to_owned();
        let mut file = options.open(path).map_err(cannot_lock)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(already_running(&mut file)),
            Err(TryLockError::Error(error)) => return Err(cannot_lock(error)),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(cannot_lock)?;
        Ok(Self { _file: file })
    }
}

fn already_running(file: &mut File) -> CommandError {
    let mut pid = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    let holder = match read {
        Ok(_) if !pid.trim().is_empty() => format!(" (pid {})", pid.trim()),
        _ => String::new(),
    };
    CommandError::new(
        ExitStatus::Failure,
        "already_running",
        format!("a gateway is already running for this config{holder}"),
    )
    .hint("toolcrib status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let first = GatewayLock::acquire(&path).unwrap();
        let refused = GatewayLock::acquire(&path).unwrap_err();
        assert!(refused.message.contains(&format!("pid {}", std::process::id())), "{refused}");
        drop(first);
        GatewayLock::acquire(&path).unwrap();
    }
}
