//! `Sources`: which files make up the config here, what they come to, and whether anything of that has changed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::config::{Config, Draft, Facts, Layer, Wanted};

use crate::project::{Project, Standing};

/// How often a set of files is read that is written to meanwhile.
const MOST_READS: usize = 10;

/// How long it is believed that we are where we were.
const FRESH: Duration = Duration::from_secs(30);

/// Which files make up the config, and where we are. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// Those that are ours, the farthest first.
    layers: Vec<Layer>,
    project: Option<Project>,
    /// Whether the project's config was in use when we began: it is not dropped because it changed.
    project_in_use: bool,
    /// Where files are looked for that scopes ask for.
    folder: PathBuf,
    serving: bool,
    seen: Arc<Mutex<Option<Seen>>>,
}

/// Where we were when somebody looked last.
#[derive(Debug)]
struct Seen {
    at: Instant,
    wanted: Wanted,
    facts: Facts,
}

/// Tells one state of the config from another without reading it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stamp {
    files: Vec<Option<[i128; 5]>>,
    /// Where we are, as far as that decides anything.
    facts: Option<Facts>,
}

impl Sources {
    /// One file alone.
    pub(crate) fn alone(file: &Path) -> Self {
        Self::new(vec![Layer::alone(file)], None, PathBuf::from("."))
    }

    /// These files, and a project's if it is allowed. Files that scopes ask for are looked for in `folder`.
    pub(crate) fn new(layers: Vec<Layer>, project: Option<Project>, folder: PathBuf) -> Self {
        let standing = project.as_ref().map(Project::standing);
        let project_in_use = matches!(standing, Some(Standing::Allowed(_)));
        Self { layers, project, project_in_use, folder, serving: false, seen: Arc::default() }
    }

    /// The same for the gateway, which runs what is to run on this host.
    pub(crate) fn serving(self) -> Self {
        Self { serving: true, ..self }
    }

    /// The files that are there, the farthest first; a project's only if it is used.
    fn layers(&self) -> Vec<Layer> {
        let standing = self.project.as_ref().map(|project| (project, project.standing()));
        let project = match standing {
            Some((project, Standing::Allowed(allowed))) => project.layer(allowed),
            Some((project, Standing::Changed(allowed))) if self.project_in_use => project.layer(allowed),
            _ => None,
        };
        self.layers.iter().cloned().chain(project).collect()
    }

    /// Whether any of the files is there.
    pub(crate) fn exist(&self) -> bool {
        self.layers().iter().any(|layer| fs::symlink_metadata(&layer.path).is_ok())
    }

    /// The project's config if it is there and not used, and why.
    pub(crate) fn unused(&self) -> Option<(&Path, &'static str)> {
        let project = self.project.as_ref()?;
        let file = project.file.as_deref()?;
        match project.standing() {
            Standing::Allowed(_) => None,
            Standing::Changed(_) => Some((file, "changed since it was allowed, and is not used")),
            Standing::Unseen => Some((file, "came with the project, and is not used until it is allowed")),
        }
    }

    /// Every file, read.
    pub(crate) fn draft(&self) -> Draft {
        Draft::read(&self.layers())
    }

    /// What they come to, here and now.
    pub(crate) fn load(&self) -> Config {
        let draft = self.draft();
        let facts = self.facts(&draft);
        draft.resolve(&facts)
    }

    /// Where we are, as far as these files ask.
    pub(crate) fn facts(&self, draft: &Draft) -> Facts {
        self.look(draft.wanted())
    }

    fn look(&self, wanted: Wanted) -> Facts {
        let name = self.project.as_ref().and_then(|project| project.name.clone());
        let facts = Facts::gather(&wanted, &self.folder, name, self.serving);
        *self.seen() = Some(Seen { at: Instant::now(), wanted, facts: facts.clone() });
        facts
    }

    /// What they come to, and the stamp of what was read. Files that are written to meanwhile are read again, so that no two
    /// states are mixed.
    pub(crate) fn load_whole(&self) -> (Config, Stamp) {
        let mut before = self.files();
        for _ in 0..MOST_READS {
            let config = self.load();
            let after = self.files();
            if after == before {
                return (config, self.stamp());
            }
            before = after;
        }
        (self.load(), self.stamp())
    }

    /// The state they are in now. Where we are is found out again only once in a while, and only if it decides anything.
    pub(crate) fn stamp(&self) -> Stamp {
        let asked = self.seen().as_ref().filter(|seen| seen.wanted != Wanted::default()).map(|seen| {
            let stale = seen.at.elapsed() >= FRESH;
            (stale, seen.wanted.clone(), seen.facts.clone())
        });
        let facts = asked.map(|(stale, wanted, facts)| if stale { self.look(wanted) } else { facts });
        Stamp { files: self.files(), facts }
    }

    fn files(&self) -> Vec<Option<[i128; 5]>> {
        let of_project = self
            .project
            .iter()
            .flat_map(|project| project.file.as_deref().into_iter().chain([project.record()]));
        self.layers.iter().map(|layer| &*layer.path).chain(of_project).map(stamp_of).collect()
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stamp {
    /// Whether a file is empty that was not: it is most likely about to be written.
    pub(crate) fn was_emptied_since(&self, before: &Self) -> bool {
        let is_empty = |file: &Option<[i128; 5]>| matches!(file, Some([_, _, 0, ..]));
        self.files
            .iter()
            .enumerate()
            .any(|(at, file)| is_empty(file) && !before.files.get(at).is_some_and(is_empty))
    }
}

/// A file as it is now, behind every link; one that is not there has none.
fn stamp_of(path: &Path) -> Option<[i128; 5]> {
    let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    fs::metadata(path).ok().map(|found| {
        let changed = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
        let [written, changed] = changed.map(|(seconds, nanos)| time(seconds, nanos));
        [found.dev().into(), found.ino().into(), found.size().into(), written, changed]
    })
}
