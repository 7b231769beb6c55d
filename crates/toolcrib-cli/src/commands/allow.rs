//! `toolcrib allow`: allows the config of a project in its current form.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use toolcrib::config::{self, HostFacts, LayeredConfig};
use toolcrib_agents::edit::file::OriginalFile;

use crate::cli::servers::AllowArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::project::{PROJECT_FILE, ProjectFolder};

/// Prints what the file would start and allows it, or revokes the permission.
pub(crate) fn run(args: &AllowArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let folder = args.folder.as_deref().unwrap_or(Path::new("."));
    let folder = folder.canonicalize().with_context(|| format!("`{}` is not a folder", folder.display()))?;
    let project = ProjectFolder::find(&folder, paths.state_dir());
    let Some(file) = &project.file else {
        let message = format!("no `{PROJECT_FILE}` here or above, up to the root of the repository");
        return Err(CommandError::usage(message).hint("toolcrib add --scope project NAME -- COMMAND").into());
    };
    if args.revoke {
        let was_allowed = project.revoke()?;
        let message = if was_allowed { "is no longer allowed" } else { "was not allowed" };
        print_result(out, file, false, message)?;
        return Ok(ExitStatus::Success);
    }
    let allowed = config::text_digest(OriginalFile::read(file)?.text());
    let layer = project.layer(allowed).context("the project has no config")?;
    let config = LayeredConfig::read(&[layer]).resolve(&HostFacts::default());
    if config.is_refused() {
        return Err(CommandError::invalid_config(&config).into());
    }
    project.allow(allowed)?;
    for server in &config.declared {
        let target = server.command_or_url();
        out.print_note(&format!(
            "  {}: {}",
            server.id,
            if target.is_empty() { "(patched)" } else { &target }
        ))?;
    }
    print_result(out, file, true, "is allowed until it changes")?;
    Ok(ExitStatus::Success)
}

fn print_result(out: &mut Output, file: &Path, allowed: bool, message: &str) -> std::io::Result<()> {
    let file = file.display().to_string();
    if out.json {
        return out.print_json(&json!({"file": file, "allowed": allowed}));
    }
    out.print_note(&format!("`{file}` {message}"))
}
