//! Reads `[groups.NAME]`: rules and limits for callers that are in a group.

use std::num::NonZeroU32;

use super::node::ConfigNode;
use super::reader::TableReader;
use super::root::ConfigSections;
use super::{expose, quota, rules};
use crate::util::format;

/// Longest name of a group, in bytes.
const MAX_NAME_LENGTH: usize = 256;

/// A group of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSpec {
    /// Name of the group, as in the tokens of issuers.
    pub name: String,
    /// True if its members may use the admin API.
    pub admin: bool,
    /// Issuers whose tokens may name the group; if empty, every issuer may.
    pub issuers: Vec<String>,
}

impl GroupSpec {
    /// Returns whether the tokens of an issuer may name the group.
    pub fn trusts(&self, issuer: &str) -> bool {
        self.issuers.is_empty() || self.issuers.iter().any(|name| name == issuer)
    }
}

/// Reads every group with its access rules and limits.
pub(super) fn read(reader: &mut TableReader<'_>, sections: &mut ConfigSections) {
    let issuers = reader.peek("issuers").and_then(ConfigNode::as_table);
    let issuers: Vec<&str> =
        issuers.into_iter().flat_map(|table| &table.0).map(|entry| entry.key.as_str()).collect();
    let Some(mut groups) = reader.table("groups") else { return };
    for entry in groups.entries() {
        let name = &entry.key;
        if name.is_empty() || name.len() > MAX_NAME_LENGTH || name.chars().any(char::is_control) {
            let message =
                format!("a group name has 1 to {MAX_NAME_LENGTH} bytes, without control characters");
            groups.error(entry.offset, message, "write the name as the issuer does");
        }
        if sections.groups.iter().any(|group| group.name == *name) {
            let message = format!("`groups.{name}` is defined twice");
            groups.error(entry.offset, message, "remove one of the two");
        }
        let Some(mut table) = groups.entry_table(entry) else { continue };
        let rules = rules::read(&mut table, rules::parse_server_rule);
        let admin = table.boolean("admin").unwrap_or(false);
        let limits = quota::read(&mut table);
        let in_flight = table.count("in-flight", 1).and_then(NonZeroU32::new);
        let mode = expose::read_mode(&mut table, "expose");
        let trusted = read_issuers(&mut table, name, &issuers);
        table.finish();
        sections.policy.groups.insert(name.clone(), rules);
        sections.expose.groups.extend(mode.map(|mode| (name.clone(), mode)));
        sections.usage_limits.groups.insert(name.clone(), limits);
        sections.usage_limits.groups_in_flight.extend(in_flight.map(|calls| (name.clone(), calls)));
        sections.groups.push(GroupSpec { name: name.clone(), admin, issuers: trusted });
    }
}

/// Reads `issuers` of a group. Where several are declared, a group that every one of them may name is worth a note: the least
/// trusted of them decides who is in it.
fn read_issuers(table: &mut TableReader<'_>, group: &str, declared: &[&str]) -> Vec<String> {
    let Some(names) = table.strings("issuers") else {
        if let [first, _, ..] = declared {
            let message =
                format!("tokens of every issuer can name the group `{group}`: `{}`", declared.join("`, `"));
            let hint = format!(
                "set `issuers = [\"{first}\"]` in `[groups.{group}]`, or name all that you trust with it"
            );
            table.note(table.key_offset(), message, hint);
        }
        return Vec::new();
    };
    if names.is_empty() {
        let message = format!("{} is empty: no token could name the group", table.key_path("issuers"));
        table.error_at_value("issuers", message, "remove it, or name an issuer");
    }
    for (node, name) in &names {
        if !declared.contains(name) {
            let hint = match format::closest_match(name, declared.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declare `[issuers.{name}]`"),
            };
            table.error(node.span.start, format!("unknown issuer `{name}`"), hint);
        }
    }
    names.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// Reads `groups` of a table: names of declared groups.
pub(super) fn read_names(reader: &mut TableReader<'_>, sections: &ConfigSections) -> Vec<String> {
    let declared = || sections.groups.iter().map(|group| group.name.as_str());
    let mut names = Vec::new();
    for (node, name) in reader.strings("groups").unwrap_or_default() {
        if declared().any(|group| group == name) {
            names.push(name.to_owned());
            continue;
        }
        let hint = match format::closest_match(name, declared()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("declare `[groups.{name}]`"),
        };
        reader.error(node.span.start, format!("unknown group `{name}`"), hint);
    }
    names
}
