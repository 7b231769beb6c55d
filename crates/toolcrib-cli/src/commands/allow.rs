//! `toolcrib allow`: shows what the config of a project changes, and allows it in its current form after confirmation.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use toolcrib::config::{self, ConfigChange, HostFacts, LayeredConfig, Problem, ProblemScope, Sha256Digest};
use toolcrib_agents::edit::file::OriginalFile;

use super::config_changes;
use crate::cli::servers::AllowArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::project::{PROJECT_FILE, ProjectFolder};

/// Shows what the file changes and allows it if the person agrees, or revokes the permission.
pub(crate) fn run(args: &AllowArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let folder = args.folder.as_deref().unwrap_or(Path::new("."));
    let folder = folder.canonicalize().with_context(|| format!("`{}` is not a folder", folder.display()))?;
    let project = ProjectFolder::find(&folder, paths.state_dir());
    let Some(file) = &project.file else {
        let message = format!("no `{PROJECT_FILE}` here or above, up to the root of the repository");
        return Err(CommandError::usage(message).hint("toolcrib add --scope project NAME -- COMMAND").into());
    };
    if args.revoke {
        print_revoked(out, file, project.revoke()?)?;
        return Ok(ExitStatus::Success);
    }
    let text_digest = config::text_digest(OriginalFile::read(file)?.text());
    let plan = AllowPlan::read(&project, text_digest, paths)?;
    if !out.json {
        plan.print(out)?;
    }
    let is_confirmed = args.yes || out.prompter().confirm("allow this file?")?;
    if is_confirmed {
        project.allow(text_digest)?;
    }
    if out.json {
        out.print_json(&plan.to_json(file, is_confirmed))?;
    }
    if !is_confirmed {
        let message = format!("`{}` was not allowed", file.display());
        let error = CommandError::new(ExitStatus::CheckFailed, "not_allowed", message);
        return Err(error.hint("toolcrib allow --yes").into());
    }
    out.print_note(&format!("`{}` is allowed until it changes", file.display()))?;
    Ok(ExitStatus::Success)
}

/// The effect of a project's file on the config.
struct AllowPlan {
    changes: Vec<ConfigChange>,
    /// Problems of the file that do not keep it from being used.
    problems: Vec<Problem>,
}

impl AllowPlan {
    /// Compares the config with and without the file. Fails if the file cannot be used.
    fn read(project: &ProjectFolder, text_digest: Sha256Digest, paths: &Paths) -> Result<Self> {
        let layer = project.layer(text_digest).context("the project has no config")?;
        let config = LayeredConfig::read(std::slice::from_ref(&layer)).resolve(&HostFacts::default());
        if config.is_refused() {
            return Err(CommandError::invalid_config(&config).into());
        }
        let file = layer.path.clone();
        let before = paths.sources().read_base_layers();
        let after = paths.sources().read_with_project(layer);
        let mut problems = after.resolve(&HostFacts::default()).problems;
        problems.retain(|problem| problem.file == file && problem.scope == ProblemScope::Section);
        Ok(Self { changes: after.changes_since(&before, &file), problems })
    }

    fn print(&self, out: &mut Output) -> std::io::Result<()> {
        if self.changes.is_empty() {
            out.print_note("the file changes nothing")?;
        }
        self.changes.iter().try_for_each(|change| config_changes::print(change, out))?;
        out.warn_problems(&self.problems)
    }

    fn to_json(&self, file: &Path, allowed: bool) -> Value {
        json!({
            "file": file.display().to_string(),
            "allowed": allowed,
            "changes": self.changes.iter().map(config_changes::to_json).collect::<Vec<_>>(),
        })
    }
}

fn print_revoked(out: &mut Output, file: &Path, was_allowed: bool) -> std::io::Result<()> {
    let file = file.display().to_string();
    if out.json {
        return out.print_json(&json!({"file": file, "allowed": false}));
    }
    let message = if was_allowed { "is no longer allowed" } else { "was not allowed" };
    out.print_note(&format!("`{file}` {message}"))
}
