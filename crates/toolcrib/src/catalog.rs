//! An immutable snapshot of everything the servers offer, with lookup by public name.
//!
//! The catalog is built from the servers' listings and replaced as a whole. Order is stable: servers by name, then each
//! server's own order.

mod find;
mod index;
mod page;
mod render;
mod resource_uri;
pub(crate) mod results;
pub mod schemas;
pub mod uri_template;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::model::error::Error;
use crate::model::listing::{ListedItem, Listing};
use crate::model::target::Target;
use crate::protocol::era::adapt_tool_for_client;
pub use crate::protocol::list_kind::ListKind;
use crate::protocol::versions::Era;
use crate::spec::ServerId;
pub use crate::spec::public_name;
use crate::util::maps::collect_map;
use index::CatalogIndex;
pub use index::{CatalogItem, Tool};
pub(crate) use page::has_page_items;
pub use page::{PAGE_SIZE, Page};
use page::{PageRows, ServerPage, server_page, unknown_cursor_error};
use render::{ListVariants, RenderedList};
use uri_template::UriTemplate;

/// Each server's last known listing; `None` for servers that were never listed.
pub(crate) type Listings = BTreeMap<ServerId, Option<Arc<Listing>>>;

/// An immutable snapshot of everything the servers offer.
#[derive(Debug, Default)]
pub struct Catalog {
    revision: u64,
    /// One index per list kind.
    indexes: [CatalogIndex; ListKind::ALL.len()],
    /// The parsed form of each resource template, in list order; `None` where it cannot be parsed.
    uri_templates: Vec<Option<UriTemplate>>,
    /// All servers. Those that were never listed offer nothing yet.
    servers: BTreeMap<ServerId, ServerOffer>,
    /// True if any server was never listed.
    has_undiscovered: bool,
    /// Whether any server has pages, determined on first use.
    any_pages: OnceLock<bool>,
}

/// The items that one server offers.
#[derive(Debug, Default)]
struct ServerOffer {
    listing: Option<Arc<Listing>>,
    has_resources: bool,
    /// Whether it has pages, determined on first use.
    has_pages: OnceLock<bool>,
    /// Its lists under its own names, one per list kind.
    rendered: [ListVariants; ListKind::ALL.len()],
}

impl ServerOffer {
    fn items(&self, kind: ListKind) -> &[ListedItem] {
        self.listing.as_ref().map(|listing| listing.items(kind)).unwrap_or_default()
    }

    fn has_pages(&self) -> bool {
        *self.has_pages.get_or_init(|| {
            let is_page = |listed: &ListedItem| resource_uri::is_page(&listed.name);
            self.items(ListKind::Tools).iter().any(|tool| render::names_page(&tool.definition))
                || self.items(ListKind::Resources).iter().any(is_page)
                || self.items(ListKind::Templates).iter().any(is_page)
        })
    }

    fn render(&self, kind: ListKind) -> RenderedList {
        RenderedList::from_definitions(kind, self.items(kind).iter().map(|listed| listed.definition.clone()))
    }
}

impl Catalog {
    /// Builds a catalog from the servers' listings.
    pub(crate) fn build(revision: u64, listings: &Listings) -> Self {
        let offer = |listing: &Option<Arc<Listing>>| ServerOffer {
            listing: listing.clone(),
            has_resources: listing.as_ref().is_some_and(|listing| listing.declares("resources")),
            has_pages: OnceLock::new(),
            rendered: Default::default(),
        };
        let mut catalog = Self {
            revision,
            indexes: ListKind::ALL.map(|kind| CatalogIndex::build(kind, listings)),
            uri_templates: Vec::new(),
            servers: collect_map(listings.iter().map(|(server, listing)| (server.clone(), offer(listing)))),
            has_undiscovered: listings.values().any(Option::is_none),
            any_pages: OnceLock::new(),
        };
        let templates = catalog.templates().iter();
        catalog.uri_templates = templates.map(|item| UriTemplate::parse(&item.own_name)).collect();
        catalog
    }

