//! Reads the sections of a merged config, and the servers by name.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use super::declared::DeclaredServer;
use super::facts::HostFacts;
use super::hosts::{self, Hosts};
use super::lifecycle::{LifecycleSettings, read_result_tokens};
use super::node::{ConfigTable, TableEntry};
use super::reader::TableReader;
use super::scope::{self, ActiveTags, ScopeMatch};
use super::server::{self, ServerTable};
use super::source_map::SourceMap;
use super::{
    AuditSpec, AutoStart, CallerSpec, GatewayLimits, GroupSpec, HistorySpec, IssuedCallerSpec, IssuerSpec,
    ListenSpec, Origin, ProblemScope, SecretBackend, StoreSpec, audit, callers, expose, groups, history,
    issuers, listen, profiles, quota, rules, secrets, store,
};
use crate::access::expose::ExposeSettings;
use crate::access::policy::Policy;
use crate::limits::UsageLimits;
use crate::spec::{Capacity, Endpoint, FirstListingSettings, Roster, ServerId, ServerSpec, StartPolicy};
use crate::util::maps::collect_map;

/// Default of `limits.servers-running`.
const DEFAULT_SERVERS_RUNNING: usize = 32;

/// Longest name that is made from an invalid one.
const MAX_NAME_LENGTH: usize = 32;

/// The valid parts of a config.
pub(super) struct ConfigSections {
    pub(super) roster: Roster,
    pub(super) listen: ListenSpec,
    pub(super) auto_start: AutoStart,
    pub(super) limits: GatewayLimits,
    pub(super) capacity: Capacity,
    pub(super) policy: Policy,
    pub(super) expose: ExposeSettings,
    pub(super) usage_limits: UsageLimits,
    pub(super) callers: Vec<CallerSpec>,
    pub(super) issuers: Vec<IssuerSpec>,
    pub(super) issued_callers: Vec<IssuedCallerSpec>,
    pub(super) groups: Vec<GroupSpec>,
    pub(super) audit: Option<AuditSpec>,
    pub(super) metrics: bool,
    pub(super) history: HistorySpec,
    pub(super) store: StoreSpec,
    pub(super) registry: Option<String>,
    pub(super) secrets: SecretBackend,
    pub(super) origins: BTreeMap<ServerId, Origin>,
    pub(super) declared: Vec<DeclaredServer>,
    pub(super) scopes: Vec<ScopeMatch>,
    pub(super) tags: ActiveTags,
}

/// Parts of the config that the table of a server depends on.
pub(super) struct ServerParseContext<'a> {
    pub(super) defaults: &'a LifecycleSettings,
    pub(super) tags: &'a ActiveTags,
    pub(super) hosts: &'a Hosts,
    pub(super) facts: &'a HostFacts,
}

impl Default for ConfigSections {
    fn default() -> Self {
        Self {
            roster: Roster::default(),
            listen: ListenSpec::default(),
            auto_start: AutoStart::default(),
            limits: GatewayLimits::default(),
            capacity: Capacity { servers: DEFAULT_SERVERS_RUNNING, ..Capacity::default() },
            policy: Policy::default(),
            expose: ExposeSettings::default(),
            usage_limits: UsageLimits::default(),
            callers: Vec::new(),
            issuers: Vec::new(),
            issued_callers: Vec::new(),
            groups: Vec::new(),
            audit: None,
            metrics: true,
            history: HistorySpec::default(),
            store: StoreSpec::default(),
            registry: None,
            secrets: SecretBackend::default(),
            origins: BTreeMap::new(),
            declared: Vec::new(),
            scopes: Vec::new(),
            tags: ActiveTags::default(),
        }
    }
}

