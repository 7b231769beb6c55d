//! `toolcrib allow`: the config that came with a project may be used from now on, exactly as it is.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use toolcrib::config::{self, Draft, Facts};

use crate::cli::servers::Allow;
use crate::edit::file::Original;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;
use crate::project::{FILE, Project};

/// Shows what the file would start, and notes that it may.
pub(crate) fn run(args: &Allow, place: &Place, out: &mut Output) -> Result<Exit> {
    let folder = args.folder.as_deref().unwrap_or(Path::new("."));
    let folder = folder.canonicalize().with_context(|| format!("`{}` is no folder", folder.display()))?;
    let project = Project::around(&folder, place.state());
    let Some(file) = &project.file else {
        let message = format!("there is no `{FILE}` here, nor above up to the root of the repository");
        return Err(Failure::usage(message).hint("toolcrib add --scope project NAME -- COMMAND").into());
    };
    if args.revoke {
        let was = project.revoke()?;
        tell(out, file, false, was)?;
        return Ok(Exit::Fine);
    }
    let allowed = config::digest(Original::read(file)?.text());
    let layer = project.layer(allowed).context("there is no file")?;
    let read = Draft::read(&[layer]).resolve(&Facts::default());
    if read.refused() {
        return Err(Failure::bad_config(&read).into());
    }
    project.allow(allowed)?;
    for server in &read.declared {
        let target = server.target();
        out.say(&format!("  {}: {}", server.id, if target.is_empty() { "(patched)" } else { &target }))?;
    }
    tell(out, file, true, true)?;
    Ok(Exit::Fine)
}

fn tell(out: &mut Output, file: &Path, allowed: bool, changed: bool) -> std::io::Result<()> {
    let file = file.display().to_string();
    if out.json {
        return out.value(&json!({"file": file, "allowed": allowed}));
    }
    match (allowed, changed) {
        (true, _) => out.say(&format!("`{file}` is used from now on, until it changes")),
        (false, true) => out.say(&format!("`{file}` is not used any more")),
        (false, false) => out.say(&format!("`{file}` was not allowed")),
    }
}
