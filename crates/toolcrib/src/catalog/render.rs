//! Lists as clients see them: each is written once, and handed out as the same bytes from then on.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::Catalog;
use super::shelf::Item;
use crate::wire::dialect::tool_to_client;
use crate::wire::kind::Kind;
use crate::wire::object::{self, Object};
use crate::wire::revision::Era;

/// A list as JSON, and where each thing in it ends.
#[derive(Debug, Clone)]
pub(super) struct Rendered {
    pub(super) all: Bytes,
    ends: Arc<[usize]>,
}

/// A list as its servers wrote it, and as each era may see it.
#[derive(Debug, Default)]
pub(super) struct Written {
    plain: OnceLock<Rendered>,
    session: OnceLock<Rendered>,
    stateless: OnceLock<Rendered>,
}

impl Written {
    pub(super) fn plain(&self, write: impl FnOnce() -> Rendered) -> &Rendered {
        self.plain.get_or_init(write)
    }

    pub(super) fn of(&self, kind: Kind, era: Era, write: impl FnOnce() -> Rendered) -> &Rendered {
        let plain = self.plain(write);
        if kind != Kind::Tools {
            return plain;
        }
        let seen = match era {
            Era::Session => &self.session,
            Era::Stateless => &self.stateless,
        };
        seen.get_or_init(|| plain.of_era(era))
    }
}

impl Rendered {
    pub(super) fn of(definitions: impl Iterator<Item = Bytes>) -> Self {
        let (mut all, mut ends) = (vec![b'['], Vec::new());
        for definition in definitions {
            if !ends.is_empty() {
                all.push(b',');
            }
            all.extend_from_slice(&definition);
            ends.push(all.len());
        }
        all.push(b']');
        all.shrink_to_fit();
        Self { all: all.into(), ends: ends.into() }
    }

    /// Tools as clients of this era may see them; the same bytes if they may see everything.
    fn of_era(&self, era: Era) -> Self {
        let whole = (0..self.ends.len()).map(|at| self.one(at));
        let seen: Vec<Option<Bytes>> = whole.clone().map(|tool| tool_to_client(&tool, era)).collect();
        if seen.iter().all(Option::is_none) {
            return self.clone();
        }
        Self::of(whole.zip(seen).map(|(whole, seen)| seen.unwrap_or(whole)))
    }

    fn one(&self, at: usize) -> Bytes {
        let start = if at == 0 { 1 } else { self.ends[at - 1] + 1 };
        self.all.slice(start..self.ends[at])
    }

    /// Some of it, as a list of its own.
    pub(super) fn part(&self, range: Range<usize>) -> Bytes {
        if range == (0..self.ends.len()) {
            return self.all.clone();
        }
        if range.is_empty() {
            return Bytes::from_static(b"[]");
        }
        let start = if range.start == 0 { 1 } else { self.ends[range.start - 1] + 1 };
        [b"[", &self.all[start..self.ends[range.end - 1]], b"]"].concat().into()
    }
}

impl Catalog {
    /// A definition as clients of the whole crib see it: the server's own, but for the name to ask for it by.
    pub(super) fn shown(&self, kind: Kind, item: &Item) -> Bytes {
        let has_page =
            kind == Kind::Tools && memchr::memmem::find(&item.definition, PAGE_OF.as_bytes()).is_some();
        if item.public_name == item.own_name && !has_page {
            return item.definition.clone();
        }
        let Ok(mut definition) = Object::parse(&item.definition) else { return item.definition.clone() };
        definition.set(kind.key(), object::string(&item.public_name));
        if has_page {
            self.readdress(item, &mut definition);
        }
        definition.to_bytes()
    }

    /// A tool may say which resource shows its results to people. That is an address like any other.
    fn readdress(&self, item: &Item, definition: &mut Object) {
        let Some(mut meta) = inner(definition, "_meta") else { return };
        let mut changed = self.readdress_in(item, &mut meta, "ui/resourceUri");
        if let Some(mut ui) = inner(&meta, "ui")
            && self.readdress_in(item, &mut ui, PAGE_OF)
        {
            meta.set("ui", ui.to_bytes());
            changed = true;
        }
        if changed {
            definition.set("_meta", meta.to_bytes());
        }
    }

    /// Whether the address was another one.
    fn readdress_in(&self, item: &Item, holder: &mut Object, key: &'static str) -> bool {
        let Some(own) = holder.string(key).map(std::borrow::Cow::into_owned) else { return false };
        let public = self.public_uri(&item.server, &own);
        let changed = public != own;
        if changed {
            holder.set(key, object::string(&public));
        }
        changed
    }
}

/// The member that names a tool's page.
const PAGE_OF: &str = "resourceUri";

fn inner(object: &Object, key: &str) -> Option<Object> {
    Object::parse(object.get(key)?).ok()
}
