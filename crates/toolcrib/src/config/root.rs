//! The config as a whole: its sections, and the names of its servers.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use super::care::Care;
use super::declared::Declared;
use super::facts::Facts;
use super::hosts::{self, Hosts};
use super::node::{Entry, Table, Value};
use super::page::Page;
use super::reader::Reader;
use super::scope::{self, ScopeFinding, Tags};
use super::{
    AuditSpec, CallerSpec, Concern, HostLimits, Listen, Origin, SecretStore, audit, callers, profiles, quota,
    rules, secrets, server,
};
use crate::policy::Policy;
use crate::quota::Quota;
use crate::spec::{BadName, Capacity, Endpoint, Roster, ServerId, ServerSpec, Start};

/// Servers that run at the same time unless the file says otherwise.
const SERVERS_RUNNING: usize = 32;

/// What a file says, as far as it is good.
pub(super) struct Sections {
    pub(super) roster: Roster,
    pub(super) listen: Listen,
    pub(super) limits: HostLimits,
    pub(super) capacity: Capacity,
    pub(super) policy: Policy,
    pub(super) quota: Quota,
    pub(super) callers: Vec<CallerSpec>,
    pub(super) audit: Option<AuditSpec>,
    pub(super) secrets: SecretStore,
    pub(super) origins: BTreeMap<ServerId, Origin>,
    pub(super) declared: Vec<Declared>,
    pub(super) scopes: Vec<ScopeFinding>,
    pub(super) tags: Tags,
}

/// What a server's table is read with.
pub(super) struct Around<'a> {
    pub(super) defaults: &'a Care,
    pub(super) tags: &'a Tags,
    pub(super) hosts: &'a Hosts,
    pub(super) facts: &'a Facts,
}

impl Default for Sections {
    fn default() -> Self {
        let (roster, listen, limits, policy, quota, callers, audit, origins) = Default::default();
        let (secrets, declared, scopes, tags) = Default::default();
        Self {
            roster,
            listen,
            limits,
            capacity: Capacity { servers: SERVERS_RUNNING, ..Capacity::default() },
            policy,
            quota,
            callers,
            audit,
            secrets,
            origins,
            declared,
            scopes,
            tags,
        }
    }
}

