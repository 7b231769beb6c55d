//! Lists as JSON: each is rendered once and served as the same bytes afterwards.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::index::CatalogItem;
use super::{Catalog, resource_uri};
use crate::protocol::era::adapt_tool_for_client;
use crate::protocol::json::object::{Object, to_json_string, write_string};
use crate::protocol::json::scan::find_quoted;
use crate::protocol::list_kind::ListKind;
use crate::protocol::versions::Era;

/// A list as JSON, with the offset where each item ends.
#[derive(Debug, Clone)]
pub(super) struct RenderedList {
    /// An object with the list as its only member: the result of a request for the list.
    result: Bytes,
    /// Where the list starts in it.
    start: usize,
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
    pub(super) fn from_definitions(
        kind: ListKind,
        definitions: impl ExactSizeIterator<Item = Bytes> + Clone,
    ) -> Self {
        let size = definitions.clone().map(|definition| definition.len()).sum();
        Self::from_items(kind, size, definitions, |definition, json| json.extend_from_slice(&definition))
    }

    /// Renders a list whose items `write` appends, together about `size` bytes.
    pub(super) fn from_items<T>(
        kind: ListKind,
        size: usize,
        items: impl ExactSizeIterator<Item = T>,
        write: impl Fn(T, &mut Vec<u8>),
    ) -> Self {
        let head = format!("{{\"{}\":", kind.list_member());
        let mut item_ends = Vec::with_capacity(items.len());
        let mut json = Vec::with_capacity(head.len() + size + items.len() + 3);
        json.extend_from_slice(head.as_bytes());
        json.push(b'[');
        for item in items {
            if !item_ends.is_empty() {
                json.push(b',');
            }
            write(item, &mut json);
            item_ends.push(json.len());
        }
        json.extend_from_slice(b"]}");
        json.shrink_to_fit();
        Self { result: json.into(), start: head.len(), item_ends: item_ends.into() }
    }

    /// Returns the list.
    pub(super) fn json(&self) -> Bytes {
        self.result.slice(self.start..self.result.len() - 1)
    }

    /// Returns the result with the complete list, if these are all items.
    pub(super) fn whole_result(&self, items: &Range<usize>) -> Option<Bytes> {
        (*items == (0..self.item_ends.len())).then(|| self.result.clone())
    }

    /// Returns the tools for clients of an era; the same bytes if that changes none of them.
    fn for_era(&self, era: Era) -> Self {
        let tools = (0..self.item_ends.len()).map(|index| self.item(index));
        let adapted: Vec<Option<Bytes>> =
            tools.clone().map(|tool| adapt_tool_for_client(&tool, era)).collect();
        if adapted.iter().all(Option::is_none) {
            return self.clone();
        }
        let tools = tools.zip(&adapted).map(|(tool, adapted)| adapted.clone().unwrap_or(tool));
        Self::from_definitions(ListKind::Tools, tools)
    }

    fn item(&self, index: usize) -> Bytes {
        self.result.slice(self.item_start(index)..self.item_ends[index])
    }

    fn item_start(&self, index: usize) -> usize {
        if index == 0 { self.start + 1 } else { self.item_ends[index - 1] + 1 }
    }

    /// Returns a range of the items as a JSON array.
    pub(super) fn slice(&self, range: Range<usize>) -> Bytes {
        if range == (0..self.item_ends.len()) {
            return self.json();
        }
        if range.is_empty() {
            return Bytes::from_static(b"[]");
        }
        let items = self.item_start(range.start)..self.item_ends[range.end - 1];
        [b"[", &self.result[items], b"]"].concat().into()
    }
}

impl Catalog {
    /// Returns a definition under its public name.
    pub(super) fn public_definition(&self, kind: ListKind, item: &CatalogItem) -> Bytes {
        let mut json = Vec::with_capacity(item.definition.len() + item.public_name.len());
        self.write_public_definition(kind, item, &mut json);
        json.into()
    }

    /// Appends a definition under its public name.
    pub(super) fn write_public_definition(&self, kind: ListKind, item: &CatalogItem, json: &mut Vec<u8>) {
        let has_page = kind == ListKind::Tools && names_page(&item.definition);
        if item.public_name == item.own_name && !has_page {
            return json.extend_from_slice(&item.definition);
        }
        // Most servers send the name first. With that, a definition takes 1,500 instructions, and 8,800 if it is parsed.
        let after_name = after_leading_name(&item.definition, &item.own_name);
        if let Some(after_name) = after_name.filter(|_| kind.id_member() == "name" && !has_page) {
            json.extend_from_slice(LEADING_NAME);
            write_string(json, &item.public_name);
            return json.extend_from_slice(after_name);
        }
        let Ok(mut definition) = Object::parse(&item.definition) else {
            return json.extend_from_slice(&item.definition);
        };
        definition.set_unchecked(kind.id_member(), to_json_string(&item.public_name));
        if has_page {
            resource_uri::publish_page_meta(&mut definition, |own_uri| {
                let public = self.public_uri(&item.server, own_uri);
                (public != own_uri).then(|| public.into_owned())
            });
        }
        definition.write_to(json);
    }
}

/// The start of a definition in which the name comes first.
const LEADING_NAME: &[u8] = b"{\"name\":";

/// Returns the rest of a definition after its name, if that comes first and is written without escapes.
fn after_leading_name<'a>(definition: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let value = definition.strip_prefix(LEADING_NAME)?.strip_prefix(b"\"")?;
    let has_escapes = memchr::memchr(b'\\', name.as_bytes()).is_some();
    value.strip_prefix(name.as_bytes()).filter(|_| !has_escapes)?.strip_prefix(b"\"")
}

/// Returns whether a tool definition may name a page.
pub(super) fn names_page(definition: &Bytes) -> bool {
    find_quoted(definition, resource_uri::PAGE_KEY.as_bytes()).is_some()
}
