//! `toolcrib service`: installs the gateway as a service of the user, removes it and shows its state.

mod launchd;
mod systemd;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::serve::replace_background_gateway;
use crate::cli::{InstallServiceArgs, ServiceCommand};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{OtherGateway, STOP_GRACE};
use crate::listen::ListenAddr;
use crate::output::Output;
use crate::paths::Paths;

/// The first line of files that this command wrote.
const MARKER: &str = "# Written by `toolcrib service install`.";
/// Variables that decide which config and which socket the gateway uses, and what its servers find.
const ENVIRONMENT: [&str; 5] =
    ["PATH", "TOOLCRIB_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "TOOLCRIB_HOST"];

/// The program that manages services of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServiceManager {
    Systemd,
    Launchd,
}

/// The gateway as a service.
struct ServiceSpec {
    name: String,
    program: PathBuf,
    config_flag: Option<PathBuf>,
    listen: ListenAddr,
    /// The gateway's own socket.
    socket: PathBuf,
    environment: Vec<(String, String)>,
    log: PathBuf,
    /// The time limit for the gateway to stop: for its calls, then for its servers.
    stop_timeout: Duration,
}

/// A file of the service.
struct ServiceFile {
    path: PathBuf,
    text: String,
}

/// What installs a service.
struct ServicePlan {
    files: Vec<ServiceFile>,
    /// Run after the files were written.
    commands: Vec<Vec<String>>,
}

/// Installs, removes or shows the service of this config.
pub(crate) async fn run(
    command: &ServiceCommand,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let paths = paths.clone().without_project();
    let Some(manager) = ServiceManager::find() else {
        report_missing_manager(out)?;
        return Ok(ExitStatus::Success);
    };
    let name = paths.service_name();
    match command {
        ServiceCommand::Install(args) => install(manager, args, config_flag, &paths, out).await,
        ServiceCommand::Remove(args) => remove(manager, &name, args.dry_run, out),
        ServiceCommand::Status => status(manager, &name, out),
    }
}

