//! Reads `[scopes.NAME]` and evaluates them against the facts about this machine, which decides the active tags.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::facts::{Fact, HostFacts, RequiredFacts};
use super::node::ConfigTable;
use super::reader::TableReader;
use super::source_map::SourceMap;
use super::{Origin, ProblemScope};
use crate::spec::NamePattern;

/// Longest tag.
const MAX_TAG_LENGTH: usize = 64;

/// Hint for an invalid tag.
pub(super) const TAG_HINT: &str = "a tag is 1 to 64 letters, digits, `-` and `_`";

/// Environment variable that activates tags.
pub(super) const TAGS_VARIABLE: &str = "TOOLCRIB_TAGS";

/// A scope, evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeMatch {
    /// Name of the scope.
    pub name: String,
    /// True if all its conditions hold.
    pub matched: bool,
    /// The facts that decided.
    pub reason: String,
    /// Tags that it activates if it matches.
    pub tags: Vec<String>,
    /// Place where it is declared.
    pub origin: Origin,
    /// True if it cannot be evaluated. It then counts as not matching.
    pub(super) uncertain: bool,
}

/// The active tags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActiveTags {
    /// Active tags, each with the scopes or other causes that activate it.
    pub active: BTreeMap<String, Vec<String>>,
    /// Tags of scopes that cannot be evaluated.
    pub(super) uncertain: BTreeSet<String>,
    /// Tags of all scopes, and active tags.
    pub(super) declared: BTreeSet<String>,
}

/// A scope as written.
pub(super) struct Scope {
    name: String,
    conditions: Vec<ScopeCondition>,
    tags: Vec<String>,
    origin: Origin,
    has_errors: bool,
}

enum ScopeCondition {
    Host(NamePattern),
    User(NamePattern),
    Os(String),
    Env(String, NamePattern),
    Cidr(IpAddr, u8),
    GatewayMac(String),
    Ssid(String),
    Files(String),
    Project(NamePattern),
}

/// Result of a condition.
struct ConditionResult {
    /// True if it holds; `None` if the fact is unknown.
    holds: Option<bool>,
    /// The fact that decided. It does not contain the values of environment variables, which may be secrets.
    reason: String,
}

impl ConditionResult {
    fn known(holds: bool, reason: String) -> Self {
        Self { holds: Some(holds), reason }
    }

    fn unknown(reason: String) -> Self {
        Self { holds: None, reason }
    }

    fn from_fact(fact: &Fact<String>, subject: &str, matches: impl Fn(&str) -> bool) -> Self {
        match fact {
            Ok(value) => Self::known(matches(value), format!("{subject} is `{value}`")),
            Err(why) => Self::unknown(format!("{subject} is unknown: {why}")),
        }
    }
}

/// Returns whether a text is a valid tag.
pub(super) fn is_tag(text: &str) -> bool {
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    !text.is_empty() && text.len() <= MAX_TAG_LENGTH && text.chars().all(is_valid)
}

/// Reads every scope. One with errors cannot be evaluated, so servers that depend on it not matching stay off.
pub(super) fn read(source: &mut SourceMap, root: &ConfigTable) -> Vec<Scope> {
    let mut reader = TableReader::new(source, root, ProblemScope::Section, 0);
    let Some(mut tables) = reader.table("scopes") else { return Vec::new() };
    let mut scopes = Vec::new();
    for entry in tables.entries() {
        let errors_before = tables.source().error_count();
        let origin = tables.source().origin(entry.offset);
        let mut tags = Vec::new();
        let mut conditions = Vec::new();
        if let Some(mut table) = tables.entry_table(entry) {
            tags = read_tags(&mut table);
            let has_match = table.has("match");
            if let Some(mut conditions_table) = table.table("match") {
                conditions = read_conditions(&mut conditions_table);
                conditions_table.finish();
            } else if !has_match {
                let hint = "write a condition, such as `match = { files = \"Cargo.toml\" }`";
                table.error_at_table(format!("`scopes.{}` has no `match`", entry.key), hint);
            }
            table.finish();
        }
        let has_errors = tables.source().error_count() > errors_before;
        scopes.push(Scope { name: entry.key.clone(), conditions, tags, origin, has_errors });
    }
    scopes
}

fn read_tags(reader: &mut TableReader<'_>) -> Vec<String> {
    let mut tags = Vec::new();
    for (node, tag) in reader.strings("tags").unwrap_or_default() {
        if is_tag(tag) {
            tags.push(tag.to_owned());
        } else {
            reader.error(node.span.start, format!("invalid tag `{tag}`"), TAG_HINT);
        }
    }
    if !reader.has("tags") {
        reader.error_at_table("a scope without `tags` has no effect", "write `tags = [\"…\"]`");
    }
    tags
}

