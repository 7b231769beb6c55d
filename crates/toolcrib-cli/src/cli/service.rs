//! Arguments of `serve`, `stdio` and `service`. Doc comments are help texts.

use clap::{Args, Subcommand, ValueEnum};
use toolcrib::ServerId;

use crate::listen::ListenAddr;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address: HOST:PORT (port 0 picks a free one) or unix:PATH; must be loopback without callers
    #[arg(long, value_name = "ADDR", default_value_t)]
    pub(crate) listen: ListenAddr,
    /// Take over the sockets and sessions of the running gateway, which finishes its calls and exits
    #[arg(long, conflicts_with = "background")]
    pub(crate) replace: bool,
    /// Used by `stdio` to start a gateway in the background
    #[arg(long, hide = true, value_name = "STAGE", conflicts_with = "listen")]
    pub(crate) background: Option<BackgroundStage>,
}

/// The processes that start a gateway in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackgroundStage {
    /// Leaves the session of the agent, starts the gateway and exits, so that the gateway has no parent that may end it.
    Launch,
    /// The gateway itself.
    Run,
}

/// Arguments of `stdio`.
#[derive(Debug, Args)]
pub(crate) struct StdioArgs {
    /// Offer only what this profile includes
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// The agent that starts this command, whose rules apply as those of the caller `agent:NAME`
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<ServerId>,
}

/// Arguments of `service`.
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

/// The commands of `service`.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Install and start the service, or update it
    ///
    /// Examples:
    ///   toolcrib service install
    ///   toolcrib service install --listen 127.0.0.1:7718
    ///   toolcrib service install --dry-run
    #[command(verbatim_doc_comment)]
    Install(InstallServiceArgs),
    /// Stop and remove the service
    ///
    /// Examples:
    ///   toolcrib service remove
    ///   toolcrib service remove --dry-run
    #[command(verbatim_doc_comment)]
    Remove(RemoveServiceArgs),
    /// Show whether the service is installed and running
    ///
    /// Examples:
    ///   toolcrib service status
    ///   toolcrib service status --json
    #[command(verbatim_doc_comment)]
    Status,
}

/// Arguments of `service install`.
#[derive(Debug, Args)]
pub(crate) struct InstallServiceArgs {
    /// Address: HOST:PORT; must be loopback without callers
    #[arg(long, value_name = "ADDR", default_value_t)]
    pub(crate) listen: ListenAddr,
    /// Show the files and commands, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `service remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveServiceArgs {
    /// Show the files and commands, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
