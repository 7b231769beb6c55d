//! Stand-ins for systems without `/proc`: no shim and no journal. A server is its process group or job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Writes nothing on this platform.
#[derive(Debug)]
pub(super) struct Journal;

/// Writes nothing on this platform.
#[derive(Debug)]
pub(super) struct JournalEntry;

impl Journal {
    pub(super) fn new(_folder: PathBuf) -> Self {
        Self
    }

    pub(super) fn kill_orphans(&self) {}

    pub(super) fn create_entry(&self, _tree: &str) -> JournalEntry {
        JournalEntry
    }
}

/// A process that was seen in a tree; none is on this platform.
#[derive(Debug, Clone, Copy)]
pub(super) enum SeenProcess {}

impl JournalEntry {
    pub(super) fn record_processes(&self, _shim: Option<u32>, _server: u32) {}

    pub(super) fn remove(self) {}
}

/// Does nothing on this platform.
pub(super) fn kill_tree(_tree_id: String, _seen: Vec<SeenProcess>) -> bool {
    true
}

/// Whether [`tree_memory`] can tell.
pub(crate) const MEASURES_MEMORY: bool = false;

/// Always `None` on this platform.
pub(super) fn tree_memory(_root: u32, _include_root: bool) -> Option<u64> {
    None
}

/// Always `None` on this platform.
pub(super) fn tree_cpu_time(_root: u32, _include_root: bool) -> Option<Duration> {
    None
}

/// Always `None`: this platform has no shims.
#[must_use = "a process that was started as a shim must end with this exit code"]
pub fn run_shim() -> Option<ExitCode> {
    None
}

/// Always `None`: this platform has no shims.
pub(crate) fn own_program() -> Option<PathBuf> {
    None
}

/// Always `false`: this platform has no shims.
pub(crate) fn is_unprepared_shim(_program: &Path) -> bool {
    false
}
