//! `Layer`: a config file and its place in the order of layers.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::file::{self, FileText, file_problem};
use super::{Problem, Sha256Digest};

/// Kind of a layer. Later kinds are nearer and override earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LayerKind {
    /// For all users of this machine.
    Machine,
    /// The user's own.
    User,
    /// The project's. Its author may be someone other than the user.
    Project,
    /// Named on the command line, and the only layer.
    Standalone,
}

/// A config file that may exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Place in the order of layers.
    pub kind: LayerKind,
    /// Path of the file.
    pub path: PathBuf,
    /// True if a missing file is a problem.
    pub must_exist: bool,
    /// Digest of the text that the user has allowed; any other text is refused.
    pub allowed_digest: Option<Sha256Digest>,
}

impl Layer {
    /// Creates a layer whose file need not exist.
    pub fn new(kind: LayerKind, path: impl Into<PathBuf>) -> Self {
        Self { kind, path: path.into(), must_exist: false, allowed_digest: None }
    }

    /// Creates the only layer, from a file named on the command line.
    pub fn standalone(path: impl Into<PathBuf>) -> Self {
        Self { must_exist: true, ..Self::new(LayerKind::Standalone, path) }
    }

    /// Reads the file. Returns `None` if it is absent and need not exist.
    pub(super) fn read(&self) -> Result<Option<FileText>, Problem> {
        if self.kind == LayerKind::Project {
            self.check_link_target()?;
        }
        match file::read(&self.path) {
            Ok(file) if self.allowed_digest.is_some_and(|allowed| text_digest(&file.text) != allowed) => {
                let message = "the file changed since it was allowed";
                Err(file_problem(&self.path, message, "review it, then run `toolcrib allow`"))
            }
            // The text of a project's file was allowed as it is; its writer does not matter.
            Ok(file) if self.allowed_digest.is_some() => Ok(Some(FileText { problem: None, ..file })),
            Ok(file) => Ok(Some(file)),
            Err(_) if !self.must_exist && is_absent(&self.path) => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// Rejects a link to a file in another folder, so that a project cannot make toolcrib read files elsewhere.
    fn check_link_target(&self) -> Result<(), Problem> {
        let canonicalize = |path: &Path| path.canonicalize().ok();
        let folder = self.path.parent().and_then(canonicalize);
        match (canonicalize(&self.path), folder) {
            (Some(file), Some(folder)) if !file.starts_with(&folder) => {
                let message = "the file is a link to a file in another folder";
                Err(file_problem(&self.path, message, "replace the link with the file itself"))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the SHA-256 digest of a text.
pub fn text_digest(text: &str) -> Sha256Digest {
    Sha256::digest(text.as_bytes()).into()
}

fn is_absent(path: &Path) -> bool {
    matches!(std::fs::symlink_metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}
