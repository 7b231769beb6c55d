//! Imports servers from agents' config files into the text of toolcrib's config and reports what happened to each entry.
//! Writes no files.

mod draft;
mod extract_secrets;
mod mcp_remote;
mod references;
mod sources;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value as Json, json};
use toolcrib::config::{Config, ProblemScope};
use toolcrib::util::maps::collect_map;
use toolcrib::{CommandSpec, Endpoint, HttpSpec, Roster, Secret, ServerId, ServerSpec, TemplateText};

use self::draft::ImportDraft;
use self::extract_secrets::SecretNames;
pub use self::extract_secrets::{DeclaredPairs, SecretExtraction, StoredSecrets};
use self::sources::{ImportSource, SourceEntry};
use crate::agents::{Agent, AgentFileScope, AgentPaths};
use crate::edit::entry::{EntryMembers, FileLanguage};
use crate::edit::file::is_same_file;
use crate::edit::toml::TomlFile;
use crate::error::Error;
use crate::export;

/// Key of the entries that an agent uses in one project only, below the folder of the project.
const PROJECTS_KEY: &str = "projects";

/// Longest name of a server.
const MAX_NAME_LENGTH: usize = 32;

/// Number of servers that can have the same name in other programs.
const MAX_SAME_NAMES: usize = 1000;

/// Outcome of importing one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportVerdict {
    /// The entry is now a server with this name.
    Imported(String),
    /// The entry was not imported, for this reason.
    Skipped(String),
    /// The config already has the same server under this name.
    Duplicate(String),
}

impl ImportVerdict {
    /// Returns the stable name of the outcome.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Imported(_) => "imported",
            Self::Skipped(_) => "skipped",
            Self::Duplicate(_) => "duplicate",
        }
    }
}

/// An entry of another program and its outcome.
#[derive(Debug, Clone)]
pub struct ImportedEntry {
    /// Name in the file; empty if the whole file could not be read.
    pub name: String,
    /// File that has the entry.
    pub file: PathBuf,
    /// Agent that owns the file, if it is known.
    pub agent: Option<&'static str>,
    /// Outcome for the entry.
    pub verdict: ImportVerdict,
    /// Settings that were changed or omitted.
    pub notes: Vec<String>,
    /// Keys that lead to the entry in its file; `None` for an item of a list.
    pub keys: Option<Vec<String>>,
    /// True if the agent does not use the entry.
    pub disabled: bool,
    /// True if the entry starts or connects to toolcrib itself.
    pub is_gateway: bool,
    /// The tools that the agent may use of the server.
    pub tools: ToolLists,
}

/// The agent's own lists of the tools of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolLists {
    /// The only tools that it may use; all of them if absent.
    pub allow: Option<Vec<String>>,
    /// Tools that it may not use.
    pub deny: Vec<String>,
}

impl ImportedEntry {
    fn new(source: &ImportSource, name: String, keys: Option<Vec<String>>) -> Self {
        Self {
            name,
            file: source.file.clone(),
            agent: source.agent.map(|agent| agent.id),
            verdict: ImportVerdict::Skipped(String::new()),
            notes: Vec::new(),
            keys,
            disabled: false,
            is_gateway: false,
            tools: ToolLists::default(),
        }
    }

    /// Returns whether the entry has a name, in its file or as a server.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || to_server_id(&self.name).is_some_and(|id| id.as_str() == name)
    }

    /// Returns the folder of the project that alone has the entry, if its file has entries of several projects.
    pub fn project(&self) -> Option<&str> {
        match self.keys.as_deref() {
            Some([section, project, ..]) if section == PROJECTS_KEY => Some(project),
            _ => None,
        }
    }

    /// Returns the name of the server in the config, if the entry is one.
    pub fn server(&self) -> Option<&str> {
        match &self.verdict {
            ImportVerdict::Imported(name) | ImportVerdict::Duplicate(name) => Some(name),
            ImportVerdict::Skipped(_) => None,
        }
    }

    /// Returns whether an agent that uses the config does not need the entry, because the config has the same server. A
    /// server that is disabled only in the config does not replace an entry.
    pub fn is_replaced_by(&self, config: &Config) -> bool {
        let server = self.server().and_then(|name| config.roster.get(&name.parse().ok()?));
        server.is_some_and(|server| server.enabled || self.disabled)
    }
}

