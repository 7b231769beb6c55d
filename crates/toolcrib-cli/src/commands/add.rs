//! `toolcrib add`: declares a server in a config file. A server that would not work is refused before anything is written.

mod registry;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::util::maps::collect_map;
use toolcrib::{Secret, ServerId};
use toolcrib_agents::import::DeclaredPairs;

use self::registry::{RegistryChoice, RegistryServer};
use super::agent_profiles;
use super::call::adhoc;
use super::config_document::{ChangeReport, ConfigDocument};
use super::doctor::{self, Completion};
use super::{first_list, ls};
use crate::cli::servers::{AddArgs, TransportArg};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::preflight;
use crate::secrets::SecretLocator;

/// The prefix of the path of a `server.json`, or of the name of a server in the registry.
const REGISTRY: &str = "registry:";

/// One key of the new server table.
struct ServerKey {
    name: &'static str,
    value: Value,
}

impl ServerKey {
    fn new(name: &'static str, value: Value) -> Self {
        Self { name, value }
    }
}

/// Declares a server.
pub(crate) async fn run(args: &AddArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let registry = registry_server(args, paths).await?;
    let name = match &registry {
        Some(server) if args.name.starts_with(REGISTRY) => server.short_name(),
        _ => args.name.clone(),
    };
    let id: ServerId = name.parse().map_err(|reason| {
        CommandError::usage(format!("`{name}` is not a valid server name: {reason}"))
            .hint("choose another name, such as `my-server`")
    })?;
    let mut keys = match &registry {
        Some(server) => server.server_keys(&RegistryChoice {
            server: id.as_str(),
            values: parse_env(&args.env)?,
            transport: args.transport,
        })?,
        None => server_keys(args)?,
    };
    let mut document = ConfigDocument::open(paths, args.scope.scope)?;
    let config = paths.sources().load();
    if let Some(existing) = config.declared.iter().find(|server| server.id.folded() == id.folded()) {
        let origin = ls::format_origin(&existing.origin);
        let message = format!("server `{}` is already declared in {origin}", existing.id);
        let hint = format!("run `toolcrib rm {}`, or choose another name", existing.id);
        return Err(CommandError::usage(message).hint(hint).into());
    }
    if args.try_first
        && let Completion::Interrupted = try_server(args, &id, &keys, paths, out).await?
    {
        return Ok(ExitStatus::Interrupted);
    }
    let locator = SecretLocator::new(paths, &config.secrets);
    let extracted =
        if args.plain { ExtractedSecrets::default() } else { extract_secrets(&mut keys, &id, &locator) };
    for key in keys {
        document.set(&["servers", id.as_str(), key.name], &key.value)?;
    }
    document.check_server(&id)?;
    // Stored first, so that the config never refers to a missing one.
    extracted.store(&locator)?;
    let changed = document.write()?;
    let action = format!("added `{id}` to");
    let change = ChangeReport::new(&action, id.as_str());
    let exit = document.report(changed, &change, paths, out).await?;
    extracted.print(out)?;
    agent_profiles::print_agents_without(id.as_str(), paths, out)?;
    if args.no_try {
        out.warn_problems(&preflight::find_missing(&paths.sources().load(), Some(&id), &locator))?;
        return Ok(exit);
    }
    match first_list::run(&id, paths, out).await? {
        Completion::Done => Ok(exit),
        Completion::Interrupted => Ok(ExitStatus::Interrupted),
    }
}

/// Starts the server with the values as they were given, before anything is written or stored.
async fn try_server(
    args: &AddArgs,
    id: &ServerId,
    keys: &[ServerKey],
    paths: &Paths,
    out: &mut Output,
) -> Result<Completion> {
    let mut document = ConfigDocument::open(paths, args.scope.scope)?;
    for key in keys {
        document.set(&["servers", id.as_str(), key.name], &key.value)?;
    }
    document.check_server(id)?;
    let config = adhoc::config_with(paths, &document.server_spec(id)?)?;
    doctor::try_servers(&config, paths, out).await
}

/// The secrets among the values of a new server.
#[derive(Default)]
struct ExtractedSecrets {
    secrets: Vec<(String, Secret)>,
    notes: Vec<String>,
}

/// Replaces values that look like secrets by references.
fn extract_secrets(keys: &mut [ServerKey], id: &ServerId, locator: &SecretLocator) -> ExtractedSecrets {
    let mut pairs = DeclaredPairs::default();
    for key in keys.iter() {
        match key.name {
            "env" => pairs.env = text_members(&key.value),
            "headers" => pairs.headers = text_members(&key.value),
            _ => {}
        }
    }
    let (secrets, notes) = pairs.extract_secrets(id.as_str(), locator);
    for key in keys {
        let values = match key.name {
            "env" => &pairs.env,
            "headers" => &pairs.headers,
            _ => continue,
        };
        for (name, value) in values {
            key.value[name] = json!(value);
        }
    }
    ExtractedSecrets { secrets, notes }
}

fn text_members(value: &Value) -> BTreeMap<String, String> {
    let members = value.as_object().into_iter().flatten();
    collect_map(members.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))))
}

impl ExtractedSecrets {
    fn store(&self, locator: &SecretLocator) -> Result<(), CommandError> {
        for (name, value) in &self.secrets {
            locator.set(name, value).map_err(|error| {
                let hint = error.hint.iter().map(|hint| format!("{hint}, or "));
                let hint = hint.collect::<String>() + "add the server with --plain to write it into the file";
                CommandError {
                    message: format!("cannot store the secret `{name}`: {}", error.message),
                    ..error
                }
                .hint(hint)
            })?;
        }
        Ok(())
    }

