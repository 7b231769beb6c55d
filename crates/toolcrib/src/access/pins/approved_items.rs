//! The approved items of one server as they are stored.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::fingerprint::{Fingerprint, ItemFingerprint, pinned_members};
use crate::model::listing::Listing;
use crate::model::pin_status::PinnedKind;
use crate::protocol::json::object::{self, Object};
use crate::protocol::list_kind::ListKind;

/// The name of the only item of the kind [`PinnedKind::Instructions`].
const INSTRUCTIONS: &str = "instructions";
/// The stored bytes of an item besides its name and definition: two fingerprints and the names of members.
const ITEM_OVERHEAD: usize = 180;

/// One offered definition.
pub(super) struct OfferedItem {
    pub(super) kind: PinnedKind,
    pub(super) name: Arc<str>,
    pub(super) definition: Bytes,
}

/// Returns everything that a listing offers and that is pinned.
pub(super) fn offered_items(listing: &Listing) -> impl Iterator<Item = OfferedItem> {
    let items = ListKind::ALL.into_iter().flat_map(|list| {
        let offered = move |name: &Arc<str>, definition: &Bytes| OfferedItem {
            kind: kind_of_list(list),
            name: name.clone(),
            definition: definition.clone(),
        };
        listing.items(list).iter().map(move |item| offered(&item.name, &item.definition))
    });
    let text = listing.instructions.as_ref().filter(|text| !text.trim().is_empty());
    let instructions = text.map(|text| OfferedItem {
        kind: PinnedKind::Instructions,
        name: INSTRUCTIONS.into(),
        definition: object::to_json_string(text),
    });
    items.chain(instructions)
}

/// Returns the kind of the items of a list.
pub(super) fn kind_of_list(list: ListKind) -> PinnedKind {
    match list {
        ListKind::Tools => PinnedKind::Tool,
        ListKind::Prompts => PinnedKind::Prompt,
        ListKind::Resources => PinnedKind::Resource,
        ListKind::Templates => PinnedKind::Template,
    }
}

/// Returns whether a listing says everything that the server offers of a kind. A listing without tools does not: the tools
/// of some servers follow after a login.
fn is_known(kind: PinnedKind, listing: &Listing) -> bool {
    let is_read = |list: ListKind| !listing.is_from_card && listing.unknown_list(list).is_none();
    match kind {
        PinnedKind::Tool => !listing.tools.is_empty(),
        PinnedKind::Prompt => is_read(ListKind::Prompts),
        PinnedKind::Resource => is_read(ListKind::Resources),
        PinnedKind::Template => is_read(ListKind::Templates),
        PinnedKind::Instructions => !listing.is_from_card,
    }
}

/// Returns whether everything that a listing offers is approved if it is the first listing of a server. Of two items with the same
/// name only the first is.
pub(super) fn is_approved_as_first(listing: &Listing) -> bool {
    let is_approved = |list: ListKind| {
        let items = listing.items(list);
        let mut names = HashSet::with_capacity(items.len());
        let are_names_unique = items.iter().all(|item| names.insert(&*item.name));
        items.is_empty() || are_names_unique && is_known(kind_of_list(list), listing)
    };
    !listing.is_from_card && ListKind::ALL.into_iter().all(is_approved)
}

/// The fingerprints of an approved item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ApprovedFingerprint {
    pub(super) basic: Fingerprint,
    /// Absent if an earlier release approved the item, which did not see all members.
    pub(super) full: Option<Fingerprint>,
}

impl From<ItemFingerprint> for ApprovedFingerprint {
    fn from(ItemFingerprint { basic, full }: ItemFingerprint) -> Self {
        Self { basic, full: Some(full) }
    }
}

impl ApprovedFingerprint {
    /// Returns whether this is the fingerprint of an offered item.
    pub(super) fn matches(self, offered: ItemFingerprint) -> bool {
        self.full.map_or(self.basic == offered.basic, |full| full == offered.full)
    }
}

