//! The service of one config: its files, and the commands of systemd or launchd that install, remove and show it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use toolcrib::config::Config;

use super::{launchd, systemd};
use crate::command_error::CommandError;
use crate::commands::serve::acquire_start_lock;
use crate::environment;
use crate::exit::ExitStatus;
use crate::gateway::{OtherGateway, STOP_GRACE};
use crate::listen::ListenAddr;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};

/// The first line of files that this command wrote.
pub(super) const MARKER: &str = "# Written by `toolcrib service install`.";
/// Variables that decide which config and which socket the gateway uses, and what its servers find.
const ENVIRONMENT: [&str; 5] =
    ["PATH", "TOOLCRIB_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "TOOLCRIB_HOST"];

/// Variables that a service manager sets for every service.
const MANAGER_ENVIRONMENT: [&str; 4] = ["HOME", "USER", "LOGNAME", "SHELL"];

/// The program that manages services of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceManager {
    Systemd,
    Launchd,
}

/// The gateway as a service.
pub(super) struct ServiceSpec {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) config_flag: Option<PathBuf>,
    pub(super) listen: ListenAddr,
    /// The gateway's own socket.
    pub(super) socket: PathBuf,
    pub(super) environment: Vec<(String, String)>,
    pub(super) log: PathBuf,
    /// The time limit for the gateway to stop: for its calls, then for its servers.
    pub(super) stop_timeout: Duration,
}

/// A file of the service.
pub(super) struct ServiceFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// What installs a service.
pub(super) struct ServicePlan {
    pub(super) files: Vec<ServiceFile>,
    /// Run after the files were written.
    pub(super) commands: Vec<Vec<String>>,
}

/// The service of a config, installed or not.
pub(in crate::commands) struct UserService {
    manager: ServiceManager,
    name: String,
    paths: Paths,
}

/// A service to install.
pub(super) struct Installation {
    pub(super) config: Config,
    spec: ServiceSpec,
    pub(super) plan: ServicePlan,
}

/// What the installation of a service did.
pub(in crate::commands) struct InstallReport {
    /// False if the service was installed already.
    pub(in crate::commands) changed: bool,
    /// The gateway in the background that was stopped, because it would keep the service from starting.
    pub(in crate::commands) stopped_gateway: Option<u32>,
}

/// The state of a service, as its manager reports it.
pub(in crate::commands) struct ServiceState {
    pub(in crate::commands) installed: bool,
    pub(in crate::commands) units: Vec<UnitState>,
}

/// The state of one unit of a service.
pub(in crate::commands) struct UnitState {
    pub(in crate::commands) name: String,
    pub(in crate::commands) state: String,
}

impl UserService {
    /// Returns the service of this config, or `None` if no manager of services is running.
    pub(in crate::commands) fn find(paths: &Paths) -> Option<Self> {
        let paths = paths.clone().without_project();
        Some(Self { manager: ServiceManager::find()?, name: paths.service_name(), paths })
    }

    pub(in crate::commands) fn name(&self) -> &str {
        &self.name
    }

