//! Reads `[expose]`: which clients are listed all tools, and which search for them.

use super::reader::TableReader;
use super::rules;
use crate::access::expose::{ExposeMode, ExposeSettings};

const MODES: &[(&str, ExposeMode)] =
    &[("auto", ExposeMode::Auto), ("all", ExposeMode::All), ("search", ExposeMode::Search)];

/// Reads the section. Without `mode`, it is `auto`.
pub(super) fn read(reader: &mut TableReader<'_>, settings: &mut ExposeSettings) {
    let Some(mut table) = reader.table("expose") else { return };
    settings.mode = read_mode(&mut table, "mode").unwrap_or(ExposeMode::Auto);
    if let Some(budget) = table.count("budget", 1) {
        settings.budget = usize::try_from(budget).unwrap_or(usize::MAX);
    }
    settings.always_list =
        rules::read_list(&mut table, "always-list", rules::parse_server_rule).unwrap_or_default();
    if let Some(mut clients) = table.table("clients") {
        for entry in clients.entries() {
            if let Some(mode) = clients.entry_choice(entry, MODES) {
                settings.clients.insert(entry.key.clone(), mode);
            }
        }
    }
    table.finish();
}

/// Reads a key whose value is a mode.
pub(super) fn read_mode(reader: &mut TableReader<'_>, key: &'static str) -> Option<ExposeMode> {
    reader.choice(key, MODES)
}
