//! Limits of a project's file, whose author may be someone other than the user: what it cannot set, and which values of
//! farther layers are not used together with what it sets.

use super::node::{ConfigNode, ConfigTable, ConfigValue, TableEntry};
use super::source_map::SourceMap;
use super::{ProblemScope, keys};

/// Sections that a project can set. Of `policy` it can set only `deny` and `ask`.
const PROJECT_SECTIONS: [&str; 4] = ["servers", "defaults", "scopes", "policy"];

/// Keys of a server that neither hold credentials nor decide which program runs or which address is called. A key that is
/// in none of these lists does both.
const HARMLESS_KEYS: [&str; 12] = [
    "type",
    "era",
    "enabled",
    "when",
    "run-on",
    "sharing",
    "trust",
    "pin",
    "card",
    "lifecycle",
    "limits",
    "tools",
];
/// Keys that may hold credentials, but do not decide where they go.
const PASSED_ON_KEYS: [&str; 2] = ["headers", "inherit-env"];
/// Keys that decide where credentials go. Only `args` may be credentials as well, see [`take_credentials`].
const DESTINATION_KEYS: [&str; 4] = ["command", "url", "cwd", "args"];

/// A setting that protects the user, and the only value that a project can give it.
struct Safeguard {
    key: &'static str,
    strictest: &'static str,
}

const SAFEGUARDS: [Safeguard; 2] =
    [Safeguard { key: "pin", strictest: "strict" }, Safeguard { key: "trust", strictest: "normal" }];

/// Removes from a project's file what a project cannot set, and reports it. `far` are the merged farther layers.
pub(super) fn remove_forbidden(source: &mut SourceMap, far: &ConfigTable, table: &mut ConfigTable) {
    let is_known = |entry: &TableEntry| keys::ROOT.iter().any(|key| key.name == entry.key);
    let sections =
        table.0.extract_if(.., |entry| is_known(entry) && !PROJECT_SECTIONS.contains(&entry.key.as_str()));
    let mut forbidden: Vec<(usize, String)> = sections.map(|entry| (entry.offset, entry.key)).collect();
    for policy in table.tables_mut("policy") {
        let is_forbidden =
            |entry: &mut TableEntry| !matches!(entry.key.trim_start_matches('+'), "deny" | "ask");
        let removed = policy.0.extract_if(.., is_forbidden);
        forbidden.extend(removed.map(|entry| (entry.offset, format!("policy.{}", entry.key))));
    }
    for (offset, key) in forbidden {
        let message = format!("a project config cannot set `{key}`");
        source.report(offset, &ProblemScope::WholeConfig, message, "set it in your user config".to_owned());
    }
    for defaults in table.tables_mut("defaults") {
        let has_allow = far.find(&["defaults", "tools", "allow"]).is_some();
        remove_loosened(source, defaults, "defaults", has_allow);
    }
    for entry in table.tables_mut("servers").flat_map(|servers| &mut servers.0) {
        let Some(known) = far.find(&["servers", &entry.key]) else { continue };
        let has_own_allow = known.child("tools").is_some_and(|tools| tools.child("allow").is_some());
        let has_allow = has_own_allow || far.find(&["defaults", "tools", "allow"]).is_some();
        if let ConfigValue::Table(server) = &mut entry.value.value {
            remove_loosened(source, server, &format!("servers.{}", entry.key), has_allow);
        }
    }
}

/// Removes settings that would loosen those of farther layers, and reports them. `has_allow` says whether a farther layer
/// has a list of allowed tools, which the project's list would replace.
fn remove_loosened(source: &mut SourceMap, table: &mut ConfigTable, path: &str, has_allow: bool) {
    let mut removed: Vec<TableEntry> = Vec::new();
    for Safeguard { key, strictest } in SAFEGUARDS {
        let is_looser = |entry: &mut TableEntry| entry.key == key && entry.value.as_str() != Some(strictest);
        removed.extend(table.0.extract_if(.., is_looser));
    }
    for tools in table.tables_mut("tools").filter(|_| has_allow) {
        let is_allow = |entry: &mut TableEntry| entry.key.trim_start_matches('+') == "allow";
        let lists = tools.0.extract_if(.., is_allow);
        removed.extend(lists.map(|entry| TableEntry { key: format!("tools.{}", entry.key), ..entry }));
    }
    for entry in removed {
        let message = format!("`{path}.{}` is ignored: a project config cannot loosen your own", entry.key);
        let hint = "remove it, or set it in your user config".to_owned();
        source.report(entry.offset, &ProblemScope::Section, message, hint);
    }
}

