//! Reads a server entry of another program. Keys of all agents are accepted in every file, because people copy entries
//! from one program to another.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::extract_secrets::SecretNames;
use super::references::{self, ReferenceSyntax};
use crate::agents::{Agent, SseSupport, TimeUnit};

/// Keys that are dropped without a note.
const IGNORED_KEYS: [&str; 10] = [
    "name",
    "title",
    "description",
    "type",
    "transport",
    "bundled",
    "icon",
    "$schema",
    "display_name",
    "enabled",
];

/// A server entry of another program, with references in toolcrib's syntax.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ImportDraft {
    /// Program and arguments; empty for an HTTP server.
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
    pub(super) url: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    /// `http` or `sse`; `None` if the transport has to be detected.
    pub(super) transport: Option<&'static str>,
    pub(super) disabled: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) start_timeout: Option<Duration>,
    pub(super) allow: Option<Vec<String>>,
    pub(super) deny: Vec<String>,
    /// Settings that were changed or omitted, one sentence each.
    pub(super) notes: Vec<String>,
}

/// Types of entries that agents implement themselves.
const BUILT_IN_TYPES: [&str; 4] = ["builtin", "platform", "frontend", "inline_python"];

/// Reads the entry of a server. The error says why it cannot be imported. `names` has the names of secrets whose values
/// only the agent knows.
pub(super) fn read_entry(
    agent: Option<&Agent>,
    server: &str,
    entry: &Json,
    names: &SecretNames<'_>,
) -> Result<ImportDraft, String> {
    let mut members = entry.as_object().cloned().unwrap_or_default();
    if agent.is_some_and(|agent| agent.id == "zed")
        && !["command", "url"].iter().any(|key| members.contains_key(*key))
    {
        return Err("a Zed extension starts it; add its command to toolcrib yourself".to_owned());
    }
    if let Some(Json::Object(inner)) = members.remove("transport") {
        members.extend(inner);
    }
    let syntax = agent
        .map_or(ReferenceSyntax::ANY, |agent| ReferenceSyntax::for_agent(agent.entry_format.variable_syntax));
    let mut reader = DraftReader { members, syntax, server, names, draft: ImportDraft::default() };
    reader.read_transport(agent)?;
    reader.read_command()?;
    reader.read_address()?;
    reader.resolve_unusable_values();
    reader.read_options(agent);
    let DraftReader { members, mut draft, .. } = reader;
    let unknown_keys = members.keys().filter(|key| !IGNORED_KEYS.contains(&key.as_str()));
    draft.notes.extend(unknown_keys.map(|key| format!("`{key}` is omitted: toolcrib has no setting for it")));
    if draft.argv.is_empty() && draft.url.is_none() {
        return Err("it has neither a command nor a URL".to_owned());
    }
    Ok(draft)
}

struct DraftReader<'a> {
    members: Map<String, Json>,
    syntax: ReferenceSyntax,
    server: &'a str,
    names: &'a SecretNames<'a>,
    draft: ImportDraft,
}

