//! Arguments of `audit`. Doc comments are help texts.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

/// The commands of `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Check that no line of the audit file was changed, removed or inserted
    ///
    /// Examples:
    ///   toolcrib audit verify
    ///   toolcrib audit verify /var/log/toolcrib/audit.jsonl
    #[command(verbatim_doc_comment)]
    Verify(AuditVerifyArgs),
}

/// Arguments of `audit verify`.
#[derive(Debug, Args)]
pub(crate) struct AuditVerifyArgs {
    /// The audit file; by default the one that the config names
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}
