//! The items of one list kind, in order, with lookup by public and own name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::render::ListVariants;
use super::{Listings, public_name, resource_uri};
use crate::model::listing::{DeclaredToolFacts, ListedItem};
use crate::model::pin_status::PinStatus;
use crate::protocol::json::object::Object;
use crate::protocol::list_kind::ListKind;
use crate::spec::ServerId;

/// One item that a server offers: a tool, a prompt, a resource or a resource template.
#[derive(Debug, Clone)]
pub struct CatalogItem {
    /// The server that offers it.
    pub server: ServerId,
    /// The server's own name for it, or the URI of a resource.
    pub own_name: Arc<str>,
    /// Its public name, which clients of the gateway use.
    pub public_name: Arc<str>,
    /// Its definition: as the server sent it, unless clients would reject it, in which case it is repaired.
    pub definition: Bytes,
    /// Whether its server declares it read-only.
    pub(crate) is_read_only: bool,
    /// The difference from the approved definition, if it is a tool that differs.
    pub pin_status: Option<PinStatus>,
}

/// One tool of one server.
pub type Tool = CatalogItem;

impl CatalogItem {
    /// Returns its description, if it has one.
    pub fn description(&self) -> Option<String> {
        Object::parse(&self.definition).ok()?.get_string("description").map(std::borrow::Cow::into_owned)
    }

    /// Returns the size of its definition under its public name, as clients are listed it.
    pub fn listed_bytes(&self) -> usize {
        (self.definition.len() + self.public_name.len()).saturating_sub(self.own_name.len())
    }

    /// Returns the JSON Schema of a tool's arguments; `{"type":"object"}` if its server sent none.
    pub fn input_schema(&self) -> Value {
        let schema = self.member("inputSchema").filter(Value::is_object);
        schema.unwrap_or_else(|| json!({"type": "object"}))
    }

    /// Returns the JSON Schema of a tool's structured results, if its server sent one.
    pub fn output_schema(&self) -> Option<Value> {
        self.member("outputSchema").filter(Value::is_object)
    }

    fn member(&self, key: &str) -> Option<Value> {
        serde_json::from_slice(Object::parse(&self.definition).ok()?.get(key)?).ok()
    }
}

/// All items of one list kind.
#[derive(Debug, Default)]
pub(super) struct CatalogIndex {
    pub(super) items: Vec<CatalogItem>,
    /// Tools and prompts only; resources are found by URI.
    by_public_name: HashMap<Arc<str>, usize>,
    by_own_name: HashMap<Arc<str>, Vec<usize>>,
    /// Items renamed in the configuration, by their new name.
    by_alias: HashMap<Box<str>, Vec<usize>>,
    pub(super) rendered: ListVariants,
}

impl CatalogIndex {
    pub(super) fn build(kind: ListKind, listings: &Listings) -> Self {
        let no_facts = DeclaredToolFacts::default();
        let count = listings.values().flatten().map(|listing| listing.items(kind).len()).sum();
        let mut index = Self { items: Vec::with_capacity(count), ..Self::default() };
        index.by_own_name.reserve(count);
        if matches!(kind, ListKind::Tools | ListKind::Prompts) {
            index.by_public_name.reserve(count);
        }
        for (server, listing) in listings {
            let listed = listing.iter().flat_map(|listing| listing.items(kind));
            let tool_facts = listing.as_ref().map_or(&no_facts, |listing| &*listing.tool_facts);
            match kind {
                ListKind::Tools => listed.for_each(|listed| index.add_named(server, listed, tool_facts)),
                ListKind::Prompts => listed.for_each(|listed| index.add_named(server, listed, &no_facts)),
                ListKind::Resources | ListKind::Templates => {
                    listed.for_each(|listed| index.add_resource(server, listed));
                }
            }
        }
        match kind {
            ListKind::Tools | ListKind::Prompts => {}
            ListKind::Resources => index.qualify_ambiguous(listings, resource_uri::qualify_resource),
            ListKind::Templates => index.qualify_ambiguous(listings, resource_uri::qualify_template),
        }
        index
    }

    /// Adds a tool or prompt. If a server lists a name twice, the first counts.
    fn add_named(&mut self, server: &ServerId, listed: &ListedItem, facts: &DeclaredToolFacts) {
        let alias = facts.public_name(&listed.name);
        let public_name: Arc<str> = match alias {
            Some(alias) => public_name::public_name(server, alias),
            None if facts.is_name_taken(&listed.name) => public_name::digest_name(server, &listed.name),
            None => public_name::public_name(server, &listed.name),
        }
        .into();
        match self.by_public_name.entry(public_name.clone()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(vacant) => vacant.insert(self.items.len()),
        };
        self.by_own_name.entry(listed.name.clone()).or_default().push(self.items.len());
        if let Some(alias) = alias {
            self.by_alias.entry(alias.into()).or_default().push(self.items.len());
        }
        self.add(server, listed, public_name, facts.pin_status(&listed.name));
    }

    /// Adds a resource or resource template. If a server lists a URI twice, the first counts.
    fn add_resource(&mut self, server: &ServerId, listed: &ListedItem) {
        let owners = self.by_own_name.entry(listed.name.clone()).or_default();
        if owners.last().is_some_and(|index| self.items[*index].server == *server) {
            return;
        }
        owners.push(self.items.len());
        self.add(server, listed, listed.name.clone(), None);
    }

    fn add(
        &mut self,
        server: &ServerId,
        listed: &ListedItem,
        public_name: Arc<str>,
        pin_status: Option<PinStatus>,
    ) {
        self.items.push(CatalogItem {
            server: server.clone(),
            own_name: listed.name.clone(),
            public_name,
            definition: listed.public_definition().clone(),
            is_read_only: listed.hints.is_read_only,
            pin_status,
        });
    }

    /// Qualifies URIs that several servers offer, or that look like a qualified URI of a known server, and addresses of
    /// pages.
    fn qualify_ambiguous(&mut self, listings: &Listings, qualify: fn(&ServerId, &str) -> String) {
        let names_server = |uri: &str| {
            resource_uri::split_qualified(uri).is_some_and(|(server, _)| listings.contains_key(&server))
        };
        for (own_uri, owners) in &self.by_own_name {
            if owners.len() > 1 || resource_uri::is_page(own_uri) || names_server(own_uri) {
                for index in owners {
                    let item = &mut self.items[*index];
                    item.public_name = qualify(&item.server, own_uri).into();
                }
            }
        }
    }

    /// Finds the item with a public name.
    pub(super) fn find_public(&self, name: &str) -> Option<&CatalogItem> {
        self.by_public_name.get(name).map(|index| &self.items[*index])
    }

    /// Finds the items that their servers list under a name.
    pub(super) fn find_own(&self, name: &str) -> impl ExactSizeIterator<Item = &CatalogItem> + Clone {
        self.by_own_name
            .get(name)
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(|index| &self.items[*index])
    }

    /// Finds the items with a name that has no server prefix: the configured name of a renamed item, otherwise the
    /// server's own name.
    pub(super) fn find_bare(&self, name: &str) -> Vec<&CatalogItem> {
        let is_renamed = |index: &usize| self.by_alias.values().any(|renamed| renamed.contains(index));
        let own = self.by_own_name.get(name).into_iter().flatten().filter(|index| !is_renamed(index));
        own.chain(self.by_alias.get(name).into_iter().flatten()).map(|index| &self.items[*index]).collect()
    }

    /// Returns whether any item has this public or bare name.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_public_name.contains_key(name) || !self.find_bare(name).is_empty()
    }
}