/// A config text with the imported servers, and a report.
#[derive(Debug)]
pub struct Import {
    /// The new text of the config.
    pub config_text: String,
    /// Every entry that was found, in the order of the files.
    pub entries: Vec<ImportedEntry>,
    /// Secrets to store before the config is used, by name.
    pub secrets: Vec<(String, Secret)>,
}

/// Input of [`import`].
#[derive(Debug, Clone, Copy)]
pub struct ImportRequest<'a> {
    /// `auto` for all agents, the name of an agent, or the path of a file.
    pub from: &'a str,
    /// Files of the agents to read.
    pub scope: AgentFileScope,
    /// Directories of the current user and project.
    pub paths: &'a AgentPaths,
    /// Path of the config, which is not imported into itself.
    pub config_path: &'a Path,
    /// Current text of the config.
    pub config_text: &'a str,
    /// Handling of secrets.
    pub secrets: SecretExtraction<'a>,
    /// Entries that stay where they are.
    pub left_out: LeftOut<'a>,
}

/// Entries that an import leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeftOut<'a> {
    /// Agents whose files are not read, by their names.
    pub agents: &'a [&'a str],
    /// Names of entries, as they are in the file or as servers would be called.
    pub servers: &'a [String],
    /// True if entries stay that an agent uses in one project only.
    pub project_entries: bool,
}

/// An import in progress.
struct Importer<'a> {
    config_path: &'a Path,
    config_text: String,
    secrets: Vec<(String, Secret)>,
    secret_names: SecretNames<'a>,
    /// Imported servers that no agent uses so far.
    disabled: BTreeSet<String>,
    left_out: LeftOut<'a>,
}

/// Imports servers from the text of an agent's file into a config text. Neither reads nor writes files.
///
/// The extension of `file` decides the language: TOML, YAML or JSON, which may have comments. Reports name the file, which
/// need not exist. Without an `agent`, the servers are taken from the first section that any program keeps them in.
///
/// ```
/// use std::path::Path;
/// use toolcrib_agents::import::{ImportVerdict, SecretExtraction, import_text};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = r#"{"mcpServers": {"Git": {"command": "uvx", "args": ["mcp-server-git"]}}}"#;
/// let imported = import_text(text, Path::new("mcp.json"), None, "# mine\n", SecretExtraction::Keep)?;
/// assert_eq!(imported.entries[0].verdict, ImportVerdict::Imported("git".to_owned()));
/// assert!(imported.config_text.starts_with("# mine\n"));
/// let config = toolcrib::Config::parse(Path::new("config.toml"), &imported.config_text);
/// assert!(config.roster.get(&"git".parse()?).is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Fails if the text is invalid.
pub fn import_text(
    text: &str,
    file: &Path,
    agent: Option<&'static Agent>,
    config_text: &str,
    secrets: SecretExtraction<'_>,
) -> Result<Import, Error> {
    let mut importer = Importer::new(Path::new("config.toml"), config_text, SecretNames::new(secrets));
    let source = ImportSource { file: file.to_owned(), agent };
    // Instructions often show a member such as `"mcpServers": {…}` without the braces of the file around it.
    let is_member = text.trim_start().starts_with('"');
    let text = if is_member { Cow::Owned(format!("{{{text}}}")) } else { Cow::Borrowed(text) };
    let entries = importer.import_entries(&source, source.entries_in(&text, None)?);
    Ok(Import { config_text: importer.config_text, entries, secrets: importer.secrets })
}

/// Imports servers from agents or a file into a config text. Reads the agents' files and writes none.
///
/// # Errors
///
/// Fails if `from` is neither an agent nor a file, or if the file is invalid. With `auto`, invalid files are skipped.
pub fn import(request: &ImportRequest<'_>) -> Result<Import, Error> {
    let secret_names = SecretNames::new(request.secrets).with_variables(request.paths);
    let importer = Importer::new(request.config_path, request.config_text, secret_names);
    let mut importer = Importer { left_out: request.left_out, ..importer };
    let mut imported = Vec::new();
    let sources = sources::find(request.from, request.scope, request.paths)?;
    let is_own_config = |source: &ImportSource| is_same_file(&source.file, request.config_path);
    let is_left_out =
        |source: &ImportSource| source.agent.is_some_and(|agent| request.left_out.agents.contains(&agent.id));
    for source in sources.into_iter().filter(|source| !is_own_config(source) && !is_left_out(source)) {
        let entries = match source.entries(request.paths) {
            Ok(entries) => entries,
            Err(error) if request.from == "auto" => {
                let verdict = ImportVerdict::Skipped(error.to_string());
                imported.push(ImportedEntry { verdict, ..ImportedEntry::new(&source, String::new(), None) });
                continue;
            }
            Err(error) => return Err(error),
        };
        imported.extend(importer.import_entries(&source, entries));
    }
    Ok(Import { config_text: importer.config_text, entries: imported, secrets: importer.secrets })
}

