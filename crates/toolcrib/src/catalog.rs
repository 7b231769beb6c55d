//! `Catalog`: a frozen picture of everything on offer and which server each thing belongs to.
//!
//! It is built whole from the servers' listings and replaced whole; nobody edits it. Order is stable: servers by name,
//! then each server's own order.

mod address;
mod find;
mod page;
mod render;
mod shelf;
mod template;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::connection::listing::{Listed, Listing};
use crate::error::Error;
use crate::spec::ServerId;
pub use crate::spec::public_name as name;
pub use crate::wire::kind::Kind;
use crate::wire::revision::Era;
pub(crate) use address::decode as decoded;
pub use find::Target;
use page::Rows;
pub use page::{PAGE, Page};
use render::{Rendered, Written};
use shelf::Shelf;
pub use shelf::{Item, Tool};
use template::Template;

/// Each server's last known listing; `None` for servers that were never asked.
pub(crate) type Listings = BTreeMap<ServerId, Option<Arc<Listing>>>;

/// A frozen picture of everything on offer.
#[derive(Debug, Default)]
pub struct Catalog {
    revision: u64,
    /// One for each kind.
    shelves: [Shelf; Kind::ALL.len()],
    /// One for each template.
    patterns: Vec<Option<Template>>,
    /// Every server there is; those that were never asked offer nothing yet.
    servers: BTreeMap<ServerId, Offer>,
}

/// What one server has.
#[derive(Debug, Default)]
struct Offer {
    listing: Option<Arc<Listing>>,
    has_resources: bool,
    /// Its lists under its own names, one for each kind.
    written: [Written; Kind::ALL.len()],
}

impl Offer {
    fn of(&self, kind: Kind) -> &[Listed] {
        self.listing.as_ref().map(|listing| listing.of(kind)).unwrap_or_default()
    }

    fn write(&self, kind: Kind) -> Rendered {
        Rendered::of(self.of(kind).iter().map(|listed| listed.definition.clone()))
    }
}

impl Catalog {
    /// Builds the picture.
    pub(crate) fn build(revision: u64, listings: &Listings) -> Self {
        let offer = |listing: &Option<Arc<Listing>>| Offer {
            listing: listing.clone(),
            has_resources: listing.as_ref().is_some_and(|listing| listing.declares("resources")),
            written: Default::default(),
        };
        let mut catalog = Self {
            revision,
            shelves: Kind::ALL.map(|kind| Shelf::stocked(kind, listings)),
            patterns: Vec::new(),
            servers: listings.iter().map(|(server, listing)| (server.clone(), offer(listing))).collect(),
        };
        let templates = catalog.templates().iter();
        catalog.patterns = templates.map(|item| Template::parse(&item.own_name)).collect();
        catalog
    }

    /// The picture with only those servers that may be seen, and of those only what `keep` says yes to.
    pub(crate) fn narrowed(
        &self,
        sees: impl Fn(&ServerId) -> bool,
        keep: impl Fn(&ServerId, &str) -> bool,
    ) -> Self {
        let seen = self.servers.iter().filter(|(server, _)| sees(server));
        let narrowed = seen.map(|(server, offer)| {
            let kept = offer.listing.as_ref().map(|listing| listing.narrowed(|name| keep(server, name)));
            (server.clone(), kept.map(Arc::new))
        });
        Self::build(self.revision, &narrowed.collect())
    }

    /// Which version of the picture this is; it grows with every change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Everything of one kind, in order.
    pub fn items(&self, kind: Kind) -> &[Item] {
        &self.shelf(kind).items
    }

    /// Every tool, in order.
    pub fn tools(&self) -> &[Tool] {
        self.items(Kind::Tools)
    }

    /// Every prompt, in order.
    pub fn prompts(&self) -> &[Item] {
        self.items(Kind::Prompts)
    }

    /// Every resource that is listed, in order.
    pub fn resources(&self) -> &[Item] {
        self.items(Kind::Resources)
    }

