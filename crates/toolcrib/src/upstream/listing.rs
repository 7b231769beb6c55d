//! The lists that a server offers, read page by page.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Connection;
use crate::model::error::{Error, ErrorKind};
use crate::model::listing::{
    FetchedListing, ListFailure, ListPages, ListTtl, ListedItem, Listing, PageEnd, PageResult, ParsedItems,
};
use crate::protocol::era::handshake::error_code;
use crate::protocol::json::object::{self, ListElement, Object, ObjectWithList};
use crate::protocol::jsonrpc::{ResponsePayload, code, error_object, move_own_code};
use crate::protocol::list_kind::{ListKind, ListKinds};
use crate::protocol::member_names;
use crate::spec::ServerLimits;
use crate::util::locks::IgnorePoison as _;

/// Pages that a list may have.
const MAX_PAGES: usize = 1000;
/// Total bytes of definitions that a list may have.
const MAX_BYTES: usize = 64 << 20;
/// Bytes above which a page is parsed on a blocking thread. To parse this much takes a tenth of a millisecond, ten times as
/// long as to hand it over.
const LARGE_PAGE: usize = 16 << 10;
/// Lists that clients are reading page by page. Those that were continued last are kept.
const MAX_CLIENT_LISTS: usize = 8;
/// Extra time for the other lists after the tools have arrived.
const OPTIONAL_LIST_GRACE: Duration = Duration::from_secs(5);

/// Fetches all pages of all lists that the server declares, and cancels `tools_done` when the tools are there; see [`fetch_lists`].
///
/// # Errors
///
/// Fails if the connection is lost.
pub(crate) async fn fetch_listing(
    connection: &Connection,
    tools_done: &CancellationToken,
) -> Result<FetchedListing, Error> {
    fetch(connection, ListKinds::ALL, tools_done).await
}

/// Fetches all pages of lists that the server declares, concurrently. Items that cannot be read are skipped. A list that
/// cannot be read is a failure of that list only.
///
/// # Errors
///
/// Fails if the connection is lost.
pub(crate) async fn fetch_lists(connection: &Connection, kinds: ListKinds) -> Result<FetchedListing, Error> {
    fetch(connection, kinds, &CancellationToken::new()).await
}

async fn fetch(
    connection: &Connection,
    kinds: ListKinds,
    tools_done: &CancellationToken,
) -> Result<FetchedListing, Error> {
    connection.mark_listed();
    let tools = async {
        let tools = match kinds.contains(ListKind::Tools) {
            true => Some(fetch_list(connection, ListKind::Tools).await),
            false => None,
        };
        tools_done.cancel();
        tools
    };
    let optional = |kind: ListKind| async move {
        match kinds.contains(kind) {
            true => Some(fetch_optional_list(connection, kind, tools_done).await),
            false => None,
        }
    };
    let (tools, prompts, resources, templates) = tokio::join!(
        tools,
        optional(ListKind::Prompts),
        optional(ListKind::Resources),
        optional(ListKind::Templates),
    );
    let mut fetched = FetchedListing { listing: connection.handshake_listing(), kinds, failures: Vec::new() };
    for (kind, listed) in ListKind::ALL.into_iter().zip([tools, prompts, resources, templates]) {
        match listed {
            None => {}
            Some(Ok(pages)) => {
                if kind == ListKind::Tools {
                    connection.set_task_only_tools(&pages.items);
                }
                fetched.listing.set_list(kind, pages);
            }
            Some(Err(ListError::Failed(error))) if error.kind() == ErrorKind::Lost => return Err(error),
            Some(Err(error)) => {
                let failure = connection.list_failure(kind, error);
                fetched.listing.unknown[kind as usize] = Some(Arc::new(failure.clone()));
                fetched.failures.push(failure);
            }
        }
    }
    Ok(fetched)
}

/// The reason why a list could not be read.
enum ListError {
    /// The server answered with this error object.
    Refused(Bytes),
    /// The server did not answer, or its answer is invalid.
    Failed(Error),
}

impl From<Error> for ListError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Connection {
    /// Returns what the handshake told, without lists.
    pub(crate) fn handshake_listing(&self) -> Listing {
        Listing {
            server_info: self.handshake.server_info.clone(),
            capabilities: self.handshake.capabilities.clone(),
            instructions: self.handshake.instructions.clone(),
            ..Listing::default()
        }
    }

