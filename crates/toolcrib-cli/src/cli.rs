//! The command line. Doc comments on commands and arguments are their help texts.

mod agents;
mod audit;
mod completions;
mod demo;
pub(crate) mod help;
mod login;
mod observe;
mod policy;
mod requests;
mod secret;
pub(crate) mod servers;
pub(crate) mod service;
mod ui;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use agents::{AgentScopeArg, ExportArgs, ImportArgs, InitArgs, RunArgs, SecretsChoice};
pub(crate) use audit::{AuditArgs, AuditCommand, AuditVerifyArgs};
pub(crate) use completions::{CompletionsArgs, ShellArg};
pub(crate) use demo::{DemoRole, DemoServerArgs};
pub(crate) use login::{LoginArgs, LogoutArgs};
pub(crate) use observe::{EventsArgs, StatsArgs};
pub(crate) use policy::{PolicyArgs, PolicyCommand, PolicyTestArgs};
pub(crate) use requests::{CallArgs, CompleteArgs, PromptsArgs, ResourcesArgs, ToolsArgs};
pub(crate) use secret::{SecretArgs, SecretCommand, SetSecretArgs};
pub(crate) use servers::{ApproveArgs, DoctorArgs, LogsArgs, ServerNameArgs, StatusArgs, WhyArgs};
pub(crate) use service::{
    BackgroundStage, InstallServiceArgs, ServeArgs, ServiceArgs, ServiceCommand, StdioArgs,
};
pub(crate) use ui::UiArgs;

/// One gateway in front of all your MCP servers
#[derive(Debug, Parser)]
#[command(name = "toolcrib", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of all commands. Only the help of the program shows them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Use only this config file
    #[arg(long, global = true, hide_short_help = true, hide_long_help = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print data as JSON on stdout and errors as JSON on stderr
    #[arg(long, global = true, hide_short_help = true, hide_long_help = true)]
    pub(crate) json: bool,
    /// Print only errors
    #[arg(
        short,
        long,
        global = true,
        hide_short_help = true,
        hide_long_help = true,
        conflicts_with = "verbose"
    )]
    pub(crate) quiet: bool,
    /// Print debug logs
    #[arg(short, long, global = true, hide_short_help = true, hide_long_help = true)]
    pub(crate) verbose: bool,
    /// Choose when to use colors
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub(crate) color: ColorChoice,
    /// Never prompt for input
    #[arg(long, global = true, hide_short_help = true, hide_long_help = true)]
    pub(crate) no_input: bool,
}

