//! Parts of a stored result: by JSON pointer, line range, search and page. No I/O.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::util::encoding;

/// Keys of a JSON value that its description names.
const MAX_KEYS: usize = 8;
/// Bytes of a key in a description.
const MAX_KEY_BYTES: usize = 24;

/// The part of a result that is requested. Each member selects from what the members before it selected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PartSelector {
    /// A JSON pointer to a value.
    pub(super) pointer: Option<String>,
    pub(super) lines: Option<LineRange>,
    /// A text that lines must contain, in upper or lower case.
    pub(super) search: Option<String>,
    /// The number of a page, from 1.
    pub(super) page: Option<usize>,
}

/// A range of lines, from 1. Both ends belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineRange {
    first: usize,
    last: usize,
}

/// One page of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextPage<'a> {
    pub(super) text: &'a str,
    /// Number of all pages.
    pub(super) count: usize,
}

impl PartSelector {
    /// Parses the query of a URI.
    ///
    /// # Errors
    /// Returns what is wrong with it.
    pub(super) fn from_query(query: &str) -> Result<Self, String> {
        let mut selector = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            selector.set(key, encoding::percent_decode_lossy(value).into_owned())?;
        }
        Ok(selector)
    }

    /// Sets a member from its text.
    ///
    /// # Errors
    /// Returns what is wrong with the key or the value.
    pub(super) fn set(&mut self, key: &str, value: String) -> Result<(), String> {
        match key {
            "pointer" if value.is_empty() || value.starts_with('/') => self.pointer = Some(value),
            "pointer" => return Err(format!("`pointer` must begin with `/`, as `/items/0`, not `{value}`")),
            "lines" => self.lines = Some(LineRange::parse(&value)?),
            "search" if value.is_empty() => return Err("`search` is empty".to_owned()),
            "search" => self.search = Some(value),
            "page" => {
                let page = value.parse().ok().filter(|page| *page > 0);
                let bad = || format!("`page` must be a whole number from 1, not `{value}`");
                self.page = Some(page.ok_or_else(bad)?);
            }
            _ => return Err(format!("unknown key `{key}`: use `lines`, `pointer`, `search` or `page`")),
        }
        Ok(())
    }

    /// Returns the selected part of a text, before it is divided into pages.
    ///
    /// # Errors
    /// Returns why there is no such part.
    pub(super) fn select<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, String> {
        let mut selected = match &self.pointer {
            Some(pointer) => Cow::Owned(resolve_pointer(text, pointer)?),
            None => Cow::Borrowed(text),
        };
        if let Some(search) = &self.search {
            return find_lines(&selected, self.lines, search).map(Cow::Owned);
        }
        if let Some(lines) = self.lines {
            let range = lines.locate(&selected)?;
            selected = match selected {
                Cow::Borrowed(text) => Cow::Borrowed(&text[range]),
                Cow::Owned(text) => Cow::Owned(text[range].to_owned()),
            };
        }
        Ok(selected)
    }
}

