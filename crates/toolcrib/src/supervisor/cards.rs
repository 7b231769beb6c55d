//! The cards of a server: the declared one, and the one that it publishes itself.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::model::listing::{ListedItem, Listing};
use crate::protocol::list_kind::ListKind;
use crate::spec::{CardTool, ServerCard, ServerSpec};

/// The cards of one server, shared by its instances.
#[derive(Debug)]
pub(crate) struct ServerCards {
    declared: Option<ServerCard>,
    /// The declared tools, if there are any.
    listing: Option<Arc<Listing>>,
    published: Arc<OnceLock<ServerCard>>,
}

impl ServerCards {
    pub(crate) fn new(spec: &ServerSpec) -> Self {
        let declared = spec.card.clone();
        let has_tools = |card: &&ServerCard| !card.tools.is_empty();
        let listing = declared.as_ref().filter(has_tools).map(|card| Arc::new(to_listing(card)));
        Self { declared, listing, published: Arc::default() }
    }

    /// Returns the declared tools as a listing, for a server that was never listed.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        self.listing.clone()
    }

    /// Returns the place of the published card, which is set once.
    pub(crate) fn published(&self) -> &Arc<OnceLock<ServerCard>> {
        &self.published
    }

    /// Returns the declared card, with the texts of the published one where it has none.
    pub(crate) fn combined(&self) -> Option<ServerCard> {
        match (&self.declared, self.published.get()) {
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
        ..Listing::default()
    }
}
