//! Asks a server everything it offers, page by page.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use super::Connection;
use crate::error::{Error, ErrorKind};
use crate::wire::dialect::greeting::refusal;
use crate::wire::message::Answer;
use crate::wire::object::{self, Object};

/// Pages a server may cut its list into.
const MOST_PAGES: usize = 1000;
/// Bytes of definitions a server may offer.
const MOST_BYTES: usize = 64 << 20;

/// Everything a server offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Listing {
    pub(crate) tools: Vec<ListedTool>,
}

/// One tool as the server defined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedTool {
    pub(crate) name: Arc<str>,
    pub(crate) definition: Bytes,
}

impl ListedTool {
    /// A definition without a name, or one that cannot be read, is not a tool.
    pub(crate) fn read(definition: Bytes) -> Option<Self> {
        let name = Object::parse(&definition).ok()?.string("name")?.as_ref().into();
        Some(Self { name, definition })
    }
}

impl Listing {
    /// All pages. A server that says it has no tools is not asked; a tool that cannot be read costs only itself.
    pub(crate) async fn fetch(connection: &Connection) -> Result<Self, Error> {
        let mut listing = Self::default();
        if !connection.welcome.has("tools") {
            return Ok(listing);
        }
        let mut seen = HashSet::new();
        let mut bytes = 0;
        let mut params = Object::default();
        for _ in 0..MOST_PAGES {
            let page = match connection.request("tools/list", params).await? {
                Answer::Result(page) => Object::parse(&page).map_err(|bad| nonsense(&bad.why))?,
                Answer::Error(error) => {
                    return Err(nonsense(&format!("`tools/list` failed: {}", refusal(&error))));
                }
            };
            let tools = page.get("tools").ok_or_else(|| nonsense("`tools/list` answered without `tools`"))?;
            bytes += tools.len();
            if bytes > MOST_BYTES {
                return Err(nonsense("its list of tools is larger than 64 MiB"));
            }
            listing.tools.extend(
                object::elements(tools)
                    .map_err(|bad| nonsense(&format!("`tools` in its list: {bad}")))?
                    .into_iter()
                    .filter_map(ListedTool::read),
            );
            // An empty string is a cursor like any other.
            let Some(cursor) = page.string("nextCursor").map(std::borrow::Cow::into_owned) else {
                return Ok(listing);
            };
            params = Object::default();
            params.set("cursor", object::string(&cursor));
            if !seen.insert(cursor) {
                return Err(nonsense("its list of tools runs in a circle: a cursor came twice"));
            }
        }
        Err(nonsense("its list of tools has more than 1000 pages"))
    }
}

fn nonsense(why: &str) -> Error {
    Error::new(ErrorKind::BadReply, why)
}