/// Finds the entries of agents that are servers of the config. The others are left out. Reads the agents' files and writes
/// none.
///
/// # Errors
///
/// Fails like [`import`].
pub fn find_originals(request: &ImportRequest<'_>) -> Result<Vec<ImportedEntry>, Error> {
    let config = Config::parse(request.config_path, request.config_text);
    let mut originals: Vec<ImportedEntry> = Vec::new();
    // The config may have the secrets of an entry in the store or as they are.
    for secrets in [request.secrets, SecretExtraction::Keep] {
        let import = import(&ImportRequest { secrets, ..*request })?;
        for entry in import.entries.into_iter().filter(|entry| entry.is_replaced_by(&config)) {
            let is_known = |other: &ImportedEntry| other.file == entry.file && other.keys == entry.keys;
            if !originals.iter().any(is_known) {
                originals.push(entry);
            }
        }
    }
    Ok(originals)
}

impl<'a> Importer<'a> {
    fn new(config_path: &'a Path, config_text: &str, secret_names: SecretNames<'a>) -> Self {
        Self {
            config_path,
            config_text: config_text.to_owned(),
            secrets: Vec::new(),
            secret_names,
            disabled: BTreeSet::new(),
            left_out: LeftOut::default(),
        }
    }

    /// Imports the entries of one file.
    fn import_entries(&mut self, source: &ImportSource, entries: Vec<SourceEntry>) -> Vec<ImportedEntry> {
        let mut imported = Vec::new();
        for SourceEntry { name, keys, value } in entries {
            let mut entry = ImportedEntry::new(source, name, keys);
            if let Err(reason) = self.import_entry(source.agent, &value, &mut entry) {
                entry.verdict = ImportVerdict::Skipped(reason);
            }
            imported.push(entry);
        }
        imported
    }

    /// Imports an entry and completes its report. The error says why it is skipped.
    fn import_entry(
        &mut self,
        agent: Option<&'static Agent>,
        value: &Json,
        report: &mut ImportedEntry,
    ) -> Result<(), String> {
        report.is_gateway = export::is_toolcrib_entry(value) || is_gateway_url(value);
        if report.is_gateway {
            return Err("it starts or connects to toolcrib itself".to_owned());
        }
        let Some(id) = to_server_id(&report.name) else {
            return Err("its name has no characters that are valid in a server name".to_owned());
        };
        if self.left_out.servers.iter().any(|name| report.is_called(name)) {
            return Err("it is left out".to_owned());
        }
        if let Some(project) = report.project().filter(|_| self.left_out.project_entries) {
            return Err(format!(
                "only the project `{project}` has it; `toolcrib import` offers it everywhere"
            ));
        }
        let mut draft = draft::read_entry(agent, id.as_str(), value, &self.secret_names)?;
        let may_need_login = mcp_remote::unwrap_bridge(&mut draft);
        report.disabled = draft.disabled;
        report.tools = ToolLists { allow: draft.allow.clone(), deny: draft.deny.clone() };
        if let Some(project) = report.project() {
            draft.notes.push(format!("only the project `{project}` had it; now it is offered everywhere"));
        }
        let extracted = extract_secrets::extract_secrets(&mut draft, id.as_str(), &mut self.secret_names);
        let existing = Config::parse(self.config_path, &self.config_text).roster;
        // Agents resolve relative commands against directories that are not known here.
        if draft.argv.first().is_some_and(|program| program.contains('/') && !program.starts_with('/')) {
            return Err("its command is a relative path".to_owned());
        }
        report.verdict = self.add_server(&existing, &id, agent, &draft)?;
        match &report.verdict {
            ImportVerdict::Imported(new_name) => {
                self.secrets.extend(extracted);
                if draft.disabled {
                    self.disabled.insert(new_name.clone());
                }
                if *new_name != id.as_str() {
                    let note = format!("renamed to `{new_name}`: the config has a different server `{id}`");
                    draft.notes.insert(0, note);
                } else if *new_name != report.name {
                    draft.notes.insert(0, format!("renamed to `{new_name}`"));
                }
                if may_need_login {
                    draft.notes.push(format!("if the server requires a login: `toolcrib login {new_name}`"));
                }
                report.notes = draft.notes;
            }
            ImportVerdict::Duplicate(server) => report.notes = self.merge_duplicate(server, &draft)?,
            ImportVerdict::Skipped(_) => {}
        }
        Ok(())
    }

