//! `[scopes.NAME]`: conditions on where we are → whether all of them hold → which tags are active. Nothing is found out
//! here: a scope asks for facts and judges those it is given.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::facts::{Facts, Wanted};
use super::node::Table;
use super::page::Page;
use super::reader::Reader;
use super::{Concern, Origin};
use crate::spec::Pattern;

/// No tag is longer.
const LONGEST_TAG: usize = 64;

/// What is active where somebody says so by hand.
const BY_HAND: &str = "TOOLCRIB_TAGS";

/// A scope, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeFinding {
    /// Its name.
    pub name: String,
    /// Whether all its conditions hold.
    pub matched: bool,
    /// What decided.
    pub fact: String,
    /// The tags it activates if it matches.
    pub tags: Vec<String>,
    /// Where it is declared.
    pub origin: Origin,
    /// Whether nobody can say if it matches.
    pub(super) uncertain: bool,
}

/// The tags that are active here and now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    /// Each with the scopes, or whatever else, made it active.
    pub active: BTreeMap<String, Vec<String>>,
    /// Those of scopes of which nobody can say whether they match.
    pub(super) uncertain: BTreeSet<String>,
    /// Those that any scope has.
    pub(super) known: BTreeSet<String>,
}

/// A scope as it is written.
pub(super) struct Scope {
    name: String,
    conditions: Vec<Condition>,
    tags: Vec<String>,
    origin: Origin,
    broken: bool,
}

enum Condition {
    Host(Pattern),
    User(Pattern),
    Os(String),
    Env(String, Pattern),
    Cidr(IpAddr, u8),
    GatewayMac(String),
    Ssid(String),
    Files(String),
    Project(Pattern),
}

/// Whether a text can be a tag.
pub(super) fn is_tag(text: &str) -> bool {
    let of_a_tag = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    !text.is_empty() && text.len() <= LONGEST_TAG && text.chars().all(of_a_tag)
}

/// Reads every scope. A broken one matches nowhere, and nothing that depends on its not matching is on.
pub(super) fn read(page: &mut Page, root: &Table) -> Vec<Scope> {
    let mut reader = Reader::new(page, root, Concern::Part, 0);
    let Some(mut scopes) = reader.table("scopes") else { return Vec::new() };
    let mut read = Vec::new();
    for entry in scopes.entries() {
        let before = scopes.page().errors();
        let origin = scopes.page().origin(entry.at);
        let (mut conditions, mut tags) = (Vec::new(), Vec::new());
        if let Some(mut table) = scopes.table_at(entry) {
            tags = tags_of(&mut table);
            let has_match = table.has("match");
            if let Some(mut asked) = table.table("match") {
                conditions = conditions_of(&mut asked);
                asked.finish();
            } else if !has_match {
                let hint = "write a condition, such as `match = { files = \"Cargo.toml\" }`";
                table.lacking(format!("`scopes.{}` has no `match`", entry.key), hint);
            }
            table.finish();
        }
        let broken = scopes.page().errors() > before;
        read.push(Scope { name: entry.key.clone(), conditions, tags, origin, broken });
    }
    read
}

fn tags_of(reader: &mut Reader<'_>) -> Vec<String> {
    let mut tags = Vec::new();
    for (node, tag) in reader.strings("tags").unwrap_or_default() {
        if is_tag(tag) {
            tags.push(tag.to_owned());
        } else {
            let hint = "a tag is 1 to 64 letters, digits, `-` and `_`";
            reader.wrong(node.span.start, format!("`{tag}` cannot be a tag"), hint);
        }
    }
    if !reader.has("tags") {
        reader.lacking("a scope without `tags` changes nothing", "write `tags = [\"…\"]`");
    }
    tags
}

