//! `Draft`: a server as another program has it, in the words that all of them share. Keys of every program are known here,
//! whichever wrote the file: people copy entries from one to the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::references::{self, Ways};
use crate::agents::{Agent, Events, Unit};

/// Keys that say nothing that is to be kept.
const IDLE: [&str; 10] = [
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

/// A server as another program has it, references in our way.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Draft {
    /// The program and its arguments; empty for a server with an address.
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
    pub(super) url: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    /// `http` or `sse`, where it is said.
    pub(super) transport: Option<&'static str>,
    pub(super) off: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) allow: Option<Vec<String>>,
    pub(super) deny: Vec<String>,
    /// What was not taken over, and what was changed, one sentence each.
    pub(super) notes: Vec<String>,
}

/// Reads an entry; else says why it is no server that could be started here.
pub(super) fn read(agent: Option<&Agent>, entry: &Json) -> Result<Draft, String> {
    let mut members = entry.as_object().cloned().unwrap_or_default();
    if let Some(Json::Object(inner)) = members.remove("transport") {
        members.extend(inner);
    }
    let ways = agent.map_or(Ways::ANY, |agent| Ways::of(agent.words.references));
    let mut reader = Reader { members, ways, draft: Draft::default() };
    reader.transport(agent)?;
    reader.command()?;
    reader.address()?;
    reader.care(agent);
    let Reader { members, mut draft, .. } = reader;
    let left = members.keys().filter(|key| !IDLE.contains(&key.as_str()));
    draft.notes.extend(left.map(|key| format!("`{key}` is left out: toolcrib has no word for it")));
    if draft.argv.is_empty() && draft.url.is_none() {
        return Err("it has neither a command nor an address".to_owned());
    }
    Ok(draft)
}

struct Reader {
    members: Map<String, Json>,
    ways: Ways,
    draft: Draft,
}

impl Reader {
    fn take(&mut self, keys: &[&str]) -> Option<Json> {
        keys.iter().find_map(|key| self.members.remove(*key))
    }

    fn text(&self, value: &str) -> Result<String, String> {
        references::ours(self.ways, value)
            .map_err(|unknown| format!("it refers to `{unknown}`, which has no meaning here"))
    }

    fn transport(&mut self, agent: Option<&Agent>) -> Result<(), String> {
        let written =
            self.members.get("type").or_else(|| self.members.get("transport")).and_then(Json::as_str);
        let flat = agent.is_some_and(|agent| agent.id == "cline") && self.members.contains_key("url");
        self.draft.transport = match written {
            Some("http" | "streamable-http" | "streamable_http" | "streamableHttp") => Some("http"),
            Some("sse") => Some("sse"),
            Some("stdio" | "local" | "remote") => None,
            Some(other) => return Err(format!("a server of type `{other}` cannot be started here")),
            None if flat => Some("sse"),
            None if self.members.contains_key("httpUrl") => Some("http"),
            None => None,
        };
        // opencode finds out by itself, as we do.
        if agent.is_some_and(|agent| agent.words.remote.is_some_and(|remote| remote.events == Events::Found))
        {
            self.draft.transport = None;
        }
        Ok(())
    }

