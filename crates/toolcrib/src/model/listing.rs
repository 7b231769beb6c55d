//! The listing of a server: its lists, their time to live, and facts about its tools.

use crate::model::pin_status::{PinStatus, ToolPinStatus};
use crate::protocol::definition::{RepairedDefinition, repair_definition};
use crate::protocol::era::handshake::declares_capability;
use crate::protocol::json::object::{self, Object, as_integer};
use crate::protocol::list_kind::ListKind;
use bytes::Bytes;
use std::collections::BTreeMap;
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
    /// Its capabilities, byte for byte.
    pub(crate) capabilities: Bytes,
    /// Its instructions for use, if any.
    pub(crate) instructions: Option<String>,
    /// Lists that could not be read.
    pub(crate) unread: Vec<ListKind>,
    /// The number of items of each list that were left out, because they have no usable name.
    pub(crate) skipped: [usize; ListKind::ALL.len()],
    pub(crate) ttls: ListTtls,
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
    pub(crate) pin_statuses: Vec<ToolPinStatus>,
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
        self.pin_statuses.iter().find(|found| *found.tool == *own_name).map(|found| found.status)
    }
}

/// The items of all pages of one list.
#[derive(Debug)]
pub(crate) struct ListPages {
    pub(crate) items: Vec<ListedItem>,
    /// The number of items that were left out.
    pub(crate) skipped: usize,
    pub(crate) ttl: ListTtl,
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
#[derive(Debug)]
pub(crate) struct ParsedItems {
    pub(crate) items: Vec<ListedItem>,
    /// The number of items that have no name or cannot be read.
    pub(crate) skipped: usize,
}

impl ListedItem {
    /// Parses a definition; `None` if it has no name or cannot be read.
    pub(crate) fn parse(kind: ListKind, definition: Bytes) -> Option<Self> {
        let members = Object::parse(&definition).ok()?;
        let name = members.get_string(kind.id_member())?.as_ref().into();
        let repaired = repair_definition(kind, &members).map(Arc::new);
        Some(Self { name, definition, repaired })
    }

    /// Parses a raw list and skips items that cannot be read.
    pub(crate) fn parse_all(kind: ListKind, list: &Bytes) -> Result<ParsedItems, object::BadJson> {
        let definitions = object::parse_array(list)?;
        let count = definitions.len();
        let items: Vec<Self> =
            definitions.into_iter().filter_map(|definition| Self::parse(kind, definition)).collect();
        Ok(ParsedItems { skipped: count - items.len(), items })
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
        }
        self
    }

    /// Returns whether this listing has every name that `other` has.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let has = |list: &[ListedItem], item: &ListedItem| list.iter().any(|listed| listed.name == item.name);
        ListKind::ALL.into_iter().all(|kind| other.items(kind).iter().all(|item| has(self.items(kind), item)))
    }

    /// Returns this listing with only the names for which `keep` returns true.
    pub(crate) fn filtered(&self, keep: impl Fn(&str) -> bool) -> Self {
        let kept = |kind| self.items(kind).iter().filter(|listed| keep(&listed.name)).cloned().collect();
        Self {
            tools: kept(ListKind::Tools),
            prompts: kept(ListKind::Prompts),
            resources: kept(ListKind::Resources),
            templates: kept(ListKind::Templates),
            ..self.clone()
        }
    }

    /// Returns this listing with the lists replaced that differ between `before` and `now`.
    pub(crate) fn with_changed_lists(&self, before: &Self, now: &Self) -> Self {
        let pick = |kind: ListKind| {
            if before.items(kind) == now.items(kind) { self.items(kind) } else { now.items(kind) }
        };
        Self {
            tools: pick(ListKind::Tools).to_vec(),
            prompts: pick(ListKind::Prompts).to_vec(),
            resources: pick(ListKind::Resources).to_vec(),
            templates: pick(ListKind::Templates).to_vec(),
            ..now.clone()
        }
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
        self.skipped[kind as usize] = pages.skipped;
        Arc::make_mut(&mut self.ttls.0)[kind as usize] = pages.ttl;
    }

    /// Returns the mistakes in its definitions that clients would reject a whole list for.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for kind in ListKind::ALL {
            let noun = kind.item_noun();
            for item in self.items(kind) {
                let found = item.repaired.iter().flat_map(|repaired| &repaired.problems);
                problems.extend(found.map(|problem| format!("{noun} `{}`: {problem}", item.name)));
            }
            match self.skipped[kind as usize] {
                0 => {}
                count => problems.push(format!("{count} items of the {noun} list have no usable name")),
            }
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