fn conditions_of(reader: &mut Reader<'_>) -> Vec<Condition> {
    let mut all = Vec::new();
    let lower = |text: &str| text.to_lowercase();
    all.extend(pattern(reader, "host", lower).map(Condition::Host));
    all.extend(pattern(reader, "user", str::to_owned).map(Condition::User));
    all.extend(reader.string("os").map(|os| Condition::Os(lower(os))));
    all.extend(pattern(reader, "project", str::to_owned).map(Condition::Project));
    for entry in reader.members("env").map_or(&[][..], |table| &table.0) {
        let value = reader.element("env", &entry.value).map(str::parse);
        match value {
            Some(Ok(pattern)) => all.push(Condition::Env(entry.key.clone(), pattern)),
            Some(Err(_)) => {
                let hint = "write the value it must have; `*` stands for any characters";
                reader.wrong(entry.value.span.start, format!("`env.{}` is empty", entry.key), hint);
            }
            None => {}
        }
    }
    if let Some(glob) = reader.string("files") {
        if glob.is_empty() || glob.starts_with('/') || glob.split('/').any(|part| part == "..") {
            let message = format!("{} looks only below the project", reader.name("files"));
            reader.wrong_value("files", message, "write `\"Cargo.toml\"`, `\"*.py\"` or `\"src/**/*.rs\"`");
        }
        all.push(Condition::Files(glob.to_owned()));
    }
    if let Some(mut network) = reader.table("network") {
        all.extend(network_of(&mut network));
        network.finish();
    }
    if all.is_empty() {
        reader.lacking("a scope without a condition matches nowhere", "write `host`, `os`, `files` …");
    }
    all
}

fn network_of(reader: &mut Reader<'_>) -> Vec<Condition> {
    let mut all = Vec::new();
    if let Some(written) = reader.string("cidr") {
        match cidr(written) {
            Some((address, bits)) => all.push(Condition::Cidr(address, bits)),
            None => reader.wrong_value(
                "cidr",
                format!("`{written}` is no range of addresses"),
                "write `\"192.168.1.0/24\"` or `\"fd00::/8\"`",
            ),
        }
    }
    if let Some(written) = reader.string("gateway-mac") {
        match mac(written) {
            Some(mac) => all.push(Condition::GatewayMac(mac)),
            None => reader.wrong_value(
                "gateway-mac",
                format!("`{written}` is no hardware address"),
                "write `\"00:11:22:aa:bb:cc\"`",
            ),
        }
    }
    all.extend(reader.string("ssid").map(|name| Condition::Ssid(name.to_owned())));
    all
}

fn pattern(reader: &mut Reader<'_>, key: &'static str, fold: fn(&str) -> String) -> Option<Pattern> {
    let written = reader.string(key)?;
    let pattern = fold(written).parse().ok();
    if pattern.is_none() {
        let message = format!("{} is empty", reader.name(key));
        reader.wrong_value(key, message, "write a name; `*` stands for any characters");
    }
    pattern
}

fn cidr(written: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = written.split_once('/')?;
    let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
    (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, bits))
}

/// Lower case with colons and two digits each, however it was written.
pub(super) fn mac(written: &str) -> Option<String> {
    let parts: Vec<&str> = written.split([':', '-']).collect();
    let byte = |part: &&str| {
        u8::from_str_radix(part, 16).ok().filter(|_| part.len() <= 2).map(|byte| format!("{byte:02x}"))
    };
    let bytes: Option<Vec<String>> = parts.iter().map(byte).collect();
    bytes.filter(|bytes| bytes.len() == 6).map(|bytes| bytes.join(":"))
}

fn is_within(address: IpAddr, range: IpAddr, bits: u8) -> bool {
    let wide = |address: IpAddr| match address.to_canonical() {
        IpAddr::V4(four) => (u128::from(four.to_bits()) << 96, true),
        IpAddr::V6(six) => (six.to_bits(), false),
    };
    let ((address, is_four), (range, range_is_four)) = (wide(address), wide(range));
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    is_four == range_is_four && address & mask == range & mask
}

impl Scope {
    /// Adds what it asks for.
    pub(super) fn ask(&self, wanted: &mut Wanted) {
        for condition in &self.conditions {
            match condition {
                Condition::Host(_) => wanted.host = true,
                Condition::Env(name, _) => drop(wanted.env.insert(name.clone())),
                Condition::Cidr(..) => wanted.addresses = true,
                Condition::GatewayMac(_) => wanted.gateway_mac = true,
                Condition::Ssid(_) => wanted.ssid = true,
                Condition::Files(glob) => drop(wanted.files.insert(glob.clone())),
                Condition::User(_) | Condition::Os(_) | Condition::Project(_) => {}
            }
        }
    }