/// One approved item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApprovedItem {
    pub(super) fingerprint: ApprovedFingerprint,
    /// The pinned members of the definition.
    pub(super) definition: Bytes,
}

impl ApprovedItem {
    pub(super) fn new(kind: PinnedKind, definition: &Bytes, fingerprint: ItemFingerprint) -> Self {
        Self { fingerprint: fingerprint.into(), definition: pinned_members(kind, definition) }
    }

    fn from_offered(offered: &OfferedItem) -> Self {
        let fingerprint = ItemFingerprint::from_definition(offered.kind, &offered.definition);
        Self::new(offered.kind, &offered.definition, fingerprint)
    }
}

/// Approved items by kind and by the server's own name. A kind is absent if the server's items of that kind were never
/// seen; those that are seen first then count as approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PinnedSections<T>([Option<BTreeMap<Arc<str>, T>>; PinnedKind::ALL.len()]);

/// Approved items with their definitions.
pub(super) type ApprovedItems = PinnedSections<ApprovedItem>;

impl<T> Default for PinnedSections<T> {
    fn default() -> Self {
        Self([const { None }; PinnedKind::ALL.len()])
    }
}

impl<T> PinnedSections<T> {
    /// Returns sections in which every kind was seen and nothing is approved.
    pub(super) fn none_approved() -> Self {
        Self([const { Some(BTreeMap::new()) }; PinnedKind::ALL.len()])
    }

    pub(super) fn get(&self, kind: PinnedKind, name: &str) -> Option<&T> {
        self.0[kind as usize].as_ref()?.get(name)
    }

    pub(super) fn insert(&mut self, kind: PinnedKind, name: Arc<str>, item: T) {
        self.0[kind as usize].get_or_insert_default().insert(name, item);
    }

    pub(super) fn is_seen(&self, kind: PinnedKind) -> bool {
        self.0[kind as usize].is_some()
    }

    /// Returns the sections with each item converted.
    pub(super) fn map<U>(self, convert: impl Fn(T) -> U) -> PinnedSections<U> {
        let convert_all = |items: BTreeMap<Arc<str>, T>| {
            items.into_iter().map(|(name, item)| (name, convert(item))).collect()
        };
        PinnedSections(self.0.map(|section| section.map(convert_all)))
    }

    /// Adds the kinds that were never seen, with the offered items as `approve` returns them.
    pub(super) fn add_unseen(&mut self, listing: &Listing, mut approve: impl FnMut(&OfferedItem) -> T) {
        let is_added = PinnedKind::ALL.map(|kind| !self.is_seen(kind) && is_known(kind, listing));
        for kind in PinnedKind::ALL.into_iter().filter(|kind| is_added[*kind as usize]) {
            self.0[kind as usize] = Some(BTreeMap::new());
        }
        for offered in offered_items(listing).filter(|offered| is_added[offered.kind as usize]) {
            // Of two items with the same name the first counts.
            if self.get(offered.kind, &offered.name).is_none() {
                let item = approve(&offered);
                self.insert(offered.kind, offered.name, item);
            }
        }
    }

    /// Returns whether the listing says what the server offers of a kind that was never seen. A kind of which it offers
    /// nothing counts as seen from then on, so that a later item of it is new.
    pub(super) fn has_unseen(&self, listing: &Listing) -> bool {
        PinnedKind::ALL.into_iter().any(|kind| !self.is_seen(kind) && is_known(kind, listing))
    }
}

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

/// Returns the items of the first listing of a server, which count as approved, with the fingerprints that `fingerprint`
/// returns.
pub(super) fn first_seen(
    listing: &Listing,
    fingerprint: impl Fn(&OfferedItem) -> ItemFingerprint,
) -> ApprovedItems {
    let mut items = ApprovedItems::default();
    let approve =
        |offered: &OfferedItem| ApprovedItem::new(offered.kind, &offered.definition, fingerprint(offered));
    items.add_unseen(listing, approve);
    items
}

