//! The listing of a server: its lists, their time to live, and facts about its tools.

use crate::model::error::{Error, ErrorKind};
use crate::model::pin_status::PinStatus;
use crate::protocol::definition::{RepairedDefinition, repair_definition};
use crate::protocol::era::handshake::{declares_capability, error_message};
use crate::protocol::json::object::{self, ListElement, Object, as_integer};
use crate::protocol::jsonrpc::error_object;
use crate::protocol::list_kind::{ListKind, ListKinds};
use crate::protocol::member_names;
use crate::protocol::versions::Era;
use crate::spec::ServerId;
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest time to live that a server may set.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The largest result of a page that is kept, in bytes without the list.
const MAX_PAGE_RESULT: usize = 4 << 10;

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
    /// The failures of lists that could never be read, so that their content is unknown.
    pub(crate) unknown: [Option<Arc<ListFailure>>; ListKind::ALL.len()],
    /// The reasons why items of each list were left out.
    pub(crate) left_out: [Vec<String>; ListKind::ALL.len()],
    pub(crate) times: ListTimes,
    /// True if it is made from a card, which says nothing about anything but tools.
    pub(crate) is_from_card: bool,
    pub(crate) page_ends: ListPageEnds,
    /// Facts about its tools that do not come from the server.
    pub(crate) tool_facts: Arc<DeclaredToolFacts>,
}

/// The times of each list. Always equal, so that listings that differ only in this compare as the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListTimes(Arc<[ListTime; ListKind::ALL.len()]>);

impl PartialEq for ListTimes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ListTimes {}

/// The times of one list.
#[derive(Debug, Clone, Copy, Default)]
struct ListTime {
    ttl: ListTtl,
    /// When it was last requested from the server; `None` if it comes from disk.
    requested_at: Option<Instant>,
}

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
    /// The result in which the server sent the page; none if it is too large to keep.
    pub(crate) result: Option<PageResult>,
}

/// The result in which a server sent a page, with an empty list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageResult {
    /// The era of the connection. Clients of the other era need other members.
    pub(crate) era: Era,
    pub(crate) json: Bytes,
}

impl PageResult {
    /// Copies the members of a page other than its list; `None` if they are larger than 4 KiB.
    pub(crate) fn new(kind: ListKind, mut members: Object, era: Era) -> Option<Self> {
        members.set_unchecked(kind.list_member(), Bytes::from_static(b"[]"));
        let size: usize = members.iter().map(|(name, value)| name.len() + value.len()).sum();
        (size <= MAX_PAGE_RESULT).then(|| Self { era, json: members.to_bytes() })
    }
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
#[derive(Debug, Clone)]
pub(crate) struct ListPages {
    pub(crate) items: Vec<ListedItem>,
    pub(crate) ttl: ListTtl,
    pub(crate) requested_at: Instant,
    /// The reasons why items were left out.
    pub(crate) left_out: Vec<String>,
    pub(crate) page_ends: Vec<PageEnd>,
}

impl ListPages {
    /// Creates an empty list that is requested now.
    pub(crate) fn new(requested_at: Instant) -> Self {
        let items = Vec::new();
        let ttl = ListTtl::NoList;
        Self { items, ttl, requested_at, left_out: Vec::new(), page_ends: Vec::new() }
    }
}

/// A list that could not be read.
#[derive(Debug, Clone)]
pub(crate) struct ListFailure {
    pub(crate) kind: ListKind,
    /// The error object of the server, or one that describes the failure, without secrets.
    pub(crate) error: Bytes,
    /// The failure, if it is not an error that the server answered with.
    pub(crate) cause: Option<Error>,
}

/// Failures with the same error are equal.
impl PartialEq for ListFailure {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.error == other.error
    }
}

impl Eq for ListFailure {}

impl ListFailure {
    /// Creates the failure of a list that could not be read before it was saved.
    pub(crate) fn from_disk(kind: ListKind) -> Self {
        let message = format!("`{}` failed when the server last ran", kind.method());
        let error = error_object(ErrorKind::BadReply.facts().code, &message, None);
        Self { kind, error, cause: None }
    }

