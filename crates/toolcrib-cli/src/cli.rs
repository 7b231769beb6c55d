//! The command line. Every doc comment here is help text.

mod agents;
mod policy;
mod secret;
pub(crate) mod servers;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::listen::ListenAddr;
pub(crate) use agents::{Export, Import, Run, Secrets};
pub(crate) use policy::{Policy, PolicyCommand, PolicyTest};
pub(crate) use secret::{SecretArgs, SecretCommand, SetSecret};
pub(crate) use servers::{Approve, Logs, OneServer};

/// One place for every MCP server your agents use: found, kept alive, asked, answered
///
/// Examples:
///   toolcrib demo                          the whole idea in a few seconds, nothing to set up
///   toolcrib check                         read the config, report every problem
///   toolcrib serve                         run the gateway for your agents
///   toolcrib call git__git_log max_count=3 call one tool
#[derive(Debug, Parser)]
#[command(name = "toolcrib", version, verbatim_doc_comment, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Use this config file alone
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data as JSON on stdout, an error as one JSON object on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say only what went wrong
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Colour,
    /// Never ask a question
    #[arg(long, global = true)]
    pub(crate) no_input: bool,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless `NO_COLOR` says otherwise.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the whole idea in one go: offline, nothing installed, no config
    ///
    /// Examples:
    ///   toolcrib demo
    ///   toolcrib demo --json
    ///
    /// Starts the gateway with small servers that the program itself contains, calls them over
    /// HTTP, kills one in the middle of a call, shows it come back, shows one that keeps crashing
    /// being ejected while the others serve, stops, and checks that no process is left.
    #[command(verbatim_doc_comment)]
    Demo,
    /// Run the gateway in the foreground
    ///
    /// Examples:
    ///   toolcrib serve
    ///   toolcrib serve --listen 127.0.0.1:0
    ///   toolcrib serve --listen unix:/run/user/1000/crib.sock
    ///
    /// Prints `listening on http://HOST:PORT/mcp` when it answers. SIGTERM and Ctrl-C let calls
    /// in flight finish and stop every server; a second one does not wait. The config is read
    /// again when its file changes and on SIGHUP.
    #[command(verbatim_doc_comment)]
    Serve(Serve),
    /// Speak MCP on stdin and stdout, for agents that start a command
    ///
    /// Examples:
    ///   toolcrib stdio
    ///   claude mcp add crib -- toolcrib stdio
    ///
    /// Attached to the running gateway if there is one, standing alone if not. When that gateway
    /// is restarted, the conversation goes on with the next one.
    #[command(verbatim_doc_comment)]
    Stdio(Stdio),
    /// Call one tool
    ///
    /// Examples:
    ///   toolcrib call git__git_log repo_path=. max_count=3
    ///   toolcrib call git git_log max_count=3
    ///   toolcrib call git_log --args '{"max_count": 3}'
    ///   echo '{"max_count": 3}' | toolcrib call git_log --args - --timeout 10s
    ///
    /// TOOL is a public name, or a bare name if only one server has it; with SERVER before it,
    /// the server's own name.
    #[command(
        verbatim_doc_comment,
        override_usage = "toolcrib call [OPTIONS] [SERVER] <TOOL> [KEY=VALUE]..."
    )]
    Call(Call),
    /// List every tool on offer, or those that match a query
    ///
    /// Examples:
    ///   toolcrib tools
    ///   toolcrib tools commit
    ///   toolcrib tools --json
    #[command(verbatim_doc_comment)]
    Tools(Tools),
    /// Show what is running, and how well
    ///
    /// Examples:
    ///   toolcrib status
    ///   toolcrib status git
    ///   toolcrib status --json
    #[command(verbatim_doc_comment)]
    Status(Status),
    /// Restart a server; this also revives one that was ejected
    ///
    /// Examples:
    ///   toolcrib restart git
    #[command(verbatim_doc_comment)]
    Restart(OneServer),
    /// Stop a server; the next call wakes it
    ///
    /// Examples:
    ///   toolcrib stop git
    #[command(verbatim_doc_comment)]
    Stop(OneServer),
    /// Show what a server wrote to its stderr
    ///
    /// Examples:
    ///   toolcrib logs git
    ///   toolcrib logs git -f
    ///
    /// The gateway keeps more of it, and how the server started and ended, in a file of its state
    /// folder: logs/SERVER.log.
    #[command(verbatim_doc_comment)]
    Logs(Logs),
    /// Read every config file and report every problem with file, line, column and a hint
    ///
    /// Examples:
    ///   toolcrib check
    ///   toolcrib check --config servers.json
    #[command(verbatim_doc_comment)]
    Check,
    /// List the declared servers, on or off here, and why
    ///
    /// Examples:
    ///   toolcrib ls
    ///   toolcrib ls --json
    #[command(verbatim_doc_comment)]
    Ls,
    /// Show one declared server: every value, and the file and line that set it
    ///
    /// Examples:
    ///   toolcrib show git
    #[command(verbatim_doc_comment)]
    Show(OneServer),
    /// Explain why a server is on or off here: its tags, the scopes, and who said what
    ///
    /// Examples:
    ///   toolcrib why git
    ///   toolcrib why git --json
    #[command(verbatim_doc_comment)]
    Why(OneServer),
    /// Declare a server
    ///
    /// Examples:
    ///   toolcrib add git -- uvx mcp-server-git
    ///   toolcrib add -e TOKEN='${env:TOKEN}' tickets -- npx -y tickets-server
    ///   toolcrib add docs https://example.com/mcp -H 'Authorization: Bearer ${env:DOCS}'
    ///   toolcrib add --scope project db -- ./tools/db-server
    ///
    /// Takes the flags of `claude mcp add`. Comments and order of the file stay.
    #[command(verbatim_doc_comment)]
    Add(servers::Add),
    /// Take a server out of a config file
    ///
    /// Examples:
    ///   toolcrib rm git
    #[command(verbatim_doc_comment)]
    Rm(servers::Change),
    /// Switch a server on that was switched off by name
    ///
    /// Examples:
    ///   toolcrib enable git
    #[command(verbatim_doc_comment)]
    Enable(servers::Change),
    /// Switch a server off; it stays declared
    ///
    /// Examples:
    ///   toolcrib disable git
    ///   toolcrib disable git --scope project
    #[command(verbatim_doc_comment)]
    Disable(servers::Change),
    /// Let the config that came with a project be used, exactly as it is now
    ///
    /// Examples:
    ///   toolcrib allow
    ///   toolcrib allow --revoke
    ///
    /// A `.toolcrib.toml` can start programs, so it does nothing until you have allowed it. When
    /// it changes, it has to be allowed again.
    #[command(verbatim_doc_comment)]
    Allow(servers::Allow),
    /// Ask the rules of the config whether a caller may use a tool
    ///
    /// Examples:
    ///   toolcrib policy test --tool git.push
    ///   toolcrib policy test --caller ci --tool git.push
    ///
    /// Says which rule decides, with file and line. Nothing is called. Exit 7 if it is denied.
    #[command(verbatim_doc_comment)]
    Policy(Policy),
    /// Keep the values that `${secret:NAME}` in the config stands for
    ///
    /// Examples:
    ///   toolcrib secret set github-token        asks for the value
    ///   pass show github | toolcrib secret set github-token
    ///   toolcrib secret ls
    ///   toolcrib secret rm github-token
    ///
    /// Kept in the keyring of the desktop if there is one, else in an encrypted file of the state
    /// folder. A server gets its secrets when it starts; nobody else is told.
    #[command(verbatim_doc_comment)]
    Secret(SecretArgs),
    /// Take servers out of agents' own settings into the config
    ///
    /// Examples:
    ///   toolcrib import --dry-run               what every agent that is here has
    ///   toolcrib import --from cursor
    ///   toolcrib import --from ./mcp.json
    ///
    /// A line for each server says what became of it. Values that look like secrets are not copied:
    /// `toolcrib secret` keeps them, and `${secret:NAME}` stands for each.
    #[command(verbatim_doc_comment)]
    Import(Import),
    /// Write toolcrib into an agent's own settings, or take it out again
    ///
    /// Examples:
    ///   toolcrib export claude                  one entry that leads to toolcrib
    ///   toolcrib export --all --dry-run         what would change, for every agent that is here
    ///   toolcrib export codex --check           exit 2 if it would change
    ///   toolcrib export cursor --scope project  the file of this project
    ///   toolcrib export zed --expand            the servers themselves
    ///   toolcrib export claude --undo           the file as it was
    ///
    /// AGENT is one of amp, augment, claude, claude-desktop, cline, codex, continue, copilot, crush,
    /// cursor, gemini, goose, jetbrains, junie, kiro, lm-studio, opencode, qwen, roo, vscode, warp,
    /// windsurf, zed. Comments and order of the file are kept, secrets are never written into it, and
    /// whether an agent trusts a folder stays between you and the agent.
    #[command(verbatim_doc_comment)]
    Export(Export),
    /// Start an agent with toolcrib among its servers, for this session only
    ///
    /// Examples:
    ///   toolcrib run claude
    ///   toolcrib run codex -- exec "what time is it?"
    ///
    /// AGENT is one of amp, claude, codex, copilot, gemini, goose, opencode, qwen. No file of the agent
    /// is touched; its exit code and its signals are its own.
    #[command(verbatim_doc_comment)]
    Run(Run),
    /// Show how the tools of a server differ from what was approved, and approve them
    ///
    /// Examples:
    ///   toolcrib approve git
    ///   toolcrib approve git --yes
    ///   toolcrib approve --call 5f0c2a91b3de
    ///
    /// What a server offers when it is first seen counts as approved. A tool that changes later,
    /// or comes with a new name, is marked in `tools` and `status`; with `pin = "strict"` it is
    /// withheld until it is approved here. Exit 2 if nobody says yes.
    ///
    /// With --call: says yes to one call that a rule (`ask`) holds back and whose client cannot be
    /// asked. The same caller may then make the same call, with the same arguments, for 5 minutes.
    #[command(verbatim_doc_comment)]
    Approve(Approve),
    /// One of the small servers that `demo` runs
    #[command(hide = true)]
    DemoServer(DemoServer),
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen: HOST:PORT (port 0 picks one) or unix:PATH; other machines only with callers
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7717")]
    pub(crate) listen: ListenAddr,
}

