//! Writes servers into an agent's config file: plans the change, shows a diff, writes it and undoes it. Only entries that
//! toolcrib wrote are changed, and nothing is written that the agent could not read.

pub mod gateway;
pub mod render;
#[cfg(test)]
mod tests;
mod undo_log;
mod validate;

use std::path::Path;

use serde_json::Value as Json;
use similar::{ChangeTag, TextDiff};
use toolcrib::{Rules, ServerSpec};

use self::render::RenderedEntry;
use self::undo_log::UndoLog;
use self::validate::EntryOwner;
use crate::agents::{Agent, AgentFileScope, AgentPaths, ServersLayout};
use crate::edit::entry::{EditError, EntryMembers, FileLanguage, get_path};
use crate::edit::file::{OriginalFile, is_broken_link, resolve_existing_part, resolve_links};
use crate::edit::jsonc::JsonDialect;
use crate::edit::yaml;
use crate::error::{AgentErrorKind, Error};
use crate::secret_heuristics;

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
    text: String,
    /// Names of the entries that toolcrib owns after the change.
    names: Vec<String>,
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
    let mut plan = ExportPlan {
        text: original.text().to_owned(),
        original,
        names: Vec::new(),
        warnings: Vec::new(),
        undo_log,
    };
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
        ServersLayout::OwnListFile => plan.set_own_list(entries),
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
    /// Returns the path of the file, with symbolic links resolved.
    pub fn file(&self) -> &Path {
        self.original.path()
    }

    /// Returns whether there is anything to write.
    pub fn has_changes(&self) -> bool {
        self.text != self.original.text()
    }

    fn set_entries(&mut self, agent: &Agent, entries: Vec<(String, EntryMembers)>) -> Result<(), EditError> {
        let document = agent.language.parse(self.original.text())?;
        let existing =
            get_path(&document, agent.servers_path).and_then(Json::as_object).cloned().unwrap_or_default();
        let own_names = self.undo_log.latest().map(|step| step.names).unwrap_or_default();
        for (name, members) in entries {
            let foreign =
                existing.get(&name).filter(|entry| !own_names.contains(&name) && !is_toolcrib_entry(entry));
            if foreign.is_some_and(|entry| *entry != Json::Object(members.iter().cloned().collect())) {
                let file = self.original.path().display();
                self.warnings.push(format!(
                    "`{name}` is not changed: `{file}` has an entry that toolcrib did not write"
                ));
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

    fn set_own_list(&mut self, entries: Vec<(String, EntryMembers)>) {
        let named = entries.into_iter().map(|(name, members)| {
            let mut item = vec![("name".to_owned(), Json::from(name.clone()))];
            item.extend(members);
            (name, item)
        });
        let (names, items): (Vec<String>, Vec<EntryMembers>) = named.unzip();
        let head = [("name", "toolcrib"), ("version", "0.0.1"), ("schema", "v1")];
        self.names = names;
        self.text = yaml::render_list_file(&head, "mcpServers", &items);
    }

    /// Validates the planned file. Entries of others are checked only if the agent rejects a file with one bad entry.
    fn validate_result(&self, agent: &Agent) -> Result<(), Error> {
        let document = agent
            .language
            .parse(&self.text)
            .map_err(|error| invalid_file_error(agent, self.file(), &error))?;
        for (name, entry) in named_entries(agent, &document) {
            let is_own = agent.layout == ServersLayout::OwnListFile || self.names.contains(&name);
            let owner = if is_own { EntryOwner::Ours } else { EntryOwner::Theirs };
            if !is_own && !agent.rejects_file_on_bad_entry {
                continue;
            }
            if let Err(reason) = validate::check_entry(agent, entry, owner) {
                return Err(rejected_entry_error(agent, self.file(), &name, owner, &reason));
            }
        }
        Ok(())
    }

    /// Returns a unified diff. Lines of the user that may contain a secret are masked.
    pub fn diff(&self) -> String {
        let path = self.original.path().display().to_string();
        let from = if self.original.exists() { path.clone() } else { "/dev/null".to_owned() };
        masked_diff(self.original.text(), &self.text, &from, &path)
    }

    /// Writes the file and reads it back to verify it.
    ///
    /// # Errors
    ///
    /// Fails if the file is read-only, was changed by another process, or cannot be backed up or written.
    pub fn write(&self) -> Result<(), Error> {
        let file = self.file();
        if self.original.is_read_only() {
            let message = format!("`{}` is read-only", file.display());
            let hint = format!("chmod u+w {}", file.display());
            return Err(Error::new(AgentErrorKind::ReadOnly, message).with_hint(hint));
        }
        let before = self.original.exists().then(|| self.original.text());
        self.undo_log.add(file, before, &self.text, &self.names).map_err(|error| {
            let message = format!("cannot back up `{}`: {error}; nothing was changed", file.display());
            Error::new(AgentErrorKind::CannotBackUp, message)
        })?;
        if let Err(failure) = self.original.replace(&self.text) {
            if let Some(step) = self.undo_log.latest() {
                self.undo_log.remove(&step);
            }
            return Err(failure);
        }
        let written = OriginalFile::read(file)?;
        if written.text() == self.text {
            return Ok(());
        }
        let message = format!("another process changed `{}` right after it was written", file.display());
        Err(Error::new(AgentErrorKind::ChangedMeanwhile, message).with_hint("run the command again"))
    }
}

/// Result of undoing an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UndoResult {
    /// The file has its previous contents again.
    Restored,
    /// The file did not exist before and was removed.
    Removed,
    /// The file was changed since the export, so only toolcrib's entries were removed.
    EntriesRemoved,
}

/// An export that was undone.
#[derive(Debug)]
pub struct UndoneExport {
    /// The change that was made.
    pub plan: ExportPlan,
    /// The state of the file now.
    pub result: UndoResult,
}

/// Undoes the last export to an agent's file. `state_dir` has the records of earlier exports.
///
/// # Errors
///
/// Fails if no export is recorded, or if the file cannot be changed.
pub fn undo(
    agent: &Agent,
    scope: AgentFileScope,
    paths: &AgentPaths,
    state_dir: &Path,
) -> Result<UndoneExport, Error> {
    let original = open_original(agent, scope, paths)?;
    let undo_log = UndoLog::for_file(state_dir, original.path());
    let Some(step) = undo_log.latest() else {
        let message = format!("no export to `{}` to undo", original.path().display());
        return Err(Error::new(AgentErrorKind::NothingToUndo, message));
    };
    // A file that only toolcrib writes is undone even if it was changed since.
    let untouched =
        step.matches_written(original.text().as_bytes()) || agent.layout == ServersLayout::OwnListFile;
    let (text, result) = match &step.before {
        _ if !original.exists() => (String::new(), UndoResult::Removed),
        Some(before) if untouched => (String::from_utf8_lossy(before).into_owned(), UndoResult::Restored),
        None if untouched => (String::new(), UndoResult::Removed),
        _ => {
            let mut text = original.text().to_owned();
            for name in &step.names {
                let removed = agent.language.remove_entry(&text, &agent.entry_path(name));
                text = removed.map_err(|error| invalid_file_error(agent, original.path(), &error))?;
            }
            (text, UndoResult::EntriesRemoved)
        }
    };
    let plan = ExportPlan { original, text, names: Vec::new(), warnings: Vec::new(), undo_log };
    match result {
        UndoResult::Removed => plan.original.remove()?,
        UndoResult::Restored | UndoResult::EntriesRemoved => plan.original.replace(&plan.text)?,
    }
    plan.undo_log.remove(&step);
    Ok(UndoneExport { plan, result })
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

/// Returns whether an entry starts toolcrib.
pub(crate) fn is_toolcrib_entry(entry: &Json) -> bool {
    let commands = [&entry["command"], &entry["cmd"], &entry["command"][0], &entry["transport"]["command"]];
    let mut programs = commands.into_iter().filter_map(Json::as_str);
    programs.any(|program| Path::new(program).file_name().is_some_and(|name| name == "toolcrib"))
}

/// Returns a unified diff in which only new lines are shown unmasked.
fn masked_diff(before: &str, after: &str, from: &str, to: &str) -> String {
    if before == after {
        return String::new();
    }
    let normalized = |line: &str| line.trim().trim_end_matches(',').to_owned();
    let old_lines: Vec<String> = before.lines().map(normalized).collect();
    let diff = TextDiff::from_lines(before, after);
    let mut text = format!("--- {from}\n+++ {to}\n");
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        text.push_str(&format!("{}\n", hunk.header()));
        for change in hunk.iter_changes() {
            let line = change.value().trim_end_matches(['\r', '\n']);
            // A line that only gained a comma is still the user's.
            let is_new = change.tag() == ChangeTag::Insert && !old_lines.contains(&normalized(line));
            let shown = if is_new { line.to_owned() } else { secret_heuristics::mask_line(line) };
            text.push_str(&format!("{}{shown}\n", change.tag()));
        }
    }
    text
}