    /// Creates the failure of a list that was not read yet.
    fn unread(kind: ListKind) -> Self {
        let message = format!("`{}` was not answered yet", kind.method());
        let error = error_object(ErrorKind::BadReply.facts().code, &message, None);
        Self { kind, error, cause: None }
    }

    /// Returns the message of the error.
    pub(crate) fn message(&self) -> String {
        error_message(&self.error)
    }

    /// Returns the error for callers that want to know what a server lists.
    pub(crate) fn to_error(&self, server: &ServerId) -> Error {
        let noun = self.kind.item_noun();
        let message = format!("`{server}` cannot list its {noun}s: {}", self.message());
        Error::new(ErrorKind::BadReply, message).with_server(server)
    }
}

/// Lists that were requested from a server.
#[derive(Debug, Clone)]
pub(crate) struct FetchedListing {
    /// The lists that were read. All others are empty.
    pub(crate) listing: Listing,
    /// The lists that were requested.
    pub(crate) kinds: ListKinds,
    pub(crate) failures: Vec<ListFailure>,
}

impl FetchedListing {
    /// Creates the result of a start without a listing.
    pub(crate) fn unread(listing: Listing) -> Self {
        Self { listing, kinds: ListKinds::default(), failures: Vec::new() }
    }

    /// Creates the result of one list that a client has read.
    pub(crate) fn of_client(mut listing: Listing, kind: ListKind, pages: ListPages) -> Self {
        listing.set_list(kind, pages);
        Self { listing, kinds: kind.into(), failures: Vec::new() }
    }

    /// Returns the requested lists that could not be read.
    pub(crate) fn failed_kinds(&self) -> ListKinds {
        self.failures.iter().map(|failure| failure.kind).collect()
    }

    /// Returns the listing, in which the lists that were not read at `now` are taken from `before`. What was never read is
    /// unknown.
    pub(crate) fn merge(&self, before: Option<&Listing>, now: Instant) -> Listing {
        let mut listing = self.listing.clone();
        let missing = ListKinds::ALL.difference(self.kinds).union(self.failed_kinds());
        match before {
            Some(before) => missing.iter().for_each(|kind| listing.copy_list(kind, before)),
            None => {
                for kind in missing.iter().filter(|kind| self.listing.declares(kind.capability())) {
                    listing.unknown[kind as usize] = Some(Arc::new(ListFailure::unread(kind)));
                }
            }
        }
        for failure in &self.failures {
            let index = failure.kind as usize;
            Arc::make_mut(&mut listing.times.0)[index].requested_at = Some(now);
            if before.is_none_or(|before| before.unknown[index].is_some()) {
                listing.unknown[index] = Some(Arc::new(failure.clone()));
            }
        }
        listing
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
    pub(crate) hints: ToolHints,
}

/// The hints of a definition that decide how it is treated, read when it is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ToolHints {
    /// Whether the server declares that a call changes nothing.
    pub(crate) is_read_only: bool,
    /// Whether the server declares that a second call changes nothing.
    pub(crate) is_idempotent: bool,
}

