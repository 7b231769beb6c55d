//! Records of what `init` changes, written before the first change, so that an interrupted run can be undone as well.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toolcrib::util::files::{self, FileMode, ReplaceOptions};
use toolcrib_agents::agents::{Agent, AgentPaths};
use toolcrib_agents::edit::entry::FileLanguage;
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::edit::merge::undo_change;
use toolcrib_agents::export::{ChangedEntries, ExportedText, gateway};

use crate::command_error::CommandError;
use crate::exit::ExitStatus;

/// The records of every `init` that was not undone, oldest first.
#[derive(Debug)]
pub(super) struct InitJournal {
    dir: PathBuf,
}

/// The changes of one `init`.
#[derive(Debug, Default, Clone)]
pub(super) struct InitRecord {
    pub(super) files: Vec<RecordedFile>,
    /// Names of the secrets that were added to the secret store.
    pub(super) secrets: Vec<String>,
    /// Whether the service was installed.
    pub(super) service: bool,
}

/// A file that `init` changes.
#[derive(Debug, Clone)]
pub(super) struct RecordedFile {
    pub(super) path: PathBuf,
    /// Agent that owns the file.
    pub(super) agent: Option<&'static Agent>,
    /// Copy of the file before the change; `None` if there was no file.
    pub(super) backup: Option<PathBuf>,
    /// Copy of the file after the change.
    after: PathBuf,
    /// The entries of the agent that changed.
    entries: ChangedEntries,
    /// Folders that did not exist before, innermost first.
    new_dirs: Vec<PathBuf>,
}

/// The planned changes of one `init`.
#[derive(Debug)]
pub(super) struct InitChanges<'a> {
    pub(super) files: Vec<FileChange<'a>>,
    /// Names of the secrets that are added to the secret store.
    pub(super) secrets: &'a [String],
    /// Whether the service is installed.
    pub(super) service: bool,
}

/// A planned change of a file.
#[derive(Debug, Clone)]
pub(super) struct FileChange<'a> {
    pub(super) path: &'a Path,
    /// Agent that owns the file.
    pub(super) agent: Option<&'static Agent>,
    /// Contents now; `None` if there is no file.
    pub(super) before: Option<&'a str>,
    pub(super) after: &'a str,
    /// The entries of the agent that change.
    pub(super) entries: ChangedEntries,
}

/// What undoing did to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileUndo {
    /// The file has its previous contents again, or is gone if there was none.
    Restored,
    /// The file has never been changed, or no longer has an entry of toolcrib.
    Unchanged,
    /// The change is undone, and what was edited since stays.
    EditsKept,
    /// The file was edited since, where it was changed too, and is as it was.
    Edited,
}

