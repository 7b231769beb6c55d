//! `toolcrib rm`: removes a server from a config file.

use anyhow::Result;

use super::config_document::{ChangeReport, ConfigDocument};
use super::ls;
use crate::cli::servers::EditServerArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::declared::find_declared;

/// Removes a server from a file, and warns if another file still declares it.
pub(crate) async fn run(args: &EditServerArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let mut document = ConfigDocument::open(paths, args.scope.scope)?;
    if !document.toml.remove(&["servers", &args.server]) {
        let config = paths.sources().load();
        let declared = find_declared(&config, &args.server)?;
        let message = format!("server `{}` is not declared in `{}`", args.server, document.path().display());
        let hint = format!(
            "it is declared in {}; `toolcrib disable {}` disables it",
            ls::format_origin(&declared.origin),
            args.server
        );
        return Err(CommandError::usage(message).hint(hint).into());
    }
    let changed = document.write()?;
    let change = ChangeReport { action: &format!("removed `{}` from", args.server), server: &args.server };
    let exit = document.report(changed, &change, paths, out).await?;
    let config = paths.sources().load();
    if let Some(other) = config.declared.iter().find(|server| server.id.as_str() == args.server) {
        let origin = ls::format_origin(&other.origin);
        out.warn(&format!("server `{}` is still declared in {origin}", other.id), None)?;
    }
    Ok(exit)
}