impl ToolHints {
    fn from_definition(definition: &Object) -> Self {
        let annotations = definition.get("annotations").and_then(|raw| Object::parse(raw).ok());
        let is_set = |hint: &str| {
            let value = annotations.as_ref().and_then(|annotations| annotations.get(hint));
            value.is_some_and(|raw| &**raw == b"true")
        };
        Self { is_read_only: is_set("readOnlyHint"), is_idempotent: is_set("idempotentHint") }
    }
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
        Self::from_members(kind, definition, &members)
    }

    /// Like [`ListedItem::parse`], for a definition whose members are known.
    fn from_members(kind: ListKind, definition: Bytes, members: &Object) -> Option<Self> {
        let name = members.get_string(kind.id_member())?;
        if let Err(lookalike) = member_names::check_definition(members) {
            tracing::warn!(item = %name, "an item of a list is left out: {lookalike}");
            return None;
        }
        let name = name.as_ref().into();
        let repaired = repair_definition(kind, members).map(Arc::new);
        Some(Self { name, definition, repaired, hints: ToolHints::from_definition(members) })
    }

    /// Parses a raw list, in which items have at most `max_bytes`, and leaves out items that cannot be used.
    pub(crate) fn parse_all(
        kind: ListKind,
        list: &Bytes,
        max_bytes: usize,
    ) -> Result<ParsedItems, object::BadJson> {
        Ok(Self::from_elements(kind, ListElement::parse_all(list)?, max_bytes))
    }

    /// Like [`ListedItem::parse_all`], for a list whose elements are known.
    pub(crate) fn from_elements(kind: ListKind, elements: Vec<ListElement>, max_bytes: usize) -> ParsedItems {
        let count = elements.len();
        let fits = |element: &ListElement| element.raw.len() <= max_bytes;
        let too_large = elements.iter().filter(|element| !fits(element)).count();
        let fitting = elements.into_iter().filter(fits);
        let parse = |element: ListElement| Self::from_members(kind, element.raw, &element.object?);
        let items: Vec<Self> = fitting.filter_map(parse).collect();
        ParsedItems { unusable: count - too_large - items.len(), too_large, items }
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
        self.times.0[kind as usize].ttl
    }

    /// Returns whether a list has expired. A list without a TTL expires after `default_ttl`.
    pub(crate) fn is_stale(&self, kind: ListKind, default_ttl: Duration, now: Instant) -> bool {
        let time = self.times.0[kind as usize];
        match time.ttl {
            ListTtl::NoList => false,
            ListTtl::Until(until, _) => until <= now,
            ListTtl::Unspecified => time
                .requested_at
                .is_some_and(|requested| now.saturating_duration_since(requested) >= default_ttl),
        }
    }

    /// Returns the failure of a list that could never be read.
    pub(crate) fn unknown_list(&self, kind: ListKind) -> Option<&Arc<ListFailure>> {
        self.unknown[kind as usize].as_ref()
    }

    /// Returns the number of tools; `None` if they are unknown.
    pub(crate) fn tool_count(&self) -> Option<usize> {
        self.unknown_list(ListKind::Tools).is_none().then_some(self.tools.len())
    }

    /// Returns whether every list has been read.
    pub(crate) fn is_known(&self) -> bool {
        self.unknown.iter().all(Option::is_none)
    }

    /// Returns whether its tools could not be read, and it is time to ask for them again.
    pub(crate) fn has_unknown_tools(&self, list_ttl: Duration, now: Instant) -> bool {
        self.unknown_list(ListKind::Tools).is_some() && self.is_stale(ListKind::Tools, list_ttl, now)
    }

    /// Returns the lists whose content differs.
    pub(crate) fn changed_kinds(&self, other: &Self) -> ListKinds {
        let differs = |kind: &ListKind| {
            self.items(*kind) != other.items(*kind) || self.unknown_list(*kind) != other.unknown_list(*kind)
        };
        ListKind::ALL.into_iter().filter(differs).collect()
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
        listed.is_some_and(|listed| listed.hints.is_read_only || listed.hints.is_idempotent)
    }

    /// Replaces a list by that of another listing.
    pub(crate) fn copy_list(&mut self, kind: ListKind, other: &Self) {
        let index = kind as usize;
        *self.list_mut(kind) = other.items(kind).to_vec();
        self.left_out[index].clone_from(&other.left_out[index]);
        self.unknown[index].clone_from(&other.unknown[index]);
        self.page_ends.0[index] = other.page_ends.0[index].clone();
        Arc::make_mut(&mut self.times.0)[index] = other.times.0[index];
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
        let mut listing = now.clone();
        let unchanged = ListKinds::ALL.difference(now.changed_kinds(before));
        unchanged.iter().for_each(|kind| listing.copy_list(kind, self));
        listing
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
        let requested_at = Some(pages.requested_at);
        Arc::make_mut(&mut self.times.0)[kind as usize] = ListTime { ttl: pages.ttl, requested_at };
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
