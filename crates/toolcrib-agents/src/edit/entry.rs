//! Sets or removes one entry in a config text of any supported language, and verifies that nothing else changed. Works on
//! text and touches no files.

#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Value as Json;
use toolcrib::util::maps::collect_map;

use super::jsonc::{self, JsonDialect};
use super::toml::{TomlEditError, TomlFile};
use super::yaml;

const BOM: char = '\u{feff}';

/// Members of an entry in the order in which they are written.
pub type EntryMembers = Vec<(String, Json)>;

/// Language of a config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileLanguage {
    /// JSON of a dialect.
    Json(JsonDialect),
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

/// Reason why a text cannot be parsed or edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditError {
    /// Place of a syntax error.
    pub position: Option<TextPosition>,
    /// Description for people.
    pub message: String,
}

/// Line and column of a text, both counted from 1; the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPosition {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl TextPosition {
    fn from_byte(text: &str, byte: usize) -> Self {
        let before = &text[..text.floor_char_boundary(byte)];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl EditError {
    /// Creates a syntax error at a byte of a text.
    pub(super) fn at_byte(text: &str, byte: usize, message: impl Into<String>) -> Self {
        Self { position: Some(TextPosition::from_byte(text, byte)), message: message.into() }
    }

    /// Creates an error for a valid text that cannot be edited.
    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self { position: None, message: message.into() }
    }
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "{position}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for EditError {}

impl From<TomlEditError> for EditError {
    fn from(error: TomlEditError) -> Self {
        match error {
            TomlEditError::Syntax { line, column, message } => {
                Self { position: Some(TextPosition { line, column }), message }
            }
            other => Self::unsupported(other.to_string()),
        }
    }
}

impl FileLanguage {
    /// Parses a text. An empty text is an empty object.
    ///
    /// # Errors
    ///
    /// Fails if the text is invalid.
    pub fn parse(self, text: &str) -> Result<Json, EditError> {
        let text = text.strip_prefix(BOM).unwrap_or(text);
        match self {
            Self::Json(dialect) => jsonc::parse(dialect, text),
            Self::Toml => Ok(TomlFile::parse(text)?.get(&[]).unwrap_or_default()),
            Self::Yaml => yaml::parse(text),
        }
    }

    /// Returns the text with an entry at a path of keys. Replaces an existing entry.
    ///
    /// # Errors
    ///
    /// Fails if the text is invalid, or if the entry cannot be set without changing anything else.
    pub fn set_entry(self, text: &str, path: &[&str], members: &EntryMembers) -> Result<String, EditError> {
        let before = self.parse(text)?;
        let entry = Json::Object(collect_map(members.iter().cloned()));
        if get_path(&before, path) == Some(&entry) {
            return Ok(text.to_owned());
        }
        let after = self.edit_text(text, |text| match self {
            Self::Json(dialect) => jsonc::set_entry(dialect, text, path, members),
            Self::Toml => set_toml_entry(text, path, members),
            Self::Yaml => yaml::set_entry(text, path, members),
        })?;
        self.verify_edit(before, &after, path, Some(entry))?;
        Ok(after)
    }

    /// Returns the text without the entry at a path of keys.
    ///
    /// # Errors
    ///
    /// Fails if the text is invalid, or if the entry cannot be removed without changing anything else.
    pub fn remove_entry(self, text: &str, path: &[&str]) -> Result<String, EditError> {
        let before = self.parse(text)?;
        if get_path(&before, path).is_none() {
            return Ok(text.to_owned());
        }
        let after = self.edit_text(text, |text| match self {
            Self::Json(dialect) => jsonc::remove_entry(dialect, text, path),
            Self::Toml => {
                let mut file = TomlFile::parse(text)?;
                file.remove(path);
                Ok(file.render())
            }
            Self::Yaml => yaml::remove_entry(text, path),
        })?;
        self.verify_edit(before, &after, path, None)?;
        Ok(after)
    }

    /// Applies an edit to the text without byte order mark and carriage returns, then restores both.
    fn edit_text(
        self,
        text: &str,
        edit: impl FnOnce(&str) -> Result<String, EditError>,
    ) -> Result<String, EditError> {
        let plain = text.strip_prefix(BOM).unwrap_or(text);
        let bom = &text[..text.len() - plain.len()];
        let after = edit(&plain.replace("\r\n", "\n"))?;
        Ok(format!("{bom}{}", super::restore_line_endings(plain, &after)))
    }

    /// Checks that an edited text differs from the original only in the entry, whichever editor produced it.
    fn verify_edit(
        self,
        mut before: Json,
        after: &str,
        path: &[&str],
        entry: Option<Json>,
    ) -> Result<(), EditError> {
        let not_editable = || EditError::unsupported("the file cannot be edited safely");
        set_value(&mut before, path, entry).ok_or_else(not_editable)?;
        match self.parse(after) {
            Ok(after) if without_empty_tables(&after) == without_empty_tables(&before) => Ok(()),
            _ => Err(not_editable()),
        }
    }
}

/// Returns the value at a path of keys.
pub(crate) fn get_path<'a>(value: &'a Json, path: &[&str]) -> Option<&'a Json> {
    path.iter().try_fold(value, |value, key| value.as_object()?.get(*key))
}

fn set_value(value: &mut Json, path: &[&str], entry: Option<Json>) -> Option<()> {
    let (name, parents) = path.split_last()?;
    let mut object = value;
    for key in parents {
        if object.is_null() {
            *object = Json::Object(serde_json::Map::new());
        }
        object = object.as_object_mut()?.entry(*key).or_insert(Json::Null);
    }
    if object.is_null() {
        *object = Json::Object(serde_json::Map::new());
    }
    let object = object.as_object_mut()?;
    match entry {
        Some(entry) => object.insert((*name).to_owned(), entry),
        None => object.remove(*name),
    };
    Some(())
}

/// Removes nulls and empty objects, since editors differ in which of them they leave behind.
pub(crate) fn without_empty_tables(value: &Json) -> Json {
    let empty = |value: &Json| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
    match value {
        Json::Object(members) => {
            let members = members.iter().map(|(key, value)| (key.clone(), without_empty_tables(value)));
            Json::Object(collect_map(members.filter(|(_, value)| !empty(value))))
        }
        other => other.clone(),
    }
}

/// Sets the members one by one, so that the entry is a `[table]` and equal values keep their formatting.
fn set_toml_entry(text: &str, path: &[&str], members: &EntryMembers) -> Result<String, EditError> {
    let mut file = TomlFile::parse(text)?;
    for key in file.keys(path) {
        if !members.iter().any(|(member, _)| *member == key) {
            file.remove(&[path, &[&key]].concat());
        }
    }
    for (key, value) in members {
        file.set(&[path, &[key]].concat(), value)?;
    }
    Ok(file.render())
}
