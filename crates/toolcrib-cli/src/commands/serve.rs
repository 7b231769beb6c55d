//! `toolcrib serve`: the gateway in the foreground.

use anyhow::Result;

use crate::cli::Serve;
use crate::daemon::{Asked, Daemon, Signals};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::frontend::admin::Admin;
use crate::output::Output;
use crate::place::Place;

/// Serves until it is asked to stop, then drains.
pub(crate) async fn run(args: &Serve, place: &Place, out: &mut Output) -> Result<Exit> {
    let mut signals = Signals::new()?;
    if !place.sources().exist() {
        return Err(place.no_config().into());
    }
    let (config, stamp) = place.sources().clone().serving().load_whole();
    if config.refused() {
        return Err(Failure::bad_config(&config).into());
    }
    let daemon = Daemon::open(place, (&config, stamp), &args.listen).await?;
    out.problems(&config.problems)?;
    daemon.accept();
    // From here on nobody has to listen: a gateway does not end because its log is no longer read.
    let _ = out.always(&format!("listening on {}", daemon.address()));
    loop {
        let asked = tokio::select! {
            asked = signals.next() => asked,
            () = daemon.admin().config_changed() => Asked::Reload,
        };
        if asked == Asked::Stop {
            break;
        }
        tokio::select! {
            _ = reload(daemon.admin(), out) => {}
            () = signals.stop() => break,
        }
    }
    let _ = out.say("stopping; once more to stop at once");
    daemon.close(signals.stop()).await;
    Ok(Exit::Fine)
}

async fn reload(admin: &Admin, out: &mut Output) -> std::io::Result<()> {
    match admin.reload().await {
        Ok(reloaded) => {
            let changes = &reloaded.changes;
            out.say(&format!(
                "config read again: {} added, {} removed, {} changed",
                changes.added.len(),
                changes.removed.len(),
                changes.changed.len()
            ))?;
            if reloaded.restart_needed {
                let kept = "`listen` and `limits.body`, `sessions` and `drain`";
                out.warn(&format!("{kept} take effect when the gateway is started again"), None)?;
            }
        }
        Err(failure) => {
            out.failure(&failure)?;
            out.say("the running config stays")?;
        }
    }
    Ok(())
}
