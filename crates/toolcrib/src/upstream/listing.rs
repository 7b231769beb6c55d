//! The lists that a server offers, read page by page.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Connection;
use crate::model::error::{Error, ErrorKind};
use crate::model::listing::{ListPages, ListTtl, ListedItem, Listing};
use crate::protocol::era::handshake::{error_code, error_message};
use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::{ResponsePayload, code};
use crate::protocol::list_kind::ListKind;

/// Pages that a list may have.
const MAX_PAGES: usize = 1000;
/// Total bytes of definitions that a list may have.
const MAX_BYTES: usize = 64 << 20;
/// Extra time for the other lists after the tools have arrived.
const OPTIONAL_LIST_GRACE: Duration = Duration::from_secs(5);

/// Fetches all pages of all lists that the server declares, concurrently. Items that cannot be read are skipped;
/// so are lists other than tools.
///
/// # Errors
///
/// Fails if the connection is lost or the tools cannot be listed.
pub(crate) async fn fetch_listing(connection: &Connection) -> Result<Listing, Error> {
    let tools_done = CancellationToken::new();
    let tools = async {
        let tools = fetch_list(connection, ListKind::Tools).await;
        tools_done.cancel();
        tools
    };
    let (tools, prompts, resources, templates) = tokio::try_join!(
        tools,
        fetch_optional_list(connection, ListKind::Prompts, &tools_done),
        fetch_optional_list(connection, ListKind::Resources, &tools_done),
        fetch_optional_list(connection, ListKind::Templates, &tools_done),
    )?;
    let handshake = &connection.handshake;
    let mut listing = Listing {
        capabilities: handshake.capabilities.clone(),
        instructions: handshake.instructions.clone(),
        ..Listing::default()
    };
    connection.set_task_only_tools(&tools.items);
    listing.set_list(ListKind::Tools, tools);
    let optional =
        [(ListKind::Prompts, prompts), (ListKind::Resources, resources), (ListKind::Templates, templates)];
    for (kind, listed) in optional {
        match listed {
            Some(pages) => listing.set_list(kind, pages),
            None => listing.unread.push(kind),
        }
    }
    Ok(listing)
}

/// Fetches a list other than tools: `None` if that fails or takes too long.
async fn fetch_optional_list(
    connection: &Connection,
    kind: ListKind,
    tools_done: &CancellationToken,
) -> Result<Option<ListPages>, Error> {
    let grace_over = async {
        tools_done.cancelled().await;
        sleep(OPTIONAL_LIST_GRACE).await;
    };
    let listed = tokio::select! {
        listed = fetch_list(connection, kind) => listed,
        () = grace_over => Err(Error::new(ErrorKind::TimedOut, "it took too long")),
    };
    listed.map(Some).or_else(|error| match error.kind() {
        ErrorKind::Lost => Err(error),
        _ => {
            warn!(server = %connection.server, list = kind.method(), %error, "cannot read a list; it is left out");
            Ok(None)
        }
    })
}

async fn fetch_list(connection: &Connection, kind: ListKind) -> Result<ListPages, Error> {
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut seen_cursors = HashSet::new();
    let mut ttl = ListTtl::NoList;
    if !connection.handshake.has_capability(kind.capability()) {
        return Ok(ListPages { items, ttl });
    }
    let method = kind.method();
    let member = kind.list_member();
    let mut params = Object::default();
    for _ in 0..MAX_PAGES {
        let page = match connection.request(method, params).await? {
            ResponsePayload::Result(page) => Object::parse(&page).map_err(|bad| bad_reply(&bad.reason))?,
            // Many servers with resources do not know templates.
            ResponsePayload::Error(error)
                if kind == ListKind::Templates && error_code(&error) == Some(code::METHOD_NOT_FOUND) =>
            {
                return Ok(ListPages { items, ttl });
            }
            ResponsePayload::Error(error) => {
                let message = error_message(&error);
                return Err(bad_reply(&format!(
                    "`{method}` failed: {}",
                    connection.mux.redactor().redact(&message)
                )));
            }
        };
        let raw_items = page
            .get(member)
            .ok_or_else(|| bad_reply(&format!("the response to `{method}` has no `{member}`")))?;
        bytes += raw_items.len();
        if bytes > MAX_BYTES {
            return Err(bad_reply(&format!("its list of {member} is larger than 64 MiB")));
        }
        ttl = ttl.combine(ListTtl::from_page(&page, Instant::now()));
        let parsed = ListedItem::parse_all(kind, raw_items);
        items.extend(parsed.map_err(|bad| bad_reply(&format!("`{member}` cannot be read: {bad}")))?);
        // An empty string is a valid cursor.
        let Some(cursor) = page.get_string("nextCursor").map(std::borrow::Cow::into_owned) else {
            return Ok(ListPages { items, ttl });
        };
        params = Object::default();
        params.set_unchecked("cursor", object::to_json_string(&cursor));
        if !seen_cursors.insert(cursor) {
            let reason = format!("its list of {member} is circular: a cursor was repeated");
            return Err(bad_reply(&reason));
        }
    }
    Err(bad_reply(&format!("its list of {member} has more than 1000 pages")))
}

fn bad_reply(reason: &str) -> Error {
    Error::new(ErrorKind::BadReply, reason)
}
