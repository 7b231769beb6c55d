//! `TableReader`: reads the keys of one table with the type each must have. Reports values of the wrong type, and at the
//! end the keys that were not read.

use std::time::Duration;

use super::node::{ConfigNode, ConfigTable, ConfigValue, TableEntry};
use super::source_map::SourceMap;
use super::{ProblemScope, units};
use crate::spec::template::{BadReferenceKind, TemplateText};
use crate::util::format;

/// Largest number that a key accepts.
const MAX_COUNT: u32 = 1_000_000;

/// Reader of one table.
pub(super) struct TableReader<'a> {
    source: &'a mut SourceMap,
    table: &'a ConfigTable,
    /// Scope of the problems in this table.
    scope: ProblemScope,
    /// Prefix of the table's keys in messages, such as `lifecycle.`.
    prefix: String,
    /// Offset of the table's own key.
    offset: usize,
    /// Keys that have been read.
    read_keys: Vec<&'static str>,
}

/// A unit of measurement that strings are parsed as.
struct Measure<'a, T> {
    noun: &'static str,
    parse: fn(&str) -> Option<T>,
    examples: &'a str,
    example_unit: &'static str,
}

impl<'a> Measure<'a, Duration> {
    fn duration(examples: &'a str) -> Self {
        Self { noun: "duration", parse: units::parse_duration, examples, example_unit: "s" }
    }
}

impl Measure<'static, usize> {
    fn size() -> Self {
        let examples = units::SIZE_EXAMPLES;
        Self { noun: "size", parse: units::parse_size, examples, example_unit: "MiB" }
    }
}

impl<'a> TableReader<'a> {
    pub(super) fn new(
        source: &'a mut SourceMap,
        table: &'a ConfigTable,
        scope: ProblemScope,
        offset: usize,
    ) -> Self {
        Self { source, table, scope, prefix: String::new(), offset, read_keys: Vec::new() }
    }

    /// Returns the texts being read.
    pub(super) fn source(&self) -> &SourceMap {
        self.source
    }

    /// Returns the offset of the table's own key.
    pub(super) fn key_offset(&self) -> usize {
        self.offset
    }

    /// Reports a problem at an offset.
    pub(super) fn error(&mut self, offset: usize, message: impl Into<String>, hint: impl Into<String>) {
        self.source.report(offset, &self.scope, message.into(), hint.into());
    }

    /// Reports a note at an offset.
    pub(super) fn note(&mut self, offset: usize, message: impl Into<String>, hint: impl Into<String>) {
        self.source.report(offset, &ProblemScope::Note, message.into(), hint.into());
    }

    /// Reports a problem at the table's own key.
    pub(super) fn error_at_table(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.error(self.offset, message, hint);
    }

    /// Reports a problem at the value of a key.
    pub(super) fn error_at_value(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let offset = self.peek(key).map_or(self.offset, |node| node.span.start);
        self.error(offset, message, hint);
    }

    /// Returns the full path of a key between backticks.
    pub(super) fn key_path(&self, key: &str) -> String {
        format!("`{}{key}`", self.prefix)
    }

