//! `Layer`: a config file and how near it is. Finds out what is in each, and is, with what it calls, the only file access of
//! the config.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::{Concern, Digest, Problem, file};

/// How near a file is: those that come later win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// For everybody on this machine.
    Machine,
    /// One person's.
    User,
    /// A project's, which came from wherever the project came from.
    Project,
    /// Named on the command line: there is no other.
    Alone,
}

/// A config file that may be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// How near it is.
    pub rank: Rank,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it is a mistake if it is not there.
    pub must_exist: bool,
    /// The only text it may hold, by its digest: what the person has seen and allowed.
    pub only: Option<Digest>,
}

impl Layer {
    /// A file that may be there or not.
    pub fn new(rank: Rank, path: impl Into<PathBuf>) -> Self {
        Self { rank, path: path.into(), must_exist: false, only: None }
    }

    /// The file that is named on the command line.
    pub fn alone(path: impl Into<PathBuf>) -> Self {
        Self { must_exist: true, ..Self::new(Rank::Alone, path) }
    }

    /// Its text; `None` if it is not there and need not be. The second problem does not keep the text from being read.
    pub(super) fn read(&self) -> Result<Option<(String, Option<Problem>)>, Problem> {
        if self.rank == Rank::Project {
            self.stays_in_its_folder()?;
        }
        match file::read(&self.path) {
            Ok((text, _)) if self.only.is_some_and(|only| digest(&text) != only) => {
                let message = "this file changed since it was allowed";
                Err(self.problem(message, "look at it, then type `toolcrib allow`"))
            }
            Ok(read) => Ok(Some(read)),
            Err(_) if !self.must_exist && is_absent(&self.path) => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// What came with a project may not make us read what is elsewhere.
    fn stays_in_its_folder(&self) -> Result<(), Problem> {
        let real = |path: &Path| path.canonicalize().ok();
        let folder = self.path.parent().and_then(real);
        match (real(&self.path), folder) {
            (Some(file), Some(folder)) if !file.starts_with(&folder) => {
                Err(self.problem("this is a link that leads out of its folder", "put the file itself there"))
            }
            _ => Ok(()),
        }
    }

    fn problem(&self, message: &str, hint: &str) -> Problem {
        let (message, hint) = (message.to_owned(), Some(hint.to_owned()));
        Problem { file: self.path.clone(), at: None, concerns: Concern::Whole, message, hint }
    }
}

/// By which a text is known again.
pub fn digest(text: &str) -> Digest {
    Sha256::digest(text.as_bytes()).into()
}

fn is_absent(path: &Path) -> bool {
    matches!(std::fs::symlink_metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}