/// Adds what an earlier release did not pin, as the listing has it: other kinds than tools, and more members of tools
/// that are otherwise the approved ones.
pub(super) fn complete(items: &mut ApprovedItems, listing: &Listing) {
    items.add_unseen(listing, ApprovedItem::from_offered);
    for offered in offered_items(listing).filter(|offered| offered.kind == PinnedKind::Tool) {
        let now = ApprovedItem::from_offered(&offered);
        let known = items.get(offered.kind, &offered.name).map(|known| known.fingerprint);
        if known.is_some_and(|known| known.full.is_none() && known.basic == now.fingerprint.basic) {
            items.insert(offered.kind, offered.name, now);
        }
    }
}

/// Returns the name of a kind in the stored form.
fn section_name(kind: PinnedKind) -> &'static str {
    match kind {
        PinnedKind::Tool => "tools",
        PinnedKind::Prompt => "prompts",
        PinnedKind::Resource => "resources",
        PinnedKind::Template => "resourceTemplates",
        PinnedKind::Instructions => INSTRUCTIONS,
    }
}

/// Parses the stored form.
pub(super) fn parse(stored: &Bytes) -> Result<ApprovedItems, String> {
    let object = |raw: &Bytes| Object::parse(raw).map_err(|error| error.to_string());
    let root = object(stored)?;
    let mut items = ApprovedItems::default();
    for kind in PinnedKind::ALL {
        let Some(section) = root.get(section_name(kind)) else { continue };
        items.0[kind as usize] = Some(BTreeMap::new());
        for (name, raw) in object(section)?.iter() {
            let item = object(raw)?;
            let digest = |member: &str| item.get_string(member).and_then(|text| Fingerprint::parse(&text));
            let (Some(basic), Some(definition)) = (digest("sha256"), item.get("definition")) else {
                return Err(format!("the entry of `{name}` has no valid `sha256` and `definition`"));
            };
            let full = match item.get("full") {
                Some(_) => Some(digest("full").ok_or_else(|| format!("`full` of `{name}` is not a digest"))?),
                None => None,
            };
            let fingerprint = ApprovedFingerprint { basic, full };
            items.insert(kind, name.into(), ApprovedItem { fingerprint, definition: definition.clone() });
        }
    }
    match PinnedKind::ALL.into_iter().any(|kind| items.is_seen(kind)) {
        true => Ok(items),
        false => Err("`tools` is missing".to_owned()),
    }
}

/// Returns the stored form. Earlier releases read `tools`, and of each tool `sha256` and `definition`.
pub(super) fn encode(items: &ApprovedItems) -> Bytes {
    let sections = items.0.iter().flatten();
    let size = sections.flatten().map(|(name, item)| name.len() + item.definition.len() + ITEM_OVERHEAD);
    let mut text = Vec::with_capacity(size.sum::<usize>() + ITEM_OVERHEAD);
    text.push(b'{');
    let seen = PinnedKind::ALL.into_iter().filter_map(|kind| Some((kind, items.0[kind as usize].as_ref()?)));
    for (index, (kind, section)) in seen.enumerate() {
        let comma = if index > 0 { "," } else { "" };
        text.extend_from_slice(format!("{comma}\"{}\":{{", section_name(kind)).as_bytes());
        for (index, (name, item)) in section.iter().enumerate() {
            text.extend_from_slice(if index > 0 { b",\n" } else { b"\n" });
            write_item(&mut text, name, item);
        }
        text.extend_from_slice(b"\n}");
    }
    text.extend_from_slice(b"}\n");
    text.into()
}

fn write_item(text: &mut Vec<u8>, name: &str, item: &ApprovedItem) {
    let ApprovedFingerprint { basic, full } = item.fingerprint;
    object::write_string(text, name);
    text.extend_from_slice(b":{\"sha256\":\"");
    text.extend_from_slice(basic.to_hex().as_bytes());
    if let Some(full) = full {
        text.extend_from_slice(b"\",\"full\":\"");
        text.extend_from_slice(full.to_hex().as_bytes());
    }
    text.extend_from_slice(b"\",\"definition\":");
    text.extend_from_slice(&item.definition);
    text.push(b'}');
}
