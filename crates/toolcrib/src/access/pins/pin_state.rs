//! The approved and unapproved items of one server in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::approved_items::{ApprovedFingerprint, OfferedItem, PinFileStamp, PinnedSections};
use super::fingerprint::{Fingerprint, ItemFingerprint};
use crate::model::listing::Listing;
use crate::model::pin_status::{PinStatus, PinnedKind};

/// The kind and name of an item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ItemKey {
    pub(super) kind: PinnedKind,
    pub(super) name: Arc<str>,
}

#[derive(Debug, Clone)]
pub(super) struct UnapprovedItem {
    pub(super) status: PinStatus,
    pub(super) fingerprint: ItemFingerprint,
    pub(super) definition: Bytes,
}

/// A definition and its fingerprint.
#[derive(Debug)]
struct ComputedFingerprint {
    definition: Bytes,
    fingerprint: ItemFingerprint,
}

/// The approved items of a server.
#[derive(Debug)]
enum Approved {
    /// Everything that the first listing offers. Its fingerprints are computed when something is compared with it or when it is saved:
    /// to compute them before clients see the listing would take a tenth of the time until ten new servers can be called.
    FirstListing(Arc<Listing>),
    /// The items with these fingerprints.
    Items(PinnedSections<ApprovedFingerprint>),
}

#[derive(Debug, Default)]
pub(super) struct PinState {
    pub(super) stamp: Option<PinFileStamp>,
    /// The value that was read last from a store in memory, to detect a changed one.
    pub(super) value: Option<Bytes>,
    /// `None` until the server has been seen.
    approved: Option<Approved>,
    /// The reason why the last value could not be read, until it is reported.
    pub(super) read_error: Option<String>,
    /// Whether a task loads the approved items.
    pub(super) is_loading: bool,
    /// Items that the server offers and that are not approved.
    pub(super) unapproved: BTreeMap<ItemKey, UnapprovedItem>,
    /// The complete listing that was compared last; absent if something has been approved or stored since.
    pub(super) last_checked: Option<Arc<Listing>>,
    /// Fingerprints of definitions by kind and name, because the same definitions are checked repeatedly.
    fingerprints: [HashMap<Arc<str>, ComputedFingerprint>; PinnedKind::ALL.len()],
}

impl PinState {
    /// Returns whether the server has been seen.
    pub(super) fn is_seen(&self) -> bool {
        self.approved.is_some()
    }

    /// Approves these items and nothing else.
    pub(super) fn set_approved(&mut self, items: PinnedSections<ApprovedFingerprint>) {
        self.approved = Some(Approved::Items(items));
    }

    /// Approves everything that the first listing of the server offers.
    pub(super) fn approve_first(&mut self, listing: &Arc<Listing>) {
        self.approved = Some(Approved::FirstListing(listing.clone()));
    }

    /// Returns the first listing if its fingerprints are not computed yet.
    pub(super) fn uncompared_first(&self) -> Option<&Arc<Listing>> {
        match &self.approved {
            Some(Approved::FirstListing(listing)) => Some(listing),
            Some(Approved::Items(_)) | None => None,
        }
    }

    /// Returns the approved items. Computes the fingerprints of the first listing if they are missing.
    pub(super) fn approved(&mut self) -> Option<&mut PinnedSections<ApprovedFingerprint>> {
        if let Some(listing) = self.uncompared_first().cloned() {
            let mut items = PinnedSections::default();
            items.add_unseen(&listing, |offered| self.fingerprint(offered).into());
            self.set_approved(items);
        }
        match &mut self.approved {
            Some(Approved::Items(items)) => Some(items),
            Some(Approved::FirstListing(_)) | None => None,
        }
    }

    pub(super) fn fingerprint(&mut self, offered: &OfferedItem) -> ItemFingerprint {
        let OfferedItem { kind, name, definition } = offered;
        let known = &mut self.fingerprints[*kind as usize];
        let fingerprint = match known.get(name) {
            Some(computed) if is_same_slice(&computed.definition, definition) => return computed.fingerprint,
            Some(computed) if computed.definition == *definition => computed.fingerprint,
            _ => ItemFingerprint::from_definition(*kind, definition),
        };
        // Replaces an equal definition as well: the old one keeps the buffer of an earlier answer alive.
        known.insert(name.clone(), ComputedFingerprint { definition: definition.clone(), fingerprint });
        fingerprint
    }

