//! Puts one entry into settings in any of the languages that agents use, and proves it: what comes out says what went in
//! plus the entry, and nothing else. It edits text and touches no file.

#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Value as Json;

use super::jsonc::{self, Manner};
use super::toml::{BadToml, TomlFile};
use super::yaml;

const BOM: char = '\u{feff}';

/// An entry, its members in the order in which they are written.
pub(crate) type Members = Vec<(String, Json)>;

/// The language of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// JSON, strict or relaxed.
    Json(Manner),
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

/// Why a text cannot be read or edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// Line and column, from 1, where there is one.
    pub(crate) at: Option<(usize, usize)>,
    /// What is wrong.
    pub(crate) message: String,
}

impl Mistake {
    /// A mistake at a byte of a text.
    pub(super) fn at(text: &str, byte: usize, message: impl Into<String>) -> Self {
        let before = &text[..text.floor_char_boundary(byte)];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let place = (before.matches('\n').count() + 1, before[start..].chars().count() + 1);
        Self { at: Some(place), message: message.into() }
    }

    /// Nothing wrong with the syntax, and yet it cannot be done.
    pub(super) fn unsuitable(message: impl Into<String>) -> Self {
        Self { at: None, message: message.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((line, column)) => write!(f, "{line}:{column}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl From<BadToml> for Mistake {
    fn from(bad: BadToml) -> Self {
        match bad {
            BadToml::Syntax { line, column, message } => Self { at: Some((line, column)), message },
            other => Self::unsuitable(other.to_string()),
        }
    }
}

impl Language {
    /// What a text says.
    pub(crate) fn read(self, text: &str) -> Result<Json, Mistake> {
        let text = text.strip_prefix(BOM).unwrap_or(text);
        match self {
            Self::Json(manner) => jsonc::read(manner, text),
            Self::Toml => Ok(TomlFile::parse(text)?.get(&[]).unwrap_or_default()),
            Self::Yaml => yaml::read(text),
        }
    }

    /// The text with an entry at a path of keys, in place of what is there.
    pub(crate) fn put(self, text: &str, path: &[&str], members: &Members) -> Result<String, Mistake> {
        let before = self.read(text)?;
        let entry = Json::Object(members.iter().cloned().collect());
        if at(&before, path) == Some(&entry) {
            return Ok(text.to_owned());
        }
        let after = self.edited(text, |text| match self {
            Self::Json(manner) => jsonc::put(manner, text, path, members),
            Self::Toml => put_toml(text, path, members),
            Self::Yaml => yaml::put(text, path, members),
        })?;
        self.proven(before, &after, path, Some(entry))?;
        Ok(after)
    }

    /// The text without the entry at a path of keys.
    pub(crate) fn remove(self, text: &str, path: &[&str]) -> Result<String, Mistake> {
        let before = self.read(text)?;
        if at(&before, path).is_none() {
            return Ok(text.to_owned());
        }
        let after = self.edited(text, |text| match self {
            Self::Json(manner) => jsonc::remove(manner, text, path),
            Self::Toml => {
                let mut file = TomlFile::parse(text)?;
                file.remove(path);
                Ok(file.render())
            }
            Self::Yaml => yaml::remove(text, path),
        })?;
        self.proven(before, &after, path, None)?;
        Ok(after)
    }

    /// Edits behind the mark at the beginning, and with plain line ends; both are there again afterwards.
    fn edited(
        self,
        text: &str,
        edit: impl FnOnce(&str) -> Result<String, Mistake>,
    ) -> Result<String, Mistake> {
        let plain = text.strip_prefix(BOM).unwrap_or(text);
        let bom = &text[..text.len() - plain.len()];
        let after = edit(&plain.replace("\r\n", "\n"))?;
        Ok(format!("{bom}{}", super::lines::with_ends_of(plain, &after)))
    }

    /// No editor is believed: the text must say what it said before, but for the entry.
    fn proven(
        self,
        mut before: Json,
        after: &str,
        path: &[&str],
        entry: Option<Json>,
    ) -> Result<(), Mistake> {
        let strange = || Mistake::unsuitable("the file is written in a way that cannot be edited safely");
        set(&mut before, path, entry).ok_or_else(strange)?;
        match self.read(after) {
            Ok(after) if bare(&after) == bare(&before) => Ok(()),
            _ => Err(strange()),
        }
    }
}

/// What stands at a path of keys.
pub(crate) fn at<'a>(value: &'a Json, path: &[&str]) -> Option<&'a Json> {
    path.iter().try_fold(value, |value, key| value.as_object()?.get(*key))
}

fn set(value: &mut Json, path: &[&str], entry: Option<Json>) -> Option<()> {
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

/// A table without anything in it may as well be absent: editors differ in what they leave of one.
fn bare(value: &Json) -> Json {
    let empty = |value: &Json| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
    match value {
        Json::Object(members) => {
            let members = members.iter().map(|(key, value)| (key.clone(), bare(value)));
            Json::Object(members.filter(|(_, value)| !empty(value)).collect())
        }
        other => other.clone(),
    }
}

/// One value at a time, so that the table has a heading of its own and what is the same in it stays.
fn put_toml(text: &str, path: &[&str], members: &Members) -> Result<String, Mistake> {
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
