//! Differences between two configs, value by value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value as Json;

use super::Origin;
use super::declared::{self, Hiding};
use super::node::{ConfigTable, ConfigValue, TableEntry};
use super::project::is_relative;
use super::source_map::SourceMap;

/// A value that differs between two configs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConfigChange {
    /// Path of its key, such as `servers.git.args`, with quotes where TOML needs them.
    pub key: String,
    /// The value before, if there was one.
    pub before: Option<Json>,
    /// The value after, if there is one.
    pub after: Option<Json>,
    /// Place of the value after, or of the removed value.
    pub origin: Origin,
}

/// A merged config and the texts that it was read from.
pub(super) struct ConfigState<'a> {
    pub(super) source: &'a SourceMap,
    pub(super) root: &'a ConfigTable,
}

/// A value, which is not a table unless it is an empty one.
struct Leaf<'a> {
    path: Vec<&'a str>,
    entry: &'a TableEntry,
}

impl Leaf<'_> {
    fn hiding(&self) -> Hiding {
        match &self.path[..] {
            ["servers" | "mcpServers", _, key @ ..] => Hiding::for_server_key(&key.join(".")),
            [.., "token"] => Hiding::Literals,
            _ => Hiding::Nothing,
        }
    }

    fn is_relative(&self) -> bool {
        self.path.last().is_some_and(|key| is_relative(key, &self.entry.value))
    }
}

/// Returns every value that differs, sorted by key. New values in the file `shown` are not hidden.
pub(super) fn compare(before: &ConfigState<'_>, after: &ConfigState<'_>, shown: &Path) -> Vec<ConfigChange> {
    let old = leaves(before.root);
    let new = leaves(after.root);
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |key: &String| {
        let old = old.get(key);
        let new = new.get(key);
        if let (Some(old), Some(new)) = (old, new)
            && old.entry.value.has_value_of(&new.entry.value)
        {
            // A relative path has another meaning in another file.
            let old_file = before.source.origin(old.entry.offset).file;
            let is_moved = old_file != after.source.origin(new.entry.offset).file;
            if !(is_moved && new.is_relative()) {
                return None;
            }
        }
        let before_json = old.map(|leaf| declared::to_json(before.source, &leaf.entry.value, leaf.hiding()));
        let origin = new
            .map(|leaf| after.source.origin(leaf.entry.offset))
            .or_else(|| old.map(|leaf| before.source.origin(leaf.entry.offset)))?;
        let after_json = new.map(|leaf| {
            let hiding = if origin.file == shown { Hiding::Nothing } else { leaf.hiding() };
            declared::to_json(after.source, &leaf.entry.value, hiding)
        });
        Some(ConfigChange { key: key.clone(), before: before_json, after: after_json, origin })
    };
    paths.into_iter().filter_map(change).collect()
}

/// Returns every value by the path of its key.
fn leaves(root: &ConfigTable) -> BTreeMap<String, Leaf<'_>> {
    let mut leaves = BTreeMap::new();
    collect(root, &[], &mut leaves);
    leaves
}

fn collect<'a>(table: &'a ConfigTable, path: &[&'a str], leaves: &mut BTreeMap<String, Leaf<'a>>) {
    for entry in &table.0 {
        let path: Vec<&str> = path.iter().copied().chain([entry.key.as_str()]).collect();
        match &entry.value.value {
            ConfigValue::Table(table) if !table.0.is_empty() => collect(table, &path, leaves),
            _ => {
                let key = path.iter().map(|part| quote_key(part)).collect::<Vec<_>>().join(".");
                leaves.insert(key, Leaf { path, entry });
            }
        }
    }
}

/// Returns a part of a key as it is written in TOML.
fn quote_key(part: &str) -> String {
    let is_bare = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    match !part.is_empty() && part.chars().all(is_bare) {
        true => part.to_owned(),
        false => Json::from(part).to_string(),
    }
}
