//! Arguments of `call`, `tools`, `resources`, `prompts` and `complete`. Doc comments are help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Selects where binary content is saved.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct SaveArgs {
    /// Save images, audio and other binary content as files in this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
}

/// Arguments of `call`.
#[derive(Debug, Default, Args)]
pub(crate) struct CallArgs {
    /// The tool, or the server and the tool; then arguments
    #[arg(required = true, num_args = 1.., value_name = "TOOL")]
    pub(crate) positional: Vec<String>,
    /// Arguments as one JSON object; `-` reads it from stdin
    #[arg(long, value_name = "JSON")]
    pub(crate) args: Option<String>,
    /// Start this server for the call, declared or not; its words are split without a shell
    #[arg(long, value_name = "COMMAND", conflicts_with = "url")]
    pub(crate) command: Option<String>,
    /// Call the remote server at this URL, declared or not
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Ignore the tool's schema: VALUE is JSON if it can be, else text, and nothing is checked
    #[arg(long)]
    pub(crate) unchecked: bool,
    /// Cancel the call after this time: 500ms, 30s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = super::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) save: SaveArgs,
}

/// Arguments of `tools`.
#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// Show a server's tools, one tool by its name or as `server.tool`, or the tools that match these words best
    pub(crate) query: Option<String>,
    /// Show how many tokens the definitions cost, by server; a token is 4 bytes
    #[arg(long)]
    pub(crate) cost: bool,
    /// Show the score of each match and the parts of the tool that have words of the query
    #[arg(long, requires = "query")]
    pub(crate) explain: bool,
    /// Wait until every server has been listed or has failed; without a gateway, the default is 20 s
    #[arg(long)]
    pub(crate) wait: bool,
    /// Do not wait for servers that were never listed; the default with a gateway
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Ask the running servers for their lists first; servers that do not run are named, not started
    #[arg(long)]
    pub(crate) refresh: bool,
}

/// Arguments of `resources`.
#[derive(Debug, Args)]
pub(crate) struct ResourcesArgs {
    /// The resource to read
    pub(crate) uri: Option<String>,
    #[command(flatten)]
    pub(crate) save: SaveArgs,
}

/// Arguments of `prompts`.
#[derive(Debug, Args)]
pub(crate) struct PromptsArgs {
    /// The prompt, by its public name or as `server.prompt`
    pub(crate) name: Option<String>,
    /// Arguments of the prompt
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    #[command(flatten)]
    pub(crate) save: SaveArgs,
}

/// Arguments of `complete`.
#[derive(Debug, Args)]
pub(crate) struct CompleteArgs {
    /// The prompt, by its public name or as `server.prompt`, or the URI of a resource template
    #[arg(value_name = "PROMPT | TEMPLATE")]
    pub(crate) reference: String,
    /// The argument and what is typed so far
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) argument: String,
}
