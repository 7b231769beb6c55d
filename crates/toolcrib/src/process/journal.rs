//! A journal of process trees on disk. A new gateway uses it to kill what a killed gateway left behind.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::orphans::{OrphanQuery, ProcessIdentity, SeenProcess, kill_orphans};
use crate::util::files::{self, FileMode, ReplaceOptions};

/// A folder with one file per process tree. Failures to write it are logged and never stop a server.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    boot: String,
    /// This process.
    owner: Option<ProcessIdentity>,
}

/// The file of one process tree. Dropping it keeps the file.
#[derive(Debug)]
pub(super) struct JournalEntry {
    file: PathBuf,
}

/// The content of a journal file.
#[derive(Debug, Default, PartialEq, Eq)]
struct JournalRecord {
    boot: String,
    owner: Option<ProcessIdentity>,
    shim: Option<ProcessIdentity>,
    server: Option<ProcessIdentity>,
    /// Processes outside of the server's session.
    seen: Vec<SeenProcess>,
}

/// A journal file whose owner is gone.
struct StaleEntry {
    file: PathBuf,
    query: OrphanQuery,
}

impl Journal {
    pub(super) fn new(folder: PathBuf) -> Self {
        if let Err(error) = create_folder(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "cannot create the process journal");
        }
        Self { folder, boot: read_boot_id(), owner: own_identity() }
    }

    /// Kills the process trees whose owner is gone and removes their files. The file of a tree with a process that cannot
    /// be killed stays.
    pub(super) fn kill_orphans(&self) {
        let stale = self.stale_entries();
        let mut all = OrphanQuery::default();
        stale.iter().for_each(|entry| all.extend(&entry.query));
        let mut has_survivors = false;
        if !all.trees.is_empty() {
            let found = kill_orphans(&all);
            if found > 0 {
                tracing::warn!(processes = found, "killed processes left behind by a killed gateway");
                has_survivors = all.has_survivors();
            }
        }
        for StaleEntry { file, query } in stale {
            if has_survivors && query.has_survivors() {
                tracing::warn!(file = %file.display(), "cannot kill processes left behind by a killed gateway");
            } else {
                let _ = fs::remove_file(file);
            }
        }
    }

    /// Returns the files whose owner is gone, with the processes to kill. Nothing of another boot is left.
    fn stale_entries(&self) -> Vec<StaleEntry> {
        let mut stale = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let file = entry.path();
            let name = entry.file_name();
            let Some(tree) = name.to_str() else { continue };
            let record =
                fs::read_to_string(&file).map(|text| JournalRecord::parse(&text)).unwrap_or_default();
            if record.is_in_use(tree, &self.boot) {
                continue;
            }
            let query =
                if record.boot == self.boot { record.into_query(tree) } else { OrphanQuery::default() };
            stale.push(StaleEntry { file, query });
        }
        stale
    }

    /// Creates the entry of a tree before its first process starts.
    pub(super) fn create_entry(&self, tree: &str) -> JournalEntry {
        let file = self.folder.join(tree);
        // They are missing if there were too many open files when the journal was created.
        let boot = if self.boot.is_empty() { read_boot_id() } else { self.boot.clone() };
        let owner = self.owner.or_else(own_identity);
        let record = JournalRecord { boot, owner, ..JournalRecord::default() };
        // Another gateway may be reading, so a complete file is renamed into place. The draft's name has our pid.
        let draft = JournalEntry { file: self.folder.join(format!(".{}.{tree}", std::process::id())) };
        draft.append(&record.to_text());
        let _ = fs::rename(draft.file, &file);
        JournalEntry { file }
    }
}

impl JournalEntry {
    /// Adds the root processes of the tree.
    pub(super) fn record_processes(&self, shim: Option<u32>, server: u32) {
        let record = JournalRecord {
            shim: shim.and_then(ProcessIdentity::from_pid),
            server: ProcessIdentity::from_pid(server),
            ..JournalRecord::default()
        };
        self.append(&record.to_text());
    }

    /// Adds a process outside of the server's session.
    pub(super) fn record_seen(&self, process: &SeenProcess) {
        let record = JournalRecord { seen: vec![*process], ..JournalRecord::default() };
        self.append(&record.to_text());
    }

