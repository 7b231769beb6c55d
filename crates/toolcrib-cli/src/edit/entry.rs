//! Puts one entry into settings in any of the languages that agents use, and proves it: what comes out says what went in
//! plus the entry, and nothing else. It edits text and touches no file.

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RELAXED: Language = Language::Json(Manner::Relaxed);
    const STRICT: Language = Language::Json(Manner::Strict);

    fn entry() -> Members {
        vec![("command".to_owned(), json!("toolcrib")), ("args".to_owned(), json!(["stdio"]))]
    }

    /// Puts an entry, again, and takes it out: the first changes lines of its own only, the second nothing.
    fn there_and_back(language: Language, before: &str, path: &[&str]) -> String {
        let after = language.put(before, path, &entry()).unwrap();
        assert_eq!(language.put(&after, path, &entry()).unwrap(), after);
        let windows = before.replace('\n', "\r\n");
        assert_eq!(language.put(&windows, path, &entry()).unwrap(), after.replace('\n', "\r\n"));
        let marked = format!("\u{feff}{before}");
        assert_eq!(language.put(&marked, path, &entry()).unwrap(), format!("\u{feff}{after}"));
        let back = language.remove(&after, path).unwrap();
        assert_eq!(bare(&language.read(&back).unwrap()), bare(&language.read(before).unwrap()));
        after
    }

    #[test]
    fn json_keeps_comments_tabs_and_trailing_commas() {
        let before = "{\n\t// mine\n\t\"a\": 1, /* one */\n\t\"mcpServers\": {\n\t\t\"x\": {\"command\": \"y\"}, // x\n\t},\n}\n";
        let after = there_and_back(RELAXED, before, &["mcpServers", "toolcrib"]);
        let added =
            "\t\t\"toolcrib\": {\n\t\t\t\"command\": \"toolcrib\",\n\t\t\t\"args\": [\"stdio\"],\n\t\t},\n";
        assert_eq!(after, before.replace("// x\n", &format!("// x\n{added}")));
        assert_eq!(RELAXED.remove(&after, &["mcpServers", "toolcrib"]).unwrap(), before);
    }

    #[test]
    fn strict_json_stays_strict_and_comments_in_it_are_a_mistake_with_a_place() {
        let after = there_and_back(STRICT, "{\n  \"numStartups\": 3\n}\n", &["mcpServers", "toolcrib"]);
        assert!(serde_json::from_str::<Json>(&after).is_ok(), "{after}");
        assert!(after.starts_with("{\n  \"numStartups\": 3,\n  \"mcpServers\": {"), "{after}");
        let bad = STRICT.put("{\n  // no\n  \"a\": 1\n}", &["m", "t"], &entry()).unwrap_err();
        assert_eq!(bad.at, Some((2, 3)), "{bad}");
        let bad = RELAXED.put("{\"a\": 1", &["m", "t"], &entry()).unwrap_err();
        assert!(bad.at.is_some(), "{bad}");
        for (text, path) in
            [("{\"m\": 5}", ["m", "t"]), ("[]", ["m", "t"]), ("{\"m\": {}, \"m\": {}}", ["m", "t"])]
        {
            assert!(RELAXED.put(text, &path, &entry()).is_err(), "{text}");
        }
    }

    #[test]
    fn files_without_anything_in_them_are_begun() {
        for language in [RELAXED, STRICT, Language::Toml, Language::Yaml] {
            for before in ["", "\n"] {
                let after = language.put(before, &["m", "toolcrib"], &entry()).unwrap();
                let want = json!({"m": {"toolcrib": {"command": "toolcrib", "args": ["stdio"]}}});
                assert_eq!(language.read(&after).unwrap(), want);
            }
        }
        assert_eq!(RELAXED.put("{}", &["m", "toolcrib"], &entry()).unwrap().matches('{').count(), 3);
    }

    #[test]
    fn toml_keeps_comments_in_and_between_tables() {
        let before = "# mine\nmodel = \"x\" # inline\n\n[mcp_servers.a] # a\n# in a\ncommand = 'b'\n\n# about p\n[profiles.p]\nx = 1\n";
        let after = there_and_back(Language::Toml, before, &["mcp_servers", "toolcrib"]);
        let added = "[mcp_servers.toolcrib]\ncommand = \"toolcrib\"\nargs = [\"stdio\"]\n\n";
        assert_eq!(after.replace(added, ""), before);
    }

    #[test]
    fn a_changed_entry_changes_alone() {
        let before = RELAXED.put("{ // top\n}", &["m", "toolcrib"], &entry()).unwrap();
        let more = vec![("command".to_owned(), json!("other"))];
        let after = RELAXED.put(&before, &["m", "toolcrib"], &more).unwrap();
        assert_eq!(RELAXED.read(&after).unwrap(), json!({"m": {"toolcrib": {"command": "other"}}}));
        assert!(after.contains("// top"));
        let toml = "[m.toolcrib]\ncommand = 'toolcrib' # here\nurl = 'x'\n";
        let after = Language::Toml.put(toml, &["m", "toolcrib"], &entry()).unwrap();
        assert_eq!(after, "[m.toolcrib]\ncommand = 'toolcrib' # here\nargs = [\"stdio\"]\n");
    }
}
