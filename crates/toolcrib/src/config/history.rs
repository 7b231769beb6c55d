//! Reads `history`.

use std::time::Duration;

use super::reader::TableReader;

/// Default of `history.size`, in bytes.
const DEFAULT_SIZE: usize = 64 << 20;
/// Default of `history.age`.
const DEFAULT_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Smallest `history.size`, in bytes.
const MIN_SIZE: usize = 1 << 20;

/// Settings of the history of calls and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistorySpec {
    /// True if calls and events are recorded.
    pub enabled: bool,
    /// Size of all files, in bytes.
    pub size: u64,
    /// Age at which records are removed.
    pub age: Duration,
}

impl Default for HistorySpec {
    fn default() -> Self {
        Self { enabled: true, size: DEFAULT_SIZE as u64, age: DEFAULT_AGE }
    }
}

/// Reads the section.
pub(super) fn read(mut reader: TableReader<'_>) -> HistorySpec {
    let defaults = HistorySpec::default();
    let size = reader.size("size");
    if size.is_some_and(|size| size < MIN_SIZE) {
        reader.error_at_value("size", "`history.size` is too small", "write at least `size = \"1MiB\"`");
    }
    let spec = HistorySpec {
        enabled: reader.boolean("enabled").unwrap_or(defaults.enabled),
        size: size.unwrap_or(DEFAULT_SIZE).max(MIN_SIZE) as u64,
        age: reader.duration("age").unwrap_or(defaults.age),
    };
    reader.finish();
    spec
}
