//! `toolcrib service`: installs the gateway as a service of the user, removes it and shows its state.

mod launchd;
mod systemd;
pub(super) mod user_service;

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use self::user_service::{ServicePlan, UserService};
use crate::cli::{InstallServiceArgs, ServiceCommand};
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

/// Installs, removes or shows the service of this config.
pub(crate) async fn run(
    command: &ServiceCommand,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let Some(service) = UserService::find(paths) else {
        report_missing_manager(out)?;
        return Ok(ExitStatus::Success);
    };
    match command {
        ServiceCommand::Install(args) => install(&service, args, config_flag, out).await?,
        ServiceCommand::Remove(args) => remove(&service, args.dry_run, out)?,
        ServiceCommand::Status => show_state(&service, out)?,
    }
    Ok(ExitStatus::Success)
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

async fn install(
    service: &UserService,
    args: &InstallServiceArgs,
    config_flag: Option<&Path>,
    out: &mut Output,
) -> Result<()> {
    let installation = service.prepare(&args.listen, config_flag)?;
    if args.dry_run {
        return Ok(print_plan(&installation.plan, out)?);
    }
    super::export::warn_temporary_program(out)?;
    let report = service.install(&installation).await?;
    let name = service.name();
    if out.json {
        let files = installation.plan.files.iter().map(|file| file.path.display().to_string());
        return Ok(out.print_json(&json!({
            "manager": service.manager_name(), "installed": true, "changed": report.changed, "name": name,
            "files": files.collect::<Vec<_>>(),
        }))?);
    }
    if let Some(pid) = report.stopped_gateway {
        out.print_note(&format!("stopped the gateway that ran in the background (pid {pid})"))?;
    }
    match report.changed {
        true => out.print_note(&format!("installed the service `{name}` ({})", service.manager_name()))?,
        false => out.print_note(&format!("the service `{name}` is installed already"))?,
    }
    let missing = user_service::missing_variables(&installation.config);
    if !missing.is_empty() {
        let message =
            format!("servers use {}, which the service does not get from this shell", missing.join(", "));
        out.warn(
            &message,
            Some("use `toolcrib secret set NAME`, or set them for all services of your user"),
        )?;
    }
    Ok(out.print_note("undo: toolcrib service remove")?)
}

fn remove(service: &UserService, dry_run: bool, out: &mut Output) -> Result<()> {
    if dry_run {
        return Ok(print_plan(&service.removal_plan()?, out)?);
    }
    let changed = service.remove()?;
    let name = service.name();
    if out.json {
        let manager = service.manager_name();
        let report = json!({"manager": manager, "installed": false, "changed": changed, "name": name});
        return Ok(out.print_json(&report)?);
    }
    Ok(out.print_note(&match changed {
        true => format!("removed the service `{name}`"),
        false => format!("the service `{name}` is not installed"),
    })?)
}

fn show_state(service: &UserService, out: &mut Output) -> Result<()> {
    let state = service.state()?;
    let name = service.name();
    if out.json {
        let units: Vec<_> =
            state.units.iter().map(|unit| json!({"name": unit.name, "state": unit.state})).collect();
        let manager = service.manager_name();
        let report = json!({"manager": manager, "installed": state.installed, "name": name, "units": units});
        return Ok(out.print_json(&report)?);
    }
    if !state.installed {
        let note =
            format!("the service `{name}` is not installed; install it with `toolcrib service install`");
        return Ok(out.print_note(&note)?);
    }
    let rows: Vec<Vec<String>> = state.units.into_iter().map(|unit| vec![unit.name, unit.state]).collect();
    Ok(out.print_table(&["UNIT", "STATE"], &rows)?)
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
