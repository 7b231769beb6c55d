//! Locations of files: the config, the state and the gateway's socket.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use toolcrib::config::{Config, Layer, LayerKind};
use toolcrib::util::encoding;

use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::hints::Hints;
use crate::project::{ProjectFolder, TrustState};
use crate::sources::ConfigSources;

/// The maximum length of a socket path, a little below the limit of every supported system.
const MAX_SOCKET_PATH: usize = 100;

/// The config for all users of the machine.
const MACHINE_CONFIG: &str = "/etc/toolcrib/config.toml";

/// The locations of all files of one invocation.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// The config file of `--config`, or else the user's config.
    pub(crate) config: PathBuf,
    /// True if `config` is the file that is used without `--config`.
    is_default_config: bool,
    /// The project's config, if it was ever allowed and `--config` is not given. Such a project has its own gateway.
    project: Option<PathBuf>,
    sources: ConfigSources,
    state_dir: PathBuf,
    run_dir: PathBuf,
}

/// The folders that the environment selects.
struct BaseDirs {
    /// The default config file. An error if there is no home folder.
    config: Result<PathBuf, CommandError>,
    /// True if the machine-wide config applies.
    has_machine_config: bool,
    state_dir: PathBuf,
    run_dir: PathBuf,
}

impl BaseDirs {
    fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Self, CommandError> {
        let dir = |name: &str| env(name).map(PathBuf::from);
        if let Some(home) = dir("TOOLCRIB_HOME") {
            let home = std::path::absolute(&home).unwrap_or(home);
            return Ok(Self {
                config: Ok(home.join("config.toml")),
                has_machine_config: false,
                state_dir: home.join("state"),
                run_dir: home.join("run"),
            });
        }
        // The XDG specification says to ignore relative paths.
        let xdg_dir = |name: &str| dir(name).filter(|path| path.is_absolute());
        let home_dir = |below: &str| {
            let home = dir("HOME").ok_or_else(|| {
                CommandError::new(ExitStatus::Failure, "no_home", "neither `TOOLCRIB_HOME` nor `HOME` is set")
                    .hint("TOOLCRIB_HOME=/some/folder toolcrib …")
            });
            home.map(|home| home.join(below))
        };
        let own_dir = |name: &str, below: &str| {
            xdg_dir(name).map_or_else(|| home_dir(below), Ok).map(|dir| dir.join("toolcrib"))
        };
        // Agents often start commands with a filtered environment.
        let run_dir = xdg_dir("XDG_RUNTIME_DIR").or_else(user_runtime_dir).map(|dir| dir.join("toolcrib"));
        Ok(Self {
            config: own_dir("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("config.toml")),
            has_machine_config: true,
            state_dir: own_dir("XDG_STATE_HOME", ".local/state")?,
            run_dir: run_dir.unwrap_or_else(temp_run_dir),
        })
    }
}

impl Paths {
    /// Returns the locations for this process. With `config`, that file is the whole config.
    pub(crate) fn find(config: Option<&Path>) -> Result<Self, CommandError> {
        let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::from_env(config, &folder, env)
    }