    /// Forgets the fingerprints of items that a listing no longer has.
    pub(super) fn forget_fingerprints(&mut self, offered: &[OfferedItem]) {
        for kind in PinnedKind::ALL {
            let count = offered.iter().filter(|item| item.kind == kind).count();
            let known = &mut self.fingerprints[kind as usize];
            if known.len() > count {
                known.clear();
            }
        }
    }

    /// Takes over fingerprints that were computed elsewhere.
    pub(super) fn add_fingerprint(&mut self, offered: OfferedItem, fingerprint: ItemFingerprint) {
        let computed = ComputedFingerprint { definition: offered.definition, fingerprint };
        self.fingerprints[offered.kind as usize].insert(offered.name, computed);
    }

    /// Returns how an item differs from the approved one, with its fingerprint, or `None` if it is approved.
    pub(super) fn check(&mut self, offered: &OfferedItem) -> Option<(PinStatus, ItemFingerprint)> {
        let fingerprint = self.fingerprint(offered);
        let approved = self.approved().and_then(|items| items.get(offered.kind, &offered.name));
        match approved {
            Some(approved) if approved.matches(fingerprint) => None,
            Some(_) => Some((PinStatus::Changed, fingerprint)),
            None => Some((PinStatus::New, fingerprint)),
        }
    }

    /// Approves the items of kinds that were never seen, and the members of approved tools that an earlier release did not
    /// pin. Returns whether anything is to be saved.
    pub(super) fn complete(&mut self, listing: &Listing, offered: &[OfferedItem]) -> bool {
        let Some(mut approved) = self.approved().map(std::mem::take) else { return false };
        let mut needs_save = approved.has_unseen(listing);
        if needs_save {
            approved.add_unseen(listing, |offered| self.fingerprint(offered).into());
        }
        for tool in offered.iter().filter(|item| item.kind == PinnedKind::Tool) {
            let Some(known) = approved.get(tool.kind, &tool.name).filter(|known| known.full.is_none()) else {
                continue;
            };
            let basic = known.basic;
            let now = self.fingerprint(tool);
            if basic == now.basic {
                needs_save |= now.basic != now.full;
                approved.insert(tool.kind, tool.name.clone(), now.into());
            }
        }
        self.set_approved(approved);
        needs_save
    }

    /// Counts nothing as approved.
    pub(super) fn mark_damaged(&mut self, reason: String) {
        self.last_checked = None;
        self.set_approved(PinnedSections::none_approved());
        self.read_error = Some(reason);
    }

    /// Takes over items that were approved. An item that has changed since stays unapproved.
    pub(super) fn approve(&mut self, added: &BTreeMap<ItemKey, UnapprovedItem>) {
        self.last_checked = None;
        if !self.is_seen() {
            self.set_approved(PinnedSections::default());
        }
        if let Some(items) = self.approved() {
            for (key, item) in added {
                items.insert(key.kind, key.name.clone(), item.fingerprint.into());
            }
        }
        let is_other = |key: &ItemKey, item: &mut UnapprovedItem| {
            added.get(key).is_none_or(|approved| approved.fingerprint != item.fingerprint)
        };
        self.unapproved.retain(is_other);
    }

    /// Digest of the kinds, names and fingerprints of all unapproved items.
    pub(super) fn digest(&self) -> String {
        let line = |(key, item): (&ItemKey, &UnapprovedItem)| {
            format!("{} {} {}\n", item.fingerprint.full, key.kind.as_str(), key.name)
        };
        let lines: String = self.unapproved.iter().map(line).collect();
        Fingerprint::from_json(&Bytes::from(lines)).to_string()
    }
}

/// Returns whether two slices are the same memory.
pub(super) fn is_same_slice(left: &Bytes, right: &Bytes) -> bool {
    left.as_ptr() == right.as_ptr() && left.len() == right.len()
}
