//! `Ground`: the folders that agents' paths begin with, as they are for this user in this place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::exit::Exit;
use crate::failure::Failure;

/// Where paths begin.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    home: PathBuf,
    /// The folder of settings on this system.
    settings: PathBuf,
    /// The folder of settings of programs with windows; elsewhere the same.
    applications: PathBuf,
    /// The root of the project around the current folder.
    pub(crate) project: PathBuf,
    variables: Vec<(String, OsString)>,
}

impl Ground {
    /// The ground under this process.
    pub(crate) fn find() -> Result<Self, Failure> {
        let here = std::env::current_dir().map_err(|error| {
            Failure::new(Exit::Unexpected, "no_folder", format!("the current folder cannot be used: {error}"))
        })?;
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self::of(variables.filter(|(_, value)| !value.is_empty()).collect(), &here)
    }

    /// The ground that variables and a folder make.
    pub(crate) fn of(variables: Vec<(String, OsString)>, here: &Path) -> Result<Self, Failure> {
        let find =
            |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| PathBuf::from(value));
        let home = find("HOME").ok_or_else(|| {
            Failure::new(
                Exit::Unexpected,
                "no_home",
                "`HOME` is not set, and agents keep their files below it",
            )
            .hint("HOME=/some/folder toolcrib …")
        })?;
        let settings =
            find("XDG_CONFIG_HOME").filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(".config"));
        let applications = if cfg!(target_os = "macos") {
            home.join("Library/Application Support")
        } else {
            settings.clone()
        };
        Ok(Self { home, settings, applications, project: root_of(here), variables })
    }

    /// A path of the table; `None` if the variable that it begins with is not set.
    pub(crate) fn path(&self, written: &str) -> Option<PathBuf> {
        let (first, rest) = written.split_once('/').unwrap_or((written, ""));
        let start = match first {
            "~" => self.home.clone(),
            "XDG" => self.settings.clone(),
            "APP" => self.applications.clone(),
            _ => match first.strip_prefix('$') {
                Some(name) => PathBuf::from(self.variable(name)?),
                None => return Some(self.project.join(written)),
            },
        };
        Some(if rest.is_empty() { start } else { start.join(rest) })
    }

    /// The value of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsString> {
        self.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The path with `~` for the home folder, as people write it.
    pub(crate) fn shown(&self, path: &Path) -> String {
        match path.strip_prefix(&self.home) {
            Ok(below) => format!("~/{}", below.display()),
            Err(_) => path.display().to_string(),
        }
    }
}

/// The nearest folder up that is a repository, else the folder itself.
fn root_of(here: &Path) -> PathBuf {
    let repository = here.ancestors().find(|folder| folder.join(".git").exists());
    repository.unwrap_or(here).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_where_the_environment_says() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("p");
        std::fs::create_dir_all(project.join(".git")).unwrap();
        std::fs::create_dir_all(project.join("src/deep")).unwrap();
        let set = |name: &str, value: &str| (name.to_owned(), OsString::from(value));
        let ground =
            Ground::of(vec![set("HOME", "/h"), set("CODEX_HOME", "/c")], &project.join("src/deep")).unwrap();
        let path = |written| ground.path(written).map(|path| path.display().to_string());
        assert_eq!(path("~/.claude.json").as_deref(), Some("/h/.claude.json"));
        assert_eq!(path("XDG/zed/x").as_deref(), Some("/h/.config/zed/x"));
        assert_eq!(path("$CODEX_HOME/config.toml").as_deref(), Some("/c/config.toml"));
        assert_eq!(path("$COPILOT_HOME/x"), None);
        assert_eq!(ground.path(".mcp.json"), Some(project.join(".mcp.json")));
        assert_eq!(ground.shown(Path::new("/h/a/b")), "~/a/b");
        assert!(Ground::of(Vec::new(), &project).is_err());
    }
}
