//! `audit` and the keys that begin with it: whether and where calls are recorded.

use std::path::PathBuf;

use super::reader::Reader;
use super::server::path_below;

/// Bytes of one file unless the config says otherwise.
const SIZE: usize = 64 << 20;
/// Older files that are kept unless the config says otherwise.
const KEEP: u32 = 4;

/// How calls are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSpec {
    /// The file that lines are added to.
    pub file: PathBuf,
    /// Whether no call is made that could not be recorded.
    pub required: bool,
    /// Whether arguments are recorded too.
    pub arguments: bool,
    /// How large the file may grow before another one is begun.
    pub size: u64,
    /// How many older files are kept.
    pub keep: u32,
}

/// Reads the keys of the file as a whole.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<AuditSpec> {
    let written = reader.string("audit");
    let required = reader.boolean("audit-required");
    let arguments = reader.boolean("audit-arguments");
    let size = reader.size("audit-size");
    let keep = reader.count("audit-keep", 0);
    let more = ["audit-required", "audit-arguments", "audit-size", "audit-keep"];
    if !reader.has("audit")
        && let Some(key) = more.into_iter().find(|key| reader.has(key))
    {
        let hint = "write `audit = \"FILE\"` above it";
        reader.wrong_value(key, format!("`{key}` means nothing without `audit`"), hint);
    }
    Some(AuditSpec {
        file: path_below(reader, "audit", written?)?,
        required: required.unwrap_or(false),
        arguments: arguments.unwrap_or(false),
        size: size.unwrap_or(SIZE) as u64,
        keep: keep.unwrap_or(KEEP),
    })
}
