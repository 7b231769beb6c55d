//! `Reader`: asks one table for its keys, one by one, with the type each must have. Whatever does not fit is
//! reported where it stands, and keys nobody asked for are reported at the end.

use std::time::Duration;

use super::node::{Entry, Node, Table, Value};
use super::page::Page;
use super::{Concern, units};
use crate::spelling;
use crate::text::{BadReferenceKind, Text};

/// No count in a config has to be larger.
const LARGEST_COUNT: u32 = 1_000_000;

/// Reads one table.
pub(super) struct Reader<'a> {
    page: &'a mut Page,
    table: &'a Table,
    /// What its problems switch off.
    concerns: Concern,
    /// What stands before its keys in messages, such as `lifecycle.`.
    path: String,
    /// Where the table's own key is.
    at: usize,
    known: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(page: &'a mut Page, table: &'a Table, concerns: Concern, at: usize) -> Self {
        Self { page, table, concerns, path: String::new(), at, known: Vec::new() }
    }

    /// The file being read.
    pub(super) fn page(&self) -> &Page {
        self.page
    }

    /// Where the table's own key is.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    /// Reports a problem at a byte of the file.
    pub(super) fn wrong(&mut self, at: usize, message: impl Into<String>, hint: impl Into<String>) {
        self.page.report(at, &self.concerns, message.into(), hint.into());
    }

    /// Mentions something at a place.
    pub(super) fn note(&mut self, at: usize, message: impl Into<String>, hint: impl Into<String>) {
        self.page.report(at, &Concern::Note, message.into(), hint.into());
    }

    /// Reports a problem of the table as such, where its key is.
    pub(super) fn lacking(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.wrong(self.at, message, hint);
    }

    /// Reports a problem of the value of a key.
    pub(super) fn wrong_value(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let at = self.value(key).map_or(self.at, |node| node.span.start);
        self.wrong(at, message, hint);
    }

    /// The key as it is called in messages.
    pub(super) fn name(&self, key: &str) -> String {
        format!("`{}{key}`", self.path)
    }

    /// The value of a key, whatever it is.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'a Node> {
        self.known.push(key);
        let mut entries = self.table.entries(key);
        let first = entries.next()?;
        let second = entries.next().map(|entry| entry.at);
        if let Some(at) = second {
            self.wrong(at, format!("{} is there twice", self.name(key)), "keep one of the two");
        }
        Some(&first.value)
    }

    /// The value of a key that was or will be asked for.
    pub(super) fn value(&self, key: &str) -> Option<&'a Node> {
        self.table.entries(key).next().map(|entry| &entry.value)
    }

    /// Whether a key is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    fn mistyped(&mut self, key: &str, node: &Node, wanted: &str, example: &str) {
        let (name, json) = (self.name(key), self.page.json);
        let message = format!("{name} must be {wanted}, not {}", node.value.kind(json));
        let hint = format!("write {}", self.page.setting(key, example));
        self.wrong(node.span.start, message, hint);
    }

    /// A string.
    pub(super) fn string(&mut self, key: &'static str) -> Option<&'a str> {
        let node = self.take(key)?;
        let Value::String(text) = &node.value else {
            let short = matches!(node.value, Value::Number(_) | Value::Other("a date"));
            let written = self.page.written(&node.span).filter(|_| short).unwrap_or("…");
            self.mistyped(key, node, "a string", &format!("\"{written}\""));
            return None;
        };
        Some(text).filter(|text| self.is_clean(key, node, text)).map(String::as_str)
    }

    fn is_clean(&mut self, key: &str, node: &Node, text: &str) -> bool {
        let clean = !text.contains('\0');
        if !clean {
            let message = format!("{} holds a NUL character", self.name(key));
            self.wrong(node.span.start, message, "leave the character out");
        }
        clean
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        let node = self.take(key)?;
        let Value::Bool(value) = &node.value else {
            self.mistyped(key, node, "`true` or `false`", "true` or `false");
            return None;
        };
        Some(*value)
    }

    /// A whole number that is not too small.
    pub(super) fn count(&mut self, key: &'static str, least: u32) -> Option<u32> {
        let node = self.take(key)?;
        let count = match node.value {
            Value::Number(number) => number.and_then(|number| u32::try_from(number).ok()),
            _ => None,
        };
        let count = count.filter(|count| (least..=LARGEST_COUNT).contains(count));
        if count.is_none() {
            let not = self.page.written(&node.span).unwrap_or("that").to_owned();
            let name = self.name(key);
            let message =
                format!("{name} must be a whole number from {least} to {LARGEST_COUNT}, not `{not}`");
            let hint = format!("write {}", self.page.setting(key, &least.max(5).to_string()));
            self.wrong(node.span.start, message, hint);
        }
        count
    }

    /// A duration that is not zero, inside the table of a key.
    pub(super) fn duration_of(&mut self, key: &str, entry: &Entry) -> Option<Duration> {
        let Value::String(text) = &entry.value.value else {
            let wanted = self.page.setting(&entry.key, "\"5m\"");
            let message = format!(
                "{} holds only durations, not {}",
                self.name(key),
                entry.value.value.kind(self.page.json)
            );
            self.wrong(entry.value.span.start, message, format!("write {wanted}"));
            return None;
        };
        let duration = units::duration(text).filter(|duration| !duration.is_zero());
        if duration.is_none() {
            let message = format!("{} of `{}` is not a duration: `{text}`", self.name(key), entry.key);
            let hint = format!("write one whole number, not zero, and a unit: {}", units::DURATIONS);
            self.wrong(entry.value.span.start, message, hint);
        }
        duration
    }

    /// A duration that is not zero.
    pub(super) fn duration(&mut self, key: &'static str) -> Option<Duration> {
        let duration = self.measure(key, units::duration, "duration", units::DURATIONS, "s")?;
        if duration.is_zero() {
            let message = format!("{} may not be zero", self.name(key));
            self.wrong_value(key, message, format!("write {}", units::DURATIONS));
            return None;
        }
        Some(duration)
    }

    /// A duration, `0s` included.
    pub(super) fn duration_or_zero(&mut self, key: &'static str, examples: &str) -> Option<Duration> {
        self.measure(key, units::duration, "duration", examples, "s")
    }

    /// A size in bytes, not zero.
    pub(super) fn size(&mut self, key: &'static str) -> Option<usize> {
        let size = self.measure(key, units::size, "size", units::SIZES, "MiB")?;
        if size == 0 {
            let message = format!("{} may not be zero", self.name(key));
            self.wrong_value(key, message, format!("write {}", units::SIZES));
            return None;
        }
        Some(size)
    }

    fn measure<T>(
        &mut self,
        key: &'static str,
        parse: fn(&str) -> Option<T>,
        noun: &str,
        examples: &str,
        unit: &str,
    ) -> Option<T> {
        let node = self.take(key)?;
        match &node.value {
            Value::String(text) => {
                let measure = parse(text);
                if measure.is_none() {
                    let message = format!("{} is not a {noun}: `{text}`", self.name(key));
                    self.wrong(
                        node.span.start,
                        message,
                        format!("write one whole number and a unit: {examples}"),
                    );
                }
                return measure;
            }
            Value::Number(Some(number)) => {
                self.mistyped(key, node, &format!("a {noun}"), &format!("\"{number}{unit}\""));
            }
            _ => self.mistyped(key, node, &format!("a {noun}"), &format!("\"30{unit}\"")),
        }
        None
    }

    /// One of a few words; those in `not_yet` are legal and refused.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
        not_yet: &[&str],
    ) -> Option<T> {
        let word = self.string(key)?;
        if let Some((_, choice)) = choices.iter().find(|(choice, _)| *choice == word) {
            return Some(*choice);
        }
        if not_yet.contains(&word) {
            let message = format!("{} is not supported yet", self.page.setting(key, &format!("\"{word}\"")));
            self.wrong_value(key, message, "leave it out");
            return None;
        }
        let all: Vec<_> =
            choices.iter().map(|(choice, _)| *choice).chain(not_yet.iter().copied()).map(quoted).collect();
        let message = format!("{} cannot be `{word}`", self.name(key));
        self.wrong_value(key, message, format!("write one of {}", all.join(", ")));
        None
    }

    /// An array of strings; what is no string in it is reported and left out.
    pub(super) fn strings(&mut self, key: &'static str) -> Option<Vec<(&'a Node, &'a str)>> {
        let node = self.take(key)?;
        let Value::Array(elements) = &node.value else {
            self.mistyped(key, node, "an array of strings", "[\"…\"]");
            return None;
        };
        let mut strings = Vec::with_capacity(elements.len());
        for element in elements {
            if let Some(text) = self.element(key, element) {
                strings.push((element, text));
            }
        }
        Some(strings)
    }

    /// A string inside the value of a key. It may be a secret, so the message does not repeat it.
    pub(super) fn element(&mut self, key: &str, node: &'a Node) -> Option<&'a str> {
        let Value::String(text) = &node.value else {
            let kind = node.value.kind(self.page.json);
            let message = format!("{} holds only strings, not {kind}", self.name(key));
            self.wrong(node.span.start, message, "put the value in double quotes");
            return None;
        };
        Some(text).filter(|text| self.is_clean(key, node, text)).map(String::as_str)
    }

    /// A string that may hold references.
    pub(super) fn text(&mut self, node: &Node, text: &str) -> Option<Text> {
        match Text::parse(text, self.page.folder(node.span.start)) {
            Ok(text) => Some(text),
            Err(error) => {
                let hint = match &error.why {
                    BadReferenceKind::Unclosed => "close the reference with `}`".to_owned(),
                    BadReferenceKind::Secret(_) => {
                        "write `${secret:NAME}` with letters, digits, `-`, `_`, `.` and `/`".to_owned()
                    }
                    BadReferenceKind::UnknownKind(name) if is_variable(name) => {
                        format!("write `${{env:{name}}}`")
                    }
                    _ => "references are `${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` and `${secret:NAME}`"
                        .to_owned(),
                };
                self.wrong(node.span.start, error.to_string(), hint);
                None
            }
        }
    }

    /// The table below a key, whatever is in it.
    pub(super) fn members(&mut self, key: &'static str) -> Option<&'a Table> {
        let node = self.take(key)?;
        let Value::Table(table) = &node.value else {
            let wanted = if self.page.json { "an object" } else { "a table" };
            self.mistyped(key, node, wanted, "{ … }");
            return None;
        };
        Some(table)
    }

    /// Reads the table below a key.
    pub(super) fn table(&mut self, key: &'static str) -> Option<Reader<'_>> {
        let table = self.members(key)?;
        let at = self.table.entries(key).next().map_or(self.at, |entry| entry.at);
        let path = format!("{}{key}.", self.path);
        Some(Reader { path, ..Reader::new(self.page, table, self.concerns.clone(), at) })
    }

    /// Everything in the table, in order; for tables whose keys are names that people choose.
    pub(super) fn entries(&self) -> &'a [Entry] {
        &self.table.0
    }

    /// Reads the table that is one of those.
    pub(super) fn table_at(&mut self, entry: &'a Entry) -> Option<Reader<'_>> {
        let Value::Table(table) = &entry.value.value else {
            let wanted = if self.page.json { "an object" } else { "a table" };
            self.mistyped(&entry.key, &entry.value, wanted, "{ … }");
            return None;
        };
        let path = format!("{}{}.", self.path, entry.key);
        Some(Reader { path, ..Reader::new(self.page, table, self.concerns.clone(), entry.at) })
    }

    /// Reports the keys that nobody asked for.
    pub(super) fn finish(mut self) {
        for entry in self.strangers() {
            let message = format!("there is no key {}", self.name(&entry.key));
            let hint = self.meant(&entry.key).unwrap_or_else(|| {
                let known: Vec<_> = self.known.iter().copied().map(quoted).collect();
                format!("leave it out; the keys here are {}", known.join(", "))
            });
            self.wrong(entry.at, message, hint);
        }
    }

    /// Mentions the keys that nobody asked for: they are somebody else's.
    pub(super) fn finish_with_notes(mut self) {
        self.concerns = Concern::Note;
        for entry in self.strangers() {
            let message = format!("{} means nothing here", self.name(&entry.key));
            let hint =
                self.meant(&entry.key).unwrap_or_else(|| "nothing has to be done; it is ignored".to_owned());
            self.wrong(entry.at, message, hint);
        }
    }

    fn strangers(&self) -> Vec<&'a Entry> {
        let stranger = |entry: &&Entry| !self.known.iter().any(|known| *known == entry.key);
        self.table.0.iter().filter(stranger).collect()
    }

    fn meant(&self, key: &str) -> Option<String> {
        spelling::nearest(key, self.known.iter().copied()).map(|meant| format!("did you mean `{meant}`?"))
    }
}

fn quoted(word: &str) -> String {
    format!("`{word}`")
}

/// Whether the inside of `${…}` is the name of a variable, with or without a default.
fn is_variable(name: &str) -> bool {
    let name = name.split_once(":-").map_or(name, |(name, _)| name);
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}
