//! Arguments of commands for single servers and of `allow`. Doc comments are help texts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Arguments of `add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The name of the server: 1 to 32 of a-z, 0-9, - and _; may be omitted before registry:FILE
    pub(crate) name: String,
    /// The command and its arguments, a URL, or registry:FILE | registry:NAME
    #[arg(value_name = "COMMAND | URL")]
    command_or_url: Vec<String>,
    /// The URL, as other programs take it
    #[arg(long, value_name = "URL", conflicts_with = "command_or_url")]
    pub(crate) url: Option<String>,
    /// An environment variable for the command; can be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) env: Vec<String>,
    /// An HTTP header for the URL; can be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// The transport; detected if omitted
    #[arg(short, long, value_name = "TRANSPORT")]
    pub(crate) transport: Option<TransportArg>,
    /// Check and start the server first; nothing is written if that fails
    #[arg(long = "try")]
    pub(crate) try_first: bool,
    /// Do not start the server; otherwise it is started once, to list its tools
    #[arg(long, conflicts_with = "try_first")]
    pub(crate) no_try: bool,
    /// A variable that the command gets from the environment of the gateway; can be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) inherit_env: Vec<String>,
    /// Write values that look like secrets into the file instead of the secret store
    #[arg(long)]
    pub(crate) plain: bool,
    #[command(flatten)]
    pub(crate) scope: ConfigScopeArgs,
}

impl AddArgs {
    /// Returns the command and its arguments, or the URL.
    pub(crate) fn command_or_url(&self) -> &[String] {
        self.url.as_ref().map_or(&self.command_or_url, std::slice::from_ref)
    }
}

/// The transport of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// The stdin and stdout of a command.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE of protocol version 2024-11-05.
    Sse,
}

/// Selects the config file to change.
#[derive(Debug, Args)]
pub(crate) struct ConfigScopeArgs {
    /// The config file to change: your own, or the project's
    #[arg(short, long, value_name = "SCOPE", default_value = "user")]
    pub(crate) scope: ConfigScope,
}

/// A config file that commands can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfigScope {
    /// The user's config.
    User,
    /// The project's config: `.toolcrib.toml`.
    Project,
}

/// Arguments of `rm`, `enable` and `disable`.
#[derive(Debug, Args)]
pub(crate) struct EditServerArgs {
    /// The name of the server
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) scope: ConfigScopeArgs,
}

/// Arguments of `allow`.
#[derive(Debug, Args)]
pub(crate) struct AllowArgs {
    /// A folder of the project; default: the current folder
    pub(crate) folder: Option<PathBuf>,
    /// Revoke the permission
    #[arg(long)]
    pub(crate) revoke: bool,
    /// Allow without a prompt
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The name of the server
    pub(crate) server: String,
    /// Assume these facts instead of this machine's: host, user, os, project, network,
    /// gateway-mac, ssid, tag, env.NAME
    #[arg(long = "as", value_name = "KEY=VALUE,…")]
    pub(crate) assumed: Option<String>,
}

/// Arguments of `restart`, `stop` and `show`.
#[derive(Debug, Args)]
pub(crate) struct ServerNameArgs {
    /// The name of the server
    pub(crate) server: String,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Show one server in detail
    pub(crate) server: Option<String>,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The name of the server
    pub(crate) server: String,
    /// Keep printing new lines; needs a running gateway
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print at most this number of lines, the newest ones
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 200)]
    pub(crate) lines: usize,
    /// Print only lines since then: 10m, 2h, 2026-05-01 or 2026-05-01T12:30 (UTC)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Check only what concerns this server
    pub(crate) server: Option<String>,
}

/// Arguments of `approve`.
#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    /// The name of the server
    #[arg(required_unless_present = "call", conflicts_with = "call")]
    pub(crate) server: Option<String>,
    /// Approve a refused call, by the id in its hint
    #[arg(long, value_name = "ID")]
    pub(crate) call: Option<String>,
    /// Approve without a prompt
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Arguments of `add-json`.
#[derive(Debug, Args)]
pub(crate) struct AddJsonArgs {
    /// The name of the server, unless the JSON has names
    #[arg(value_name = "[NAME] JSON", required = true, num_args = 1..=2)]
    pub(crate) name_and_json: Vec<String>,
    /// Store, replace or keep values that look like secrets
    #[arg(long, value_enum, default_value = "store")]
    pub(crate) secrets: super::SecretsChoice,
    /// Do not start the servers; otherwise each is started once, to list its tools
    #[arg(long)]
    pub(crate) no_try: bool,
}