    fn from_env(
        config: Option<&Path>,
        folder: &Path,
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, CommandError> {
        let base = BaseDirs::from_env(env)?;
        let project = ProjectFolder::find(folder, &base.state_dir);
        let paths = match config {
            Some(file) => Self::with_config(file, base, project.without_config()),
            None => Self::with_default_config(base, project)?,
        };
        Ok(paths.with_short_socket())
    }

    /// Returns the locations for a config that is named on the command line.
    fn with_config(file: &Path, base: BaseDirs, project: ProjectFolder) -> Self {
        let is_default_config =
            base.config.is_ok_and(|default| canonical_path(&default) == canonical_path(file));
        let folder = project.folder.clone();
        Self {
            config: file.to_owned(),
            is_default_config,
            project: None,
            sources: ConfigSources::new(vec![Layer::standalone(file)], Some(project), folder),
            state_dir: base.state_dir,
            run_dir: base.run_dir,
        }
    }

    /// Returns the locations for the layered config: machine, user and project.
    fn with_default_config(base: BaseDirs, project: ProjectFolder) -> Result<Self, CommandError> {
        let config = base.config?;
        let machine = base.has_machine_config.then(|| Layer::new(LayerKind::Machine, MACHINE_CONFIG));
        let layers = machine.into_iter().chain([Layer::new(LayerKind::User, &config)]);
        // A file that exists now and is missing later is an error, not an empty config.
        let layers = layers.map(|layer| Layer { must_exist: layer.path.exists(), ..layer }).collect();
        let allowed_file = project.file.clone().filter(|_| project.trust_state() != TrustState::NotAllowed);
        let folder = project.folder.clone();
        Ok(Self {
            config,
            is_default_config: true,
            project: allowed_file,
            sources: ConfigSources::new(layers, Some(project), folder),
            state_dir: base.state_dir,
            run_dir: base.run_dir,
        })
    }

    /// Returns locations that are all inside one folder, as with `TOOLCRIB_HOME`.
    pub(crate) fn under(home: &Path) -> Self {
        let config = home.join("config.toml");
        let paths = Self {
            sources: ConfigSources::single_file(&config),
            config,
            is_default_config: true,
            project: None,
            state_dir: home.join("state"),
            run_dir: home.join("run"),
        };
        paths.with_short_socket()
    }

    /// Moves the socket to the temporary folder if its path would be too long. The config key still makes it unique.
    fn with_short_socket(mut self) -> Self {
        if self.socket_path().as_os_str().len() > MAX_SOCKET_PATH {
            self.run_dir = temp_run_dir();
        }
        self
    }

    /// Returns the locations without the project of the working folder.
    pub(crate) fn without_project(self) -> Self {
        Self { project: None, ..self }
    }

    /// Returns the working folder of a gateway in the background, which no agent chooses: that of the project's config or of
    /// the config, or the nearest one above that exists.
    pub(crate) fn gateway_folder(&self) -> &Path {
        let file = self.project.as_deref().unwrap_or(&self.config);
        file.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("/"))
    }

    /// Returns the name of the service of this config.
    pub(crate) fn service_name(&self) -> String {
        match self.is_default_config {
            true => "toolcrib".to_owned(),
            false => format!("toolcrib-{}", self.config_key()),
        }
    }

    /// Returns the hints for this config.
    pub(crate) fn hints(&self) -> Hints {
        if self.is_default_config { Hints::default() } else { Hints::for_config(&self.config) }
    }

    /// Returns the folder for state that outlives the process.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Returns the folder of the server logs. Configs other than the default have their own, because their servers may have
    /// the same names.
    pub(crate) fn log_dir(&self) -> PathBuf {
        match self.is_default_config && self.project.is_none() {
            true => self.state_dir.join("logs"),
            false => self.state_dir.join(format!("logs-{}", self.config_key())),
        }
    }

    /// Returns the folder of the history of calls and events. Configs other than the default have their own.
    pub(crate) fn history_dir(&self) -> PathBuf {
        match self.is_default_config && self.project.is_none() {
            true => self.state_dir.join("history"),
            false => self.state_dir.join(format!("history-{}", self.config_key())),
        }
    }

    /// Returns the file that stores how much of the quotas is used.
    pub(crate) fn usage_file(&self) -> PathBuf {
        match self.is_default_config && self.project.is_none() {
            true => self.state_dir.join("quota.json"),
            false => self.state_dir.join(format!("quota-{}.json", self.config_key())),
        }
    }

    /// Returns the file with the key that signs states which clients return. Configs other than the default have their own,
    /// because a gateway must not mistake the states of another gateway behind it for its own.
    pub(crate) fn signing_key_file(&self) -> PathBuf {
        match self.is_default_config && self.project.is_none() {
            true => self.state_dir.join("signing.key"),
            false => self.state_dir.join(format!("signing-{}.key", self.config_key())),
        }
    }

    /// Returns the location of secrets that are not in a keyring. All configs of a user share it.
    pub(crate) fn secrets_path(&self) -> PathBuf {
        self.state_dir.join("secrets")
    }

    /// Returns the folder of the approved tool definitions. Configs other than the default have their own.
    pub(crate) fn pins_dir(&self) -> PathBuf {
        match self.is_default_config {
            true => self.state_dir.join("pins"),
            false => self.state_dir.join(format!("pins-{}", self.config_key())),
        }
    }

