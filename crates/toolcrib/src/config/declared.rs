//! Declared servers, whether each is on and why, and the origin of each of their values. Values that may be secrets are
//! hidden.

use serde_json::Value as Json;

use super::Origin;
use super::node::{ConfigNode, ConfigTable, ConfigValue, TableEntry};
use super::source_map::SourceMap;
use super::when::TagCondition;
use crate::spec::template::TemplateText;
use crate::spec::{Endpoint, HttpSpec, ServerCard, ServerId};
use crate::util::maps::collect_map;

/// Placeholder for a value that may be a secret.
const HIDDEN: &str = "(hidden)";

/// A server that is declared in a config file.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredServer {
    /// Name of the server.
    pub id: ServerId,
    /// True if it is on here.
    pub active: bool,
    /// True if it is not disabled with `enabled = false`.
    pub enabled: bool,
    /// Reason why it is on or off, in one line.
    pub reason: String,
    /// Its endpoint, unless its declaration has problems.
    pub endpoint: Option<Endpoint>,
    /// Its card.
    pub card: Option<ServerCard>,
    /// Its tag condition.
    pub when: Option<TagCondition>,
    /// Port of this host's gateway, if `run-on` places the server in that gateway and nothing answers there.
    pub missing_gateway: Option<u16>,
    /// Place of its first declaration; nearer layers may add to it.
    pub origin: Origin,
}

/// A value of a server and its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredValue {
    /// Key below the server, such as `lifecycle.keep-alive`.
    pub key: String,
    /// The value as written.
    pub value: Json,
    /// Place where it is written.
    pub origin: Origin,
    /// Values of farther layers that it overrides, the nearest last.
    pub overrides: Vec<(Json, Origin)>,
    /// Values of farther layers that it replaces because they are of another kind of endpoint: a nearer `url` replaces
    /// `command`, and the reverse.
    pub replaces: Vec<DeclaredValue>,
    /// Values of farther layers that the server does not get because a project sets this one, and with it the program or
    /// the address of the server.
    pub withheld: Vec<DeclaredValue>,
}

impl DeclaredServer {
    /// Returns `stdio`, `http` or `sse`.
    pub fn transport(&self) -> &'static str {
        match &self.endpoint {
            Some(Endpoint::Http(http)) => http.transport.as_str(),
            _ => "stdio",
        }
    }

    /// Returns the command line or the URL, with references unresolved.
    pub fn command_or_url(&self) -> String {
        match &self.endpoint {
            Some(Endpoint::Command(command)) => {
                let words = std::iter::once(&command.program).chain(&command.args).map(TemplateText::source);
                words.map(quote_for_shell).collect::<Vec<_>>().join(" ")
            }
            Some(Endpoint::Http(HttpSpec { url, .. })) => hide_query(url.source()),
            Some(Endpoint::InProcess(_)) | None => String::new(),
        }
    }
}

fn quote_for_shell(word: &str) -> String {
    let is_special = |letter: char| letter.is_whitespace() || "'\"\\;&|<>()*?#".contains(letter);
    match word.is_empty() || word.contains(is_special) {
        true => format!("'{}'", word.replace('\'', "'\\''")),
        false => word.to_owned(),
    }
}

/// Hides the query of a URL, which often contains a token.
fn hide_query(url: &str) -> String {
    url.split_once('?').map_or_else(|| url.to_owned(), |(before, _)| format!("{before}?…"))
}

