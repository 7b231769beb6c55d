//! The command line of `toolcrib policy`. Every doc comment here is help text.

use clap::{Args, Subcommand};

/// Arguments of `policy`.
#[derive(Debug, Args)]
pub(crate) struct Policy {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

/// What to ask the rules.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Whether a caller may use a tool, a prompt or a resource, and which rule says so
    Test(PolicyTest),
}

/// Arguments of `policy test`.
#[derive(Debug, Args)]
pub(crate) struct PolicyTest {
    /// Who asks: a name under `[callers]`, or `local`
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub(crate) caller: String,
    /// The profile it looks through: a name under `[profiles]`
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// What for: `SERVER.TOOL`, by the server's own name for it
    #[arg(long, value_name = "TOOL")]
    pub(crate) tool: String,
}