    /// Whether all its conditions hold. Of those that do not, the first is named.
    fn judge(&self, facts: &Facts) -> ScopeFinding {
        let finding = |matched, uncertain, fact: String| ScopeFinding {
            name: self.name.clone(),
            matched,
            fact,
            tags: self.tags.clone(),
            origin: self.origin.clone(),
            uncertain,
        };
        if self.broken {
            return finding(false, true, "something is wrong with it; `toolcrib check` says what".to_owned());
        }
        let judged: Vec<_> = self.conditions.iter().map(|condition| condition.judge(facts)).collect();
        if let Some((_, fact)) = judged.iter().find(|(holds, _)| *holds == Some(false)) {
            return finding(false, false, fact.clone());
        }
        if let Some((_, fact)) = judged.iter().find(|(holds, _)| holds.is_none()) {
            return finding(false, true, fact.clone());
        }
        let facts: Vec<&str> = judged.iter().map(|(_, fact)| fact.as_str()).collect();
        finding(!facts.is_empty(), false, facts.join("; "))
    }
}

impl Condition {
    /// Whether it holds, if that can be said, and the fact that says so. A variable may hold a secret, so its value is not
    /// part of it.
    fn judge(&self, facts: &Facts) -> (Option<bool>, String) {
        let known = |fact: &Result<String, String>, what: &str, fits: &dyn Fn(&str) -> bool| match fact {
            Ok(value) => (Some(fits(value)), format!("{what} is `{value}`")),
            Err(why) => (None, format!("{what} is not known: {why}")),
        };
        match self {
            Self::Host(pattern) => known(&facts.host, "the host", &|host| {
                let host = host.to_lowercase();
                let short = host.split('.').next().unwrap_or_default();
                pattern.matches(&host) || pattern.matches(short)
            }),
            Self::User(pattern) => known(&facts.user, "the user", &|user| pattern.matches(user)),
            Self::Os(os) => (Some(facts.os == *os), format!("the system is `{}`", facts.os)),
            Self::Project(pattern) => match &facts.project {
                Some(project) => (Some(pattern.matches(project)), format!("the project is `{project}`")),
                None => (Some(false), "there is no project here".to_owned()),
            },
            Self::Env(name, pattern) => match facts.env.get(name) {
                Some(value) if pattern.matches(value) => (Some(true), format!("`{name}` fits")),
                Some(_) => (Some(false), format!("`{name}` has another value")),
                None => (Some(false), format!("`{name}` is not set")),
            },
            Self::Cidr(range, bits) => match &facts.addresses {
                Ok(addresses) => match addresses.iter().find(|address| is_within(**address, *range, *bits)) {
                    Some(address) => (Some(true), format!("our address `{address}` is in `{range}/{bits}`")),
                    None => (Some(false), format!("no address of ours is in `{range}/{bits}`")),
                },
                Err(why) => (None, format!("our addresses are not known: {why}")),
            },
            Self::GatewayMac(mac) => known(&facts.gateway_mac, "the gateway", &|found| found == mac),
            Self::Ssid(ssid) => known(&facts.ssid, "the wireless network", &|found| found == ssid),
            Self::Files(glob) => match facts.files.get(glob) {
                Some(Ok(Some(file))) => (Some(true), format!("`{file}` is here")),
                Some(Ok(None)) => (Some(false), format!("there is no `{glob}` here")),
                Some(Err(why)) => (None, format!("whether there is a `{glob}` is not known: {why}")),
                None => (None, format!("nobody looked for `{glob}`")),
            },
        }
    }
}

/// Judges every scope, and says which tags that makes active.
pub(super) fn judge(scopes: &[Scope], facts: &Facts) -> (Vec<ScopeFinding>, Tags) {
    let mut tags = Tags::default();
    let mut add = |tag: &str, by: &str| {
        tags.active.entry(tag.to_owned()).or_default().push(by.to_owned());
    };
    add(&facts.os, "the system");
    facts.tags.iter().for_each(|tag| add(tag, BY_HAND));
    let findings: Vec<ScopeFinding> = scopes.iter().map(|scope| scope.judge(facts)).collect();
    for finding in findings.iter().filter(|finding| finding.matched) {
        finding.tags.iter().for_each(|tag| add(tag, &format!("scope `{}`: {}", finding.name, finding.fact)));
    }
    let of = |finding: &ScopeFinding| finding.tags.clone();
    tags.uncertain = findings.iter().filter(|finding| finding.uncertain).flat_map(of).collect();
    tags.known = findings.iter().flat_map(of).chain(tags.active.keys().cloned()).collect();
    (findings, tags)
}
