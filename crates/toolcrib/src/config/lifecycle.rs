//! Settings that a server and `[defaults]` have in common. Those of the server are laid over the defaults key by key, also
//! inside `restarts`, `backoff`, `breaker` and `memory`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::node::{ConfigValue, TableEntry};
use super::reader::TableReader;
use super::rules;
use crate::access::policy::Rules;
use crate::spec::{
    KeepAlive, Lifecycle, MemoryLimits, NamePattern, Pinning, ServerLimits, Sharing, StartPolicy, ToolsSpec,
    Trust,
};
use crate::util::format;

/// Smallest `limits.result-tokens`: the beginning of a result, its size and how to read the rest must fit.
const MIN_RESULT_TOKENS: u32 = 500;

/// Settings that a server and `[defaults]` have in common.
#[derive(Clone, Default)]
pub(super) struct LifecycleSettings {
    lifecycle: Lifecycle,
    /// True if `keep-alive` is set.
    has_keep_alive: bool,
    pub(super) limits: ServerLimits,
    pub(super) sharing: Sharing,
    pub(super) tools: ToolsSpec,
    /// Access rules over the server's own names.
    pub(super) rules: Rules,
    pub(super) trust: Trust,
    pub(super) pin: Pinning,
    pub(super) inherit_env: Vec<String>,
}

/// A duration and the key that sets it.
struct KeyedDuration {
    key: &'static str,
    duration: Duration,
}

impl LifecycleSettings {
    /// Reports a memory limit of a remote server, which cannot be enforced.
    pub(super) fn reject_memory_limit(reader: &mut TableReader<'_>) {
        if reader.peek("lifecycle").is_some_and(|lifecycle| lifecycle.child("memory").is_some()) {
            let message = "`lifecycle.memory` requires `command`: the memory of a remote server is unknown";
            reader.error_at_value("lifecycle", message, "remove `lifecycle.memory`");
        }
    }

    /// Lays the keys of a table over these settings.
    pub(super) fn overlay(mut self, reader: &mut TableReader<'_>) -> Self {
        if let Some(lifecycle) = reader.table("lifecycle") {
            self.overlay_lifecycle(lifecycle);
        }
        if let Some(limits) = reader.table("limits") {
            overlay_limits(&mut self.limits, limits);
        }
        self.overlay_inherit_env(reader);
        set(&mut self.sharing, reader.choice("sharing", &Sharing::ALL));
        self.check_start(reader);
        let trust = [("normal", Trust::Normal), ("trusted", Trust::Trusted)];
        set(&mut self.trust, reader.choice("trust", &trust));
        set(&mut self.pin, reader.choice("pin", &Pinning::ALL));
        if let Some(tools) = reader.table("tools") {
            self.overlay_tools(tools);
        }
        self
    }

    fn overlay_inherit_env(&mut self, reader: &mut TableReader<'_>) {
        let Some(names) = reader.strings("inherit-env") else { return };
        self.inherit_env.clear();
        for (node, name) in names {
            if name.is_empty() || name.contains(['=', '*', '$']) || name.contains(char::is_whitespace) {
                let message = format!("invalid variable name in {}", reader.key_path("inherit-env"));
                let hint = "write the full name of one variable, such as `\"HTTP_PROXY\"`";
                reader.error(node.span.start, message, hint);
            }
            self.inherit_env.push(name.to_owned());
        }
    }

    fn overlay_tools(&mut self, mut reader: TableReader<'_>) {
        set(&mut self.tools.idempotent, read_patterns(&mut reader, "idempotent"));
        set(&mut self.tools.cache, read_patterns(&mut reader, "cache"));
        self.overlay_call_timeouts(&mut reader);
        for (entry, tokens) in read_result_tokens(&mut reader) {
            let Some(pattern) = parse_pattern(&mut reader, entry.offset, &entry.key) else { continue };
            self.tools.result_tokens.retain(|(other, _)| *other != pattern);
            self.tools.result_tokens.push((pattern, tokens));
        }
        let Rules { allow, deny, ask } = rules::read(&mut reader, rules::parse_tool_rule);
        self.rules.allow = allow.or(self.rules.allow.take());
        if reader.has("deny") {
            self.rules.deny = deny;
        }
        if reader.has("ask") {
            self.rules.ask = ask;
        }
        set(&mut self.tools.check_arguments, reader.boolean("check"));
        self.overlay_renames(&mut reader);
        reader.finish();
    }

