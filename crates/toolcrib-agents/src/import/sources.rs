//! Finds the files to import from and the server entries in them.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::agents::{self, Agent, AgentFileScope, AgentPaths};
use crate::edit::entry::{EditError, FileLanguage, get_path};
use crate::edit::file::{OriginalFile, is_same_file, list_dir, resolve_links};
use crate::edit::jsonc::JsonDialect;
use crate::error::{AgentErrorKind, Error};

/// Paths of keys under which programs keep their servers.
const SERVER_SECTIONS: [&[&str]; 8] = [
    &["mcpServers"],
    &["servers"],
    &["mcp", "servers"],
    &["mcp_servers"],
    &["context_servers"],
    &["extensions"],
    &["amp.mcpServers"],
    &["mcp"],
];

/// Keys of which a server entry in a file of an unknown program has at least one.
const SERVER_KEYS: [&str; 7] = ["command", "cmd", "url", "uri", "serverUrl", "httpUrl", "transport"];

/// A file to import from.
#[derive(Clone)]
pub(super) struct ImportSource {
    pub(super) file: PathBuf,
    /// Agent that owns the file, if it is known.
    pub(super) agent: Option<&'static Agent>,
}

/// A server entry in a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SourceEntry {
    pub(super) name: String,
    /// Keys that lead to the entry; `None` for an item of a list.
    pub(super) keys: Option<Vec<String>>,
    pub(super) value: Json,
}

/// Returns the existing files for the value of `--from`.
pub(super) fn find(
    from: &str,
    scope: AgentFileScope,
    paths: &AgentPaths,
) -> Result<Vec<ImportSource>, Error> {
    if from == "auto" {
        return Ok(without_duplicates(
            agents::all().flat_map(|agent| agent_sources(agent, scope, paths)).collect(),
        ));
    }
    let unknown_agent = match Agent::find(from) {
        Ok(agent) => return Ok(agent_sources(agent, scope, paths)),
        Err(error) => error,
    };
    let file = Path::new(from);
    if !file.exists() {
        let message = format!("`{from}` is neither an agent nor a file");
        return Err(unknown_agent.with_message(message));
    }
    let owner = agents::all().find(|agent| {
        let mut files = [AgentFileScope::User, AgentFileScope::Project]
            .into_iter()
            .flat_map(|scope| agent_sources(agent, scope, paths));
        files.any(|source| is_same_file(&source.file, file))
    });
    Ok(vec![ImportSource { file: file.to_owned(), agent: owner }])
}

/// Returns the existing files of an agent.
fn agent_sources(agent: &'static Agent, scope: AgentFileScope, paths: &AgentPaths) -> Vec<ImportSource> {
    let extra = agent
        .extra_import_paths
        .iter()
        .filter(|path| AgentPaths::is_user_path(path) == (scope == AgentFileScope::User))
        .filter_map(|path| paths.resolve(path));
    let files =
        agent.config_file(scope, paths).into_iter().chain(extra).flat_map(|path| match path.is_dir() {
            true => settings_files_in(&path),
            false => vec![path],
        });
    without_duplicates(
        files.filter(|file| file.exists()).map(|file| ImportSource { file, agent: Some(agent) }).collect(),
    )
}

fn settings_files_in(dir: &Path) -> Vec<PathBuf> {
    let is_config = |path: &PathBuf| {
        path.extension()
            .is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|other| extension == *other))
    };
    list_dir(dir).into_iter().filter(is_config).collect()
}

/// Keeps the first source of each file. Several agents read the same files.
fn without_duplicates(sources: Vec<ImportSource>) -> Vec<ImportSource> {
    let mut seen = Vec::new();
    let is_new = |source: &ImportSource| {
        let path = resolve_links(&source.file);
        let is_new = !seen.contains(&path);
        seen.push(path);
        is_new
    };
    sources.into_iter().filter(is_new).collect()
}

impl ImportSource {
    /// Reads the file and returns its server entries.
    pub(super) fn entries(&self, paths: &AgentPaths) -> Result<Vec<SourceEntry>, Error> {
        let original = OriginalFile::read(&self.file)?;
        self.entries_in(original.text(), Some(&paths.project))
    }

    /// Returns the server entries in a text: those of the user, and those of a project if there is one.
    pub(super) fn entries_in(&self, text: &str, project: Option<&Path>) -> Result<Vec<SourceEntry>, Error> {
        let document = self.parse(text).map_err(|error| {
            let position = error.position.map(|position| format!(":{position}")).unwrap_or_default();
            let message = format!("`{}`{position}: {}", self.file.display(), error.message);
            Error::new(AgentErrorKind::InvalidFile, message).with_hint("fix the file")
        })?;
        let Some(agent) = self.agent else { return Ok(find_server_entries(&document)) };
        let mut entries = named_objects(&document, agent.servers_path);
        if agent.servers_path == ["mcp"]
            && let Some(index) = entries.iter().position(|entry| entry.name == "servers")
        {
            entries.remove(index);
            entries.extend(named_objects(&document, &["mcp", "servers"]));
        }
        if let Some(project) = project.filter(|_| agent.id == "claude") {
            let project = project.display().to_string();
            entries.extend(named_objects(&document, &[super::PROJECTS_KEY, &project, "mcpServers"]));
        }
        Ok(entries)
    }

    /// Parses the text by the file's extension. JSON may have comments and trailing commas, even for strict agents.
    fn parse(&self, text: &str) -> Result<Json, EditError> {
        let language = match self.file.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => FileLanguage::Toml,
            Some("yaml" | "yml") => FileLanguage::Yaml,
            _ => FileLanguage::Json(JsonDialect::Relaxed),
        };
        language.parse(text)
    }
}

/// Returns the entries of the first known section that has any, else of the document itself.
fn find_server_entries(document: &Json) -> Vec<SourceEntry> {
    let section =
        SERVER_SECTIONS.iter().map(|path| server_entries(document, path)).find(|entries| !entries.is_empty());
    section.unwrap_or_else(|| server_entries(document, &[]))
}

/// Returns the objects of a section that can be servers. Other programs keep other things under the same keys.
fn server_entries(document: &Json, section: &[&str]) -> Vec<SourceEntry> {
    let has_key = |entry: &SourceEntry, key: &str| entry.value.get(key).is_some();
    let is_server =
        |entry: &SourceEntry| SERVER_KEYS.iter().any(|key| has_key(entry, key)) || has_key(entry, "type");
    named_objects(document, section).into_iter().filter(is_server).collect()
}

/// Returns the objects in an object, or in a list by their `name`.
fn named_objects(document: &Json, section: &[&str]) -> Vec<SourceEntry> {
    let member_keys =
        |name: &String| section.iter().map(|key| (*key).to_owned()).chain([name.clone()]).collect();
    let member = |(name, value): (&String, &Json)| SourceEntry {
        name: name.clone(),
        keys: Some(member_keys(name)),
        value: value.clone(),
    };
    let item = |value: &Json| {
        let name = value["name"].as_str()?.to_owned();
        Some(SourceEntry { name, keys: None, value: value.clone() })
    };
    let entries: Vec<SourceEntry> = match get_path(document, section) {
        Some(Json::Object(members)) => members.iter().map(member).collect(),
        Some(Json::Array(items)) => items.iter().filter_map(item).collect(),
        _ => Vec::new(),
    };
    entries.into_iter().filter(|entry| entry.value.is_object()).collect()
}
