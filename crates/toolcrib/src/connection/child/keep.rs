//! Who watches over one tree of processes, from before it is started until nothing is left of it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use super::SpawnError;
use super::os::{self, Entry};
use crate::last_words::Exit;

/// What is told of a tree, and to whom. When it is dropped, the tree counts as gone.
pub(super) struct Keeper {
    pub(super) tree: String,
    pub(super) entry: Option<Entry>,
    /// Who waits for the server's own process.
    pub(super) waiting: Option<oneshot::Sender<Result<u32, SpawnError>>>,
    pub(super) exit: watch::Sender<Option<Exit>>,
    pub(super) tasks: TaskTracker,
    pub(super) _gone: DropGuard,
}

impl Keeper {
    /// The server runs; `false` if nobody waits for it any more.
    pub(super) fn started(&mut self, pid: u32, shim: Option<u32>) -> bool {
        if let Some(entry) = &self.entry {
            entry.started(shim, pid);
        }
        self.waiting.take().is_some_and(|waiting| waiting.send(Ok(pid)).is_ok())
    }

    /// The server could not be started.
    pub(super) fn failed(&mut self, why: SpawnError) {
        if let Some(waiting) = self.waiting.take() {
            // Whoever gave up waiting does not need to know.
            let _ = waiting.send(Err(why));
        }
    }

    /// The server is no more. What is told first counts.
    pub(super) fn ended(&self, how: Exit) {
        if self.exit.borrow().is_none() {
            self.exit.send_replace(Some(how));
        }
    }

    /// Ends what can only be found by the name of the tree. Looking at all processes takes a while.
    pub(super) async fn sweep(&self) {
        let tree = self.tree.clone();
        // It fails only when everything ends.
        let _ = self.tasks.spawn_blocking(move || os::sweep(tree)).await;
    }

    /// Nothing of the tree is left.
    pub(super) fn close(self) {
        if let Some(entry) = self.entry {
            entry.close();
        }
    }

    /// Watches over a server that is our own child.
    pub(super) async fn keep(mut self, mut child: Child) {
        let pid = child.id().unwrap_or_default();
        if !self.started(pid, None) {
            signal_group(pid, Signal::KILL);
        }
        let status = child.wait().await;
        // Whatever the leader started and left behind in its group ends with it.
        signal_group(pid, Signal::KILL);
        self.ended(status.map_or(Exit::Status(-1), exit));
        self.sweep().await;
        self.close();
    }
}

/// Signals every process of the group that `leader` leads. A group that is empty already is what was wanted.
pub(super) fn signal_group(leader: u32, signal: Signal) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, signal);
    }
}

fn exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Status(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Status(-1),
    }
}
