//! Reads `allow`, `deny` and `ask`: lists of patterns, each with its origin.

use super::ProblemScope;
use super::reader::TableReader;
use super::root::ConfigSections;
use super::source_map::SourceMap;
use crate::access::policy::{AllowList, Rule, Rules};
use crate::limits::UsageLimit;
use crate::spec::ServerId;
use crate::util::format;

/// An invalid pattern: the message and the hint.
pub(super) struct PatternError {
    pub(super) message: String,
    pub(super) hint: &'static str,
}

type ParseRule = fn(&str) -> Result<Rule, PatternError>;

/// Parses a pattern `SERVER.NAME`.
pub(super) fn parse_server_rule(written: &str) -> Result<Rule, PatternError> {
    written.parse().map_err(|error| PatternError {
        message: format!("invalid pattern `{written}`: {error}"),
        hint: "write `SERVER.NAME`, such as `\"git.push*\"` or `\"git.*\"`; `*` alone matches everything",
    })
}

/// Parses a pattern over the names of one server.
pub(super) fn parse_tool_rule(written: &str) -> Result<Rule, PatternError> {
    written.parse().map(Rule::for_name).map_err(|_| PatternError {
        message: "empty pattern".to_owned(),
        hint: "write the name of a tool; `*` stands for any characters",
    })
}

/// Reads `allow`, `deny` and `ask` of a table.
pub(super) fn read(reader: &mut TableReader<'_>, parse: ParseRule) -> Rules {
    let origin = reader.peek("allow").map(|node| reader.source().origin(node.span.start));
    let allow = read_list(reader, "allow", parse);
    let allow = allow.map(|rules| AllowList { rules, origin, ..AllowList::default() });
    let deny = read_list(reader, "deny", parse).unwrap_or_default();
    let ask = read_list(reader, "ask", parse).unwrap_or_default();
    Rules { allow, deny, ask }
}

/// Reads a list of patterns.
pub(super) fn read_list(
    reader: &mut TableReader<'_>,
    key: &'static str,
    parse: ParseRule,
) -> Option<Vec<Rule>> {
    let mut rules = Vec::new();
    for (node, written) in reader.strings(key)? {
        match parse(written) {
            Ok(rule) => rules.push(rule.with_origin(reader.source().origin(node.span.start))),
            Err(error) => reader.error(node.span.start, error.message, error.hint),
        }
    }
    Some(rules)
}

/// Reports rules and limits that name an undeclared server, and so have no effect, as notes.
pub(super) fn note_undeclared_servers(source: &mut SourceMap, sections: &ConfigSections) {
    let policy = &sections.policy;
    let profiles = policy.profiles.values().flat_map(|profile| [&profile.servers, &profile.rules]);
    let of_callers = policy.callers.values().chain(policy.groups.values());
    let all = std::iter::once(&policy.everyone).chain(profiles).chain(of_callers);
    let rules = all.flat_map(|rules| {
        let allowed = rules.allow.iter().flat_map(|list| &list.rules);
        allowed.chain(&rules.deny).chain(&rules.ask)
    });
    let quota = &sections.usage_limits;
    let limited = quota.callers.values().chain(quota.groups.values()).chain([&quota.everyone]);
    let limited = limited.flatten().map(UsageLimit::pattern);
    let declared: Vec<&str> = sections.origins.keys().map(ServerId::as_str).collect();
    for rule in rules.chain(limited) {
        let Some(server) = rule.literal_server().filter(|name| !declared.contains(name)) else { continue };
        let hint = match format::closest_match(server, declared.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("declare `[servers.{server}]`, or remove the pattern"),
        };
        let Some(origin) = &rule.origin else { continue };
        let message = format!("`{rule}` has no effect: no server `{server}` is declared");
        source.report_at_line(origin, &ProblemScope::Note, message, hint);
    }
}
