//! Arguments of `init`, `import`, `export` and `run`. Doc comments are help texts.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use toolcrib_agents::agents::AgentFileScope;

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Make the changes without a prompt
    #[arg(long)]
    pub(crate) yes: bool,
    /// Show what would be changed, without writing anything
    #[arg(long, conflicts_with_all = ["yes", "undo"])]
    pub(crate) dry_run: bool,
    /// Undo every `init`; edits that were made since stay
    #[arg(long)]
    pub(crate) undo: bool,
    /// Do not install the service
    #[arg(long, conflicts_with = "undo")]
    pub(crate) no_service: bool,
    /// Set up only these agents
    #[arg(long, value_name = "AGENT", value_delimiter = ',', conflicts_with = "undo")]
    pub(crate) agent: Vec<String>,
    /// Leave out these agents or servers
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "undo")]
    pub(crate) except: Vec<String>,
    /// Give every server to every agent, instead of those that it had
    #[arg(long, conflicts_with_all = ["undo", "profile"])]
    pub(crate) share: bool,
    /// Offer the agents only what this profile includes
    #[arg(long, value_name = "NAME", conflicts_with = "undo")]
    pub(crate) profile: Option<String>,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// `auto` for all installed agents, the name of an agent, a file, or `-` for JSON on stdin
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    pub(crate) from: String,
    /// Which file of the agents to read
    #[arg(long, value_enum, default_value = "user")]
    pub(crate) scope: AgentScopeArg,
    /// Store, replace or keep values that look like secrets
    #[arg(long, value_enum, default_value = "store")]
    pub(crate) secrets: SecretsChoice,
    /// Show what would be imported, without writing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Import without a prompt
    #[arg(long)]
    pub(crate) yes: bool,
}

/// The scope of an agent's config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentScopeArg {
    /// The user-wide file.
    User,
    /// The file of the project that contains the current directory.
    Project,
}

impl From<AgentScopeArg> for AgentFileScope {
    fn from(scope: AgentScopeArg) -> Self {
        match scope {
            AgentScopeArg::User => Self::User,
            AgentScopeArg::Project => Self::Project,
        }
    }
}

/// The handling of values that look like secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SecretsChoice {
    /// Store them with `toolcrib secret` and write `${secret:NAME}`.
    Store,
    /// Write references to environment variables.
    Env,
    /// Copy them into the config.
    Keep,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The name of the agent
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) agent: Option<String>,
    /// Export to all installed agents
    #[arg(long)]
    pub(crate) all: bool,
    /// Which file of the agent to change
    #[arg(long, value_enum, default_value = "user")]
    pub(crate) scope: AgentScopeArg,
    /// Write the servers themselves instead of one entry for toolcrib
    #[arg(long)]
    pub(crate) expand: bool,
    /// Also remove the agent's own entries of servers that toolcrib has, so that none runs twice
    #[arg(long, conflicts_with = "expand")]
    pub(crate) replace: bool,
    /// Offer the agent only what this profile includes
    #[arg(long, value_name = "NAME", conflicts_with = "expand")]
    pub(crate) profile: Option<String>,
    /// Show the changes, without writing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Like --dry-run, and exit with 2 if there are changes
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) check: bool,
    /// Undo the last export
    #[arg(long, conflicts_with_all = ["dry_run", "check", "expand", "replace", "profile"])]
    pub(crate) undo: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The name of the agent
    pub(crate) agent: String,
    /// Offer the agent only what this profile includes
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Arguments for the agent
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<OsString>,
}
