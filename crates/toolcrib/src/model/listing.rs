//! The listing of a server: its lists, their time to live, and facts about its tools.

use crate::model::pin_status::PinStatus;
use crate::protocol::definition::{RepairedDefinition, repair_definition};
use crate::protocol::era::handshake::declares_capability;
use crate::protocol::json::object::{self, Object, as_integer};
use crate::protocol::list_kind::ListKind;
use crate::protocol::member_names;
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest time to live that a server may set.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Everything a server offers, and the facts about it that are needed while it is not running.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Listing {
    pub(crate) tools: Vec<ListedItem>,
    pub(crate) prompts: Vec<ListedItem>,
    pub(crate) resources: Vec<ListedItem>,
    pub(crate) templates: Vec<ListedItem>,
    /// The name and version that it gave itself, byte for byte.
    pub(crate) server_info: Option<Bytes>,
    /// Its capabilities, byte for byte.
    pub(crate) capabilities: Bytes,
    /// Its instructions for use, if any.
    pub(crate) instructions: Option<String>,
    /// Lists that could not be read.
    pub(crate) unread: Vec<ListKind>,
    /// The reasons why items of each list were left out.
    pub(crate) left_out: [Vec<String>; ListKind::ALL.len()],
    pub(crate) ttls: ListTtls,
    /// True if it is made from a card, which says nothing about anything but tools.
    pub(crate) is_from_card: bool,
    pub(crate) page_ends: ListPageEnds,
    /// Facts about its tools that do not come from the server.
    pub(crate) tool_facts: Arc<DeclaredToolFacts>,
}

/// Time to live of each list. Always equal, so that listings that differ only in this compare as the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListTtls(Arc<[ListTtl; ListKind::ALL.len()]>);

impl PartialEq for ListTtls {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ListTtls {}

/// The pages in which the server sent each list. Always equal, because a server may choose other cursors every time.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListPageEnds([Arc<[PageEnd]>; ListKind::ALL.len()]);

impl PartialEq for ListPageEnds {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ListPageEnds {}

/// The end of one page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageEnd {
    /// The number of items on this page and those before it.
    pub(crate) end: usize,
    /// The cursor of the next page; none after the last one.
    pub(crate) next_cursor: Option<Arc<str>>,
}

/// Time to live of one list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ListTtl {
    /// The server sets none.
    #[default]
    Unspecified,
    /// The server has no such list.
    NoList,
    /// Valid until the instant; the flag says whether for all callers.
    Until(Instant, bool),
}

impl ListTtl {
    /// Reads the time to live from a page received at `now`.
    pub(crate) fn from_page(page: &Object, now: Instant) -> Self {
        let Some(time) = page.get("ttlMs").and_then(|raw| as_integer(raw)) else { return Self::Unspecified };
        let public = page.get_string("cacheScope").is_some_and(|scope| scope == "public");
        Self::Until(now + Duration::from_millis(time).min(MAX_TTL), public)
    }

    /// Combines the values of two pages of one list.
    pub(crate) fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::NoList, ttl) | (ttl, Self::NoList) => ttl,
            (Self::Until(until, public), Self::Until(other_until, other_public)) => {
                Self::Until(until.min(other_until), public && other_public)
            }
            _ => Self::Unspecified,
        }
    }
}

/// Facts about a server's tools that do not come from the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DeclaredToolFacts {
    /// Public names by own name, where they differ.
    pub(crate) public_names: BTreeMap<String, String>,
    /// Tools whose definition differs from the approved one.
    pub(crate) pin_statuses: BTreeMap<Arc<str>, PinStatus>,
}

impl DeclaredToolFacts {
    /// Returns a tool's configured public name.
    pub(crate) fn public_name(&self, own_name: &str) -> Option<&str> {
        self.public_names.get(own_name).map(String::as_str)
    }

    /// Returns whether another tool's public name equals this tool's own name.
    pub(crate) fn is_name_taken(&self, own_name: &str) -> bool {
        self.public_names.values().any(|taken| taken == own_name) && !self.public_names.contains_key(own_name)
    }