/// Reads every section.
pub(super) fn read(page: &mut Page, root: &Table, facts: &Facts) -> Sections {
    let json = page.json;
    let mut sections = Sections::default();
    let scopes = scope::read(page, root);
    (sections.scopes, sections.tags) = scope::judge(&scopes, facts);
    let hosts = hosts::read(page, root);
    let mut reader = Reader::new(page, root, Concern::Whole, 0);
    let mut defaults = Care::default();
    if let Some(mut table) = reader.table("defaults") {
        defaults = defaults.overlay(&mut table);
        table.finish();
    }
    if let Some(table) = reader.table("limits") {
        (sections.limits, sections.capacity) = limits(table, &mut sections.quota);
    }
    if let Some(table) = reader.table("listen") {
        sections.listen = listen(table);
    }
    if let Some(mut table) = reader.table("policy") {
        sections.policy.everyone = rules::read(&mut table, rules::over_servers);
        sections.quota.everyone = quota::read(&mut table);
        table.finish();
    }
    let picks = profiles::read(&mut reader, &mut sections);
    callers::read(&mut reader, &mut sections);
    sections.audit = audit::read(&mut reader);
    if let Some(table) = reader.table("secrets") {
        sections.secrets = secrets::read(table);
    }
    // Read already.
    for key in ["hosts", "scopes"] {
        reader.take(key);
    }
    let roots: &[&'static str] = if json { &["mcpServers", "servers"] } else { &["servers"] };
    for key in roots {
        reader.members(key);
    }
    if json && !roots.iter().any(|key| reader.has(key)) {
        let hint = "write `{\"mcpServers\": {\"NAME\": {\"command\": \"…\"}}}`";
        reader.lacking("there is no `mcpServers` in this file", hint);
    }
    if json {
        reader.finish_with_notes();
    } else {
        reader.finish();
    }
    let servers: Vec<_> = roots.iter().filter_map(|key| root.entries(key).next()).flat_map(members).collect();
    sections.listen.hosts.extend(hosts::names_of_us(&hosts, facts));
    let tags = sections.tags.clone();
    let around = Around { defaults: &defaults, tags: &tags, hosts: &hosts, facts };
    read_servers(page, &servers, &around, &mut sections);
    profiles::pick(&picks, &mut sections);
    rules::note_strangers(page, &sections);
    quota::note_unreached(page, &sections);
    note_seatless(page, &servers, &sections);
    sections
}

/// Says which servers find no room at the start, because more are to run from the beginning than may run.
fn note_seatless(page: &mut Page, entries: &[&Entry], sections: &Sections) {
    let seats = sections.capacity.servers;
    let at_boot = |spec: &&ServerSpec| {
        let local = matches!(spec.endpoint, Endpoint::Command(_));
        spec.enabled && local && spec.lifecycle.start == Start::AtBoot
    };
    let wanted: Vec<&ServerSpec> = sections.roster.servers().filter(at_boot).collect();
    let last = wanted.last().and_then(|spec| entries.iter().find(|entry| entry.key == spec.id.as_str()));
    if let Some(last) = last.filter(|_| wanted.len() > seats) {
        let count = wanted.len();
        let message = format!(
            "{count} servers start at boot and `limits.servers-running` is {seats}: the others stay asleep"
        );
        let hint = format!("write `limits.servers-running = {count}`, or `start = \"on-demand\"`");
        page.report(last.at, &Concern::Note, message, hint);
    }
}

fn members(section: &Entry) -> &[Entry] {
    match &section.value.value {
        Value::Table(table) => &table.0,
        _ => &[],
    }
}

fn limits(mut reader: Reader<'_>, quota: &mut Quota) -> (HostLimits, Capacity) {
    let otherwise = HostLimits::default();
    let limits = HostLimits {
        body: reader.size("body").unwrap_or(otherwise.body),
        sessions: reader
            .count("sessions", 1)
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(otherwise.sessions),
        drain: reader.duration("drain").unwrap_or(otherwise.drain),
        call_timeout_max: reader.duration("call-timeout-max"),
    };
    let servers = reader.count("servers-running", 1).and_then(|count| usize::try_from(count).ok());
    quota.identical_calls = reader.count("identical-calls", 1).and_then(NonZeroU32::new);
    quota.results = reader.size("results").map(|bytes| bytes as u64);
    let memory = reader.size("memory").map(|bytes| bytes as u64);
    let cache = reader.size("cache").unwrap_or(Capacity::default().cache);
    reader.finish();
    (limits, Capacity { servers: servers.unwrap_or(SERVERS_RUNNING), memory, cache })
}

fn listen(mut reader: Reader<'_>) -> Listen {
    let of_a_host =
        |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ':' | '[' | ']');
    let mut hosts = Vec::new();
    for (node, host) in reader.strings("hosts").unwrap_or_default() {
        if host.is_empty() || !host.chars().all(of_a_host) {
            let message = format!("`{host}` is not the name of a host");
            reader.wrong(node.span.start, message, "write the name alone, such as `\"still.local\"`");
        }
        hosts.push(host.to_owned());
    }
    reader.finish();
    Listen { hosts }
}

fn read_servers(page: &mut Page, entries: &[&Entry], around: &Around<'_>, sections: &mut Sections) {
    let ids: Vec<_> = entries.iter().map(|entry| identify(page, entry)).collect();
    let clashing = report_clashes(page, entries, &ids);
    for (entry, id) in entries.iter().zip(ids) {
        let name = id.as_ref().map_or(entry.key.as_str(), ServerId::as_str).to_owned();
        let before = page.errors();
        let read = match &entry.value.value {
            Value::Table(table) => {
                let reader = Reader::new(page, table, Concern::Server(name.clone()), entry.at);
                server::read(reader, &name, around)
            }
            _ => {
                not_a_table(page, entry, &name);
                None
            }
        };
        let Some(id) = id else { continue };
        let origin = page.origin(entry.at);
        sections.origins.entry(id.clone()).or_insert_with(|| origin.clone());
        let good = page.errors() == before && !clashing.contains(&id.folded());
        let Some(read) = read.filter(|_| good) else {
            sections.declared.push(off(page, id, origin));
            continue;
        };
        let (active, reason) = read.verdict(around.tags);
        let (enabled, wanted) = (read.enabled(), read.wanted().cloned());
        let rules = read.rules().clone();
        let mut spec = read.named(id.clone());
        spec.limits.host_max = sections.limits.call_timeout_max;
        let endpoint = Some(spec.endpoint.clone());
        sections.declared.push(Declared {
            id: id.clone(),
            active,
            enabled,
            reason,
            endpoint,
            wanted,
            origin,
        });
        // One that is switched off by name is shown as such; one that is not for here does not exist here.
        if active || !enabled {
            sections.policy.servers.insert(id, rules);
            // Names are known to differ here, so there is nothing left to refuse.
            let _ = sections.roster.add(spec);
        }
    }
    sections.declared.sort_by(|one, other| one.id.cmp(&other.id));
}

