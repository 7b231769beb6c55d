//! `Page`: a list that is too long for one answer, piece by piece.
//!
//! A cursor names the last thing given out, so it stays good when other servers come or go; it also says of which list
//! it is, so it is not taken for one of another.

use std::ops::Range;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::render::Rendered;
use super::shelf::Item;
use crate::connection::listing::Listed;
use crate::error::{Error, ErrorKind};
use crate::spec::ServerId;
use crate::wire::kind::Kind;

/// Things on one page.
pub const PAGE: usize = 1000;

/// Bytes of the digest that a cursor begins with.
const DIGEST: usize = 4;

/// One piece of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// A JSON array.
    pub items: Bytes,
    /// The cursor of the next piece, if there is one.
    pub next: Option<String>,
}

/// A list as somebody sees it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rows<'a> {
    /// Of every server.
    All(&'a [Item]),
    /// Of one server.
    Of(&'a ServerId, &'a [Listed]),
}

impl Rows<'_> {
    /// The piece that follows the cursor.
    pub(super) fn page(
        self,
        kind: Kind,
        rendered: &Rendered,
        cursor: Option<&str>,
        size: usize,
    ) -> Result<Page, Error> {
        let start = match cursor {
            None => 0,
            Some(cursor) => {
                let place = Place::read(cursor, kind, self.view());
                let unknown = || Error::new(ErrorKind::Unknown, "this cursor was not given out here");
                self.behind(&place.ok_or_else(|| unknown().hint("ask for the list from its beginning"))?)
            }
        };
        let end = self.len().min(start + size);
        let next = (start < end && end < self.len()).then(|| self.place(end - 1).write(kind, self.view()));
        Ok(Page { items: rendered.part(start..end), next })
    }

    fn len(self) -> usize {
        match self {
            Self::All(items) => items.len(),
            Self::Of(_, listed) => listed.len(),
        }
    }

    /// Whose list it is; nothing if it is everybody's.
    fn view(&self) -> &str {
        match self {
            Self::All(_) => "",
            Self::Of(server, _) => server.as_str(),
        }
    }

    fn own_name(&self, at: usize) -> &str {
        match self {
            Self::All(items) => &items[at].own_name,
            Self::Of(_, listed) => &listed[at].name,
        }
    }

    /// Where the things of one server are, or would be.
    fn block(self, server: &str) -> Range<usize> {
        match self {
            Self::All(items) => {
                items.partition_point(|item| item.server.as_str() < server)
                    ..items.partition_point(|item| item.server.as_str() <= server)
            }
            Self::Of(_, listed) => 0..listed.len(),
        }
    }

    fn place(&self, at: usize) -> Place {
        let server = match self {
            Self::All(items) => items[at].server.as_str(),
            Self::Of(server, _) => server.as_str(),
        };
        let number = at - self.block(server).start;
        Place { server: server.to_owned(), number, own_name: self.own_name(at).to_owned() }
    }

    /// Where the list goes on behind a place. If its server does not have that thing any more, where it would be.
    fn behind(self, place: &Place) -> usize {
        let block = self.block(&place.server);
        let same = |at: &usize| self.own_name(*at) == place.own_name;
        let usual = block.start.saturating_add(place.number).min(block.end);
        let found =
            Some(usual).filter(|at| block.contains(at) && same(at)).or_else(|| block.clone().find(same));
        found.map_or(usual, |at| at + 1)
    }
}

/// One thing in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    server: String,
    /// Which one of the server's it is.
    number: usize,
    own_name: String,
}

impl Place {
    /// As a cursor.
    fn write(&self, kind: Kind, view: &str) -> String {
        let Self { server, number, own_name } = self;
        let text = format!("{}\n{view}\n{server}\n{number}\n{own_name}", kind.member());
        let digest = Sha256::digest(text.as_bytes());
        digest[..DIGEST].iter().chain(text.as_bytes()).map(|byte| format!("{byte:02x}")).collect()
    }

    /// `None` if this is no cursor of this list.
    fn read(cursor: &str, kind: Kind, view: &str) -> Option<Self> {
        let digits = cursor.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).ok());
        let bytes: Option<Vec<u8>> =
            digits.map(|two| u8::from_str_radix(two.filter(|two| two.len() == 2)?, 16).ok()).collect();
        let bytes = bytes?;
        let (digest, text) = bytes.split_at_checked(DIGEST)?;
        if Sha256::digest(text)[..DIGEST] != *digest {
            return None;
        }
        let mut fields = std::str::from_utf8(text).ok()?.splitn(5, '\n');
        if fields.next()? != kind.member() || fields.next()? != view {
            return None;
        }
        let (server, number, own_name) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { server: server.to_owned(), number: number.parse().ok()?, own_name: own_name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(server: &str, own_name: &str) -> Item {
        let (server, name): (ServerId, _) = (server.parse().unwrap(), own_name);
        Item {
            changes_nothing: false,
            server,
            own_name: name.into(),
            public_name: name.into(),
            definition: format!("{name:?}").into(),
            mark: None,
        }
    }

    fn page(items: &[Item], cursor: Option<&str>, size: usize) -> (Vec<String>, Option<String>) {
        let rendered = Rendered::of(items.iter().map(|item| item.definition.clone()));
        let page = Rows::All(items).page(Kind::Tools, &rendered, cursor, size).unwrap();
        (serde_json::from_slice(&page.items).unwrap(), page.next)
    }

    #[test]
    fn a_cursor_outlives_other_servers_and_its_own() {
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
    fn a_cursor_of_another_list_is_refused() {
        let place = Place { server: "a".into(), number: 3, own_name: "x".into() };
        let cursor = place.write(Kind::Tools, "");
        assert_eq!(Place::read(&cursor, Kind::Tools, ""), Some(place));
        assert_eq!(Place::read(&cursor, Kind::Prompts, ""), None);
        assert_eq!(Place::read(&cursor, Kind::Tools, "a"), None);
        for bad in ["", "x", "00", "zz".repeat(20).as_str(), &cursor[2..], &format!("{cursor}0"), "ü"] {
            assert_eq!(Place::read(bad, Kind::Tools, ""), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn cursors_survive(server in "[a-z]{1,5}", number in any::<usize>(), own_name in "(?s).{0,40}") {
            let place = Place { server, number, own_name };
            for (kind, view) in [(Kind::Tools, ""), (Kind::Resources, "git")] {
                prop_assert_eq!(Place::read(&place.write(kind, view), kind, view), Some(place.clone()));
            }
        }

        #[test]
        fn no_text_breaks_it(text in "([0-9a-f]{2}){0,40}|.{0,40}") {
            let _ = Place::read(&text, Kind::Tools, "");
        }

        #[test]
        fn the_pages_are_the_list(
            names in prop::collection::btree_set(("[a-c]", "[a-z]{1,4}"), 0..40),
            size in 1usize..10,
        ) {
            let items: Vec<Item> = names.iter().map(|(server, name)| item(server, name)).collect();
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
