//! `toolcrib enable` and `toolcrib disable`: set or remove `enabled = false` of one server in a config file.

use anyhow::Result;
use serde_json::json;
use toolcrib::config::DeclaredServer;

use super::config_document::{ChangeReport, ConfigDocument};
use crate::cli::servers::EditServerArgs;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::declared::find_declared;

/// Enables a server that was disabled by name.
pub(crate) async fn enable(args: &EditServerArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    find_declared(&paths.sources().load(), &args.server)?;
    let table = ["servers", args.server.as_str()];
    let key = ["servers", args.server.as_str(), "enabled"];
    let mut document = ConfigDocument::open(paths, args.scope.scope)?;
    // Without the key a server is enabled, unless a less specific layer disables it.
    if document.toml.get(&key) == Some(json!(false)) {
        document.toml.remove(&key);
    }
    if document.toml.contains(&table) && document.toml.keys(&table).is_empty() {
        document.toml.remove(&table);
    }
    let mut changed = document.write()?;
    let mut server = find_server(paths, &args.server);
    if server.as_ref().is_some_and(|server| !server.enabled) {
        document = ConfigDocument::open(paths, args.scope.scope)?;
        document.set(&key, &json!(true))?;
        changed |= document.write()?;
        server = find_server(paths, &args.server);
    }
    let action = format!("enabled `{}` in", args.server);
    let change = ChangeReport::new(&action, &args.server);
    document.report(changed, &change, paths, out).await?;
    warn_unless_active_is(true, server.as_ref(), out)?;
    Ok(ExitStatus::Success)
}

/// Disables a server by name. It stays declared.
pub(crate) async fn disable(args: &EditServerArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    find_declared(&paths.sources().load(), &args.server)?;
    let mut document = ConfigDocument::open(paths, args.scope.scope)?;
    document.set(&["servers", &args.server, "enabled"], &json!(false))?;
    let changed = document.write()?;
    let action = format!("disabled `{}` in", args.server);
    let change = ChangeReport::new(&action, &args.server);
    document.report(changed, &change, paths, out).await?;
    warn_unless_active_is(false, find_server(paths, &args.server).as_ref(), out)?;
    Ok(ExitStatus::Success)
}

fn find_server(paths: &Paths, name: &str) -> Option<DeclaredServer> {
    paths.sources().load().declared.into_iter().find(|server| server.id.as_str() == name)
}

/// Warns if another rule of the config decides whether the server is active.
fn warn_unless_active_is(
    expected: bool,
    server: Option<&DeclaredServer>,
    out: &mut Output,
) -> std::io::Result<()> {
    match server {
        Some(server) if server.active != expected => {
            let message = format!("server `{}` is {}", server.id, server.reason);
            out.warn(&message, Some(&format!("toolcrib why {}", server.id)))
        }
        _ => Ok(()),
    }
}
