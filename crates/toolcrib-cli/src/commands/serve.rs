//! `toolcrib serve`: runs the gateway, in the foreground or in the background for `toolcrib stdio`.

use std::fs::File;
use std::future::pending;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use toolcrib::config::Config;

use crate::admin::Admin;
use crate::cli::ServeArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{
    CANNOT_LOCK, Gateway, GatewayHandle, GatewayMode, OtherGateway, Predecessor, SignalRequest, Signals,
    StampedConfig, StartLock, Successor,
};
use crate::output::Output;
use crate::paths::Paths;
use crate::secrets::SecretLocator;

/// Size from which the log file of the last gateway is kept under another name instead of being continued.
const MAX_LOG_SIZE: u64 = 1 << 20;

/// The time limit for an agent that is starting a gateway in the background.
const START_LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until a signal asks to stop, then waits for calls in flight and stops all servers. In the background, it also
/// stops when it is not used.
pub(crate) async fn run(args: &ServeArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let mut signals = Signals::new()?;
    if !paths.sources().any_exists() {
        return Err(paths.missing_config_error().into());
    }
    let is_background = args.background.is_some();
    // Servers that are placed on this host run in the gateway that other machines can reach.
    let sources = match is_background {
        true => paths.sources().clone(),
        false => paths.sources().clone().for_gateway(),
    };
    let (config, stamp) = sources.load_consistent();
    if config.is_refused() {
        return Err(CommandError::invalid_config(&config).into());
    }
    // Held until this gateway runs, so that agents do not start another one in the background meanwhile.
    let start_lock = if is_background { None } else { acquire_start_lock(paths).await? };
    let mut predecessor = None;
    if args.replace {
        predecessor = Predecessor::connect(paths).await?;
    } else if !is_background {
        stop_background_gateway(paths, &config, out).await?;
    }
    if is_background {
        std::env::set_current_dir(paths.gateway_folder())?;
    }
    let mode = if is_background { GatewayMode::Auto } else { GatewayMode::Serve(&args.listen) };
    let running = StampedConfig { config: &config, stamp };
    let gateway = Gateway::open(paths, mode, &sources, running, predecessor.as_mut(), Admin::routes).await?;
    print_warnings(&gateway, &config, paths, out)?;
    let replaced = predecessor.as_ref().map(|predecessor| predecessor.pid);
    gateway.accept(predecessor).await;
    drop(start_lock);
    let log = if is_background { open_log(&paths.gateway_log(), out)? } else { None };
    // From here on a closed stderr is not an error: the gateway keeps running.
    let _ = out.print_stderr(&format!("listening on {}", gateway.address()));
    if let Some(pid) = replaced {
        let _ = out.print_note(&format!("replaced the gateway with pid {pid}, which finishes its calls"));
    }
    if is_background {
        redirect_stderr(log)?;
    }
    let idle_exit = is_background.then_some(config.auto_start.idle_exit);
    match serve_until_stopped(&gateway, &mut signals, idle_exit, out).await {
        None => {
            let _ = out.print_note("stopping; send the signal again to stop without waiting");
            gateway.close(signals.wait_for_stop()).await;
        }
        Some(successor) => {
            let _ = out.print_note("replaced by another gateway; finishing calls in flight");
            gateway.close_replaced(successor, signals.wait_for_stop()).await;
        }
    }
    Ok(ExitStatus::Success)
}

/// Prints the problems of the config, and what other machines could exploit.
fn print_warnings(gateway: &Gateway, config: &Config, paths: &Paths, out: &mut Output) -> io::Result<()> {
    out.warn_problems(&config.problems)?;
    let secrets = SecretLocator::new(paths, &config.secrets);
    out.warn_problems(&toolcrib::config::find_short_tokens(&config.callers, |name| secrets.find(name)))?;
    if gateway.is_exposed_without_tls(config) {
        let message = "other machines reach this gateway over plain HTTP: tokens can be read on the network";
        out.warn(message, Some("set `tls` in `[listen]`, or `public-url` if a proxy adds TLS"))?;
    }
    Ok(())
}

