//! Where files are: the config, what is remembered, and the daemon's socket.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use toolcrib::config::{Config, Layer, Rank};

use crate::advice::Advice;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::project::{Project, Standing};
use crate::sources::Sources;

/// The longest socket path that every system takes, with room to spare.
const LONGEST_SOCKET: usize = 100;

/// The config of everybody on this machine.
const MACHINE: &str = "/etc/toolcrib/config.toml";

/// What to put into a config file that is not there yet.
const EXAMPLE: &str = "[servers.time]\ncommand = \"uvx\"\nargs = [\"mcp-server-time\"]";

/// Where files are.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The config file that was named, or else the person's own.
    pub(crate) config: PathBuf,
    /// Whether that is the one that is used when none is named.
    usual: bool,
    /// The project's config, if it is not named on the command line and was ever allowed: it has a gateway of its own.
    project: Option<PathBuf>,
    sources: Sources,
    state: PathBuf,
    run: PathBuf,
}

impl Place {
    /// The places of this invocation: `config` alone if it is given, else where the environment says.
    pub(crate) fn find(config: Option<&Path>) -> Result<Self, Failure> {
        let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::from_env(config, &folder, env)
    }

    fn from_env(
        config: Option<&Path>,
        folder: &Path,
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let dir = |name: &str| env(name).map(PathBuf::from);
        // Relative XDG folders are to be ignored, says their specification.
        let xdg = |name: &str| dir(name).filter(|path| path.is_absolute());
        let own = dir("TOOLCRIB_HOME").map(|home| std::path::absolute(&home).unwrap_or(home));
        let home = |below: &str| {
            let home = dir("HOME").ok_or_else(|| {
                Failure::new(Exit::Unexpected, "no_home", "neither `TOOLCRIB_HOME` nor `HOME` is set")
                    .hint("TOOLCRIB_HOME=/some/folder toolcrib …")
            });
            home.map(|home| home.join(below))
        };
        let usual = |name: &str, below: &str| {
            xdg(name).map_or_else(|| home(below), Ok).map(|dir| dir.join("toolcrib"))
        };
        let unnamed = match &own {
            Some(own) => Ok(own.join("config.toml")),
            None => usual("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("config.toml")),
        };
        let machine = own.is_none().then(|| Layer::new(Rank::Machine, MACHINE));
        let (state, run) = match own {
            Some(own) => (own.join("state"), own.join("run")),
            None => {
                let run = xdg("XDG_RUNTIME_DIR").map(|dir| dir.join("toolcrib"));
                (usual("XDG_STATE_HOME", ".local/state")?, run.unwrap_or_else(shared_run))
            }
        };
        let project = Project::around(folder, &state);
        let place = match (config, unnamed) {
            (Some(file), unnamed) => {
                let usual = unnamed.is_ok_and(|unnamed| canonical(&unnamed) == canonical(file));
                let nameless = project.without_config();
                let folder = nameless.folder.clone();
                let sources = Sources::new(vec![Layer::alone(file)], Some(nameless), folder);
                Self { config: file.to_owned(), usual, project: None, sources, state, run }
            }
            (None, unnamed) => {
                let config = unnamed?;
                let layers = machine.into_iter().chain([Layer::new(Rank::User, &config)]);
                // What is there now and gone later was not meant to go.
                let layers = layers.map(|layer| Layer { must_exist: layer.path.exists(), ..layer }).collect();
                let known = project.file.clone().filter(|_| project.standing() != Standing::Unseen);
                let folder = project.folder.clone();
                let sources = Sources::new(layers, Some(project), folder);
                Self { config, usual: true, project: known, sources, state, run }
            }
        };
        Ok(place.with_short_socket())
    }

    /// Everything below one folder, as with `TOOLCRIB_HOME`.
    pub(crate) fn below(home: &Path) -> Self {
        let (config, state, run) = (home.join("config.toml"), home.join("state"), home.join("run"));
        let sources = Sources::alone(&config);
        Self { config, usual: true, project: None, sources, state, run }.with_short_socket()
    }

    /// Socket paths have a length limit that a deep home can break; the key alone tells daemons apart anywhere.
    fn with_short_socket(mut self) -> Self {
        if self.socket().as_os_str().len() > LONGEST_SOCKET {
            self.run = shared_run();
        }
        self
    }

    /// What to type for this config.
    pub(crate) fn advice(&self) -> Advice {
        if self.usual { Advice::default() } else { Advice::naming(&self.config) }
    }

    /// Where things are remembered between runs.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Where the daemon of this config keeps a log of each server. Daemons of other configs may have servers of the same
    /// names.
    pub(crate) fn logs(&self) -> PathBuf {
        match self.usual && self.project.is_none() {
            true => self.state.join("logs"),
            false => self.state.join(format!("logs-{}", self.key())),
        }
    }

    /// Where is remembered what was used of the quotas of this config.
    pub(crate) fn quota(&self) -> PathBuf {
        match self.usual && self.project.is_none() {
            true => self.state.join("quota.json"),
            false => self.state.join(format!("quota-{}.json", self.key())),
        }
    }

    /// Where secrets are kept that no keyring has. They are the person's, whichever config names them.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.state.join("secrets")
    }

    /// Where it is kept what was approved of the servers' tools. Other configs may have servers of the same names.
    pub(crate) fn pins(&self) -> PathBuf {
        match self.usual {
            true => self.state.join("pins"),
            false => self.state.join(format!("pins-{}", self.key())),
        }
    }

