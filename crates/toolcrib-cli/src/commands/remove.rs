//! `toolcrib rm`: removes a server from a config file, and names the secrets that only this server used.

use anyhow::Result;
use toolcrib::config::Config;

use super::config_document::{ChangeReport, ConfigDocument};
use super::ls;
use crate::cli::servers::EditServerArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::declared::find_declared;
use crate::secrets::{SecretLocator, SecretUses};

/// Removes a server from a file, and warns if another file still declares it.
pub(crate) async fn run(args: &EditServerArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let mut document = ConfigDocument::open(paths, args.scope.scope)?;
    let before = paths.sources().load();
    if !document.toml.remove(&["servers", &args.server]) {
        let declared = find_declared(&before, &args.server)?;
        let message = format!("server `{}` is not declared in `{}`", args.server, document.path().display());
        let hint = format!(
            "it is declared in {}; `toolcrib disable {}` disables it",
            ls::format_origin(&declared.origin),
            args.server
        );
        return Err(CommandError::usage(message).hint(hint).into());
    }
    let changed = document.write()?;
    let config = paths.sources().load();
    let action = format!("removed `{}` from", args.server);
    let unused_secrets = find_unused_secrets(&args.server, &before, &config, paths);
    let change = ChangeReport { unused_secrets, ..ChangeReport::new(&action, &args.server) };
    let exit = document.report(changed, &change, paths, out).await?;
    if let Some(other) = config.declared.iter().find(|server| server.id.as_str() == args.server) {
        let origin = ls::format_origin(&other.origin);
        out.warn(&format!("server `{}` is still declared in {origin}", other.id), None)?;
    }
    Ok(exit)
}

/// Returns the stored secrets that the server used before the change and nothing uses after it.
fn find_unused_secrets(server: &str, before: &Config, after: &Config, paths: &Paths) -> Vec<String> {
    let locator = SecretLocator::new(paths, &after.secrets);
    if !locator.is_writable() {
        return Vec::new();
    }
    let uses_before = SecretUses::from_config(before);
    let uses_after = SecretUses::from_config(after);
    let is_unused = |name: &&String| {
        uses_before.users(name).contains(&server)
            && uses_after.users(name).is_empty()
            && locator.find(name).is_ok()
    };
    uses_before.names().filter(is_unused).cloned().collect()
}
