//! Tracks one process tree from before its start until no process of it is left.

use tokio::process::Child;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use super::os::{self, JournalEntry, SeenProcess};
use super::platform::{ProcessGroup, to_process_exit};
use super::{SpawnError, StopSignal};
use crate::model::exit_report::ProcessExit;

/// Seen processes that are kept before those that have ended are dropped.
#[cfg(target_os = "linux")]
const MAX_SEEN: usize = 256;

/// The processes that a tree begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartedTree {
    /// The pid of the server's main process.
    pub(super) server: u32,
    /// The pid of its parent, if that is a shim.
    pub(super) shim: Option<u32>,
}

/// Reports the start, failure and exit of a process tree. The tree counts as ended when the tracker is dropped.
pub(super) struct TreeTracker {
    pub(super) tree_id: String,
    pub(super) journal_entry: Option<JournalEntry>,
    pub(super) started_tx: Option<oneshot::Sender<Result<StartedTree, SpawnError>>>,
    pub(super) exit_tx: watch::Sender<Option<ProcessExit>>,
    pub(super) tasks: TaskTracker,
    /// Processes that were seen in other sessions.
    pub(super) seen: Vec<SeenProcess>,
    /// True if processes of the tree could not be killed. The journal entry then stays for the next gateway.
    pub(super) has_survivors: bool,
    pub(super) _tree_ended: DropGuard,
}

impl TreeTracker {
    /// Records that the server runs. Returns `false` if the future that spawned it was dropped.
    pub(super) fn report_started(&mut self, tree: StartedTree) -> bool {
        if let Some(entry) = &self.journal_entry {
            entry.record_processes(tree.shim, tree.server);
        }
        self.started_tx.take().is_some_and(|started| started.send(Ok(tree)).is_ok())
    }

    /// Records that the server could not be started.
    pub(super) fn report_failure(&mut self, error: SpawnError) {
        if let Some(started) = self.started_tx.take() {
            // The future that spawned the server may have been dropped.
            let _ = started.send(Err(error));
        }
    }

    /// Records how the server ended. Only the first report counts.
    pub(super) fn report_exit(&self, exit: ProcessExit) {
        if self.exit_tx.borrow().is_none() {
            self.exit_tx.send_replace(Some(exit));
        }
    }

    /// Records a process of the tree that is not in the server's session, so that it is found after the shim was killed.
    #[cfg(target_os = "linux")]
    pub(super) fn record_seen(&mut self, pid: u32) {
        let Some(process) = SeenProcess::from_pid(pid) else { return };
        self.seen.push(process);
        if self.seen.len() > MAX_SEEN {
            self.seen.retain(|process| process.identity.is_alive());
            if let Some(entry) = &self.journal_entry {
                entry.replace_seen(&self.seen);
            }
        } else if let Some(entry) = &self.journal_entry {
            entry.record_seen(&process);
        }
    }

    /// Kills processes that can only be found by the id of the tree, or because they were seen in it. This reads all
    /// processes and takes a while.
    pub(super) async fn kill_orphans(&mut self) {
        let tree_id = self.tree_id.clone();
        let seen = self.seen.clone();
        let killed = self.tasks.spawn_blocking(move || os::kill_tree(tree_id, seen)).await;
        // Fails only when the runtime shuts down.
        self.has_survivors = !killed.unwrap_or(false);
    }

    /// Removes the journal entry once no process of the tree is left.
    pub(super) fn finish(self) {
        if let Some(entry) = self.journal_entry.filter(|_| !self.has_survivors) {
            entry.remove();
        }
    }

    /// Watches a server that was started without a shim until its tree has ended.
    pub(super) async fn watch_child(mut self, mut child: Child, group: &ProcessGroup) {
        let server = child.id().unwrap_or_default();
        if !self.report_started(StartedTree { server, shim: None }) {
            group.signal(StopSignal::Kill);
        }
        let status = child.wait().await;
        // Kills descendants that are still in the group.
        group.signal(StopSignal::Kill);
        self.report_exit(status.map_or(ProcessExit::Status(-1), to_process_exit));
        self.kill_orphans().await;
        self.finish();
    }
}
