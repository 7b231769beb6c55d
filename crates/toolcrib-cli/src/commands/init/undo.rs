//! Undoes `init`: restores the files, and removes secrets and the service.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib_agents::agents::AgentPaths;
use toolcrib_agents::export;

use super::UNDO;
use super::journal::{FileUndo, InitJournal, InitRecord, RecordedFile};
use super::service_step::{self, ServiceRemoval};
use crate::command_error::CommandError;
use crate::commands::gateway_update::GatewayUpdate;
use crate::exit::ExitStatus;
use crate::gateway::OtherGateway;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::secrets::SecretLocator;

/// What undoing did to all files.
#[derive(Default)]
pub(super) struct UndoReport {
    pub(super) restored: Vec<PathBuf>,
    /// Files that were edited since, and have everything but the change.
    edited: Vec<RecordedFile>,
    pub(super) left: Vec<RecordedFile>,
    service_removed: bool,
    /// Why the service is still installed.
    service_left: Option<String>,
}

impl UndoReport {
    pub(super) fn is_complete(&self) -> bool {
        self.left.is_empty() && self.service_left.is_none()
    }

    /// Prints which files are as they were, and what is left.
    pub(super) fn print(&self, agent_paths: &AgentPaths, out: &mut Output) -> std::io::Result<()> {
        if out.json {
            let text = |path: &Path| path.display().to_string();
            let left = |file: &RecordedFile| json!({"file": text(&file.path), "backup": file.backup.as_deref().map(text)});
            let restored: Vec<String> = self.restored.iter().map(|path| text(path)).collect();
            let edited: Vec<String> = self.edited.iter().map(|file| text(&file.path)).collect();
            let left: Vec<Value> = self.left.iter().map(left).collect();
            return out.print_json(&json!({
                "restored": restored, "edited": edited, "left": left,
                "service_removed": self.service_removed, "service_left": self.service_left,
            }));
        }
        for path in &self.restored {
            out.print_line(&format!("restored `{}`", agent_paths.abbreviate(path)))?;
        }
        for file in &self.edited {
            let path = agent_paths.abbreviate(&file.path);
            let removed = match file.agent {
                Some(_) => "the entry of toolcrib is removed, and what it replaced is back",
                None => "what `init` added is removed",
            };
            out.print_line(&format!("`{path}` was edited since, which stays; {removed}"))?;
        }
        if self.service_removed {
            out.print_line("removed the service")?;
        }
        if self.restored.is_empty() && self.edited.is_empty() && self.is_complete() {
            out.print_note("all files are as they were before")?;
        }
        if let Some(reason) = &self.service_left {
            out.warn(&format!("the service is still installed: {reason}"), Some(UNDO))?;
        }
        for file in &self.left {
            let path = agent_paths.abbreviate(&file.path);
            let before = match &file.backup {
                Some(backup) => format!("its contents before are in `{}`", backup.display()),
                None => "it did not exist before".to_owned(),
            };
            let hint = match file.agent {
                Some(_) => format!("repair the file, then run `{UNDO}` again"),
                None => "`toolcrib rm NAME` removes a server that you no longer need".to_owned(),
            };
            out.warn(&format!("`{path}` was edited since and cannot be changed; {before}"), Some(&hint))?;
        }
        Ok(())
    }
}

/// Undoes every `init`, the newest first. What was edited since stays.
pub(super) fn undo(agent_paths: &AgentPaths, paths: &Paths, locator: &SecretLocator) -> Result<UndoReport> {
    let journal = InitJournal::new(paths.state_dir());
    let records = journal.records()?;
    if records.is_empty() {
        let error = CommandError::new(ExitStatus::Failure, "nothing_to_undo", "no `init` to undo");
        return Err(error.into());
    }
    let mut report = UndoReport::default();
    for (number, record) in records {
        let mut left = undo_files(&record, agent_paths, paths, &mut report)?;
        // An agent that was not restored still needs the gateway, and each file that was not restored the secrets.
        if record.service && left.files.iter().all(|file| file.agent.is_none()) {
            left.service = undo_service(paths, &mut report);
        }
        if left.files.is_empty() {
            record.secrets.iter().try_for_each(|name| locator.remove(name).map(|_| ()))?;
        }
        journal.finish(number, &left)?;
    }
    Ok(report)
}

/// Removes the service. Returns whether it is still installed.
fn undo_service(paths: &Paths, report: &mut UndoReport) -> bool {
    match service_step::remove(paths) {
        ServiceRemoval::Removed => report.service_removed = true,
        ServiceRemoval::NotInstalled => {}
        ServiceRemoval::Left { reason } => {
            report.service_left = Some(reason);
            return true;
        }
    }
    false
}

/// Undoes the changes of one `init`: agents first, so that they work without toolcrib before its config goes. Returns what
/// is left.
fn undo_files(
    record: &InitRecord,
    agent_paths: &AgentPaths,
    paths: &Paths,
    report: &mut UndoReport,
) -> Result<InitRecord> {
    let mut left = InitRecord { files: Vec::new(), ..record.clone() };
    for file in record.files.iter().rev() {
        let is_in = |list: &[RecordedFile]| list.iter().any(|other| other.path == file.path);
        match file.undo(agent_paths)? {
            FileUndo::Restored => report.restored.push(file.path.clone()),
            FileUndo::Unchanged => {}
            FileUndo::EditsKept if is_in(&report.edited) => {}
            FileUndo::EditsKept => report.edited.push(file.clone()),
            FileUndo::Edited => {
                if !is_in(&report.left) {
                    report.left.push(file.clone());
                }
                left.files.push(file.clone());
                continue;
            }
        }
        export::forget_undone(&file.path, file.before()?.as_deref(), paths.state_dir());
    }
    Ok(left)
}

/// Lets no gateway keep the config that was undone. A gateway that an agent started is stopped: agents that still use
/// toolcrib start it again.
pub(super) async fn update_gateway(paths: &Paths, out: &mut Output) -> Result<()> {
    match OtherGateway::find(paths)? {
        Some(other) if other.auto_started => {
            let stopped = other.stop(paths.sources().load().limits.drain);
            Ok(Wait::new("stopping the gateway", ServerSource::None).run(stopped).await?)
        }
        Some(_) => Ok(GatewayUpdate::reload(paths).await.print(out)?),
        None => Ok(()),
    }
}
