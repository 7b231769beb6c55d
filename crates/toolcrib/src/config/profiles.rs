//! `[profiles.NAME]`: parts of everything, for some purpose or some caller.

use super::node::Entry;
use super::reader::Reader;
use super::root::Sections;
use super::rules;
use crate::policy::{AllowList, Profile, Rule, Rules};
use crate::spec::ServerId;

/// Reads every profile.
pub(super) fn read(reader: &mut Reader<'_>, sections: &mut Sections) {
    let Some(mut profiles) = reader.table("profiles") else { return };
    for entry in profiles.entries() {
        let name = &entry.key;
        if let Err(bad) = name.parse::<ServerId>() {
            let message = format!("`{name}` cannot be a profile: {bad}");
            profiles.wrong(entry.at, message, "choose another, such as `work`");
        }
        if sections.policy.profiles.contains_key(name) {
            profiles.wrong(entry.at, format!("`profiles.{name}` is there twice"), "keep one of the two");
        }
        if let Some(profile) = profile(&mut profiles, entry) {
            sections.policy.profiles.insert(name.clone(), profile);
        }
    }
}

fn profile<'a>(profiles: &mut Reader<'a>, entry: &'a Entry) -> Option<Profile> {
    let mut table = profiles.table_at(entry)?;
    let profile =
        Profile { servers: servers(&mut table), rules: rules::read(&mut table, rules::over_servers) };
    table.not_yet("tags");
    // Nothing is exposed by search yet: both words mean that every tool is listed.
    table.choice("expose", &[("auto", ()), ("all", ())], &["search"]);
    table.finish();
    Some(profile)
}

/// The servers in it, as a list of what is let through.
fn servers(table: &mut Reader<'_>) -> Rules {
    let origin = table.value("servers").map(|node| table.page().origin(node.span.start));
    let Some(written) = table.strings("servers") else { return Rules::default() };
    let mut rules = Vec::new();
    for (node, written) in written {
        match Rule::server(written) {
            Ok(rule) => rules.push(rule.at(table.page().origin(node.span.start))),
            Err(_) => {
                let message = format!("`{written}` cannot be a server");
                table.wrong(
                    node.span.start,
                    message,
                    "write the name under `[servers]`; `*` stands for any characters",
                );
            }
        }
    }
    Rules { allow: Some(AllowList { rules, origin }), ..Rules::default() }
}
