//! `toolcrib secret`: sets, lists and removes the secrets that the config uses as `${secret:NAME}`.

use std::io::{IsTerminal as _, Read as _};

use anyhow::Result;
use serde_json::json;
use toolcrib::Secret;
use toolcrib::spec::template::is_valid_secret_name;
use zeroize::Zeroizing;

use super::gateway_update::{self, GatewayUpdate, RestartedServers};
use crate::cli::{SecretCommand, SetSecretArgs};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::prompt;
use crate::report::list_to_json;
use crate::report::secrets::SecretReport;
use crate::secrets::{SecretLocator, SecretUses};

/// The maximum size of a secret in bytes.
const MAX_VALUE_SIZE: usize = 64 << 10;

/// Sets, lists or removes secrets.
pub(crate) async fn run(command: &SecretCommand, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let config = paths.sources().load();
    if config.is_refused() {
        return Err(CommandError::invalid_config(&config).into());
    }
    let locator = SecretLocator::new(paths, &config.secrets);
    let uses = SecretUses::from_config(&config);
    match command {
        SecretCommand::Set(args) => set(args, &locator, &uses, paths, out).await,
        SecretCommand::Ls => ls(&locator, &uses, out),
        SecretCommand::Rm(args) => rm(&args.name, &locator, &uses, out),
    }
}

async fn set(
    args: &SetSecretArgs,
    locator: &SecretLocator,
    uses: &SecretUses,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let name = &args.name;
    check_name(name)?;
    if args.value.is_some() {
        let message = "a value on the command line is visible to all users of this machine";
        let hint = format!("run `toolcrib secret set {name}` and enter the value, or pipe it in");
        return Err(CommandError::usage(message).hint(hint).into());
    }
    let value = read_value(name, out)?;
    let location = locator.set(name, &value)?;
    let users = uses.users(name);
    // Tokens of callers are read again by a reload, secrets of servers when they start.
    let update = match users.is_empty() {
        true => GatewayUpdate::NotRunning,
        false => GatewayUpdate::reload(paths).await,
    };
    let restarted = match update {
        GatewayUpdate::Applied { .. } => gateway_update::restart_running(paths, &users).await?,
        GatewayUpdate::NotRunning | GatewayUpdate::Failed(_) => RestartedServers::default(),
    };
    if out.json {
        let backend = location.as_str();
        let gateway = update.to_json();
        out.print_json(&json!({
            "name": name, "backend": backend, "used_by": users, "gateway": gateway,
            "restarted": restarted.names, "not_restarted": restarted.failures_to_json(),
        }))?;
        return Ok(ExitStatus::Success);
    }
    out.print_note(&format!("set `{name}`"))?;
    out.print_note(&locator.storage_note(location))?;
    update.print(out)?;
    for server in &restarted.names {
        out.print_note(&format!("restarted `{server}`, which uses it"))?;
    }
    for error in &restarted.failures {
        out.warn(
            &format!("a server that uses it was not restarted: {}", error.message),
            error.hint.as_deref(),
        )?;
    }
    Ok(ExitStatus::Success)
}

fn check_name(name: &str) -> Result<(), CommandError> {
    match is_valid_secret_name(name) {
        true => Ok(()),
        false => Err(CommandError::usage(format!("`{}` is not a valid secret name", name.escape_default()))
            .hint("use letters, digits, `-`, `_`, `.` and `/`, such as `github-token`")),
    }
}

/// Reads a value: with a prompt if stdin is a terminal, else until the end of stdin.
fn read_value(name: &str, out: &Output) -> Result<Secret, CommandError> {
    let read_error = |error: std::io::Error| {
        CommandError::new(ExitStatus::Failure, "no_value", format!("cannot read the value: {error}"))
    };
    let text = if std::io::stdin().is_terminal() {
        if !out.prompter().is_interactive() {
            return Err(CommandError::usage("cannot prompt for the value")
                .hint(format!("pipe it in: … | toolcrib secret set {name}")));
        }
        prompt::read_hidden_line(&format!("value of `{name}`: "))
            .map_err(read_error)?
            .ok_or_else(|| CommandError::new(ExitStatus::Interrupted, "interrupted", "nothing was set"))?
    } else {
        let mut text = Zeroizing::new(String::new());
        std::io::stdin().take(MAX_VALUE_SIZE as u64 + 2).read_to_string(&mut text).map_err(read_error)?;
        text
    };
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    let problem = match value.len() {
        0 => Some("the value is empty"),
        1..=MAX_VALUE_SIZE => value.contains('\0').then_some("the value contains a null byte"),
        _ => Some("the value is larger than 64 KiB"),
    };
    match problem {
        Some(message) => Err(CommandError::new(ExitStatus::Failure, "bad_value", message)),
        None => Ok(Secret::new(value)),
    }
}

fn ls(locator: &SecretLocator, uses: &SecretUses, out: &mut Output) -> Result<ExitStatus> {
    let stored = locator.names(uses)?;
    let names: std::collections::BTreeSet<&String> = stored.keys().chain(uses.names()).collect();
    let secrets: Vec<SecretReport> =
        names.into_iter().map(|name| SecretReport::new(name, stored.get(name).copied(), uses)).collect();
    if out.json {
        out.print_json(&list_to_json(&secrets))?;
        return Ok(ExitStatus::Success);
    }
    let rows: Vec<Vec<String>> = secrets
        .into_iter()
        .map(|secret| {
            let backend = secret.backend.unwrap_or_else(|| "not set".to_owned());
            vec![secret.name, backend, secret.used_by.join(", ")]
        })
        .collect();
    if rows.is_empty() {
        out.print_note("no secrets")?;
    } else {
        out.print_table(&["NAME", "STORED IN", "USED BY"], &rows)?;
    }
    Ok(ExitStatus::Success)
}

fn rm(name: &str, locator: &SecretLocator, uses: &SecretUses, out: &mut Output) -> Result<ExitStatus> {
    check_name(name)?;
    if !locator.remove(name)? {
        let message = format!("secret `{name}` not found");
        return Err(CommandError::new(ExitStatus::Failure, "unknown_secret", message)
            .hint("toolcrib secret ls")
            .into());
    }
    if out.json {
        out.print_json(&json!({"name": name, "removed": true, "used_by": uses.users(name)}))?;
    } else {
        out.print_note(&format!("removed `{name}`"))?;
    }
    let users = uses.users(name).join(", ");
    if !users.is_empty() {
        out.warn(&format!("`{name}` is still used by {users}"), None)?;
    }
    Ok(ExitStatus::Success)
}
