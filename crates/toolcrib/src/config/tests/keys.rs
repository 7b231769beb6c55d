//! Comparison of the table of keys with the keys that are read.

use std::collections::BTreeSet;

use super::*;
use crate::config::keys::{ConfigKey, ROOT, ValueKind};

/// A key that resembles no valid key, so that the hint for it lists all valid keys.
const UNKNOWN_KEY: &str = "qqqqqqqqqqqqqqqq";

/// Returns the keys that are read in the table at a path.
fn keys_read(path: &str) -> BTreeSet<String> {
    let table = if path.is_empty() { String::new() } else { format!("[{path}]\n") };
    let config = toml(&format!("{table}{UNKNOWN_KEY} = 1\n"));
    let hint = config.problems.iter().find(|problem| problem.message.contains(UNKNOWN_KEY));
    let hint = hint
        .unwrap_or_else(|| panic!("{path}: {:?}", problem_lines(&config)))
        .hint
        .clone()
        .unwrap_or_default();
    let (_, keys) = hint.split_once("valid keys are ").unwrap_or_else(|| panic!("{path}: {hint}"));
    keys.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()
}

fn compare(path: &str, keys: &[ConfigKey], differences: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let read = keys_read(path);
    let listed: BTreeSet<String> = keys.iter().map(|key| key.name.to_owned()).collect();
    differences
        .extend(read.difference(&listed).map(|key| format!("`{}` is read and not in the table", below(key))));
    differences
        .extend(listed.difference(&read).map(|key| format!("`{}` is in the table and not read", below(key))));
    for key in keys {
        let kinds = match &key.kind {
            ValueKind::AnyOf(kinds) => kinds,
            kind => std::slice::from_ref(kind),
        };
        for kind in kinds {
            match kind {
                ValueKind::Table(keys) => compare(&below(key.name), keys, differences),
                ValueKind::NamedTables(keys) if key.name == "limits" => {
                    compare(&format!("{}.\"a.*\"", below(key.name)), keys, differences);
                }
                ValueKind::NamedTables(keys) => compare(&format!("{}.x", below(key.name)), keys, differences),
                _ => {}
            }
        }
    }
}

#[test]
fn key_table_lists_exactly_the_keys_that_are_read() {
    let mut differences = Vec::new();
    compare("", ROOT, &mut differences);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