    /// Replaces the processes outside of the server's session.
    pub(super) fn replace_seen(&self, seen: &[SeenProcess]) {
        let record =
            fs::read_to_string(&self.file).map(|text| JournalRecord::parse(&text)).unwrap_or_default();
        let text = JournalRecord { seen: seen.to_vec(), ..record }.to_text();
        let options = ReplaceOptions { mode: FileMode::Private, sync: false };
        if let Err(error) = files::replace_file(&self.file, text.as_bytes(), options) {
            tracing::warn!(file = %self.file.display(), %error, "cannot write the process journal");
        }
    }

    /// Removes the file once no process of the tree is left.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(self.file);
    }

    fn append(&self, text: &str) {
        let open = || fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&self.file);
        let opened = match (open(), self.file.parent()) {
            // The folder was removed while we run.
            (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
                create_folder(folder).and_then(|()| open())
            }
            (opened, _) => opened,
        };
        if let Err(error) = opened.and_then(|mut file| file.write_all(text.as_bytes())) {
            tracing::warn!(file = %self.file.display(), %error, "cannot write the process journal");
        }
    }
}

impl JournalRecord {
    fn to_text(&self) -> String {
        let boot = (!self.boot.is_empty()).then(|| format!("boot {}\n", self.boot));
        let processes = [("owner", self.owner), ("shim", self.shim), ("server", self.server)];
        let lines = processes.into_iter().filter_map(|(role, process)| {
            process.map(|process| format!("{role} {} {}\n", process.pid, process.start_time))
        });
        let seen = self.seen.iter().map(|SeenProcess { identity, session }| {
            format!("seen {} {} {session}\n", identity.pid, identity.start_time)
        });
        boot.into_iter().chain(lines).chain(seen).collect()
    }

    /// Returns the processes of the tree with this id.
    fn into_query(self, tree: &str) -> OrphanQuery {
        let server_session = self.server.map(SeenProcess::from_server);
        OrphanQuery {
            trees: [tree.to_owned()].into(),
            roots: self.server.into_iter().collect(),
            shims: self.shim.into_iter().collect(),
            seen: self.seen.into_iter().chain(server_session).collect(),
        }
    }

    /// Parses the complete lines of a file; a last line without a newline is ignored.
    fn parse(text: &str) -> Self {
        let mut record = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut fields = line.split(' ');
            let key = fields.next().unwrap_or_default();
            let value = fields.next().unwrap_or_default();
            let pid = value.parse().ok();
            let start_time = fields.next().and_then(|field| field.parse().ok());
            let process = pid.zip(start_time).map(|(pid, start_time)| ProcessIdentity { pid, start_time });
            match key {
                "boot" => value.clone_into(&mut record.boot),
                "owner" => record.owner = process,
                "shim" => record.shim = process,
                "server" => record.server = process,
                "seen" => {
                    let session = fields.next().and_then(|field| field.parse().ok());
                    let seen = process.zip(session);
                    record.seen.extend(seen.map(|(identity, session)| SeenProcess { identity, session }));
                }
                _ => {}
            }
        }
        record
    }

    /// Returns whether the owner of the file is alive, or the file is a draft that is being written.
    fn is_in_use(&self, name: &str, boot: &str) -> bool {
        match self.owner {
            Some(owner) => self.boot == boot && owner.is_alive(),
            None => draft_writer(name).and_then(ProcessIdentity::from_pid).is_some(),
        }
    }
}

/// Returns the pid of the process that writes the draft with this name.
fn draft_writer(name: &str) -> Option<u32> {
    name.strip_prefix('.')?.split_once('.')?.0.parse().ok()
}

fn create_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn own_identity() -> Option<ProcessIdentity> {
    ProcessIdentity::from_pid(std::process::id())
}