    /// Enables a server that was imported as disabled if this entry of it is enabled. Returns what differs otherwise.
    fn merge_duplicate(&mut self, server: &str, draft: &ImportDraft) -> Result<Vec<String>, String> {
        let mut file = TomlFile::parse(&self.config_text).map_err(|error| error.to_string())?;
        if !draft.disabled && self.disabled.remove(server) {
            file.remove(&["servers", server, "enabled"]);
            self.config_text = file.render();
        }
        let tools = file.get(&["servers", server, "tools"]);
        let is_limited = draft.allow.is_some() || !draft.deny.is_empty();
        Ok(match is_limited && tools != tool_rules(draft) {
            true => vec![format!("its own list of tools is not applied; see `servers.{server}.tools`")],
            false => Vec::new(),
        })
    }

    /// Adds a server to the config text, unless the config would be invalid or already has it. A server whose name is
    /// taken by a different one gets another name.
    fn add_server(
        &mut self,
        existing: &Roster,
        id: &ServerId,
        agent: Option<&Agent>,
        draft: &ImportDraft,
    ) -> Result<ImportVerdict, String> {
        let with_agent = agent.and_then(|agent| to_server_id(&format!("{id}-{}", agent.id)));
        let numbered = (2..MAX_SAME_NAMES).filter_map(|number| with_suffix(id, &format!("-{number}")));
        let is_unused = |id: &ServerId| !existing.servers().any(|spec| spec.id.folded() == id.folded());
        let file = TomlFile::parse(&self.config_text).map_err(|error| error.to_string())?;
        let is_declared = |id: &ServerId| file.contains(&["servers", id.as_str()]);
        let mut candidates = [Some(id.clone()), with_agent].into_iter().flatten().chain(numbered);
        let name = candidates.find(|id| is_unused(id) && !is_declared(id));
        // Parsed under a placeholder name first, because only a parsed server can be compared with the others.
        let placeholder: ServerId = "import-trial".parse().map_err(|_| "invalid server name".to_owned())?;
        let spec = self.parse_with_server(&placeholder, draft)?.1;
        if let Some(same) = existing.servers().find(|other| self.is_same_endpoint(other, &spec)) {
            return Ok(ImportVerdict::Duplicate(same.id.to_string()));
        }
        let Some(name) = name else { return Err(format!("the config has a different server `{id}`")) };
        self.config_text = self.parse_with_server(&name, draft)?.0;
        Ok(ImportVerdict::Imported(name.to_string()))
    }

    /// Returns whether two servers have the same command, arguments, environment and folder, or the same URL and headers.
    /// References to secrets of this import are compared by their values.
    fn is_same_endpoint(&self, first: &ServerSpec, second: &ServerSpec) -> bool {
        let text = |text: &TemplateText| self.secret_names.resolve(text);
        let texts = |all: &[TemplateText]| all.iter().map(text).collect::<Vec<_>>();
        let values = |all: &BTreeMap<String, TemplateText>| -> BTreeMap<String, String> {
            collect_map(all.iter().map(|(name, value)| (name.clone(), text(value))))
        };
        match (&first.endpoint, &second.endpoint) {
            (Endpoint::Command(first), Endpoint::Command(second)) => {
                let identity = |command: &CommandSpec| {
                    (text(&command.program), texts(&command.args), values(&command.env), command.cwd.clone())
                };
                identity(first) == identity(second)
            }
            (Endpoint::Http(first), Endpoint::Http(second)) => {
                let identity = |http: &HttpSpec| (text(&http.url), header_values(values(&http.headers)));
                identity(first) == identity(second)
            }
            _ => false,
        }
    }

