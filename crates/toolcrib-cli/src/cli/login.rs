//! Arguments of `login` and `logout`. Doc comments are help texts.

use std::time::Duration;

use clap::Args;

/// Arguments of `login`.
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// The server
    #[arg(required_unless_present_any = ["all", "status"])]
    pub(crate) server: Option<String>,
    /// Log in to every server that needs it
    #[arg(long, conflicts_with = "server")]
    pub(crate) all: bool,
    /// Show the logins and change nothing
    #[arg(long, conflicts_with = "all")]
    pub(crate) status: bool,
    /// Log in for one caller of the gateway; for servers with `sharing = "per-caller"`
    #[arg(long = "as", value_name = "CALLER", conflicts_with_all = ["all", "status"])]
    pub(crate) caller: Option<String>,
    /// Print a code to enter in a browser on another machine, where the server offers that
    #[arg(long, conflicts_with = "status")]
    pub(crate) device: bool,
    /// Print the URL and do not open a browser
    #[arg(long)]
    pub(crate) no_browser: bool,
    /// Time to wait for the browser
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::parse_duration)]
    pub(crate) timeout: Duration,
}

/// Arguments of `logout`.
#[derive(Debug, Args)]
pub(crate) struct LogoutArgs {
    /// The server
    pub(crate) server: String,
    /// Remove the login of one caller of the gateway
    #[arg(long = "as", value_name = "CALLER")]
    pub(crate) caller: Option<String>,
}
