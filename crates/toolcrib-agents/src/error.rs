//! The error type of this crate.

use std::fmt;

/// Category of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentErrorKind {
    /// The agent does not exist, or has no file of the requested scope.
    InvalidRequest,
    /// The current directory cannot be read.
    NoCurrentDir,
    /// `HOME` is not set.
    NoHome,
    /// A file cannot be read, written or removed.
    CannotEdit,
    /// Another process changed the file.
    ChangedMeanwhile,
    /// The file is read-only.
    ReadOnly,
    /// A project file is a link to a place outside the project.
    OutsideProject,
    /// A new file would make an agent ignore another one.
    WouldHideFile,
    /// The backup for undoing cannot be written.
    CannotBackUp,
    /// No export is recorded for the file.
    NothingToUndo,
    /// The text of a file is invalid, or would be after the change.
    InvalidFile,
}

impl AgentErrorKind {
    /// Returns the stable name of the kind.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidRequest => "usage",
            Self::NoCurrentDir => "no_folder",
            Self::NoHome => "no_home",
            Self::CannotEdit => "cannot_edit",
            Self::ChangedMeanwhile => "changed_meanwhile",
            Self::ReadOnly => "read_only",
            Self::OutsideProject => "leads_out",
            Self::WouldHideFile => "would_hide",
            Self::CannotBackUp => "cannot_keep",
            Self::NothingToUndo => "nothing_to_undo",
            Self::InvalidFile => "agent_file_invalid",
        }
    }
}

/// Reason why a file could not be found, read or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: AgentErrorKind,
    message: String,
    hint: Option<String>,
}

impl Error {
    pub(crate) fn new(kind: AgentErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn with_message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// Returns the category.
    pub fn kind(&self) -> AgentErrorKind {
        self.kind
    }

    /// Returns the stable name of the category.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// Returns the description for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the next step, usually a command.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
