//! `toolcrib import`: imports servers from the files of agents into the config.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib_agents::agents::AgentPaths;
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::import::{self, Import, ImportRequest, ImportVerdict, ImportedEntry, SecretExtraction};

use crate::cli::{ImportArgs, SecretsChoice};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::secrets::SecretLocator;

/// Imports servers, or prints what would be imported.
pub(crate) fn run(args: &ImportArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let agent_paths = AgentPaths::from_env()?;
    if paths.config.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        let message =
            format!("cannot import into `{}`: only TOML files can be changed", paths.config.display());
        return Err(CommandError::usage(message).hint("toolcrib import --config FILE.toml").into());
    }
    let original = OriginalFile::read(&paths.config)?;
    let config = toolcrib::Config::parse(&paths.config, original.text());
    if config.is_refused() {
        return Err(CommandError::invalid_config(&config).into());
    }
    let locator = SecretLocator::new(paths, &paths.sources().load().secrets);
    let secrets = match args.secrets {
        SecretsChoice::Store => SecretExtraction::Store(&locator),
        SecretsChoice::Env => SecretExtraction::Env,
        SecretsChoice::Keep => SecretExtraction::Keep,
    };
    let import = import::import(&ImportRequest {
        from: &args.from,
        scope: args.scope.into(),
        paths: &agent_paths,
        config_path: &paths.config,
        config_text: original.text(),
        secrets,
    })?;
    let changed = import.config_text != original.text();
    if changed && !args.dry_run {
        // Secrets are stored first, so that the config never refers to a missing one.
        if args.secrets == SecretsChoice::Store {
            store_secrets(&locator, &import)?;
        }
        original.replace(&import.config_text)?;
    }
    if out.json {
        let entries: Vec<Value> = import.entries.iter().map(entry_json).collect();
        let file = paths.config.display().to_string();
        out.print_json(&json!({"file": file, "changed": changed, "entries": entries}))?;
        return Ok(ExitStatus::Success);
    }
    for entry in &import.entries {
        print_entry(entry, &agent_paths, args.dry_run, out)?;
    }
    let count =
        import.entries.iter().filter(|entry| matches!(entry.verdict, ImportVerdict::Imported(_))).count();
    let file = agent_paths.abbreviate(&paths.config);
    let summary = match (import.entries.is_empty(), args.dry_run) {
        (true, _) => "no servers found".to_owned(),
        (false, true) => format!("{count} of {} would be imported into `{file}`", import.entries.len()),
        (false, false) => format!("{count} of {} imported into `{file}`", import.entries.len()),
    };
    out.print_note(&summary)?;
    Ok(ExitStatus::Success)
}

fn store_secrets(locator: &SecretLocator, import: &Import) -> Result<(), CommandError> {
    for (name, value) in &import.secrets {
        locator.set(name, value).map_err(|error| match &error.hint {
            Some(hint) => {
                let hint = format!("{hint}, or toolcrib import --secrets env");
                error.hint(hint)
            }
            None => error.hint("toolcrib import --secrets env"),
        })?;
    }
    Ok(())
}

fn print_entry(
    entry: &ImportedEntry,
    agent_paths: &AgentPaths,
    dry_run: bool,
    out: &mut Output,
) -> Result<()> {
    let file = agent_paths.abbreviate(&entry.file);
    let ImportedEntry { name, verdict, notes, .. } = entry;
    out.print_line(&match verdict {
        ImportVerdict::Imported(_) if dry_run => format!("would import `{name}` from `{file}`"),
        ImportVerdict::Imported(_) => format!("imported `{name}` from `{file}`"),
        ImportVerdict::Skipped(reason) if name.is_empty() => format!("skipped {reason}"),
        ImportVerdict::Skipped(reason) => format!("skipped `{name}` from `{file}`: {reason}"),
        ImportVerdict::Duplicate(other) => format!("duplicate `{name}` from `{file}`: same as `{other}`"),
        other => format!("{} `{name}` from `{file}`", other.as_str()),
    })?;
    for note in notes {
        out.print_line(&format!("  {note}"))?;
    }
    Ok(())
}

fn entry_json(entry: &ImportedEntry) -> Value {
    let mut report = json!({
        "name": entry.name,
        "file": entry.file.display().to_string(),
        "agent": entry.agent,
        "verdict": entry.verdict.as_str(),
        "notes": entry.notes,
    });
    match &entry.verdict {
        ImportVerdict::Imported(name) => report["as"] = name.as_str().into(),
        ImportVerdict::Skipped(reason) => report["reason"] = reason.as_str().into(),
        ImportVerdict::Duplicate(other) => report["of"] = other.as_str().into(),
        _ => {}
    }
    report
}