/// A server that is off because something is wrong with it.
fn off(page: &Page, id: ServerId, origin: Origin) -> Declared {
    let why = page.first_problem_of(id.as_str()).map(|problem| format!(": {}", problem.message));
    let reason = format!("off: something is wrong with it{}", why.unwrap_or_default());
    Declared { id, active: false, enabled: true, reason, endpoint: None, wanted: None, origin }
}

fn not_a_table(page: &mut Page, entry: &Entry, name: &str) {
    let (message, hint) = if page.json {
        (format!("`{name}` must be an object"), "write `{\"command\": \"…\"}`".to_owned())
    } else {
        (
            format!("`servers.{name}` must be a table"),
            format!("write `[servers.{name}]` and below it `command = \"…\"`"),
        )
    };
    page.report(entry.value.span.start, &Concern::Server(name.to_owned()), message, hint);
}

/// The name of a server. In JSON it is made to fit, and that is mentioned.
fn identify(page: &mut Page, entry: &Entry) -> Option<ServerId> {
    let written = &entry.key;
    let bad: BadName = match written.parse() {
        Ok(id) => return Some(id),
        Err(bad) => bad,
    };
    let cleaned = clean(written).parse::<ServerId>().ok();
    match cleaned {
        Some(id) if page.json => {
            let hint = format!("write `{id}` to be rid of this note");
            page.report(entry.at, &Concern::Note, format!("`{written}` is called `{id}` here"), hint);
            Some(id)
        }
        cleaned => {
            let hint = cleaned.map_or_else(
                || "choose another, such as `my-server`".to_owned(),
                |id| format!("write `{id}`"),
            );
            let message = format!("`{written}` cannot be a server: {bad}");
            page.report(entry.at, &Concern::Server(written.clone()), message, hint);
            None
        }
    }
}

fn clean(written: &str) -> String {
    let legal = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let mut cleaned = String::new();
    for letter in written.to_lowercase().chars().map(|letter| if legal(letter) { letter } else { '-' }) {
        if letter != '_' || !cleaned.ends_with('_') {
            cleaned.push(letter);
        }
    }
    let cleaned = cleaned.trim_matches(['-', '_']);
    cleaned[..cleaned.len().min(32)].trim_end_matches(['-', '_']).to_owned()
}

/// Two servers of one name are both refused: nobody can say which one was meant. Gives the folded names of those.
fn report_clashes(page: &mut Page, entries: &[&Entry], ids: &[Option<ServerId>]) -> BTreeSet<String> {
    let mut groups: BTreeMap<String, Vec<(&Entry, &ServerId)>> = BTreeMap::new();
    for (entry, id) in entries.iter().zip(ids) {
        if let Some(id) = id {
            groups.entry(id.folded()).or_default().push((entry, id));
        }
    }
    groups.retain(|_, group| group.len() > 1);
    for group in groups.values() {
        for (index, (entry, id)) in group.iter().enumerate() {
            let other = group[usize::from(index == 0)].0;
            let origin = page.origin(other.at);
            let place = match page.is_one_file(entry.at, other.at) {
                true => format!("in line {}", origin.line),
                false => format!("in {}:{}", origin.file.display(), origin.line),
            };
            let message = format!("`{}` and `{}` {place} are the same name here", entry.key, other.key);
            let hint =
                "rename one of them; `-` and `_`, and in JSON upper and lower case, make no difference";
            page.report(entry.at, &Concern::Server(id.to_string()), message, hint.to_owned());
        }
    }
    groups.into_keys().collect()
}