    /// Returns the path of the socket of the gateway for this config.
    pub(crate) fn socket_path(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.config_key()))
    }

    /// Returns the path of the lock file that the gateway for this config holds while it runs.
    pub(crate) fn lock_path(&self) -> PathBuf {
        self.run_dir.join(format!("{}.lock", self.config_key()))
    }

    /// Returns the paths where the gateway for this config may listen: its socket as this environment determines it, and the
    /// address that a gateway in another environment recorded.
    pub(crate) fn socket_candidates(&self) -> Vec<PathBuf> {
        let own = self.socket_path();
        let recorded = fs::read_to_string(self.address_record()).ok().map(PathBuf::from);
        let recorded = recorded.filter(|path| path.is_absolute() && *path != own);
        [own].into_iter().chain(recorded).collect()
    }

    /// Returns the file in which a running gateway records the path of its socket.
    pub(crate) fn address_record(&self) -> PathBuf {
        self.gateways_dir().join(format!("{}.address", self.config_key()))
    }

    /// Returns the file that a process locks while it starts a gateway in the background.
    pub(crate) fn start_lock_path(&self) -> PathBuf {
        self.gateways_dir().join(format!("{}.start", self.config_key()))
    }

    /// Returns the folder of records about gateways.
    pub(crate) fn gateways_dir(&self) -> PathBuf {
        self.state_dir.join("gateways")
    }

    /// Returns the log file of a gateway that was started in the background.
    pub(crate) fn gateway_log(&self) -> PathBuf {
        match self.is_default_config && self.project.is_none() {
            true => self.state_dir.join("gateway.log"),
            false => self.state_dir.join(format!("gateway-{}.log", self.config_key())),
        }
    }

    /// Returns 16 hex digits that identify the config file and the project, independent of how their paths are spelled.
    fn config_key(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(canonical_path(&self.config).as_os_str().as_bytes());
        if let Some(project) = &self.project {
            hasher.update([0]);
            hasher.update(canonical_path(project).as_os_str().as_bytes());
        }
        let digest = hasher.finalize();
        encoding::to_hex(&digest[..8])
    }

    /// Creates the folder of the socket, accessible to this user only.
    pub(crate) fn create_run_dir(&self) -> Result<(), CommandError> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.run_dir);
        created.map_err(|error| socket_dir_error(&self.run_dir, &format!("cannot be created: {error}")))?;
        check_socket_dir(&self.run_dir)
    }

    /// Returns the files that make up the config.
    pub(crate) fn sources(&self) -> &ConfigSources {
        &self.sources
    }

    /// Reads the config, which may have problems.
    pub(crate) fn read_config(&self) -> Result<Config, CommandError> {
        if self.sources.any_exists() { Ok(self.sources.load()) } else { Err(self.missing_config_error()) }
    }

    /// Reads the config. Fails if it cannot be used.
    pub(crate) fn valid_config(&self) -> Result<Config, CommandError> {
        let config = self.read_config()?;
        if config.is_refused() { Err(CommandError::invalid_config(&config)) } else { Ok(config) }
    }

    /// Returns whether any config file exists.
    pub(crate) fn has_config(&self) -> bool {
        self.sources.any_exists()
    }

    /// Returns the error for a missing config, with the commands that write one.
    pub(crate) fn missing_config_error(&self) -> CommandError {
        let file = self.config.display();
        CommandError::new(ExitStatus::InvalidConfig, "no_config", format!("config file not found: `{file}`"))
            .hint("`toolcrib init` sets it up for your agents; `toolcrib add time -- uvx mcp-server-time` declares a server")
    }
}

/// Returns the path of one server's log file.
pub(crate) fn log_file(folder: &Path, server: &str) -> PathBuf {
    folder.join(format!("{server}.log"))
}

