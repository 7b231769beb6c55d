//! One layer laid over another: the nearer wins key by key, and every value keeps the place where it was written.

use std::collections::HashMap;

use super::node::{Entry, Node, Table, Value};

/// From this many keys on, an index finds them faster than looking at each.
const MANY: usize = 32;

/// Keys that only a process has, and keys that only an address has: a nearer layer that turns one into the other leaves
/// nothing of the former.
const OF_PROCESSES: [&str; 6] = ["command", "args", "env", "cwd", "inherit-env", "type"];
const OF_ADDRESSES: [&str; 3] = ["url", "headers", "type"];

/// Which tables are special.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    /// The table of all servers.
    Servers,
    /// The table of one.
    Server,
    /// Its headers, whose names know no upper and lower case.
    Headers,
    /// The rules for everyone, of which no layer takes back what another forbids.
    Policy,
    Other,
}

impl Level {
    fn below(self, key: &str) -> Self {
        match (self, key) {
            (Self::Root, "servers") => Self::Servers,
            (Self::Root, "policy") => Self::Policy,
            (Self::Servers, _) => Self::Server,
            (Self::Server, "headers") => Self::Headers,
            _ => Self::Other,
        }
    }

    fn adds_up(self, key: &str) -> bool {
        self == Self::Policy && matches!(key, "deny" | "ask")
    }

    fn is_same(self, one: &str, other: &str) -> bool {
        one == other || self == Self::Headers && one.eq_ignore_ascii_case(other)
    }
}

/// Lays a nearer layer over what the farther ones come to.
pub(super) fn over(far: Table, near: Table) -> Table {
    lay(far, near, Level::Root)
}

fn lay(mut far: Table, mut near: Table, level: Level) -> Table {
    if far.0.is_empty() && !near.0.iter().any(|entry| entry.key.starts_with('+')) {
        near.0.iter_mut().for_each(|entry| alone(entry, level.below(&entry.key)));
        return near;
    }
    if level == Level::Server {
        forget_the_other_kind(&mut far, &near);
    }
    let farther = far.0.len();
    let many = farther.max(near.0.len()) >= MANY;
    let mut index: HashMap<String, usize> = match many {
        true => far.0.iter().enumerate().map(|(at, entry)| (entry.key.clone(), at)).collect(),
        false => HashMap::new(),
    };
    for mut entry in near.0 {
        let extends = extends(&mut entry) || level.adds_up(&entry.key);
        let found = match many {
            true => index.get(&entry.key).copied(),
            false => far.0.iter().position(|other| level.is_same(&other.key, &entry.key)),
        };
        // What the same layer says twice is not for it to win.
        let found = found.filter(|at| *at < farther || extends);
        let below = level.below(&entry.key);
        match found {
            Some(at) => meet(&mut far.0[at], entry, extends, below),
            None => {
                alone(&mut entry, below);
                if many {
                    index.insert(entry.key.clone(), far.0.len());
                }
                far.0.push(entry);
            }
        }
    }
    far
}

/// An entry that has nothing below it.
fn alone(entry: &mut Entry, below: Level) {
    if let Value::Table(table) = &mut entry.value.value {
        *table = lay(Table::default(), std::mem::take(table), below);
    }
}

/// Whether an entry is written with a `+`, which is taken off: its list is added to the farther one.
fn extends(entry: &mut Entry) -> bool {
    match entry.key.strip_prefix('+').filter(|_| matches!(entry.value.value, Value::Array(_))) {
        Some(key) => {
            entry.key = key.to_owned();
            true
        }
        None => false,
    }
}

fn meet(far: &mut Entry, near: Entry, extends: bool, below: Level) {
    match (&mut far.value.value, near.value.value) {
        (Value::Table(table), Value::Table(nearer)) => *table = lay(std::mem::take(table), nearer, below),
        (Value::Array(elements), Value::Array(more)) if extends => {
            let former = Node { span: far.value.span.clone(), value: Value::Array(elements.clone()) };
            elements.extend(more);
            far.beaten.push(former);
            (far.at, far.value.span) = (near.at, near.value.span);
        }
        (_, value) => {
            let mut value = value;
            if let Value::Table(table) = &mut value {
                *table = lay(Table::default(), std::mem::take(table), below);
            }
            let former = std::mem::replace(&mut far.value, Node { span: near.value.span, value });
            far.beaten.push(former);
            far.at = near.at;
        }
    }
}

fn forget_the_other_kind(far: &mut Table, near: &Table) {
    let has = |table: &Table, key: &str| table.0.iter().any(|entry| entry.key == key);
    let gone: &[&str] = match (has(near, "command"), has(near, "url")) {
        (true, false) if has(far, "url") => &OF_ADDRESSES,
        (false, true) if has(far, "command") => &OF_PROCESSES,
        _ => return,
    };
    far.0.retain(|entry| !gone.contains(&entry.key.as_str()));
}