/// Arguments of `stdio`.
#[derive(Debug, Args)]
pub(crate) struct Stdio {
    /// Show and let through only what this profile has
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
}

/// Arguments of `call`.
#[derive(Debug, Args)]
pub(crate) struct Call {
    /// The tool, or the server and then the tool, then arguments as KEY=VALUE
    #[arg(required = true, num_args = 1.., value_name = "TOOL")]
    pub(crate) words: Vec<String>,
    /// Arguments as one JSON object; `-` reads it from stdin
    #[arg(long, value_name = "JSON")]
    pub(crate) args: Option<String>,
    /// Send the arguments whether they fit the tool's schema or not
    #[arg(long)]
    pub(crate) unchecked: bool,
    /// Give up after this long: 500ms, 30s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Arguments of `tools`.
#[derive(Debug, Args)]
pub(crate) struct Tools {
    /// Show only tools with this in their name or description
    pub(crate) query: Option<String>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Show one server in full
    pub(crate) server: Option<String>,
}

/// Arguments of the hidden `demo-server`.
#[derive(Debug, Args)]
pub(crate) struct DemoServer {
    /// Which one.
    pub(crate) role: Role,
}

/// What a demo server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Says what it is told.
    Echo,
    /// Counts, and thinks for ever when asked to.
    Counter,
    /// Dies at once.
    Crashing,
}

/// One whole number and a unit, as in the config.
fn duration(text: &str) -> Result<Duration, String> {
    let time = toolcrib::config::units::duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "a whole number and a unit: `500ms`, `30s`, `5m` or `1h`".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  toolcrib"), "{}: {help}", command.get_name());
        }
    }

    #[test]
    fn durations_are_a_whole_number_and_a_unit() {
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "5", "s", "0s", "1.5s", "-1s", "99999999999999h", "1d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
