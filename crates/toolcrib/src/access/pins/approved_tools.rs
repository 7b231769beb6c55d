//! The approved tools of one server as they are stored.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::fingerprint::{Fingerprint, pinned_members};
use crate::model::listing::{ListedItem, Listing};
use crate::protocol::json::object::{self, Object};
use crate::util::maps::collect_map;

/// One approved tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApprovedTool {
    pub(super) fingerprint: Fingerprint,
    /// The pinned members of the definition.
    pub(super) definition: Bytes,
}

/// Approved tools by the server's own name.
pub(super) type ApprovedTools = BTreeMap<Arc<str>, ApprovedTool>;

/// Modification time and size of the file behind a store, to detect a changed file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PinFileStamp(SystemTime, u64);

impl PinFileStamp {
    /// Returns the stamp of a file, or `None` if there is none.
    pub(super) fn read(file: &Path) -> Option<Self> {
        let metadata = fs::metadata(file).ok()?;
        Some(Self(metadata.modified().ok()?, metadata.len()))
    }
}

/// Returns the tools of the first listing of a server, which count as approved.
pub(super) fn first_seen(listing: &Listing) -> ApprovedTools {
    let approved = |tool: &ListedItem| {
        let fingerprint = Fingerprint::from_definition(&tool.definition);
        let definition = pinned_members(&tool.definition);
        (tool.name.clone(), ApprovedTool { fingerprint, definition })
    };
    // In reverse: of two tools with the same name the first counts.
    collect_map(listing.tools.iter().rev().map(approved))
}

/// Parses the stored form.
pub(super) fn parse(stored: &Bytes) -> Result<ApprovedTools, String> {
    let object = |raw: &Bytes| Object::parse(raw).map_err(|error| error.to_string());
    let root = object(stored)?;
    let mut tools = ApprovedTools::new();
    for (name, raw) in object(root.get("tools").ok_or("`tools` is missing")?)?.iter() {
        let tool = object(raw)?;
        let fingerprint = tool.get_string("sha256").and_then(|text| Fingerprint::parse(&text));
        let (Some(fingerprint), Some(definition)) = (fingerprint, tool.get("definition")) else {
            return Err(format!("the entry of `{name}` has no valid `sha256` and `definition`"));
        };
        tools.insert(name.into(), ApprovedTool { fingerprint, definition: definition.clone() });
    }
    Ok(tools)
}

/// Returns the stored form.
pub(super) fn encode(tools: &ApprovedTools) -> Bytes {
    let mut text = Vec::from(b"{\"tools\":{");
    for (index, (name, tool)) in tools.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.push(b'\n');
        object::write_string(&mut text, name);
        text.extend_from_slice(format!(":{{\"sha256\":\"{}\",\"definition\":", tool.fingerprint).as_bytes());
        text.extend_from_slice(&tool.definition);
        text.push(b'}');
    }
    text.extend_from_slice(b"\n}}\n");
    text.into()
}