impl DraftReader<'_> {
    fn take_first(&mut self, keys: &[&str]) -> Option<Json> {
        keys.iter().find_map(|key| self.members.remove(*key))
    }

    /// Takes the names and values of a table.
    fn take_pairs(&mut self, field: &str, key: &str) -> Vec<(String, String)> {
        let value = self.take_first(&[key]);
        self.read_pairs(field, value)
    }

    /// Returns names and values, and notes values that are not texts.
    fn read_pairs(&mut self, field: &str, value: Option<Json>) -> Vec<(String, String)> {
        let members = value.and_then(|value| value.as_object().cloned()).unwrap_or_default();
        let mut pairs = Vec::new();
        for (name, value) in members {
            match scalar_to_string(&value) {
                Some(value) => pairs.push((name, value)),
                None => {
                    self.draft.notes.push(format!("`{field}.{name}` is omitted: its value is not a text"));
                }
            }
        }
        pairs
    }

    /// Puts the variables of a server with a URL into the headers that refer to them, and notes variables and headers that
    /// a server of this kind cannot have.
    fn resolve_unusable_values(&mut self) {
        if self.draft.url.is_some() && !self.use_variables_in_headers() {
            self.draft.notes.push("`env` is omitted: a server with a URL has none".to_owned());
        }
        if !self.draft.argv.is_empty() && !self.draft.headers.is_empty() {
            self.draft.notes.push("`headers` is omitted: a server with a command has none".to_owned());
        }
    }

    /// Replaces references to the entry's own variables in arguments that are headers: the program would see these values.
    fn use_variables_in_header_arguments(&mut self) {
        let variables = self.draft.env.clone();
        let mut is_header = false;
        for argument in &mut self.draft.argv {
            if is_header || argument.starts_with("--header=") {
                for (name, value) in &variables {
                    *argument = argument.replace(&format!("${{env:{name}}}"), value);
                }
            }
            is_header = ["--header", "-H"].contains(&argument.as_str());
        }
    }

    /// Replaces references to the entry's own variables in its headers. Returns whether every variable was used.
    fn use_variables_in_headers(&mut self) -> bool {
        let mut are_all_used = true;
        for (name, value) in &self.draft.env {
            let reference = format!("${{env:{name}}}");
            let mut is_used = *value == reference;
            for header in self.draft.headers.values_mut().filter(|header| header.contains(&reference)) {
                *header = header.replace(&reference, value);
                is_used = true;
            }
            are_all_used &= is_used;
        }
        are_all_used
    }

    fn convert_references(&mut self, value: &str) -> Result<String, String> {
        self.convert_with(self.syntax, value)
    }

    fn convert_with(&mut self, syntax: ReferenceSyntax, value: &str) -> Result<String, String> {
        let converted = references::to_toolcrib_syntax(syntax, value, &|name| self.names.reference(name))
            .map_err(|unknown| format!("it refers to `{unknown}`, which toolcrib cannot resolve"))?;
        for input in converted.inputs {
            let reference = self.names.reference(&input);
            self.note_secret(&format!("`${{input:{input}}}`"), &reference);
        }
        Ok(converted.text)
    }

    /// Notes a reference to a secret that the agent asks for or keeps itself.
    fn note_secret(&mut self, source: &str, reference: &str) {
        let command = match reference.strip_prefix("${secret:").and_then(|name| name.strip_suffix('}')) {
            Some(name) => format!("`toolcrib secret set {name}`"),
            None => "set the variable where toolcrib runs".to_owned(),
        };
        let note = format!("{source} became `{reference}`; if it has no value yet: {command}");
        if !self.draft.notes.contains(&note) {
            self.draft.notes.push(note);
        }
    }

    fn read_transport(&mut self, agent: Option<&Agent>) -> Result<(), String> {
        let declared =
            self.members.get("type").or_else(|| self.members.get("transport")).and_then(Json::as_str);
        let is_cline_url = agent.is_some_and(|agent| agent.id == "cline") && self.members.contains_key("url");
        self.draft.transport = match declared {
            Some("http" | "streamable-http" | "streamable_http" | "streamableHttp") => Some("http"),
            Some("sse") => Some("sse"),
            Some("stdio" | "local" | "remote") => None,
            Some(kind) if BUILT_IN_TYPES.contains(&kind) => {
                return Err("it is part of the agent, not a server".to_owned());
            }
            Some(other) => return Err(format!("servers of type `{other}` are not supported")),
            None if is_cline_url => Some("sse"),
            None if self.members.contains_key("httpUrl") => Some("http"),
            None => None,
        };
        // Some agents detect the transport, as toolcrib does.
        if agent.is_some_and(|agent| {
            agent.entry_format.remote.is_some_and(|remote| remote.sse == SseSupport::AutoDetected)
        }) {
            self.draft.transport = None;
        }
        Ok(())
    }

    fn read_command(&mut self) -> Result<(), String> {
        let argv = match self.take_first(&["command", "cmd"]) {
            None => Vec::new(),
            Some(Json::String(program)) => vec![program],
            Some(Json::Array(argv)) => to_strings(&argv).ok_or("its `command` is not a list of strings")?,
            Some(_) => return Err("its `command` is not a string".to_owned()),
        };
        let args = match self.take_first(&["args"]) {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Array(args)) => to_strings(&args).ok_or("its `args` is not a list of strings")?,
            Some(_) => return Err("its `args` is not a list".to_owned()),
        };
        let mut is_header = false;
        for argument in argv.iter().chain(args.iter().filter(|_| !argv.is_empty())) {
            // Programs that take headers expand variables in them, also if the agent does not.
            let has_header = is_header || argument.starts_with("--header=");
            let syntax = if has_header { self.syntax.with_braces() } else { self.syntax };
            is_header = ["--header", "-H"].contains(&argument.as_str());
            let argument = self.convert_with(syntax, argument)?;
            self.draft.argv.push(argument);
        }
        for key in ["env", "environment", "envs"] {
            for (name, value) in self.take_pairs("env", key) {
                let value = self.convert_references(&value)?;
                self.draft.env.insert(name, value);
            }
        }
        for name in self.take_first(&["env_vars"]).iter().filter_map(Json::as_array).flatten() {
            let name = name.as_str().or_else(|| name["name"].as_str());
            self.draft.env.extend(name.map(|name| (name.to_owned(), format!("${{env:{name}}}"))));
        }
        // Goose keeps the values of these variables in its own secret store.
        let env_keys = self.take_first(&["env_keys"]);
        for name in env_keys.iter().filter_map(Json::as_array).flatten().filter_map(Json::as_str) {
            let reference = self.names.variable_reference(self.server, name);
            self.note_secret(&format!("`{name}` of `env_keys`"), &reference);
            self.draft.env.insert(name.to_owned(), reference);
        }
        self.use_variables_in_header_arguments();
        if let Some(Json::String(cwd)) = self.take_first(&["cwd", "working_directory"]) {
            match self.convert_references(&cwd) {
                Ok(cwd) if !cwd.contains("${") && Path::new(&cwd).is_absolute() => self.draft.cwd = Some(cwd),
                _ => self.draft.notes.push(format!("`cwd` is omitted: `{cwd}` is not an absolute path")),
            }
        }
        Ok(())
    }

    fn read_address(&mut self) -> Result<(), String> {
        if let Some(Json::String(url)) = self.take_first(&["url", "uri", "serverUrl", "httpUrl"]) {
            if has_credentials(&url) {
                return Err(
                    "its URL contains a user name or password, which toolcrib does not send".to_owned()
                );
            }
            self.draft.url = Some(self.convert_references(&url)?);
        }
        let options = self.take_first(&["requestOptions"]).map(|mut options| options["headers"].take());
        let mut headers = self.read_pairs("headers", options);
        headers.extend(self.take_pairs("headers", "headers"));
        headers.extend(self.take_pairs("headers", "http_headers"));
        for (name, value) in headers {
            let value = self.convert_references(&value)?;
            self.draft.headers.insert(name, value);
        }
        if let Some(Json::String(name)) = self.take_first(&["bearer_token_env_var"]) {
            self.draft.headers.insert("Authorization".to_owned(), format!("Bearer ${{env:{name}}}"));
        }
        for (header, name) in self.take_pairs("headers", "env_http_headers") {
            self.draft.headers.insert(header, format!("${{env:{name}}}"));
        }
        if self.draft.url.is_some() && !self.draft.argv.is_empty() {
            return Err("it has both a command and a URL".to_owned());
        }
        Ok(())
    }

    fn read_options(&mut self, agent: Option<&Agent>) {
        let not_enabled = self.take_first(&["enabled"]) == Some(Json::Bool(false));
        let disabled = self.take_first(&["disabled"]) == Some(Json::Bool(true));
        self.draft.disabled = not_enabled || disabled;
        let unit = agent.and_then(|agent| agent.entry_format.timeout_key).map(|timeout| timeout.unit);
        if let Some(number) = self.take_first(&["timeout"]).and_then(|value| value.as_f64()) {
            let is_milliseconds = unit.map_or(number >= 1000.0, |unit| unit == TimeUnit::Milliseconds);
            self.draft.timeout = to_timeout(if is_milliseconds { number } else { number * 1000.0 });
        }
        if let Some(seconds) = self.take_first(&["tool_timeout_sec"]).and_then(|value| value.as_f64()) {
            self.draft.timeout = to_timeout(seconds * 1000.0);
        }
        if let Some(seconds) = self.take_first(&["startup_timeout_sec"]).and_then(|value| value.as_f64()) {
            self.draft.start_timeout = to_timeout(seconds * 1000.0);
        }
        let allow = ["includeTools", "enabled_tools", "available_tools"]
            .iter()
            .find_map(|key| self.take_tool_names(key));
        let tools = self
            .members
            .get("tools")
            .is_some_and(Json::is_array)
            .then(|| self.take_tool_names("tools"))
            .flatten();
        self.draft.allow =
            allow.or(tools).filter(|names| !names.is_empty() && !names.iter().any(|name| name == "*"));
        let deny = ["excludeTools", "disabled_tools", "disabledTools"]
            .iter()
            .find_map(|key| self.take_tool_names(key));
        self.draft.deny = deny.unwrap_or_default();
    }

    /// Takes a list of tool names. Several names in one string, a common mistake, are split at commas.
    fn take_tool_names(&mut self, key: &str) -> Option<Vec<String>> {
        let names = to_strings(self.take_first(&[key])?.as_array()?)?;
        if names.iter().any(|name| name.contains(',')) {
            self.draft
                .notes
                .push(format!("`{key}` had several names in one string; they were split at commas"));
        }
        let split = names.iter().flat_map(|name| name.split(',')).map(|name| name.trim().to_owned());
        Some(split.filter(|name| !name.is_empty()).collect())
    }
}

/// Returns whether a URL has a user name before its host.
fn has_credentials(url: &str) -> bool {
    let authority =
        url.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(rest));
    authority.contains('@')
}

/// Returns a timeout, unless it is too short or too long to be one.
fn to_timeout(milliseconds: f64) -> Option<Duration> {
    (100.0..=86_400_000.0).contains(&milliseconds).then(|| Duration::from_millis(milliseconds as u64))
}

fn to_strings(values: &[Json]) -> Option<Vec<String>> {
    values.iter().map(scalar_to_string).collect()
}

fn scalar_to_string(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(_) | Json::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
