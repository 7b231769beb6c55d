//! `toolcrib stop-gateway`: stops the gateway of this config.

use anyhow::Result;
use serde_json::json;

use crate::exit::ExitStatus;
use crate::gateway::OtherGateway;
use crate::output::Output;
use crate::paths::Paths;

/// Stops the gateway and waits until it is gone. Succeeds if none is running.
pub(crate) async fn run(paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let Some(gateway) = OtherGateway::find(paths)? else {
        report(None, out)?;
        return Ok(ExitStatus::Success);
    };
    // With a config that cannot be read, the default applies.
    gateway.stop(paths.sources().load().limits.drain).await?;
    report(Some(gateway.pid), out)?;
    Ok(ExitStatus::Success)
}

fn report(stopped: Option<u32>, out: &mut Output) -> std::io::Result<()> {
    if out.json {
        return out.print_json(&json!({"stopped": stopped.is_some(), "pid": stopped}));
    }
    match stopped {
        Some(pid) => out.print_note(&format!("stopped the gateway (pid {pid})")),
        None => out.print_note("no gateway is running for this config"),
    }
}
