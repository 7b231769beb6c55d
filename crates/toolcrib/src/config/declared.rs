//! `Declared`: one server that is written down somewhere, whether it is on here, and why; and `Setting`, who said what of it.
//! What may be a secret is not repeated.

use serde_json::Value as Json;

use super::Origin;
use super::node::{Entry, Node, Table, Value};
use super::page::Page;
use super::when::When;
use crate::spec::{Endpoint, HttpSpec, ServerId};
use crate::text::Text;

/// Written in place of what may be a secret.
const HIDDEN: &str = "(hidden)";

/// A server that is written down somewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    /// Its name.
    pub id: ServerId,
    /// Whether it is on, here and now.
    pub active: bool,
    /// Whether anybody switched it off by name.
    pub enabled: bool,
    /// Why it is on or off, in one line.
    pub reason: String,
    /// How it is reached, as far as that can be said.
    pub endpoint: Option<Endpoint>,
    /// The tags it wants.
    pub wanted: Option<When>,
    /// Where it is declared first; nearer layers may say more of it.
    pub origin: Origin,
}

/// A value, and who said so.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Its key below the server, such as `lifecycle.keep-alive`.
    pub key: String,
    /// The value as written.
    pub value: Json,
    /// Where it is written.
    pub origin: Origin,
    /// What farther layers say in its place, the nearest last.
    pub overrides: Vec<(Json, Origin)>,
}

impl Declared {
    /// `stdio`, `http` or `sse`.
    pub fn transport(&self) -> &'static str {
        match &self.endpoint {
            Some(Endpoint::Http(http)) => http.transport.as_str(),
            _ => "stdio",
        }
    }

    /// The command line or the address, references unresolved.
    pub fn target(&self) -> String {
        match &self.endpoint {
            Some(Endpoint::Command(command)) => {
                let words = std::iter::once(&command.program).chain(&command.args).map(Text::written);
                words.map(quoted).collect::<Vec<_>>().join(" ")
            }
            Some(Endpoint::Http(HttpSpec { url, .. })) => without_query(url.written()),
            Some(Endpoint::InProcess(_)) | None => String::new(),
        }
    }
}

fn quoted(word: &str) -> String {
    match word.is_empty()
        || word.contains(|letter: char| letter.is_whitespace() || "'\"\\;&|<>()*?#".contains(letter))
    {
        true => format!("'{}'", word.replace('\'', "'\\''")),
        false => word.to_owned(),
    }
}

/// Queries are where people write tokens.
fn without_query(url: &str) -> String {
    url.split_once('?').map_or_else(|| url.to_owned(), |(before, _)| format!("{before}?…"))
}

/// Everything that is said of one server, its own keys over those of `[defaults]`.
pub(super) fn settings(page: &Page, root: &Table, server: &str) -> Vec<Setting> {
    let mut found = Vec::new();
    if let Some(Value::Table(defaults)) = root.entries("defaults").next().map(|entry| &entry.value.value) {
        collect(page, defaults, "", &mut found);
    }
    let servers =
        root.entries("servers").chain(root.entries("mcpServers")).filter_map(|entry| table_of(&entry.value));
    let Some(table) =
        servers.flat_map(|table| table.entries(server)).find_map(|entry| table_of(&entry.value))
    else {
        return Vec::new();
    };
    let mut own = Vec::new();
    collect(page, table, "", &mut own);
    for mut setting in own {
        if let Some(at) = found.iter().position(|other| other.key == setting.key) {
            let general = found.remove(at);
            let former = general.overrides.into_iter().chain([(general.value, general.origin)]);
            setting.overrides.splice(0..0, former);
        }
        found.push(setting);
    }
    found.sort_by(|one, other| one.key.cmp(&other.key));
    found
}

fn table_of(node: &Node) -> Option<&Table> {
    match &node.value {
        Value::Table(table) => Some(table),
        _ => None,
    }
}

fn collect(page: &Page, table: &Table, path: &str, found: &mut Vec<Setting>) {
    for Entry { key, at, value, beaten } in &table.0 {
        let key = format!("{path}{key}");
        if let Value::Table(table) = &value.value {
            collect(page, table, &format!("{key}."), found);
            continue;
        }
        let shown = |node: &Node| json(page, node, &key);
        let overrides = beaten.iter().map(|node| (shown(node), page.origin(node.span.start))).collect();
        found.push(Setting { value: shown(value), origin: page.origin(*at), overrides, key });
    }
}

fn json(page: &Page, node: &Node, key: &str) -> Json {
    match &node.value {
        Value::String(text) if is_private(key) => hidden(text).into(),
        Value::String(text) if key == "url" => without_query(text).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(Some(number)) => (*number).into(),
        Value::Bool(value) => (*value).into(),
        Value::Array(elements) => elements.iter().map(|element| json(page, element, key)).collect(),
        Value::Table(table) => {
            let members = table.0.iter().map(|entry| (entry.key.clone(), json(page, &entry.value, key)));
            Json::Object(members.collect())
        }
        Value::Number(None) | Value::Other(_) => page.written(&node.span).unwrap_or("…").into(),
    }
}

fn is_private(key: &str) -> bool {
    key.starts_with("env.") || key.starts_with("headers.")
}

/// The text if it is made of references, else nothing of it.
fn hidden(text: &str) -> &str {
    let mut rest = text;
    for scheme in ["Bearer ", "Basic ", "token "] {
        rest = rest.strip_prefix(scheme).unwrap_or(rest);
    }
    let is_reference = rest.starts_with("${") && rest.ends_with('}') && !rest.contains(":-");
    if is_reference && rest.matches("${").count() == 1 { text } else { HIDDEN }
}