    /// Returns a catalog with the servers that `can_see` accepts, and of their items those that `keep` accepts.
    #[doc(hidden)]
    pub fn filtered(
        &self,
        can_see: impl Fn(&ServerId) -> bool,
        keep: impl Fn(&ServerId, &str) -> bool,
    ) -> Self {
        let visible = self.servers.iter().filter(|(server, _)| can_see(server));
        let listings = visible.map(|(server, offer)| {
            let listing = offer.listing.as_ref().map(|listing| listing.filtered(|name| keep(server, name)));
            (server.clone(), listing.map(Arc::new))
        });
        Self::build(self.revision, &collect_map(listings))
    }

    /// Passes every server, without a name, and every item of the servers for which `visit` returns true.
    pub(crate) fn visit_items(&self, mut visit: impl FnMut(&ServerId, Option<&str>) -> bool) {
        for (server, offer) in &self.servers {
            if visit(server, None) {
                let items = ListKind::ALL.iter().flat_map(|kind| offer.items(*kind));
                for item in items {
                    visit(server, Some(&item.name));
                }
            }
        }
    }

    /// Returns the version of the catalog, which grows with every change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns all items of one kind, in order.
    pub fn items(&self, kind: ListKind) -> &[CatalogItem] {
        &self.index(kind).items
    }

    /// Returns all tools, in order.
    pub fn tools(&self) -> &[Tool] {
        self.items(ListKind::Tools)
    }

    /// Returns all prompts, in order.
    pub fn prompts(&self) -> &[CatalogItem] {
        self.items(ListKind::Prompts)
    }

    /// Returns all listed resources, in order.
    pub fn resources(&self) -> &[CatalogItem] {
        self.items(ListKind::Resources)
    }

    /// Returns all resource templates, in order.
    pub fn templates(&self) -> &[CatalogItem] {
        self.items(ListKind::Templates)
    }

    /// Returns one page of a list for clients of an era: of all servers under public names, or of one server under its
    /// own names. The pages of one server are those that the server sent, with its own cursors, if they are known.
    ///
    /// # Errors
    /// If the server is unknown, or the cursor was not issued for this list.
    pub fn page(
        &self,
        kind: ListKind,
        server: Option<&ServerId>,
        era: Era,
        cursor: Option<&str>,
    ) -> Result<Page, Error> {
        let page = self.find_page(kind, server, era, cursor)?;
        Ok(Page { session_result: page.session_result.filter(|_| era == Era::Session), ..page })
    }

    fn find_page(
        &self,
        kind: ListKind,
        server: Option<&ServerId>,
        era: Era,
        cursor: Option<&str>,
    ) -> Result<Page, Error> {
        let Some(server) = server else {
            let rendered = self.index(kind).rendered.for_era(kind, era, || self.render(kind));
            return PageRows::All(self.items(kind)).page(kind, rendered, cursor, PAGE_SIZE);
        };
        let offer = self.servers.get(server).ok_or_else(|| self.unknown_server_error(server.as_str()))?;
        let rendered = offer.rendered[kind as usize].for_era(kind, era, || offer.render(kind));
        let pages = offer.listing.as_ref().map(|listing| listing.page_ends(kind)).unwrap_or_default();
        match server_page(pages, offer.items(kind).len(), cursor) {
            ServerPage::Found { items, next_cursor, result } => {
                let own_result = result.filter(|result| result.era == era).map(|result| result.json);
                Ok(Page { own_result, ..Page::new(rendered, items, next_cursor) })
            }
            ServerPage::UnknownCursor => Err(unknown_cursor_error()),
            ServerPage::UnknownPages => {
                PageRows::OneServer(server, offer.items(kind)).page(kind, rendered, cursor, PAGE_SIZE)
            }
        }
    }

    /// Returns a complete list as a JSON array, with all members that servers sent: of all servers under public names,
    /// or of one server under its own names. The bytes are rendered once, so comparing them shows whether the list has
    /// changed.
    pub fn list_json(&self, kind: ListKind, server: Option<&ServerId>) -> Bytes {
        let Some(server) = server else {
            return self.index(kind).rendered.full(|| self.render(kind)).json();
        };
        match self.servers.get(server) {
            Some(offer) => offer.rendered[kind as usize].full(|| offer.render(kind)).json(),
            None => Bytes::from_static(b"[]"),
        }
    }

    /// Returns all servers, by name.
    pub fn servers(&self) -> impl Iterator<Item = &ServerId> {
        self.servers.keys()
    }

