//! `toolcrib serve`: runs the gateway in the foreground.

use anyhow::Result;

use crate::admin::Admin;
use crate::cli::ServeArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{Gateway, GatewayHandle, SignalRequest, Signals};
use crate::output::Output;
use crate::paths::Paths;
use crate::secrets::SecretLocator;

/// Serves until a signal asks to stop, then waits for calls in flight and stops all servers.
pub(crate) async fn run(args: &ServeArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let mut signals = Signals::new()?;
    if !paths.sources().any_exists() {
        return Err(paths.missing_config_error().into());
    }
    let (config, stamp) = paths.sources().clone().for_gateway().load_consistent();
    if config.is_refused() {
        return Err(CommandError::invalid_config(&config).into());
    }
    let gateway = Gateway::open(paths, &config, stamp, &args.listen, Admin::routes).await?;
    out.warn_problems(&config.problems)?;
    let secrets = SecretLocator::new(paths, &config.secrets);
    out.warn_problems(&toolcrib::config::find_short_tokens(&config.callers, |name| secrets.find(name)))?;
    gateway.accept();
    // From here on a closed stderr is not an error: the gateway keeps running.
    let _ = out.print_stderr(&format!("listening on {}", gateway.address()));
    loop {
        let request = tokio::select! {
            request = signals.next() => request,
            () = gateway.handle().config_changed() => SignalRequest::Reload,
        };
        if request == SignalRequest::Stop {
            break;
        }
        tokio::select! {
            _ = reload(gateway.handle(), out) => {}
            () = signals.wait_for_stop() => break,
        }
    }
    let _ = out.print_note("stopping; send the signal again to stop without waiting");
    gateway.close(signals.wait_for_stop()).await;
    Ok(ExitStatus::Success)
}

async fn reload(gateway: &GatewayHandle, out: &mut Output) -> std::io::Result<()> {
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
