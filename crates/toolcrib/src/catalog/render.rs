//! Lists as JSON: each is rendered once and served as the same bytes afterwards.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::Catalog;
use super::index::CatalogItem;
use crate::protocol::era::adapt_tool_for_client;
use crate::protocol::json::object::{Object, to_json_string};
use crate::protocol::list_kind::ListKind;
use crate::protocol::versions::Era;

/// A list as JSON, with the offset where each item ends.
#[derive(Debug, Clone)]
pub(super) struct RenderedList {
    pub(super) json: Bytes,
    item_ends: Arc<[usize]>,
}

/// A list in full and as each era sees it, rendered on first use.
#[derive(Debug, Default)]
pub(super) struct ListVariants {
    full: OnceLock<RenderedList>,
    session: OnceLock<RenderedList>,
    stateless: OnceLock<RenderedList>,
}

impl ListVariants {
    /// Returns the list with everything that servers sent; `render` is called on first use.
    pub(super) fn full(&self, render: impl FnOnce() -> RenderedList) -> &RenderedList {
        self.full.get_or_init(render)
    }

    /// Returns the list for clients of an era; `render` is called on first use.
    pub(super) fn for_era(
        &self,
        kind: ListKind,
        era: Era,
        render: impl FnOnce() -> RenderedList,
    ) -> &RenderedList {
        let full = self.full(render);
        if kind != ListKind::Tools {
            return full;
        }
        let variant = match era {
            Era::Session => &self.session,
            Era::Stateless => &self.stateless,
        };
        variant.get_or_init(|| full.for_era(era))
    }
}

impl RenderedList {
    pub(super) fn from_definitions(definitions: impl Iterator<Item = Bytes>) -> Self {
        let mut json = vec![b'['];
        let mut item_ends = Vec::new();
        for definition in definitions {
            if !item_ends.is_empty() {
                json.push(b',');
            }
            json.extend_from_slice(&definition);
            item_ends.push(json.len());
        }
        json.push(b']');
        json.shrink_to_fit();
        Self { json: json.into(), item_ends: item_ends.into() }
    }

    /// Returns the tools for clients of an era; the same bytes if that changes none of them.
    fn for_era(&self, era: Era) -> Self {
        let tools = (0..self.item_ends.len()).map(|index| self.item(index));
        let adapted: Vec<Option<Bytes>> =
            tools.clone().map(|tool| adapt_tool_for_client(&tool, era)).collect();
        if adapted.iter().all(Option::is_none) {
            return self.clone();
        }
        Self::from_definitions(tools.zip(adapted).map(|(tool, adapted)| adapted.unwrap_or(tool)))
    }

    fn item(&self, index: usize) -> Bytes {
        self.json.slice(self.item_start(index)..self.item_ends[index])
    }

    fn item_start(&self, index: usize) -> usize {
        if index == 0 { 1 } else { self.item_ends[index - 1] + 1 }
    }

    /// Returns a range of the items as a JSON array.
    pub(super) fn slice(&self, range: Range<usize>) -> Bytes {
        if range == (0..self.item_ends.len()) {
            return self.json.clone();
        }
        if range.is_empty() {
            return Bytes::from_static(b"[]");
        }
        let items = self.item_start(range.start)..self.item_ends[range.end - 1];
        [b"[", &self.json[items], b"]"].concat().into()
    }
}

impl Catalog {
    /// Returns a definition under its public name.
    pub(super) fn public_definition(&self, kind: ListKind, item: &CatalogItem) -> Bytes {
        let has_ui_resource = kind == ListKind::Tools
            && memchr::memmem::find(&item.definition, RESOURCE_URI.as_bytes()).is_some();
        if item.public_name == item.own_name && !has_ui_resource {
            return item.definition.clone();
        }
        let Ok(mut definition) = Object::parse(&item.definition) else { return item.definition.clone() };
        definition.set_unchecked(kind.id_member(), to_json_string(&item.public_name));
        if has_ui_resource {
            self.publish_ui_resource(item, &mut definition);
        }
        definition.to_bytes()
    }

    /// Replaces the URI of the UI resource that a tool may name by its public URI.
    fn publish_ui_resource(&self, item: &CatalogItem, definition: &mut Object) {
        let Some(mut meta) = nested_object(definition, "_meta") else { return };
        let mut changed = self.publish_uri(item, &mut meta, "ui/resourceUri");
        if let Some(mut ui) = nested_object(&meta, "ui")
            && self.publish_uri(item, &mut ui, RESOURCE_URI)
        {
            meta.set_unchecked("ui", ui.to_bytes());
            changed = true;
        }
        if changed {
            definition.set_unchecked("_meta", meta.to_bytes());
        }
    }

    /// Replaces the URI under `key` by its public URI. Returns whether that changed it.
    fn publish_uri(&self, item: &CatalogItem, object: &mut Object, key: &'static str) -> bool {
        let Some(own_uri) = object.get_string(key).map(std::borrow::Cow::into_owned) else { return false };
        let public = self.public_uri(&item.server, &own_uri);
        let changed = public != own_uri;
        if changed {
            object.set_unchecked(key, to_json_string(&public));
        }
        changed
    }
}

/// The member of `_meta.ui` with the URI of a tool's UI resource.
const RESOURCE_URI: &str = "resourceUri";

fn nested_object(object: &Object, key: &str) -> Option<Object> {
    Object::parse(object.get(key)?).ok()
}