    /// Returns the capabilities that a server declared; `None` until it has been listed.
    pub fn server_capabilities(&self, server: &ServerId) -> Option<&Bytes> {
        Some(&self.servers.get(server)?.listing.as_ref()?.capabilities)
    }

    /// Returns whether a server's tools or resources name pages.
    pub(crate) fn has_pages(&self, server: &ServerId) -> bool {
        let any_pages = || self.servers.values().any(ServerOffer::has_pages);
        *self.any_pages.get_or_init(any_pages) && self.servers.get(server).is_some_and(ServerOffer::has_pages)
    }

    /// Returns the name and version that a server gave itself, as JSON; `None` until it has been listed.
    pub fn server_info(&self, server: &ServerId) -> Option<&Bytes> {
        self.servers.get(server)?.listing.as_ref()?.server_info.as_ref()
    }

    /// Returns a server's instructions, if it has any.
    pub fn server_instructions(&self, server: &ServerId) -> Option<&str> {
        self.servers.get(server)?.listing.as_ref()?.instructions.as_deref()
    }

    /// Returns the JSON-RPC error with which a server answered the request for a list, if the content of the list is
    /// unknown. Secrets are redacted in it. A list that was read before keeps its content.
    pub fn list_error(&self, kind: ListKind, server: &ServerId) -> Option<&Bytes> {
        Some(&self.servers.get(server)?.listing.as_ref()?.unknown_list(kind)?.error)
    }

    /// Returns the definition of a tool as clients of an era are listed it.
    #[doc(hidden)]
    pub fn tool_definition(&self, target: &Target, era: Era) -> Option<Bytes> {
        let item = self.find_item(&target.server, ListKind::Tools, &target.name)?;
        let definition = self.public_definition(ListKind::Tools, item);
        Some(adapt_tool_for_client(&definition, era).unwrap_or(definition))
    }

    /// Finds the item that a server lists under this name of its own.
    pub(crate) fn find_item(
        &self,
        server: &ServerId,
        kind: ListKind,
        own_name: &str,
    ) -> Option<&CatalogItem> {
        self.index(kind).find_own(own_name).find(|item| item.server == *server)
    }

    /// Returns whether a server lists an item under this name of its own.
    pub(crate) fn has_item(&self, server: &ServerId, kind: ListKind, own_name: &str) -> bool {
        self.find_item(server, kind, own_name).is_some()
    }

    /// Returns whether a template that a server lists can expand to a URI.
    pub(crate) fn fits_template(&self, server: &ServerId, uri: &str) -> bool {
        let mut templates = self.templates().iter().zip(&self.uri_templates);
        templates.any(|(item, template)| {
            item.server == *server && template.as_ref().is_some_and(|template| template.matches(uri))
        })
    }

    /// Returns whether the catalog contains this server.
    pub(crate) fn has_server(&self, server: &ServerId) -> bool {
        self.servers.contains_key(server)
    }

    /// Returns whether any server was never listed.
    pub fn has_undiscovered(&self) -> bool {
        self.has_undiscovered
    }

    /// Returns the servers that were never listed.
    pub fn undiscovered(&self) -> impl Iterator<Item = &ServerId> {
        self.servers.iter().filter(|(_, offer)| offer.listing.is_none()).map(|(server, _)| server)
    }

    /// Returns whether a server was never listed.
    pub(crate) fn is_undiscovered(&self, server: &ServerId) -> bool {
        self.servers.get(server).is_some_and(|offer| offer.listing.is_none())
    }

    /// Returns the undiscovered server that the prefix of a public name refers to.
    pub(crate) fn undiscovered_by_prefix(&self, name: &str) -> Option<&ServerId> {
        let (server, _) = name.split_once(public_name::SEPARATOR)?;
        self.undiscovered().find(|undiscovered| undiscovered.as_str() == server)
    }

    fn index(&self, kind: ListKind) -> &CatalogIndex {
        &self.indexes[kind as usize]
    }

    fn render(&self, kind: ListKind) -> RenderedList {
        let write = |item: &CatalogItem, json: &mut Vec<u8>| self.write_public_definition(kind, item, json);
        let size = self.items(kind).iter().map(CatalogItem::listed_bytes).sum();
        RenderedList::from_items(kind, size, self.items(kind).iter(), write)
    }
}

#[cfg(test)]
mod tests;