    /// Returns `systemd` or `launchd`.
    pub(in crate::commands) fn manager_name(&self) -> &'static str {
        self.manager.as_str()
    }

    /// Returns the paths of its files. Fails if there are files of this name that toolcrib did not write.
    fn own_files(&self) -> Result<Vec<PathBuf>> {
        let files = self.manager.files(&self.name)?;
        files.iter().try_for_each(|file| refuse_foreign_file(file))?;
        Ok(files)
    }

    /// Returns whether its files exist.
    ///
    /// # Errors
    /// If there are files of this name that toolcrib did not write.
    pub(in crate::commands) fn is_installed(&self) -> Result<bool> {
        Ok(self.own_files()?.iter().any(|file| file.exists()))
    }

    /// Prepares the installation, and changes nothing.
    ///
    /// # Errors
    /// If the config or the address cannot be used, or if there are files of this name that toolcrib did not write.
    pub(super) fn prepare(&self, listen: &ListenAddr, config_flag: Option<&Path>) -> Result<Installation> {
        let config = self.paths.valid_config()?;
        listen.check_exposure(config.requires_tokens())?;
        let spec = ServiceSpec::new(listen, config_flag, &self.paths, config.limits.drain)?;
        let plan = self.manager.install_plan(&spec)?;
        plan.files.iter().try_for_each(|file| refuse_foreign_file(&file.path))?;
        Ok(Installation { config, spec, plan })
    }

    /// Installs and starts the service, or updates it. Leaves nothing behind if that fails.
    pub(super) async fn install(&self, installation: &Installation) -> Result<InstallReport> {
        let Installation { config, spec, plan } = installation;
        let is_current =
            |file: &ServiceFile| fs::read_to_string(&file.path).is_ok_and(|text| text == file.text);
        if plan.files.iter().all(is_current) {
            return Ok(InstallReport { changed: false, stopped_gateway: None });
        }
        // Held until the files are in place, so that agents do not start another gateway in the background meanwhile.
        let _start_lock = acquire_start_lock(&self.paths).await?;
        let own_pid = self.manager.main_pid(&spec.name);
        let stopped_gateway = stop_background_gateway(&self.paths, config.limits.drain, own_pid).await?;
        let previous = plan.previous_files();
        if let Err(error) = apply(self.manager, &spec.name, &plan.files, &plan.commands) {
            let restored = match previous {
                Some(previous) => apply(self.manager, &spec.name, &previous, &plan.commands),
                None => remove_files(self.manager, &spec.name),
            };
            if let Err(restoring) = restored {
                tracing::warn!("the previous service could not be restored: {restoring:#}");
            }
            return Err(error);
        }
        Ok(InstallReport { changed: true, stopped_gateway })
    }

    /// Installs and starts the service at the default address.
    pub(in crate::commands) async fn install_default(
        &self,
        config_flag: Option<&Path>,
    ) -> Result<InstallReport> {
        self.install(&self.prepare(&ListenAddr::default(), config_flag)?).await
    }

    /// Returns the commands that remove the service.
    pub(super) fn removal_plan(&self) -> Result<ServicePlan> {
        let (before, after) = self.manager.remove_commands(&self.name);
        let files = self.own_files()?;
        let removed = files.iter().map(|file| command(&["rm", &file.display().to_string()]));
        let commands = before.into_iter().chain(removed).chain(after).collect();
        Ok(ServicePlan { files: Vec::new(), commands })
    }

    /// Stops and removes the service. Returns whether it was installed.
    pub(in crate::commands) fn remove(&self) -> Result<bool> {
        let is_installed = self.is_installed()?;
        if is_installed {
            remove_files(self.manager, &self.name)?;
        }
        Ok(is_installed)
    }

    /// Asks the manager for the state of the service.
    pub(in crate::commands) fn state(&self) -> Result<ServiceState> {
        let files = self.manager.files(&self.name)?;
        let command = match self.manager {
            ServiceManager::Systemd => systemd::status_command(&self.name),
            ServiceManager::Launchd => launchd::status_command(&self.name, own_uid()),
        };
        let output =
            to_process(&command).output().with_context(|| format!("cannot run `{}`", command.join(" ")))?;
        let states: Vec<String> = match self.manager {
            ServiceManager::Systemd => {
                String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
            }
            ServiceManager::Launchd if output.status.success() => vec!["active".to_owned()],
            ServiceManager::Launchd => vec!["inactive".to_owned()],
        };
        let names = files.iter().filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()));
        let units = names.zip(states).map(|(name, state)| UnitState { name, state }).collect();
        Ok(ServiceState { installed: files.iter().all(|file| file.exists()), units })
    }
}

/// Returns the variables that servers of a config use and a service does not get from this shell.
pub(in crate::commands) fn missing_variables(config: &Config) -> Vec<String> {
    let mut used = environment::used_variables(config);
    used.retain(|name| !ENVIRONMENT.iter().chain(&MANAGER_ENVIRONMENT).any(|known| known == name));
    used.into_iter().map(|name| format!("`{name}`")).collect()
}

impl ServiceManager {
    /// Finds the manager of this user's services.
    fn find() -> Option<Self> {
        if cfg!(target_os = "macos") {
            return Some(Self::Launchd);
        }
        let mut probe = Command::new("systemctl");
        probe.args(["--user", "show-environment"]);
        probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success()).then_some(Self::Systemd)
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Launchd => "launchd",
        }
    }

    /// Returns the folder of the files of services.
    fn folder(self) -> Result<PathBuf> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = variable("HOME").context("`HOME` is not set")?;
        Ok(match self {
            Self::Systemd => {
                let config = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
                config.unwrap_or_else(|| home.join(".config")).join("systemd/user")
            }
            Self::Launchd => home.join("Library/LaunchAgents"),
        })
    }

    fn install_plan(self, spec: &ServiceSpec) -> Result<ServicePlan> {
        let folder = self.folder()?;
        Ok(match self {
            Self::Systemd => systemd::install_plan(spec, &folder),
            Self::Launchd => launchd::install_plan(spec, &folder, own_uid()),
        })
    }

    /// Returns the process of a service that is running.
    fn main_pid(self, name: &str) -> Option<u32> {
        let command = match self {
            Self::Systemd => systemd::pid_command(name),
            Self::Launchd => launchd::status_command(name, own_uid()),
        };
        let output = to_process(&command).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        match self {
            Self::Systemd => text.trim().parse().ok(),
            Self::Launchd => launchd::parse_pid(&text),
        }
    }

    /// Returns the paths of the files of a service.
    fn files(self, name: &str) -> Result<Vec<PathBuf>> {
        let folder = self.folder()?;
        Ok(match self {
            Self::Systemd => ["socket", "service"].map(|kind| folder.join(format!("{name}.{kind}"))).to_vec(),
            Self::Launchd => vec![folder.join(format!("{name}.gateway.plist"))],
        })
    }

    /// Returns the commands that stop a service, and those after its files were removed.
    fn remove_commands(self, name: &str) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
        match self {
            Self::Systemd => systemd::remove_commands(name),
            Self::Launchd => (launchd::remove_commands(name, own_uid()), Vec::new()),
        }
    }
}