/// Reloads the config when it changes, until the gateway should stop. Returns the gateway that has replaced it, if one has.
async fn serve_until_stopped(
    gateway: &Gateway,
    signals: &mut Signals,
    idle_exit: Option<Duration>,
    out: &mut Output,
) -> Option<Successor> {
    let unused = async {
        match idle_exit {
            Some(idle_exit) => gateway.wait_until_unused(idle_exit).await,
            None => pending().await,
        }
    };
    tokio::pin!(unused);
    loop {
        let request = tokio::select! {
            request = signals.next() => request,
            () = gateway.handle().config_changed() => SignalRequest::Reload,
            stream = gateway.handle().handovers().next() => {
                let handed_over = tokio::select! {
                    handed_over = gateway.hand_over(stream) => handed_over,
                    () = signals.wait_for_stop() => return None,
                };
                match handed_over {
                    Ok(successor) => return Some(successor),
                    Err(error) => tracing::warn!("the gateway that was to replace this one failed: {error}"),
                }
                continue;
            }
            () = &mut unused => {
                tracing::info!("no client used this gateway for a while");
                return None;
            }
        };
        if request == SignalRequest::Stop {
            return None;
        }
        tokio::select! {
            _ = reload(gateway.handle(), out) => {}
            () = signals.wait_for_stop() => return None,
        }
    }
}

/// Takes the lock that keeps agents from starting a gateway in the background. `None` if its file cannot be written: agents
/// cannot start a gateway then either.
pub(super) async fn acquire_start_lock(paths: &Paths) -> Result<Option<StartLock>, CommandError> {
    match StartLock::acquire(paths, START_LOCK_TIMEOUT).await {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.code == CANNOT_LOCK => Ok(None),
        Err(error) => Err(error),
    }
}

/// Stops a gateway that `toolcrib stdio` started: one that is started by hand or as a service takes its place.
async fn stop_background_gateway(paths: &Paths, config: &Config, out: &mut Output) -> Result<()> {
    if let Some(other) = OtherGateway::find(paths)?.filter(|other| other.auto_started) {
        out.print_note(&format!("stopping the gateway that runs in the background (pid {})", other.pid))?;
        other.stop(config.limits.drain).await?;
    }
    Ok(())
}

/// Starts the gateway in a session of its own and returns without waiting for it. It becomes a child of the init process:
/// agents end the process tree of a command that they stop.
pub(crate) fn launch(config_flag: Option<&Path>) -> Result<ExitStatus> {
    rustix::process::setsid().context("cannot leave the session of the agent")?;
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = std::process::Command::new(program);
    command.args(["serve", "--background", "run"]);
    command.args(config_flag.iter().flat_map(|file| [Path::new("--config"), file]));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("cannot start the gateway")?;
    Ok(ExitStatus::Success)
}

/// Opens the log file of a gateway in the background. If that fails, the gateway works without a log.
fn open_log(path: &Path, out: &mut Output) -> io::Result<Option<File>> {
    let is_large = std::fs::metadata(path).is_ok_and(|log| log.len() > MAX_LOG_SIZE);
    if is_large {
        let _ = std::fs::rename(path, path.with_extension("log.1"));
    }
    match File::options().create(true).append(true).mode(0o600).open(path) {
        Ok(log) => Ok(Some(log)),
        Err(error) => {
            out.warn(&format!("the gateway cannot write its log, `{}`: {error}", path.display()), None)?;
            Ok(None)
        }
    }
}

/// Lets everything that this process prints from now on go to the log file.
fn redirect_stderr(log: Option<File>) -> io::Result<()> {
    let log = match log {
        Some(log) => log,
        None => File::options().write(true).open("/dev/null")?,
    };
    Ok(rustix::stdio::dup2_stderr(&log)?)
}

async fn reload(gateway: &GatewayHandle, out: &mut Output) -> io::Result<()> {
    match gateway.reload().await {
        Ok(reloaded) => {
            out.print_note(&format!(
                "config reloaded: {} added, {} removed, {} changed",
                reloaded.added.len(),
                reloaded.removed.len(),
                reloaded.changed.len()
            ))?;
            if reloaded.restart_needed {
                let keys =
                    "`listen`, `limits.body`, `limits.client-memory`, `limits.sessions` and `limits.drain`";
                out.warn(&format!("changes to {keys} take effect when the gateway is restarted"), None)?;
            }
        }
        Err(error) => {
            out.print_error(&error)?;
            out.print_note("the previous config stays in use")?;
        }
    }
    Ok(())
}