    /// Returns how a tool differs from its approved definition.
    pub(crate) fn pin_status(&self, own_name: &str) -> Option<PinStatus> {
        self.pin_statuses.get(own_name).copied()
    }
}

/// The items of all pages of one list.
#[derive(Debug)]
pub(crate) struct ListPages {
    pub(crate) items: Vec<ListedItem>,
    pub(crate) ttl: ListTtl,
    /// The reasons why items were left out.
    pub(crate) left_out: Vec<String>,
    pub(crate) page_ends: Vec<PageEnd>,
}

impl Default for ListPages {
    fn default() -> Self {
        Self { items: Vec::new(), ttl: ListTtl::NoList, left_out: Vec::new(), page_ends: Vec::new() }
    }
}

/// One item of a list, as the server defined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedItem {
    /// The server's own name for it: a name, a URI, or a URI template.
    pub(crate) name: Arc<str>,
    pub(crate) definition: Bytes,
    /// The definition for clients of the gateway, if they would reject the server's own.
    pub(crate) repaired: Option<Arc<RepairedDefinition>>,
}

/// The items of one raw list.
#[derive(Debug, Default)]
pub(crate) struct ParsedItems {
    pub(crate) items: Vec<ListedItem>,
    /// The number of items that have no name, cannot be read, or have members that look alike.
    pub(crate) unusable: usize,
    /// The number of items that are too large.
    pub(crate) too_large: usize,
}

impl ParsedItems {
    /// Adds the items of the next page.
    pub(crate) fn append(&mut self, page: Self) {
        self.items.extend(page.items);
        self.unusable += page.unusable;
        self.too_large += page.too_large;
    }
}

impl ListedItem {
    /// Parses a definition; `None` if it has no name or cannot be read, or if clients could read another definition than
    /// the one that was checked.
    pub(crate) fn parse(kind: ListKind, definition: Bytes) -> Option<Self> {
        let members = Object::parse(&definition).ok()?;
        let name = members.get_string(kind.id_member())?;
        if let Err(lookalike) = member_names::check_definition(&members) {
            tracing::warn!(item = ?name, "an item of a list is left out: {lookalike}");
            return None;
        }
        let name = name.as_ref().into();
        let repaired = repair_definition(kind, &members).map(Arc::new);
        Some(Self { name, definition, repaired })
    }

    /// Parses a raw list, in which items have at most `max_bytes`, and leaves out items that cannot be used.
    pub(crate) fn parse_all(
        kind: ListKind,
        list: &Bytes,
        max_bytes: usize,
    ) -> Result<ParsedItems, object::BadJson> {
        let mut definitions = object::parse_array(list)?;
        let count = definitions.len();
        definitions.retain(|definition| definition.len() <= max_bytes);
        let too_large = count - definitions.len();
        let items: Vec<Self> =
            definitions.into_iter().filter_map(|definition| Self::parse(kind, definition)).collect();
        Ok(ParsedItems { unusable: count - too_large - items.len(), too_large, items })
    }

    /// Returns the definition that clients of the gateway get.
    pub(crate) fn public_definition(&self) -> &Bytes {
        self.repaired.as_ref().map_or(&self.definition, |repaired| &repaired.definition)
    }
}

