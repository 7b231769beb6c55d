//! Writes servers into an agent's config file: plans the change, shows a diff, writes it and undoes it. Only entries that
//! toolcrib wrote are changed, and nothing is written that the agent could not read.

pub mod gateway;
mod kept_edits;
mod masked_diff;
pub mod render;
#[cfg(test)]
mod tests;
mod undo;
mod undo_log;
mod validate;

use std::path::Path;

use serde_json::Value as Json;
use toolcrib::util::maps::collect_map;
use toolcrib::{Rules, ServerSpec};

use self::gateway::ENTRY_NAME;
use self::kept_edits::WrittenEntry;
use self::masked_diff::FileDiff;
use self::render::RenderedEntry;
pub use self::undo::{ChangedEntries, ExportedText, UndoResult, UndoneExport, forget_undone, undo};
use self::undo_log::{FileExport, UndoLog};
use self::validate::EntryOwner;
use crate::agents::{Agent, AgentFileScope, AgentPaths, ServersLayout};
use crate::edit::entry::{EditError, EntryMembers, FileLanguage, get_path};
use crate::edit::file::{OriginalFile, is_broken_link, resolve_existing_part, resolve_links};
use crate::edit::jsonc::JsonDialect;
use crate::edit::yaml;
use crate::error::{AgentErrorKind, Error};

/// Programs that run a package of npm or Python.
const PACKAGE_RUNNERS: [&str; 4] = ["npx", "bunx", "uvx", "pipx"];

/// A server to export, with its tool rules.
#[derive(Debug, Clone, Copy)]
pub struct ExportedServer<'a> {
    spec: &'a ServerSpec,
    rules: Option<&'a Rules>,
}

impl<'a> ExportedServer<'a> {
    /// Creates a server from its spec and rules.
    pub fn new(spec: &'a ServerSpec, rules: Option<&'a Rules>) -> Self {
        Self { spec, rules }
    }
}

/// A planned change of one file.
#[derive(Debug)]
pub struct ExportPlan {
    original: OriginalFile,
    language: FileLanguage,
    text: String,
    /// Names of the entries that toolcrib owns after the change.
    names: Vec<String>,
    /// Keys of the entries of others that the change removes.
    removed: Vec<Vec<String>>,
    /// Entries that are not written, because others have their names.
    blocked: Vec<(String, EntryMembers)>,
    /// Members of the entry of toolcrib, without what it keeps of a person.
    chosen: Option<Json>,
    /// Settings that the agent cannot express.
    pub warnings: Vec<String>,
    undo_log: UndoLog,
}