/// Reads every section.
pub(super) fn read(source: &mut SourceMap, root: &ConfigTable, facts: &HostFacts) -> ConfigSections {
    let mut sections = ConfigSections::default();
    let scopes = scope::read(source, root);
    (sections.scopes, sections.tags) = scope::evaluate(&scopes, facts);
    let hosts = hosts::read(source, root);
    let server_keys: &[&'static str] = if source.json { &["mcpServers", "servers"] } else { &["servers"] };
    let mut reader = TableReader::new(source, root, ProblemScope::WholeConfig, 0);
    let defaults = read_defaults(&mut reader);
    let selectors = read_gateway_sections(&mut reader, &mut sections);
    // These two have been read already.
    for key in ["hosts", "scopes"] {
        reader.take(key);
    }
    for key in server_keys {
        reader.raw_table(key);
    }
    finish_root(reader, server_keys);
    let servers: Vec<&TableEntry> = server_keys
        .iter()
        .filter_map(|key| root.entries(key).next()?.value.as_table())
        .flat_map(|table| &table.0)
        .collect();
    sections.listen.hosts.extend(hosts::local_addresses(&hosts, facts));
    let tags = sections.tags.clone();
    let context = ServerParseContext { defaults: &defaults, tags: &tags, hosts: &hosts, facts };
    read_servers(source, &servers, &context, &mut sections);
    profiles::apply_tag_selectors(&selectors, &mut sections);
    rules::note_undeclared_servers(source, &sections);
    quota::note_unreachable(source, &sections);
    note_boot_servers_over_capacity(source, &servers, &sections);
    sections
}

fn read_defaults(reader: &mut TableReader<'_>) -> LifecycleSettings {
    let defaults = LifecycleSettings::default();
    let Some(mut table) = reader.table("defaults") else { return defaults };
    let defaults = defaults.overlay(&mut table);
    table.finish();
    defaults
}

/// Reads the URL of a registry.
fn read_registry(reader: &mut TableReader<'_>) -> Option<String> {
    let url = reader.string("registry")?;
    if url.starts_with("https://") || url.starts_with("http://") {
        return Some(url.trim_end_matches('/').to_owned());
    }
    let message = "`registry` is not an http or https URL".to_owned();
    reader.error_at_value("registry", message, "registry = \"https://registry.example\"");
    None
}

/// Reads the sections that are not about servers, and returns the tag selectors of the profiles.
fn read_gateway_sections(
    reader: &mut TableReader<'_>,
    sections: &mut ConfigSections,
) -> Vec<profiles::TagSelector> {
    if let Some(table) = reader.table("limits") {
        read_limits(table, sections);
    }
    if let Some(table) = reader.table("listen") {
        sections.listen = read_listen(table);
    }
    if let Some(table) = reader.table("gateway") {
        sections.auto_start = read_auto_start(table);
    }
    if let Some(mut table) = reader.table("policy") {
        sections.policy.everyone = rules::read(&mut table, rules::parse_server_rule);
        sections.usage_limits.everyone = quota::read(&mut table);
        table.finish();
    }
    expose::read(reader, &mut sections.expose);
    groups::read(reader, sections);
    let selectors = profiles::read(reader, sections);
    issuers::read(reader, sections);
    callers::read(reader, sections);
    sections.audit = audit::read(reader);
    if let Some(mut table) = reader.table("metrics") {
        sections.metrics = table.boolean("enabled").unwrap_or(true);
        table.finish();
    }
    if let Some(table) = reader.table("history") {
        sections.history = history::read(table);
    }
    if let Some(table) = reader.table("store") {
        sections.store = store::read(table);
    }
    sections.registry = read_registry(reader);
    if let Some(table) = reader.table("secrets") {
        sections.secrets = secrets::read(table);
    }
    selectors
}

fn finish_root(mut reader: TableReader<'_>, server_keys: &[&str]) {
    if !reader.source().json {
        reader.finish();
        return;
    }
    if !server_keys.iter().any(|key| reader.has(key)) {
        let hint = "write `{\"mcpServers\": {\"NAME\": {\"command\": \"…\"}}}`";
        reader.error_at_table("the file has no `mcpServers`", hint);
    }
    reader.finish_with_notes();
}

/// Reports as a note that more servers start at boot than may run.
fn note_boot_servers_over_capacity(
    source: &mut SourceMap,
    entries: &[&TableEntry],
    sections: &ConfigSections,
) {
    let slots = sections.capacity.servers;
    let starts_at_boot = |spec: &&ServerSpec| {
        let is_local = matches!(spec.endpoint, Endpoint::Command(_));
        spec.enabled && is_local && spec.lifecycle.start == StartPolicy::AtBoot
    };
    let specs: Vec<&ServerSpec> = sections.roster.servers().filter(starts_at_boot).collect();
    let last = specs.last().and_then(|spec| entries.iter().find(|entry| entry.key == spec.id.as_str()));
    if let Some(last) = last.filter(|_| specs.len() > slots) {
        let count = specs.len();
        let message = format!(
            "{count} servers start at boot, but `limits.servers-running` is {slots}: the others stay asleep"
        );
        let hint = format!("write `limits.servers-running = {count}`, or `start = \"on-demand\"`");
        source.report(last.offset, &ProblemScope::Note, message, hint);
    }
}

fn read_limits(mut reader: TableReader<'_>, sections: &mut ConfigSections) {
    let count = |count: Option<u32>| count.and_then(|count| usize::try_from(count).ok());
    let defaults = GatewayLimits::default();
    sections.limits = GatewayLimits {
        body: reader.size("body").unwrap_or(defaults.body),
        client_memory: reader.size("client-memory"),
        sessions: count(reader.count("sessions", 1)).unwrap_or(defaults.sessions),
        drain: reader.duration("drain").unwrap_or(defaults.drain),
        call_timeout_max: reader.duration("call-timeout-max"),
        listing_wait: reader
            .duration_or_zero("listing-wait", "`\"0s\"`, `\"300ms\"` or `\"5s\"`")
            .unwrap_or(defaults.listing_wait),
        first_listing: read_first_listing(&mut reader),
    };
    let body = sections.limits.body;
    if sections.limits.client_memory.is_some_and(|memory| memory < body.saturating_mul(2)) {
        let message = "`limits.client-memory` must be at least twice `limits.body`";
        let hint = format!("write at least `client-memory = \"{}MiB\"`", (body >> 19).max(1));
        reader.error_at_value("client-memory", message, hint);
    }
    let servers = count(reader.count("servers-running", 1));
    sections.usage_limits.identical_calls = reader.count("identical-calls", 1).and_then(NonZeroU32::new);
    let by_client = read_result_tokens(&mut reader).into_iter();
    sections.expose.result_tokens = collect_map(by_client.map(|(entry, tokens)| (entry.key.clone(), tokens)));
    sections.usage_limits.result_bytes = reader.size("results").map(|bytes| bytes as u64);
    sections.capacity = Capacity {
        servers: servers.unwrap_or(DEFAULT_SERVERS_RUNNING),
        memory: reader.size("memory").map(|bytes| bytes as u64),
        cache: reader.size("cache").unwrap_or(Capacity::default().cache),
    };
    reader.finish();
}

fn read_first_listing(reader: &mut TableReader<'_>) -> FirstListingSettings {
    let mut settings = FirstListingSettings::default();
    if let Some(wait) = reader.duration_or_zero("first-listing-wait", "`\"0s\"`, `\"8s\"` or `\"30s\"`") {
        settings.wait = wait;
    }
    let clients = reader.raw_table("first-listing-clients").map_or(&[][..], |table| &table.0);
    let waits = clients.iter().map(|entry| (entry, reader.entry_duration("first-listing-clients", entry)));
    settings.clients = collect_map(waits.filter_map(|(entry, wait)| Some((entry.key.clone(), wait?))));
    settings
}

fn read_listen(mut reader: TableReader<'_>) -> ListenSpec {
    let is_valid =
        |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ':' | '[' | ']');
    let mut hosts = Vec::new();
    for (node, host) in reader.strings("hosts").unwrap_or_default() {
        if host.is_empty() || !host.chars().all(is_valid) {
            let message = format!("`{host}` is not a host name");
            reader.error(node.span.start, message, "write only the name, such as `\"still.local\"`");
        }
        hosts.push(host.to_owned());
    }
    let origins = listen::read_origins(&mut reader);
    let sse = reader.boolean("sse").unwrap_or(false);
    let any_user = reader.boolean("any-user").unwrap_or(false);
    let public_url = listen::read_public_url(&mut reader);
    let tls = listen::read_tls(&mut reader);
    let trusted_proxies = listen::read_trusted_proxies(&mut reader);
    if let Some(node) = reader.peek("public-url").filter(|_| !trusted_proxies.is_empty()) {
        let message = "`public-url` is used instead of the host and scheme that `trusted-proxies` name";
        reader.note(node.span.start, message, "remove `public-url` to use those of the proxies");
    }
    reader.finish();
    ListenSpec { hosts, origins, sse, any_user, public_url, tls, trusted_proxies }
}

