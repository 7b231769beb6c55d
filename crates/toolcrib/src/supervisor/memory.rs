//! The last known listing of each server, on disk, so that a sleeping server still has something to show.
//!
//! One file per server and spec digest. A file that cannot be read or written costs a listing, never a call.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::connection::listing::{Listed, Listing};
use crate::sharing::SharingKey;
use crate::spec::ServerSpec;
use crate::wire::kind::Kind;
use crate::wire::object::{self, Object};
use crate::wire::revision::Revision;

/// What is known of a server that does not run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Known {
    /// The revision it spoke.
    pub(crate) revision: Revision,
    /// What it said it is.
    pub(crate) server_info: Option<Bytes>,
    /// What it offered.
    pub(crate) listing: Arc<Listing>,
}

/// Where one server's listing is remembered; nowhere if there is no directory or the server lives in this process.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    file: Option<PathBuf>,
    shelf: Arc<Mutex<Shelf>>,
}

/// What all instances of a server together are known for.
#[derive(Debug, Default)]
struct Shelf {
    known: Option<Known>,
    /// Whether one of them has said so since we started.
    confirmed: bool,
    /// What has become of it since, and whose instance says so.
    other: Option<(SharingKey, Known)>,
}

impl Shelf {
    fn now(&self) -> Option<&Known> {
        self.other.as_ref().map(|(_, known)| known).or(self.known.as_ref())
    }

    fn leave(&mut self, key: &SharingKey) -> bool {
        self.other.take_if(|(whose, _)| whose == key).is_some()
    }
}

