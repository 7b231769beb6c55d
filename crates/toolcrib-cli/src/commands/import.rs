//! `toolcrib import`: shows the servers in the files of agents, and imports them into the config after confirmation.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::config::{ConfigChange, LayeredConfig};
use toolcrib_agents::agents::AgentPaths;
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::import::{
    self, Import, ImportRequest, ImportVerdict, ImportedEntry, LeftOut, SecretExtraction,
};

use super::config_changes;
use super::gateway_update::GatewayUpdate;
use crate::cli::{AgentScopeArg, ImportArgs, SecretsChoice};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::secrets::SecretLocator;

/// Shows what would be imported, and imports it if the person agrees.
pub(crate) async fn run(args: &ImportArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let agent_paths = AgentPaths::from_env()?;
    let original = open_config(paths)?;
    let locator = SecretLocator::new(paths, &paths.sources().load().secrets);
    let secrets = match args.secrets {
        SecretsChoice::Store => SecretExtraction::Store(&locator),
        SecretsChoice::Env => SecretExtraction::Env,
        SecretsChoice::Keep => SecretExtraction::Keep,
    };
    let import = match args.from.as_str() {
        "-" => {
            let text = std::io::read_to_string(std::io::stdin())?;
            import::import_text(&text, Path::new("stdin"), None, original.text(), secrets)?
        }
        from => import::import(&ImportRequest {
            from,
            scope: args.scope.into(),
            paths: &agent_paths,
            config_path: &paths.config,
            config_text: original.text(),
            secrets,
            left_out: LeftOut::default(),
        })?,
    };
    let plan = ImportPlan { import, original, config: &paths.config, agent_paths, args };
    let is_settled = args.dry_run || args.yes || !plan.has_changes();
    if !is_settled && !out.json {
        plan.print(false, out)?;
    }
    let can_write = !args.dry_run && plan.has_changes();
    let is_written = can_write && (args.yes || out.prompter().confirm("import these servers?")?);
    if is_written {
        plan.write(&locator)?;
    }
    let update = match is_written {
        true => GatewayUpdate::reload(paths).await,
        false => GatewayUpdate::NotRunning,
    };
    if out.json {
        let mut report = plan.to_json(is_written);
        report["gateway"] = update.to_json();
        out.print_json(&report)?;
    } else if is_settled {
        plan.print(!args.dry_run, out)?;
    }
    if can_write && !is_written {
        let error = CommandError::new(ExitStatus::CheckFailed, "not_imported", "nothing was imported");
        return Err(error.hint(repeated_command(args)).into());
    }
    out.print_note(&plan.summary())?;
    update.print(out)?;
    Ok(ExitStatus::Success)
}

/// Returns the command that makes the same import without a prompt.
fn repeated_command(args: &ImportArgs) -> String {
    let mut words = vec!["toolcrib".to_owned(), "import".to_owned()];
    let mut add = |flag: &str, value: &str| words.extend([flag.to_owned(), value.to_owned()]);
    if args.from != "auto" {
        add("--from", &args.from);
    }
    if args.scope == AgentScopeArg::Project {
        add("--scope", "project");
    }
    match args.secrets {
        SecretsChoice::Store => {}
        SecretsChoice::Env => add("--secrets", "env"),
        SecretsChoice::Keep => add("--secrets", "keep"),
    }
    words.push("--yes".to_owned());
    // A file name with a null byte cannot be an argument.
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default()
}

/// Opens the config that is imported into.
pub(super) fn open_config(paths: &Paths) -> Result<OriginalFile, CommandError> {
    if paths.config.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        let message =
            format!("cannot import into `{}`: only TOML files can be changed", paths.config.display());
        return Err(CommandError::usage(message).hint("toolcrib import --config FILE.toml"));
    }
    let original = OriginalFile::read(&paths.config)?;
    let config = toolcrib::Config::parse(&paths.config, original.text());
    if config.is_refused() { Err(CommandError::invalid_config(&config)) } else { Ok(original) }
}

/// An import that a person agrees to before anything is written.
struct ImportPlan<'a> {
    import: Import,
    original: OriginalFile,
    config: &'a Path,
    agent_paths: AgentPaths,
    args: &'a ImportArgs,
}

impl ImportPlan<'_> {
    fn has_changes(&self) -> bool {
        self.import.config_text != self.original.text()
    }

    /// Returns the values that are added. With `--secrets keep` they may be secrets, which are hidden.
    fn changes(&self) -> Vec<ConfigChange> {
        let before = LayeredConfig::parse(self.config, self.original.text());
        let after = LayeredConfig::parse(self.config, &self.import.config_text);
        let shown = if self.args.secrets == SecretsChoice::Keep { Path::new("") } else { self.config };
        after.changes_since(&before, shown)
    }

    /// Stores the secrets, then replaces the config, so that it never refers to a missing one.
    fn write(&self, locator: &SecretLocator) -> Result<()> {
        if self.args.secrets == SecretsChoice::Store {
            store_secrets(locator, &self.import, "import")?;
        }
        Ok(self.original.replace(&self.import.config_text)?)
    }

    /// Prints every entry, and every value that is written.
    fn print(&self, is_written: bool, out: &mut Output) -> Result<()> {
        for entry in &self.import.entries {
            print_entry(entry, &self.agent_paths, !is_written, out)?;
        }
        Ok(self.changes().iter().try_for_each(|change| config_changes::print(change, out))?)
    }

    fn to_json(&self, is_written: bool) -> Value {
        let entries: Vec<Value> = self.import.entries.iter().map(entry_json).collect();
        let changes: Vec<Value> = self.changes().iter().map(config_changes::to_json).collect();
        json!({
            "file": self.config.display().to_string(),
            "changed": self.has_changes(),
            "written": is_written,
            "entries": entries,
            "changes": changes,
        })
    }

    fn summary(&self) -> String {
        let entries = &self.import.entries;
        let is_imported = |entry: &&ImportedEntry| matches!(entry.verdict, ImportVerdict::Imported(_));
        let count = entries.iter().filter(is_imported).count();
        let file = self.agent_paths.abbreviate(self.config);
        match (entries.is_empty(), self.args.dry_run) {
            (true, _) => "no servers found".to_owned(),
            (false, true) => format!("{count} of {} would be imported into `{file}`", entries.len()),
            (false, false) => format!("{count} of {} imported into `{file}`", entries.len()),
        }
    }
}

/// Stores the secrets of an import. `verb` is the command that can leave them out.
pub(super) fn store_secrets(
    locator: &SecretLocator,
    import: &Import,
    verb: &str,
) -> Result<(), CommandError> {
    for (name, value) in &import.secrets {
        locator.set(name, value).map_err(|error| {
            let alternative = format!("toolcrib {verb} --secrets env");
            let hint = match &error.hint {
                Some(hint) => format!("{hint}, or {alternative}"),
                None => alternative,
            };
            error.hint(hint)
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
