//! `toolcrib add-json`: declares servers that are given as JSON, in the forms that agents use.

use std::io::Read as _;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::import::{self, ImportVerdict, ImportedEntry, SecretExtraction};

use super::agent_profiles;
use super::doctor::Completion;
use super::first_list;
use super::gateway_update::GatewayUpdate;
use super::import::store_secrets;
use crate::cli::SecretsChoice;
use crate::cli::servers::AddJsonArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::secrets::SecretLocator;

/// Declares the servers. Nothing is written unless all of them can be declared.
pub(crate) async fn run(args: &AddJsonArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let text = entries_text(&args.name_and_json)?;
    if paths.config.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        return Err(CommandError::usage("only TOML files can be changed")
            .hint("edit the file by hand")
            .into());
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
    let imported = import::import_text(&text, Path::new("JSON"), None, original.text(), secrets)?;
    let names = declared_names(&imported.entries)?;
    if args.secrets == SecretsChoice::Store {
        store_secrets(&locator, &imported, "add-json")?;
    }
    original.replace(&imported.config_text)?;
    let update = GatewayUpdate::reload(paths).await;
    let file = paths.config.display().to_string();
    if out.json {
        let notes: Vec<&String> = imported.entries.iter().flat_map(|entry| &entry.notes).collect();
        let gateway = update.to_json();
        let report =
            json!({"names": names, "file": file, "changed": true, "notes": notes, "gateway": gateway});
        out.print_json(&report)?;
    }
    for (name, entry) in names.iter().zip(&imported.entries) {
        out.print_note(&format!("added `{name}` to `{file}`"))?;
        entry.notes.iter().try_for_each(|note| out.print_note(&format!("  {note}")))?;
        agent_profiles::print_agents_without(name, paths, out)?;
    }
    update.print(out)?;
    for name in names.iter().filter(|_| !args.no_try) {
        let id = name.parse().map_err(|error| CommandError::unexpected(&error))?;
        if let Completion::Interrupted = first_list::run(&id, paths, out).await? {
            return Ok(ExitStatus::Interrupted);
        }
    }
    Ok(ExitStatus::Success)
}

/// Returns the JSON text with names: one entry is put under the name on the command line.
fn entries_text(words: &[String]) -> Result<String, CommandError> {
    let (name, json) = match words {
        [name, json] => (Some(name), json),
        [json] => (None, json),
        _ => return Err(CommandError::usage("the JSON is missing").hint("toolcrib help add-json")),
    };
    let mut text = json.clone();
    if json == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).map_err(|error| CommandError::unexpected(&error))?;
    }
    let Some(name) = name else { return Ok(text) };
    let entry: Value = serde_json::from_str(&text).map_err(|error| {
        CommandError::usage(format!("the entry of `{name}` is not valid JSON: {error}"))
            .hint(r#"write it as '{"command": "uvx", "args": ["mcp-server-git"]}'"#)
    })?;
    // People paste a whole `mcpServers` object and give a name as well.
    let inner = ["mcpServers", "servers"].iter().find_map(|key| entry[*key].as_object());
    let entry = match inner.map(|servers| servers.values().collect::<Vec<_>>()).as_deref() {
        Some([only]) => (*only).clone(),
        Some(_) => {
            return Err(CommandError::usage("the JSON has several servers")
                .hint("leave out NAME to declare all of them under their own names"));
        }
        None => entry,
    };
    Ok(json!({"mcpServers": {name: entry}}).to_string())
}

/// Returns the names under which all entries were declared.
fn declared_names(entries: &[ImportedEntry]) -> Result<Vec<&str>, CommandError> {
    if entries.is_empty() {
        return Err(CommandError::usage("the JSON has no server: no object with `command` or `url`")
            .hint("toolcrib help add-json"));
    }
    entries.iter().map(declared_name).collect()
}

fn declared_name(entry: &ImportedEntry) -> Result<&str, CommandError> {
    let name = &entry.name;
    match &entry.verdict {
        ImportVerdict::Imported(declared) if is_renamed(name, declared) => {
            let message = format!("the config has a different server `{name}`");
            Err(CommandError::usage(message)
                .hint(format!("run `toolcrib rm {name}`, or choose another name")))
        }
        ImportVerdict::Imported(declared) => Ok(declared),
        ImportVerdict::Duplicate(other) => {
            Err(CommandError::usage(format!("`{name}` is already declared, as `{other}`")))
        }
        ImportVerdict::Skipped(reason) => {
            Err(CommandError::usage(format!("`{name}` cannot be declared: {reason}")))
        }
        _ => Err(CommandError::usage(format!("`{name}` cannot be declared"))),
    }
}

/// Returns whether a server got another name because its own was taken. Differences in spelling do not count.
fn is_renamed(name: &str, declared: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
    };
    plain(name) != plain(declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_gets_the_name_of_the_command_line() {
        let text = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            entries_text(&words).map_err(|error| error.message)
        };
        let expected = r#"{"mcpServers":{"git":{"command":"uvx"}}}"#;
        assert_eq!(text(&["git", r#"{"command": "uvx"}"#]).unwrap(), expected);
        assert_eq!(text(&["git", r#"{"mcpServers": {"other": {"command": "uvx"}}}"#]).unwrap(), expected);
        assert_eq!(text(&["{}"]).unwrap(), "{}");
        assert!(text(&["git", "{"]).unwrap_err().contains("not valid JSON"));
        assert!(text(&["git", r#"{"servers": {"a": {}, "b": {}}}"#]).unwrap_err().contains("several"));
    }
}
