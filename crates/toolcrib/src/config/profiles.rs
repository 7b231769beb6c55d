//! Reads `[profiles.NAME]`. A profile contains servers by name, or by a tag in their `when`.

use super::node::TableEntry;
use super::reader::TableReader;
use super::root::ConfigSections;
use super::{Origin, TagCondition, expose, groups, rules, when};
use crate::access::policy::{AllowList, Profile, Rule, Rules};
use crate::spec::ServerId;

/// A tag that adds servers to a profile. It is applied after the servers have been read.
pub(super) struct TagSelector {
    profile: String,
    tag: String,
    origin: Origin,
}

/// Reads every profile and returns their tag selectors.
pub(super) fn read(reader: &mut TableReader<'_>, sections: &mut ConfigSections) -> Vec<TagSelector> {
    let mut selectors = Vec::new();
    let Some(mut profiles) = reader.table("profiles") else { return selectors };
    for entry in profiles.entries() {
        let name = &entry.key;
        if let Err(error) = name.parse::<ServerId>() {
            let message = format!("invalid profile name `{name}`: {error}");
            profiles.error(entry.offset, message, "choose another, such as `work`");
        }
        if sections.policy.profiles.contains_key(name) {
            let message = format!("`profiles.{name}` is defined twice");
            profiles.error(entry.offset, message, "remove one of the two");
        }
        if let Some(profile) = read_profile(&mut profiles, entry, sections, &mut selectors) {
            sections.policy.profiles.insert(name.clone(), profile);
        }
    }
    selectors
}

fn read_profile<'a>(
    profiles: &mut TableReader<'a>,
    entry: &'a TableEntry,
    sections: &mut ConfigSections,
    selectors: &mut Vec<TagSelector>,
) -> Option<Profile> {
    let mut table = profiles.entry_table(entry)?;
    let mut servers = read_servers(&mut table);
    if let Some(node) = table.peek("tags") {
        let list = servers.allow.get_or_insert_with(AllowList::default);
        list.has_tags = true;
        list.origin = Some(table.source().origin(node.span.start));
    }
    for tag in when::read_tags(&mut table, "tags", &sections.tags).unwrap_or_default() {
        let origin = table.source().origin(tag.offset);
        selectors.push(TagSelector { profile: entry.key.clone(), tag: tag.name, origin });
    }
    let rules = rules::read(&mut table, rules::parse_server_rule);
    let profile = Profile { servers, rules, groups: groups::read_names(&mut table, sections) };
    let mode = expose::read_mode(&mut table, "expose");
    sections.expose.profiles.extend(mode.map(|mode| (entry.key.clone(), mode)));
    table.finish();
    Some(profile)
}

/// Reads the servers that a profile names, as rules that allow only these.
fn read_servers(table: &mut TableReader<'_>) -> Rules {
    let origin = table.peek("servers").map(|node| table.source().origin(node.span.start));
    let Some(patterns) = table.strings("servers") else { return Rules::default() };
    let mut rules = Vec::new();
    for (node, pattern) in patterns {
        match Rule::for_servers(pattern) {
            Ok(rule) => rules.push(rule.with_origin(table.source().origin(node.span.start))),
            Err(_) => {
                let message = format!("invalid server name `{pattern}`");
                let hint = "write a name from `[servers]`; `*` stands for any characters";
                table.error(node.span.start, message, hint);
            }
        }
    }
    Rules { allow: Some(AllowList { rules, origin, ..AllowList::default() }), ..Rules::default() }
}

/// Adds every server to the profiles that select it by a tag.
pub(super) fn apply_tag_selectors(selectors: &[TagSelector], sections: &mut ConfigSections) {
    for TagSelector { profile, tag, origin } in selectors {
        let profile = sections.policy.profiles.get_mut(profile);
        let Some(list) = profile.and_then(|profile| profile.servers.allow.as_mut()) else { continue };
        let has_tag =
            |when: &TagCondition| when.any.iter().flatten().chain(&when.all).any(|name| name == tag);
        let tagged = sections.declared.iter().filter(|server| server.when.as_ref().is_some_and(has_tag));
        // A server's name is always a valid pattern.
        let rules = tagged.filter_map(|server| Rule::for_tagged_server(&server.id, tag).ok());
        list.rules.extend(rules.map(|rule| rule.with_origin(origin.clone())));
    }
}
