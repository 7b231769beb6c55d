//! The project folder and its config file. The file is ignored until a person allows it; the digest of the allowed text is
//! kept in the state folder, so a changed file must be allowed again.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use toolcrib::config::{self, Layer, LayerKind, Sha256Digest};
use toolcrib::util::encoding;
use toolcrib_agents::edit::file::OriginalFile;

use crate::command_error::CommandError;

/// The file name of a project's config.
pub(crate) const PROJECT_FILE: &str = ".toolcrib.toml";

/// The project that contains the working folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProjectFolder {
    /// The root folder of the project, or the working folder.
    pub(crate) folder: PathBuf,
    /// The name of the project, if there is one.
    pub(crate) name: Option<String>,
    /// The config file of the project, if it has one.
    pub(crate) file: Option<PathBuf>,
    state_dir: PathBuf,
    /// The file that holds the digest of the allowed text.
    trust_record: PathBuf,
}

/// The state of the permission for a project's config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrustState {
    /// The file has the allowed text.
    Allowed(Sha256Digest),
    /// The file has changed since it was allowed.
    Changed(Sha256Digest),
    /// The file was never allowed.
    NotAllowed,
}

impl ProjectFolder {
    /// Finds the project of a folder. The config is searched from the folder up to the root of its repository, or only in the
    /// folder itself if it is not in a repository.
    pub(crate) fn find(folder: &Path, state_dir: &Path) -> Self {
        let repository = folder.ancestors().find(|folder| exists(&folder.join(".git")));
        let is_searched =
            |above: &&Path| repository.is_some_and(|root| above.starts_with(root)) || *above == folder;
        let file = folder
            .ancestors()
            .take_while(is_searched)
            .map(|folder| folder.join(PROJECT_FILE))
            .find(|file| exists(file));
        let root = repository.or_else(|| file.as_deref().and_then(Path::parent));
        let name = root.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let trust_record = trust_record_path(file.as_deref().unwrap_or(Path::new("")), state_dir);
        let folder = root.unwrap_or(folder).to_owned();
        Self { folder, name, file, state_dir: state_dir.to_owned(), trust_record }
    }

    /// Returns the path of the file that holds the digest of the allowed text.
    pub(crate) fn trust_record(&self) -> &Path {
        &self.trust_record
    }

    /// Returns whether the config may be used.
    pub(crate) fn trust_state(&self) -> TrustState {
        let Some(allowed) = fs::read_to_string(&self.trust_record).ok().as_deref().and_then(parse_digest)
        else {
            return TrustState::NotAllowed;
        };
        let file = self.file.as_deref().map(OriginalFile::read);
        match file {
            Some(Ok(file)) if config::text_digest(file.text()) == allowed => TrustState::Allowed(allowed),
            _ => TrustState::Changed(allowed),
        }
    }

    /// Returns the project without its config, for use with `--config`.
    pub(crate) fn without_config(self) -> Self {
        Self { file: None, ..self }
    }

    /// Returns the project with a config at its root, which need not exist yet.
    pub(crate) fn with_config(&self) -> Self {
        let file = self.folder.join(PROJECT_FILE);
        Self { trust_record: trust_record_path(&file, &self.state_dir), file: Some(file), ..self.clone() }
    }

    /// Returns the config as a layer that is only valid with the allowed text.
    pub(crate) fn layer(&self, allowed: Sha256Digest) -> Option<Layer> {
        let layer = Layer::new(LayerKind::Project, self.file.clone()?);
        Some(Layer { must_exist: true, allowed_digest: Some(allowed), ..layer })
    }

    /// Records that the text with this digest is allowed.
    pub(crate) fn allow(&self, allowed: Sha256Digest) -> Result<(), CommandError> {
        let digits = encoding::to_hex(&allowed);
        let file = self.file.as_deref().unwrap_or(Path::new("")).display();
        OriginalFile::read(&self.trust_record)?.replace(&format!("{digits} {file}\n"))?;
        Ok(())
    }

    /// Revokes the permission. Returns whether there was one.
    pub(crate) fn revoke(&self) -> std::io::Result<bool> {
        match fs::remove_file(&self.trust_record) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }
}

fn trust_record_path(file: &Path, state_dir: &Path) -> PathBuf {
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok()).unwrap_or_default();
    let digest = Sha256::digest(folder.as_os_str().as_bytes());
    let key = encoding::to_hex(&digest[..8]);
    state_dir.join("allowed").join(key)
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn parse_digest(record: &str) -> Option<Sha256Digest> {
    encoding::parse_hex(record.split_whitespace().next()?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_searches_up_to_repository_root() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("repo/.git")).unwrap();
        fs::create_dir_all(at("repo/a/b")).unwrap();
        fs::create_dir_all(at("plain/below")).unwrap();
        fs::write(at(PROJECT_FILE), "").unwrap();
        let find = |path: &str| ProjectFolder::find(&at(path), &at("state"));
        assert_eq!(find("repo/a/b").file, None, "files above the repository are ignored");
        assert_eq!(find("repo/a").name.as_deref(), Some("repo"));
        fs::write(at("repo").join(PROJECT_FILE), "").unwrap();
        assert_eq!(find("repo/a/b").file, Some(at("repo").join(PROJECT_FILE)));
        fs::write(at("repo/a").join(PROJECT_FILE), "").unwrap();
        assert_eq!(find("repo/a/b").file, Some(at("repo/a").join(PROJECT_FILE)), "the nearest file wins");
        assert_eq!(find("repo/a/b").folder, at("repo"));
        fs::write(at("plain").join(PROJECT_FILE), "").unwrap();
        assert_eq!(find("plain/below").file, None, "without a repository only the folder itself is searched");
        assert_eq!(find("plain").file, Some(at("plain").join(PROJECT_FILE)));
    }

    #[test]
    fn trust_state_follows_file_text() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(PROJECT_FILE);
        fs::write(&file, "one").unwrap();
        let project = ProjectFolder::find(dir.path(), &dir.path().join("state"));
        assert_eq!(project.trust_state(), TrustState::NotAllowed);
        let one = config::text_digest("one");
        project.allow(one).unwrap();
        assert_eq!(project.trust_state(), TrustState::Allowed(one));
        fs::write(&file, "two").unwrap();
        assert_eq!(project.trust_state(), TrustState::Changed(one));
        assert!(project.revoke().unwrap() && !project.revoke().unwrap());
        assert_eq!(project.trust_state(), TrustState::NotAllowed);
    }
}