    /// Every template of resources, in order.
    pub fn templates(&self) -> &[Item] {
        self.items(Kind::Templates)
    }

    /// One piece of a list as clients of an era see it: of everything under public names, or of one server under its
    /// own. A cursor that was not given out for this list is refused.
    pub fn page(
        &self,
        kind: Kind,
        of: Option<&ServerId>,
        era: Era,
        cursor: Option<&str>,
    ) -> Result<Page, Error> {
        match of.map(|server| (server, self.servers.get(server))) {
            None => {
                let written = self.shelf(kind).written.of(kind, era, || self.write(kind));
                Rows::All(self.items(kind)).page(kind, written, cursor, PAGE)
            }
            Some((server, Some(offer))) => {
                let written = offer.written[kind as usize].of(kind, era, || offer.write(kind));
                Rows::Of(server, offer.of(kind)).page(kind, written, cursor, PAGE)
            }
            Some((server, None)) => Err(self.unknown_server(server.as_str())),
        }
    }

    /// A whole list as a JSON array, with everything that servers wrote: of everything under public names, or of one
    /// server under its own. It is written once; who keeps it can see whether the list is another one now.
    pub fn rendered(&self, kind: Kind, of: Option<&ServerId>) -> Bytes {
        match of.map(|server| self.servers.get(server)) {
            None => self.shelf(kind).written.plain(|| self.write(kind)).all.clone(),
            Some(Some(offer)) => offer.written[kind as usize].plain(|| offer.write(kind)).all.clone(),
            Some(None) => Bytes::from_static(b"[]"),
        }
    }

    /// Every server there is, by name.
    pub fn servers(&self) -> impl Iterator<Item = &ServerId> {
        self.servers.keys()
    }

    /// The capabilities of a server, as it declared them; `None` while it is a stranger.
    pub fn capabilities_of(&self, server: &ServerId) -> Option<&Bytes> {
        Some(&self.servers.get(server)?.listing.as_ref()?.capabilities)
    }

    /// How a server wants to be used, if it says so.
    pub fn instructions_of(&self, server: &ServerId) -> Option<&str> {
        self.servers.get(server)?.listing.as_ref()?.instructions.as_deref()
    }

    /// What a server lists under exactly this name of its own.
    pub(crate) fn listed(&self, server: &ServerId, kind: Kind, own: &str) -> Option<&Item> {
        self.shelf(kind).own(own).find(|item| item.server == *server)
    }

    /// Whether a server lists something of its own under exactly this name.
    pub(crate) fn lists(&self, server: &ServerId, kind: Kind, own: &str) -> bool {
        self.listed(server, kind, own).is_some()
    }

    /// Whether there is a server of this name that may run.
    pub(crate) fn knows(&self, server: &ServerId) -> bool {
        self.servers.contains_key(server)
    }

    /// Servers whose offer nobody has seen yet.
    pub fn strangers(&self) -> impl Iterator<Item = &ServerId> {
        self.servers.iter().filter(|(_, offer)| offer.listing.is_none()).map(|(server, _)| server)
    }

    /// Whether nobody has seen yet what a server offers.
    pub(crate) fn is_stranger(&self, server: &ServerId) -> bool {
        self.servers.get(server).is_some_and(|offer| offer.listing.is_none())
    }

    /// The stranger a public name points at, if its first part names one.
    pub(crate) fn stranger_behind(&self, name: &str) -> Option<&ServerId> {
        let (server, _) = name.split_once(name::SEPARATOR)?;
        self.strangers().find(|stranger| stranger.as_str() == server)
    }

    fn shelf(&self, kind: Kind) -> &Shelf {
        &self.shelves[kind as usize]
    }

    fn write(&self, kind: Kind) -> Rendered {
        Rendered::of(self.items(kind).iter().map(|item| self.shown(kind, item)))
    }
}

#[cfg(test)]
mod tests;
