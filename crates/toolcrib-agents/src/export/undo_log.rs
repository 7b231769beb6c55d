//! Backups of the files that exports changed, so that exports can be undone. They are kept private in the state directory
//! because agents' files may contain secrets.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};
use toolcrib::util::encoding;
use toolcrib::util::files::{FileMode, ReplaceOptions, create_private_folder, replace_file};

/// Number of steps kept per file.
const MAX_STEPS: usize = 10;

/// Exports to one file, oldest first.
#[derive(Debug)]
pub(crate) struct UndoLog {
    dir: PathBuf,
}

/// One export to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UndoStep {
    number: u64,
    /// Names of the entries that toolcrib owns since this export.
    pub(crate) names: Vec<String>,
    /// Keys of the entries of others that the export removed.
    pub(crate) removed: Vec<Vec<String>>,
    /// Contents before the export; `None` if the file did not exist.
    pub(crate) before: Option<Vec<u8>>,
    /// Digest of the contents after the export.
    after_digest: String,
    /// Contents after the export.
    pub(crate) after: Option<Vec<u8>>,
    /// Members of the entry of toolcrib that the export chose, without what it kept of a person.
    pub(crate) chosen: Option<Json>,
}

impl UndoStep {
    /// Returns whether a text is what this export wrote.
    pub(crate) fn matches_written(&self, text: &[u8]) -> bool {
        digest(text) == self.after_digest
    }
}

/// What an export changes in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileExport<'a> {
    pub(crate) file: &'a Path,
    /// Contents before the export; `None` if the file does not exist.
    pub(crate) before: Option<&'a str>,
    pub(crate) after: &'a str,
    /// See [`UndoStep`].
    pub(crate) names: &'a [String],
    pub(crate) removed: &'a [Vec<String>],
    pub(crate) chosen: Option<&'a Json>,
}

impl UndoLog {
    /// Opens the log of a file in a state directory.
    pub(crate) fn for_file(state: &Path, file: &Path) -> Self {
        Self { dir: state.join("exports").join(digest(file.as_os_str().as_encoded_bytes())) }
    }

    /// Returns the newest step.
    pub(crate) fn latest(&self) -> Option<UndoStep> {
        self.step(self.step_numbers().into_iter().next_back()?)
    }

    fn step(&self, number: u64) -> Option<UndoStep> {
        let record: Json = serde_json::from_slice(&fs::read(self.record_path(number)).ok()?).ok()?;
        let names = record["names"].as_array()?.iter().filter_map(|name| name.as_str().map(str::to_owned));
        let before = match record["existed"].as_bool()? {
            true => Some(fs::read(self.copy_path(number, "before")).ok()?),
            false => None,
        };
        Some(UndoStep {
            number,
            names: names.collect(),
            // Absent in the records of earlier versions, like the contents after the export.
            removed: record["removed"].as_array().into_iter().flatten().map(to_keys).collect(),
            before,
            after_digest: record["after"].as_str()?.to_owned(),
            after: fs::read(self.copy_path(number, "after")).ok(),
            chosen: Some(record["chosen"].clone()).filter(Json::is_object),
        })
    }

    /// Adds a step. This happens before the file is written, because an extra step does no harm but a missing one does.
    pub(crate) fn add(&self, export: &FileExport<'_>) -> io::Result<()> {
        let FileExport { file, before, after, names, removed, chosen } = *export;
        create_private_folder(&self.dir)?;
        let numbers = self.step_numbers();
        let number = numbers.last().map_or(1, |last| last + 1);
        if let Some(text) = before {
            write_private(&self.copy_path(number, "before"), text.as_bytes())?;
        }
        write_private(&self.copy_path(number, "after"), after.as_bytes())?;
        let record = json!({
            "file": file.display().to_string(),
            "existed": before.is_some(),
            "after": digest(after.as_bytes()),
            "names": names,
            "removed": removed,
            "chosen": chosen,
        });
        write_private(&self.record_path(number), record.to_string().as_bytes())?;
        for old in numbers.iter().rev().skip(MAX_STEPS - 1) {
            self.remove_step(*old);
        }
        Ok(())
    }

    /// Removes the newest steps, back to the one whose file had these contents before it. Without such a step, none is
    /// removed.
    pub(crate) fn remove_back_to(&self, before: Option<&[u8]>) {
        let steps: Vec<UndoStep> =
            self.step_numbers().into_iter().rev().filter_map(|number| self.step(number)).collect();
        if let Some(last) = steps.iter().position(|step| step.before.as_deref() == before) {
            steps[..=last].iter().for_each(|step| self.remove(step));
        }
    }

    /// Removes a step that was undone or whose export failed.
    pub(crate) fn remove(&self, step: &UndoStep) {
        self.remove_step(step.number);
    }

    fn remove_step(&self, number: u64) {
        let _ = fs::remove_file(self.record_path(number));
        let _ = fs::remove_file(self.copy_path(number, "before"));
        let _ = fs::remove_file(self.copy_path(number, "after"));
    }

    fn step_numbers(&self) -> Vec<u64> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let number = |file: fs::DirEntry| file.file_name().to_str()?.strip_suffix(".json")?.parse().ok();
        let mut numbers: Vec<u64> = files.filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn record_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number}.json"))
    }

    fn copy_path(&self, number: u64, kind: &str) -> PathBuf {
        self.dir.join(format!("{number}.{kind}"))
    }
}

fn to_keys(keys: &Json) -> Vec<String> {
    keys.as_array().into_iter().flatten().filter_map(|key| key.as_str().map(str::to_owned)).collect()
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file(path, bytes, ReplaceOptions { mode: FileMode::Private, sync: true })
}

fn digest(bytes: &[u8]) -> String {
    encoding::to_hex(&Sha256::digest(bytes)[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(log: &UndoLog, before: Option<&str>, after: &str) {
        let file = Path::new("/agent/settings.json");
        log.add(&FileExport { file, before, after, names: &[], removed: &[], chosen: None }).unwrap();
    }

    #[test]
    fn log_keeps_only_the_newest_steps() {
        let dir = tempfile::tempdir().unwrap();
        let log = UndoLog::for_file(dir.path(), Path::new("/agent/settings.json"));
        assert_eq!(log.latest(), None);
        add(&log, None, "a");
        for step in 0..MAX_STEPS + 3 {
            add(&log, Some(&step.to_string()), "b");
        }
        assert_eq!(log.step_numbers().len(), MAX_STEPS);
        let last = log.latest().unwrap();
        assert_eq!((last.before.as_deref(), last.after.as_deref()), (Some(&b"12"[..]), Some(&b"b"[..])));
        assert!(last.matches_written(b"b") && !last.matches_written(b"a"));
        log.remove(&last);
        assert_eq!(log.latest().unwrap().before.as_deref(), Some(&b"11"[..]));
        log.remove_back_to(Some(b"7"));
        assert_eq!(log.latest().unwrap().before.as_deref(), Some(&b"6"[..]));
        log.remove_back_to(None);
        assert_eq!(log.latest().unwrap().before.as_deref(), Some(&b"6"[..]), "no step has it");
        assert_eq!(UndoLog::for_file(dir.path(), Path::new("/other")).latest(), None);
    }

    #[test]
    fn backups_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let log = UndoLog::for_file(dir.path(), Path::new("/f"));
        add(&log, Some("TOKEN"), "TOKEN");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for kind in ["before", "after"] {
            assert_eq!((mode(&log.dir), mode(&log.copy_path(1, kind))), (0o700, 0o600));
        }
    }
}
