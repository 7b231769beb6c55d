//! The file with the approved tools of one server. Only its owner can read it, and it is replaced as a whole.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::fingerprint::Fingerprint;
use crate::protocol::json::object::{self, Object};

/// One approved tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApprovedTool {
    pub(super) fingerprint: Fingerprint,
    /// The pinned members of the definition.
    pub(super) definition: Bytes,
}

/// Approved tools by the server's own name.
pub(super) type ApprovedTools = BTreeMap<Arc<str>, ApprovedTool>;

/// Modification time and size, to detect a changed file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PinFileStamp(SystemTime, u64);

impl PinFileStamp {
    /// Returns the stamp of a file, or `None` if there is none.
    pub(super) fn read(file: &Path) -> Option<Self> {
        let metadata = fs::metadata(file).ok()?;
        Some(Self(metadata.modified().ok()?, metadata.len()))
    }
}

/// Reads the file. Returns `Ok(None)` if there is none.
pub(super) fn read(file: &Path) -> Result<Option<ApprovedTools>, String> {
    let text = match fs::read(file) {
        Ok(text) => Bytes::from(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let object = |raw: &Bytes| Object::parse(raw).map_err(|error| error.to_string());
    let root = object(&text)?;
    let mut tools = ApprovedTools::new();
    for (name, raw) in object(root.get("tools").ok_or("`tools` is missing")?)?.iter() {
        let tool = object(raw)?;
        let fingerprint = tool.get_string("sha256").and_then(|text| Fingerprint::parse(&text));
        let (Some(fingerprint), Some(definition)) = (fingerprint, tool.get("definition")) else {
            return Err(format!("the entry of `{name}` has no valid `sha256` and `definition`"));
        };
        tools.insert(name.into(), ApprovedTool { fingerprint, definition: definition.clone() });
    }
    Ok(Some(tools))
}

/// Replaces the file atomically: writes a temporary file next to it and renames that.
pub(super) fn write(file: &Path, tools: &ApprovedTools) -> io::Result<()> {
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
    let mut folder = fs::DirBuilder::new();
    private_folder(&mut folder);
    folder.recursive(true).create(file.parent().unwrap_or(Path::new(".")))?;
    let temporary = file.with_extension(format!("{:016x}.new", RandomState::new().hash_one(file)));
    let mut options = OpenOptions::new();
    private_file(options.write(true).create_new(true));
    let written = options.open(&temporary).and_then(|mut out| {
        out.write_all(&text)?;
        out.sync_all()
    });
    let written = written.and_then(|()| fs::rename(&temporary, file));
    if written.is_err() {
        // The write error is reported; a failed cleanup is not.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(unix)]
fn private_file(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

#[cfg(unix)]
fn private_folder(folder: &mut fs::DirBuilder) {
    use std::os::unix::fs::DirBuilderExt as _;
    folder.mode(0o700);
}

#[cfg(not(unix))]
fn private_file(_options: &mut OpenOptions) {}

#[cfg(not(unix))]
fn private_folder(_folder: &mut fs::DirBuilder) {}
