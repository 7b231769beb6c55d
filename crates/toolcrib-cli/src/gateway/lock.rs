//! The lock file that allows one gateway per config.
//!
//! The operating system releases the lock when its holder dies, so holding it proves that a leftover socket file is stale.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::time::timeout;
use toolcrib::util::files::create_private_folder;

use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::paths::{Paths, check_socket_dir};

/// The second line of the lock file of a gateway that `toolcrib stdio` started.
const AUTO_STARTED: &str = "auto-started";

/// The code of the error for a lock file that cannot be opened.
pub(crate) const CANNOT_LOCK: &str = "cannot_lock";

/// A lock held for the life of the gateway. The file is never removed, or two gateways could lock two files of one name.
#[derive(Debug)]
pub(super) struct GatewayLock {
    _file: File,
}

/// A lock held while a gateway is started or replaced, so that one process at a time does this.
#[derive(Debug)]
pub(crate) struct StartLock {
    _file: File,
}

impl StartLock {
    /// Takes the lock. Waits for a process that is starting a gateway, within the time limit.
    pub(crate) async fn acquire(paths: &Paths, limit: Duration) -> Result<Self, CommandError> {
        let path = paths.start_lock_path();
        let failed = |error: io::Error| cannot_lock(&path, &error);
        create_private_folder(&paths.gateways_dir()).map_err(failed)?;
        let file = open_own_file(&path, true).map_err(failed)?;
        if !lock_within(&file, LockKind::Exclusive, limit).await.map_err(failed)? {
            let message = "another process is starting a gateway, and has not finished";
            return Err(
                CommandError::new(ExitStatus::Failure, "starting", message).hint("repeat the command")
            );
        }
        Ok(Self { _file: file })
    }
}

/// The gateway that holds a lock, or held it last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockHolder {
    /// Its process id; absent while it starts.
    pub(crate) pid: Option<u32>,
    /// True if `toolcrib stdio` started it.
    pub(crate) auto_started: bool,
}

impl GatewayLock {
    /// Takes the lock; the error names the process that holds it. With `patience`, waits that long for a gateway that is
    /// stopping.
    pub(super) async fn acquire(
        path: &Path,
        auto_started: bool,
        patience: Option<Duration>,
    ) -> Result<Self, CommandError> {
        let file = open_own_file(path, true).map_err(|error| cannot_lock(path, &error))?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => match patience {
                Some(patience) => lock_within(&file, LockKind::Exclusive, patience).await,
                None => Ok(false),
            },
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(true),
        };
        if !locked.map_err(|error| cannot_lock(path, &error))? {
            return Err(already_running(path));
        }
        let mut text = format!("{}\n", std::process::id());
        if auto_started {
            text += AUTO_STARTED;
            text += "\n";
        }
        let mut file = file;
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|error| cannot_lock(path, &error))?;
        Ok(Self { _file: file })
    }
}

impl LockHolder {
    /// Reads the lock file: the gateway that runs, or ran last. `None` if there never was one.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        Self::read_from(open_own_file(path, false).ok()?)
    }

    fn read_from(mut file: File) -> Option<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let mut lines = text.lines();
        let pid = lines.next().and_then(|line| line.trim().parse().ok());
        Some(Self { pid, auto_started: lines.next() == Some(AUTO_STARTED) })
    }

    /// Returns the gateway that holds the lock now.
    pub(crate) fn find(path: &Path) -> Option<Self> {
        let file = open_own_file(path, false).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Self::read_from(file),
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }
}

/// Waits until no gateway holds the lock. Returns whether that happened within the time limit.
pub(crate) async fn wait_until_released(path: &Path, limit: Duration) -> io::Result<bool> {
    match open_own_file(path, false) {
        Ok(file) => lock_within(&file, LockKind::Shared, limit).await,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Kinds of a file lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockKind {
    Exclusive,
    Shared,
}

/// Locks a file, and returns whether that succeeded within the time limit. The lock belongs to `file`.
async fn lock_within(file: &File, kind: LockKind, limit: Duration) -> io::Result<bool> {
    let same_file = file.try_clone()?;
    let locking = tokio::task::spawn_blocking(move || match kind {
        LockKind::Exclusive => same_file.lock(),
        LockKind::Shared => same_file.lock_shared(),
    });
    match timeout(limit, locking).await {
        Ok(locked) => locked.map_err(io::Error::other)?.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Opens a lock file. Fails if the folder or the file is not safe from other users, who could write any process id into it.
fn open_own_file(path: &Path, create: bool) -> io::Result<File> {
    check_socket_dir(path.parent().unwrap_or(path)).map_err(|error| io::Error::other(error.message))?;
    let mut options = File::options();
    options.read(true).write(true).create(create).truncate(false).mode(0o600);
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    let file = options.custom_flags(no_follow).open(path)?;
    let metadata = file.metadata()?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if is_own && metadata.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "other users can write to the file"))
    }
}

fn cannot_lock(path: &Path, error: &io::Error) -> CommandError {
    let message = format!("cannot lock `{}`: {error}", path.display());
    CommandError::new(ExitStatus::Failure, CANNOT_LOCK, message)
}

pub(super) fn already_running(path: &Path) -> CommandError {
    let pid = LockHolder::read(path).and_then(|holder| holder.pid);
    let holder = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    CommandError::new(
        ExitStatus::Failure,
        "already_running",
        format!("a gateway is already running for this config{holder}"),
    )
    .hint("`toolcrib status` shows it, `toolcrib serve --replace` takes over from it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn second_lock_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        assert_eq!(LockHolder::find(&path), None);
        let first = GatewayLock::acquire(&path, true, None).await.unwrap();
        let refused = GatewayLock::acquire(&path, false, None).await.unwrap_err();
        assert!(refused.message.contains(&format!("pid {}", std::process::id())), "{refused}");
        let holder = LockHolder { pid: Some(std::process::id()), auto_started: true };
        assert_eq!(LockHolder::find(&path), Some(holder.clone()));
        assert!(!wait_until_released(&path, Duration::ZERO).await.unwrap());
        drop(first);
        assert!(wait_until_released(&path, Duration::from_secs(60)).await.unwrap());
        assert_eq!((LockHolder::find(&path), LockHolder::read(&path)), (None, Some(holder)));
        GatewayLock::acquire(&path, false, Some(Duration::from_secs(60))).await.unwrap();
        assert!(!LockHolder::read(&path).unwrap().auto_started);
    }
}