    fn overlay_call_timeouts(&mut self, reader: &mut TableReader<'_>) {
        for entry in reader.raw_table("call-timeout").map_or(&[][..], |table| &table.0) {
            let timeout = reader.entry_duration("call-timeout", entry);
            let pattern = parse_pattern(reader, entry.offset, &entry.key);
            let (Some(pattern), Some(timeout)) = (pattern, timeout) else { continue };
            let max = self.limits.call_timeout_max;
            if timeout > max {
                let message = format!(
                    "`tools.call-timeout` of `{pattern}` is longer than `limits.call-timeout-max` ({})",
                    format::format_duration(max)
                );
                let hint = "write a shorter time, or a longer `call-timeout-max`";
                reader.error(entry.value.span.start, message, hint);
            }
            self.tools.call_timeout.retain(|(other, _)| *other != pattern);
            self.tools.call_timeout.push((pattern, timeout));
        }
    }

    fn overlay_renames(&mut self, reader: &mut TableReader<'_>) {
        let Some(table) = reader.raw_table("rename") else { return };
        self.tools.rename.clear();
        for entry in &table.0 {
            let old = &entry.key;
            let Some(new) = reader.string_element("rename", &entry.value) else { continue };
            if self.tools.rename.contains_key(old) {
                let message = format!("`tools.rename` has `{old}` twice");
                reader.error(entry.offset, message, "remove one of the two");
            } else if let Some((other, _)) = self.tools.rename.iter().find(|(_, taken)| *taken == new) {
                let message = format!("`{old}` and `{other}` are both renamed to `{new}`");
                reader.error(entry.value.span.start, message, "give each tool its own name");
            }
            self.tools.rename.entry(old.clone()).or_insert_with(|| new.to_owned());
        }
    }

    /// Rejects a start at boot of a server that is not shared: its instances start when their clients connect.
    pub(super) fn check_start(&self, reader: &mut TableReader<'_>) {
        let key = ["sharing", "lifecycle"].into_iter().find(|key| reader.has(key));
        if self.lifecycle.start == StartPolicy::AtBoot
            && !self.sharing.is_shared()
            && let Some(key) = key
        {
            let sharing = self.sharing.as_str();
            let message = format!("a server with `sharing = \"{sharing}\"` cannot start at boot");
            reader.error_at_value(key, message, "write `sharing = \"shared\"`, or `start = \"on-demand\"`");
        }
    }

    /// Returns the lifecycle, in which a server that starts at boot runs forever unless `keep-alive` is set.
    pub(super) fn effective_lifecycle(&self) -> Lifecycle {
        let mut lifecycle = self.lifecycle.clone();
        if lifecycle.start == StartPolicy::AtBoot && !self.has_keep_alive {
            lifecycle.keep_alive = KeepAlive::Forever;
        }
        lifecycle
    }

    fn overlay_lifecycle(&mut self, mut reader: TableReader<'_>) {
        let lifecycle = &mut self.lifecycle;
        let starts = [("on-demand", StartPolicy::OnDemand), ("at-boot", StartPolicy::AtBoot)];
        set(&mut lifecycle.start, reader.choice("start", &starts));
        if let Some(keep_alive) = read_keep_alive(&mut reader) {
            lifecycle.keep_alive = keep_alive;
            self.has_keep_alive = true;
        }
        set(&mut lifecycle.start_timeout, reader.duration("start-timeout"));
        set(&mut lifecycle.list_ttl, reader.duration_or_zero("list-ttl", "`\"0s\"`, `\"30s\"` or `\"5m\"`"));
        if let Some(mut restarts) = reader.table("restarts") {
            set(&mut lifecycle.restarts.at_most, restarts.count("at-most", 0));
            set(&mut lifecycle.restarts.within, restarts.duration("within"));
            restarts.finish();
        }
        if let Some(mut backoff) = reader.table("backoff") {
            set(&mut lifecycle.backoff.first, backoff.duration("first"));
            set(&mut lifecycle.backoff.most, backoff.duration("most"));
            let first = KeyedDuration { key: "first", duration: lifecycle.backoff.first };
            let most = KeyedDuration { key: "most", duration: lifecycle.backoff.most };
            check_not_longer(&mut backoff, &first, &most);
            backoff.finish();
        }
        if let Some(mut breaker) = reader.table("breaker") {
            set(&mut lifecycle.breaker.failures, breaker.count("failures", 1).and_then(NonZeroU32::new));
            set(&mut lifecycle.breaker.cool_off, breaker.duration("cool-off"));
            breaker.finish();
        }
        if let Some(memory) = reader.table("memory") {
            overlay_memory(&mut lifecycle.memory, memory);
        }
        reader.finish();
    }
}