/// Plans the change of an agent's file. Writes nothing. `state_dir` has the records of earlier exports.
///
/// # Errors
///
/// Fails if the file is invalid, if the agent would reject the new text, or if writing the file would do harm.
pub fn plan(
    agent: &Agent,
    scope: AgentFileScope,
    paths: &AgentPaths,
    state_dir: &Path,
    servers: &[ExportedServer<'_>],
) -> Result<ExportPlan, Error> {
    let original = open_original(agent, scope, paths)?;
    let undo_log = UndoLog::for_file(state_dir, original.path());
    let text = original.text().to_owned();
    let mut plan = ExportPlan::new(agent, original, text, undo_log);
    let mut entries = Vec::new();
    for server in servers {
        let RenderedEntry { members, warnings } = render::render_entry(agent, server.spec, server.rules);
        plan.warnings.extend(warnings);
        entries.extend(members.map(|members| (server.spec.id.to_string(), members)));
    }
    match agent.layout {
        ServersLayout::ByName => {
            plan.set_entries(agent, entries)
                .map_err(|error| invalid_file_error(agent, plan.file(), &error))?;
        }
        ServersLayout::OwnListFile => plan.set_own_list(agent, entries),
    }
    plan.validate_result(agent)?;
    Ok(plan)
}

/// Opens the file to change. Fails where writing it would do harm.
fn open_original(agent: &Agent, scope: AgentFileScope, paths: &AgentPaths) -> Result<OriginalFile, Error> {
    let Some(file) = agent.config_file(scope, paths) else {
        let message = format!("{} has no project config file", agent.name);
        let hint = format!("toolcrib export {}", agent.id);
        return Err(Error::new(AgentErrorKind::InvalidRequest, message).with_hint(hint));
    };
    if is_broken_link(&file) {
        let message = format!("`{}` is a broken symbolic link", file.display());
        return Err(Error::new(AgentErrorKind::CannotEdit, message));
    }
    let original = OriginalFile::read(&file)?;
    let real_path = resolve_existing_part(&file);
    if scope == AgentFileScope::Project && !real_path.starts_with(resolve_links(&paths.project)) {
        let message =
            format!("`{}` resolves to `{}`, outside the project", file.display(), real_path.display());
        return Err(Error::new(AgentErrorKind::OutsideProject, message));
    }
    // Copilot CLI reads `.github/mcp.json` only if there is no `.mcp.json`.
    let shared = paths.project.join(".mcp.json");
    let hidden = paths.project.join(".github/mcp.json");
    if scope == AgentFileScope::Project && !original.exists() && file == shared && hidden.exists() {
        let message = format!("a new `.mcp.json` would hide `{}` from Copilot CLI", hidden.display());
        return Err(Error::new(AgentErrorKind::WouldHideFile, message)
            .with_hint("move that file to `.mcp.json` first"));
    }
    Ok(original)
}

fn invalid_file_error(agent: &Agent, file: &Path, error: &EditError) -> Error {
    let position = error.position.map(|position| format!(":{position}")).unwrap_or_default();
    let message = format!("`{}`{position}: {}; nothing was changed", file.display(), error.message);
    let hint = match agent.language {
        FileLanguage::Json(JsonDialect::Strict) => {
            format!("fix the file; {} accepts neither comments nor trailing commas", agent.name)
        }
        _ => "fix the file".to_owned(),
    };
    Error::new(AgentErrorKind::InvalidFile, message).with_hint(hint)
}

fn rejected_entry_error(agent: &Agent, file: &Path, name: &str, owner: EntryOwner, reason: &str) -> Error {
    let file = file.display();
    let entry = agent.entry_path(name).join(".");
    let agent_name = agent.name;
    let schema = agent.schema.published_at.map(|schema| format!(" (see {schema})")).unwrap_or_default();
    let message =
        format!("`{file}`: {agent_name} would reject `{entry}`: {reason}{schema}; nothing was changed");
    let hint = match owner {
        EntryOwner::Ours => format!("change `[servers.{name}]`, or export without `--expand`"),
        EntryOwner::Theirs => format!("fix the entry; {agent_name} ignores the whole file because of it"),
    };
    Error::new(AgentErrorKind::InvalidFile, message).with_hint(hint)
}

impl ExportPlan {
    fn new(agent: &Agent, original: OriginalFile, text: String, undo_log: UndoLog) -> Self {
        let language = agent.language;
        Self {
            original,
            language,
            text,
            names: Vec::new(),
            removed: Vec::new(),
            blocked: Vec::new(),
            chosen: None,
            warnings: Vec::new(),
            undo_log,
        }
    }

    /// Returns the path of the file, with symbolic links resolved.
    pub fn file(&self) -> &Path {
        self.original.path()
    }

    /// Returns whether there is anything to write.
    pub fn has_changes(&self) -> bool {
        self.text != self.original.text()
    }

    /// Returns the contents before the change; `None` if the file does not exist.
    pub fn before(&self) -> Option<&str> {
        self.original.exists().then(|| self.original.text())
    }

    /// Returns the contents after the change.
    pub fn after(&self) -> &str {
        &self.text
    }

    /// Returns the entries that the change writes and removes.
    pub fn changed_entries(&self) -> ChangedEntries {
        ChangedEntries { names: self.names.clone(), removed: self.removed.clone() }
    }

    /// Removes further entries of the file, by the keys that lead to them. They are entries of others, so undoing the
    /// export puts them back. An entry of toolcrib that had no free name until then is written.
    ///
    /// # Errors
    ///
    /// Fails if an entry cannot be removed without changing anything else.
    pub fn remove_entries(&mut self, agent: &Agent, entries: &[Vec<String>]) -> Result<(), Error> {
        for keys in entries {
            let path: Vec<&str> = keys.iter().map(String::as_str).collect();
            let removed = agent.language.remove_entry(&self.text, &path);
            self.text = removed.map_err(|error| invalid_file_error(agent, self.file(), &error))?;
            self.removed.push(keys.clone());
        }
        for (name, members) in std::mem::take(&mut self.blocked) {
            let path = agent.entry_path(&name);
            if !self.removed.iter().any(|keys| *keys == path) {
                self.blocked.push((name, members));
                continue;
            }
            let added = agent.language.set_entry(&self.text, &path, &members);
            self.text = added.map_err(|error| invalid_file_error(agent, self.file(), &error))?;
            let warning = self.blocked_warning(&name);
            self.warnings.retain(|other| *other != warning);
            self.names.push(name);
        }
        self.validate_result(agent)
    }

    fn blocked_warning(&self, name: &str) -> String {
        let file = self.file().display();
        format!("`{name}` is not changed: `{file}` has an entry that toolcrib did not write")
    }

    fn set_entries(&mut self, agent: &Agent, entries: Vec<(String, EntryMembers)>) -> Result<(), EditError> {
        let document = agent.language.parse(self.original.text())?;
        let existing =
            get_path(&document, agent.servers_path).and_then(Json::as_object).cloned().unwrap_or_default();
        let last_step = self.undo_log.latest();
        let last = last_step.as_ref().and_then(|step| step.chosen.clone());
        let own_names = last_step.map(|step| step.names).unwrap_or_default();
        for (name, mut members) in entries {
            let foreign =
                existing.get(&name).filter(|entry| !own_names.contains(&name) && !is_toolcrib_entry(entry));
            if name == ENTRY_NAME {
                let current = existing.get(&name).filter(|_| foreign.is_none());
                members = self.choose_members(agent, members, current, last.as_ref());
            }
            if foreign.is_some_and(|entry| *entry != Json::Object(members.iter().cloned().collect())) {
                self.warnings.push(self.blocked_warning(&name));
                self.blocked.push((name, members));
                continue;
            }
            self.text = agent.language.set_entry(&self.text, &agent.entry_path(&name), &members)?;
            self.names.push(name);
        }
        for name in own_names.iter().filter(|name| !self.names.contains(name)) {
            self.text = agent.language.remove_entry(&self.text, &agent.entry_path(name))?;
        }
        Ok(())
    }

    fn set_own_list(&mut self, agent: &Agent, entries: Vec<(String, EntryMembers)>) {
        // A file that is no longer valid is written from scratch.
        let document = agent.language.parse(self.original.text()).unwrap_or_default();
        let current = named_entries(agent, &document).into_iter().find(|(name, _)| name == ENTRY_NAME);
        let last = self.undo_log.latest().and_then(|step| step.chosen);
        let mut items = Vec::new();
        for (name, members) in entries {
            let mut item = vec![("name".to_owned(), Json::from(name.clone()))];
            item.extend(members);
            if name == ENTRY_NAME {
                let current = current.as_ref().map(|(_, entry)| *entry);
                item = self.choose_members(agent, item, current, last.as_ref());
            }
            self.names.push(name);
            items.push(item);
        }
        let head = [("name", "toolcrib"), ("version", "0.0.1"), ("schema", "v1")];
        self.text = yaml::render_list_file(&head, "mcpServers", &items);
    }

    /// Returns the members of the entry of toolcrib, with what a person added to the current one.
    fn choose_members(
        &mut self,
        agent: &Agent,
        members: EntryMembers,
        current: Option<&Json>,
        last: Option<&Json>,
    ) -> EntryMembers {
        self.chosen = Some(Json::Object(collect_map(members.iter().cloned())));
        match current {
            Some(current) => WrittenEntry { agent, current, last }.keep_edits(members),
            None => members,
        }
    }

    /// Validates the planned file. Entries of others are checked only if the agent rejects a file with one bad entry.
    fn validate_result(&mut self, agent: &Agent) -> Result<(), Error> {
        let document = agent
            .language
            .parse(&self.text)
            .map_err(|error| invalid_file_error(agent, self.file(), &error))?;
        if ["gemini", "qwen"].contains(&agent.id) {
            self.warn_of_server_lists(agent, &document);
        }
        for (name, entry) in named_entries(agent, &document) {
            let is_own = agent.layout == ServersLayout::OwnListFile || self.names.contains(&name);
            let is_edited = name == ENTRY_NAME && self.chosen.as_ref().is_some_and(|chosen| chosen != entry);
            let owner = if is_own && !is_edited { EntryOwner::Ours } else { EntryOwner::Theirs };
            if !is_own && !agent.rejects_file_on_bad_entry {
                continue;
            }
            if let Err(reason) = validate::check_entry(agent, entry, owner) {
                return Err(rejected_entry_error(agent, self.file(), &name, owner, &reason));
            }
        }
        Ok(())
    }

    /// Warns if the agent's own lists of allowed and excluded servers keep it from starting an entry.
    fn warn_of_server_lists(&mut self, agent: &Agent, document: &Json) {
        let list = |key: &str| get_path(document, &["mcp", key]).and_then(Json::as_array);
        let contains = |list: &Vec<Json>, name: &String| list.iter().any(|item| item == name.as_str());
        for name in &self.names {
            let problem = if list("allowed").is_some_and(|allowed| !contains(allowed, name)) {
                format!("add `{name}` to `mcp.allowed`")
            } else if list("excluded").is_some_and(|excluded| contains(excluded, name)) {
                format!("remove `{name}` from `mcp.excluded`")
            } else {
                continue;
            };
            let file = self.original.path().display();
            let warning = format!("{} will not start `{name}`: {problem} in `{file}`", agent.name);
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// Returns a unified diff. Lines of the user that may contain a secret are masked.
    pub fn diff(&self) -> String {
        let path = self.original.path().display().to_string();
        let from = if self.original.exists() { path.clone() } else { "/dev/null".to_owned() };
        let texts = FileDiff {
            language: self.language,
            before: self.original.text(),
            after: &self.text,
            from: &from,
            to: &path,
        };
        texts.render()
    }

    /// Writes the file, reads it back to verify it, and records how to undo it.
    ///
    /// # Errors
    ///
    /// Fails if the file is read-only, was changed by another process, or cannot be backed up or written.
    pub fn write(&self) -> Result<(), Error> {
        self.check_writable()?;
        let file = self.file();
        let export = FileExport {
            file,
            before: self.before(),
            after: &self.text,
            names: &self.names,
            removed: &self.removed,
            chosen: self.chosen.as_ref(),
        };
        self.undo_log.add(&export).map_err(|error| {
            let message = format!("cannot back up `{}`: {error}; nothing was changed", file.display());
            Error::new(AgentErrorKind::CannotBackUp, message)
        })?;
        let replaced = self.original.replace(&self.text);
        if let (Err(_), Some(step)) = (&replaced, self.undo_log.latest()) {
            self.undo_log.remove(&step);
        }
        replaced?;
        self.verify_written()
    }

    /// Fails if the file is read-only.
    ///
    /// # Errors
    ///
    /// Fails if no one has permission to write the file.
    pub fn check_writable(&self) -> Result<(), Error> {
        if !self.original.is_read_only() {
            return Ok(());
        }
        let file = self.file().display();
        let hint = format!("chmod u+w {file}");
        Err(Error::new(AgentErrorKind::ReadOnly, format!("`{file}` is read-only")).with_hint(hint))
    }

    fn verify_written(&self) -> Result<(), Error> {
        let file = self.file();
        if OriginalFile::read(file)?.text() == self.text {
            return Ok(());
        }
        let message = format!("another process changed `{}` right after it was written", file.display());
        Err(Error::new(AgentErrorKind::ChangedMeanwhile, message).with_hint("run the command again"))
    }
}

/// Returns the entries of a file with their names.
fn named_entries<'a>(agent: &Agent, document: &'a Json) -> Vec<(String, &'a Json)> {
    match get_path(document, agent.servers_path) {
        Some(Json::Object(entries)) => entries.iter().map(|(name, entry)| (name.clone(), entry)).collect(),
        Some(Json::Array(items)) => {
            let name = |item: &Json| item["name"].as_str().unwrap_or_default().to_owned();
            items.iter().map(|item| (name(item), item)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether an entry starts toolcrib, also as a package of npm or Python.
pub(crate) fn is_toolcrib_entry(entry: &Json) -> bool {
    let commands = [&entry["command"], &entry["cmd"], &entry["command"][0], &entry["transport"]["command"]];
    let mut programs = commands.into_iter().filter_map(Json::as_str).filter_map(file_name);
    programs.any(|name| name == ENTRY_NAME || (PACKAGE_RUNNERS.contains(&name) && runs_toolcrib(entry)))
}

/// Returns whether the arguments of a package runner are those of `toolcrib stdio`.
fn runs_toolcrib(entry: &Json) -> bool {
    let lists = [&entry["command"], &entry["args"], &entry["transport"]["args"]];
    let arguments: Vec<&str> =
        lists.into_iter().filter_map(Json::as_array).flatten().filter_map(Json::as_str).collect();
    let is_package = |argument: &&str| argument.split('@').next() == Some(ENTRY_NAME);
    arguments.iter().any(is_package) && arguments.contains(&"stdio")
}

fn file_name(program: &str) -> Option<&str> {
    Path::new(program).file_name()?.to_str()
}
