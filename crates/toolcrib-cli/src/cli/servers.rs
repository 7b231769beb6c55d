//! The command line of those commands that are about single servers, declared or running. Every doc comment here is help text.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Arguments of `add`.
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// What to call it: 1 to 32 of a-z, 0-9, - and _
    pub(crate) name: String,
    /// The command and its arguments, or a URL
    #[arg(required = true, value_name = "COMMAND | URL")]
    pub(crate) words: Vec<String>,
    /// A variable for the command; once for each
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) env: Vec<String>,
    /// A header for the URL; once for each
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// How messages are carried; left out, it is guessed
    #[arg(short, long, value_name = "HOW")]
    pub(crate) transport: Option<Carrier>,
    #[command(flatten)]
    pub(crate) scope: Scope,
}

/// How messages are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Carrier {
    /// On the pipes of a command.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE, as of 2024-11-05.
    Sse,
}

/// Which file is changed.
#[derive(Debug, Args)]
pub(crate) struct Scope {
    /// Whose file to change: your own, or the project's
    #[arg(short, long, value_name = "WHOSE", default_value = "user")]
    pub(crate) scope: Whose,
}

/// Whose file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Whose {
    /// The person's own.
    User,
    /// The project's: `.toolcrib.toml`.
    Project,
}

/// Arguments of `rm`, `enable` and `disable`.
#[derive(Debug, Args)]
pub(crate) struct Change {
    /// The server's name
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) scope: Scope,
}

/// Arguments of `allow`.
#[derive(Debug, Args)]
pub(crate) struct Allow {
    /// A folder of the project; left out, this one
    pub(crate) folder: Option<PathBuf>,
    /// Take it back
    #[arg(long)]
    pub(crate) revoke: bool,
}

/// Arguments of `restart`, `stop`, `show` and `why`.
#[derive(Debug, Args)]
pub(crate) struct OneServer {
    /// The server's name
    pub(crate) server: String,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The server's name
    pub(crate) server: String,
    /// Go on with what it writes from now on
    #[arg(short, long)]
    pub(crate) follow: bool,
}

/// Arguments of `approve`.
#[derive(Debug, Args)]
pub(crate) struct Approve {
    /// The server's name
    #[arg(required_unless_present = "call", conflicts_with = "call")]
    pub(crate) server: Option<String>,
    /// The call that was refused, by the name in its hint
    #[arg(long, value_name = "ID")]
    pub(crate) call: Option<String>,
    /// Approve without asking
    #[arg(long)]
    pub(crate) yes: bool,
}
