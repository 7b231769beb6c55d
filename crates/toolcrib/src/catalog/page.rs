//! Pagination of long lists.
//!
//! A cursor names the last item of the previous page, so it stays valid when other servers are added or removed. It
//! also names its list, so it is rejected for any other list.

use std::ops::Range;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::index::CatalogItem;
use super::render::RenderedList;
use crate::model::error::{Error, ErrorKind};
use crate::model::listing::{ListedItem, Listing, PageEnd, PageResult};
use crate::protocol::list_kind::ListKind;
use crate::spec::ServerId;
use crate::util::encoding;

/// Items per page.
pub const PAGE_SIZE: usize = 1000;

/// Bytes of the digest at the start of a cursor.
const DIGEST_LEN: usize = 4;

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The items, as a JSON array.
    pub items: Bytes,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
    /// The result in which the server sent the page, with an empty list, if it suits the era of the client.
    pub own_result: Option<Bytes>,
    /// See [`Page::session_result`].
    pub(super) session_result: Option<Bytes>,
}

impl Page {
    /// Creates a page with these items of a list.
    pub(super) fn new(rendered: &RenderedList, items: Range<usize>, next_cursor: Option<String>) -> Self {
        let session_result = rendered.whole_result(&items).filter(|_| next_cursor.is_none());
        Self { items: rendered.slice(items), next_cursor, own_result: None, session_result }
    }

    /// Returns the result of a list request of a session, if the page is for one and has all items of the list and no others. It is
    /// rendered once for all clients.
    #[doc(hidden)]
    pub fn session_result(&self) -> Option<Bytes> {
        self.session_result.clone()
    }

    /// Inserts items before the others, as JSON values with commas between them.
    #[doc(hidden)]
    pub fn insert_first(&mut self, items: &str) {
        let separator = if &*self.items == b"[]" { "" } else { "," };
        self.items = [b"[", items.as_bytes(), separator.as_bytes(), &self.items[1..]].concat().into();
        self.session_result = None;
    }
}

/// Returns the error for a cursor that was not issued for a list.
pub(super) fn unknown_cursor_error() -> Error {
    Error::new(ErrorKind::Unknown, "unknown cursor").with_hint("list again without a cursor")
}

/// A page as the server sent it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerPage {
    /// The items of the page, the server's cursor of the next one, and the result in which it was sent.
    Found { items: Range<usize>, next_cursor: Option<String>, result: Option<PageResult> },
    /// The server did not send this cursor.
    UnknownCursor,
    /// The pages of the server are not known.
    UnknownPages,
}

/// Finds the page of a server's list that follows a cursor of the server. The list has `len` items.
pub(super) fn server_page(pages: &[PageEnd], len: usize, cursor: Option<&str>) -> ServerPage {
    let index = match cursor {
        None => Some(0),
        Some(_) => pages.iter().position(|page| page.next_cursor.as_deref() == cursor).map(|page| page + 1),
    };
    let page = index.and_then(|index| Some((index, pages.get(index)?)));
    let Some((index, page)) = page else {
        return if pages.is_empty() { ServerPage::UnknownPages } else { ServerPage::UnknownCursor };
    };
    let start = if index == 0 { 0 } else { pages[index - 1].end.min(len) };
    // Items may have been left out at the end.
    let is_last = index + 1 == pages.len();
    let end = if is_last { len } else { page.end.min(len) };
    let next_cursor = page.next_cursor.as_deref().filter(|_| !is_last).map(str::to_owned);
    ServerPage::Found { items: start..end.max(start), next_cursor, result: page.result.clone() }
}

/// Returns whether a listing has items on the page that follows a cursor of the server.
pub(crate) fn has_page_items(listing: &Listing, kind: ListKind, cursor: Option<&str>) -> bool {
    let len = listing.items(kind).len();
    match server_page(listing.page_ends(kind), len, cursor) {
        ServerPage::Found { items, .. } => !items.is_empty(),
        ServerPage::UnknownCursor => false,
        ServerPage::UnknownPages => cursor.is_none() && len > 0,
    }
}

/// The items of a list that is paged.
#[derive(Debug, Clone, Copy)]
pub(super) enum PageRows<'a> {
    /// The items of all servers.
    All(&'a [CatalogItem]),
    /// The items of one server.
    OneServer(&'a ServerId, &'a [ListedItem]),
}

