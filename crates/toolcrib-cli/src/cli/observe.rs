//! Arguments of `stats` and `events`.

use clap::Args;

/// Arguments of `stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Count calls since then: 10m, 2h, 7d, 2026-05-01 or 2026-05-01T12:30 (UTC)
    #[arg(long, value_name = "TIME", default_value = "1d")]
    pub(crate) since: String,
    /// Show what definitions and results cost, by client, day and tool; a token is 4 bytes
    #[arg(long)]
    pub(crate) cost: bool,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Keep printing new events; needs a running gateway
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print events since then: 10m, 2h, 7d, 2026-05-01 or 2026-05-01T12:30 (UTC)
    ///
    /// Without it, the last hour, and with --follow only new events.
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Print only these kinds, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub(crate) kind: Vec<String>,
    /// Print everything about one call, by its id
    #[arg(long, value_name = "ID", conflicts_with_all = ["follow", "since", "kind", "server"])]
    pub(crate) call: Option<String>,
    /// Print only events of this server
    #[arg(long, value_name = "SERVER")]
    pub(crate) server: Option<String>,
}
