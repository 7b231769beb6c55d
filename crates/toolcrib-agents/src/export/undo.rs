//! Undoes exports, also in files that were changed since.

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value as Json;

use super::undo_log::{UndoLog, UndoStep};
use super::{ExportPlan, invalid_file_error, open_original};
use crate::agents::{Agent, AgentFileScope, AgentPaths, ServersLayout};
use crate::edit::entry::{EditError, EntryMembers, get_path, without_empty_tables};
use crate::edit::merge::{merge_rewritten_json, merge_texts};
use crate::error::{AgentErrorKind, Error};

/// Result of undoing an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UndoResult {
    /// The file has its previous contents again.
    Restored,
    /// The file did not exist before and was removed.
    Removed,
    /// The file was changed since the export. The entries of toolcrib were removed, those that they had replaced are back, and
    /// the other changes stay.
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
            let text = step.exported_text().undo_in(agent, original.text());
            let text = text.map_err(|error| invalid_file_error(agent, original.path(), &error))?;
            (text, UndoResult::EntriesRemoved)
        }
    };
    let plan = ExportPlan::new(agent, original, text, undo_log);
    match result {
        UndoResult::Removed => plan.original.remove()?,
        UndoResult::Restored | UndoResult::EntriesRemoved => plan.original.replace(&plan.text)?,
    }
    plan.undo_log.remove(&step);
    Ok(UndoneExport { plan, result })
}

/// Drops the records of the exports to a file since it had these contents, if they were undone.
pub fn forget_undone(file: &Path, before: Option<&str>, state_dir: &Path) {
    UndoLog::for_file(state_dir, file).remove_back_to(before.map(str::as_bytes));
}

/// The entries of an agent's file that an export changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedEntries {
    /// Names of the entries that toolcrib owns since then.
    pub names: Vec<String>,
    /// Keys of the entries of others that were removed.
    pub removed: Vec<Vec<String>>,
}

/// The contents of an agent's file before and after an export.
#[derive(Debug)]
pub struct ExportedText<'a> {
    /// Contents before it; empty if there was no file.
    pub before: Cow<'a, str>,
    /// Contents after it, if they are known.
    pub after: Option<Cow<'a, str>>,
    /// The entries that it changed.
    pub entries: Cow<'a, ChangedEntries>,
}

impl UndoStep {
    fn exported_text(&self) -> ExportedText<'_> {
        let entries = ChangedEntries { names: self.names.clone(), removed: self.removed.clone() };
        ExportedText {
            before: String::from_utf8_lossy(self.before.as_deref().unwrap_or_default()),
            after: self.after.as_deref().map(String::from_utf8_lossy),
            entries: Cow::Owned(entries),
        }
    }
}

impl ExportedText<'_> {
    /// Returns a later text of the file with the export undone in it: entries of toolcrib are as they were before, the entries that they
    /// had replaced are back, and everything else stays. Lines that were not changed since get their bytes of before the
    /// export back.
    ///
    /// # Errors
    ///
    /// Fails if the text is invalid, or if an entry cannot be changed without changing anything else.
    pub fn undo_in(&self, agent: &Agent, text: &str) -> Result<String, EditError> {
        if agent.layout == ServersLayout::OwnListFile {
            return Ok(self.before.clone().into_owned());
        }
        let undone = self.undo_entries(agent, text)?;
        let Some(after) = self.after.as_deref() else { return Ok(undone) };
        let content = |text: &str| agent.language.parse(text).map(|document| without_empty_tables(&document));
        let expected = content(&undone)?;
        let is_undone = |merged: &String| content(merged).is_ok_and(|merged| merged == expected);
        let merged = merge_texts(after, &self.before, text).filter(is_undone);
        // Some agents write their whole file from scratch.
        let rewritten = || merge_rewritten_json(after, &self.before, text).filter(is_undone);
        Ok(merged.or_else(rewritten).unwrap_or(undone))
    }

    /// Removes the entries of an export from a text, and puts back those that it replaced and removed.
    fn undo_entries(&self, agent: &Agent, text: &str) -> Result<String, EditError> {
        let language = agent.language;
        let before = language.parse(&self.before)?;
        let mut text = text.to_owned();
        for name in &self.entries.names {
            let path = agent.entry_path(name);
            text = match get_path(&before, &path).and_then(to_members) {
                Some(members) => language.set_entry(&text, &path, &members)?,
                None => language.remove_entry(&text, &path)?,
            };
        }
        for keys in &self.entries.removed {
            let path: Vec<&str> = keys.iter().map(String::as_str).collect();
            let is_there_again = get_path(&language.parse(&text)?, &path).is_some();
            let members = get_path(&before, &path).and_then(to_members).filter(|_| !is_there_again);
            if let Some(members) = members {
                text = language.set_entry(&text, &path, &members)?;
            }
        }
        Ok(text)
    }
}

fn to_members(entry: &Json) -> Option<EntryMembers> {
    Some(entry.as_object()?.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
}