impl PageRows<'_> {
    /// Returns the page after the cursor.
    pub(super) fn page(
        self,
        kind: ListKind,
        rendered: &RenderedList,
        cursor: Option<&str>,
        size: usize,
    ) -> Result<Page, Error> {
        let start = match cursor {
            None => 0,
            Some(cursor) => {
                let row = PageRow::from_cursor(cursor, kind, self.scope());
                self.position_after(&row.ok_or_else(unknown_cursor_error)?)
            }
        };
        let end = self.len().min(start + size);
        let has_more = start < end && end < self.len();
        let next_cursor = has_more.then(|| self.row(end - 1).to_cursor(kind, self.scope()));
        Ok(Page::new(rendered, start..end, next_cursor))
    }

    fn len(self) -> usize {
        match self {
            Self::All(items) => items.len(),
            Self::OneServer(_, listed) => listed.len(),
        }
    }

    /// The server whose list it is; empty for the list of all servers.
    fn scope(&self) -> &str {
        match self {
            Self::All(_) => "",
            Self::OneServer(server, _) => server.as_str(),
        }
    }

    fn own_name(&self, index: usize) -> &str {
        match self {
            Self::All(items) => &items[index].own_name,
            Self::OneServer(_, listed) => &listed[index].name,
        }
    }

    /// Returns the range of one server's items; empty at their place if there are none.
    fn server_range(self, server: &str) -> Range<usize> {
        match self {
            Self::All(items) => {
                items.partition_point(|item| item.server.as_str() < server)
                    ..items.partition_point(|item| item.server.as_str() <= server)
            }
            Self::OneServer(_, listed) => 0..listed.len(),
        }
    }

    fn row(&self, index: usize) -> PageRow {
        let server = match self {
            Self::All(items) => items[index].server.as_str(),
            Self::OneServer(server, _) => server.as_str(),
        };
        PageRow {
            server: server.to_owned(),
            index_in_server: index - self.server_range(server).start,
            own_name: self.own_name(index).to_owned(),
        }
    }

    /// Returns the position after a row, or the position where it would be if its server no longer lists it.
    fn position_after(self, row: &PageRow) -> usize {
        let range = self.server_range(&row.server);
        let is_row = |index: &usize| self.own_name(*index) == row.own_name;
        let expected = range.start.saturating_add(row.index_in_server).min(range.end);
        if range.contains(&expected) && is_row(&expected) {
            return expected + 1;
        }
        range.into_iter().find(is_row).map_or(expected, |index| index + 1)
    }
}

/// One item of a list, as a cursor names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PageRow {
    server: String,
    /// Its index among the server's items.
    index_in_server: usize,
    own_name: String,
}

impl PageRow {
    fn to_cursor(&self, kind: ListKind, scope: &str) -> String {
        let Self { server, index_in_server, own_name } = self;
        let text = format!("{}\n{scope}\n{server}\n{index_in_server}\n{own_name}", kind.list_member());
        let digest = Sha256::digest(text.as_bytes());
        encoding::to_hex(&[&digest[..DIGEST_LEN], text.as_bytes()].concat())
    }

