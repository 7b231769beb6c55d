//! `Care`: how a server is looked after — the keys that `[defaults]` and a server have in common. A nearer table is
//! laid over a farther one, and wins key by key, also inside `restarts`, `backoff` and `breaker`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::node::{Node, Value};
use super::reader::Reader;
use super::rules;
use crate::policy::Rules;
use crate::spec::{
    KeepAlive, Lifecycle, Limits, MemoryLimits, Pattern, Pinning, Sharing, Start, ToolsSpec, Trust,
};
use crate::spelling;

/// How a server is looked after.
#[derive(Clone, Default)]
pub(super) struct Care {
    lifecycle: Lifecycle,
    limits: Limits,
    sharing: Sharing,
    /// Whether somebody wrote `keep-alive`.
    keep_alive_given: bool,
    pub(super) tools: ToolsSpec,
    /// Over its own names.
    pub(super) rules: Rules,
    pub(super) trust: Trust,
    pub(super) pin: Pinning,
    pub(super) inherit_env: Vec<String>,
}

impl Care {
    /// Reports limits that somebody else has to keep.
    pub(super) fn check_remote(reader: &mut Reader<'_>) {
        let has_memory = |node: &Node| matches!(&node.value, Value::Table(table) if table.entries("memory").next().is_some());
        if reader.value("lifecycle").is_some_and(has_memory) {
            let message = "`lifecycle.memory` wants a `command`: what runs elsewhere cannot be weighed";
            reader.wrong_value("lifecycle", message, "leave it out");
        }
    }

    /// Lays the keys of a table over what is there.
    pub(super) fn overlay(mut self, reader: &mut Reader<'_>) -> Self {
        if let Some(lifecycle) = reader.table("lifecycle") {
            self.overlay_lifecycle(lifecycle);
        }
        if let Some(limits) = reader.table("limits") {
            overlay_limits(&mut self.limits, limits);
        }
        if let Some(names) = reader.strings("inherit-env") {
            self.inherit_env.clear();
            for (node, name) in names {
                if name.is_empty() || name.contains(['=', '*', '$']) || name.contains(char::is_whitespace) {
                    let message =
                        format!("{} holds something that is no variable", reader.name("inherit-env"));
                    reader.wrong(
                        node.span.start,
                        message,
                        "write the full name of one variable, such as `\"HTTP_PROXY\"`",
                    );
                }
                self.inherit_env.push(name.to_owned());
            }
        }
        set(&mut self.sharing, reader.choice("sharing", &Sharing::ALL, &[]));
        self.check_start(reader);
        set(
            &mut self.trust,
            reader.choice("trust", &[("normal", Trust::Normal), ("trusted", Trust::Trusted)], &[]),
        );
        set(&mut self.pin, reader.choice("pin", &Pinning::ALL, &[]));
        if let Some(tools) = reader.table("tools") {
            self.overlay_tools(tools);
        }
        self
    }

    fn overlay_tools(&mut self, mut reader: Reader<'_>) {
        if let Some(patterns) = reader.strings("idempotent") {
            let patterns =
                patterns.into_iter().filter_map(|(node, text)| pattern(&mut reader, node.span.start, text));
            self.tools.idempotent = patterns.collect();
        }
        if let Some(patterns) = reader.strings("cache") {
            let patterns =
                patterns.into_iter().filter_map(|(node, text)| pattern(&mut reader, node.span.start, text));
            self.tools.cache = patterns.collect();
        }
        let limits = reader.members("call-timeout").map_or(&[][..], |table| &table.0);
        for entry in limits {
            let limit = reader.duration_of("call-timeout", entry);
            let (Some(pattern), Some(limit)) = (pattern(&mut reader, entry.at, &entry.key), limit) else {
                continue;
            };
            let most = self.limits.call_timeout_max;
            if limit > most {
                let message = format!(
                    "`tools.call-timeout` of `{pattern}` is longer than `limits.call-timeout-max`, which is {}",
                    spelling::time(most)
                );
                reader.wrong(
                    entry.value.span.start,
                    message,
                    "write a shorter time, or a longer `call-timeout-max`",
                );
            }
            self.tools.call_timeout.retain(|(other, _)| *other != pattern);
            self.tools.call_timeout.push((pattern, limit));
        }
        let Rules { allow, deny, ask } = rules::read(&mut reader, rules::over_names);
        self.rules.allow = allow.or(self.rules.allow.take());
        if reader.has("deny") {
            self.rules.deny = deny;
        }
        if reader.has("ask") {
            self.rules.ask = ask;
        }
        set(&mut self.tools.check, reader.boolean("check"));
        self.overlay_names(&mut reader);
        reader.finish();
    }

    fn overlay_names(&mut self, reader: &mut Reader<'_>) {
        let Some(table) = reader.members("rename") else { return };
        self.tools.rename.clear();
        for entry in &table.0 {
            let (own, Some(new)) = (&entry.key, reader.element("rename", &entry.value)) else { continue };
            if self.tools.rename.contains_key(own) {
                let message = format!("`tools.rename` has `{own}` twice");
                reader.wrong(entry.at, message, "keep one of the two");
            } else if let Some((other, _)) = self.tools.rename.iter().find(|(_, taken)| *taken == new) {
                let message = format!("`{own}` and `{other}` would both be called `{new}`");
                reader.wrong(entry.value.span.start, message, "give each tool a name of its own");
            }
            self.tools.rename.entry(own.clone()).or_insert_with(|| new.to_owned());
        }
    }

