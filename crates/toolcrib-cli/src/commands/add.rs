//! `toolcrib add`: declares a server in a config file. A server that would not work is refused before anything is written.

mod registry;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::ServerId;
use toolcrib::util::maps::collect_map;

use super::call::adhoc;
use self::registry::{RegistryChoice, RegistryServer};
use super::config_document::ConfigDocument;
use super::doctor::{self, Completion};
use super::ls;
use crate::cli::servers::{AddArgs, TransportArg};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

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
    let keys = match &registry {
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
    for key in keys {
        document.set(&["servers", id.as_str(), key.name], &key.value)?;
    }
    document.check_server(&id)?;
    if args.try_first {
        let config = adhoc::config_with(paths, &document.server_spec(&id)?)?;
        if let Completion::Interrupted = doctor::try_servers(&config, paths, out).await? {
            return Ok(ExitStatus::Interrupted);
        }
    }
    document.save(out, &format!("added `{id}` to"), id.as_str())
}

/// Returns the server of `registry:FILE` or `registry:NAME`, which stands alone or after a name.
async fn registry_server(args: &AddArgs, paths: &Paths) -> Result<Option<RegistryServer>, CommandError> {
    let source = match (args.name.strip_prefix(REGISTRY), args.command_or_url.as_slice()) {
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
        let hint = "registry = \"https://registry.modelcontextprotocol.io\" in the config, or the path of a `server.json`";
        return Err(CommandError::usage(message).hint(hint));
    };
    RegistryServer::fetch(&registry, source).await.map(Some)
}

/// Returns the keys of the new table in the usual order.
fn server_keys(args: &AddArgs) -> Result<Vec<ServerKey>, CommandError> {
    let (first, rest) = args
        .command_or_url
        .split_first()
        .ok_or_else(|| CommandError::usage("the command or URL is missing").hint("toolcrib help add"))?;
    let is_url = first.starts_with("https://") || first.starts_with("http://");
    if is_url || matches!(args.transport, Some(TransportArg::Http | TransportArg::Sse)) {
        url_keys(first, rest, args)
    } else {
        command_keys(first, rest, args)
    }
}

fn url_keys(url: &str, rest: &[String], args: &AddArgs) -> Result<Vec<ServerKey>, CommandError> {
    if !rest.is_empty() || !args.env.is_empty() || args.transport == Some(TransportArg::Stdio) {
        let message = "a URL takes no arguments, no `--env` and no `--transport stdio`";
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