    /// Returns the config text with a server added, and that server as the config parser sees it.
    fn parse_with_server(&self, id: &ServerId, draft: &ImportDraft) -> Result<(String, ServerSpec), String> {
        let edited = FileLanguage::Toml.set_entry(
            &self.config_text,
            &["servers", id.as_str()],
            &config_members(draft),
        );
        let text = edited.map_err(|error| error.to_string())?;
        let config = Config::parse(self.config_path, &text);
        let is_about_server =
            |scope: &ProblemScope| matches!(scope, ProblemScope::Server(name) if name == id.as_str());
        if let Some(problem) = config.problems.iter().find(|problem| is_about_server(&problem.scope)) {
            return Err(problem.message.clone());
        }
        let spec = config.roster.get(id).cloned().ok_or("it is not valid in the config")?;
        Ok((text, spec))
    }
}

/// Returns the members of a `[servers.NAME]` table.
fn config_members(draft: &ImportDraft) -> EntryMembers {
    let mut members: EntryMembers = Vec::new();
    let mut set = |key: &str, value: Json| members.push((key.to_owned(), value));
    if let Some((program, args)) = draft.argv.split_first() {
        set("command", program.as_str().into());
        if !args.is_empty() {
            set("args", args.into());
        }
        if !draft.env.is_empty() {
            set("env", json!(draft.env));
        }
        if let Some(cwd) = &draft.cwd {
            set("cwd", cwd.as_str().into());
        }
    }
    if let Some(url) = &draft.url {
        set("url", url.as_str().into());
        if let Some(transport) = draft.transport {
            set("type", transport.into());
        }
        if !draft.headers.is_empty() {
            set("headers", json!(draft.headers));
        }
    }
    if draft.disabled {
        set("enabled", false.into());
    }
    if let Some(timeout) = draft.start_timeout {
        set("lifecycle", json!({"start-timeout": format_timeout(timeout)}));
    }
    if let Some(timeout) = draft.timeout {
        set("limits", json!({"call-timeout": format_timeout(timeout)}));
    }
    if let Some(tools) = tool_rules(draft) {
        set("tools", tools);
    }
    members
}

/// Returns the `tools` table of a server, if it has one.
fn tool_rules(draft: &ImportDraft) -> Option<Json> {
    let mut tools = serde_json::Map::new();
    tools.extend(draft.allow.as_ref().map(|allow| ("allow".to_owned(), json!(allow))));
    if !draft.deny.is_empty() {
        tools.insert("deny".to_owned(), json!(draft.deny));
    }
    (!tools.is_empty()).then_some(Json::Object(tools))
}

fn format_timeout(timeout: Duration) -> String {
    match timeout.subsec_millis() {
        0 => format!("{}s", timeout.as_secs()),
        _ => format!("{}ms", timeout.as_millis()),
    }
}

/// Returns headers by their names in lower case.
fn header_values(headers: BTreeMap<String, String>) -> BTreeMap<String, String> {
    collect_map(headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)))
}

/// Returns a server id with a suffix, shortened if necessary.
fn with_suffix(id: &ServerId, suffix: &str) -> Option<ServerId> {
    let length = id.as_str().len().min(MAX_NAME_LENGTH - suffix.len());
    let base = id.as_str()[..length].trim_end_matches(['-', '_']);
    format!("{base}{suffix}").parse().ok()
}

/// Returns whether an entry's URL is the default address of a local gateway.
fn is_gateway_url(entry: &Json) -> bool {
    let urls = ["url", "uri", "serverUrl", "httpUrl"].iter().filter_map(|key| entry[*key].as_str());
    let is_local_gateway = |url: &str| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
            let rest = url.strip_prefix("http://").and_then(|rest| rest.strip_prefix(host));
            rest.is_some_and(|rest| rest == ":7717/mcp" || rest.starts_with(":7717/mcp/"))
        })
    };
    urls.into_iter().any(is_local_gateway)
}

/// Converts a name to a valid server id.
fn to_server_id(name: &str) -> Option<ServerId> {
    let is_valid =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_';
    let mut name: String = name
        .to_lowercase()
        .chars()
        .map(|character| if is_valid(character) { character } else { '-' })
        .collect();
    while name.contains("__") {
        name = name.replace("__", "_");
    }
    let name = name.trim_matches(['-', '_']);
    name[..name.len().min(MAX_NAME_LENGTH)].trim_end_matches(['-', '_']).parse().ok()
}