    /// Adds a page that a client has requested from the server. Returns the list if this was its last page.
    pub(crate) async fn add_client_page(
        &self,
        kind: ListKind,
        cursor: Option<&str>,
        page: Bytes,
        requested_at: Instant,
    ) -> Option<ListPages> {
        let mut list = self.client_lists.take(kind, cursor, requested_at)?;
        match list.add_page(self, page).await {
            Ok(Some(next)) => {
                self.client_lists.keep(list, next);
                None
            }
            Ok(None) => {
                self.mark_listed();
                if kind == ListKind::Tools {
                    self.set_task_only_tools(&list.pages.items);
                }
                Some(list.pages)
            }
            // The client has the page and finds out for itself.
            Err(_) => None,
        }
    }

    fn list_failure(&self, kind: ListKind, error: ListError) -> ListFailure {
        let (error, cause) = match error {
            ListError::Refused(error) => (move_own_code(error), None),
            ListError::Failed(cause) => {
                let cause = cause.with_server(&self.server);
                let code = cause.kind().facts().code;
                (error_object(code, &cause.to_string(), Some(&cause.data())), Some(cause))
            }
        };
        ListFailure { kind, error: self.mux.redactor().redact_json(error), cause }
    }
}

/// Fetches a list other than tools, for which the other lists do not wait long.
async fn fetch_optional_list(
    connection: &Connection,
    kind: ListKind,
    tools_done: &CancellationToken,
) -> Result<ListPages, ListError> {
    let grace_over = async {
        tools_done.cancelled().await;
        sleep(OPTIONAL_LIST_GRACE).await;
    };
    tokio::select! {
        listed = fetch_list(connection, kind) => listed,
        () = grace_over => {
            let method = kind.method();
            let limit = OPTIONAL_LIST_GRACE.as_secs();
            Err(Error::new(ErrorKind::TimedOut, format!("no answer to `{method}` within {limit}s")).into())
        }
    }
}

async fn fetch_list(connection: &Connection, kind: ListKind) -> Result<ListPages, ListError> {
    let mut list = PartialList::new(kind, Instant::now());
    if !connection.handshake.has_capability(kind.capability()) {
        return Ok(list.pages);
    }
    let method = kind.method();
    let mut params = Object::default();
    loop {
        let page = match connection.request(method, params).await? {
            ResponsePayload::Result(page) => page,
            ResponsePayload::Error(error) if is_unsupported_list(connection, kind, &error) => {
                return Ok(list.pages);
            }
            ResponsePayload::Error(error) => return Err(ListError::Refused(error)),
        };
        let Some(cursor) = list.add_page(connection, page).await? else { return Ok(list.pages) };
        params = Object::default();
        params.set_unchecked("cursor", object::to_json_string(&cursor));
    }
}

/// A list of which some pages have been read.
#[derive(Debug)]
struct PartialList {
    kind: ListKind,
    pages: ListPages,
    parsed: ParsedItems,
    /// The size of the items so far, in bytes.
    bytes: usize,
    seen_cursors: HashSet<String>,
}

impl PartialList {
    fn new(kind: ListKind, requested_at: Instant) -> Self {
        let pages = ListPages::new(requested_at);
        Self { kind, pages, parsed: ParsedItems::default(), bytes: 0, seen_cursors: HashSet::new() }
    }

    /// Adds the next page and returns the cursor of the page after it; `None` if the list is complete.
    async fn add_page(&mut self, connection: &Connection, page: Bytes) -> Result<Option<String>, Error> {
        let settings = connection.settings();
        let member = self.kind.list_member();
        if self.pages.page_ends.len() == MAX_PAGES {
            return Err(bad_reply(&format!("its list of {member} has more than 1000 pages")));
        }
        let page = parse_large_page(self.kind, page, settings.limits.definition).await?;
        self.bytes += page.bytes;
        if self.bytes > MAX_BYTES {
            return Err(bad_reply(&format!("its list of {member} is larger than 64 MiB")));
        }
        self.pages.ttl = self.pages.ttl.combine(ListTtl::from_page(&page.members, Instant::now()));
        self.parsed.append(page.parsed);
        // An empty string is a valid cursor.
        let cursor = page.members.get_string("nextCursor").map(std::borrow::Cow::into_owned);
        self.pages.page_ends.push(PageEnd {
            end: self.parsed.items.len(),
            next_cursor: cursor.as_deref().map(Arc::from),
            result: PageResult::new(self.kind, page.members, connection.era()),
        });
        let Some(cursor) = cursor.filter(|_| self.parsed.items.len() <= settings.limits.tools) else {
            let mut parsed = std::mem::take(&mut self.parsed);
            self.pages.left_out = omit_items(self.kind, &mut parsed, &settings.limits);
            self.pages.items = parsed.items;
            return Ok(None);
        };
        if !self.seen_cursors.insert(cursor.clone()) {
            return Err(bad_reply(&format!("its list of {member} is circular: a cursor was repeated")));
        }
        Ok(Some(cursor))
    }
}