impl ServicePlan {
    /// Returns the files as they are now, if the service is installed.
    fn previous_files(&self) -> Option<Vec<ServiceFile>> {
        let read = |file: &ServiceFile| {
            let text = fs::read_to_string(&file.path).ok()?;
            Some(ServiceFile { path: file.path.clone(), text })
        };
        self.files.iter().map(read).collect()
    }
}

impl ServiceSpec {
    fn new(listen: &ListenAddr, config_flag: Option<&Path>, paths: &Paths, drain: Duration) -> Result<Self> {
        let variable =
            |name: &str| Some((name.to_owned(), std::env::var(name).ok().filter(|v| !v.is_empty())?));
        Ok(Self {
            name: paths.service_name(),
            program: std::env::current_exe().context("cannot find the path of this program")?,
            config_flag: config_flag.map(std::path::absolute).transpose()?,
            listen: listen.clone(),
            socket: paths.socket_path(),
            environment: ENVIRONMENT.into_iter().filter_map(variable).collect(),
            log: paths.gateway_log(),
            stop_timeout: drain + STOP_GRACE,
        })
    }

    /// Returns the command line of the gateway.
    pub(super) fn command(&self) -> Vec<String> {
        let mut words = vec![
            self.program.display().to_string(),
            "serve".into(),
            "--listen".into(),
            self.listen.to_string(),
        ];
        if let Some(file) = &self.config_flag {
            words.extend(["--config".to_owned(), file.display().to_string()]);
        }
        words
    }

    #[cfg(test)]
    pub(super) fn for_test() -> Self {
        Self {
            name: "toolcrib".to_owned(),
            program: "/opt/toolcrib".into(),
            config_flag: None,
            listen: "127.0.0.1:7717".parse().unwrap(),
            socket: "/run/user/7/toolcrib/k.sock".into(),
            environment: vec![("PATH".to_owned(), "/bin:/usr/bin".to_owned())],
            log: "/s/gateway.log".into(),
            stop_timeout: Duration::from_millis(50_500),
        }
    }
}

/// Stops a gateway that would keep the service from starting, if it was started in the background. Returns its process.
async fn stop_background_gateway(
    paths: &Paths,
    drain: Duration,
    own_pid: Option<u32>,
) -> Result<Option<u32>> {
    let Some(other) = OtherGateway::find(paths)? else { return Ok(None) };
    if other.auto_started {
        Wait::new("stopping the gateway", ServerSource::None).run(other.stop(drain)).await?;
        return Ok(Some(other.pid));
    }
    if own_pid == Some(other.pid) {
        // The manager stops it.
        return Ok(None);
    }
    let message = format!("a gateway is running for this config (pid {})", other.pid);
    Err(CommandError::new(ExitStatus::Failure, "already_running", message)
        .hint("toolcrib stop-gateway")
        .into())
}

/// Writes the files and runs the commands.
fn apply(manager: ServiceManager, name: &str, files: &[ServiceFile], commands: &[Vec<String>]) -> Result<()> {
    if manager == ServiceManager::Launchd {
        // A loaded service cannot be loaded again; this fails if it is not loaded.
        let _ = run_all(&manager.remove_commands(name).0);
    }
    for file in files {
        let folder = file.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
        fs::write(&file.path, &file.text)
            .with_context(|| format!("cannot write `{}`", file.path.display()))?;
    }
    run_all(commands)
}

/// Refuses to change a file of this name that this command did not write.
fn refuse_foreign_file(path: &Path) -> Result<(), CommandError> {
    let own_line = MARKER.trim_start_matches("# ");
    match fs::read_to_string(path) {
        Ok(text) if !text.contains(own_line) => {
            let message = format!("`{}` exists and was not written by toolcrib", path.display());
            Err(CommandError::usage(message).hint(format!("move it away: mv {0} {0}.old", path.display())))
        }
        _ => Ok(()),
    }
}

fn remove_files(manager: ServiceManager, name: &str) -> Result<()> {
    let (before, after) = manager.remove_commands(name);
    let stopped = run_all(&before);
    for file in manager.files(name)? {
        if file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove `{}`", file.display()))?;
        }
    }
    run_all(&after)?;
    stopped
}

fn run_all(commands: &[Vec<String>]) -> Result<()> {
    for command in commands {
        let text = command.join(" ");
        let output = to_process(command).output().with_context(|| format!("cannot run `{text}`"))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            let message = format!("`{text}` failed: {reason}");
            return Err(CommandError::new(ExitStatus::Failure, "service_failed", message).into());
        }
    }
    Ok(())
}

fn to_process(command: &[String]) -> Command {
    let (program, args) =
        command.split_first().map_or(("true", &[][..]), |(first, rest)| (first.as_str(), rest));
    let mut process = Command::new(program);
    process.args(args).stdin(Stdio::null());
    process
}

pub(super) fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