/// Returns every value that applies to a server: its own keys, and those of `[defaults]`.
pub(super) fn server_values(source: &SourceMap, root: &ConfigTable, server: &str) -> Vec<DeclaredValue> {
    let mut values = Vec::new();
    if let Some(defaults) = root.entries("defaults").next().and_then(|entry| entry.value.as_table()) {
        collect(source, defaults, "", &mut values);
    }
    let servers = root.entries("servers").chain(root.entries("mcpServers"));
    let mut tables =
        servers.filter_map(|entry| entry.value.as_table()).flat_map(|servers| servers.entries(server));
    let Some(table) = tables.find_map(|entry| entry.value.as_table()) else { return Vec::new() };
    let mut own_values = Vec::new();
    collect(source, table, "", &mut own_values);
    for mut value in own_values {
        if let Some(index) = values.iter().position(|other| other.key == value.key) {
            let default = values.remove(index);
            let overridden = default.overrides.into_iter().chain([(default.value, default.origin)]);
            value.overrides.splice(0..0, overridden);
        }
        values.push(value);
    }
    values.sort_by(|one, other| one.key.cmp(&other.key));
    values
}

fn collect(source: &SourceMap, table: &ConfigTable, prefix: &str, values: &mut Vec<DeclaredValue>) {
    for TableEntry { key, offset, value, overridden, replaced, withheld } in &table.0 {
        let key = format!("{prefix}{key}");
        if let ConfigValue::Table(table) = &value.value {
            collect(source, table, &format!("{key}."), values);
            continue;
        }
        let hiding = Hiding::for_server_key(&key);
        let to_json = |node: &ConfigNode| to_json(source, node, hiding);
        let overrides =
            overridden.iter().map(|node| (to_json(node), source.origin(node.span.start))).collect();
        let collect_sorted = |entries: &[TableEntry]| {
            let mut values = Vec::new();
            collect(source, &ConfigTable(entries.to_vec()), "", &mut values);
            values.sort_by(|one: &DeclaredValue, other| one.key.cmp(&other.key));
            values
        };
        values.push(DeclaredValue {
            value: to_json(value),
            origin: source.origin(*offset),
            overrides,
            replaces: collect_sorted(replaced),
            withheld: collect_sorted(withheld),
            key,
        });
    }
}

/// The part of a value that is not shown, because it may be a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hiding {
    Nothing,
    /// The query of a URL, which often contains a token.
    Query,
    /// Every text that is not a reference.
    Literals,
}

impl Hiding {
    /// Returns what is hidden of a value at a key below a server.
    pub(super) fn for_server_key(key: &str) -> Self {
        match key {
            "url" => Self::Query,
            key if key.starts_with("env.") || key.starts_with("headers.") => Self::Literals,
            // Wherever they are: a new table with credentials must not have to be added here.
            key if key.ends_with("client-secret")
                || key.ends_with("private-key")
                || key.ends_with("id-token") =>
            {
                Self::Literals
            }
            _ => Self::Nothing,
        }
    }
}

pub(super) fn to_json(source: &SourceMap, node: &ConfigNode, hiding: Hiding) -> Json {
    match &node.value {
        ConfigValue::String(text) => match hiding {
            Hiding::Nothing => text.as_str().into(),
            Hiding::Query => hide_query(text).into(),
            Hiding::Literals => hide_unless_reference(text).into(),
        },
        ConfigValue::Number(Some(number)) => (*number).into(),
        ConfigValue::Bool(value) => (*value).into(),
        ConfigValue::Array(elements) => {
            elements.iter().map(|element| to_json(source, element, hiding)).collect()
        }
        ConfigValue::Table(table) => {
            let members =
                table.0.iter().map(|entry| (entry.key.clone(), to_json(source, &entry.value, hiding)));
            Json::Object(collect_map(members))
        }
        ConfigValue::Number(None) | ConfigValue::Other(_) => {
            source.short_text(&node.span).unwrap_or("…").into()
        }
    }
}

/// Returns the text if it is a single reference, with or without an authentication scheme, else a placeholder.
fn hide_unless_reference(text: &str) -> &str {
    let mut rest = text;
    for scheme in ["Bearer ", "Basic ", "token "] {
        rest = rest.strip_prefix(scheme).unwrap_or(rest);
    }
    let is_reference = rest.starts_with("${") && rest.ends_with('}') && !rest.contains(":-");
    if is_reference && rest.matches("${").count() == 1 { text } else { HIDDEN }
}