fn report_missing_manager(out: &mut Output) -> std::io::Result<()> {
    if out.json {
        return out.print_json(&json!({"manager": null, "installed": false, "changed": false}));
    }
    out.print_note("neither a systemd user manager nor launchd is running, so there is no service")?;
    out.print_note(
        "none is needed: `toolcrib stdio` starts a gateway in the background (`gateway.auto-start`)",
    )
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

    fn as_str(self) -> &'static str {
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
    fn new(
        args: &InstallServiceArgs,
        config_flag: Option<&Path>,
        paths: &Paths,
        drain: Duration,
    ) -> Result<Self> {
        let variable =
            |name: &str| Some((name.to_owned(), std::env::var(name).ok().filter(|v| !v.is_empty())?));
        Ok(Self {
            name: paths.service_name(),
            program: std::env::current_exe().context("cannot find the path of this program")?,
            config_flag: config_flag.map(std::path::absolute).transpose()?,
            listen: args.listen.clone(),
            socket: paths.socket_path(),
            environment: ENVIRONMENT.into_iter().filter_map(variable).collect(),
            log: paths.gateway_log(),
            stop_timeout: drain + STOP_GRACE,
        })
    }

    /// Returns the command line of the gateway.
    fn command(&self) -> Vec<String> {
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
    fn for_test() -> Self {
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

async fn install(
    manager: ServiceManager,
    args: &InstallServiceArgs,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let config = paths.valid_config()?;
    args.listen.check_exposure(!config.callers.is_empty())?;
    let spec = ServiceSpec::new(args, config_flag, paths, config.limits.drain)?;
    let plan = manager.install_plan(&spec)?;
    plan.files.iter().try_for_each(|file| refuse_foreign_file(&file.path))?;
    let is_current = |file: &ServiceFile| fs::read_to_string(&file.path).is_ok_and(|text| text == file.text);
    let changed = !plan.files.iter().all(is_current);
    if args.dry_run {
        print_plan(&plan, out)?;
        return Ok(ExitStatus::Success);
    }
    if changed {
        let _start_lock = replace_background_gateway(paths, &config, out).await?;
        refuse_other_gateway(manager, &spec.name, paths)?;
        let previous = plan.previous_files();
        if let Err(error) = apply(manager, &spec.name, &plan.files, &plan.commands) {
            let restored = match previous {
                Some(previous) => apply(manager, &spec.name, &previous, &plan.commands),
                None => remove_files(manager, &spec.name),
            };
            if let Err(restoring) = restored {
                out.warn(&format!("the previous state could not be restored: {restoring:#}"), None)?;
            }
            return Err(error);
        }
    }
    if out.json {
        out.print_json(&json!({
            "manager": manager.as_str(), "installed": true, "changed": changed, "name": spec.name,
            "files": plan.files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>(),
        }))?;
        return Ok(ExitStatus::Success);
    }
    match changed {
        true => out.print_note(&format!("installed the service `{}` ({})", spec.name, manager.as_str()))?,
        false => out.print_note(&format!("the service `{}` is installed already", spec.name))?,
    }
    print_environment_note(&config, out)?;
    out.print_note("undo: toolcrib service remove")?;
    Ok(ExitStatus::Success)
}

/// Says which variables of the config the service does not get from this shell.
fn print_environment_note(config: &toolcrib::config::Config, out: &mut Output) -> std::io::Result<()> {
    let used = crate::environment::used_variables(config);
    let missing: Vec<String> = used
        .iter()
        .filter(|name| !ENVIRONMENT.contains(&name.as_str()))
        .map(|name| format!("`{name}`"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message =
        format!("servers use {}, which the service does not get from this shell", missing.join(", "));
    out.warn(&message, Some("use `toolcrib secret set`, or set them for all services of your user"))
}

/// Refuses if a gateway runs that is neither in the background nor that of the service.
fn refuse_other_gateway(manager: ServiceManager, name: &str, paths: &Paths) -> Result<()> {
    let Some(other) = OtherGateway::find(paths)? else { return Ok(()) };
    if manager.main_pid(name) == Some(other.pid) {
        return Ok(());
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

fn remove(manager: ServiceManager, name: &str, dry_run: bool, out: &mut Output) -> Result<ExitStatus> {
    let files = manager.files(name)?;
    files.iter().try_for_each(|file| refuse_foreign_file(file))?;
    let is_installed = files.iter().any(|file| file.exists());
    if dry_run {
        let (before, after) = manager.remove_commands(name);
        let removed = files.iter().map(|file| command(&["rm", &file.display().to_string()]));
        let commands: Vec<Vec<String>> = before.into_iter().chain(removed).chain(after).collect();
        print_plan(&ServicePlan { files: Vec::new(), commands }, out)?;
        return Ok(ExitStatus::Success);
    }
    if is_installed {
        remove_files(manager, name)?;
    }
    if out.json {
        let manager = manager.as_str();
        out.print_json(
            &json!({"manager": manager, "installed": false, "changed": is_installed, "name": name}),
        )?;
    } else if is_installed {
        out.print_note(&format!("removed the service `{name}`"))?;
    } else {
        out.print_note(&format!("the service `{name}` is not installed"))?;
    }
    Ok(ExitStatus::Success)
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

fn status(manager: ServiceManager, name: &str, out: &mut Output) -> Result<ExitStatus> {
    let files = manager.files(name)?;
    let installed = files.iter().all(|file| file.exists());
    let command = match manager {
        ServiceManager::Systemd => systemd::status_command(name),
        ServiceManager::Launchd => launchd::status_command(name, own_uid()),
    };
    let output =
        to_process(&command).output().with_context(|| format!("cannot run `{}`", command.join(" ")))?;
    let states: Vec<String> = match manager {
        ServiceManager::Systemd => {
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
        }
        ServiceManager::Launchd if output.status.success() => vec!["active".to_owned()],
        ServiceManager::Launchd => vec!["inactive".to_owned()],
    };
    let units: Vec<String> =
        files.iter().filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned())).collect();
    if out.json {
        let units: Vec<_> =
            units.iter().zip(states).map(|(unit, state)| json!({"name": unit, "state": state})).collect();
        let manager = manager.as_str();
        out.print_json(&json!({"manager": manager, "installed": installed, "name": name, "units": units}))?;
        return Ok(ExitStatus::Success);
    }
    if !installed {
        out.print_note(&format!("the service `{name}` is not installed; toolcrib service install"))?;
        return Ok(ExitStatus::Success);
    }
    let rows: Vec<Vec<String>> =
        units.into_iter().zip(states).map(|(unit, state)| vec![unit, state]).collect();
    out.print_table(&["UNIT", "STATE"], &rows)?;
    Ok(ExitStatus::Success)
}

/// Prints files and commands without changing anything.
fn print_plan(plan: &ServicePlan, out: &mut Output) -> std::io::Result<()> {
    if out.json {
        let files: Vec<_> = plan
            .files
            .iter()
            .map(|file| json!({"path": file.path.display().to_string(), "text": file.text}))
            .collect();
        return out.print_json(&json!({"files": files, "commands": plan.commands}));
    }
    for file in &plan.files {
        out.print_line(&format!("write {}", file.path.display()))?;
        file.text.lines().try_for_each(|line| out.print_line(&format!("  {line}")))?;
    }
    plan.commands.iter().try_for_each(|command| out.print_line(&format!("run {}", command.join(" "))))
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

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