    /// Says what was stored and how to undo it.
    fn print(&self, out: &mut Output) -> std::io::Result<()> {
        self.notes.iter().try_for_each(|note| out.print_note(note))?;
        if self.secrets.is_empty() {
            return Ok(());
        }
        let undo = self.secrets.iter().map(|(name, _)| format!("`toolcrib secret rm {name}`"));
        let undo = undo.collect::<Vec<_>>().join(", ");
        out.print_note(&format!("undo: {undo}; to write values into the file, add the server with --plain"))
    }
}

/// Returns the server of `registry:FILE` or `registry:NAME`, which stands alone or after a name.
async fn registry_server(args: &AddArgs, paths: &Paths) -> Result<Option<RegistryServer>, CommandError> {
    let source = match (args.name.strip_prefix(REGISTRY), args.command_or_url()) {
        (Some(file), []) => file,
        (None, [only]) if only.starts_with(REGISTRY) => &only[REGISTRY.len()..],
        _ => return Ok(None),
    };
    if !args.header.is_empty() {
        return Err(CommandError::usage("`registry:` takes no `--header`").hint("-e NAME=VALUE gives values"));
    }
    if Path::new(source).exists() {
        return RegistryServer::read(Path::new(source)).map(Some);
    }
    let Some(registry) = paths.sources().load().registry else {
        let message = format!("`{source}` is not a file, and the config has no `registry`");
        let hint = "registry = \"https://registry.example\" in the config, or the path of a `server.json`";
        return Err(CommandError::usage(message).hint(hint));
    };
    RegistryServer::fetch(&registry, source).await.map(Some)
}

/// Returns the keys of the new table in the usual order.
fn server_keys(args: &AddArgs) -> Result<Vec<ServerKey>, CommandError> {
    let (first, rest) = args
        .command_or_url()
        .split_first()
        .ok_or_else(|| CommandError::usage("the command or URL is missing").hint("toolcrib help add"))?;
    let is_url = first.starts_with("https://") || first.starts_with("http://");
    if let Some((scheme, _)) = first.split_once("://").filter(|_| !is_url && !first.contains("${")) {
        return Err(CommandError::usage(format!("unknown URL scheme `{scheme}`"))
            .hint("toolcrib add docs https://example.com/mcp"));
    }
    let is_remote = matches!(args.transport, Some(TransportArg::Http | TransportArg::Sse));
    if is_url || is_remote || args.url.is_some() {
        url_keys(first, rest, args)
    } else {
        command_keys(first, rest, args)
    }
}

fn url_keys(url: &str, rest: &[String], args: &AddArgs) -> Result<Vec<ServerKey>, CommandError> {
    let has_environment = !args.env.is_empty() || !args.inherit_env.is_empty();
    if !rest.is_empty() || has_environment || args.transport == Some(TransportArg::Stdio) {
        let message = "a URL takes no arguments, no `--env`, no `--inherit-env` and no `--transport stdio`";
        let hint = "toolcrib add docs https://example.com/mcp -H \"Name: value\"";
        return Err(CommandError::usage(message).hint(hint));
    }
    let mut keys = vec![ServerKey::new("url", json!(url))];
    match args.transport {
        Some(TransportArg::Http) => keys.push(ServerKey::new("type", json!("http"))),
        Some(TransportArg::Sse) => keys.push(ServerKey::new("type", json!("sse"))),
        Some(TransportArg::Stdio) | None => {}
    }
    if !args.header.is_empty() {
        keys.push(ServerKey::new("headers", parse_pairs(&args.header, ':', "-H \"Name: value\"")?));
    }
    Ok(keys)
}

fn command_keys(command: &str, rest: &[String], args: &AddArgs) -> Result<Vec<ServerKey>, CommandError> {
    if !args.header.is_empty() {
        return Err(CommandError::usage("a command takes no `--header`")
            .hint("toolcrib add git -e KEY=VALUE -- COMMAND"));
    }
    let mut keys = vec![ServerKey::new("command", json!(command))];
    if !rest.is_empty() {
        keys.push(ServerKey::new("args", json!(rest)));
    }
    if !args.env.is_empty() {
        keys.push(ServerKey::new("env", parse_pairs(&args.env, '=', "-e KEY=VALUE")?));
    }
    if !args.inherit_env.is_empty() {
        keys.push(ServerKey::new("inherit-env", json!(args.inherit_env)));
    }
    Ok(keys)
}

/// Parses `KEY=VALUE` arguments.
fn parse_env(arguments: &[String]) -> Result<BTreeMap<String, String>, CommandError> {
    let pairs = parse_pairs(arguments, '=', "-e KEY=VALUE")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pairs = pairs.as_object().into_iter().flatten();
    Ok(collect_map(pairs.map(|(key, value)| (key.clone(), text(value)))))
}

/// Parses `KEY=VALUE` or `NAME: VALUE` arguments into an object.
fn parse_pairs(arguments: &[String], separator: char, example: &str) -> Result<Value, CommandError> {
    let mut members = serde_json::Map::new();
    for argument in arguments {
        let pair = argument.split_once(separator).map(|(key, value)| match separator {
            ':' => (key.trim(), value.trim()),
            _ => (key, value),
        });
        let Some((key, value)) = pair.filter(|(key, _)| !key.is_empty()) else {
            let message = format!("`{argument}` does not have the form KEY{separator}VALUE");
            return Err(CommandError::usage(message).hint(example));
        };
        members.insert(key.to_owned(), json!(value));
    }
    Ok(Value::Object(members))
}
