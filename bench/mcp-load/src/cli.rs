//! The command line: one mode per measurement, and the options they share.

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(about = "Load generator and checker for MCP servers and gateways")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) mode: Mode,
}

#[derive(Subcommand)]
pub(crate) enum Mode {
    /// Call one tool many times
    Call(CallOptions),
    /// Call `whoami` on every server behind a gateway in turn
    Fanout(FanoutOptions),
    /// Time tools/list
    List(ListOptions),
    /// Spawn the command and measure the time until tools/list and a call succeed (over --url, else over its stdio)
    Startup(StartupOptions),
    /// Open sessions, call in each, hold them, call in each again
    Sessions(SessionsOptions),
    /// Check behaviour: negotiation, encodings, head-of-line blocking, errors, crash recovery
    Probe(ProbeOptions),
}

/// The connection to the measured program.
#[derive(Args, Clone)]
pub(crate) struct ConnectArgs {
    /// Streamable HTTP endpoint; without it, the command after `--` is run and called over stdio
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Extra request header, `Name: value`
    #[arg(long)]
    pub(crate) header: Vec<String>,
    /// POST arguments to <url>/<tool> instead of using MCP
    #[arg(long)]
    pub(crate) rest: bool,
    /// Use the older HTTP+SSE transport (GET the url for events, POST to the endpoint they name)
    #[arg(long)]
    pub(crate) sse: bool,
    /// Protocol revision to request
    #[arg(long, default_value = "2025-11-25")]
    pub(crate) protocol: String,
    /// Report the CPU time of these processes during the calls (comma separated ids)
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpu_of: Vec<i32>,
    /// Seconds after which one request counts as failed
    #[arg(long, default_value_t = 30.0)]
    timeout_s: f64,
}

impl ConnectArgs {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }
}

#[derive(Clone, Copy, ValueEnum, PartialEq)]
pub(crate) enum Kind {
    Echo,
    Blob,
    Sleep,
    Whoami,
}

impl Kind {
    fn tool(self) -> &'static str {
        match self {
            Kind::Echo => "echo",
            Kind::Blob => "blob",
            Kind::Sleep => "sleep",
            Kind::Whoami => "whoami",
        }
    }
}

#[derive(Clone, Copy, ValueEnum, PartialEq)]
pub(crate) enum Match {
    /// The text is exactly the expected one
    Exact,
    /// The text contains the call's unique tag and is long enough
    Contains,
}

/// The calls to make: tool, number and concurrency.
#[derive(Args, Clone)]
pub(crate) struct Load {
    /// Which tool to call
    #[arg(long, value_enum, default_value = "echo")]
    pub(crate) kind: Kind,
    /// Tool name, if it is not the kind's own; also found in tools/list with a prefix
    #[arg(long)]
    pub(crate) tool: Option<String>,
    /// Use the tool name as given, without tools/list
    #[arg(long)]
    pub(crate) exact_name: bool,
    /// tools/call params with $TOOL, $ARGS and $SERVER, for gateways with their own call tool
    #[arg(long)]
    pub(crate) call_template: Option<String>,
    /// Value of $SERVER outside fanout
    #[arg(long, default_value = "s0")]
    pub(crate) server: String,
    #[arg(long = "match", value_enum, default_value = "exact")]
    pub(crate) matching: Match,
    /// Bytes of text per call
    #[arg(long, default_value_t = 64)]
    pub(crate) size: usize,
    /// Duration of a call of `--kind sleep`
    #[arg(long, default_value_t = 100)]
    pub(crate) sleep_ms: u64,
    /// Calls in flight
    #[arg(short, long, default_value_t = 1)]
    pub(crate) concurrency: usize,
    /// MCP sessions that the workers share
    #[arg(long, default_value_t = 1)]
    pub(crate) sessions: usize,
    #[arg(short = 'n', long, default_value_t = 1000)]
    pub(crate) calls: u64,
    /// Stop after this many seconds even if calls are left
    #[arg(long)]
    pub(crate) max_seconds: Option<f64>,
    #[arg(long, default_value_t = 50)]
    pub(crate) warmup: u64,
}

impl Load {
    /// Returns these options with `$SERVER` filled in.
    pub(crate) fn on_one_server(mut self) -> Self {
        self.call_template = self.call_template.map(|template| template.replace("$SERVER", &self.server));
        self
    }

    /// Returns the server's own name of the tool to call.
    pub(crate) fn own_tool_name(&self) -> String {
        self.tool.clone().unwrap_or_else(|| self.kind.tool().to_owned())
    }
}

#[derive(Args)]
pub(crate) struct CallOptions {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) load: Load,
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct FanoutOptions {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) load: Load,
    /// Expected number of servers
    #[arg(long)]
    pub(crate) expect_servers: Option<usize>,
    /// Server names for `$SERVER`, comma separated, for gateways whose tools/list does not show their tools
    #[arg(long, value_delimiter = ',')]
    pub(crate) servers: Vec<String>,
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[arg(short = 'n', long, default_value_t = 50)]
    pub(crate) calls: u64,
    #[arg(long)]
    pub(crate) max_seconds: Option<f64>,
    #[arg(long, default_value_t = 3)]
    pub(crate) warmup: u64,
    /// Expected number of tools
    #[arg(long)]
    pub(crate) expect: Option<usize>,
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct StartupOptions {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) load: Load,
    /// Number of tools from which on tools/list counts as complete
    #[arg(long, default_value_t = 1)]
    pub(crate) expect: usize,
    #[arg(long, default_value_t = 60.0)]
    pub(crate) give_up_s: f64,
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct SessionsOptions {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) load: Load,
    #[arg(short = 'k', long, default_value_t = 100)]
    pub(crate) count: usize,
    #[arg(long, default_value_t = 1.0)]
    pub(crate) hold_s: f64,
    /// Sessions being opened at the same time
    #[arg(long, default_value_t = 8)]
    pub(crate) opening: usize,
}

#[derive(Args)]
pub(crate) struct ProbeOptions {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) load: Load,
    /// Skip the call that kills the server
    #[arg(long)]
    pub(crate) no_crash: bool,
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}
