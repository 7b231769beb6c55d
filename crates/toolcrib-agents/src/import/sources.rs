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

/// Keys of which a server entry has at least one.
const SERVER_KEYS: [&str; 7] = ["command", "cmd", "url", "uri", "serverUrl", "httpUrl", "transport"];

/// A file to import from.
#[derive(Clone)]
pub(super) struct ImportSource {
    pub(super) file: PathBuf,
    /// Agent that owns the file, if it is known.
    pub(super) agent: Option<&'static Agent>,
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
    let is_user_path = |path: &str| path.starts_with(['~', '$', 'X', 'A']);
    let extra = agent
        .extra_import_paths
        .iter()
        .filter(|path| is_user_path(path) == (scope == AgentFileScope::User))
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
    /// Reads the file and returns its server entries, by name.
    pub(super) fn entries(&self, paths: &AgentPaths) -> Result<Vec<(String, Json)>, Error> {
        let original = OriginalFile::read(&self.file)?;
        self.entries_in(original.text(), Some(&paths.project))
    }

    /// Returns the server entries in a text, by name: those of the user, and those of a project if there is one.
    pub(super) fn entries_in(
        &self,
        text: &str,
        project: Option<&Path>,
    ) -> Result<Vec<(String, Json)>, Error> {
        let document = self.parse(text).map_err(|error| {
            let position = error.position.map(|position| format!(":{position}")).unwrap_or_default();
            let message = format!("`{}`{position}: {}", self.file.display(), error.message);
            Error::new(AgentErrorKind::InvalidFile, message).with_hint("fix the file")
        })?;
        let mut entries = match self.agent {
            Some(agent) => get_path(&document, agent.servers_path).map(server_entries).unwrap_or_default(),
            None => find_server_entries(&document),
        };
        if self.agent.is_some_and(|agent| agent.servers_path == ["mcp"])
            && let Some(index) = entries.iter().position(|(name, _)| name == "servers")
        {
            let (_, nested) = entries.remove(index);
            entries.extend(server_entries(&nested));
        }
        if let Some(project) = project.filter(|_| self.agent.is_some_and(|agent| agent.id == "claude")) {
            let project = project.display().to_string();
            let project_entries = get_path(&document, &["projects", &project, "mcpServers"]);
            entries.extend(project_entries.map(server_entries).unwrap_or_default());
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
fn find_server_entries(document: &Json) -> Vec<(String, Json)> {
    let section = SERVER_SECTIONS
        .iter()
        .filter_map(|path| get_path(document, path))
        .map(server_entries)
        .find(|entries| !entries.is_empty());
    section.unwrap_or_else(|| server_entries(document))
}

/// Returns the members of an object, or of a list by their `name`, that can be servers.
fn server_entries(section: &Json) -> Vec<(String, Json)> {
    let named = |item: &Json| Some((item["name"].as_str()?.to_owned(), item.clone()));
    let all: Vec<(String, Json)> = match section {
        Json::Object(members) => members.iter().map(|(name, entry)| (name.clone(), entry.clone())).collect(),
        Json::Array(items) => items.iter().filter_map(named).collect(),
        _ => Vec::new(),
    };
    let is_server = |entry: &Json| {
        let members = entry.as_object();
        members.is_some_and(|members| {
            SERVER_KEYS.iter().any(|key| members.contains_key(*key)) || members.contains_key("type")
        })
    };
    let is_nested = |name: &str, entry: &Json| name == "servers" && entry.is_object();
    all.into_iter().filter(|(name, entry)| is_server(entry) || is_nested(name, entry)).collect()
}