    /// The socket of the daemon that serves this config.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run.join(format!("{}.sock", self.key()))
    }

    /// Held by the daemon that serves this config for as long as it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.run.join(format!("{}.lock", self.key()))
    }

    /// Sixteen digits that stand for the config file, however it was spelled, and for the project that adds to it.
    fn key(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(canonical(&self.config).as_os_str().as_bytes());
        if let Some(project) = &self.project {
            hasher.update([0]);
            hasher.update(canonical(project).as_os_str().as_bytes());
        }
        let digest = hasher.finalize();
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Makes the folder of the socket, private to this user.
    pub(crate) fn make_run(&self) -> Result<(), Failure> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.run);
        made.map_err(|error| self.bad_run(&format!("cannot be made: {error}")))?;
        self.check_run()
    }

    /// Refuses a folder in which somebody else could have put a socket.
    pub(crate) fn check_run(&self) -> Result<(), Failure> {
        let shared = self.run == shared_run();
        // In a folder that everybody can write to, a link would lead anywhere.
        let read = if shared { fs::symlink_metadata(&self.run) } else { fs::metadata(&self.run) };
        let found = match read {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.bad_run(&error.to_string())),
        };
        if !found.is_dir() {
            return Err(self.bad_run("is not a folder"));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(self.bad_run("belongs to somebody else"));
        }
        let forbidden = if shared { 0o077 } else { 0o022 };
        match found.mode() & forbidden {
            0 => Ok(()),
            _ => Err(self.bad_run("can be used by others").hint(format!("chmod 700 {}", self.run.display()))),
        }
    }

    fn bad_run(&self, why: &str) -> Failure {
        let message = format!("the folder for the gateway's socket, `{}`, {why}", self.run.display());
        Failure::new(Exit::Unexpected, "unsafe_folder", message)
            .hint("set `TOOLCRIB_HOME` to a folder of your own")
    }

    /// Which files make up the config.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The config as it is now; if there is none at all, that is explained.
    pub(crate) fn read(&self) -> Result<Config, Failure> {
        if self.sources.exist() { Ok(self.sources.load()) } else { Err(self.no_config()) }
    }

    /// The config, if it can be used.
    pub(crate) fn usable(&self) -> Result<Config, Failure> {
        let config = self.read()?;
        if config.refused() { Err(Failure::bad_config(&config)) } else { Ok(config) }
    }

    /// Says that there is no config, and what to put into one.
    pub(crate) fn no_config(&self) -> Failure {
        let file = self.config.display();
        Failure::new(Exit::BadConfig, "no_config", format!("there is no config file `{file}`"))
            .hint(format!("put this into `{file}`:\n\n{EXAMPLE}\n"))
    }
}

/// The log of one server in the folder of all logs.
pub(crate) fn log_file(folder: &Path, server: &str) -> PathBuf {
    folder.join(format!("{server}.log"))
}

/// The folder for sockets when nobody gave us one: below the temporary directory, one per user.
fn shared_run() -> PathBuf {
    std::env::temp_dir().join(format!("toolcrib-{}", rustix::process::geteuid().as_raw()))
}

/// The path without links; for a file that is gone, as far as that can be told.
fn canonical(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
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

    fn place(config: Option<&str>, env: &[(&str, &str)]) -> Place {
        let find =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        Place::from_env(config.map(Path::new), Path::new("/nowhere"), find).unwrap()
    }

    #[test]
    fn toolcrib_home_moves_everything() {
        let place = place(None, &[("TOOLCRIB_HOME", "/t"), ("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(place.config, Path::new("/t/config.toml"));
        assert_eq!(place.state(), Path::new("/t/state"));
        assert!(place.socket().starts_with("/t/run"));
    }

    #[test]
    fn otherwise_the_usual_folders_hold() {
        let plain = place(None, &[("HOME", "/h"), ("XDG_STATE_HOME", "relative")]);
        assert_eq!(plain.config, Path::new("/h/.config/toolcrib/config.toml"));
        assert_eq!(plain.state(), Path::new("/h/.local/state/toolcrib"));
        assert_eq!(plain.run, shared_run());
        let moved = place(None, &[("HOME", "/h"), ("XDG_CONFIG_HOME", "/c"), ("XDG_RUNTIME_DIR", "/r")]);
        assert_eq!(moved.config, Path::new("/c/toolcrib/config.toml"));
        assert!(moved.socket().starts_with("/r/toolcrib"));
        assert!(Place::from_env(None, Path::new("/"), |_| None).is_err());
    }

    #[test]
    fn one_config_has_one_socket_however_it_is_spelled() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, dir.path().join("link.toml")).unwrap();
        let env = [("TOOLCRIB_HOME", "/t")];
        let socket = |name: &str| place(Some(dir.path().join(name).to_str().unwrap()), &env).socket();
        assert_eq!(socket("a.toml"), socket("./a.toml"));
        assert_eq!(socket("a.toml"), socket("link.toml"));
        assert_ne!(socket("a.toml"), socket("b.toml"));
    }

    #[test]
    fn a_deep_home_does_not_break_the_socket() {
        let deep = place(None, &[("TOOLCRIB_HOME", &format!("/{}", "x".repeat(200)))]);
        assert!(deep.socket().as_os_str().len() <= LONGEST_SOCKET);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::below(dir.path());
        place.make_run().unwrap();
        assert_eq!(fs::metadata(&place.run).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&place.run, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(place.make_run().is_err());
        assert!(place.check_run().is_err());
    }
}
