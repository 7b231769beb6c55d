//! What the commands around agents take.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use crate::agents::Scope;

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// `auto` for every agent, an agent, or a file
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    pub(crate) from: String,
    /// Which of the agents' files
    #[arg(long, value_enum, default_value = "user")]
    pub(crate) scope: Scope,
    /// What becomes of secrets that are written out
    #[arg(long, value_enum, default_value = "store")]
    pub(crate) secrets: Secrets,
    /// Say what would be imported and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What becomes of secrets that are written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Secrets {
    /// They go where `toolcrib secret` keeps them; `${secret:NAME}` stands in their place.
    Store,
    /// References to variables stand in their place.
    Env,
    /// They are copied into the config as they are.
    Keep,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The agent
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) agent: Option<String>,
    /// Every agent that seems to be installed
    #[arg(long)]
    pub(crate) all: bool,
    /// Which of its files
    #[arg(long, value_enum, default_value = "user")]
    pub(crate) scope: Scope,
    /// The servers themselves instead of one entry that leads to toolcrib
    #[arg(long)]
    pub(crate) expand: bool,
    /// Show the difference and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The same, and exit 2 if there is a difference
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) check: bool,
    /// Take back what was written last
    #[arg(long, conflicts_with_all = ["dry_run", "check", "expand"])]
    pub(crate) undo: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The agent
    pub(crate) agent: String,
    /// What the agent is to be told on its command line
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<OsString>,
}
