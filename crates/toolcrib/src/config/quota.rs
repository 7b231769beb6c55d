//! `quota`, `rate` and `limits`: how much a caller, or everyone, may use of what.

use std::num::NonZeroU32;
use std::time::Duration;

use super::node::Value;
use super::page::Page;
use super::reader::Reader;
use super::root::Sections;
use super::{Concern, rules};
use crate::policy::Rule;
use crate::quota::{Limit, Owner, Share};

/// Reads the limits of a table: its own, and those that are about a pattern.
pub(super) fn read(reader: &mut Reader<'_>) -> Vec<Limit> {
    let mut limits = both(reader, None);
    let Some(mut patterns) = reader.table("limits") else { return limits };
    for entry in patterns.entries() {
        let rule = match rules::over_servers(&entry.key) {
            Ok(rule) if entry.key != "*" => rule.at(patterns.page().origin(entry.at)),
            Ok(_) => {
                let hint = "write `quota` and `rate` without a pattern";
                patterns.wrong(entry.at, "`*` is everything, and needs no pattern", hint);
                continue;
            }
            Err((message, hint)) => {
                patterns.wrong(entry.at, message, hint);
                continue;
            }
        };
        if limits.iter().any(|limit| *limit.what().to_string() == *entry.key) {
            patterns.wrong(entry.at, format!("`{}` is there twice", entry.key), "keep one of the two");
        }
        let Some(mut table) = patterns.table_at(entry) else { continue };
        if !table.has("quota") && !table.has("rate") {
            let hint = "write `quota = { calls = 100, per = \"1h\" }`, or leave it out";
            table.lacking(format!("`{}` has neither `quota` nor `rate`", entry.key), hint);
        }
        limits.append(&mut both(&mut table, Some(&rule)));
        table.finish();
    }
    limits
}

fn both(reader: &mut Reader<'_>, what: Option<&Rule>) -> Vec<Limit> {
    let limits = [share(reader, "quota"), share(reader, "rate")].into_iter().flatten();
    limits.map(|limit| what.iter().fold(limit, |limit, what| limit.of((*what).clone()))).collect()
}

fn share(reader: &mut Reader<'_>, key: &'static str) -> Option<Limit> {
    let name = reader.name(key);
    let at = reader.value(key).map(|node| node.span.start);
    let Some(at) = at else {
        // Asked for all the same, so that it is known to be a key.
        reader.take(key);
        return None;
    };
    let origin = reader.page().origin(at);
    let mut table = reader.table(key)?;
    let (calls, per) = (calls(&mut table), table.duration("per"));
    let wait = if key == "rate" { table.duration("wait") } else { None };
    for part in ["calls", "per"] {
        if !table.has(part) {
            let hint = format!("write `{key} = {{ calls = 100, per = \"1h\" }}`");
            table.lacking(format!("{name} has no `{part}`"), hint);
        }
    }
    table.finish();
    let limit = if key == "rate" { Limit::rate(calls?, per?) } else { Limit::quota(calls?, per?) };
    Some(limit.waiting(wait.unwrap_or(Duration::ZERO)).at(origin))
}

fn calls(reader: &mut Reader<'_>) -> Option<NonZeroU32> {
    if matches!(reader.value("calls").map(|node| &node.value), Some(Value::Number(Some(0)))) {
        let name = reader.name("calls");
        reader.take("calls");
        let hint = "to forbid something write it in `deny`; to let any number through leave the limit out";
        reader.wrong_value("calls", format!("{name} is zero, which would let nothing through"), hint);
        return None;
    }
    reader.count("calls", 1).and_then(NonZeroU32::new)
}

/// Mentions limits that do nothing because another one is always reached first.
pub(super) fn note_unreached(page: &mut Page, sections: &Sections) {
    let quota = &sections.quota;
    let mut pairs = Vec::new();
    for (index, limit) in quota.everyone.iter().enumerate() {
        let others = quota.everyone.iter().enumerate().filter(|(other, _)| *other != index);
        pairs.extend(others.map(|(_, other)| ((Owner::Everyone, limit), (Owner::Everyone, other))));
    }
    for caller in quota.callers.keys() {
        let of_caller = || quota.of(caller).enumerate();
        for (index, own) in of_caller().filter(|(_, (owner, _))| *owner != Owner::Everyone) {
            let others = of_caller().filter(|(other, _)| *other != index);
            pairs.extend(others.map(|(_, other)| (own, other)));
        }
    }
    for ((owner, limit), (other_owner, other)) in pairs {
        let about = |limit: &Limit| limit.what().to_string();
        let covers = about(other) == "*" || about(other) == about(limit);
        if covers && keeps_from(other.share(), limit.share()) {
            let message = format!(
                "`{}` is never reached: `{}` is {}",
                limit.name(owner),
                other.name(other_owner),
                other.share()
            );
            let hint = "all limits that are about a call hold; leave this one out, or raise the other";
            let Some(origin) = limit.origin() else { continue };
            page.report_in_line(origin, &Concern::Note, message, hint.to_owned());
        }
    }
}

/// Whether whoever is kept to `first` can never be stopped by `second`; two that are the same are both of use to nobody.
fn keeps_from(first: Share, second: Share) -> bool {
    let ((most, per), (limit, within)) = (first.measure(), second.measure());
    let (most, limit) = (u128::from(most.get()), u128::from(limit.get()));
    let (per, within) = (per.as_nanos().max(1), within.as_nanos());
    match (first, second) {
        (Share::Quota { .. }, Share::Quota { .. }) => most * within.div_ceil(per) <= limit && first != second,
        (Share::Rate { .. }, Share::Quota { .. }) => most + (most * within).div_ceil(per) <= limit,
        (_, Share::Rate { .. }) => {
            most <= limit && most * within <= limit * per && (most, per) != (limit, within)
        }
    }
}