    /// Marks a key as read and returns its value.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'a ConfigNode> {
        self.read_keys.push(key);
        let mut entries = self.table.entries(key);
        let first = entries.next()?;
        let second = entries.next().map(|entry| entry.offset);
        if let Some(offset) = second {
            self.error(offset, format!("{} is defined twice", self.key_path(key)), "remove one of the two");
        }
        Some(&first.value)
    }

    /// Returns the value of a key without marking the key as read.
    pub(super) fn peek(&self, key: &str) -> Option<&'a ConfigNode> {
        self.table.entries(key).next().map(|entry| &entry.value)
    }

    /// Returns whether a key is present.
    pub(super) fn has(&self, key: &str) -> bool {
        self.peek(key).is_some()
    }

    fn type_error(&mut self, key: &str, node: &ConfigNode, expected: &str, example: &str) {
        let found = node.value.kind(self.source.json);
        let message = format!("{} must be {expected}, not {found}", self.key_path(key));
        let hint = format!("write {}", self.source.assignment(key, example));
        self.error(node.span.start, message, hint);
    }

    /// Reads a string.
    pub(super) fn string(&mut self, key: &'static str) -> Option<&'a str> {
        let node = self.take(key)?;
        let ConfigValue::String(text) = &node.value else {
            let can_quote = matches!(node.value, ConfigValue::Number(_) | ConfigValue::Other("a date"));
            let written = self.source.short_text(&node.span).filter(|_| can_quote).unwrap_or("…");
            self.type_error(key, node, "a string", &format!("\"{written}\""));
            return None;
        };
        Some(text).filter(|text| self.check_no_nul(key, node, text)).map(String::as_str)
    }

    fn check_no_nul(&mut self, key: &str, node: &ConfigNode, text: &str) -> bool {
        let is_valid = !text.contains('\0');
        if !is_valid {
            let message = format!("{} contains a NUL character", self.key_path(key));
            self.error(node.span.start, message, "remove the character");
        }
        is_valid
    }

    /// Reads `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        let node = self.take(key)?;
        let ConfigValue::Bool(value) = &node.value else {
            self.type_error(key, node, "`true` or `false`", "true` or `false");
            return None;
        };
        Some(*value)
    }

    /// Reads a whole number of at least `min`.
    pub(super) fn count(&mut self, key: &'static str, min: u32) -> Option<u32> {
        let node = self.take(key)?;
        let count = match node.value {
            ConfigValue::Number(number) => number.and_then(|number| u32::try_from(number).ok()),
            _ => None,
        };
        let count = count.filter(|count| (min..=MAX_COUNT).contains(count));
        if count.is_none() {
            let written = self.source.short_text(&node.span).unwrap_or("…").to_owned();
            let path = self.key_path(key);
            let message = format!("{path} must be a whole number from {min} to {MAX_COUNT}, not `{written}`");
            let hint = format!("write {}", self.source.assignment(key, &min.max(5).to_string()));
            self.error(node.span.start, message, hint);
        }
        count
    }

    /// Reads a whole number that is zero or at least `min` from an entry of the table at `key`.
    pub(super) fn entry_count(&mut self, key: &str, entry: &TableEntry, min: u32) -> Option<u32> {
        let number = match entry.value.value {
            ConfigValue::Number(number) => number.and_then(|number| u32::try_from(number).ok()),
            _ => None,
        };
        let count = number.filter(|count| *count == 0 || (min..=MAX_COUNT).contains(count));
        if count.is_none() {
            let message = format!(
                "`{}` in {} must be 0, or a whole number from {min} to {MAX_COUNT}",
                entry.key,
                self.key_path(key)
            );
            let hint = format!("write {}", self.source.assignment(&entry.key, &min.to_string()));
            self.error(entry.value.span.start, message, hint);
        }
        count
    }

    /// Reads a duration other than zero from an entry of the table at `key`.
    pub(super) fn entry_duration(&mut self, key: &str, entry: &TableEntry) -> Option<Duration> {
        let ConfigValue::String(text) = &entry.value.value else {
            let example = self.source.assignment(&entry.key, "\"5m\"");
            let found = entry.value.value.kind(self.source.json);
            let message = format!("{} must contain only durations, not {found}", self.key_path(key));
            self.error(entry.value.span.start, message, format!("write {example}"));
            return None;
        };
        let duration = units::parse_duration(text).filter(|duration| !duration.is_zero());
        if duration.is_none() {
            let message = format!("invalid duration `{text}` for `{}` in {}", entry.key, self.key_path(key));
            let hint =
                format!("write a whole number other than zero and a unit: {}", units::DURATION_EXAMPLES);
            self.error(entry.value.span.start, message, hint);
        }
        duration
    }

    /// Reads a duration other than zero.
    pub(super) fn duration(&mut self, key: &'static str) -> Option<Duration> {
        let duration = self.measure(key, &Measure::duration(units::DURATION_EXAMPLES))?;
        if duration.is_zero() {
            let message = format!("{} must not be zero", self.key_path(key));
            self.error_at_value(key, message, format!("write {}", units::DURATION_EXAMPLES));
            return None;
        }
        Some(duration)
    }

    /// Reads a duration that may be zero.
    pub(super) fn duration_or_zero(&mut self, key: &'static str, examples: &str) -> Option<Duration> {
        self.measure(key, &Measure::duration(examples))
    }

    /// Reads a size other than zero, in bytes.
    pub(super) fn size(&mut self, key: &'static str) -> Option<usize> {
        let size = self.measure(key, &Measure::size())?;
        if size == 0 {
            let message = format!("{} must not be zero", self.key_path(key));
            self.error_at_value(key, message, format!("write {}", units::SIZE_EXAMPLES));
            return None;
        }
        Some(size)
    }

    fn measure<T>(&mut self, key: &'static str, measure: &Measure<'_, T>) -> Option<T> {
        let Measure { noun, parse, examples, example_unit } = measure;
        let node = self.take(key)?;
        let example = match &node.value {
            ConfigValue::String(text) => {
                let value = parse(text);
                if value.is_none() {
                    let message = format!("invalid {noun} `{text}` for {}", self.key_path(key));
                    let hint = format!("write a whole number and a unit: {examples}");
                    self.error(node.span.start, message, hint);
                }
                return value;
            }
            ConfigValue::Number(Some(number)) => format!("\"{number}{example_unit}\""),
            _ => format!("\"30{example_unit}\""),
        };
        self.type_error(key, node, &format!("a {noun}"), &example);
        None
    }

    /// Reads one of a few strings.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)]) -> Option<T> {
        let written = self.string(key)?;
        if let Some(choice) = find_choice(choices, written) {
            return Some(choice);
        }
        let names: Vec<_> = choices.iter().map(|(name, _)| in_backticks(name)).collect();
        let message = format!("invalid value `{written}` for {}", self.key_path(key));
        self.error_at_value(key, message, format!("write one of {}", names.join(", ")));
        None
    }

    /// Reads one of a few strings from an entry of this table.
    pub(super) fn entry_choice<T: Copy>(
        &mut self,
        entry: &TableEntry,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let written = match &entry.value.value {
            ConfigValue::String(text) => Some(text.as_str()),
            _ => None,
        };
        let choice = written.and_then(|written| find_choice(choices, written));
        if choice.is_none() {
            let found = written.unwrap_or_else(|| entry.value.value.kind(self.source.json));
            let message = format!("invalid value `{found}` for {}", self.key_path(&entry.key));
            let names: Vec<_> = choices.iter().map(|(name, _)| in_backticks(name)).collect();
            self.error(entry.value.span.start, message, format!("write one of {}", names.join(", ")));
        }
        choice
    }

    /// Reads an array of strings. Other elements are reported and skipped.
    pub(super) fn strings(&mut self, key: &'static str) -> Option<Vec<(&'a ConfigNode, &'a str)>> {
        let node = self.take(key)?;
        let ConfigValue::Array(elements) = &node.value else {
            self.type_error(key, node, "an array of strings", "[\"…\"]");
            return None;
        };
        let mut strings = Vec::with_capacity(elements.len());
        for element in elements {
            if let Some(text) = self.string_element(key, element) {
                strings.push((element, text));
            }
        }
        Some(strings)
    }

    /// Reads a string inside the value of a key. It may be a secret, so the message does not quote it.
    pub(super) fn string_element(&mut self, key: &str, node: &'a ConfigNode) -> Option<&'a str> {
        let ConfigValue::String(text) = &node.value else {
            let found = node.value.kind(self.source.json);
            let message = format!("{} must contain only strings, not {found}", self.key_path(key));
            self.error(node.span.start, message, "put the value in double quotes");
            return None;
        };
        Some(text).filter(|text| self.check_no_nul(key, node, text)).map(String::as_str)
    }

    /// Parses a string that may contain references.
    pub(super) fn template(&mut self, node: &ConfigNode, text: &str) -> Option<TemplateText> {
        match TemplateText::parse(text, self.source.folder(node.span.start)) {
            Ok(text) => Some(text),
            Err(error) => {
                let hint = match &error.kind {
                    BadReferenceKind::Unclosed => "close the reference with `}`".to_owned(),
                    BadReferenceKind::Secret(_) => {
                        "write `${secret:NAME}` with letters, digits, `-`, `_`, `.` and `/`".to_owned()
                    }
                    BadReferenceKind::UnknownKind(name) if is_variable(name) => {
                        format!("write `${{env:{name}}}`")
                    }
                    _ => "write `${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` or `${secret:NAME}`"
                        .to_owned(),
                };
                self.error(node.span.start, error.to_string(), hint);
                None
            }
        }
    }

    /// Reads a table without reading its keys.
    pub(super) fn raw_table(&mut self, key: &'static str) -> Option<&'a ConfigTable> {
        let node = self.take(key)?;
        if node.as_table().is_none() {
            self.not_a_table(key, node);
        }
        node.as_table()
    }

    /// Returns a reader of the table at a key.
    pub(super) fn table(&mut self, key: &'static str) -> Option<TableReader<'_>> {
        let table = self.raw_table(key)?;
        let offset = self.table.entries(key).next().map_or(self.offset, |entry| entry.offset);
        let prefix = format!("{}{key}.", self.prefix);
        Some(TableReader { prefix, ..TableReader::new(self.source, table, self.scope.clone(), offset) })
    }

    /// Returns all entries in order, for tables with user-chosen keys.
    pub(super) fn entries(&self) -> &'a [TableEntry] {
        &self.table.0
    }

    /// Returns a reader of the table that is the value of an entry.
    pub(super) fn entry_table(&mut self, entry: &'a TableEntry) -> Option<TableReader<'_>> {
        let Some(table) = entry.value.as_table() else {
            self.not_a_table(&entry.key, &entry.value);
            return None;
        };
        let prefix = format!("{}{}.", self.prefix, entry.key);
        Some(TableReader { prefix, ..TableReader::new(self.source, table, self.scope.clone(), entry.offset) })
    }

    fn not_a_table(&mut self, key: &str, node: &ConfigNode) {
        let expected = if self.source.json { "an object" } else { "a table" };
        self.type_error(key, node, expected, "{ … }");
    }

    /// Reports the keys that have not been read as problems.
    pub(super) fn finish(mut self) {
        for entry in self.unknown_entries() {
            let message = format!("unknown key {}", self.key_path(&entry.key));
            let hint = self.suggest_key(&entry.key).unwrap_or_else(|| {
                let keys: Vec<_> = self.read_keys.iter().copied().map(in_backticks).collect();
                format!("remove it; valid keys are {}", keys.join(", "))
            });
            self.error(entry.offset, message, hint);
        }
    }

    /// Reports the keys that have not been read as notes, for files that other programs read too.
    pub(super) fn finish_with_notes(mut self) {
        for entry in self.unknown_entries() {
            let message = format!("{} is ignored", self.key_path(&entry.key));
            let hint = self.suggest_key(&entry.key);
            let hint = hint.unwrap_or_else(|| "nothing to do: toolcrib has no such key".to_owned());
            self.note(entry.offset, message, hint);
        }
    }

    fn unknown_entries(&self) -> Vec<&'a TableEntry> {
        let is_unknown = |entry: &&TableEntry| !self.read_keys.iter().any(|key| *key == entry.key);
        self.table.0.iter().filter(is_unknown).collect()
    }

    fn suggest_key(&self, key: &str) -> Option<String> {
        format::closest_match(key, self.read_keys.iter().copied())
            .map(|near| format!("did you mean `{near}`?"))
    }
}

fn find_choice<T: Copy>(choices: &[(&'static str, T)], written: &str) -> Option<T> {
    choices.iter().find(|(name, _)| *name == written).map(|(_, choice)| *choice)
}

fn in_backticks(word: &str) -> String {
    format!("`{word}`")
}

/// Returns whether the inside of `${…}` is a variable name, with or without a default.
fn is_variable(name: &str) -> bool {
    let name = name.split_once(":-").map_or(name, |(name, _)| name);
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}
