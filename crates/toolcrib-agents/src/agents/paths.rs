//! The directories that agents' paths start from, for the current user, project and environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{AgentErrorKind, Error};

/// Resolves the paths of the agent table.
#[derive(Debug, Clone)]
pub struct AgentPaths {
    home_dir: PathBuf,
    /// `XDG_CONFIG_HOME` or its default.
    config_dir: PathBuf,
    /// Config directory of desktop programs; differs from `config_dir` only on macOS.
    app_config_dir: PathBuf,
    /// Root of the project that contains the current directory.
    pub(crate) project: PathBuf,
    variables: Vec<(String, OsString)>,
}

impl AgentPaths {
    /// Reads the environment and the current directory of this process.
    ///
    /// # Errors
    ///
    /// Fails if the current directory cannot be read or `HOME` is not set.
    pub fn from_env() -> Result<Self, Error> {
        let current_dir = std::env::current_dir().map_err(|error| {
            let message = format!("cannot read the current directory: {error}");
            Error::new(AgentErrorKind::NoCurrentDir, message)
        })?;
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self::new(variables.filter(|(_, value)| !value.is_empty()).collect(), &current_dir)
    }

    /// Creates the paths from environment variables and a current directory.
    ///
    /// # Errors
    ///
    /// Fails if `HOME` is not among the variables.
    pub fn new(variables: Vec<(String, OsString)>, current_dir: &Path) -> Result<Self, Error> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| PathBuf::from(value));
        let home_dir = get("HOME").ok_or_else(|| {
            Error::new(AgentErrorKind::NoHome, "`HOME` is not set; agents keep their config files in it")
                .with_hint("set `HOME` to your home directory")
        })?;
        let config_dir = get("XDG_CONFIG_HOME")
            .filter(|path| path.is_absolute())
            .unwrap_or_else(|| home_dir.join(".config"));
        let app_config_dir = if cfg!(target_os = "macos") {
            home_dir.join("Library/Application Support")
        } else {
            config_dir.clone()
        };
        Ok(Self { home_dir, config_dir, app_config_dir, project: find_project_root(current_dir), variables })
    }

    /// Resolves a path of the agent table; `None` if its variable is not set.
    pub(crate) fn resolve(&self, path_template: &str) -> Option<PathBuf> {
        let (first, rest) = path_template.split_once('/').unwrap_or((path_template, ""));
        let start = match first {
            "~" => self.home_dir.clone(),
            "XDG" => self.config_dir.clone(),
            "APP" => self.app_config_dir.clone(),
            _ => match first.strip_prefix('$') {
                Some(name) => PathBuf::from(self.variable(name)?),
                None => return Some(self.project.join(path_template)),
            },
        };
        Some(if rest.is_empty() { start } else { start.join(rest) })
    }

    /// Returns whether a path of the agent table belongs to the user and not to a project.
    pub(crate) fn is_user_path(path_template: &str) -> bool {
        let first = path_template.split('/').next().unwrap_or_default();
        matches!(first, "~" | "XDG" | "APP") || first.starts_with('$')
    }

    /// Returns the value of an environment variable.
    pub fn variable(&self, name: &str) -> Option<&OsString> {
        self.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns the names of the environment variables.
    pub(crate) fn variable_names(&self) -> impl Iterator<Item = String> {
        self.variables.iter().map(|(name, _)| name.clone())
    }

    /// Formats a path with `~` for the home directory.
    pub fn abbreviate(&self, path: &Path) -> String {
        match path.strip_prefix(&self.home_dir) {
            Ok(below) => format!("~/{}", below.display()),
            Err(_) => path.display().to_string(),
        }
    }
}

/// Returns the closest ancestor that is a Git repository, else the directory itself.
fn find_project_root(current_dir: &Path) -> PathBuf {
    let repository = current_dir.ancestors().find(|dir| dir.join(".git").exists());
    repository.unwrap_or(current_dir).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_paths_are_told_from_project_paths() {
        let user_paths =
            ["~/.cursor/mcp.json", "~", "$CODEX_HOME/config.toml", "XDG/goose/config.yaml", "APP/x"];
        let project_paths = [".mcp.json", "Xcode/mcp.json", "AGENTS/mcp.json", "APPS/x", "XDGx", "~x/y"];
        assert!(user_paths.into_iter().all(AgentPaths::is_user_path));
        for path in project_paths {
            assert!(!AgentPaths::is_user_path(path), "{path}");
        }
    }

    #[test]
    fn paths_resolve_from_environment_and_project() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("p");
        std::fs::create_dir_all(project.join(".git")).unwrap();
        std::fs::create_dir_all(project.join("src/deep")).unwrap();
        let set = |name: &str, value: &str| (name.to_owned(), OsString::from(value));
        let paths =
            AgentPaths::new(vec![set("HOME", "/h"), set("CODEX_HOME", "/c")], &project.join("src/deep"))
                .unwrap();
        let path = |path_template| paths.resolve(path_template).map(|path| path.display().to_string());
        assert_eq!(path("~/.claude.json").as_deref(), Some("/h/.claude.json"));
        assert_eq!(path("XDG/zed/x").as_deref(), Some("/h/.config/zed/x"));
        assert_eq!(path("$CODEX_HOME/config.toml").as_deref(), Some("/c/config.toml"));
        assert_eq!(path("$COPILOT_HOME/x"), None);
        assert_eq!(paths.resolve(".mcp.json"), Some(project.join(".mcp.json")));
        assert_eq!(paths.abbreviate(Path::new("/h/a/b")), "~/a/b");
        assert!(AgentPaths::new(Vec::new(), &project).is_err());
    }
}
