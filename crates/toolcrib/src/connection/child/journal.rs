//! Which trees of processes there are, on disk: what a crib that was killed left behind is ended when the next one begins.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::sweep::{Known, Lost, sweep};

/// A folder with a file for each tree. A journal that cannot be written costs nobody a server.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
}

/// A tree that is written down; dropping it does not cross it out.
#[derive(Debug)]
pub(super) struct Entry {
    file: PathBuf,
}

/// What a file says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Noted {
    boot: String,
    owner: Option<Known>,
    shim: Option<Known>,
    server: Option<Known>,
}

impl Journal {
    pub(super) fn new(folder: PathBuf) -> Self {
        if let Err(error) = make(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "cannot keep a journal of processes");
        }
        Self { folder }
    }

    /// Ends whatever is left of trees whose owner is gone.
    pub(super) fn clear(&self) {
        let boot = boot();
        let (mut lost, mut files) = (Lost::default(), Vec::new());
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let (file, tree) = (entry.path(), entry.file_name());
            let Some(tree) = tree.to_str() else { continue };
            let noted = fs::read_to_string(&file).map(|text| Noted::read(&text)).unwrap_or_default();
            let is_being_written = || writer(tree).and_then(Known::now).is_some();
            if (noted.owner.is_none() && is_being_written())
                || (noted.boot == boot && noted.owner.is_some_and(Known::lives))
            {
                continue;
            }
            files.push(file);
            if noted.boot == boot {
                lost.trees.insert(tree.to_owned());
                lost.roots.extend(noted.server);
                lost.spared.extend(noted.shim);
            }
        }
        if !lost.trees.is_empty() {
            let found = sweep(&lost);
            if found > 0 {
                tracing::warn!(processes = found, "ended what a crib that was killed had left behind");
            }
        }
        for file in files {
            let _ = fs::remove_file(file);
        }
    }

    /// Writes a tree down before there is anything in it.
    pub(super) fn open(&self, tree: &str) -> Entry {
        let file = self.folder.join(tree);
        let own = Known::now(std::process::id());
        let text = Noted { boot: boot(), owner: own, ..Noted::default() }.text();
        // It gets its name when it is whole: another crib may be reading. Until then it says whose it is by its name.
        let draft = Entry { file: self.folder.join(format!(".{}.{tree}", std::process::id())) };
        draft.note(&text);
        let _ = fs::rename(draft.file, &file);
        Entry { file }
    }
}

impl Entry {
    /// Adds which processes the tree grew from.
    pub(super) fn started(&self, shim: Option<u32>, server: u32) {
        let (shim, server) = (shim.and_then(Known::now), Known::now(server));
        self.note(&Noted { shim, server, ..Noted::default() }.text());
    }

    /// Nothing of the tree is left.
    pub(super) fn close(self) {
        let _ = fs::remove_file(self.file);
    }

    fn note(&self, text: &str) {
        let open = || fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&self.file);
        let opened = match (open(), self.file.parent()) {
            // Somebody has tidied up.
            (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
                make(folder).and_then(|()| open())
            }
            (opened, _) => opened,
        };
        if let Err(error) = opened.and_then(|mut file| file.write_all(text.as_bytes())) {
            tracing::warn!(file = %self.file.display(), %error, "cannot note a process");
        }
    }
}

impl Noted {
    fn text(&self) -> String {
        let boot = (!self.boot.is_empty()).then(|| format!("boot {}\n", self.boot));
        let known = [("owner", self.owner), ("shim", self.shim), ("server", self.server)];
        let line = |(name, known): (&str, Option<Known>)| {
            known.map(|known| format!("{name} {} {}\n", known.pid, known.began))
        };
        boot.into_iter().chain(known.into_iter().filter_map(line)).collect()
    }

    /// A line that was not written to its end says nothing.
    fn read(text: &str) -> Self {
        let mut noted = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut words = line.split(' ');
            let (name, first) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let began = words.next().and_then(|word| word.parse().ok());
            let known = first.parse().ok().zip(began).map(|(pid, began)| Known { pid, began });
            match name {
                "boot" => first.clone_into(&mut noted.boot),
                "owner" => noted.owner = known,
                "shim" => noted.shim = known,
                "server" => noted.server = known,
                _ => {}
            }
        }
        noted
    }
}

/// Who writes a draft of this name.
fn writer(name: &str) -> Option<u32> {
    name.strip_prefix('.')?.split_once('.')?.0.parse().ok()
}

fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Which run of the system this is; processes do not outlive it.
fn boot() -> String {
    let text = fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process and when it began.
    fn sleeper() -> (std::process::Child, Known) {
        let child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let known = Known::now(child.id()).unwrap();
        (child, known)
    }

    fn written(folder: &Path, tree: &str, noted: &Noted) -> PathBuf {
        let file = folder.join(tree);
        fs::write(&file, noted.text()).unwrap();
        file
    }

    #[test]
    fn what_is_written_is_read_and_half_a_line_is_not() {
        let known = |pid, began| Some(Known { pid, began });
        let noted =
            Noted { boot: "b".to_owned(), owner: known(1, 2), shim: known(3, 4), server: known(5, 6) };
        assert_eq!(Noted::read(&noted.text()), noted);
        let cut = noted.text().trim_end().to_owned();
        assert_eq!(Noted::read(&cut), Noted { server: None, ..noted });
        assert_eq!(Noted::read("\n \nowner x y\nnonsense 1 2\n"), Noted::default());
    }

    #[test]
    fn only_the_same_process_of_a_dead_owner_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new(folder.path().join("trees"));
        let folder = &journal.folder;
        let (mut left, known) = sleeper();
        let (mut stranger, other) = sleeper();
        let (mut kept, of_living) = sleeper();
        let dead = Some(Known { began: 0, ..Known::now(std::process::id()).unwrap() });
        let noted = |owner, server| Noted { boot: boot(), owner, shim: None, server: Some(server) };
        let files = [
            written(folder, "journal-left", &noted(dead, known)),
            written(folder, "journal-stranger", &noted(dead, Known { began: other.began - 1, ..other })),
            written(folder, "journal-old", &Noted { boot: "other".to_owned(), ..noted(dead, other) }),
        ];
        let abandoned = written(folder, ".journal-draft", &Noted { server: None, ..noted(dead, known) });
        let empty = Noted { owner: None, server: None, ..noted(None, known) };
        let half = written(folder, &format!(".{}.journal-half", std::process::id()), &empty);
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let given_up = written(folder, &format!(".{}.journal-given-up", gone.id()), &empty);
        let living = written(folder, "journal-kept", &noted(Known::now(std::process::id()), of_living));
        journal.clear();
        assert!(!files.iter().any(|file| file.exists()) && living.exists());
        assert!(half.exists(), "somebody is still writing half of one");
        assert!(!abandoned.exists() && !given_up.exists(), "whoever wrote it was killed");
        assert!(!known.lives() && other.lives() && of_living.lives());
        for child in [&mut left, &mut stranger, &mut kept] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_folder_that_is_lost_is_made_again() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::new(state.path().join("trees"));
        fs::remove_dir_all(&journal.folder).unwrap();
        let entry = journal.open("tree");
        assert!(Noted::read(&fs::read_to_string(&entry.file).unwrap()).owner.is_some_and(Known::lives));
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_nothing() {
        let journal = Journal::new(PathBuf::from("/proc/no/such/folder"));
        journal.clear();
        let entry = journal.open("tree");
        entry.started(None, std::process::id());
        entry.close();
    }
}
