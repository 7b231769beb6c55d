//! A gateway of the same config in another process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use super::lock::{LockHolder, wait_until_released};
use crate::client;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::paths::Paths;

/// Time that a gateway gets to stop its servers after its calls have ended.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(20);

/// A gateway that runs in another process.
#[derive(Debug, Clone)]
pub(crate) struct OtherGateway {
    pub(crate) pid: u32,
    /// True if `toolcrib stdio` started it.
    pub(crate) auto_started: bool,
    lock: PathBuf,
}

impl OtherGateway {
    /// Finds the gateway of this config without connecting to it, which could start one.
    ///
    /// # Errors
    /// If a gateway is just starting.
    pub(crate) fn find(paths: &Paths) -> Result<Option<Self>, CommandError> {
        for lock in lock_paths(paths) {
            let Some(holder) = LockHolder::find(&lock) else { continue };
            let Some(pid) = holder.pid else {
                let message = "a gateway is just starting";
                return Err(
                    CommandError::new(ExitStatus::Failure, "starting", message).hint("repeat the command")
                );
            };
            return Ok(Some(Self { pid, auto_started: holder.auto_started, lock }));
        }
        Ok(None)
    }

    /// Returns whether the gateway that runs, or ran last, was started by `toolcrib stdio`.
    pub(crate) fn was_auto_started(paths: &Paths) -> bool {
        // The last one is that of the gateway which recorded its address.
        let holder = lock_paths(paths).last().and_then(|lock| LockHolder::read(&lock));
        holder.is_some_and(|holder| holder.auto_started)
    }

    /// Returns whether it holds the lock at this path.
    pub(super) fn is_at(&self, lock: &Path) -> bool {
        self.lock == lock
    }

    /// Asks it to stop and waits until it is gone. It waits for calls in flight for `drain`.
    ///
    /// # Errors
    /// If it cannot be signalled, or does not stop in time.
    pub(crate) async fn stop(&self, drain: Duration) -> Result<(), CommandError> {
        if !self.is_confirmed().await {
            let error = self.stop_error(ExitStatus::Failure, "its lock file may be outdated");
            return Err(error.hint(format!("ps -p {0}, then kill {0} if that is the gateway", self.pid)));
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let process = pid.and_then(open_process);
        let signalled = pid.map_or(Err(Errno::SRCH), |pid| kill_process(pid, Signal::TERM));
        match signalled {
            // It has ended meanwhile.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => {
                return Err(self.stop_error(ExitStatus::Failure, &io::Error::from(error).to_string()));
            }
        }
        match wait_until_released(&self.lock, drain + STOP_GRACE).await {
            Ok(true) => {
                if let Some(process) = process {
                    let _ = timeout(STOP_GRACE, wait_until_ended(process)).await;
                }
                Ok(())
            }
            Ok(false) => {
                let error = self.stop_error(ExitStatus::TimedOut, "it is still waiting for calls or servers");
                Err(error
                    .hint("run `toolcrib stop-gateway` again: the second time it does not wait for calls"))
            }
            Err(error) => Err(self.stop_error(ExitStatus::Failure, &error.to_string())),
        }
    }

    /// Returns whether the system confirms that the process in the lock file is the gateway: it listens at the socket beside
    /// the file, or holds the lock. A gateway that is stopping has closed its socket, and that of a service belongs to the
    /// service manager.
    async fn is_confirmed(&self) -> bool {
        let listener = client::connect_at(&self.lock.with_extension("sock")).await;
        let peer = listener.ok().flatten().and_then(|stream| stream.peer_cred().ok());
        let peer_pid = peer.and_then(|peer| peer.pid()).and_then(|pid| u32::try_from(pid).ok());
        peer_pid == Some(self.pid) || holds_lock(self.pid, &self.lock)
    }

    fn stop_error(&self, exit: ExitStatus, reason: &str) -> CommandError {
        let message = format!("cannot stop the gateway (pid {}): {reason}", self.pid);
        CommandError::new(exit, "cannot_stop", message)
    }
}

/// Returns the lock files beside the sockets where the gateway may listen.
fn lock_paths(paths: &Paths) -> impl Iterator<Item = PathBuf> {
    paths.socket_candidates().into_iter().map(|socket| socket.with_extension("lock"))
}

/// Returns whether a process holds the lock of a file. Only known on Linux.
#[cfg(target_os = "linux")]
fn holds_lock(pid: u32, lock: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = std::fs::symlink_metadata(lock) else { return false };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let holder = pid.to_string();
    let inode = format!(":{}", metadata.ino());
    // For example `1: FLOCK  ADVISORY  WRITE 9417 fe:00:10658164 0 EOF`.
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields[..], [_, "FLOCK", _, "WRITE", pid, file, ..] if pid == holder && file.ends_with(&inode))
    })
}

#[cfg(not(target_os = "linux"))]
fn holds_lock(_pid: u32, _lock: &Path) -> bool {
    false
}

/// Opens a process to wait for its end, which follows the release of its lock. Only possible on Linux.
#[cfg(target_os = "linux")]
fn open_process(pid: Pid) -> Option<OwnedFd> {
    use rustix::process::{PidfdFlags, pidfd_open};
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_process(_pid: Pid) -> Option<OwnedFd> {
    None
}

/// Waits until a process has ended.
async fn wait_until_ended(process: OwnedFd) {
    let wait = move || poll(&mut [PollFd::new(&process, PollFlags::IN)], None);
    let _ = tokio::task::spawn_blocking(wait).await;
}
