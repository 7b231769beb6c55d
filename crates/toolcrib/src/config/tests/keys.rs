//! The table of keys and the code that reads them know the same.

use std::collections::BTreeSet;

use super::*;
use crate::config::keys::{Key, Kind, ROOT};

/// A key that is like no other, so that what is said of it lists those that there are.
const STRANGER: &str = "qqqqqqqqqqqqqqqq";

/// The keys that the reader knows in the table at a path.
fn known(path: &str) -> BTreeSet<String> {
    let table = if path.is_empty() { String::new() } else { format!("[{path}]\n") };
    let config = toml(&format!("{table}{STRANGER} = 1\n"));
    let hint = config.problems.iter().find(|problem| problem.message.contains(STRANGER));
    let hint =
        hint.unwrap_or_else(|| panic!("{path}: {:?}", lines(&config))).hint.clone().unwrap_or_default();
    let (_, keys) = hint.split_once("the keys here are ").unwrap_or_else(|| panic!("{path}: {hint}"));
    keys.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()
}

fn compare(path: &str, keys: &[Key], wrong: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let (read, listed) = (known(path), keys.iter().map(|key| key.name.to_owned()).collect::<BTreeSet<_>>());
    wrong
        .extend(read.difference(&listed).map(|key| format!("`{}` is read and not in the table", below(key))));
    wrong
        .extend(listed.difference(&read).map(|key| format!("`{}` is in the table and not read", below(key))));
    for key in keys {
        let kinds = match &key.kind {
            Kind::Either(kinds) => kinds,
            kind => std::slice::from_ref(kind),
        };
        for kind in kinds {
            match kind {
                Kind::Table(keys) => compare(&below(key.name), keys, wrong),
                Kind::Named(keys) if key.name == "limits" => {
                    compare(&format!("{}.\"a.*\"", below(key.name)), keys, wrong);
                }
                Kind::Named(keys) => compare(&format!("{}.x", below(key.name)), keys, wrong),
                _ => {}
            }
        }
    }
}

#[test]
fn every_key_that_is_read_is_in_the_table_and_the_reverse() {
    let mut wrong = Vec::new();
    compare("", ROOT, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