/// The lists that clients read page by page, as far as they have come.
#[derive(Debug, Default)]
pub(super) struct ClientLists(Mutex<Vec<ClientList>>);

/// A list that a client reads, and the cursor of its next page.
#[derive(Debug)]
struct ClientList {
    list: PartialList,
    next: String,
}

impl ClientLists {
    /// Takes the list whose next page has this cursor; a new one for the first page.
    fn take(&self, kind: ListKind, cursor: Option<&str>, requested_at: Instant) -> Option<PartialList> {
        let Some(cursor) = cursor else { return Some(PartialList::new(kind, requested_at)) };
        let mut lists = self.0.lock().ignore_poison();
        let index = lists.iter().position(|client| client.list.kind == kind && client.next == cursor)?;
        Some(lists.remove(index).list)
    }

    /// Keeps a list until its next page arrives. Only the latest few are kept.
    fn keep(&self, list: PartialList, next: String) {
        let mut lists = self.0.lock().ignore_poison();
        lists.truncate(MAX_CLIENT_LISTS - 1);
        lists.insert(0, ClientList { list, next });
    }
}

/// Returns whether an error says that a server does not have a list. Many servers with resources do not know templates,
/// and a server that refused the probe has declared nothing.
fn is_unsupported_list(connection: &Connection, kind: ListKind, error: &Bytes) -> bool {
    let may_be_unsupported = kind == ListKind::Templates || connection.handshake.is_assumed();
    may_be_unsupported && error_code(error) == Some(code::METHOD_NOT_FOUND)
}

/// Removes the items that a list has too many, and returns the reasons why items are left out.
fn omit_items(kind: ListKind, parsed: &mut ParsedItems, limits: &ServerLimits) -> Vec<String> {
    let member = kind.list_member();
    let ParsedItems { items, unusable, too_large } = parsed;
    let mut reasons = Vec::new();
    if items.len() > limits.tools {
        items.truncate(limits.tools);
        reasons.push(format!("its {member} after the first {} are left out: `limits.tools`", limits.tools));
    }
    if *too_large > 0 {
        let limit = limits.definition;
        reasons.push(format!(
            "{too_large} of its {member} are left out: larger than {limit} bytes, `limits.definition`"
        ));
    }
    if *unusable > 0 {
        let noun = kind.item_noun();
        reasons.push(format!("{unusable} items of the {noun} list have no usable name or ambiguous members"));
    }
    reasons
}

/// A page of a list.
struct ListPage {
    members: Object,
    parsed: ParsedItems,
    /// The size of the items, in bytes.
    bytes: usize,
}

/// Parses a page; a large one on a blocking thread, so that calls go on meanwhile.
async fn parse_large_page(kind: ListKind, page: Bytes, max_definition: usize) -> Result<ListPage, Error> {
    if page.len() <= LARGE_PAGE {
        return ListPage::parse(kind, &page, max_definition);
    }
    let parsed = tokio::task::spawn_blocking(move || ListPage::parse(kind, &page, max_definition)).await;
    parsed.unwrap_or_else(|error| Err(bad_reply(&error.to_string())))
}

impl ListPage {
    fn parse(kind: ListKind, page: &Bytes, max_definition: usize) -> Result<Self, Error> {
        let member = kind.list_member();
        let page = Object::parse_with_list(page, member).map_err(|bad| bad_reply(&bad.reason))?;
        let ObjectWithList { object: members, elements } = page;
        member_names::check_page(&members).map_err(|lookalike| bad_reply(&lookalike.to_string()))?;
        let raw_items = members
            .get(member)
            .ok_or_else(|| bad_reply(&format!("the response to `{}` has no `{member}`", kind.method())))?;
        let bytes = raw_items.len();
        let elements = elements.map_or_else(|| ListElement::parse_all(raw_items), Ok);
        let elements = elements.map_err(|bad| bad_reply(&format!("`{member}` cannot be read: {bad}")))?;
        let parsed = ListedItem::from_elements(kind, elements, max_definition);
        Ok(Self { members, parsed, bytes })
    }
}

fn bad_reply(reason: &str) -> Error {
    Error::new(ErrorKind::BadReply, reason)
}
