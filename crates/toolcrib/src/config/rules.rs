//! `allow`, `deny` and `ask`: lists of patterns, each of which knows where it is written.

use super::Concern;
use super::page::Page;
use super::reader::Reader;
use super::root::Sections;
use crate::policy::{AllowList, Rule, Rules};
use crate::quota::Limit;
use crate::spec::ServerId;
use crate::spelling;

/// Reads one pattern; `Err` says what is wrong with it and what to write.
type Parse = fn(&str) -> Result<Rule, (String, &'static str)>;

/// A pattern `SERVER.NAME`.
pub(super) fn over_servers(written: &str) -> Result<Rule, (String, &'static str)> {
    let hint = "write `SERVER.NAME`, such as `\"git.push*\"` or `\"git.*\"`; a lone `*` is everything";
    written.parse().map_err(|bad| (format!("`{written}` is no pattern: {bad}"), hint))
}

/// A pattern over the names of one server.
pub(super) fn over_names(written: &str) -> Result<Rule, (String, &'static str)> {
    let hint = "write the name of a tool; `*` stands for any characters";
    written.parse().map(Rule::bare).map_err(|_| ("a pattern is empty".to_owned(), hint))
}

/// Reads `allow`, `deny` and `ask` of a table.
pub(super) fn read(reader: &mut Reader<'_>, parse: Parse) -> Rules {
    let origin = reader.value("allow").map(|node| reader.page().origin(node.span.start));
    let allow = list(reader, "allow", parse).map(|rules| AllowList { rules, origin, ..AllowList::default() });
    let deny = list(reader, "deny", parse).unwrap_or_default();
    let ask = list(reader, "ask", parse).unwrap_or_default();
    Rules { allow, deny, ask }
}

fn list(reader: &mut Reader<'_>, key: &'static str, parse: Parse) -> Option<Vec<Rule>> {
    let mut rules = Vec::new();
    for (node, written) in reader.strings(key)? {
        match parse(written) {
            Ok(rule) => rules.push(rule.at(reader.page().origin(node.span.start))),
            Err((message, hint)) => reader.wrong(node.span.start, message, hint),
        }
    }
    Some(rules)
}

/// Mentions rules about servers that are not declared: such a rule does nothing, which may not be what was meant.
pub(super) fn note_strangers(page: &mut Page, sections: &Sections) {
    let policy = &sections.policy;
    let of_profiles = policy.profiles.values().flat_map(|profile| [&profile.servers, &profile.rules]);
    let all = std::iter::once(&policy.everyone).chain(of_profiles).chain(policy.callers.values());
    let rules = all.flat_map(|rules| {
        let allowed = rules.allow.iter().flat_map(|list| &list.rules);
        allowed.chain(&rules.deny).chain(&rules.ask)
    });
    let quota = &sections.quota;
    let limits = quota.callers.values().chain([&quota.everyone]).flatten().map(Limit::what);
    let known: Vec<&str> = sections.origins.keys().map(ServerId::as_str).collect();
    for rule in rules.chain(limits) {
        let Some(named) = rule.only_server().filter(|named| !known.contains(named)) else { continue };
        let hint = match spelling::nearest(named, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "nothing has to be done if such a server is to come".to_owned(),
        };
        let Some(origin) = &rule.origin else { continue };
        let message = format!("`{rule}` is about a server that is not declared here");
        page.report_in_line(origin, &Concern::Note, message, hint);
    }
}
