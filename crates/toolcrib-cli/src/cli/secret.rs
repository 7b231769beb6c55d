//! The command line of `toolcrib secret`. Every doc comment here is help text.

use clap::{Args, Subcommand};

/// Arguments of `secret`.
#[derive(Debug, Args)]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

/// What to do with secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set one: asks for the value without showing it, or reads it from stdin
    Set(SetSecret),
    /// List them: names, where each is kept, and who uses it; never values
    Ls,
    /// Remove one
    Rm(OneSecret),
}

/// Arguments of `secret set`.
#[derive(Debug, Args)]
pub(crate) struct SetSecret {
    /// Its name: letters, digits, `-`, `_`, `.` and `/`
    pub(crate) name: String,
    /// Refused: others could see it.
    #[arg(hide = true)]
    pub(crate) value: Option<String>,
}

/// A secret's name.
#[derive(Debug, Args)]
pub(crate) struct OneSecret {
    /// Its name
    pub(crate) name: String,
}