impl Memory {
    pub(crate) fn of(spec: &ServerSpec, dir: Option<&Path>) -> Self {
        let file = dir
            .zip(spec.digest())
            .map(|(dir, digest)| dir.join(format!("{}-{}.json", spec.id, digest.as_str())));
        Self { file, shelf: Arc::default() }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server is known for; kept in mind once it was recalled.
    pub(crate) fn known(&self) -> Option<Known> {
        let mut shelf = self.shelf();
        if shelf.known.is_none() {
            shelf.known = self.recall();
        }
        shelf.now().cloned()
    }

    /// Hears what the instance of somebody offers that offered `own` before; what the server is known for now, if that
    /// is news. What a server offers may depend on its client, so one instance that offers less, or something else than
    /// the first, changes nothing by starting: only by saying that its offer is another one now, only what is another
    /// one, and only as long as it lives.
    pub(crate) fn hear(
        &self,
        key: &SharingKey,
        known: Known,
        own: Option<&Known>,
        is_change: bool,
    ) -> Option<Known> {
        let mut shelf = self.shelf();
        let before = shelf.now().cloned();
        match (&before, own) {
            (Some(now), Some(own)) if is_change && *key != SharingKey::Shared => {
                let listing = Arc::new(now.listing.changed(&own.listing, &known.listing));
                shelf.other = Some((key.clone(), Known { listing, ..known }));
            }
            _ => {
                shelf.leave(key);
                let base = shelf.known.as_ref();
                let stays = *key != SharingKey::Shared
                    && base.is_some_and(|base| shelf.confirmed || base.listing.covers(&known.listing));
                if !stays {
                    (shelf.known, shelf.confirmed) = (Some(known), true);
                }
            }
        }
        shelf.now().filter(|now| before.as_ref() != Some(now)).cloned()
    }

    /// The instance of somebody has ended; whether the server is known for something else without it.
    pub(crate) fn leave(&self, key: &SharingKey) -> bool {
        self.shelf().leave(key)
    }

    /// Nothing if the file is not whole: one that was written before there were lists other than that of tools counts
    /// as none.
    pub(crate) fn recall(&self) -> Option<Known> {
        let text = Bytes::from(std::fs::read(self.file.as_ref()?).ok()?);
        let known = Object::parse(&text).ok()?;
        let list = |kind: Kind| Listed::read_all(kind, known.get(kind.member())?).ok();
        let listing = Listing {
            tools: list(Kind::Tools)?,
            prompts: list(Kind::Prompts)?,
            resources: list(Kind::Resources)?,
            templates: list(Kind::Templates)?,
            capabilities: known.get("capabilities")?.clone(),
            instructions: known.string("instructions").map(std::borrow::Cow::into_owned),
            ..Listing::default()
        };
        let (revision, server_info) =
            (known.string("revision")?.parse().ok()?, known.get("serverInfo").cloned());
        Some(Known { revision, server_info, listing: Arc::new(listing) })
    }

    /// Writes beside the file and renames, so that a reader sees the old listing or the new one, never half of it.
    pub(crate) fn remember(&self, known: &Known) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let dir = file.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir)?;
        let mut text = Object::default();
        text.set("revision", object::string(known.revision.as_str()));
        if let Some(info) = &known.server_info {
            text.set("serverInfo", info.clone());
        }
        text.set("capabilities", known.listing.capabilities.clone());
        if let Some(instructions) = &known.listing.instructions {
            text.set("instructions", object::string(instructions));
        }
        for kind in Kind::ALL {
            let list: Vec<&[u8]> = known.listing.of(kind).iter().map(|listed| &*listed.definition).collect();
            text.set(kind.member(), [b"[", &*list.join(&b","[..]), b"]"].concat());
        }
        let beside = file.with_extension(format!("{:016x}.new", RandomState::new().hash_one(file)));
        let written = std::fs::File::create(&beside)
            .and_then(|mut out| out.write_all(&text.to_bytes()))
            .and_then(|()| std::fs::rename(&beside, file));
        if written.is_err() {
            // What could not become the file is of no use to anybody.
            let _ = std::fs::remove_file(&beside);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{CommandSpec, ServerSpec};

    fn known() -> Known {
        let listed =
            |kind, text: &'static str| Listed::read(kind, Bytes::from_static(text.as_bytes())).unwrap();
        let tool = |text| listed(Kind::Tools, text);
        let listing = Arc::new(Listing {
            tools: vec![tool(r#"{"name":"b","n":1.10}"#), tool(r#"{"x":[ ],"name":"a"}"#)],
            prompts: vec![listed(Kind::Prompts, r#"{"name":"p", "arguments":[]}"#)],
            resources: vec![listed(Kind::Resources, r#"{"uri":"file:///x","name":"x"}"#)],
            templates: vec![listed(Kind::Templates, r#"{"uriTemplate":"file:///{+x}","name":"x"}"#)],
            capabilities: Bytes::from_static(br#"{"tools":{ },"resources":{"subscribe":true}}"#),
            instructions: Some("say \"please\"\n".into()),
            ..Listing::default()
        });
        Known {
            revision: Revision::V2025_06_18,
            server_info: Some(Bytes::from_static(b"{\"v\":1e2}")),
            listing,
        }
    }

    #[test]
    fn what_is_remembered_is_recalled_byte_for_byte() {
        let dir = tempfile::tempdir().unwrap();
        let spec = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x"));
        let memory = Memory::of(&spec, Some(&dir.path().join("listings")));
        assert_eq!(memory.recall(), None);
        memory.remember(&known()).unwrap();
        assert_eq!(memory.recall(), Some(known()));
        let changed = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("y"));
        assert_eq!(Memory::of(&changed, Some(&dir.path().join("listings"))).recall(), None);
    }

    fn offering(tools: &[&str], prompts: &[&str]) -> Known {
        let listed = |names: &[&str]| {
            names.iter().map(|name| Listed { name: (*name).into(), definition: Bytes::new() }).collect()
        };
        let listing = Listing { tools: listed(tools), prompts: listed(prompts), ..Listing::default() };
        Known { revision: Revision::V2025_06_18, server_info: None, listing: Arc::new(listing) }
    }

    fn of(number: u64) -> SharingKey {
        SharingKey::Client { number, declared: Bytes::new() }
    }

    #[test]
    fn one_instance_changes_what_a_server_is_known_for_only_by_saying_so_and_while_it_lives() {
        let spec = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x"));
        let memory = Memory::of(&spec, None);
        let first = offering(&["a", "b"], &["p"]);
        assert_eq!(memory.hear(&of(1), first.clone(), None, false), Some(first.clone()));
        // Others that start with something else to offer, or with less.
        let less = offering(&["a"], &["p"]);
        assert_eq!(memory.hear(&of(2), less.clone(), Some(&first), false), None);
        assert_eq!(memory.hear(&of(3), offering(&["c"], &[]), Some(&first), false), None);
        // One of them says that its prompts are others now, which says nothing about its tools.
        let more = offering(&["a"], &["p", "q"]);
        let changed = offering(&["a", "b"], &["p", "q"]);
        assert_eq!(memory.hear(&of(2), more.clone(), Some(&less), true), Some(changed.clone()));
        assert_eq!(memory.hear(&of(2), more, Some(&less), true), None);
        assert!(!memory.leave(&of(1)) && memory.known() == Some(changed));
        assert!(memory.leave(&of(2)) && memory.known() == Some(first));
    }

    #[test]
    fn what_was_remembered_gives_way_to_what_offers_more() {
        let dir = tempfile::tempdir().unwrap();
        let spec = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x"));
        Memory::of(&spec, Some(dir.path())).remember(&known()).unwrap();
        let memory = Memory::of(&spec, Some(dir.path()));
        assert_eq!(memory.known(), Some(known()));
        assert_eq!(memory.hear(&of(1), offering(&[], &[]), None, false), None);
        assert!(memory.hear(&of(1), offering(&["new"], &[]), None, false).is_some());
    }

    /// What was written before there were lists other than that of tools.
    const OLD: &str = r#"{"revision":"2025-06-18","serverInfo":{},"tools":[{"name":"a"}]}"#;

    #[test]
    fn a_damaged_or_old_file_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let spec = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x"));
        let memory = Memory::of(&spec, Some(dir.path()));
        memory.remember(&known()).unwrap();
        for damage in ["", "{", r#"{"tools":7}"#, r#"{"tools":[],"revision":"x"}"#, OLD] {
            std::fs::write(memory.file.as_ref().unwrap(), damage).unwrap();
            assert_eq!(memory.recall(), None, "{damage}");
        }
    }
}