    fn command(&mut self) -> Result<(), String> {
        let argv = match self.take(&["command", "cmd"]) {
            None => Vec::new(),
            Some(Json::String(program)) => vec![program],
            Some(Json::Array(argv)) => strings(&argv).ok_or("its `command` is not a list of strings")?,
            Some(_) => return Err("its `command` is no string".to_owned()),
        };
        let args = match self.take(&["args"]) {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Array(args)) => strings(&args).ok_or("its `args` are not a list of strings")?,
            Some(_) => return Err("its `args` are not a list".to_owned()),
        };
        for word in argv.iter().chain(args.iter().filter(|_| !argv.is_empty())) {
            let word = self.text(word)?;
            self.draft.argv.push(word);
        }
        for key in ["env", "environment", "envs"] {
            for (name, value) in pairs(self.take(&[key])) {
                let value = self.text(&value)?;
                self.draft.env.insert(name, value);
            }
        }
        for passed in ["env_vars", "env_keys"] {
            for name in self.take(&[passed]).iter().filter_map(Json::as_array).flatten() {
                let name = name.as_str().or_else(|| name["name"].as_str());
                self.draft.env.extend(name.map(|name| (name.to_owned(), format!("${{env:{name}}}"))));
            }
        }
        if let Some(Json::String(cwd)) = self.take(&["cwd", "working_directory"]) {
            match self.text(&cwd) {
                Ok(cwd) if !cwd.contains("${") && Path::new(&cwd).is_absolute() => self.draft.cwd = Some(cwd),
                _ => self.draft.notes.push(format!("`cwd` is left out: `{cwd}` means something else here")),
            }
        }
        Ok(())
    }

    fn address(&mut self) -> Result<(), String> {
        if let Some(Json::String(url)) = self.take(&["url", "uri", "serverUrl", "httpUrl"]) {
            self.draft.url = Some(self.text(&url)?);
        }
        let options = self.take(&["requestOptions"]).map(|mut options| options["headers"].take());
        for headers in [options, self.take(&["headers"]), self.take(&["http_headers"])] {
            for (name, value) in pairs(headers) {
                let value = self.text(&value)?;
                self.draft.headers.insert(name, value);
            }
        }
        if let Some(Json::String(name)) = self.take(&["bearer_token_env_var"]) {
            self.draft.headers.insert("Authorization".to_owned(), format!("Bearer ${{env:{name}}}"));
        }
        for (header, name) in pairs(self.take(&["env_http_headers"])) {
            self.draft.headers.insert(header, format!("${{env:{name}}}"));
        }
        if self.draft.url.is_some() && !self.draft.argv.is_empty() {
            return Err("it has both a command and an address".to_owned());
        }
        Ok(())
    }

    fn care(&mut self, agent: Option<&Agent>) {
        let off = [
            self.take(&["enabled"]) == Some(Json::Bool(false)),
            self.take(&["disabled"]) == Some(Json::Bool(true)),
        ];
        self.draft.off = off.contains(&true);
        let unit = agent.and_then(|agent| agent.words.timeout).map(|(_, unit)| unit);
        if let Some(number) = self.take(&["timeout"]).and_then(|value| value.as_f64()) {
            let milliseconds = unit.map_or(number >= 1000.0, |unit| unit == Unit::Milliseconds);
            self.draft.timeout = time(if milliseconds { number } else { number * 1000.0 });
        }
        if let Some(seconds) = self.take(&["tool_timeout_sec"]).and_then(|value| value.as_f64()) {
            self.draft.timeout = time(seconds * 1000.0);
        }
        let allow =
            ["includeTools", "enabled_tools", "available_tools"].iter().find_map(|key| self.names(key));
        let listed =
            self.members.get("tools").is_some_and(Json::is_array).then(|| self.names("tools")).flatten();
        self.draft.allow =
            allow.or(listed).filter(|names| !names.is_empty() && !names.iter().any(|name| name == "*"));
        let deny = ["excludeTools", "disabled_tools", "disabledTools"].iter().find_map(|key| self.names(key));
        self.draft.deny = deny.unwrap_or_default();
    }

    /// Names of tools; commas inside one are a well-known mistake of a well-known program.
    fn names(&mut self, key: &str) -> Option<Vec<String>> {
        let names = strings(self.take(&[key])?.as_array()?)?;
        if names.iter().any(|name| name.contains(',')) {
            self.draft.notes.push(format!(
                "`{key}` had names with commas between them in one string; they are apart now"
            ));
        }
        let apart = names.iter().flat_map(|name| name.split(',')).map(|name| name.trim().to_owned());
        Some(apart.filter(|name| !name.is_empty()).collect())
    }
}

fn time(milliseconds: f64) -> Option<Duration> {
    // A limit below this was meant for something else, or not at all.
    (100.0..=86_400_000.0).contains(&milliseconds).then(|| Duration::from_millis(milliseconds as u64))
}

fn strings(values: &[Json]) -> Option<Vec<String>> {
    values.iter().map(scalar).collect()
}

fn pairs(value: Option<Json>) -> Vec<(String, String)> {
    let members = value.and_then(|value| value.as_object().cloned()).unwrap_or_default();
    members.into_iter().filter_map(|(name, value)| Some((name, scalar(&value)?))).collect()
}

fn scalar(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(_) | Json::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
