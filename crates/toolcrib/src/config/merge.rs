//! Merges layers: the nearer one wins key by key, and every value keeps the place where it was written.

use std::borrow::Cow;
use std::collections::HashMap;

use super::node::{ConfigNode, ConfigTable, ConfigValue, TableEntry};

/// Number of keys from which an index is faster than a linear search.
const INDEX_THRESHOLD: usize = 32;

/// Keys of a server with `command`. A nearer `url` removes them.
const COMMAND_KEYS: [&str; 6] = ["command", "args", "env", "cwd", "inherit-env", "type"];
/// Keys of a server with `url`. A nearer `command` removes them.
const URL_KEYS: [&str; 3] = ["url", "headers", "type"];

/// Keys with rules that only restrict. No layer removes those of another one.
const DENIAL_KEYS: [&str; 2] = ["deny", "ask"];

/// Tables that are merged by special rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MergeLevel {
    Root,
    /// The table of all servers.
    Servers,
    /// The table of one server.
    Server,
    /// The headers of a server, whose names are case-insensitive.
    Headers,
    /// The defaults of all servers.
    Defaults,
    /// The tables of callers, groups and profiles.
    RuleTables,
    /// A table with access rules, in which denials add up over layers.
    Rules,
    Other,
}

impl MergeLevel {
    fn child(self, key: &str) -> Self {
        match (self, key) {
            (Self::Root, "servers") => Self::Servers,
            (Self::Root, "defaults") => Self::Defaults,
            (Self::Root, "callers" | "groups" | "profiles") => Self::RuleTables,
            (Self::Root, "policy") | (Self::Server | Self::Defaults, "tools") | (Self::RuleTables, _) => {
                Self::Rules
            }
            (Self::Servers, _) => Self::Server,
            (Self::Server, "headers") => Self::Headers,
            _ => Self::Other,
        }
    }

    /// Returns whether lists of this key are appended even without a `+`.
    fn is_additive(self, key: &str) -> bool {
        self == Self::Rules && DENIAL_KEYS.contains(&key)
    }

    fn is_same_key(self, one: &str, other: &str) -> bool {
        one == other || self == Self::Headers && one.eq_ignore_ascii_case(other)
    }

    /// Returns the form of a key that is equal for the same keys.
    fn index_key(self, key: &str) -> Cow<'_, str> {
        match self {
            Self::Headers => Cow::Owned(key.to_ascii_lowercase()),
            _ => Cow::Borrowed(key),
        }
    }
}

/// Merges a nearer layer into the merged farther ones.
pub(super) fn overlay(far: ConfigTable, mut near: ConfigTable) -> ConfigTable {
    for servers in near.tables_mut("servers") {
        servers.0.iter_mut().for_each(|server| keep_default_denials(&far, server));
    }
    merge_tables(far, near, MergeLevel::Root)
}

fn merge_tables(mut far: ConfigTable, mut near: ConfigTable, level: MergeLevel) -> ConfigTable {
    if far.0.is_empty() && !near.0.iter().any(|entry| entry.key.starts_with('+')) {
        near.0.iter_mut().for_each(|entry| merge_into_nothing(entry, level.child(&entry.key)));
        return near;
    }
    if level == MergeLevel::Server {
        remove_replaced_keys(&mut far, &mut near);
    }
    let far_count = far.0.len();
    let use_index = far_count.max(near.0.len()) >= INDEX_THRESHOLD;
    let mut index: HashMap<String, usize> = HashMap::new();
    if use_index {
        for (at, entry) in far.0.iter().enumerate() {
            index.entry(level.index_key(&entry.key).into_owned()).or_insert(at);
        }
    }
    for mut entry in near.0 {
        let appends = strip_plus(&mut entry) || level.is_additive(&entry.key);
        let found = match use_index {
            true => index.get(&*level.index_key(&entry.key)).copied(),
            false => far.0.iter().position(|other| level.is_same_key(&other.key, &entry.key)),
        };
        // A duplicate within one layer is kept, and reported when the table is read.
        let found = found.filter(|at| *at < far_count || appends);
        let child = level.child(&entry.key);
        match found {
            Some(at) => merge_entry(&mut far.0[at], entry, appends, child),
            None => {
                merge_into_nothing(&mut entry, child);
                if use_index {
                    index.entry(level.index_key(&entry.key).into_owned()).or_insert(far.0.len());
                }
                far.0.push(entry);
            }
        }
    }
    far
}