fn overlay_memory(memory: &mut MemoryLimits, mut reader: TableReader<'_>) {
    let soft = reader.size("soft").map(|bytes| bytes as u64);
    let hard = reader.size("hard").map(|bytes| bytes as u64);
    memory.soft = soft.or(memory.soft);
    memory.hard = hard.or(memory.hard);
    if let MemoryLimits { soft: Some(soft), hard: Some(hard) } = memory
        && soft > hard
        && let Some(key) = ["soft", "hard"].into_iter().find(|key| reader.has(key))
    {
        let message = format!("{} is larger than {}", reader.key_path("soft"), reader.key_path("hard"));
        reader.error_at_value(key, message, "write a smaller `soft`, or a larger `hard`");
    }
    reader.finish();
}

fn overlay_limits(limits: &mut ServerLimits, mut reader: TableReader<'_>) {
    let count = |count: Option<u32>| count.and_then(|count| usize::try_from(count).ok());
    set(&mut limits.call_timeout, reader.duration("call-timeout"));
    set(&mut limits.call_timeout_max, reader.duration("call-timeout-max"));
    let usual = KeyedDuration { key: "call-timeout", duration: limits.call_timeout };
    let max = KeyedDuration { key: "call-timeout-max", duration: limits.call_timeout_max };
    check_not_longer(&mut reader, &usual, &max);
    set(&mut limits.in_flight, count(reader.count("in-flight", 1)).and_then(NonZeroUsize::new));
    set(&mut limits.message, reader.size("message"));
    set(&mut limits.tools, count(reader.count("tools", 1)));
    set(&mut limits.definition, reader.size("definition"));
    set(&mut limits.instances, count(reader.count("instances", 1)).and_then(NonZeroUsize::new));
    set(&mut limits.cache_entries, count(reader.count("cache-entries", 0)));
    set(&mut limits.cache_ttl_max, reader.duration("cache-ttl-max"));
    if let Some(tokens) = reader.count("result-tokens", MIN_RESULT_TOKENS) {
        limits.result_tokens = usize::try_from(tokens).ok();
    }
    reader.finish();
}

/// Reads the table `result-tokens`: numbers of tokens, or zero for no limit.
pub(super) fn read_result_tokens<'a>(reader: &mut TableReader<'a>) -> Vec<(&'a TableEntry, usize)> {
    let entries = reader.raw_table("result-tokens").map_or(&[][..], |table| &table.0);
    let tokens =
        entries.iter().map(|entry| (entry, reader.entry_count("result-tokens", entry, MIN_RESULT_TOKENS)));
    tokens.filter_map(|(entry, tokens)| Some((entry, usize::try_from(tokens?).ok()?))).collect()
}

fn read_patterns(reader: &mut TableReader<'_>, key: &'static str) -> Option<Vec<NamePattern>> {
    let patterns = reader.strings(key)?;
    Some(
        patterns
            .into_iter()
            .filter_map(|(node, text)| parse_pattern(reader, node.span.start, text))
            .collect(),
    )
}

fn parse_pattern(reader: &mut TableReader<'_>, offset: usize, written: &str) -> Option<NamePattern> {
    let pattern = written.parse().ok();
    if pattern.is_none() {
        reader.error(offset, "empty pattern", "write the name of a tool; `*` stands for any characters");
    }
    pattern
}

fn read_keep_alive(reader: &mut TableReader<'_>) -> Option<KeepAlive> {
    let value = reader.peek("keep-alive").map(|node| &node.value);
    if matches!(value, Some(ConfigValue::String(word)) if word == "forever") {
        reader.take("keep-alive");
        return Some(KeepAlive::Forever);
    }
    let examples = "`\"0s\"`, `\"30s\"`, `\"5m\"` or `\"1h\"`; or write `\"forever\"`";
    reader.duration_or_zero("keep-alive", examples).map(KeepAlive::For)
}

/// Reports a duration that is longer than its maximum, at the first of the two keys that this table has.
fn check_not_longer(reader: &mut TableReader<'_>, value: &KeyedDuration, max: &KeyedDuration) {
    let Some(key) = [value.key, max.key].into_iter().find(|key| reader.has(key)) else { return };
    if value.duration > max.duration {
        let message = format!(
            "{} is longer than {} ({})",
            reader.key_path(value.key),
            reader.key_path(max.key),
            format::format_duration(max.duration)
        );
        let hint = format!("write a shorter `{}`, or a `{}` that is at least as long", value.key, max.key);
        reader.error_at_value(key, message, hint);
    }
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}
