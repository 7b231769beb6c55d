//! The difference between two texts of an agent's file, without the secrets of the file.

use std::collections::BTreeSet;

use serde_json::Value as Json;
use similar::{ChangeTag, TextDiff};

use crate::edit::entry::FileLanguage;
use crate::secret_heuristics::{self, MASK};

/// Line length above which a JSON file is formatted for display. Some agents write their whole file as one line.
const MAX_LINE_LENGTH: usize = 300;

/// Shortest value of a variable or header that is masked for its place alone.
const MIN_VALUE_LENGTH: usize = 4;

/// Keys of objects whose values may be secrets, with any name.
const SECRET_SECTIONS: [&str; 6] =
    ["env", "envs", "environment", "headers", "http_headers", "requestOptions"];

/// A file before and after a change.
pub(super) struct FileDiff<'a> {
    pub(super) language: FileLanguage,
    pub(super) before: &'a str,
    pub(super) after: &'a str,
    /// Path of the file before the change.
    pub(super) from: &'a str,
    pub(super) to: &'a str,
}

impl FileDiff<'_> {
    /// Returns a unified diff. Lines of the user that may contain a secret are not shown, and values of the file that may
    /// be secrets are masked wherever they occur.
    pub(super) fn render(&self) -> String {
        if self.before == self.after {
            return String::new();
        }
        let before = self.for_display(self.before);
        let after = self.for_display(self.after);
        let secrets = self.secret_values();
        let normalized = |line: &str| line.trim().trim_end_matches(',').to_owned();
        let old_lines: BTreeSet<String> = before.lines().map(normalized).collect();
        let diff = TextDiff::from_lines(&before, &after);
        let mut text = format!("--- {}\n+++ {}\n", self.from, self.to);
        for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
            text.push_str(&format!("{}\n", hunk.header()));
            for change in hunk.iter_changes() {
                let line = change.value().trim_end_matches(['\r', '\n']);
                // A line that only gained a comma is still the user's.
                let is_new = change.tag() == ChangeTag::Insert && !old_lines.contains(&normalized(line));
                let line = if is_new { line.to_owned() } else { secret_heuristics::mask_line(line) };
                let shown = secret_heuristics::mask_tokens(&mask_values(&line, &secrets));
                text.push_str(&format!("{}{shown}\n", change.tag()));
            }
        }
        text
    }

    /// Returns a text with one value per line.
    fn for_display(&self, text: &str) -> String {
        let has_long_line = self.before.lines().any(|line| line.len() > MAX_LINE_LENGTH);
        let parsed = matches!(self.language, FileLanguage::Json(_)).then(|| self.language.parse(text).ok());
        match parsed.flatten().filter(|_| has_long_line && !text.is_empty()) {
            Some(document) => format!("{document:#}\n"),
            None => text.to_owned(),
        }
    }

    /// Returns the values of the file that may be secrets, longest first. What the change itself adds is not one.
    fn secret_values(&self) -> Vec<String> {
        let (Ok(before), Ok(after)) = (self.language.parse(self.before), self.language.parse(self.after))
        else {
            return Vec::new();
        };
        let mut values = BTreeSet::new();
        collect_secrets(&before, Place::default(), &mut values);
        let mut added = BTreeSet::new();
        collect_added(&before, &after, &mut added);
        let mut values: Vec<String> = values.difference(&added).cloned().collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values
    }
}

/// Where a value is in a file.
#[derive(Default, Clone, Copy)]
struct Place {
    /// Whether the key of the value is the name of a secret.
    has_secret_name: bool,
    /// Whether the value is in an object of variables or headers.
    is_in_section: bool,
}

fn collect_secrets(value: &Json, place: Place, secrets: &mut BTreeSet<String>) {
    match value {
        Json::Object(members) => {
            for (key, member) in members {
                let place = Place {
                    has_secret_name: secret_heuristics::is_secret_name(key),
                    is_in_section: place.is_in_section || SECRET_SECTIONS.contains(&key.as_str()),
                };
                collect_secrets(member, place, secrets);
            }
        }
        Json::Array(items) => {
            let mut follows_secret_flag = false;
            for item in items {
                let flagged =
                    Place { has_secret_name: place.has_secret_name || follows_secret_flag, ..place };
                collect_secrets(item, flagged, secrets);
                follows_secret_flag = item.as_str().is_some_and(|flag| {
                    flag.starts_with('-') && secret_heuristics::is_secret_name(flag)
                        || ["-H", "--header"].contains(&flag)
                });
            }
        }
        Json::String(text) if is_secret(text, place) => {
            secrets.insert(text.clone());
        }
        _ => {}
    }
}

fn is_secret(text: &str, place: Place) -> bool {
    let is_word = ["true", "false", "null"].contains(&text) || text.parse::<f64>().is_ok();
    let may_be_secret = place.is_in_section && text.len() >= MIN_VALUE_LENGTH && !is_word;
    let looks_secret = secret_heuristics::is_secret_value(text)
        || secret_heuristics::is_connection_string(text)
        || secret_heuristics::find_url_password(text).is_some();
    !text.is_empty() && (place.has_secret_name || may_be_secret || looks_secret)
}

/// Collects the strings of a document that are new.
fn collect_added(before: &Json, after: &Json, added: &mut BTreeSet<String>) {
    match (before, after) {
        (Json::Object(before), Json::Object(after)) => {
            for (key, value) in after {
                collect_added(before.get(key).unwrap_or(&Json::Null), value, added);
            }
        }
        (_, Json::Object(after)) => after.values().for_each(|value| collect_added(&Json::Null, value, added)),
        (Json::Array(_), Json::Array(_)) => {}
        (_, Json::Array(after)) => after.iter().for_each(|value| collect_added(&Json::Null, value, added)),
        (before, Json::String(text)) if before != after => {
            added.insert(text.clone());
        }
        _ => {}
    }
}

/// Replaces values in a line: long ones anywhere, short ones where they are a whole word. JSON escapes are taken into
/// account.
fn mask_values(line: &str, values: &[String]) -> String {
    let mut masked = line.to_owned();
    for value in values {
        let escaped = Json::from(value.as_str()).to_string();
        for form in [value.as_str(), &escaped[1..escaped.len() - 1]] {
            masked = mask_word(&masked, form);
        }
    }
    masked
}

fn mask_word(line: &str, value: &str) -> String {
    let is_part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    let mut masked = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(value) {
        let end = start + value.len();
        let is_inner =
            is_part_of_word(rest[..start].chars().next_back()) || is_part_of_word(rest[end..].chars().next());
        masked.push_str(&rest[..start]);
        masked.push_str(if is_inner && value.len() < 8 { value } else { MASK });
        rest = &rest[end..];
    }
    masked + rest
}
