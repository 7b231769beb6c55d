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
}

impl UndoStep {
    /// Returns whether a text is what this export wrote.
    pub(crate) fn matches_written(&self, text: &[u8]) -> bool {
        digest(text) == self.after_digest
    }
}

impl UndoLog {
    /// Opens the log of a file in a state directory.
    pub(crate) fn for_file(state: &Path, file: &Path) -> Self {
        Self { dir: state.join("exports").join(digest(file.as_os_str().as_encoded_bytes())) }
    }

    /// Returns the newest step.
    pub(crate) fn latest(&self) -> Option<UndoStep> {
        let number = self.step_numbers().into_iter().next_back()?;
        let record: Json = serde_json::from_slice(&fs::read(self.record_path(number)).ok()?).ok()?;
        let names = record["names"].as_array()?.iter().filter_map(|name| name.as_str().map(str::to_owned));
        // Absent in the records of earlier versions.
        let removed = record["removed"].as_array().into_iter().flatten();
        let before = match record["existed"].as_bool()? {
            true => Some(fs::read(self.backup_path(number)).ok()?),
            false => None,
        };
        Some(UndoStep {
            number,
            names: names.collect(),
            removed: removed.map(to_keys).collect(),
            before,
            after_digest: record["after"].as_str()?.to_owned(),
        })
    }

    /// Adds a step. This happens before the file is written, because an extra step does no harm but a missing one does.
    pub(crate) fn add(
        &self,
        file: &Path,
        before: Option<&str>,
        after: &str,
        names: &[String],
        removed: &[Vec<String>],
    ) -> io::Result<()> {
        create_private_folder(&self.dir)?;
        let numbers = self.step_numbers();
        let number = numbers.last().map_or(1, |last| last + 1);
        if let Some(text) = before {
            write_private(&self.backup_path(number), text.as_bytes())?;
        }
        let record = json!({
            "file": file.display().to_string(),
            "existed": before.is_some(),
            "after": digest(after.as_bytes()),
            "names": names,
            "removed": removed,
        });
        write_private(&self.record_path(number), record.to_string().as_bytes())?;
        for old in numbers.iter().rev().skip(MAX_STEPS - 1) {
            self.remove_step(*old);
        }
        Ok(())
    }

    /// Removes a step that was undone or whose export failed.
    pub(crate) fn remove(&self, step: &UndoStep) {
        self.remove_step(step.number);
    }

    fn remove_step(&self, number: u64) {
        let _ = fs::remove_file(self.record_path(number));
        let _ = fs::remove_file(self.backup_path(number));
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

    fn backup_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number}.before"))
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

    #[test]
    fn log_keeps_only_the_newest_steps() {
        let dir = tempfile::tempdir().unwrap();
        let file = Path::new("/agent/settings.json");
        let log = UndoLog::for_file(dir.path(), file);
        assert_eq!(log.latest(), None);
        log.add(file, None, "a", &["x".to_owned()], &[]).unwrap();
        for step in 0..MAX_STEPS + 3 {
            log.add(file, Some(&step.to_string()), "b", &[], &[]).unwrap();
        }
        assert_eq!(log.step_numbers().len(), MAX_STEPS);
        let last = log.latest().unwrap();
        assert_eq!(last.before.as_deref(), Some(&b"12"[..]));
        assert!(last.matches_written(b"b") && !last.matches_written(b"a"));
        log.remove(&last);
        assert_eq!(log.latest().unwrap().before.as_deref(), Some(&b"11"[..]));
        assert_eq!(UndoLog::for_file(dir.path(), Path::new("/other")).latest(), None);
    }

    #[test]
    fn backups_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let log = UndoLog::for_file(dir.path(), Path::new("/f"));
        log.add(Path::new("/f"), Some("TOKEN"), "", &[], &[]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&log.dir), mode(&log.backup_path(1))), (0o700, 0o600));
    }
}
