//! The lists that a server offers, read page by page.

use std::collections::HashSet;
use std::sync::Arc;
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

/// Pages that a list may have.
const MAX_PAGES: usize = 1000;
/// Total bytes of definitions that a list may have.
const MAX_BYTES: usize = 64 << 20;
/// Bytes above which a page is parsed on a blocking thread. To parse this much takes a tenth of a millisecond, ten times as
/// long as to hand it over.
const LARGE_PAGE: usize = 16 << 10;
/// Extra time for the other lists after the tools have arrived.
const OPTIONAL_LIST_GRACE: Duration = Duration::from_secs(5);

/// Fetches all pages of all lists that the server declares; see [`fetch_lists`].
///
/// # Errors
///
/// Fails if the connection is lost.
pub(crate) async fn fetch_listing(connection: &Connection) -> Result<FetchedListing, Error> {
    fetch_lists(connection, ListKinds::ALL).await
}

/// Fetches all pages of lists that the server declares, concurrently. Items that cannot be read are skipped. A list that
/// cannot be read is a failure of that list only.
///
/// # Errors
///
/// Fails if the connection is lost.
pub(crate) async fn fetch_lists(connection: &Connection, kinds: ListKinds) -> Result<FetchedListing, Error> {
    let tools_done = CancellationToken::new();
    let tools = async {
        let tools = match kinds.contains(ListKind::Tools) {
            true => Some(fetch_list(connection, ListKind::Tools).await),
            false => None,
        };
        tools_done.cancel();
        tools
    };
    let optional = |kind: ListKind| {
        let tools_done = &tools_done;
        async move {
            match kinds.contains(kind) {
                true => Some(fetch_optional_list(connection, kind, tools_done).await),
                false => None,
            }
        }
    };
    let (tools, prompts, resources, templates) = tokio::join!(
        tools,
        optional(ListKind::Prompts),
        optional(ListKind::Resources),
        optional(ListKind::Templates),
    );
    let handshake = &connection.handshake;
    let listing = Listing {
        server_info: handshake.server_info.clone(),
        capabilities: handshake.capabilities.clone(),
        instructions: handshake.instructions.clone(),
        ..Listing::default()
    };
    let mut fetched = FetchedListing { listing, kinds, failures: Vec::new() };
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
    let mut list = ListPages::new(Instant::now());
    if !connection.handshake.has_capability(kind.capability()) {
        return Ok(list);
    }
    let settings = connection.settings();
    let ServerLimits { tools: max_items, definition: max_definition, .. } = settings.limits;
    let mut bytes = 0;
    let mut parsed = ParsedItems::default();
    let mut seen_cursors = HashSet::new();
    let method = kind.method();
    let member = kind.list_member();
    let mut params = Object::default();
    for _ in 0..MAX_PAGES {
        let page = match connection.request(method, params).await? {
            ResponsePayload::Result(page) => parse_large_page(kind, page, max_definition).await?,
            ResponsePayload::Error(error) if is_unsupported_list(connection, kind, &error) => {
                return Ok(list);
            }
            ResponsePayload::Error(error) => return Err(ListError::Refused(error)),
        };
        bytes += page.bytes;
        if bytes > MAX_BYTES {
            return Err(bad_reply(&format!("its list of {member} is larger than 64 MiB")).into());
        }
        list.ttl = list.ttl.combine(ListTtl::from_page(&page.members, Instant::now()));
        parsed.append(page.parsed);
        // An empty string is a valid cursor.
        let cursor = page.members.get_string("nextCursor").map(std::borrow::Cow::into_owned);
        list.page_ends.push(PageEnd {
            end: parsed.items.len(),
            next_cursor: cursor.as_deref().map(Arc::from),
            result: PageResult::new(kind, page.members, connection.era()),
        });
        let Some(cursor) = cursor.filter(|_| parsed.items.len() <= max_items) else {
            list.left_out = omit_items(kind, &mut parsed, &settings.limits);
            list.items = parsed.items;
            return Ok(list);
        };
        params = Object::default();
        params.set_unchecked("cursor", object::to_json_string(&cursor));
        if !seen_cursors.insert(cursor) {
            let reason = format!("its list of {member} is circular: a cursor was repeated");
            return Err(bad_reply(&reason).into());
        }
    }
    Err(bad_reply(&format!("its list of {member} has more than 1000 pages")).into())
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