/// Refuses a folder of sockets and lock files that other users can replace or write to.
pub(crate) fn check_socket_dir(dir: &Path) -> Result<(), CommandError> {
    let is_temporary = dir == temp_run_dir();
    // The owner of a link can change its target at any time, so links are not followed.
    let metadata = match fs::symlink_metadata(dir) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(socket_dir_error(dir, &error.to_string())),
    };
    if !metadata.is_dir() {
        return Err(socket_dir_error(dir, "is not a folder"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(socket_dir_error(dir, "belongs to another user"));
    }
    let forbidden = if is_temporary { 0o077 } else { 0o022 };
    match metadata.mode() & forbidden {
        0 => Ok(()),
        _ => Err(socket_dir_error(dir, "is accessible to other users")
            .hint(format!("chmod 700 {}", dir.display()))),
    }
}

fn socket_dir_error(dir: &Path, reason: &str) -> CommandError {
    let message = format!("the folder of the gateway's socket, `{}`, {reason}", dir.display());
    CommandError::new(ExitStatus::Failure, "unsafe_folder", message)
        .hint("set `TOOLCRIB_HOME` to a folder of your own")
}

/// Returns the folder that `XDG_RUNTIME_DIR` usually names, if this user has one.
fn user_runtime_dir() -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let dir = PathBuf::from(format!("/run/user/{uid}"));
    fs::metadata(&dir).is_ok_and(|found| found.is_dir() && found.uid() == uid).then_some(dir)
}

/// Returns the fallback folder for sockets: in the temporary folder, one per user.
fn temp_run_dir() -> PathBuf {
    std::env::temp_dir().join(format!("toolcrib-{}", rustix::process::geteuid().as_raw()))
}

/// Resolves links in a path. If the file does not exist, only those of its folder.
fn canonical_path(path: &Path) -> PathBuf {
    if let Ok(canonical) = path.canonicalize() {
        return canonical;
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn paths(config: Option<&str>, env: &[(&str, &str)]) -> Paths {
        let find =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        Paths::from_env(config.map(Path::new), Path::new("/nowhere"), find).unwrap()
    }

    #[test]
    fn toolcrib_home_moves_everything() {
        let paths = paths(None, &[("TOOLCRIB_HOME", "/t"), ("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(paths.config, Path::new("/t/config.toml"));
        assert_eq!(paths.state_dir(), Path::new("/t/state"));
        assert!(paths.socket_path().starts_with("/t/run"));
    }

    #[test]
    fn paths_default_to_xdg_folders() {
        let default = paths(None, &[("HOME", "/h"), ("XDG_STATE_HOME", "relative")]);
        assert_eq!(default.config, Path::new("/h/.config/toolcrib/config.toml"));
        assert_eq!(default.state_dir(), Path::new("/h/.local/state/toolcrib"));
        let run_dir = user_runtime_dir().map_or_else(temp_run_dir, |dir| dir.join("toolcrib"));
        assert_eq!(default.run_dir, run_dir);
        let moved = paths(None, &[("HOME", "/h"), ("XDG_CONFIG_HOME", "/c"), ("XDG_RUNTIME_DIR", "/r")]);
        assert_eq!(moved.config, Path::new("/c/toolcrib/config.toml"));
        assert!(moved.socket_path().starts_with("/r/toolcrib"));
        assert!(Paths::from_env(None, Path::new("/"), |_| None).is_err());
    }

    #[test]
    fn socket_path_is_independent_of_config_spelling() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, dir.path().join("link.toml")).unwrap();
        let env = [("TOOLCRIB_HOME", "/t")];
        let socket = |name: &str| paths(Some(dir.path().join(name).to_str().unwrap()), &env).socket_path();
        assert_eq!(socket("a.toml"), socket("./a.toml"));
        assert_eq!(socket("a.toml"), socket("link.toml"));
        assert_ne!(socket("a.toml"), socket("b.toml"));
    }

    #[test]
    fn socket_path_stays_short_in_deep_home() {
        let deep = paths(None, &[("TOOLCRIB_HOME", &format!("/{}", "x".repeat(200)))]);
        assert!(deep.socket_path().as_os_str().len() <= MAX_SOCKET_PATH);
    }

    #[test]
    fn run_dir_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::under(dir.path());
        paths.create_run_dir().unwrap();
        assert_eq!(fs::metadata(&paths.run_dir).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&paths.run_dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(paths.create_run_dir().is_err());
        assert!(check_socket_dir(&paths.run_dir).is_err());
    }
}
