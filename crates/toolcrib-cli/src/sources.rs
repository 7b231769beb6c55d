//! The files that make up the config, and detection of changes to them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::config::{Config, HostFacts, Layer, LayeredConfig, RequiredFacts};
use toolcrib::util::locks::IgnorePoison as _;

use crate::project::{ProjectFolder, TrustState};

/// The maximum number of attempts to read files that change while they are read.
const MAX_READS: usize = 10;

/// The time after which facts about the host are gathered again.
const FACTS_TTL: Duration = Duration::from_secs(30);

/// The files that make up the config, and the facts that decide what applies. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ConfigSources {
    /// The machine's and the user's files, least specific first.
    layers: Vec<Layer>,
    project: Option<ProjectFolder>,
    /// True if the project's config was allowed at the start. It then stays a layer after it changes.
    project_in_use: bool,
    /// The folder in which scopes look for files.
    folder: PathBuf,
    is_gateway: bool,
    observed: Arc<Mutex<Option<ObservedFacts>>>,
}

/// The facts about the host when they were gathered last.
#[derive(Debug)]
struct ObservedFacts {
    at: Instant,
    required: RequiredFacts,
    facts: HostFacts,
}

/// Identifies a state of the config without reading it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigStamp {
    files: Vec<Option<FileStamp>>,
    /// The facts about the host, if the config depends on any.
    facts: Option<HostFacts>,
}

impl ConfigSources {
    /// Creates the sources for a single file.
    pub(crate) fn single_file(file: &Path) -> Self {
        Self::new(vec![Layer::standalone(file)], None, PathBuf::from("."))
    }

    /// Creates the sources for these layers and a project. Scopes look for files in `folder`.
    pub(crate) fn new(layers: Vec<Layer>, project: Option<ProjectFolder>, folder: PathBuf) -> Self {
        let trust_state = project.as_ref().map(ProjectFolder::trust_state);
        let project_in_use = matches!(trust_state, Some(TrustState::Allowed(_)));
        Self { layers, project, project_in_use, folder, is_gateway: false, observed: Arc::default() }
    }

    /// Returns the sources for use by the gateway, which runs the servers placed on this host.
    pub(crate) fn for_gateway(self) -> Self {
        Self { is_gateway: true, ..self }
    }

    /// Returns the layers in use, least specific first.
    fn layers(&self) -> Vec<Layer> {
        let project = self.project.as_ref().and_then(|project| match project.trust_state() {
            TrustState::Allowed(allowed) => project.layer(allowed),
            TrustState::Changed(allowed) if self.project_in_use => project.layer(allowed),
            TrustState::Changed(_) | TrustState::NotAllowed => None,
        });
        self.layers.iter().cloned().chain(project).collect()
    }

    /// Reads every file except the project's.
    pub(crate) fn read_base_layers(&self) -> LayeredConfig {
        LayeredConfig::read(&self.layers)
    }

    /// Reads every file, and as the project's file this layer.
    pub(crate) fn read_with_project(&self, project: Layer) -> LayeredConfig {
        let layers: Vec<Layer> = self.layers.iter().cloned().chain([project]).collect();
        LayeredConfig::read(&layers)
    }

    /// Returns whether any of the files exists.
    pub(crate) fn any_exists(&self) -> bool {
        self.layers().iter().any(|layer| fs::symlink_metadata(&layer.path).is_ok())
    }

    /// Returns the project's config and the reason, if the file exists and is not used.
    pub(crate) fn unused_project_file(&self) -> Option<(&Path, &'static str)> {
        let project = self.project.as_ref()?;
        let file = project.file.as_deref()?;
        match project.trust_state() {
            TrustState::Allowed(_) => None,
            TrustState::Changed(_) => Some((file, "is ignored: it changed since it was allowed")),
            TrustState::NotAllowed => {
                Some((file, "is ignored: it is a project config and is not allowed yet"))
            }
        }
    }

    /// Reads every file.
    pub(crate) fn read_layers(&self) -> LayeredConfig {
        LayeredConfig::read(&self.layers())
    }

    /// Reads every file and resolves the config for this host.
    pub(crate) fn load(&self) -> Config {
        let layered = self.read_layers();
        let facts = self.gather_facts(&layered);
        layered.resolve(&facts)
    }

    /// Gathers the facts about the host that a config depends on.
    pub(crate) fn gather_facts(&self, layered: &LayeredConfig) -> HostFacts {
        self.refresh_facts(layered.required_facts())
    }

    fn refresh_facts(&self, required: RequiredFacts) -> HostFacts {
        let name = self.project.as_ref().and_then(|project| project.name.clone());
        let facts = HostFacts::gather(&required, &self.folder, name, self.is_gateway);
        *self.observed() = Some(ObservedFacts { at: Instant::now(), required, facts: facts.clone() });
        facts
    }

    /// Loads the config and returns it with its stamp. Files that change meanwhile are read again, so that the config is
    /// consistent.
    pub(crate) fn load_consistent(&self) -> (Config, ConfigStamp) {
        let mut before = self.file_stamps();
        for _ in 0..MAX_READS {
            let config = self.load();
            let after = self.file_stamps();
            if after == before {
                return (config, self.stamp());
            }
            before = after;
        }
        (self.load(), self.stamp())
    }

    /// Returns the current stamp. Facts about the host are gathered again only if the config depends on them and they are
    /// older than [`FACTS_TTL`].
    pub(crate) fn stamp(&self) -> ConfigStamp {
        let facts = self.current_facts();
        ConfigStamp { files: self.file_stamps(), facts }
    }

    fn current_facts(&self) -> Option<HostFacts> {
        let stale_requirement = match self.observed().as_ref() {
            Some(observed) if observed.required != RequiredFacts::default() => {
                if observed.at.elapsed() < FACTS_TTL {
                    return Some(observed.facts.clone());
                }
                observed.required.clone()
            }
            _ => return None,
        };
        Some(self.refresh_facts(stale_requirement))
    }

    fn file_stamps(&self) -> Vec<Option<FileStamp>> {
        let project_files = self
            .project
            .iter()
            .flat_map(|project| project.file.as_deref().into_iter().chain([project.trust_record()]));
        self.layers.iter().map(|layer| &*layer.path).chain(project_files).map(FileStamp::read).collect()
    }

    fn observed(&self) -> MutexGuard<'_, Option<ObservedFacts>> {
        self.observed.lock().ignore_poison()
    }
}

impl ConfigStamp {
    /// Returns whether a file is empty now and was not before, probably because it is being written.
    pub(crate) fn has_emptied_file_since(&self, before: &Self) -> bool {
        let is_empty = |file: &Option<FileStamp>| file.as_ref().is_some_and(|file| file.size == 0);
        self.files
            .iter()
            .enumerate()
            .any(|(at, file)| is_empty(file) && !before.files.get(at).is_some_and(is_empty))
    }
}

/// The metadata that changes when a file is written or replaced. Times are `(seconds, nanoseconds)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// Reads the stamp of a file, following links, or `None` if the file cannot be found.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}
