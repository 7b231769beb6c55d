//! Arguments of `resources`, `prompts` and `complete`. Doc comments are help texts.

use std::path::PathBuf;

use clap::Args;

/// Selects where binary content is saved.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct SaveArgs {
    /// Save images, audio and other binary content as files in this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
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
