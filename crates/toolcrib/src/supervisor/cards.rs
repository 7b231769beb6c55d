//! The cards of a server: the declared one, and the one that it publishes itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use bytes::Bytes;

use crate::model::listing::{ListedItem, Listing};
use crate::protocol::list_kind::ListKind;
use crate::spec::{CardTool, ServerCard, ServerSpec};
use crate::util::locks::IgnorePoison as _;

/// The cards of one server, shared by its instances.
#[derive(Debug)]
pub(crate) struct ServerCards {
    declared: RwLock<DeclaredCard>,
    published: Arc<OnceLock<ServerCard>>,
    /// True if the server is to be asked for its card.
    is_requested: AtomicBool,
}

/// The card of a spec.
#[derive(Debug)]
struct DeclaredCard {
    card: Option<ServerCard>,
    /// Its tools, if it has any.
    listing: Option<Arc<Listing>>,
}

impl DeclaredCard {
    fn new(spec: &ServerSpec) -> Self {
        let card = spec.card.clone();
        let has_tools = |card: &&ServerCard| !card.tools.is_empty();
        let listing = card.as_ref().filter(has_tools).map(|card| Arc::new(to_listing(card)));
        Self { card, listing }
    }
}

impl ServerCards {
    pub(crate) fn new(spec: &ServerSpec) -> Self {
        Self {
            declared: RwLock::new(DeclaredCard::new(spec)),
            published: Arc::default(),
            is_requested: AtomicBool::new(false),
        }
    }

    /// Replaces the declared card by that of a changed spec.
    pub(crate) fn update(&self, spec: &ServerSpec) {
        *self.declared.write().ignore_poison() = DeclaredCard::new(spec);
    }

    /// Returns the declared tools as a listing, for a server that was never listed.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        self.declared.read().ignore_poison().listing.clone()
    }

    /// Lets the next connection ask the server for its card.
    pub(crate) fn request_published(&self) {
        self.is_requested.store(true, Ordering::Relaxed);
    }

    /// Returns the place of the published card, which is set once, if it was requested.
    pub(crate) fn published(&self) -> Option<Arc<OnceLock<ServerCard>>> {
        self.is_requested.load(Ordering::Relaxed).then(|| self.published.clone())
    }

    /// Returns the declared card, with the texts of the published one where it has none.
    pub(crate) fn combined(&self) -> Option<ServerCard> {
        match (&self.declared.read().ignore_poison().card, self.published.get()) {
            (Some(declared), Some(published)) => Some(declared.or_texts_of(published)),
            (declared, published) => declared.as_ref().or(published).cloned(),
        }
    }
}

fn to_listing(card: &ServerCard) -> Listing {
    let item = |tool: &CardTool| ListedItem::parse(ListKind::Tools, tool.definition.clone());
    Listing {
        tools: card.tools.iter().filter_map(item).collect(),
        capabilities: Bytes::from_static(br#"{"tools":{}}"#),
        is_from_card: true,
        ..Listing::default()
    }
}