/// Returns the id of the current boot. No process survives a reboot.
fn read_boot_id() -> String {
    let text = fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Sleeper {
        child: Child,
        identity: ProcessIdentity,
    }

    fn spawn_sleeper() -> Sleeper {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let identity = ProcessIdentity::from_pid(child.id()).unwrap();
        Sleeper { child, identity }
    }

    fn write_record(folder: &Path, name: &str, record: &JournalRecord) -> PathBuf {
        let file = folder.join(name);
        fs::write(&file, record.to_text()).unwrap();
        file
    }

    #[test]
    fn record_round_trips_and_ignores_incomplete_line() {
        let process = |pid, start_time| Some(ProcessIdentity { pid, start_time });
        let record = JournalRecord {
            boot: "b".to_owned(),
            owner: process(1, 2),
            shim: process(3, 4),
            server: process(5, 6),
            seen: Vec::new(),
        };
        assert_eq!(JournalRecord::parse(&record.to_text()), record);
        let truncated = record.to_text().trim_end().to_owned();
        let seen = SeenProcess { identity: ProcessIdentity { pid: 7, start_time: 8 }, session: 9 };
        let with_seen = JournalRecord { seen: vec![seen, seen], ..JournalRecord::parse(&record.to_text()) };
        assert_eq!(JournalRecord::parse(&with_seen.to_text()), with_seen);
        assert_eq!(JournalRecord::parse(&truncated), JournalRecord { server: None, ..record });
        assert_eq!(JournalRecord::parse("\n \nowner x y\nnonsense 1 2\n"), JournalRecord::default());
    }

    #[test]
    fn only_processes_of_dead_owners_are_killed() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new(folder.path().join("trees"));
        let folder = &journal.folder;
        let mut orphan = spawn_sleeper();
        let mut unrelated = spawn_sleeper();
        let mut owned = spawn_sleeper();
        let own = ProcessIdentity::from_pid(std::process::id()).unwrap();
        let dead_owner = Some(ProcessIdentity { start_time: 0, ..own });
        let record = |owner, server| JournalRecord {
            boot: read_boot_id(),
            owner,
            server: Some(server),
            ..JournalRecord::default()
        };
        let reused_pid =
            ProcessIdentity { start_time: unrelated.identity.start_time - 1, ..unrelated.identity };
        let other_boot = JournalRecord { boot: "other".to_owned(), ..record(dead_owner, unrelated.identity) };
        let stale = [
            write_record(folder, "journal-orphan", &record(dead_owner, orphan.identity)),
            write_record(folder, "journal-reused-pid", &record(dead_owner, reused_pid)),
            write_record(folder, "journal-other-boot", &other_boot),
        ];
        let owned_file = write_record(folder, "journal-owned", &record(Some(own), owned.identity));
        journal.kill_orphans();
        assert!(!stale.iter().any(|file| file.exists()) && owned_file.exists());
        assert!(!orphan.identity.is_alive());
        assert!(unrelated.identity.is_alive() && owned.identity.is_alive());
        for sleeper in [&mut orphan, &mut unrelated, &mut owned] {
            sleeper.child.kill().unwrap();
            sleeper.child.wait().unwrap();
        }
    }

    #[test]
    fn draft_is_removed_only_if_its_writer_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new(folder.path().join("trees"));
        let folder = &journal.folder;
        let own = ProcessIdentity::from_pid(std::process::id()).unwrap();
        let dead_owner = Some(ProcessIdentity { start_time: 0, ..own });
        let empty = JournalRecord { boot: read_boot_id(), ..JournalRecord::default() };
        let with_owner =
            JournalRecord { boot: read_boot_id(), owner: dead_owner, ..JournalRecord::default() };
        let complete = write_record(folder, ".journal-draft", &with_owner);
        let in_progress =
            write_record(folder, &format!(".{}.journal-in-progress", std::process::id()), &empty);
        let mut writer = Command::new("true").spawn().unwrap();
        writer.wait().unwrap();
        let abandoned = write_record(folder, &format!(".{}.journal-abandoned", writer.id()), &empty);
        journal.kill_orphans();
        assert!(in_progress.exists(), "its writer is alive");
        assert!(!complete.exists() && !abandoned.exists(), "their writers are gone");
    }

    #[test]
    fn removed_folder_is_created_again() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::new(state.path().join("trees"));
        fs::remove_dir_all(&journal.folder).unwrap();
        let entry = journal.create_entry("tree");
        let record = JournalRecord::parse(&fs::read_to_string(&entry.file).unwrap());
        assert!(record.owner.is_some_and(ProcessIdentity::is_alive));
    }

    #[test]
    fn entry_has_an_owner_also_if_it_could_not_be_read_before() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("trees");
        let journal = Journal { owner: None, boot: String::new(), folder: folder.clone() };
        let entry = journal.create_entry("tree");
        Journal::new(folder).kill_orphans();
        let record = JournalRecord::parse(&fs::read_to_string(&entry.file).unwrap());
        assert!(record.owner.is_some_and(ProcessIdentity::is_alive));
    }

    #[test]
    fn unwritable_folder_is_tolerated() {
        let journal = Journal::new(PathBuf::from("/proc/no/such/folder"));
        journal.kill_orphans();
        let entry = journal.create_entry("tree");
        entry.record_processes(None, std::process::id());
        entry.remove();
    }
}
