//! `toolcrib audit verify`: verifies the hash chain of the audit file.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::check::format_count;
use crate::audit::{self, BrokenChain, IntactChain};
use crate::cli::AuditVerifyArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

/// Verifies the audit file and the files it was rotated to. Exits with 2 if the chain is broken.
pub(crate) fn verify(args: &AuditVerifyArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let file = match &args.file {
        Some(file) => file.clone(),
        None => configured_file(paths)?,
    };
    let verified = audit::verify(&file).map_err(|error| {
        let message = format!("cannot read the audit file {}: {error}", file.display());
        CommandError::new(ExitStatus::Failure, "unreadable", message)
    })?;
    match verified {
        Ok(chain) => print_intact(&file, &chain, out),
        Err(broken) => Err(broken_error(&broken).into()),
    }
}

fn configured_file(paths: &Paths) -> Result<PathBuf, CommandError> {
    let config = paths.read_config()?;
    let file = config.audit.map(|audit| audit.file);
    file.ok_or_else(|| {
        let message = format!("the config {} sets no `audit` file", config.file.display());
        CommandError::usage(message).hint("toolcrib audit verify FILE")
    })
}

fn print_intact(file: &Path, chain: &IntactChain, out: &mut Output) -> Result<ExitStatus> {
    let last = chain.last.map(|link| link.to_string());
    if last.is_none() && chain.unchained > 0 {
        let message = format!("no line of {} has a link: an earlier version wrote them", file.display());
        return Err(CommandError::new(ExitStatus::CheckFailed, "audit_unchained", message).into());
    }
    if out.json {
        out.print_json(&chain.to_json(file))?;
        return Ok(ExitStatus::Success);
    }
    let lines = format_count(usize::try_from(chain.lines)?, "line");
    let files = format_count(chain.files, "file");
    out.print_line(&format!("{}: intact, {lines} in {files}", file.display()))?;
    if chain.unchained > 0 {
        out.print_line(&format!("{} lines have no link of their own", chain.unchained))?;
    }
    if chain.continues.is_some() {
        out.print_line("older files were removed, and could not be checked")?;
    }
    if let Some(last) = last {
        out.print_line(&format!("last link: {last}"))?;
    }
    Ok(ExitStatus::Success)
}

fn broken_error(broken: &BrokenChain) -> CommandError {
    let BrokenChain { file, line, reason } = broken;
    let file = file.display().to_string();
    let message = format!("{file}:{line}: the chain is broken: {reason}");
    let error = CommandError::new(ExitStatus::CheckFailed, "audit_broken", message)
        .hint("compare this line and those before it with a copy of the file");
    CommandError { data: json!({"file": file, "line": line}), ..error }
}