fn read_auto_start(mut reader: TableReader<'_>) -> AutoStart {
    let defaults = AutoStart::default();
    let auto_start = AutoStart {
        enabled: reader.boolean("auto-start").unwrap_or(defaults.enabled),
        idle_exit: reader.duration("idle-exit").unwrap_or(defaults.idle_exit),
    };
    reader.finish();
    auto_start
}

fn read_servers(
    source: &mut SourceMap,
    entries: &[&TableEntry],
    context: &ServerParseContext<'_>,
    sections: &mut ConfigSections,
) {
    let ids: Vec<_> = entries.iter().map(|entry| parse_server_id(source, entry)).collect();
    let conflicting = report_name_conflicts(source, entries, &ids);
    for (entry, id) in entries.iter().zip(ids) {
        let name = id.as_ref().map_or(entry.key.as_str(), ServerId::as_str).to_owned();
        let errors_before = source.error_count();
        let table = match entry.value.as_table() {
            Some(table) => {
                let scope = ProblemScope::Server(name.clone());
                let reader = TableReader::new(source, table, scope, entry.offset);
                server::read(reader, &name, context)
            }
            None => {
                report_not_a_table(source, entry, &name);
                None
            }
        };
        let Some(id) = id else { continue };
        let origin = source.origin(entry.offset);
        sections.origins.entry(id.clone()).or_insert_with(|| origin.clone());
        let is_valid = source.error_count() == errors_before && !conflicting.contains(&id.folded());
        match table.filter(|_| is_valid) {
            Some(table) => add_server(sections, context.tags, table, id, origin),
            None => sections.declared.push(declare_invalid(source, id, origin)),
        }
    }
    sections.declared.sort_by(|one, other| one.id.cmp(&other.id));
}