    /// Parses a cursor. Returns `None` if it is malformed or belongs to another list.
    fn from_cursor(cursor: &str, kind: ListKind, scope: &str) -> Option<Self> {
        let bytes = encoding::parse_hex(cursor)?;
        let (digest, text) = bytes.split_at_checked(DIGEST_LEN)?;
        if Sha256::digest(text)[..DIGEST_LEN] != *digest {
            return None;
        }
        let mut fields = std::str::from_utf8(text).ok()?.splitn(5, '\n');
        if fields.next()? != kind.list_member() || fields.next()? != scope {
            return None;
        }
        Some(Self {
            server: fields.next()?.to_owned(),
            index_in_server: fields.next()?.parse().ok()?,
            own_name: fields.next()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(server: &str, own_name: &str) -> CatalogItem {
        CatalogItem {
            is_read_only: false,
            server: server.parse().unwrap(),
            own_name: own_name.into(),
            public_name: own_name.into(),
            definition: format!("{own_name:?}").into(),
            pin_status: None,
        }
    }

    fn page(items: &[CatalogItem], cursor: Option<&str>, size: usize) -> (Vec<String>, Option<String>) {
        let definitions = items.iter().map(|item| item.definition.clone());
        let rendered = RenderedList::from_definitions(ListKind::Tools, definitions);
        let page = PageRows::All(items).page(ListKind::Tools, &rendered, cursor, size).unwrap();
        (serde_json::from_slice(&page.items).unwrap(), page.next_cursor)
    }

    #[test]
    fn cursor_survives_changes_of_its_list() {
        let mut items = vec![item("a", "1"), item("b", "2"), item("b", "3"), item("b", "4"), item("c", "5")];
        let (first, next) = page(&items, None, 3);
        assert_eq!(first, ["1", "2", "3"]);
        assert_eq!(page(&items, next.as_deref(), 3), (vec!["4".into(), "5".into()], None));
        items.remove(0);
        assert_eq!(page(&items, next.as_deref(), 3).0, ["4", "5"]);
        items.insert(0, item("b", "0"));
        assert_eq!(page(&items, next.as_deref(), 3).0, ["4", "5"]);
        items.retain(|item| &*item.own_name != "3" && &*item.own_name != "0");
        assert_eq!(page(&items, next.as_deref(), 3).0, ["4", "5"]);
        items.retain(|item| item.server.as_str() != "b");
        assert_eq!(page(&items, next.as_deref(), 3).0, ["5"]);
        items.clear();
        assert_eq!(page(&items, next.as_deref(), 3), (vec![], None));
    }

    #[test]
    fn page_with_a_cursor_or_without_all_items_has_no_session_result() {
        let definitions = ["1", "2"].map(|definition| Bytes::from_static(definition.as_bytes()));
        let rendered = RenderedList::from_definitions(ListKind::Tools, definitions.into_iter());
        let result = |items, cursor: Option<&str>| {
            Page::new(&rendered, items, cursor.map(str::to_owned)).session_result
        };
        assert_eq!(result(0..2, None).as_deref(), Some(&br#"{"tools":[1,2]}"#[..]));
        assert_eq!(result(0..2, Some("more")), None, "the server announced another page");
        assert_eq!((result(0..1, None), result(2..2, None)), (None, None));
    }

    #[test]
    fn cursor_of_another_list_is_rejected() {
        let row = PageRow { server: "a".into(), index_in_server: 3, own_name: "x".into() };
        let cursor = row.to_cursor(ListKind::Tools, "");
        assert_eq!(PageRow::from_cursor(&cursor, ListKind::Tools, ""), Some(row));
        assert_eq!(PageRow::from_cursor(&cursor, ListKind::Prompts, ""), None);
        assert_eq!(PageRow::from_cursor(&cursor, ListKind::Tools, "a"), None);
        for bad in ["", "x", "00", "zz".repeat(20).as_str(), &cursor[2..], &format!("{cursor}0"), "ü"] {
            assert_eq!(PageRow::from_cursor(bad, ListKind::Tools, ""), None, "{bad}");
        }
    }

    #[test]
    fn pages_of_a_server_follow_its_cursors() {
        let page = |end, next_cursor: Option<&str>| PageEnd {
            end,
            next_cursor: next_cursor.map(Into::into),
            result: None,
        };
        let pages = [page(3, Some("")), page(4, Some("c")), page(6, None)];
        let found = |items, next_cursor: Option<&str>| ServerPage::Found {
            items,
            next_cursor: next_cursor.map(str::to_owned),
            result: None,
        };
        assert_eq!(server_page(&pages, 6, None), found(0..3, Some("")));
        assert_eq!(server_page(&pages, 6, Some("")), found(3..4, Some("c")));
        assert_eq!(server_page(&pages, 6, Some("c")), found(4..6, None));
        assert_eq!(server_page(&pages, 6, Some("x")), ServerPage::UnknownCursor);
        assert_eq!(server_page(&pages, 2, Some("c")), found(2..2, None), "items were left out");
        assert_eq!(server_page(&[], 6, Some("x")), ServerPage::UnknownPages);
        assert_eq!(server_page(&[page(6, Some("more"))], 6, None), found(0..6, None), "more was not read");
    }

    proptest! {
        #[test]
        fn cursors_round_trip(server in "[a-z]{1,5}", index_in_server in any::<usize>(), own_name in "(?s).{0,40}") {
            let row = PageRow { server, index_in_server, own_name };
            for (kind, scope) in [(ListKind::Tools, ""), (ListKind::Resources, "git")] {
                prop_assert_eq!(PageRow::from_cursor(&row.to_cursor(kind, scope), kind, scope), Some(row.clone()));
            }
        }

        #[test]
        fn arbitrary_cursors_never_panic(text in "([0-9a-f]{2}){0,40}|.{0,40}") {
            let _ = PageRow::from_cursor(&text, ListKind::Tools, "");
        }

        #[test]
        fn pages_add_up_to_the_list(
            names in prop::collection::btree_set(("[a-c]", "[a-z]{1,4}"), 0..40),
            size in 1usize..10,
        ) {
            let items: Vec<CatalogItem> = names.iter().map(|(server, name)| item(server, name)).collect();
            let (mut all, mut next) = page(&items, None, size);
            while let Some(cursor) = next {
                let (more, after) = page(&items, Some(&cursor), size);
                prop_assert!(!more.is_empty());
                all.extend(more);
                next = after;
            }
            let names: Vec<&str> = items.iter().map(|item| &*item.own_name).collect();
            prop_assert_eq!(all, names);
        }
    }
}
