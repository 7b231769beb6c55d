//! Starts a gateway in the background, which all agents share.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use toolcrib::config::Config;
use toolcrib::util::files::create_private_folder;
use toolcrib::util::format::format_duration;

use crate::client;
use crate::command_error::CommandError;
use crate::gateway::{LockKind, lock_within};
use crate::paths::Paths;

/// The variable that overrides `gateway.auto-start`.
const VARIABLE: &str = "TOOLCRIB_AUTO_START";
/// The time limit for a gateway to start, including the wait for one that is stopping.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two attempts to connect to a gateway that another process may have started.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// The start of the line that a gateway prints when it is ready.
const READY_LINE: &str = "listening on ";

/// A gateway that was started, or that another process started meanwhile.
pub(in crate::commands) struct StartedGateway {
    pub(in crate::commands) stream: UnixStream,
    /// What the gateway printed before it was ready.
    pub(in crate::commands) messages: Vec<String>,
}

/// Returns the reason why no gateway is started for this config, if there is one.
///
/// # Errors
/// If the variable that decides it has an invalid value.
pub(in crate::commands) fn refusal(paths: &Paths, config: &Config) -> Result<Option<String>, CommandError> {
    let variable = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    match variable.as_deref() {
        Some("0" | "false") => return Ok(Some(format!("`{VARIABLE}` is off"))),
        Some("1" | "true") => {}
        Some(value) => {
            return Err(CommandError::usage(format!("invalid `{VARIABLE}`: `{value}`"))
                .hint("set it to `true` or `false`"));
        }
        None if !config.auto_start.enabled => return Ok(Some("`gateway.auto-start` is off".to_owned())),
        None => {}
    }
    let depends_on_folder = paths.sources().read_layers().required_facts().depend_on_folder();
    Ok(depends_on_folder.then(|| {
        "a scope of the config matches by `project` or `files`, so agents in other folders need other servers"
            .to_owned()
    }))
}

/// Starts a gateway and connects to it. Of several processes that do this at the same time, one starts the gateway and the
/// others wait for it. The error is the reason for people.
pub(in crate::commands) async fn start(
    paths: &Paths,
    config_flag: Option<&Path>,
) -> Result<StartedGateway, String> {
    let lock = open_start_lock(paths)
        .map_err(|error| format!("cannot write to `{}`: {error}", paths.gateways_dir().display()))?;
    let locked = lock_within(&lock, LockKind::Exclusive, START_TIMEOUT).await;
    if !locked.map_err(|error| error.to_string())? {
        return Err("another process is starting one, and has not finished".to_owned());
    }
    if let Some(stream) = connect(paths).await? {
        return Ok(StartedGateway { stream, messages: Vec::new() });
    }
    let config_flag = config_flag.map(std::path::absolute).transpose().map_err(|error| error.to_string())?;
    let launching = tokio::task::spawn_blocking(move || launch(config_flag.as_deref()));
    tokio::pin!(launching);
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        tokio::select! {
            launched = &mut launching => {
                let messages = launched.map_err(|error| error.to_string())??;
                let stream = connect(paths).await?.ok_or("it ended immediately")?;
                return Ok(StartedGateway { stream, messages });
            }
            // The gateway waits if another one is starting or stopping.
            () = sleep(CONNECT_INTERVAL) => {
                if let Some(stream) = connect(paths).await? {
                    return Ok(StartedGateway { stream, messages: Vec::new() });
                }
            }
        }
        if Instant::now() >= deadline {
            return Err(format!("it was not ready within {}", format_duration(START_TIMEOUT)));
        }
    }
}

async fn connect(paths: &Paths) -> Result<Option<UnixStream>, String> {
    client::connect(paths).await.map_err(|error| error.message)
}

fn open_start_lock(paths: &Paths) -> io::Result<File> {
    create_private_folder(&paths.gateways_dir())?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(paths.start_lock_path())
}

/// Starts the gateway and reads what it prints until it is ready. The error is what it printed instead. Blocks.
fn launch(config_flag: Option<&Path>) -> Result<Vec<String>, String> {
    let program = own_program().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(&program);
    command.args(["serve", "--background", "launch"]);
    command.args(config_flag.into_iter().flat_map(|file| [Path::new("--config"), file]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let cannot_run = |error: io::Error| format!("cannot run `{}`: {error}", program.display());
    let mut launcher = command.spawn().map_err(cannot_run)?;
    let stderr = launcher.stderr.take();
    // It exits as soon as it has started the gateway, which inherits the pipe.
    launcher.wait().map_err(cannot_run)?;
    let mut messages = Vec::new();
    for line in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()) {
        let line = line.map_err(|error| error.to_string())?;
        if line.starts_with(READY_LINE) {
            return Ok(messages);
        }
        messages.push(line);
    }
    Err(messages.join("; "))
}

/// Returns the path of this program, or of the one that has replaced it since it was started.
fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.filter(|_| !path.exists()).unwrap_or(path))
}