fn add_server(
    sections: &mut ConfigSections,
    tags: &ActiveTags,
    table: ServerTable,
    id: ServerId,
    origin: Origin,
) {
    let activation = table.activation(tags);
    let enabled = table.is_enabled();
    let when = table.when().cloned();
    let missing_gateway = table.missing_gateway().filter(|_| activation.active);
    let rules = table.rules().clone();
    let mut spec = table.into_spec(id.clone());
    spec.limits.gateway_call_timeout_max = sections.limits.call_timeout_max;
    sections.declared.push(DeclaredServer {
        id: id.clone(),
        active: activation.active,
        enabled,
        reason: activation.reason,
        endpoint: Some(spec.endpoint.clone()),
        card: spec.card.clone(),
        when,
        missing_gateway,
        origin,
    });
    // A disabled server is listed as such; one whose tags are not active here is left out.
    if activation.active || !enabled {
        sections.policy.servers.insert(id, rules);
        // Conflicting names have been rejected before, so this cannot fail.
        let _ = sections.roster.add(spec);
    }
}

/// Returns a server that is off because its declaration has problems.
fn declare_invalid(source: &SourceMap, id: ServerId, origin: Origin) -> DeclaredServer {
    let problem = source.first_server_problem(id.as_str()).map(|problem| format!(": {}", problem.message));
    let reason = format!("off: its config has errors{}", problem.unwrap_or_default());
    DeclaredServer {
        id,
        active: false,
        enabled: true,
        reason,
        endpoint: None,
        card: None,
        when: None,
        missing_gateway: None,
        origin,
    }
}