fn read_conditions(reader: &mut TableReader<'_>) -> Vec<ScopeCondition> {
    let mut conditions = Vec::new();
    let lower = |text: &str| text.to_lowercase();
    conditions.extend(read_pattern(reader, "host", lower).map(ScopeCondition::Host));
    conditions.extend(read_pattern(reader, "user", str::to_owned).map(ScopeCondition::User));
    conditions.extend(reader.string("os").map(|os| ScopeCondition::Os(lower(os))));
    conditions.extend(read_pattern(reader, "project", str::to_owned).map(ScopeCondition::Project));
    for entry in reader.raw_table("env").map_or(&[][..], |table| &table.0) {
        let value = reader.string_element("env", &entry.value).map(str::parse);
        match value {
            Some(Ok(pattern)) => conditions.push(ScopeCondition::Env(entry.key.clone(), pattern)),
            Some(Err(_)) => {
                let hint = "write the value that the variable must have; `*` stands for any characters";
                reader.error(entry.value.span.start, format!("`env.{}` is empty", entry.key), hint);
            }
            None => {}
        }
    }
    if let Some(glob) = reader.string("files") {
        if glob.is_empty() || glob.starts_with('/') || glob.split('/').any(|part| part == "..") {
            let message = format!("{} must be a path below the project folder", reader.key_path("files"));
            reader.error_at_value(
                "files",
                message,
                "write `\"Cargo.toml\"`, `\"*.py\"` or `\"src/**/*.rs\"`",
            );
        }
        conditions.push(ScopeCondition::Files(glob.to_owned()));
    }
    if let Some(mut network) = reader.table("network") {
        conditions.extend(read_network(&mut network));
        network.finish();
    }
    if conditions.is_empty() {
        reader.error_at_table("a scope without conditions never matches", "add `host`, `os`, `files` …");
    }
    conditions
}

fn read_network(reader: &mut TableReader<'_>) -> Vec<ScopeCondition> {
    let mut conditions = Vec::new();
    if let Some(written) = reader.string("cidr") {
        match parse_cidr(written) {
            Some((address, bits)) => conditions.push(ScopeCondition::Cidr(address, bits)),
            None => {
                let message = format!("`{written}` is not an address range");
                reader.error_at_value("cidr", message, "write `\"192.168.1.0/24\"` or `\"fd00::/8\"`");
            }
        }
    }
    if let Some(written) = reader.string("gateway-mac") {
        match parse_mac(written) {
            Some(mac) => conditions.push(ScopeCondition::GatewayMac(mac)),
            None => {
                let message = format!("`{written}` is not a MAC address");
                reader.error_at_value("gateway-mac", message, "write `\"00:11:22:aa:bb:cc\"`");
            }
        }
    }
    conditions.extend(reader.string("ssid").map(|name| ScopeCondition::Ssid(name.to_owned())));
    conditions
}

fn read_pattern(
    reader: &mut TableReader<'_>,
    key: &'static str,
    fold: fn(&str) -> String,
) -> Option<NamePattern> {
    let written = reader.string(key)?;
    let pattern = fold(written).parse().ok();
    if pattern.is_none() {
        let message = format!("{} is empty", reader.key_path(key));
        reader.error_at_value(key, message, "write a name; `*` stands for any characters");
    }
    pattern
}

pub(super) fn parse_cidr(written: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = written.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let max_bits = if address.is_ipv4() { 32 } else { 128 };
    (bits <= max_bits).then_some((address, bits))
}

/// Returns an address in a written range, or the written address itself.
pub(super) fn address_in_range(written: &str) -> Option<IpAddr> {
    let Some((address, bits)) = parse_cidr(written) else { return written.parse().ok() };
    Some(match address {
        // The first address of a range names the network, not a machine.
        IpAddr::V4(v4) if bits < 32 => IpAddr::V4((v4.to_bits() | 1).into()),
        IpAddr::V6(v6) if bits < 128 => IpAddr::V6((v6.to_bits() | 1).into()),
        address => address,
    })
}

/// Normalizes a MAC address to lower case, colons and two digits per byte.
pub(super) fn parse_mac(written: &str) -> Option<String> {
    let parts: Vec<&str> = written.split([':', '-']).collect();
    let parse_byte = |part: &&str| {
        u8::from_str_radix(part, 16).ok().filter(|_| part.len() <= 2).map(|byte| format!("{byte:02x}"))
    };
    let bytes: Option<Vec<String>> = parts.iter().map(parse_byte).collect();
    bytes.filter(|bytes| bytes.len() == 6).map(|bytes| bytes.join(":"))
}

pub(super) fn is_in_range(address: IpAddr, range: IpAddr, bits: u8) -> bool {
    let (address, range) = (address.to_canonical(), range.to_canonical());
    let to_bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    address.is_ipv4() == range.is_ipv4() && to_bits(address) & mask == to_bits(range) & mask
}

impl Scope {
    /// Adds the facts that its conditions depend on.
    pub(super) fn add_required_facts(&self, required: &mut RequiredFacts) {
        for condition in &self.conditions {
            match condition {
                ScopeCondition::Host(_) => required.host = true,
                ScopeCondition::Env(name, _) => drop(required.env.insert(name.clone())),
                ScopeCondition::Cidr(..) => required.addresses = true,
                ScopeCondition::GatewayMac(_) => required.gateway_mac = true,
                ScopeCondition::Ssid(_) => required.ssid = true,
                ScopeCondition::Files(glob) => drop(required.files.insert(glob.clone())),
                ScopeCondition::Project(_) => required.project = true,
                ScopeCondition::User(_) | ScopeCondition::Os(_) => {}
            }
        }
    }

