//! Arguments of `secret`. Doc comments are help texts.

use clap::{Args, Subcommand};

/// Arguments of `secret`.
#[derive(Debug, Args)]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

/// The commands of `secret`.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set a secret: prompt for the value without echo, or read it from stdin
    ///
    /// Examples:
    ///   toolcrib secret set github-token
    ///   pass show github | toolcrib secret set github-token
    #[command(verbatim_doc_comment)]
    Set(SetSecretArgs),
    /// List names, where each secret is stored and what uses it; never values
    ///
    /// Examples:
    ///   toolcrib secret ls
    ///   toolcrib secret ls --json
    #[command(verbatim_doc_comment)]
    Ls,
    /// Remove a secret
    ///
    /// Examples:
    ///   toolcrib secret rm github-token
    #[command(verbatim_doc_comment)]
    Rm(SecretNameArgs),
}

/// Arguments of `secret set`.
#[derive(Debug, Args)]
pub(crate) struct SetSecretArgs {
    /// The name: letters, digits, `-`, `_`, `.` and `/`
    pub(crate) name: String,
    /// Always refused, because other users can see command lines.
    #[arg(hide = true)]
    pub(crate) value: Option<String>,
}

/// Arguments of `secret rm`.
#[derive(Debug, Args)]
pub(crate) struct SecretNameArgs {
    /// The name of the secret
    pub(crate) name: String,
}
