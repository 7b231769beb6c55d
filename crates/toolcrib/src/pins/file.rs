//! What was approved of one server's tools, on disk: a file that only its owner can read, replaced whole.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::fingerprint::Fingerprint;
use crate::wire::object::{self, Object};

/// One tool as it was approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Approved {
    pub(super) print: Fingerprint,
    /// The text behind it.
    pub(super) definition: Bytes,
}

/// Every approved tool by the server's own name.
pub(super) type Tools = BTreeMap<Arc<str>, Approved>;

/// Tells one state of the file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(SystemTime, u64);

impl Stamp {
    /// `None` if there is no file.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let found = fs::metadata(file).ok()?;
        Some(Self(found.modified().ok()?, found.len()))
    }
}

/// Reads the file; `Ok(None)` if there is none.
pub(super) fn read(file: &Path) -> Result<Option<Tools>, String> {
    let text = match fs::read(file) {
        Ok(text) => Bytes::from(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let object = |raw: &Bytes| Object::parse(raw).map_err(|bad| bad.to_string());
    let whole = object(&text)?;
    let mut tools = Tools::new();
    for (name, raw) in object(whole.get("tools").ok_or("`tools` is missing")?)?.iter() {
        let tool = object(raw)?;
        let print = tool.string("sha256").and_then(|text| Fingerprint::read(&text));
        let (Some(print), Some(definition)) = (print, tool.get("definition")) else {
            return Err(format!("what is said of `{name}` cannot be read"));
        };
        tools.insert(name.into(), Approved { print, definition: definition.clone() });
    }
    Ok(Some(tools))
}

/// Writes beside the file and renames, so that a reader sees the old one or the new one, never half of it.
pub(super) fn write(file: &Path, tools: &Tools) -> io::Result<()> {
    let mut text = Vec::from(b"{\"tools\":{");
    for (at, (name, Approved { print, definition })) in tools.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.push(b'\n');
        object::write_string(&mut text, name);
        text.extend_from_slice(format!(":{{\"sha256\":\"{print}\",\"definition\":").as_bytes());
        text.extend_from_slice(definition);
        text.push(b'}');
    }
    text.extend_from_slice(b"\n}}\n");
    let mut folder = fs::DirBuilder::new();
    private_folder(&mut folder);
    folder.recursive(true).create(file.parent().unwrap_or(Path::new(".")))?;
    let beside = file.with_extension(format!("{:016x}.new", RandomState::new().hash_one(file)));
    let mut options = OpenOptions::new();
    private_file(options.write(true).create_new(true));
    let written = options.open(&beside).and_then(|mut out| {
        out.write_all(&text)?;
        out.sync_all()
    });
    let written = written.and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        // What could not become the file is of no use to anybody.
        let _ = fs::remove_file(&beside);
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