    /// Evaluates all conditions. The reason names the first that does not hold, else the first that is unknown, else all.
    fn evaluate(&self, facts: &HostFacts) -> ScopeMatch {
        let result = |matched, uncertain, reason: String| ScopeMatch {
            name: self.name.clone(),
            matched,
            reason,
            tags: self.tags.clone(),
            origin: self.origin.clone(),
            uncertain,
        };
        if self.has_errors {
            return result(false, true, "it has errors; run `toolcrib check`".to_owned());
        }
        let results: Vec<_> = self.conditions.iter().map(|condition| condition.evaluate(facts)).collect();
        if let Some(failed) = results.iter().find(|result| result.holds == Some(false)) {
            return result(false, false, failed.reason.clone());
        }
        if let Some(unknown) = results.iter().find(|result| result.holds.is_none()) {
            return result(false, true, unknown.reason.clone());
        }
        let reasons: Vec<&str> = results.iter().map(|result| result.reason.as_str()).collect();
        result(!reasons.is_empty(), false, reasons.join("; "))
    }
}

impl ScopeCondition {
    fn evaluate(&self, facts: &HostFacts) -> ConditionResult {
        use ConditionResult as Is;
        match self {
            Self::Host(pattern) => Is::from_fact(&facts.host, "the host", |host| {
                let host = host.to_lowercase();
                let short = host.split('.').next().unwrap_or_default();
                pattern.matches(&host) || pattern.matches(short)
            }),
            Self::User(pattern) => Is::from_fact(&facts.user, "the user", |user| pattern.matches(user)),
            Self::Os(os) => Is::known(facts.os == *os, format!("the system is `{}`", facts.os)),
            Self::Project(pattern) => match &facts.project {
                Some(project) => Is::known(pattern.matches(project), format!("the project is `{project}`")),
                None => Is::known(false, "there is no project here".to_owned()),
            },
            Self::Env(name, pattern) => match facts.env.get(name) {
                Some(value) if pattern.matches(value) => Is::known(true, format!("`{name}` matches")),
                Some(_) => Is::known(false, format!("`{name}` has a different value")),
                None => Is::known(false, format!("`{name}` is not set")),
            },
            Self::Cidr(range, bits) => evaluate_cidr(&facts.addresses, *range, *bits),
            Self::GatewayMac(mac) => Is::from_fact(&facts.gateway_mac, "the gateway", |found| found == mac),
            Self::Ssid(ssid) => Is::from_fact(&facts.ssid, "the wireless network", |found| found == ssid),
            Self::Files(glob) => match facts.files.get(glob) {
                Some(Ok(Some(file))) => Is::known(true, format!("found `{file}`")),
                Some(Ok(None)) => Is::known(false, format!("no file matches `{glob}`")),
                Some(Err(why)) => Is::unknown(format!("cannot search for `{glob}`: {why}")),
                None => Is::unknown(format!("`{glob}` was not searched for")),
            },
        }
    }
}

fn evaluate_cidr(addresses: &Fact<Vec<IpAddr>>, range: IpAddr, bits: u8) -> ConditionResult {
    let addresses = match addresses {
        Ok(addresses) => addresses,
        Err(why) => return ConditionResult::unknown(format!("the local addresses are unknown: {why}")),
    };
    match addresses.iter().find(|address| is_in_range(**address, range, bits)) {
        Some(address) => {
            ConditionResult::known(true, format!("local address `{address}` is in `{range}/{bits}`"))
        }
        None => ConditionResult::known(false, format!("no local address is in `{range}/{bits}`")),
    }
}

/// Evaluates every scope and returns the active tags.
pub(super) fn evaluate(scopes: &[Scope], facts: &HostFacts) -> (Vec<ScopeMatch>, ActiveTags) {
    let mut tags = ActiveTags::default();
    let mut activate = |tag: &str, cause: &str| {
        tags.active.entry(tag.to_owned()).or_default().push(cause.to_owned());
    };
    activate(&facts.os, "the system");
    facts.tags.iter().for_each(|tag| activate(tag, TAGS_VARIABLE));
    let matches: Vec<ScopeMatch> = scopes.iter().map(|scope| scope.evaluate(facts)).collect();
    for scope in matches.iter().filter(|scope| scope.matched) {
        let cause = format!("scope `{}`: {}", scope.name, scope.reason);
        scope.tags.iter().for_each(|tag| activate(tag, &cause));
    }
    let scope_tags = |scope: &ScopeMatch| scope.tags.clone();
    tags.uncertain = matches.iter().filter(|scope| scope.uncertain).flat_map(scope_tags).collect();
    tags.declared = matches.iter().flat_map(scope_tags).chain(tags.active.keys().cloned()).collect();
    (matches, tags)
}