fn report_not_a_table(source: &mut SourceMap, entry: &TableEntry, name: &str) {
    let (message, hint) = if source.json {
        (format!("`{name}` must be an object"), "write `{\"command\": \"…\"}`".to_owned())
    } else {
        (
            format!("`servers.{name}` must be a table"),
            format!("write `[servers.{name}]` and below it `command = \"…\"`"),
        )
    };
    source.report(entry.value.span.start, &ProblemScope::Server(name.to_owned()), message, hint);
}

/// Parses the name of a server. In JSON an invalid name is cleaned, and a note reports it.
fn parse_server_id(source: &mut SourceMap, entry: &TableEntry) -> Option<ServerId> {
    let written = &entry.key;
    let error = match written.parse::<ServerId>() {
        Ok(id) => return Some(id),
        Err(error) => error,
    };
    let cleaned = clean_name(written).parse::<ServerId>().ok();
    match cleaned {
        Some(id) if source.json => {
            let message = format!("the server `{written}` is renamed to `{id}`");
            let hint = format!("write `{id}` to avoid this note");
            source.report(entry.offset, &ProblemScope::Note, message, hint);
            Some(id)
        }
        cleaned => {
            let hint = cleaned.map_or_else(
                || "choose another, such as `my-server`".to_owned(),
                |id| format!("write `{id}`"),
            );
            let message = format!("invalid server name `{written}`: {error}");
            source.report(entry.offset, &ProblemScope::Server(written.clone()), message, hint);
            None
        }
    }
}

fn clean_name(written: &str) -> String {
    let is_valid = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let mut cleaned = String::new();
    for letter in written.to_lowercase().chars().map(|letter| if is_valid(letter) { letter } else { '-' }) {
        if letter != '_' || !cleaned.ends_with('_') {
            cleaned.push(letter);
        }
    }
    let cleaned = cleaned.trim_matches(['-', '_']);
    cleaned[..cleaned.len().min(MAX_NAME_LENGTH)].trim_end_matches(['-', '_']).to_owned()
}

/// Reports servers with the same name, all of which are rejected. Returns their folded names.
fn report_name_conflicts(
    source: &mut SourceMap,
    entries: &[&TableEntry],
    ids: &[Option<ServerId>],
) -> BTreeSet<String> {
    let mut groups: BTreeMap<String, Vec<(&TableEntry, &ServerId)>> = BTreeMap::new();
    for (entry, id) in entries.iter().zip(ids) {
        if let Some(id) = id {
            groups.entry(id.folded()).or_default().push((entry, id));
        }
    }
    groups.retain(|_, group| group.len() > 1);
    for group in groups.values() {
        for (index, (entry, id)) in group.iter().enumerate() {
            let other = group[usize::from(index == 0)].0;
            let origin = source.origin(other.offset);
            let place = match source.is_same_file(entry.offset, other.offset) {
                true => format!("on line {}", origin.line),
                false => format!("in {}:{}", origin.file.display(), origin.line),
            };
            let message = format!("the server name `{}` conflicts with `{}` {place}", entry.key, other.key);
            let hint = "rename one of them; `-` and `_` count as equal, in JSON also upper and lower case";
            source.report(entry.offset, &ProblemScope::Server(id.to_string()), message, hint.to_owned());
        }
    }
    groups.into_keys().collect()
}
