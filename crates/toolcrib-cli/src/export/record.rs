//! `Ledger`: what was written into one file of an agent's, step by step, so that it can be taken back. It lies in our own
//! state folder, private, because the files that it keeps may hold secrets.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

/// Steps that are kept of one file.
const KEPT: usize = 10;

/// What was written into one file, the newest last.
#[derive(Debug)]
pub(crate) struct Ledger {
    folder: PathBuf,
}

/// One time that a file was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    number: u64,
    /// The names of the entries that are ours since.
    pub(crate) names: Vec<String>,
    /// What was in the file before; absent if there was none.
    pub(crate) before: Option<Vec<u8>>,
    /// What was in it afterwards, as a digest.
    after: String,
}

impl Step {
    /// Whether a text is what was written.
    pub(crate) fn wrote(&self, text: &[u8]) -> bool {
        digest(text) == self.after
    }
}

impl Ledger {
    /// The ledger of a file, in a state folder.
    pub(crate) fn of(state: &Path, file: &Path) -> Self {
        Self { folder: state.join("exports").join(digest(file.as_os_str().as_bytes())) }
    }

    /// The newest step.
    pub(crate) fn last(&self) -> Option<Step> {
        let number = self.numbers().into_iter().next_back()?;
        let note: Json = serde_json::from_slice(&fs::read(self.note(number)).ok()?).ok()?;
        let names = note["names"].as_array()?.iter().filter_map(|name| name.as_str().map(str::to_owned));
        let before = match note["existed"].as_bool()? {
            true => Some(fs::read(self.kept(number)).ok()?),
            false => None,
        };
        Some(Step { number, names: names.collect(), before, after: note["after"].as_str()?.to_owned() })
    }

    /// Adds a step. It is there before the file is written: a step too many is harmless, one too few is not.
    pub(crate) fn add(
        &self,
        file: &Path,
        before: Option<&str>,
        after: &str,
        names: &[String],
    ) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let numbers = self.numbers();
        let number = numbers.last().map_or(1, |last| last + 1);
        if let Some(text) = before {
            write(&self.kept(number), text.as_bytes())?;
        }
        let note = json!({
            "file": file.display().to_string(),
            "existed": before.is_some(),
            "after": digest(after.as_bytes()),
            "names": names,
        });
        write(&self.note(number), note.to_string().as_bytes())?;
        for old in numbers.iter().rev().skip(KEPT - 1) {
            self.forget_number(*old);
        }
        Ok(())
    }

    /// Forgets a step that was taken back, or never came to be.
    pub(crate) fn forget(&self, step: &Step) {
        self.forget_number(step.number);
    }

    fn forget_number(&self, number: u64) {
        let _ = fs::remove_file(self.note(number));
        let _ = fs::remove_file(self.kept(number));
    }

    fn numbers(&self) -> Vec<u64> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let number = |file: fs::DirEntry| file.file_name().to_str()?.strip_suffix(".json")?.parse().ok();
        let mut numbers: Vec<u64> = files.filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn note(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}.json"))
    }

    fn kept(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}.before"))
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_taken_back_one_by_one_and_only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = Path::new("/agent/settings.json");
        let ledger = Ledger::of(dir.path(), file);
        assert_eq!(ledger.last(), None);
        ledger.add(file, None, "a", &["x".to_owned()]).unwrap();
        for step in 0..KEPT + 3 {
            ledger.add(file, Some(&step.to_string()), "b", &[]).unwrap();
        }
        assert_eq!(ledger.numbers().len(), KEPT);
        let last = ledger.last().unwrap();
        assert_eq!(last.before.as_deref(), Some(&b"12"[..]));
        assert!(last.wrote(b"b") && !last.wrote(b"a"));
        ledger.forget(&last);
        assert_eq!(ledger.last().unwrap().before.as_deref(), Some(&b"11"[..]));
        assert_eq!(Ledger::of(dir.path(), Path::new("/other")).last(), None);
    }

    #[test]
    fn what_is_kept_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::of(dir.path(), Path::new("/f"));
        ledger.add(Path::new("/f"), Some("TOKEN"), "", &[]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&ledger.folder), mode(&ledger.kept(1))), (0o700, 0o600));
    }
}