impl Listing {
    pub(crate) fn items(&self, kind: ListKind) -> &[ListedItem] {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::Templates => &self.templates,
        }
    }

    pub(crate) fn ttl(&self, kind: ListKind) -> ListTtl {
        self.ttls.0[kind as usize]
    }

    /// Returns the ends of the pages in which the server sent a list; none if that is not known.
    pub(crate) fn page_ends(&self, kind: ListKind) -> &[PageEnd] {
        &self.page_ends.0[kind as usize]
    }

    /// Keeps the items of a list for which `keep` returns true, on the same pages.
    pub(crate) fn retain(&mut self, kind: ListKind, keep: impl Fn(&ListedItem) -> bool) {
        let kept: Vec<bool> = self.items(kind).iter().map(keep).collect();
        if kept.iter().all(|kept| *kept) {
            return;
        }
        let count = |end: usize| kept.iter().take(end).filter(|kept| **kept).count();
        let page_ends = self.page_ends(kind).iter();
        let page_ends = page_ends.map(|page| PageEnd { end: count(page.end), ..page.clone() }).collect();
        self.page_ends.0[kind as usize] = page_ends;
        let mut kept = kept.into_iter();
        self.list_mut(kind).retain(|_| kept.next().unwrap_or(true));
    }

    /// Returns whether a tool may be called twice: it is read-only or idempotent.
    pub(crate) fn is_repeatable(&self, tool: &str) -> bool {
        let listed = self.tools.iter().find(|listed| *listed.name == *tool);
        listed.is_some_and(|listed| {
            has_hint(&listed.definition, "readOnlyHint") || has_hint(&listed.definition, "idempotentHint")
        })
    }

    /// Returns this listing with the unread lists taken from `before`.
    pub(crate) fn with_unread_from(mut self, before: &Self) -> Self {
        for kind in std::mem::take(&mut self.unread) {
            *self.list_mut(kind) = before.items(kind).to_vec();
            self.page_ends.0[kind as usize] = before.page_ends.0[kind as usize].clone();
            self.left_out[kind as usize].clone_from(&before.left_out[kind as usize]);
        }
        self
    }

    /// Returns whether this listing has every name that `other` has.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        ListKind::ALL.into_iter().all(|kind| {
            let own: HashSet<&str> = self.items(kind).iter().map(|item| &*item.name).collect();
            other.items(kind).iter().all(|item| own.contains(&*item.name))
        })
    }

    /// Returns this listing with only the names for which `keep` returns true.
    pub(crate) fn filtered(&self, keep: impl Fn(&str) -> bool) -> Self {
        let mut kept = self.clone();
        for kind in ListKind::ALL {
            kept.retain(kind, |listed| keep(&listed.name));
        }
        kept
    }

    /// Returns this listing with the lists replaced that differ between `before` and `now`.
    pub(crate) fn with_changed_lists(&self, before: &Self, now: &Self) -> Self {
        let mut combined = now.clone();
        for kind in ListKind::ALL {
            if before.items(kind) == now.items(kind) {
                *combined.list_mut(kind) = self.items(kind).to_vec();
                combined.page_ends.0[kind as usize] = self.page_ends.0[kind as usize].clone();
            }
        }
        combined
    }

    fn list_mut(&mut self, kind: ListKind) -> &mut Vec<ListedItem> {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::Templates => &mut self.templates,
        }
    }

    pub(crate) fn set_list(&mut self, kind: ListKind, pages: ListPages) {
        *self.list_mut(kind) = pages.items;
        self.left_out[kind as usize] = pages.left_out;
        self.page_ends.0[kind as usize] = pages.page_ends.into();
        Arc::make_mut(&mut self.ttls.0)[kind as usize] = pages.ttl;
    }

    /// Returns the mistakes in its definitions that clients would reject a whole list for, and the reasons why items were
    /// left out.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for kind in ListKind::ALL {
            let noun = kind.item_noun();
            for item in self.items(kind) {
                let found = item.repaired.iter().flat_map(|repaired| &repaired.problems);
                problems.extend(found.map(|problem| format!("{noun} `{}`: {problem}", item.name)));
            }
            problems.extend_from_slice(&self.left_out[kind as usize]);
        }
        problems
    }

    pub(crate) fn declares(&self, capability: &str) -> bool {
        declares_capability(&self.capabilities, capability)
    }
}

/// Returns whether a tool definition sets this hint.
pub(crate) fn has_hint(definition: &Bytes, hint: &str) -> bool {
    if memchr::memmem::find(definition, hint.as_bytes()).is_none() {
        return false;
    }
    let annotations =
        Object::parse(definition).ok().and_then(|tool| Object::parse(tool.get("annotations")?).ok());
    annotations.is_some_and(|annotations| annotations.get(hint).is_some_and(|raw| &**raw == b"true"))
}
