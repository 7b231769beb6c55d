//! A config file that `add`, `rm`, `enable` and `disable` edit. Comments and order of the file are kept.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::config::{self, Config, HostFacts, LayeredConfig, ProblemScope};
use toolcrib::{ServerId, ServerSpec};
use toolcrib_agents::edit::file::OriginalFile;
use toolcrib_agents::edit::toml::{TomlEditError, TomlFile};

use super::gateway_update::GatewayUpdate;
use crate::cli::servers::ConfigScope;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::project::{ProjectFolder, TrustState};

/// A change of one server, as it is reported.
pub(super) struct ChangeReport<'a> {
    /// Printed before the path of the file, as in "added `git` to".
    pub(super) action: &'a str,
    pub(super) server: &'a str,
    /// Stored secrets that no server and no caller uses after the change.
    pub(super) unused_secrets: Vec<String>,
}

impl<'a> ChangeReport<'a> {
    /// Creates the report of a change that leaves no secret behind.
    pub(super) fn new(action: &'a str, server: &'a str) -> Self {
        Self { action, server, unused_secrets: Vec::new() }
    }
}

/// A config file that is being edited.
pub(super) struct ConfigDocument {
    original: OriginalFile,
    pub(super) toml: TomlFile,
    /// The project of the file, if the file is new or allowed. The edited text is then allowed as well.
    project: Option<ProjectFolder>,
    /// True if it is a project's file that did not exist.
    is_new_project: bool,
}

impl ConfigDocument {
    /// Opens the user's or the project's config file, which need not exist.
    pub(super) fn open(paths: &Paths, scope: ConfigScope) -> Result<Self, CommandError> {
        let project = match scope {
            ConfigScope::User => None,
            ConfigScope::Project => Some(find_project(paths)),
        };
        let file = match &project {
            Some(project) => project.file.clone().unwrap_or_default(),
            None => paths.config.clone(),
        };
        if file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
            return Err(CommandError::usage("only TOML files can be changed").hint("edit the file by hand"));
        }
        if project.is_some() && file.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink()) {
            let message = format!("`{}` is a symbolic link, which a project file may not be", file.display());
            return Err(CommandError::usage(message).hint("replace the link with a file"));
        }
        let original = OriginalFile::read(&file)?;
        let toml = TomlFile::parse(original.text()).map_err(|error| edit_error(&file, &error))?;
        let is_new_project = project.is_some() && !original.exists();
        let is_trusted = |project: &ProjectFolder| {
            !original.exists() || matches!(project.trust_state(), TrustState::Allowed(_))
        };
        let project = project.filter(is_trusted);
        Ok(Self { original, toml, project, is_new_project })
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        self.original.path()
    }

    /// Sets the value of a key.
    pub(super) fn set(&mut self, key: &[&str], value: &Value) -> Result<(), CommandError> {
        self.toml.set(key, value).map_err(|error| edit_error(self.original.path(), &error))
    }

    /// Returns a server of the edited text.
    pub(super) fn server_spec(&self, id: &ServerId) -> Result<ServerSpec, CommandError> {
        let spec = self.resolve().roster.get(id).cloned();
        spec.ok_or_else(|| CommandError::usage(format!("server `{id}` is not active here")))
    }

    fn resolve(&self) -> Config {
        LayeredConfig::parse(self.path(), &self.toml.render()).resolve(&HostFacts::default())
    }

    /// Fails if the edited text has a problem that would disable the server.
    pub(super) fn check_server(&self, id: &ServerId) -> Result<(), CommandError> {
        let config = self.resolve();
        let concerns_server =
            |scope: &ProblemScope| matches!(scope, ProblemScope::Server(name) if name == id.as_str());
        match config.problems.iter().find(|problem| concerns_server(&problem.scope)) {
            Some(problem) => {
                let error = CommandError::usage(format!("server `{id}` would not work: {}", problem.message));
                Err(problem.hint.iter().fold(error, CommandError::hint))
            }
            None => Ok(()),
        }
    }

    /// Writes the file. Returns whether its text changed.
    pub(super) fn write(&self) -> Result<bool, CommandError> {
        let text = self.toml.render();
        if text == self.original.text() {
            return Ok(false);
        }
        self.original.replace(&text)?;
        if let Some(project) = &self.project {
            project.allow(config::text_digest(&text))?;
        }
        Ok(true)
    }

    /// Puts the written file in force in the running gateway and reports the change.
    pub(super) async fn report(
        &self,
        changed: bool,
        change: &ChangeReport<'_>,
        paths: &Paths,
        out: &mut Output,
    ) -> Result<ExitStatus> {
        // A gateway that was started before the project's file was allowed does not read it.
        let update = match changed && !self.is_new_project {
            true => GatewayUpdate::reload(paths).await,
            false => GatewayUpdate::NotRunning,
        };
        let file = self.path().display().to_string();
        if out.json {
            let gateway = update.to_json();
            let mut report =
                json!({"name": change.server, "file": file, "changed": changed, "gateway": gateway});
            if !change.unused_secrets.is_empty() {
                report["unused_secrets"] = json!(change.unused_secrets);
            }
            out.print_json(&report)?;
        } else {
            out.print_note(&format!("{} `{file}`", change.action))?;
        }
        update.print(out)?;
        for name in &change.unused_secrets {
            out.print_note(&format!(
                "secret `{name}` is no longer used; remove it with `toolcrib secret rm {name}`"
            ))?;
        }
        Ok(ExitStatus::Success)
    }
}

/// Finds the project of the working folder. A project without a config gets one at its root.
fn find_project(paths: &Paths) -> ProjectFolder {
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let project = ProjectFolder::find(&folder, paths.state_dir());
    if project.file.is_some() { project } else { project.with_config() }
}

fn edit_error(file: &Path, error: &TomlEditError) -> CommandError {
    // A syntax error starts with its position, as in `FILE:LINE:COL: message`.
    let separator = if matches!(error, TomlEditError::Syntax { .. }) { ":" } else { ": " };
    let message = format!("{}{separator}{error}", file.display());
    CommandError::new(ExitStatus::InvalidConfig, "config_invalid", message).hint("toolcrib check")
}
