//! `Project`: the folder that somebody works in, and the config that came with it. Such a file is inert until the person has
//! seen and allowed it, text by text: what is allowed is a digest, kept in the state folder.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use toolcrib::config::{self, Digest, Layer, Rank};

use crate::edit::file::Original;
use crate::failure::Failure;

/// The name of a project's config.
pub(crate) const FILE: &str = ".toolcrib.toml";

/// The folder that somebody works in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Project {
    /// Where its files are.
    pub(crate) folder: PathBuf,
    /// Its name, if it is a project at all.
    pub(crate) name: Option<String>,
    /// Its config, if it has one.
    pub(crate) file: Option<PathBuf>,
    state: PathBuf,
    /// Where it is written down what was allowed.
    record: PathBuf,
}

/// Whether a project's config may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It holds what the person allowed.
    Allowed(Digest),
    /// The person allowed another text.
    Changed(Digest),
    /// Nobody allowed it.
    Unseen,
}

impl Project {
    /// The project around a folder: up to the root of its repository, or the folder alone if there is none.
    pub(crate) fn around(folder: &Path, state: &Path) -> Self {
        let repository = folder.ancestors().find(|folder| is_there(&folder.join(".git")));
        let within =
            |above: &&Path| repository.is_some_and(|root| above.starts_with(root)) || *above == folder;
        let file =
            folder.ancestors().take_while(within).map(|folder| folder.join(FILE)).find(|file| is_there(file));
        let root = repository.or_else(|| file.as_deref().and_then(Path::parent));
        let name = root.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let record = record_of(file.as_deref().unwrap_or(Path::new("")), state);
        let folder = root.unwrap_or(folder).to_owned();
        Self { folder, name, file, state: state.to_owned(), record }
    }

    /// Where it is written down what was allowed: another text there changes what is in use.
    pub(crate) fn record(&self) -> &Path {
        &self.record
    }

    /// Whether its config may be used.
    pub(crate) fn standing(&self) -> Standing {
        let Some(allowed) = fs::read_to_string(&self.record).ok().as_deref().and_then(from_hex) else {
            return Standing::Unseen;
        };
        let file = self.file.as_deref().map(Original::read);
        match file {
            Some(Ok(file)) if config::digest(file.text()) == allowed => Standing::Allowed(allowed),
            _ => Standing::Changed(allowed),
        }
    }

    /// The same project without a config: one that is named on the command line stands alone.
    pub(crate) fn without_config(self) -> Self {
        Self { file: None, ..self }
    }

    /// The same project with a config at the root, which is yet to be written.
    pub(crate) fn with_config(&self) -> Self {
        let file = self.folder.join(FILE);
        Self { record: record_of(&file, &self.state), file: Some(file), ..self.clone() }
    }

    /// Its config as a layer that holds what was allowed and nothing else.
    pub(crate) fn layer(&self, allowed: Digest) -> Option<Layer> {
        let layer = Layer::new(Rank::Project, self.file.clone()?);
        Some(Layer { must_exist: true, only: Some(allowed), ..layer })
    }

    /// Notes that this text is allowed.
    pub(crate) fn allow(&self, allowed: Digest) -> Result<(), Failure> {
        let digits: String = allowed.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = self.file.as_deref().unwrap_or(Path::new("")).display();
        Original::read(&self.record)?.replace(&format!("{digits} {file}\n"))
    }

    /// Notes that nothing is allowed; whether anything was.
    pub(crate) fn revoke(&self) -> std::io::Result<bool> {
        match fs::remove_file(&self.record) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }
}

fn record_of(file: &Path, state: &Path) -> PathBuf {
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok()).unwrap_or_default();
    let digest = Sha256::digest(folder.as_os_str().as_bytes());
    let key: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    state.join("allowed").join(key)
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn from_hex(record: &str) -> Option<Digest> {
    let digits = record.split_whitespace().next().filter(|digits| digits.len() == 64 && digits.is_ascii())?;
    let mut digest = Digest::default();
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_file_up_to_the_repository_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("repo/.git")).unwrap();
        fs::create_dir_all(at("repo/a/b")).unwrap();
        fs::create_dir_all(at("plain/below")).unwrap();
        fs::write(at(FILE), "").unwrap();
        let around = |path: &str| Project::around(&at(path), &at("state"));
        assert_eq!(around("repo/a/b").file, None, "above the repository nothing is looked for");
        assert_eq!(around("repo/a").name.as_deref(), Some("repo"));
        fs::write(at("repo").join(FILE), "").unwrap();
        assert_eq!(around("repo/a/b").file, Some(at("repo").join(FILE)));
        fs::write(at("repo/a").join(FILE), "").unwrap();
        assert_eq!(around("repo/a/b").file, Some(at("repo/a").join(FILE)), "the nearest");
        assert_eq!(around("repo/a/b").folder, at("repo"));
        fs::write(at("plain").join(FILE), "").unwrap();
        assert_eq!(around("plain/below").file, None, "without a repository only the folder itself");
        assert_eq!(around("plain").file, Some(at("plain").join(FILE)));
    }

    #[test]
    fn what_is_allowed_is_a_text_and_not_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        fs::write(&file, "one").unwrap();
        let project = Project::around(dir.path(), &dir.path().join("state"));
        assert_eq!(project.standing(), Standing::Unseen);
        let one = config::digest("one");
        project.allow(one).unwrap();
        assert_eq!(project.standing(), Standing::Allowed(one));
        fs::write(&file, "two").unwrap();
        assert_eq!(project.standing(), Standing::Changed(one));
        assert!(project.revoke().unwrap() && !project.revoke().unwrap());
        assert_eq!(project.standing(), Standing::Unseen);
    }
}