/// Use of colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what toolcrib does, offline and without a config
    ///
    /// Examples:
    ///   toolcrib demo
    ///   toolcrib demo --json
    ///
    /// Starts a gateway with built-in servers and calls them over HTTP. Kills a server during a
    /// call and shows that it restarts, shows that a crashing server is ejected while the others
    /// keep working, stops everything, and checks that no process is left.
    #[command(verbatim_doc_comment)]
    Demo,
    /// Run the gateway in the foreground
    ///
    /// Examples:
    ///   toolcrib serve
    ///   toolcrib serve --listen 127.0.0.1:0
    ///   toolcrib serve --listen unix:/run/user/1000/crib.sock
    ///   toolcrib serve --replace
    ///
    /// Prints `listening on http://HOST:PORT/mcp` when it is ready. SIGTERM or Ctrl-C waits for
    /// calls in flight and stops all servers; a second signal does not wait. The config is
    /// reloaded when its file changes and on SIGHUP.
    #[command(verbatim_doc_comment)]
    Serve(ServeArgs),
    /// Serve MCP on stdin and stdout, for agents that start a command
    ///
    /// Examples:
    ///   toolcrib stdio
    ///   claude mcp add crib -- toolcrib stdio
    ///
    /// Attaches to the running gateway. Without one, it starts a gateway in the background, which
    /// other agents share and which exits when it is not used; see `[gateway]` in the config. When
    /// the gateway restarts, the session continues with the new one.
    #[command(verbatim_doc_comment)]
    Stdio(StdioArgs),
    /// Stop the gateway and wait until it is gone
    ///
    /// Examples:
    ///   toolcrib stop-gateway
    ///
    /// Waits for calls in flight and stops all servers. Agents that are attached with `toolcrib
    /// stdio` keep their session; the next message starts a gateway again.
    #[command(verbatim_doc_comment)]
    StopGateway,
    /// Run the gateway as a service of your user
    ///
    /// Examples:
    ///   toolcrib service install
    ///   toolcrib service install --dry-run
    ///   toolcrib service status
    ///   toolcrib service remove
    ///
    /// Uses systemd, which starts the gateway with the first connection, or launchd. Without either,
    /// no service is needed: `toolcrib stdio` starts a gateway in the background.
    #[command(verbatim_doc_comment)]
    Service(ServiceArgs),
    /// Call a tool
    ///
    /// Examples:
    ///   toolcrib call git__git_log repo_path=. max_count=3
    ///   toolcrib call git git_log max_count=3
    ///   toolcrib call git.git_log '{"max_count": 3}'
    ///   echo '{"max_count": 3}' | toolcrib call git_log --args - --timeout 10s
    ///   toolcrib call --command 'uvx mcp-server-time' get_current_time timezone=UTC
    ///
    /// TOOL is a public name, or a tool name that only one server has. After SERVER, or as
    /// SERVER.TOOL, it is the server's own name of the tool.
    ///
    /// KEY=VALUE has the type of the tool's schema, and KEY:=JSON is JSON. A repeated KEY is an
    /// array, and so is a single one where the schema has an array. An argument that starts with {
    /// is the object of all arguments; @FILE reads it.
    #[command(
        verbatim_doc_comment,
        alias = "call-tool",
        override_usage = "toolcrib call [OPTIONS] [SERVER] <TOOL> [KEY=VALUE]..."
    )]
    Call(CallArgs),
    /// List tools, show one, or search
    ///
    /// Examples:
    ///   toolcrib tools                          all tools, by server
    ///   toolcrib tools commit                   tools that match a query
    ///   toolcrib tools git.git_log              one tool: arguments, cost and an example
    ///   toolcrib tools --cost                   the tokens that the tools of each server cost
    #[command(verbatim_doc_comment, aliases = ["tool", "list-tools"])]
    Tools(ToolsArgs),
    /// List resources, or read one
    ///
    /// Examples:
    ///   toolcrib resources
    ///   toolcrib resources file:///srv/notes/today.md
    ///   toolcrib resources image://logo --save .
    #[command(verbatim_doc_comment, alias = "resource")]
    Resources(ResourcesArgs),
    /// List prompts, or get one
    ///
    /// Examples:
    ///   toolcrib prompts
    ///   toolcrib prompts notes__summary style=short
    ///   toolcrib prompts notes.summary style=short
    #[command(verbatim_doc_comment, alias = "prompt")]
    Prompts(PromptsArgs),
    /// Complete an argument of a prompt or of a resource template
    ///
    /// Examples:
    ///   toolcrib complete notes__summary style=sh
    ///   toolcrib complete 'file:///srv/{path}' path=no
    ///
    /// Prints the values that the server suggests, one per line.
    #[command(verbatim_doc_comment)]
    Complete(CompleteArgs),
    /// Show the state of all servers
    ///
    /// Examples:
    ///   toolcrib status
    ///   toolcrib status git
    ///   toolcrib status --json
    #[command(verbatim_doc_comment, alias = "ps")]
    Status(StatusArgs),
    /// Restart a server, including one that was ejected
    ///
    /// Examples:
    ///   toolcrib restart git
    #[command(verbatim_doc_comment)]
    Restart(ServerNameArgs),
    /// Stop a server until the next call
    ///
    /// Examples:
    ///   toolcrib stop git
    #[command(verbatim_doc_comment)]
    Stop(ServerNameArgs),
    /// Show the log of a server: its stderr, and when it started and stopped
    ///
    /// Examples:
    ///   toolcrib logs git
    ///   toolcrib logs git -f
    ///   toolcrib logs git -n 20 --since 10m
    ///
    /// Reads the log file logs/SERVER.log in the state folder, which a gateway writes. Times are UTC.
    /// Without a log file, exits with 4.
    #[command(verbatim_doc_comment, alias = "log")]
    Logs(LogsArgs),
    /// Show servers and their calls, refreshed
    ///
    /// Examples:
    ///   toolcrib top
    ///   toolcrib top | cat                      once
    ///
    /// Keys: s sorts by the next column, r reverses, / filters by name, q quits. Rates and latencies
    /// are of the last minute.
    #[command(verbatim_doc_comment)]
    Top,
    /// Show how many calls there were, how long they took and what failed
    ///
    /// Examples:
    ///   toolcrib stats
    ///   toolcrib stats --since 7d
    ///   toolcrib stats --cost                   tokens of definitions and results
    ///
    /// Reads the history, which a gateway records; see `[history]` in the config.
    #[command(verbatim_doc_comment)]
    Stats(StatsArgs),
    /// Show what happened: starts, exits, ejections, reloads, approvals and calls
    ///
    /// Examples:
    ///   toolcrib events
    ///   toolcrib events -f
    ///   toolcrib events --since 2h --kind exited,ejected
    ///   toolcrib events --call 019a8643c98a0f31  one call, by the id in an error or the audit file
    ///
    /// Above 50 calls per second, not every call is shown. Times are UTC.
    #[command(verbatim_doc_comment)]
    Events(EventsArgs),
    /// Check the config, the gateway and every server, and say how to fix each problem
    ///
    /// Examples:
    ///   toolcrib doctor
    ///   toolcrib doctor git
    ///   toolcrib doctor --json
    ///
    /// Looks for the programs, packages, variables and secrets that servers need, and starts every
    /// server; in the gateway, if one runs. Exits with 2 if a check failed, with 0 on warnings.
    #[command(verbatim_doc_comment)]
    Doctor(DoctorArgs),
    /// Check the config and report every problem
    ///
    /// Examples:
    ///   toolcrib check
    ///   toolcrib check --config servers.json
    #[command(verbatim_doc_comment, alias = "validate")]
    Check,
    /// List the declared servers, and whether they are active here
    ///
    /// Examples:
    ///   toolcrib ls
    ///   toolcrib ls --json
    #[command(verbatim_doc_comment, alias = "list")]
    Ls,
    /// Show every value of a server, and the file and line that set it
    ///
    /// Examples:
    ///   toolcrib show git
    #[command(verbatim_doc_comment, aliases = ["get", "inspect"])]
    Show(ServerNameArgs),
    /// Explain why a server is active or inactive here
    ///
    /// Examples:
    ///   toolcrib why git
    ///   toolcrib why git --json
    ///   toolcrib why git --as host=laptop,network=10.1.0.0/16
    #[command(verbatim_doc_comment)]
    Why(WhyArgs),
    /// Declare a server
    ///
    /// Examples:
    ///   toolcrib add git -- uvx mcp-server-git
    ///   toolcrib add -e TOKEN=abc123 tickets -- npx -y tickets-server
    ///   toolcrib add docs https://example.com/mcp -H 'Authorization: Bearer ${env:DOCS}'
    ///   toolcrib add --scope project db -- ./tools/db-server
    ///   toolcrib add --try time -- uvx mcp-server-time
    ///   toolcrib add registry:./server.json
    ///   toolcrib add files registry:io.github.example/files-server
    ///
    /// Accepts the flags of `claude mcp add`. Comments and order of the file are kept. Values that
    /// look like secrets are stored with `toolcrib secret`; --plain writes them into the file. A
    /// running gateway uses the server when the command returns.
    ///
    /// registry:FILE is a `server.json` of the MCP registry: its package or URL, with its arguments,
    /// variables and headers. --env gives values to its variables. registry:NAME asks the registry
    /// whose URL is `registry` in the config.
    #[command(verbatim_doc_comment)]
    Add(servers::AddArgs),
    /// Declare servers that are given as JSON, as documentation of servers shows them
    ///
    /// Examples:
    ///   toolcrib add-json git '{"command": "uvx", "args": ["mcp-server-git"]}'
    ///   toolcrib add-json '{"mcpServers": {"git": {"command": "uvx"}}}'
    ///   toolcrib add-json git - < entry.json
    ///
    /// Understands one entry, or the `mcpServers` and `servers` objects of agents. Values that look like
    /// secrets are stored with `toolcrib secret`. A running gateway uses the servers when the command
    /// returns.
    #[command(verbatim_doc_comment)]
    AddJson(servers::AddJsonArgs),
    /// Remove a server from a config file
    ///
    /// Examples:
    ///   toolcrib rm git
    #[command(verbatim_doc_comment, aliases = ["remove", "delete"])]
    Rm(servers::EditServerArgs),
    /// Enable a server that was disabled by name
    ///
    /// Examples:
    ///   toolcrib enable git
    #[command(verbatim_doc_comment)]
    Enable(servers::EditServerArgs),
    /// Disable a server; it stays declared
    ///
    /// Examples:
    ///   toolcrib disable git
    ///   toolcrib disable git --scope project
    #[command(verbatim_doc_comment)]
    Disable(servers::EditServerArgs),
    /// Allow the config file of a project
    ///
    /// Examples:
    ///   toolcrib allow
    ///   toolcrib allow --revoke
    ///
    /// A `.toolcrib.toml` can start programs, so it is ignored until you allow it. Shows every value
    /// that the file changes and asks; without a terminal, --yes is needed. After a change the file
    /// must be allowed again.
    #[command(verbatim_doc_comment)]
    Allow(servers::AllowArgs),
    /// Test whether the access rules let a caller use a tool
    ///
    /// Examples:
    ///   toolcrib policy test --tool git.push
    ///   toolcrib policy test --caller ci --tool git.push
    ///
    /// Prints the rule that decides, with file and line. Nothing is called. Exits with 7 if denied.
    #[command(verbatim_doc_comment)]
    Policy(PolicyArgs),
    /// Verify the audit file
    ///
    /// Examples:
    ///   toolcrib audit verify
    ///   toolcrib audit verify /var/log/toolcrib/audit.jsonl
    ///
    /// Every line contains a digest of the lines before it. Exits with 2 and names the first line
    /// that does not match. Rotated files are verified too.
    #[command(verbatim_doc_comment)]
    Audit(AuditArgs),
    /// Manage the secrets that the config uses as `${secret:NAME}`
    ///
    /// Examples:
    ///   toolcrib secret set github-token        prompts for the value
    ///   pass show github | toolcrib secret set github-token
    ///   toolcrib secret ls
    ///   toolcrib secret rm github-token
    ///
    /// Secrets are stored in the desktop keyring, or in an encrypted file in the state folder. A
    /// server receives only its own secrets, when it starts.
    #[command(verbatim_doc_comment, alias = "secrets")]
    Secret(SecretArgs),
    /// Set up toolcrib for all installed agents
    ///
    /// Examples:
    ///   toolcrib init                           show the changes and ask
    ///   toolcrib init --dry-run                 only show them
    ///   toolcrib init --agent claude,codex      only these agents
    ///   toolcrib init --share                   every server for every agent
    ///   toolcrib init --undo                    restore all files
    ///
    /// Imports the servers of all agents, replaces them by one entry for toolcrib in each agent's
    /// settings, and checks that each agent gets its tools: those that it had. Installs the service
    /// where systemd or launchd runs. Shows everything first, with the tokens that the tools cost, and
    /// asks once; without a terminal, --yes is needed. Comments and order of all files are kept.
    #[command(verbatim_doc_comment)]
    Init(InitArgs),
    /// Log in to a remote server with a browser
    ///
    /// Examples:
    ///   toolcrib login linear
    ///   toolcrib login --all
    ///   toolcrib login --status
    ///   toolcrib login linear --no-browser      print the URL only, such as over ssh
    ///   toolcrib login linear --device          enter a code in a browser on another machine
    ///   toolcrib login linear --as alice        the login of one caller of the gateway
    ///
    /// One login serves every agent on this machine and survives restarts: the tokens are stored like
    /// other secrets, and renewed before they expire.
    #[command(verbatim_doc_comment)]
    Login(LoginArgs),
    /// Remove the login to a remote server, and revoke its tokens
    ///
    /// Examples:
    ///   toolcrib logout linear
    #[command(verbatim_doc_comment)]
    Logout(LogoutArgs),
    /// Import servers from the settings of agents
    ///
    /// Examples:
    ///   toolcrib import --dry-run               show what all installed agents have
    ///   toolcrib import --from cursor
    ///   toolcrib import --from ./mcp.json
    ///   toolcrib import --from - --yes < mcp.json
    ///
    /// Shows each server with its command or URL and asks; without a terminal, --yes is needed.
    /// Values that look like secrets are not copied: they are stored with `toolcrib secret`, and the
    /// config refers to them as `${secret:NAME}`.
    #[command(verbatim_doc_comment)]
    Import(ImportArgs),
    /// Add toolcrib to the settings of an agent, or remove it
    ///
    /// Examples:
    ///   toolcrib export claude                  add one entry for toolcrib
    ///   toolcrib export claude --replace        and remove its entries of servers that toolcrib has
    ///   toolcrib export --all --dry-run         show the changes for all installed agents
    ///   toolcrib export codex --check           exit with 2 if the file would change
    ///   toolcrib export cursor --scope project  use the file of this project
    ///   toolcrib export zed --expand            add the servers themselves
    ///   toolcrib export claude --undo           restore the file
    ///
    /// AGENT is one of amp, augment, claude, claude-desktop, cline, codex, continue, copilot, crush,
    /// cursor, gemini, goose, jetbrains, junie, kiro, lm-studio, opencode, qwen, roo, vscode, warp,
    /// windsurf, zed. Comments and order of the file are kept. Secrets are never written to it, and
    /// the agent's list of trusted folders is not changed.
    #[command(verbatim_doc_comment)]
    Export(ExportArgs),
    /// Start an agent with toolcrib as a server, for this session only
    ///
    /// Examples:
    ///   toolcrib run claude
    ///   toolcrib run codex -- exec "what time is it?"
    ///
    /// AGENT is one of amp, claude, codex, copilot, gemini, goose, opencode, qwen. The agent's files
    /// are not changed. The agent replaces this process: it gets the signals and sets the exit code.
    #[command(verbatim_doc_comment)]
    Run(RunArgs),
    /// Review and approve changed definitions of a server, or a pending call
    ///
    /// Examples:
    ///   toolcrib approve git
    ///   toolcrib approve git --yes
    ///   toolcrib approve --call 5f0c2a91b3de
    ///
    /// The tools that a server offers when it is first listed are approved. A tool that changes or
    /// appears later is marked in `tools` and `status`; with `pin = "strict"` it is withheld until
    /// it is approved here. Exits with 2 if it is not approved.
    ///
    /// With --call: approves one call that an `ask` rule refused because its client cannot ask the
    /// user. The same caller may then repeat the call, with the same arguments, for 5 minutes.
    #[command(verbatim_doc_comment)]
    Approve(ApproveArgs),
    /// Show the help of the program or of a command
    ///
    /// Examples:
    ///   toolcrib help
    ///   toolcrib help call
    ///   toolcrib help secret set
    #[command(verbatim_doc_comment)]
    Help(HelpArgs),
    /// Explain an error: its cause, and what to do
    ///
    /// Examples:
    ///   toolcrib explain could_not_start
    ///   toolcrib explain -31014
    ///   toolcrib explain slow_to_start
    ///   toolcrib explain
    ///
    /// CODE is the kind of an error, its number with or without the sign, or a failure class of a
    /// server. Without CODE, lists all of them.
    #[command(verbatim_doc_comment)]
    Explain(ExplainArgs),
    /// Print a script that completes commands, servers and tools in your shell
    ///
    /// Examples:
    ///   source <(toolcrib completions bash)     in ~/.bashrc
    ///   source <(toolcrib completions zsh)      in ~/.zshrc, after compinit
    ///   toolcrib completions fish > ~/.config/fish/completions/toolcrib.fish
    ///   toolcrib completions powershell | Out-String | Invoke-Expression
    ///
    /// The script asks toolcrib for the candidates. Servers are read from the config, tools from the
    /// running gateway or from what is remembered of the servers; no server is started.
    #[command(verbatim_doc_comment, alias = "completion")]
    Completions(CompletionsArgs),
    /// Open the dashboard of the gateway in a browser
    ///
    /// Examples:
    ///   toolcrib ui
    ///   toolcrib ui --no-browser                print the link only, such as over ssh
    ///
    /// The link logs in once, within two minutes, with the rights of the command line. If no gateway
    /// is running, one is started in the background. A gateway without a TCP address opens one on
    /// loopback for the dashboard alone.
    #[command(verbatim_doc_comment, alias = "dashboard")]
    Ui(UiArgs),
    /// Run one of the servers of `demo`
    #[command(hide = true)]
    DemoServer(DemoServerArgs),
}

impl Command {
    /// Returns the server or tool that a command is about, for errors.
    pub(crate) fn server_or_tool(&self) -> Option<&str> {
        match self {
            Self::Call(args) => args.positional.first().map(String::as_str),
            Self::Status(args) => args.server.as_deref(),
            Self::Restart(args) | Self::Stop(args) => Some(&args.server),
            Self::Logs(args) => Some(&args.server),
            _ => None,
        }
    }
}

/// Arguments of `help`.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// The command
    #[arg(value_name = "COMMAND")]
    pub(crate) verbs: Vec<String>,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The kind of an error, its number, or a failure class
    #[arg(allow_negative_numbers = true)]
    pub(crate) code: Option<String>,
}

/// Parses a duration in the format of the config. Zero is refused.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = toolcrib::config::units::parse_duration(text).filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| "use a whole number and a unit: `500ms`, `30s`, `5m` or `1h`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_requires_whole_number_and_unit() {
        assert_eq!(parse_duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "5", "s", "0s", "1.5s", "-1s", "99999999999999h", "1w"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
