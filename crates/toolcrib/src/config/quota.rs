//! Reads `quota`, `rate` and `limits` of `[policy]`, `[callers.NAME]` and `[groups.NAME]`.

use std::num::NonZeroU32;
use std::time::Duration;

use super::node::ConfigValue;
use super::reader::TableReader;
use super::root::ConfigSections;
use super::source_map::SourceMap;
use super::{ProblemScope, rules};
use crate::access::policy::Rule;
use crate::limits::{LimitKind, LimitOwner, OnStoreFailure, UsageLimit};
use crate::model::caller::Caller;

/// Reads the limits of a table: its own, and those of patterns.
pub(super) fn read(reader: &mut TableReader<'_>) -> Vec<UsageLimit> {
    let mut limits = read_quota_and_rate(reader, None);
    let Some(mut patterns) = reader.table("limits") else { return limits };
    for entry in patterns.entries() {
        let rule = match rules::parse_server_rule(&entry.key) {
            Ok(rule) if entry.key != "*" => rule.with_origin(patterns.source().origin(entry.offset)),
            Ok(_) => {
                let hint = "write `quota` and `rate` without a pattern";
                patterns.error(entry.offset, "a limit for `*` needs no pattern", hint);
                continue;
            }
            Err(error) => {
                patterns.error(entry.offset, error.message, error.hint);
                continue;
            }
        };
        if limits.iter().any(|limit| *limit.pattern().to_string() == *entry.key) {
            let message = format!("`{}` is defined twice", entry.key);
            patterns.error(entry.offset, message, "remove one of the two");
        }
        let Some(mut table) = patterns.entry_table(entry) else { continue };
        if !table.has("quota") && !table.has("rate") {
            let hint = "write `quota = { calls = 100, per = \"1h\" }`, or remove the table";
            table.error_at_table(format!("`{}` has neither `quota` nor `rate`", entry.key), hint);
        }
        limits.append(&mut read_quota_and_rate(&mut table, Some(&rule)));
        table.finish();
    }
    limits
}

fn read_quota_and_rate(reader: &mut TableReader<'_>, pattern: Option<&Rule>) -> Vec<UsageLimit> {
    let limits = [read_limit(reader, "quota"), read_limit(reader, "rate")].into_iter().flatten();
    let restrict = |limit: UsageLimit| match pattern {
        Some(rule) => limit.matching(rule.clone()),
        None => limit,
    };
    limits.map(restrict).collect()
}

fn read_limit(reader: &mut TableReader<'_>, key: &'static str) -> Option<UsageLimit> {
    let path = reader.key_path(key);
    let offset = reader.peek(key).map(|node| node.span.start);
    let Some(offset) = offset else {
        // Marks the key as read, so that the list of valid keys contains it.
        reader.take(key);
        return None;
    };
    let origin = reader.source().origin(offset);
    let mut table = reader.table(key)?;
    let calls = read_calls(&mut table);
    let per = table.duration("per");
    let wait = if key == "rate" { table.duration("wait") } else { None };
    let choices = [("refuse", OnStoreFailure::Refuse), ("allow", OnStoreFailure::Allow)];
    let on_store_failure = table.choice("on-store-failure", &choices).unwrap_or_default();
    for required in ["calls", "per"] {
        if !table.has(required) {
            let hint = format!("write `{key} = {{ calls = 100, per = \"1h\" }}`");
            table.error_at_table(format!("{path} has no `{required}`"), hint);
        }
    }
    table.finish();
    let limit = if key == "rate" { UsageLimit::rate(calls?, per?) } else { UsageLimit::quota(calls?, per?) };
    let limit = limit.max_wait(wait.unwrap_or(Duration::ZERO)).on_store_failure(on_store_failure);
    Some(limit.with_origin(origin))
}

fn read_calls(reader: &mut TableReader<'_>) -> Option<NonZeroU32> {
    if matches!(reader.peek("calls").map(|node| &node.value), Some(ConfigValue::Number(Some(0)))) {
        let path = reader.key_path("calls");
        reader.take("calls");
        let hint = "use `deny` to forbid calls; remove the limit to allow any number";
        reader.error_at_value("calls", format!("{path} must not be zero"), hint);
        return None;
    }
    reader.count("calls", 1).and_then(NonZeroU32::new)
}

/// A limit and the part of the config that sets it.
#[derive(Clone, Copy)]
struct OwnedLimit<'a> {
    owner: LimitOwner<'a>,
    limit: &'a UsageLimit,
}

impl OwnedLimit<'_> {
    fn config_key(&self) -> String {
        self.limit.config_key(self.owner)
    }

    /// Returns whether every call that counts against `other` counts against this limit too.
    fn covers(&self, other: &UsageLimit) -> bool {
        let pattern = self.limit.pattern().to_string();
        pattern == "*" || pattern == other.pattern().to_string()
    }
}

/// Reports limits that have no effect, because another one is always reached first, as notes.
pub(super) fn note_unreachable(source: &mut SourceMap, sections: &ConfigSections) {
    let quota = &sections.usage_limits;
    let everyone: Vec<_> =
        quota.everyone.iter().map(|limit| OwnedLimit { owner: LimitOwner::Everyone, limit }).collect();
    note_unreachable_among(source, &everyone, |_| true);
    let callers = quota.callers.keys().map(|name| Caller::new(name));
    let members = quota.groups.keys().map(|group| Caller::with_groups("", [group.clone()]));
    for caller in callers.chain(members) {
        let limits = quota.limits_for(&caller).map(|(owner, limit)| OwnedLimit { owner, limit });
        let limits: Vec<_> = limits.collect();
        note_unreachable_among(source, &limits, |limit| limit.owner != LimitOwner::Everyone);
    }
}

fn note_unreachable_among(
    source: &mut SourceMap,
    limits: &[OwnedLimit<'_>],
    is_reported: impl Fn(&OwnedLimit<'_>) -> bool,
) {
    for (index, candidate) in limits.iter().enumerate().filter(|(_, limit)| is_reported(limit)) {
        for (_, other) in limits.iter().enumerate().filter(|(other, _)| *other != index) {
            let is_unreachable =
                other.covers(candidate.limit) && shadows(other.limit.kind(), candidate.limit.kind());
            let Some(origin) = candidate.limit.origin().filter(|_| is_unreachable) else { continue };
            let message = format!(
                "`{}` has no effect: `{}` ({}) is always reached first",
                candidate.config_key(),
                other.config_key(),
                other.limit.kind()
            );
            let hint = "every limit that matches a call applies; remove this one, or raise the other";
            source.report_at_line(origin, &ProblemScope::Note, message, hint.to_owned());
        }
    }
}

/// Returns whether calls that keep to `first` can never exceed `second`. Two equal limits do not shadow each other.
fn shadows(first: LimitKind, second: LimitKind) -> bool {
    let first_calls = u128::from(first.calls().get());
    let second_calls = u128::from(second.calls().get());
    let first_per = first.period().as_nanos().max(1);
    let second_per = second.period().as_nanos();
    match (first, second) {
        (LimitKind::Quota { .. }, LimitKind::Quota { .. }) => {
            first_calls * second_per.div_ceil(first_per) <= second_calls && first != second
        }
        (LimitKind::Rate { .. }, LimitKind::Quota { .. }) => {
            first_calls + (first_calls * second_per).div_ceil(first_per) <= second_calls
        }
        (_, LimitKind::Rate { .. }) => {
            first_calls <= second_calls
                && first_calls * second_per <= second_calls * first_per
                && (first_calls, first_per) != (second_calls, second_per)
        }
    }
}
