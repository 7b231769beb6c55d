//! Process groups on Unix.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, kill_process_group};

pub(super) use rustix::process::Signal;

use crate::last_words::Exit;

/// Makes the child the leader of a group of its own.
pub(super) fn own_group(command: &mut Command) {
    command.process_group(0);
}

/// Signals every process of the group that `leader` leads. A group that is empty already is what was wanted.
pub(super) fn signal_group(leader: u32, signal: Signal) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, signal);
    }
}

/// How a process ended.
pub(super) fn exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Status(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Status(-1),
    }
}

/// Bytes of memory that a process and its descendants hold.
#[cfg(target_os = "linux")]
pub(super) fn memory(root: u32) -> Option<u64> {
    use super::proc;
    let tree = proc::descendants(root).into_iter().filter_map(proc::memory).sum::<u64>();
    Some(proc::memory(root)? + tree)
}

/// Unknown here.
#[cfg(not(target_os = "linux"))]
pub(super) fn memory(_root: u32) -> Option<u64> {
    None
}
