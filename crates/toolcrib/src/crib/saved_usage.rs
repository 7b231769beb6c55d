//! The file with the usage of limits, which a process that takes over from this one continues.

use std::io;
use std::sync::Arc;

use super::Crib;
use crate::store::MemoryStore;
use crate::store::usage_file::{UsageFile, UsageFileHold};

/// The memory store of a crib, and the file that keeps its usage.
#[derive(Debug)]
pub(super) struct SavedUsageFile {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) file: UsageFile,
}

impl Crib {
    /// Saves the usage of limits, and writes the file no more until the returned hold is dropped: another process may continue from
    /// it meanwhile. Returns `None` if there is no [usage file](crate::CribBuilder::usage_file).
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    ///
    /// # Cancel safety
    /// Cancel safe. If the future is dropped, the file is written as before.
    pub async fn hold_usage_file(&self) -> io::Result<Option<UsageFileHold>> {
        let Some(saved) = &self.inner.saved_usage else { return Ok(None) };
        saved.file.hold(|| saved.memory.usage_snapshot()).await.map(Some)
    }
}