impl InitJournal {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("init") }
    }

    /// Copies the files and writes the record. Nothing may be changed before this returns.
    pub(super) fn add(&self, changes: &InitChanges<'_>) -> Result<(), CommandError> {
        self.write_record(changes).map_err(|error| {
            let message = format!("cannot write to `{}`: {error}; nothing was changed", self.dir.display());
            CommandError::new(ExitStatus::Failure, "cannot_keep", message)
        })
    }

    fn write_record(&self, changes: &InitChanges<'_>) -> io::Result<()> {
        files::create_private_folder(&self.dir)?;
        let number = self.numbers()?.last().map_or(1, |last| last + 1);
        let mut recorded = Vec::new();
        for (index, change) in changes.files.iter().enumerate() {
            let backup = change.before.map(|_| self.dir.join(format!("{number}.{index}.before")));
            let after = self.dir.join(format!("{number}.{index}.after"));
            write_private(&after, change.after.as_bytes())?;
            if let (Some(backup), Some(before)) = (&backup, change.before) {
                write_private(backup, before.as_bytes())?;
            }
            recorded.push(RecordedFile {
                path: change.path.to_owned(),
                agent: change.agent,
                backup,
                after,
                entries: change.entries.clone(),
                new_dirs: missing_dirs(change.path),
            });
        }
        let record =
            InitRecord { files: recorded, secrets: changes.secrets.to_vec(), service: changes.service };
        write_private(&self.record_path(number), record.to_json().to_string().as_bytes())
    }

    /// Returns the records, newest first, with their numbers.
    pub(super) fn records(&self) -> Result<Vec<(u64, InitRecord)>, CommandError> {
        let numbers = self.numbers().map_err(|error| unreadable_error(&self.dir, &error))?;
        let read = |number: u64| {
            let path = self.record_path(number);
            let bytes = fs::read(&path).map_err(|error| unreadable_error(&path, &error))?;
            let record = serde_json::from_slice(&bytes).ok().and_then(|json| InitRecord::from_json(&json));
            Ok((number, record.ok_or_else(|| unreadable_error(&path, &"it is damaged"))?))
        };
        numbers.into_iter().rev().map(read).collect()
    }

    /// Removes a record of which everything is undone, or keeps only what is left.
    pub(super) fn finish(&self, number: u64, left: &InitRecord) -> Result<(), CommandError> {
        let path = self.record_path(number);
        let finished = match left.files.is_empty() && !left.service {
            false => write_private(&path, left.to_json().to_string().as_bytes()),
            true => fs::remove_file(&path).and_then(|()| self.remove_backups(number)),
        };
        finished.map_err(|error| {
            let message = format!("cannot change `{}`: {error}", path.display());
            CommandError::new(ExitStatus::Failure, "cannot_edit", message)
        })
    }

    fn remove_backups(&self, number: u64) -> io::Result<()> {
        let prefix = format!("{number}.");
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn record_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number}.json"))
    }

    fn numbers(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let number: Option<u64> = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

impl InitRecord {
    fn to_json(&self) -> Value {
        let text = |path: &Path| path.display().to_string();
        let file = |file: &RecordedFile| {
            json!({
                "path": text(&file.path),
                "agent": file.agent.map(|agent| agent.id),
                "backup": file.backup.as_deref().map(text),
                "after": text(&file.after),
                "names": file.entries.names,
                "removed": file.entries.removed,
                "new_dirs": file.new_dirs.iter().map(|dir| text(dir)).collect::<Vec<_>>(),
            })
        };
        let files: Vec<Value> = self.files.iter().map(file).collect();
        json!({"files": files, "secrets": self.secrets, "service": self.service})
    }

    fn from_json(json: &Value) -> Option<Self> {
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let file = |json: &Value| {
            let new_dirs = json["new_dirs"].as_array()?.iter().filter_map(path).collect();
            let removed = json["removed"].as_array()?.iter().map(to_texts).collect();
            Some(RecordedFile {
                path: path(&json["path"])?,
                agent: json["agent"].as_str().and_then(|id| Agent::find(id).ok()),
                backup: path(&json["backup"]),
                after: path(&json["after"])?,
                entries: ChangedEntries { names: to_texts(&json["names"]), removed },
                new_dirs,
            })
        };
        let files: Option<Vec<RecordedFile>> = json["files"].as_array()?.iter().map(file).collect();
        let secrets = json["secrets"].as_array()?.iter().filter_map(|name| name.as_str().map(str::to_owned));
        // Earlier versions did not install the service.
        let service = json["service"].as_bool().unwrap_or_default();
        Some(Self { files: files?, secrets: secrets.collect(), service })
    }
}

impl RecordedFile {
    /// Undoes the change, and removes what an interrupted write left behind. A file that is as `init` left it gets its previous
    /// contents; in one that was edited since, only the change is undone.
    pub(super) fn undo(&self, agent_paths: &AgentPaths) -> Result<FileUndo, CommandError> {
        files::remove_temporary_files(&self.path).map_err(|error| unreadable_error(&self.path, &error))?;
        let original = OriginalFile::read(&self.path)?;
        let before = self.before()?;
        if original.exists().then(|| original.text()) == before.as_deref() {
            return Ok(FileUndo::Unchanged);
        }
        let after = read_copy(&self.after)?;
        if original.text() != after {
            return self.undo_edited(&original, before.as_deref(), &after, agent_paths);
        }
        match before {
            Some(before) => original.replace(&before)?,
            None => {
                original.remove()?;
                // A folder that has got other files since stays.
                self.new_dirs.iter().take_while(|dir| fs::remove_dir(dir).is_ok()).count();
            }
        }
        Ok(FileUndo::Restored)
    }

    /// Returns the contents before the change.
    pub(super) fn before(&self) -> Result<Option<String>, CommandError> {
        self.backup.as_deref().map(read_copy).transpose()
    }

    fn undo_edited(
        &self,
        original: &OriginalFile,
        before: Option<&str>,
        after: &str,
        agent_paths: &AgentPaths,
    ) -> Result<FileUndo, CommandError> {
        let text = original.text();
        let undone = match self.agent {
            Some(agent) if agent.language.parse(text).is_err() => None,
            Some(agent) if gateway::written_command(agent, &self.path, text, agent_paths).is_err() => {
                return Ok(FileUndo::Unchanged);
            }
            Some(agent) => {
                let exported = ExportedText {
                    before: before.unwrap_or_default().into(),
                    after: Some(after.into()),
                    entries: Cow::Borrowed(&self.entries),
                };
                exported.undo_in(agent, text).ok()
            }
            None => undo_change(FileLanguage::Toml, before.unwrap_or_default(), after, text),
        };
        let Some(undone) = undone else { return Ok(FileUndo::Edited) };
        match undone.trim().is_empty() && before.is_none() {
            true => original.remove()?,
            false => original.replace(&undone)?,
        }
        Ok(FileUndo::EditsKept)
    }
}

/// Returns the folders that will be created for a file, innermost first.
fn missing_dirs(file: &Path) -> Vec<PathBuf> {
    file.ancestors().skip(1).take_while(|dir| !dir.exists()).map(Path::to_owned).collect()
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    files::replace_file(path, bytes, ReplaceOptions { mode: FileMode::Private, sync: true })
}

fn read_copy(path: &Path) -> Result<String, CommandError> {
    fs::read_to_string(path).map_err(|error| unreadable_error(path, &error))
}

fn to_texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn unreadable_error(path: &Path, error: &dyn std::fmt::Display) -> CommandError {
    let message = format!("cannot read `{}`: {error}", path.display());
    CommandError::new(ExitStatus::Failure, "cannot_edit", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_restored_unless_they_were_edited() {
        let dir = tempfile::tempdir().unwrap();
        let journal = InitJournal::new(&dir.path().join("state"));
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a"), "old").unwrap();
        fs::write(path("edited"), "old").unwrap();
        let new = path("x/y/new");
        let entries = ChangedEntries::default();
        let change =
            |path, before| FileChange { path, agent: None, before, after: "new", entries: entries.clone() };
        let home = ("HOME".to_owned(), dir.path().into());
        let agent_paths = AgentPaths::new(vec![home], dir.path()).unwrap();
        let a = path("a");
        let edited = path("edited");
        let files = vec![change(&a, Some("old")), change(&edited, Some("old")), change(&new, None)];
        journal.add(&InitChanges { files, secrets: &["s".to_owned()], service: true }).unwrap();
        let undo = || -> Vec<FileUndo> {
            let records = journal.records().unwrap();
            assert_eq!((records.len(), &*records[0].1.secrets), (1, &["s".to_owned()][..]));
            assert!(records[0].1.service);
            records[0].1.files.iter().map(|file| file.undo(&agent_paths).unwrap()).collect()
        };
        assert_eq!(undo(), [FileUndo::Unchanged; 3], "nothing was changed yet");
        fs::write(&a, "new").unwrap();
        fs::write(path(".a.0123456789abcdef.new"), "new").unwrap();
        fs::write(&edited, "other").unwrap();
        fs::create_dir_all(path("x/y")).unwrap();
        fs::write(&new, "new").unwrap();
        assert_eq!(undo(), [FileUndo::Restored, FileUndo::Edited, FileUndo::Restored]);
        assert_eq!(fs::read_to_string(&a).unwrap(), "old");
        assert!(!path(".a.0123456789abcdef.new").exists(), "what a killed process left is removed");
        assert!(!path("x").exists(), "folders that did not exist before are removed");
        let (number, mut record) = journal.records().unwrap().remove(0);
        record.files.retain(|file| file.path == edited);
        journal.finish(number, &record).unwrap();
        assert_eq!(journal.records().unwrap()[0].1.files[0].path, edited);
        journal.finish(number, &InitRecord::default()).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("state/init")).unwrap().count(), 0);
        let earlier = InitRecord::from_json(&json!({"files": [], "secrets": ["s"]})).unwrap();
        assert!(!earlier.service, "records of earlier versions are read");
    }
}