/// Removes credentials of farther layers from servers whose program or address the project's file changes. The changed
/// entry keeps them, so that they can be shown.
pub(super) fn withhold_credentials(far: &mut ConfigTable, project: &mut ConfigTable) {
    let inherits_by_default = far.find(&["defaults", "inherit-env"]).is_some();
    let own_default = ["inherit-env", "+inherit-env"]
        .iter()
        .find_map(|key| project.find(&["defaults", key])?.as_array().map(<[ConfigNode]>::to_vec));
    for entry in project.tables_mut("servers").flat_map(|servers| &mut servers.0) {
        let ConfigValue::Table(server) = &mut entry.value.value else { continue };
        let mut none = ConfigTable::default();
        let known = far.tables_mut("servers").flat_map(|servers| servers.tables_mut(&entry.key)).next();
        let known = known.unwrap_or(&mut none);
        if !server.0.iter().any(|entry| is_changed_destination(entry, known)) {
            continue;
        }
        let withheld = take_credentials(server, known);
        if inherits_by_default {
            replace_default_inheritance(server, known, own_default.as_deref().unwrap_or_default());
        }
        if let Some(changed) = server.0.iter_mut().find(|entry| is_changed_destination(entry, known)) {
            attach_withheld(changed, withheld);
        }
    }
}

/// Returns whether a project's entry changes which program a server runs or which address it has.
fn is_changed_destination(entry: &TableEntry, known: &ConfigTable) -> bool {
    let key = entry.key.trim_start_matches('+');
    if HARMLESS_KEYS.contains(&key) || PASSED_ON_KEYS.contains(&key) {
        return false;
    }
    let is_appended = key != entry.key;
    match (&entry.value.value, known.find(&[key])) {
        (ConfigValue::Table(table), known) => {
            let known = known.and_then(ConfigNode::as_table);
            let is_known = |entry: &TableEntry| {
                known
                    .and_then(|known| known.find(&[&entry.key]))
                    .is_some_and(|known| known.has_value_of(&entry.value))
            };
            !table.0.iter().all(is_known)
        }
        (ConfigValue::Array(elements), known) if is_appended || known.is_none() => !elements.is_empty(),
        (_, Some(known)) => !known.has_value_of(&entry.value) || is_relative(key, &entry.value),
        (_, None) => true,
    }
}

/// Returns whether a value is a path relative to the file that it is written in.
pub(super) fn is_relative(key: &str, value: &ConfigNode) -> bool {
    let Some(path) = value.as_str().filter(|path| !path.starts_with(['/', '$'])) else { return false };
    key == "cwd" || key == "command" && path.contains('/')
}

/// Removes the entries of a farther layer's server that may hold credentials. Arguments belong to the program: they are
/// removed with it, or if they hold references.
fn take_credentials(server: &ConfigTable, known: &mut ConfigTable) -> Vec<TableEntry> {
    let is_program = |entry: &&TableEntry| matches!(entry.key.as_str(), "command" | "url");
    let has_new_program =
        server.0.iter().filter(is_program).any(|entry| is_changed_destination(entry, known));
    let is_replaced = server.find(&["args"]).is_some();
    let is_credential = |entry: &mut TableEntry| match entry.key.as_str() {
        "args" => !is_replaced && (has_new_program || has_reference(&entry.value)),
        key => !HARMLESS_KEYS.contains(&key) && !DESTINATION_KEYS.contains(&key),
    };
    known.0.extract_if(.., is_credential).collect()
}

fn has_reference(node: &ConfigNode) -> bool {
    match &node.value {
        ConfigValue::String(text) => text.contains("${"),
        ConfigValue::Array(elements) => elements.iter().any(has_reference),
        ConfigValue::Table(table) => table.0.iter().any(|entry| has_reference(&entry.value)),
        _ => false,
    }
}

/// Gives a server its own `inherit-env`, because that of the farther `[defaults]` is not for a project's program.
fn replace_default_inheritance(server: &mut ConfigTable, known: &ConfigTable, own_default: &[ConfigNode]) {
    let has = |key: &str| server.find(&[key]).is_some();
    let is_remote = has("url") || !has("command") && known.find(&["url"]).is_some();
    if is_remote || has("inherit-env") || has("+inherit-env") {
        return;
    }
    let Some(changed) = server.0.iter().find(|entry| is_changed_destination(entry, known)) else { return };
    let value =
        ConfigNode { span: changed.value.span.clone(), value: ConfigValue::Array(own_default.to_vec()) };
    let offset = changed.offset;
    server.0.push(TableEntry { offset, ..TableEntry::new("inherit-env", value) });
}

/// Attaches withheld entries to an entry, or to the first value in its table, because tables are not shown.
fn attach_withheld(entry: &mut TableEntry, withheld: Vec<TableEntry>) {
    match &mut entry.value.value {
        ConfigValue::Table(table) if !table.0.is_empty() => attach_withheld(&mut table.0[0], withheld),
        _ => entry.withheld.extend(withheld),
    }
}
