//! Reads `audit` and the other audit keys.

use std::path::PathBuf;

use super::reader::TableReader;
use super::server::resolve_path;

/// Default of `audit-size`, in bytes.
const DEFAULT_SIZE: usize = 64 << 20;
/// Default of `audit-keep`.
const DEFAULT_KEEP: u32 = 4;

/// Settings of the audit file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSpec {
    /// File that records are appended to.
    pub file: PathBuf,
    /// True if calls that cannot be recorded are refused.
    pub required: bool,
    /// True if arguments are recorded.
    pub arguments: bool,
    /// Size at which the file is rotated, in bytes.
    pub size: u64,
    /// Number of rotated files to keep.
    pub keep: u32,
}

/// Reads the audit keys. Returns `None` if calls are not recorded.
pub(super) fn read(reader: &mut TableReader<'_>) -> Option<AuditSpec> {
    let written = reader.string("audit");
    let required = reader.boolean("audit-required");
    let arguments = reader.boolean("audit-arguments");
    let size = reader.size("audit-size");
    let keep = reader.count("audit-keep", 0);
    let dependent_keys = ["audit-required", "audit-arguments", "audit-size", "audit-keep"];
    if !reader.has("audit")
        && let Some(key) = dependent_keys.into_iter().find(|key| reader.has(key))
    {
        reader.error_at_value(key, format!("`{key}` requires `audit`"), "add `audit = \"FILE\"`");
    }
    Some(AuditSpec {
        file: resolve_path(reader, "audit", written?)?,
        required: required.unwrap_or(false),
        arguments: arguments.unwrap_or(false),
        size: size.unwrap_or(DEFAULT_SIZE) as u64,
        keep: keep.unwrap_or(DEFAULT_KEEP),
    })
}