impl LineRange {
    fn parse(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: Option<usize> = first.trim().parse().ok();
        let last = if last.trim().is_empty() { Some(usize::MAX) } else { last.trim().parse().ok() };
        match (first, last) {
            (Some(first), Some(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(format!("`lines` must be a range such as `1-200` or `200-`, not `{text}`")),
        }
    }

    /// Returns where the lines are in a text, with their line breaks.
    fn locate(self, text: &str) -> Result<Range<usize>, String> {
        let mut offset = 0;
        let mut start = None;
        for (index, line) in text.split_inclusive('\n').enumerate() {
            if index + 1 == self.first {
                start = Some(offset);
            }
            offset += line.len();
            if index + 1 == self.last {
                break;
            }
        }
        let start = start.ok_or_else(|| {
            format!("line {} does not exist: the text has {} lines", self.first, count_lines(text))
        })?;
        Ok(start..offset)
    }

    fn contains(self, number: usize) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// Returns the number of lines of a text.
pub(super) fn count_lines(text: &str) -> usize {
    text.split_inclusive('\n').count()
}

/// Returns the lines that contain a text in upper or lower case, each with its number.
fn find_lines(text: &str, lines: Option<LineRange>, search: &str) -> Result<String, String> {
    let wanted = search.to_lowercase();
    let mut found = String::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let is_in_range = lines.is_none_or(|lines| lines.contains(number));
        if is_in_range && line.to_lowercase().contains(&wanted) {
            found.push_str(&format!("{number}: {line}\n"));
        }
    }
    if found.is_empty() { Err(format!("no line contains `{search}`")) } else { Ok(found) }
}

/// Returns the value that a JSON pointer names: a string as its text, another value as it is written.
fn resolve_pointer(text: &str, pointer: &str) -> Result<String, String> {
    let mut value = Bytes::copy_from_slice(text.trim().as_bytes());
    let mut path = String::new();
    for token in pointer.split('/').skip(1) {
        let parent = if path.is_empty() { "the result".to_owned() } else { format!("`{path}`") };
        let key = token.replace("~1", "/").replace("~0", "~");
        let child = match value.first() {
            Some(b'{') => {
                let object = Object::parse(&value).map_err(|bad| format!("{parent} is not JSON: {bad}"))?;
                object.get(&key).cloned()
            }
            Some(b'[') => {
                let items =
                    object::parse_array(&value).map_err(|bad| format!("{parent} is not JSON: {bad}"))?;
                key.parse::<usize>().ok().and_then(|index| items.get(index).cloned())
            }
            _ => None,
        };
        let shape = || describe_json(&value).unwrap_or_else(|| "not a JSON object or array".to_owned());
        value = child.ok_or_else(|| format!("{parent} has no `{key}`: it is {}", shape()))?;
        path.push('/');
        path.push_str(token);
    }
    match object::as_string(&value) {
        Some(text) => Ok(text.into_owned()),
        None => Ok(String::from_utf8_lossy(&value).into_owned()),
    }
}

/// Returns the kind of a JSON object or array, its size and its keys; `None` for anything else.
pub(super) fn describe_json(json: &Bytes) -> Option<String> {
    match json.first()? {
        b'{' => Some(format!("a JSON object with the keys {}", join_keys(&Object::parse(json).ok()?))),
        b'[' => {
            let items = object::parse_array(json).ok()?;
            let keys = items.first().and_then(|item| Object::parse(item).ok());
            let keys = keys.map(|item| format!("; the first has the keys {}", join_keys(&item)));
            Some(format!("a JSON array of {} items{}", items.len(), keys.unwrap_or_default()))
        }
        _ => None,
    }
}

fn join_keys(object: &Object) -> String {
    let keys: Vec<String> = object.iter().take(MAX_KEYS).map(|(key, _)| shorten(key)).collect();
    let more = object.iter().count() - keys.len();
    let keys = keys.join(", ");
    if more > 0 { format!("{keys} and {more} more") } else { keys }
}

/// Returns a key as it can stand in a sentence.
fn shorten(key: &str) -> String {
    let end = key.floor_char_boundary(MAX_KEY_BYTES);
    let shown: String = key[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if end < key.len() { format!("{shown}…") } else { shown }
}

/// Returns a page of a text, of at most `max_bytes` as a JSON string; `None` if there are fewer pages. The pages together
/// are the text, byte by byte.
pub(super) fn text_page(text: &str, number: usize, max_bytes: usize) -> Option<TextPage<'_>> {
    let mut rest = text;
    let mut page = None;
    let mut count = 0;
    while !rest.is_empty() || count == 0 {
        let (current, after) = rest.split_at(page_end(rest, max_bytes));
        count += 1;
        if count == number {
            page = Some(current);
        }
        rest = after;
    }
    page.map(|text| TextPage { text, count })
}

/// Returns where the first page of a text ends: after a line if one ends in its second half.
fn page_end(text: &str, max_bytes: usize) -> usize {
    let mut used = 0;
    let mut line_end = 0;
    for (offset, character) in text.char_indices() {
        used += escaped_length(character);
        if used > max_bytes && offset > 0 {
            return if line_end > offset / 2 { line_end } else { offset };
        }
        if character == '\n' {
            line_end = offset + 1;
        }
    }
    text.len()
}

/// Returns the bytes of a character in a JSON string.
fn escaped_length(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..'\u{20}' => 6,
        _ => character.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use toolcrib::protocol::json::object::to_json_string;

    use super::*;

    fn select(text: &str, query: &str) -> Result<String, String> {
        PartSelector::from_query(query)?.select(text).map(Cow::into_owned)
    }

    #[test]
    fn selectors_combine_from_pointer_to_search() {
        let log = "one\r\nTwo\n\nfour two";
        assert_eq!(select(log, "").unwrap(), log);
        assert_eq!(select(log, "lines=1-2").unwrap() + &select(log, "lines=3-").unwrap(), log);
        assert_eq!(select(log, "lines=4").unwrap(), "four two");
        assert_eq!(select(log, "search=TWO").unwrap(), "2: Two\n4: four two\n");
        assert_eq!(select(log, "lines=3-9&search=two").unwrap(), "4: four two\n");
        let json = r#" {"a/b":[{"n":1.0,"log":"x\ny\nz"},2e0],"~":null} "#;
        assert_eq!(select(json, "pointer=/a~1b/0/n").unwrap(), "1.0");
        assert_eq!(select(json, "pointer=/a~1b/1").unwrap(), "2e0");
        assert_eq!(select(json, "pointer=%2F~0").unwrap(), "null");
        assert_eq!(select(json, "pointer=/a~1b/0/log&lines=2").unwrap(), "y\n");
        assert_eq!(select(json, "pointer=/a~1b/0").unwrap(), r#"{"n":1.0,"log":"x\ny\nz"}"#);
    }

    #[test]
    fn mistakes_are_explained() {
        let json = r#"{"rows":[{"id":1},{"id":2}]}"#;
        for (query, expected) in [
            ("lines=2-1", "`lines` must be a range such as `1-200` or `200-`, not `2-1`"),
            ("lines=0", "`lines` must be a range such as `1-200` or `200-`, not `0`"),
            ("lines=9-10", "line 9 does not exist: the text has 1 lines"),
            ("page=0", "`page` must be a whole number from 1, not `0`"),
            ("pointer=rows", "`pointer` must begin with `/`, as `/items/0`, not `rows`"),
            ("pointer=/cols", "the result has no `cols`: it is a JSON object with the keys rows"),
            (
                "pointer=/rows/2",
                "`/rows` has no `2`: it is a JSON array of 2 items; the first has the keys id",
            ),
            ("pointer=/rows/0/id/x", "`/rows/0/id` has no `x`: it is not a JSON object or array"),
            ("search=", "`search` is empty"),
            ("search=zz", "no line contains `zz`"),
            ("rows=1", "unknown key `rows`: use `lines`, `pointer`, `search` or `page`"),
        ] {
            assert_eq!(select(json, query).unwrap_err(), expected, "{query}");
        }
        assert!(select("{broken", "pointer=/a").unwrap_err().starts_with("the result is not JSON: "));
    }

    #[test]
    fn pages_join_to_the_text_and_fit_when_encoded() {
        let texts = [
            String::new(),
            "x".repeat(1000),
            "line of a log\n".repeat(100),
            "\u{1}\"\\\t\u{7f}\u{2028}é🙂\n".repeat(60),
            format!("{}\n{}", "a".repeat(10), "b".repeat(300)),
        ];
        for text in texts {
            for max in [6, 7, 64, 500] {
                let count = text_page(&text, 1, max).unwrap().count;
                let mut joined = String::new();
                for number in 1..=count {
                    let page = text_page(&text, number, max).unwrap();
                    assert!(to_json_string(page.text).len() <= max + 2, "{:?}", page.text);
                    joined.push_str(page.text);
                }
                assert_eq!(joined, text);
                assert_eq!(text_page(&text, count + 1, max), None);
            }
        }
        assert_eq!(text_page("aaaa\nbbbb\ncc", 2, 11).unwrap(), TextPage { text: "bbbb\ncc", count: 2 });
    }
}