/// Adds the denials of the farther `[defaults]` to those of a nearer server, which would replace them.
fn keep_default_denials(far: &ConfigTable, server: &mut TableEntry) {
    let ConfigValue::Table(table) = &mut server.value.value else { return };
    for key in DENIAL_KEYS {
        let defaults = far.find(&["defaults", "tools", key]).and_then(ConfigNode::as_array);
        let Some(defaults) = defaults.filter(|_| far.find(&["servers", &server.key, "tools", key]).is_none())
        else {
            continue;
        };
        let rules = table.tables_mut("tools").flat_map(|tools| &mut tools.0);
        let denials = rules.filter(|entry| entry.key.trim_start_matches('+') == key);
        if let Some(ConfigValue::Array(rules)) = denials.map(|entry| &mut entry.value.value).next() {
            rules.splice(0..0, defaults.iter().cloned());
        }
    }
}

/// Merges an entry that no farther layer has: only its `+` prefixes are resolved.
fn merge_into_nothing(entry: &mut TableEntry, level: MergeLevel) {
    if let ConfigValue::Table(table) = &mut entry.value.value {
        *table = merge_tables(ConfigTable::default(), std::mem::take(table), level);
    }
}

/// Removes the `+` from the key of a list. Returns whether there was one.
fn strip_plus(entry: &mut TableEntry) -> bool {
    match entry.key.strip_prefix('+').filter(|_| matches!(entry.value.value, ConfigValue::Array(_))) {
        Some(key) => {
            entry.key = key.to_owned();
            true
        }
        None => false,
    }
}

fn merge_entry(far: &mut TableEntry, near: TableEntry, appends: bool, level: MergeLevel) {
    far.withheld.extend(near.withheld);
    match (&mut far.value.value, near.value.value) {
        (ConfigValue::Table(table), ConfigValue::Table(nearer)) => {
            *table = merge_tables(std::mem::take(table), nearer, level);
        }
        (ConfigValue::Array(elements), ConfigValue::Array(more)) if appends => {
            let former =
                ConfigNode { span: far.value.span.clone(), value: ConfigValue::Array(elements.clone()) };
            elements.extend(more);
            far.overridden.push(former);
            far.offset = near.offset;
            far.value.span = near.value.span;
        }
        (_, mut value) => {
            if let ConfigValue::Table(table) = &mut value {
                *table = merge_tables(ConfigTable::default(), std::mem::take(table), level);
            }
            let former = std::mem::replace(&mut far.value, ConfigNode { span: near.value.span, value });
            far.overridden.push(former);
            far.offset = near.offset;
        }
    }
}

/// Removes the keys of the farther endpoint if the nearer layer replaces `command` by `url`, or the reverse. The nearer
/// entry keeps them, so that they can be shown.
fn remove_replaced_keys(far: &mut ConfigTable, near: &mut ConfigTable) {
    let has = |table: &ConfigTable, key: &str| table.0.iter().any(|entry| entry.key == key);
    let (key, removed): (&str, &[&str]) = match (has(near, "command"), has(near, "url")) {
        (true, false) if has(far, "url") => ("command", &URL_KEYS),
        (false, true) if has(far, "command") => ("url", &COMMAND_KEYS),
        _ => return,
    };
    let replaced = far.0.extract_if(.., |entry| removed.contains(&entry.key.as_str()));
    if let Some(entry) = near.0.iter_mut().find(|entry| entry.key == key) {
        entry.replaced.extend(replaced);
    }
}
