//! `[profiles.NAME]`: parts of everything, for some purpose or some caller. Servers are in one by name, or by a tag that
//! they want.

use super::Origin;
use super::node::Entry;
use super::reader::Reader;
use super::root::Sections;
use super::{rules, when};
use crate::policy::{AllowList, Profile, Rule, Rules};
use crate::spec::ServerId;

/// A tag by which a profile picks servers, once it is known which have it.
pub(super) struct Pick {
    profile: String,
    tag: String,
    origin: Origin,
}

/// Reads every profile; gives what can be decided only when the servers have been read.
pub(super) fn read(reader: &mut Reader<'_>, sections: &mut Sections) -> Vec<Pick> {
    let mut picks = Vec::new();
    let Some(mut profiles) = reader.table("profiles") else { return picks };
    for entry in profiles.entries() {
        let name = &entry.key;
        if let Err(bad) = name.parse::<ServerId>() {
            let message = format!("`{name}` cannot be a profile: {bad}");
            profiles.wrong(entry.at, message, "choose another, such as `work`");
        }
        if sections.policy.profiles.contains_key(name) {
            profiles.wrong(entry.at, format!("`profiles.{name}` is there twice"), "keep one of the two");
        }
        if let Some(profile) = profile(&mut profiles, entry, sections, &mut picks) {
            sections.policy.profiles.insert(name.clone(), profile);
        }
    }
    picks
}

fn profile<'a>(
    profiles: &mut Reader<'a>,
    entry: &'a Entry,
    sections: &Sections,
    picks: &mut Vec<Pick>,
) -> Option<Profile> {
    let mut table = profiles.table_at(entry)?;
    let mut servers = servers(&mut table);
    if let Some(node) = table.value("tags") {
        let list = servers.allow.get_or_insert_with(AllowList::default);
        list.by_tags = true;
        list.origin = Some(table.page().origin(node.span.start));
    }
    for (at, tag) in when::list(&mut table, "tags", &sections.tags).unwrap_or_default() {
        picks.push(Pick { profile: entry.key.clone(), tag, origin: table.page().origin(at) });
    }
    let profile = Profile { servers, rules: rules::read(&mut table, rules::over_servers) };
    // Nothing is exposed by search yet: both words mean that every tool is listed.
    table.choice("expose", &[("auto", ()), ("all", ())], &["search"]);
    table.finish();
    Some(profile)
}

/// The servers in it by name, as a list of what is let through.
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
    Rules { allow: Some(AllowList { rules, origin, ..AllowList::default() }), ..Rules::default() }
}

/// Puts every server into the profiles that pick it by a tag.
pub(super) fn pick(picks: &[Pick], sections: &mut Sections) {
    for Pick { profile, tag, origin } in picks {
        let list =
            sections.policy.profiles.get_mut(profile).and_then(|profile| profile.servers.allow.as_mut());
        let Some(list) = list else { continue };
        let wants =
            |when: &super::When| when.any.iter().flatten().chain(&when.all).any(|wanted| wanted == tag);
        let tagged = sections.declared.iter().filter(|server| server.wanted.as_ref().is_some_and(wants));
        // The name is that of a server already, so there is nothing left to refuse.
        let rules = tagged.filter_map(|server| Rule::tagged(&server.id, tag).ok());
        list.rules.extend(rules.map(|rule| rule.at(origin.clone())));
    }
}