    /// An instance that is somebody's starts when they ask for it: nobody is there at boot.
    fn check_start(&self, reader: &mut Reader<'_>) {
        let at = ["sharing", "lifecycle"].into_iter().find(|key| reader.has(key));
        if self.lifecycle.start == Start::AtBoot
            && self.sharing != Sharing::Shared
            && let Some(at) = at
        {
            let message = format!("a server that is shared `{}` cannot start at boot", self.sharing.as_str());
            reader.wrong_value(at, message, "write `sharing = \"shared\"`, or `start = \"on-demand\"`");
        }
    }

    /// What it all comes to.
    pub(super) fn settle(mut self) -> (Lifecycle, Limits, Sharing) {
        if self.lifecycle.start == Start::AtBoot && !self.keep_alive_given {
            self.lifecycle.keep_alive = KeepAlive::Forever;
        }
        (self.lifecycle, self.limits, self.sharing)
    }

    fn overlay_lifecycle(&mut self, mut reader: Reader<'_>) {
        let lifecycle = &mut self.lifecycle;
        let starts = [("on-demand", Start::OnDemand), ("at-boot", Start::AtBoot)];
        set(&mut lifecycle.start, reader.choice("start", &starts, &[]));
        if let Some(keep_alive) = keep_alive(&mut reader) {
            (lifecycle.keep_alive, self.keep_alive_given) = (keep_alive, true);
        }
        set(&mut lifecycle.start_timeout, reader.duration("start-timeout"));
        if let Some(mut restarts) = reader.table("restarts") {
            set(&mut lifecycle.restarts.at_most, restarts.count("at-most", 0));
            set(&mut lifecycle.restarts.within, restarts.duration("within"));
            restarts.finish();
        }
        if let Some(mut backoff) = reader.table("backoff") {
            set(&mut lifecycle.backoff.first, backoff.duration("first"));
            set(&mut lifecycle.backoff.most, backoff.duration("most"));
            in_order(&mut backoff, ("first", lifecycle.backoff.first), ("most", lifecycle.backoff.most));
            backoff.finish();
        }
        if let Some(mut breaker) = reader.table("breaker") {
            set(&mut lifecycle.breaker.failures, breaker.count("failures", 1).and_then(NonZeroU32::new));
            set(&mut lifecycle.breaker.cool_off, breaker.duration("cool-off"));
            breaker.finish();
        }
        if let Some(mut memory) = reader.table("memory") {
            let (soft, hard) = (memory.size("soft"), memory.size("hard"));
            lifecycle.memory.soft = soft.map(|bytes| bytes as u64).or(lifecycle.memory.soft);
            lifecycle.memory.hard = hard.map(|bytes| bytes as u64).or(lifecycle.memory.hard);
            if let MemoryLimits { soft: Some(soft), hard: Some(hard) } = lifecycle.memory
                && soft > hard
                && let Some(at) = ["soft", "hard"].into_iter().find(|key| memory.has(key))
            {
                let message = format!("{} is more than {}", memory.name("soft"), memory.name("hard"));
                memory.wrong_value(at, message, "write a smaller `soft`, or a larger `hard`");
            }
            memory.finish();
        }
        reader.finish();
    }
}

fn overlay_limits(limits: &mut Limits, mut reader: Reader<'_>) {
    set(&mut limits.call_timeout, reader.duration("call-timeout"));
    set(&mut limits.call_timeout_max, reader.duration("call-timeout-max"));
    let (usual, most) = (limits.call_timeout, limits.call_timeout_max);
    in_order(&mut reader, ("call-timeout", usual), ("call-timeout-max", most));
    let in_flight = reader.count("in-flight", 1).and_then(|count| usize::try_from(count).ok());
    set(&mut limits.in_flight, in_flight.and_then(NonZeroUsize::new));
    set(&mut limits.message, reader.size("message"));
    let instances = reader.count("instances", 1).and_then(|count| usize::try_from(count).ok());
    set(&mut limits.instances, instances.and_then(NonZeroUsize::new));
    let entries = reader.count("cache-entries", 0).and_then(|count| usize::try_from(count).ok());
    set(&mut limits.cache_entries, entries);
    set(&mut limits.cache_ttl_max, reader.duration("cache-ttl-max"));
    reader.finish();
}

fn pattern(reader: &mut Reader<'_>, at: usize, written: &str) -> Option<Pattern> {
    let pattern = written.parse().ok();
    if pattern.is_none() {
        reader.wrong(at, "a pattern is empty", "write the name of a tool; `*` stands for any characters");
    }
    pattern
}

fn keep_alive(reader: &mut Reader<'_>) -> Option<KeepAlive> {
    if reader
        .value("keep-alive")
        .is_some_and(|node| matches!(&node.value, Value::String(word) if word == "forever"))
    {
        reader.take("keep-alive");
        return Some(KeepAlive::Forever);
    }
    let examples = "`\"0s\"`, `\"30s\"`, `\"5m\"` or `\"1h\"`, or else `\"forever\"`";
    reader.duration_or_zero("keep-alive", examples).map(KeepAlive::For)
}

/// Reports a time that is longer than the most it may be, at the one of the two that is written in this table.
fn in_order(reader: &mut Reader<'_>, (key, usual): (&str, Duration), (key_most, most): (&str, Duration)) {
    let Some(at) = [key, key_most].into_iter().find(|key| reader.has(key)) else { return };
    if usual > most {
        let message = format!(
            "{} is longer than {}, which is {}",
            reader.name(key),
            reader.name(key_most),
            spelling::time(most)
        );
        reader.wrong_value(
            at,
            message,
            format!("write a shorter `{key}`, or a `{key_most}` that is at least as long"),
        );
    }
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}
