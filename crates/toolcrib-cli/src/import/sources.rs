//! Where servers are imported from: agents' files by their paths, and any file by its shape.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::agents::{self, Agent, Ground, Scope};
use crate::edit::entry::{Language, Mistake, at};
use crate::edit::file::Original;
use crate::edit::jsonc::Manner;
use crate::failure::Failure;

/// The keys under which one program or another keeps servers.
const SHAPES: [&[&str]; 8] = [
    &["mcpServers"],
    &["servers"],
    &["mcp", "servers"],
    &["mcp_servers"],
    &["context_servers"],
    &["extensions"],
    &["amp.mcpServers"],
    &["mcp"],
];

/// Keys of which every server has one.
const TELLING: [&str; 7] = ["command", "cmd", "url", "uri", "serverUrl", "httpUrl", "transport"];

/// A file to import from.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) file: PathBuf,
    /// Whose it is, if it is a known one.
    pub(super) agent: Option<&'static Agent>,
}

/// The files behind `--from`, those that are there.
pub(super) fn find(from: &str, scope: Scope, ground: &Ground) -> Result<Vec<Source>, Failure> {
    if from == "auto" {
        return Ok(distinct(agents::all().flat_map(|agent| of(agent, scope, ground)).collect()));
    }
    let unknown = match Agent::find(from) {
        Ok(agent) => return Ok(of(agent, scope, ground)),
        Err(unknown) => unknown,
    };
    let file = Path::new(from);
    if !file.exists() {
        let message = format!("`{from}` is neither an agent nor a file");
        return Err(Failure { message, ..unknown });
    }
    let real = |path: &Path| path.canonicalize().ok();
    let owner = agents::all().find(|agent| {
        let mut files = [Scope::User, Scope::Project].into_iter().flat_map(|scope| of(agent, scope, ground));
        files.any(|source| real(&source.file) == real(file))
    });
    Ok(vec![Source { file: file.to_owned(), agent: owner }])
}

fn of(agent: &'static Agent, scope: Scope, ground: &Ground) -> Vec<Source> {
    let own = |path: &str| path.starts_with(['~', '$', 'X', 'A']);
    let also = agent
        .also
        .iter()
        .filter(|path| own(path) == (scope == Scope::User))
        .filter_map(|path| ground.path(path));
    let files = agent.file(scope, ground).into_iter().chain(also).flat_map(|path| match path.is_dir() {
        true => inside(&path),
        false => vec![path],
    });
    distinct(files.filter(|file| file.exists()).map(|file| Source { file, agent: Some(agent) }).collect())
}

fn inside(folder: &Path) -> Vec<PathBuf> {
    let settings = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|known| ending == *known))
    };
    let found = fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let mut files: Vec<PathBuf> = found.filter(settings).collect();
    files.sort();
    files
}

/// Several agents read the same file; it is imported once.
fn distinct(sources: Vec<Source>) -> Vec<Source> {
    let mut seen = Vec::new();
    let new = |source: &Source| {
        let real = source.file.canonicalize().unwrap_or_else(|_| source.file.clone());
        let new = !seen.contains(&real);
        seen.push(real);
        new
    };
    sources.into_iter().filter(new).collect()
}

impl Source {
    /// The servers in it, as they are written.
    pub(super) fn entries(&self, ground: &Ground) -> Result<Vec<(String, Json)>, Failure> {
        let original = Original::read(&self.file)?;
        let said = self.read(original.text()).map_err(|mistake| {
            let place = mistake.at.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
            let message = format!("`{}`{place}: {}", self.file.display(), mistake.message);
            Failure::new(crate::exit::Exit::BadConfig, "agent_file_invalid", message).hint("repair it first")
        })?;
        let mut entries = match self.agent {
            Some(agent) => at(&said, agent.at).map(members).unwrap_or_default(),
            None => shaped(&said),
        };
        if self.agent.is_some_and(|agent| agent.at == ["mcp"])
            && let Some(inner) = entries.iter().position(|(name, _)| name == "servers")
        {
            let (_, inner) = entries.remove(inner);
            entries.extend(members(&inner));
        }
        if self.agent.is_some_and(|agent| agent.id == "claude") {
            let project = ground.project.display().to_string();
            let own = at(&said, &["projects", &project, "mcpServers"]);
            entries.extend(own.map(members).unwrap_or_default());
        }
        Ok(entries)
    }

    /// By its ending, and JSON with everything that anybody takes.
    fn read(&self, text: &str) -> Result<Json, Mistake> {
        let language = match self.file.extension().and_then(|ending| ending.to_str()) {
            Some("toml") => Language::Toml,
            Some("yaml" | "yml") => Language::Yaml,
            _ => Language::Json(Manner::Relaxed),
        };
        language.read(text)
    }
}

fn shaped(said: &Json) -> Vec<(String, Json)> {
    let shape =
        SHAPES.iter().filter_map(|path| at(said, path)).map(members).find(|entries| !entries.is_empty());
    shape.unwrap_or_else(|| members(said))
}

/// By name, or in a list with their names inside; only what can be a server.
fn members(section: &Json) -> Vec<(String, Json)> {
    let named = |item: &Json| Some((item["name"].as_str()?.to_owned(), item.clone()));
    let all: Vec<(String, Json)> = match section {
        Json::Object(members) => members.iter().map(|(name, entry)| (name.clone(), entry.clone())).collect(),
        Json::Array(items) => items.iter().filter_map(named).collect(),
        _ => Vec::new(),
    };
    let telling = |entry: &Json| {
        let members = entry.as_object();
        members.is_some_and(|members| {
            TELLING.iter().any(|key| members.contains_key(*key)) || members.contains_key("type")
        })
    };
    let nested = |name: &str, entry: &Json| name == "servers" && entry.is_object();
    all.into_iter().filter(|(name, entry)| telling(entry) || nested(name, entry)).collect()
}
