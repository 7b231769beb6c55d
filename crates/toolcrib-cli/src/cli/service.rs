//! Arguments of `service`. Doc comments are help texts.

use clap::{Args, Subcommand};

use crate::listen::ListenAddr;

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
    Install(InstallServiceArgs),
    /// Stop and remove the service
    Remove(RemoveServiceArgs),
    /// Show whether the service is installed and running
    Status,
}

/// Arguments of `service install`.
#[derive(Debug, Args)]
pub(crate) struct InstallServiceArgs {
    /// Address: HOST:PORT; must be loopback without callers
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7717")]
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
